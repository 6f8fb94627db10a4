"""Whole curvature matrices by finite differences in float64: slow, and independent of autograd's
second derivatives, of the library's mode handling and of its closed forms."""

import copy
import functools

import torch
from torch import nn
from torch.func import functional_call

from normscope.layers import is_batch_norm
from normscope.layers.kinds import is_lp_norm


class RecordedStatistics(nn.Module):
    """Normalizes by the statistics of its first pass, call by call, written out in plain terms."""

    def __init__(self, layer):
        super().__init__()
        self.layer = [layer]  # not a child: its parameters are taken over under their own names
        self.weight, self.bias = layer.weight, layer.bias
        self.recorded, self.position, self.replay = [], 0, False

    def statistics(self, x):
        layer = self.layer[0]
        dims = [d for d in range(x.dim()) if d != 1]
        mean = x.mean(dims, keepdim=True)
        if is_lp_norm(layer):
            size = (x - mean if layer.centred else x).abs()
            if layer.p == torch.inf:
                return mean, size.amax(dims, keepdim=True) + layer.eps
            return mean, (size.pow(layer.p).mean(dims, keepdim=True) + layer.eps) ** (1 / layer.p)
        return mean, ((x - mean).square().mean(dims, keepdim=True) + layer.eps).sqrt()

    def forward(self, x):
        if not self.replay:
            self.recorded.append(tuple(t.detach() for t in self.statistics(x)))
        mean, scale = self.recorded[self.position % len(self.recorded)]
        self.position += 1
        y = (x - mean) / scale
        shape = [-1 if d == 1 else 1 for d in range(x.dim())]
        if self.weight is not None:
            y = y * self.weight.view(shape)
        if self.bias is not None:
            y = y + self.bias.view(shape)
        if hasattr(self.layer[0], "activation"):
            y = self.layer[0].activation(y)
        noise = getattr(self.layer[0], "noise", None)
        if noise is not None:
            from normscope.layers.noisy import add_noise

            y = add_noise(y, noise, self.layer[0].generator)
        return y


def replace_modules(parent, matches, make):
    made = {}
    for module in list(parent.modules()):
        for name, child in list(module.named_children()):
            if matches(child):
                made.setdefault(id(child), make(child))
                setattr(module, name, made[id(child)])
    return list(made.values())


class Reference:
    """A model as a function of one flat float64 parameter vector, on one batch."""

    def __init__(self, model, loss, batch, mode, seed=0):
        self.model = copy.deepcopy(model).train(mode != "eval")
        self.loss, (self.inputs, self.targets) = loss, batch
        self.seed = seed
        recorders = []
        if mode == "frozen":
            recorders = replace_modules(
                self.model, lambda m: is_batch_norm(m) or is_lp_norm(m), RecordedStatistics
            )
        self.names = [name for name, p in self.model.named_parameters() if p.requires_grad]
        own = dict(self.model.named_parameters())
        self.shapes = [own[name].shape for name in self.names]
        self.point = torch.cat([own[name].detach().reshape(-1) for name in self.names])
        self.output(self.point)
        for recorder in recorders:
            recorder.replay = True

    def output(self, vector):
        for module in self.model.modules():
            for value in vars(module).values():
                if isinstance(value, torch.Generator):
                    value.manual_seed(self.seed)
            if isinstance(module, RecordedStatistics):
                module.position = 0
                generator = getattr(module.layer[0], "generator", None)
                if generator is not None:
                    generator.manual_seed(self.seed)
        pieces = vector.split([shape.numel() for shape in self.shapes])
        tensors = {
            name: piece.view(shape)
            for name, piece, shape in zip(self.names, pieces, self.shapes, strict=True)
        }
        buffers = {name: b.clone() for name, b in self.model.named_buffers()}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return functional_call(self.model, tensors | buffers, (self.inputs,))

    def gradient(self, vector):
        leaf = vector.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(self.loss(self.output(leaf), self.targets), leaf)
        return gradient

    @functools.cached_property
    def jacobian(self):
        with torch.no_grad():
            return differences(lambda v: self.output(v).reshape(-1), self.point)

    def output_hessian(self):
        output = self.output(self.point).detach()

        def gradient(flat):
            leaf = flat.detach().view_as(output).requires_grad_()
            return torch.autograd.grad(self.loss(leaf, self.targets), leaf)[0].reshape(-1)

        return differences(gradient, output.reshape(-1))

    def matrix(self, kind):
        if kind == "hessian":
            return differences(self.gradient, self.point)
        jacobian = self.jacobian
        if kind == "fisher":
            return jacobian.T @ jacobian / len(self.inputs)
        if kind == "ggn":
            return jacobian.T @ self.output_hessian() @ jacobian
        raise KeyError(kind)


def differences(function, point, step=1e-5):
    """The Jacobian by central differences, one column per entry of the point."""
    columns = []
    for entry in range(len(point)):
        move = torch.zeros_like(point)
        move[entry] = step
        columns.append((function(point + move) - function(point - move)) / (2 * step))
    return torch.stack(columns, dim=1)


def hessian_by_double_loop(model, loss, batch):
    """The Hessian entry by entry: a backward pass for every entry of the gradient."""
    params = [p for p in model.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(loss(model(batch[0]), batch[1]), params, create_graph=True)
    rows = []
    for entry in torch.cat([g.reshape(-1) for g in gradients]):
        row = torch.autograd.grad(entry, params, retain_graph=True, materialize_grads=True)
        rows.append(torch.cat([r.reshape(-1) for r in row]))
    return torch.stack(rows)
