"""Random networks, losses and data; the same seed always makes the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import normscope as ns

DTYPE = torch.float64  # so that agreement can be asked for to many digits


@dataclass
class Sample:
    """A network with loss and data.

    Args:
        model: the network.
        loss: as normscope takes it.
        plain_loss: the same for the reference, as ``(model, output, target)``.
        batches: the data, batch by batch.
        data: the same as normscope takes it.
        parts: names of what it is made of.
        is_noisy: whether train mode draws random numbers.
        reads_model: whether the loss uses the model besides its output.
    """

    model: nn.Module
    loss: Any
    plain_loss: Callable[[nn.Module, Tensor, Tensor], Tensor]
    batches: list[tuple[Tensor, Tensor]]
    data: Any
    parts: list[str] = field(default_factory=list)
    is_noisy: bool = False
    reads_model: bool = False

    def __str__(self) -> str:
        return f"{', '.join(self.parts)}\n{self.model}"


class Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


class Twice(nn.Module):
    """One module that is called twice."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(torch.tanh(self.inner(x)))


class Tied(nn.Module):
    """Two layers that share a weight."""

    def __init__(self, size: int, hidden: int) -> None:
        super().__init__()
        self.first = nn.Linear(size, hidden)
        self.second = nn.Linear(size, hidden)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(x)) * self.second(x)
        return functional.linear(hidden, self.first.weight.t())


class Custom(nn.Module):
    """Own parameters, operators and a stopped gradient."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(size) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        shifted = x * self.scale + torch.sin(x)
        return shifted - 0.1 * shifted.detach().mean(-1, keepdim=True)


class Checkpointed(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = checkpoint(self.inner, x, use_reentrant=False)
        return result


class Stateful(nn.Module):
    """Counts its calls in a buffer, a number and a list."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=DTYPE))
        self.calls = 0
        self.shapes: list[Any] = []

    def forward(self, x: Tensor) -> Tensor:
        self.count.add_(1)
        self.calls += 1
        self.shapes.append(tuple(x.shape))
        return x


class ByLambda(nn.Module):
    """Calls its layer through an attribute that refers to itself."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.call = lambda x: self.inner(x)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.call(x)
        return result


class Squared(torch.autograd.Function):
    """x^2 with a backward pass that cannot be differentiated."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient.detach() * 2 * x.detach()


