"""Random forward passes: layers, norms, branches, reuse, reshapes, and unusual Python."""

import random

import torch
from torch import nn
from torch.nn import functional

from normscope.layers import BatchNorm1d, BatchNorm2d, LpNorm1d

SIZES = (2, 3, 4)  # so few that channels and positions are often the same
NORMS = {
    2: (nn.BatchNorm1d, BatchNorm1d, LpNorm1d, nn.SyncBatchNorm),
    3: (nn.BatchNorm1d, BatchNorm1d, nn.SyncBatchNorm),
    4: (nn.BatchNorm2d, BatchNorm2d, nn.SyncBatchNorm),
}


class Fused(nn.BatchNorm1d):
    """A norm layer with its activation."""

    def __init__(self, channels):
        super().__init__(channels)
        self.activation = nn.Tanh()

    def forward(self, x):
        return self.activation(super().forward(x))


class Program(nn.Module):
    """Runs its steps in order on a list of values, which begins with the input."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList()
        self.steps = []

    def forward(self, x):
        values = [x]
        for step, sources in self.steps:
            values.append(step(self, *(values[source] for source in sources)))
        return values[-1]


def call(number):
    return lambda net, x: net.parts[number](x)


def function(operation):
    return lambda net, *values: operation(*values)


class Builder:
    """Draws one network, and an input that it takes."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        torch.manual_seed(seed)
        self.net = Program().double().eval()
        shape = [self.random.choice(SIZES) for _ in range(self.random.choice((1, 1, 2, 3)))]
        self.values = [torch.randn(2, *shape, dtype=torch.float64)]
        self.drawn = None  # the last kind of step
        self.tricks = self.random.random() < 0.3

    def build(self):
        for _ in range(self.random.randint(2, 9)):
            self.add()
        self.finish()
        return self.net, self.values[0]

    def add(self):
        last = len(self.values) - 1
        source = last if self.random.random() < 0.85 else self.random.randint(0, last)
        value = self.values[source]
        kinds = [self.layer, self.norm, self.norm, self.activation, self.reshape, self.join]
        if self.net.parts:
            kinds.append(self.reuse)
        if self.tricks and self.net.parts:
            kinds.append(self.trick)
        after_layer = self.drawn == self.layer and self.random.random() < 0.6
        self.drawn = self.norm if after_layer else self.random.choice(kinds)
        step = self.drawn(value, source)
        if step is None:
            return
        step, sources = step if isinstance(step, tuple) else (step, [source])
        try:
            with torch.no_grad():
                result = step(self.net, *(self.values[each].clone() for each in sources))
        except (RuntimeError, ValueError, IndexError, AttributeError, TypeError):
            return  # the part stays as one that is never called
        if result.numel() and result.numel() <= 400 and result.dim() >= 2:
            self.net.steps.append((step, sources))
            self.values.append(result)

    def module(self, module):
        self.net.parts.append(module.double().eval())
        return call(len(self.net.parts) - 1)

    def layer(self, value, source):
        draw = self.random
        bias, out = draw.random() < 0.7, draw.choice(SIZES)
        if value.dim() == 2 or draw.random() < 0.4:
            return self.module(nn.Linear(value.shape[-1], out, bias=bias))
        one_d = value.dim() == 3
        kind = draw.choice((nn.Conv1d, nn.ConvTranspose1d) if one_d else (nn.Conv2d,))
        return self.module(
            kind(value.shape[1], out, draw.choice((1, 2)), padding=draw.choice((0, 1)), bias=bias)
        )

    def norm(self, value, source):
        if value.dim() == 2 and self.random.random() < 0.1:
            return self.module(with_statistics(Fused(value.shape[1])))
        kind = self.random.choice(NORMS.get(value.dim(), (nn.BatchNorm3d,)))
        options = {"affine": self.random.random() < 0.8}
        return self.module(with_statistics(kind(value.shape[1], **options)))

    def activation(self, value, source):
        modules = (nn.ReLU(), nn.ReLU(inplace=True), nn.Dropout(), nn.Identity(), nn.Flatten())
        if self.random.random() < 0.6:
            return self.module(self.random.choice(modules))
        return function(self.random.choice((torch.relu, torch.tanh, functional.relu_)))

    def reshape(self, value, source):
        kinds = [lambda x: x.flatten(1), lambda x: x.mean(-1), lambda x: x.transpose(1, -1)]
        kinds += [lambda x: x.unsqueeze(-1), lambda x: x.reshape(x.shape[0], -1)]
        return function(self.random.choice(kinds))

    def join(self, value, source):
        alike = [n for n, other in enumerate(self.values) if other.shape == value.shape]
        operation = self.random.choice((torch.add, torch.mul, lambda a, b: torch.cat([a, b], 1)))
        return function(operation), [source, self.random.choice(alike)]

    def reuse(self, value, source):
        return call(self.random.randrange(len(self.net.parts)))

    def trick(self, value, source):
        """Return a step that takes another branch while it is traced, or reads a layer."""
        number = self.random.randrange(len(self.net.parts))
        tricks = [
            lambda net, x: torch.relu(x) if type(x) is torch.Tensor else x,
            lambda net, x: x if hasattr(x, "traced_node") else x.tanh(),
            lambda net, x: torch.relu(x) if x.dim() == 2 else x,
            lambda net, x: x * getattr(net.parts[number], "num_features", 1),
            lambda net, x: x * net.parts[number].weight.sum(),
            lambda net, x: x if "Norm" in type(net.parts[number]).__name__ else x.tanh(),
            lambda net, x: setattr(net, "cache", x) or x,
        ]
        return self.random.choice(tricks)

    def finish(self):
        """Tie, hook or nest some of the parts."""
        linear = [part for part in self.net.parts if type(part) is nn.Linear]
        pairs = [(a, b) for a in linear for b in linear if a is not b]
        pairs = [(a, b) for a, b in pairs if a.weight.shape == b.weight.shape]
        if pairs and self.random.random() < 0.3:
            one, other = self.random.choice(pairs)
            one.weight = other.weight
        if self.tricks and self.net.parts and self.random.random() < 0.3:
            part = self.random.choice(list(self.net.parts))
            part.register_forward_hook(lambda module, inputs, output: output + 1)


def with_statistics(norm):
    """Statistics, scales and shifts as after training."""
    for name, tensor in norm.state_dict(keep_vars=True).items():
        if name in ("running_var", "running_scale"):
            tensor.data.uniform_(0.2, 3.0)
        elif tensor.is_floating_point():
            tensor.data.normal_()
    return norm


def random_network(seed):
    """Return a network in eval mode and an input."""
    return Builder(seed).build()