class NotTwice(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = Squared.apply(x)
        return result


class LastState(nn.Module):
    """The last output of a recurrent network."""

    def __init__(self, inner: nn.RNNBase) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.inner(x)[0][:, -1]
        return result


def _composed(g: Tensor, v: Tensor) -> Tensor:
    return v * (g / v.norm(dim=1, keepdim=True))


class Generator:
    """Draws one sample; a twin is made by another generator with the same seed.

    Args:
        seed: of everything.
        is_reference: whether weight normalization is made of operations with right second
            derivatives, which torch's own has not.
    """

    def __init__(self, seed: int, is_reference: bool = False) -> None:
        self.random = Random(seed)
        self.seed = seed
        self.is_reference = is_reference
        self.parts: list[str] = []
        self.is_noisy = False

    def sample(self) -> Sample:
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            outputs = self.random.randint(2, 3)
            shape, body, features = self.random.choice((self.vector, self.image, self.sequence))()
            model = nn.Sequential(*body, nn.Linear(features, outputs)).to(DTYPE)
            self.finish(model)
            counts = self.random.choice(([6], [7], [5, 6], [6, 4, 5]))
            inputs = [torch.randn(count, *shape, dtype=DTYPE) for count in counts]
            loss, plain, target, reads = self.loss(outputs, model)
            batches = [(x, target(len(x))) for x in inputs]
            self.warm_up(model, batches)
            data: Any = batches[0] if len(batches) == 1 else batches
            if len(batches) > 1 and self.chance(0.3):
                data = DataLoader(TensorDataset(*map(torch.cat, zip(*batches, strict=True))), 5)
                batches = list(data)
        return Sample(model, loss, plain, batches, data, self.parts, self.is_noisy, reads)

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def pick(self, choices: dict[str, Callable[[], nn.Module]]) -> nn.Module:
        name = self.random.choice(list(choices))
        self.parts.append(name)
        return choices[name]()

    def vector(self) -> tuple[tuple[int, ...], list[nn.Module], int]:
        size = first = self.random.randint(2, 4)
        body: list[nn.Module] = []
        for _ in range(self.random.randint(1, 3)):
            body.append(self.vector_block(size))
            if self.chance(0.4):
                wider = self.random.randint(2, 4)
                body.append(nn.Linear(size, wider, bias=self.chance(0.7)))
                size = wider
            body.append(self.activation())
        return (first,), body, size

    def vector_block(self, size: int, depth: int = 0) -> nn.Module:
        def inner() -> nn.Module:
            return self.vector_block(size, depth + 1) if depth < 2 else nn.Linear(size, size)

        def weight_norm() -> nn.Module:
            layer = parametrizations.weight_norm(nn.Linear(size, size))
            if self.is_reference:
                layer.parametrizations.weight[0].forward = _composed
            return layer

        return self.pick(
            {
                "linear": lambda: nn.Linear(size, size),
                "batch norm": lambda: nn.BatchNorm1d(size, affine=self.chance(0.8)),
                "our batch norm": lambda: ns.layers.BatchNorm1d(size),
                "lp norm": lambda: ns.layers.LpNorm1d(size, p=self.random.choice((1, 2))),
                "layer norm": lambda: nn.LayerNorm(size),
                "group norm": lambda: nn.GroupNorm(1, size),
                "residual": lambda: Residual(inner()),
                "twice": lambda: Twice(inner()),
                "tied": lambda: Tied(size, 2),
                "dropout": self.dropout,
                "weight norm": weight_norm,
                "spectral norm": lambda: parametrizations.spectral_norm(nn.Linear(size, size)),
                "custom": lambda: Custom(size),
                "checkpointed": lambda: _checkpointed(inner()),
                "stateful": Stateful,
                "lambda": lambda: ByLambda(inner()),
                "sequential": lambda: nn.Sequential(nn.Linear(size, size), inner()),
                "normalized": lambda: nn.Sequential(nn.Linear(size, size), nn.BatchNorm1d(size)),
                "not twice": NotTwice if self.chance(0.2) else lambda: nn.Linear(size, size),
            }
        )

    def dropout(self) -> nn.Module:
        self.is_noisy = True
        return nn.Dropout(0.3)

    def activation(self) -> nn.Module:
        return self.pick(
            {
                "tanh": nn.Tanh,
                "gelu": nn.GELU,
                "relu": nn.ReLU,
                "softplus": nn.Softplus,
                "silu": nn.SiLU,
                "elu": nn.ELU,
                "sigmoid": nn.Sigmoid,
                "leaky relu": nn.LeakyReLU,
                "identity": nn.Identity,
            }
        )

    def image(self) -> tuple[tuple[int, ...], list[nn.Module], int]:
        channels = first = self.random.randint(1, 2)
        body: list[nn.Module] = []
        for _ in range(self.random.randint(1, 2)):
            wider = self.random.randint(1, 3)
            size = self.random.choice((1, 3))
            layer = nn.Conv2d(channels, wider, size, padding=size // 2, bias=self.chance(0.6))
            body += [layer, self.image_block(wider), self.activation()]
            channels = wider
        if self.chance(0.5):
            body.append(self.pick({"max pool": lambda: nn.MaxPool2d(2), "pool": _mean_pool}))
        return (first, 4, 4), [*body, nn.AdaptiveAvgPool2d(1), nn.Flatten()], channels

    def image_block(self, size: int) -> nn.Module:
        return self.pick(
            {
                "batch norm": lambda: nn.BatchNorm2d(size),
                "our batch norm": lambda: ns.layers.BatchNorm2d(size),
                "group norm": lambda: nn.GroupNorm(1, size),
                "instance norm": lambda: nn.InstanceNorm2d(size, affine=True),
                "depthwise": lambda: nn.Conv2d(size, size, 3, padding=1, groups=size),
                "transposed": lambda: nn.ConvTranspose2d(size, size, 1),
                "residual": lambda: Residual(nn.Conv2d(size, size, 1)),
                "nothing": nn.Identity,
            }
        )

    def sequence(self) -> tuple[tuple[int, ...], list[nn.Module], int]:
        size = self.random.choice((2, 4))

        def encoder() -> nn.Module:
            return nn.TransformerEncoderLayer(size, 1, 3, dropout=0.0, batch_first=True)

        def last(kind: type[nn.RNNBase]) -> Callable[[], nn.Module]:
            return lambda: LastState(kind(size, size, batch_first=True))

        body = self.pick(
            {
                "lstm": last(nn.LSTM),
                "gru": last(nn.GRU),
                "rnn": last(nn.RNN),
                "transformer": lambda: nn.Sequential(
                    encoder(), nn.Flatten(), nn.Linear(3 * size, size)
                ),
                "convolution": lambda: nn.Sequential(
                    nn.Conv1d(3, 2, 1), nn.BatchNorm1d(2), _flat(2, size)
                ),
            }
        )
        return (3, size), [nn.LayerNorm(size), body], size

    def finish(self, model: nn.Module) -> None:
        """Add hooks, frozen parameters and modules in eval mode."""
        layers = [module for module in model.modules() if not list(module.children())]
        if self.chance(0.15):
            self.parts.append("hook")
            self.random.choice(layers).register_forward_hook(_stretch)
        if self.chance(0.2):
            self.parts.append("frozen")
            for parameter in self.random.choice(layers[:-1]).parameters():
                parameter.requires_grad_(False)
        if self.chance(0.2):
            self.parts.append("eval mode of a part")
            self.random.choice(layers).eval()
        if self.chance(0.1):
            self.parts.append("eval mode")
            model.eval()

    def warm_up(self, model: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> None:
        """Let running statistics differ from their defaults."""
        flags = [(module, module.training) for module in model.modules()]
        model.train()
        with torch.no_grad():
            for x, _ in batches:
                model(x)
        for module, flag in flags:
            module.training = flag

    def loss(self, outputs: int, model: nn.Module) -> tuple[Any, Any, Any, bool]:
        """Return a loss, its plain form, what draws targets, and whether it reads the model."""

        def labels(count: int) -> Tensor:
            return torch.randint(outputs, (count,))

        def reals(count: int) -> Tensor:
            return torch.randn(count, outputs, dtype=DTYPE)

        def shares(count: int) -> Tensor:
            return torch.rand(count, outputs, dtype=DTYPE)

        weights = torch.rand(outputs, dtype=DTYPE) + 0.5
        classes: dict[str, tuple[Any, Any]] = {
            "cross_entropy": (functional.cross_entropy, labels),
            "squared_error": (_half_square, reals),
            "CrossEntropyLoss": (nn.CrossEntropyLoss(), labels),
            "smoothed": (nn.CrossEntropyLoss(label_smoothing=0.1), labels),
            "weighted": (nn.CrossEntropyLoss(weights), labels),
            "MSELoss": (nn.MSELoss(), reals),
            "summed": (nn.MSELoss(reduction="sum"), reals),
            "SmoothL1Loss": (nn.SmoothL1Loss(beta=0.3), reals),
            "BCEWithLogitsLoss": (nn.BCEWithLogitsLoss(), shares),
            "quartic": (lambda output, target: (output - target).pow(4).mean(), reals),
        }
        name = self.random.choice([*classes, "penalty", "whole_loss"])
        self.parts.append(name)
        if name in classes:
            function, target = classes[name]
            given = name if name in ("cross_entropy", "squared_error") else function
            return given, lambda _, output, y: function(output, y), target, False

        def penalized(network: nn.Module, output: Tensor, y: Tensor) -> Tensor:
            squares = [parameter.square().sum() for parameter in network.parameters()]
            return functional.cross_entropy(output, y) + 0.05 * torch.stack(squares).sum()

        if name == "penalty":
            return lambda output, y: penalized(model, output, y), penalized, labels, True
        whole = ns.whole_loss(
            lambda network, batch: penalized(network, network(batch[0]), batch[1])
        )
        return whole, penalized, labels, True


def _checkpointed(inner: nn.Module) -> nn.Module:
    """Checkpoint a module, unless it computes another function when it runs again."""
    advances = any("spectral" in type(each).__name__.lower() for each in inner.modules())
    return inner if advances else Checkpointed(inner)


def _flat(length: int, size: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(length * size, size))


def _stretch(_: nn.Module, __: object, output: object) -> Tensor | None:
    return 1.1 * output if isinstance(output, Tensor) else None


def _mean_pool() -> nn.Module:
    return nn.AvgPool2d(2)


def _half_square(output: Tensor, target: Tensor) -> Tensor:
    return 0.5 * (output - target).square().sum(1).mean()
