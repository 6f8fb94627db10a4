"""The networks, losses and data of the learning-rate benchmark, each case by one name."""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from normscope.data import load
from normscope.errors import DataError
from normscope.import_path import import_object
from normscope.layers import normalization
from normscope.models import build

BATCH_SIZE = 128
EXAMPLE = Path(__file__).parents[1] / "examples" / "my_model.py"
SAMPLES = 12_800  # a hundred batches: the onset is about one hundred steps

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Case:
    """One network with its loss, its data and its optimizer.

    Args:
        name: of the case.
        data: mnist, cifar10 or digits.
        loss: squared_error or cross_entropy.
        momentum: of SGD.
        make: builds the network for inputs of a shape; the same weights each time.
        group: "dev": the prediction was developed on it; "judged": not looked at before that was
            settled; "new": added later; "last": added when the walk off a plateau and the late
            failures were settled, run once, and nothing changed after.
    """

    name: str
    data: str
    loss: str
    momentum: float
    make: Callable[[tuple[int, ...]], nn.Module]
    group: str = "judged"

    def samples(self) -> Batch:
        """Images and labels; handwritten digits where the real data is absent."""
        return _samples(self.data)

    def model(self) -> nn.Module:
        """The network at its initial weights, in training mode."""
        return self.make(tuple(self.samples()[0].shape[1:]))


@functools.cache
def _samples(name: str) -> Batch:
    try:
        x, y = load(name).train if name != "digits" else import_object(f"{EXAMPLE}:samples")()
    except DataError:
        x, y = load("digits").train
        repeats = -(-SAMPLES // len(x))
        x, y = x.repeat(repeats, 1, 1, 1), y.repeat(repeats)
        if name == "cifar10":
            x = x.expand(-1, 3, -1, -1)
        x = nn.functional.interpolate(x, size=(28, 28) if name == "mnist" else (32, 32))
    return x[:SAMPLES].clone(), y[:SAMPLES].clone()


class TransformerEncoder(nn.Module):
    """A small pre-norm transformer encoder that reads an image row by row."""

    def __init__(
        self, input_shape: tuple[int, ...], norm: str, width: int = 64, layers: int = 2
    ) -> None:
        super().__init__()
        channels, rows, columns = input_shape
        self.embed = nn.Linear(channels * columns, width)
        self.position = nn.Parameter(0.1 * torch.randn(rows, width))
        encoders = [
            nn.TransformerEncoderLayer(
                width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True
            )
            for _ in range(layers)
        ]
        if norm == "none":
            for encoder in encoders:
                encoder.norm1, encoder.norm2 = nn.Identity(), nn.Identity()
        self.layers = nn.ModuleList(encoders)
        self.norm = nn.LayerNorm(width) if norm == "layer" else nn.Identity()
        self.head = nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Scores of the classes."""
        tokens = self.embed(images.transpose(1, 2).flatten(2)) + self.position
        for layer in self.layers:
            tokens = layer(tokens)
        return self.head(self.norm(tokens).mean(dim=1))


def _built(name: str, norm: str, **options: object) -> Callable[[tuple[int, ...]], nn.Module]:
    def make(input_shape: tuple[int, ...]) -> nn.Module:
        return build(name, norm=norm, input_shape=input_shape, **options)

    return make


def plain(
    norm: str, depth: int, width: int, activation: Callable[[], nn.Module] = nn.Tanh
) -> Callable[[tuple[int, ...]], nn.Module]:
    """A network as torch initializes it, without the package's own models."""

    def make(input_shape: tuple[int, ...]) -> nn.Module:
        torch.manual_seed(0)
        sizes = [torch.Size(input_shape).numel(), *[width] * (depth - 1)]
        layers: list[nn.Module] = [nn.Flatten()]
        for inputs, outputs in itertools.pairwise(sizes):
            layers += [nn.Linear(inputs, outputs), normalization(norm, outputs, 0), activation()]
        return nn.Sequential(*layers, nn.Linear(sizes[-1], 10))

    return make


def plain_conv(depth: int, channels: int) -> Callable[[tuple[int, ...]], nn.Module]:
    """3x3 convolutions as torch initializes them, every second with stride 2, and a linear head."""

    def make(input_shape: tuple[int, ...]) -> nn.Module:
        torch.manual_seed(0)
        layers: list[nn.Module] = []
        for place in range(depth):
            inputs = channels if place else input_shape[0]
            layers += [nn.Conv2d(inputs, channels, 3, 1 + place % 2, padding=1), nn.ReLU()]
        side = input_shape[1] // 2 ** (depth // 2)
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * side**2, 10))

    return make


def transformer(
    norm: str, width: int = 64, layers: int = 2
) -> Callable[[tuple[int, ...]], nn.Module]:
    def make(input_shape: tuple[int, ...]) -> nn.Module:
        torch.manual_seed(0)
        return TransformerEncoder(input_shape, norm, width, layers)

    return make


def _fully_connected(norm: str, depth: int = 4, **options: object) -> Callable[..., nn.Module]:
    return _built("fully_connected", norm, depth=depth, width=300, **options)


def _resnet(norm: str) -> Callable[..., nn.Module]:
    return _built("preact_resnet18", norm, width=0.125)


def _conv(norm: str, **options: object) -> Callable[..., nn.Module]:
    return _built("conv_net", norm, channels=(15, 30, 45), **options)


def example(input_shape: tuple[int, ...]) -> nn.Module:
    torch.manual_seed(0)
    return import_object(f"{EXAMPLE}:build")()


_SQUARED, _ENTROPY = "squared_error", "cross_entropy"
_TABLE: list[tuple[str, str, str, float, Callable[..., nn.Module]]] = [
    ("fc batch", "mnist", _SQUARED, 0.0, _fully_connected("batch")),
    ("fc batch momentum", "mnist", _SQUARED, 0.9, _fully_connected("batch")),
    ("fc batch gamma 0.3", "mnist", _SQUARED, 0.9, _fully_connected("batch", gamma=0.3)),
    ("fc batch gamma 3", "mnist", _SQUARED, 0.0, _fully_connected("batch", gamma=3.0)),
    ("fc batch entropy", "mnist", _ENTROPY, 0.0, _fully_connected("batch")),
    ("fc batch gamma 3 entropy", "mnist", _ENTROPY, 0.9, _fully_connected("batch", gamma=3.0)),
    ("fc none", "mnist", _SQUARED, 0.0, _fully_connected("none")),
    ("fc none entropy", "mnist", _ENTROPY, 0.9, _fully_connected("none")),
    ("fc layer", "mnist", _SQUARED, 0.0, _fully_connected("layer")),
    ("fc layer entropy", "mnist", _ENTROPY, 0.9, _fully_connected("layer")),
    ("fc deep batch", "mnist", _SQUARED, 0.0, _fully_connected("batch", depth=10)),
    ("fc deep batch entropy", "mnist", _ENTROPY, 0.9, _fully_connected("batch", depth=10)),
    ("fc deepest batch entropy", "mnist", _ENTROPY, 0.0, _fully_connected("batch", depth=16)),
    ("fc deep none entropy", "mnist", _ENTROPY, 0.0, _fully_connected("none", depth=10)),
    ("tanh none entropy", "mnist", _ENTROPY, 0.0, plain("none", 4, 200)),
    ("tanh batch", "mnist", _SQUARED, 0.0, plain("batch", 6, 200)),
    ("tanh none", "mnist", _SQUARED, 0.9, plain("none", 4, 200)),
    ("conv batch", "cifar10", _SQUARED, 0.0, _conv("batch")),
    ("conv batch gamma 0.3 entropy", "cifar10", _ENTROPY, 0.9, _conv("batch", gamma=0.3)),
    ("conv none", "cifar10", _SQUARED, 0.0, _conv("none")),
    ("conv none entropy", "cifar10", _ENTROPY, 0.9, _conv("none")),
    ("conv layer entropy", "cifar10", _ENTROPY, 0.0, _conv("layer")),
    ("conv batch gamma 3 entropy", "cifar10", _ENTROPY, 0.0, _conv("batch", gamma=3.0)),
    ("transformer layer entropy", "mnist", _ENTROPY, 0.0, transformer("layer")),
    ("transformer layer momentum", "mnist", _SQUARED, 0.9, transformer("layer")),
    ("transformer none entropy", "mnist", _ENTROPY, 0.0, transformer("none")),
    ("example resnet entropy", "digits", _ENTROPY, 0.0, example),
    ("vgg batch entropy", "cifar10", _ENTROPY, 0.0, _built("vgg", "batch", width=0.25)),
    ("vgg batch", "cifar10", _SQUARED, 0.9, _built("vgg", "batch", width=0.25)),
    ("vgg none entropy", "cifar10", _ENTROPY, 0.0, _built("vgg", "none", width=0.25)),
    (
        "resnet batch entropy",
        "cifar10",
        _ENTROPY,
        0.0,
        _resnet("batch"),
    ),
    ("resnet batch", "cifar10", _SQUARED, 0.9, _resnet("batch")),
    (
        "resnet layer entropy",
        "cifar10",
        _ENTROPY,
        0.0,
        _resnet("layer"),
    ),
    ("gelu none entropy", "mnist", _ENTROPY, 0.0, plain("none", 5, 200, nn.GELU)),
    ("gelu layer", "mnist", _SQUARED, 0.9, plain("layer", 5, 200, nn.GELU)),
    ("relu deep none entropy", "mnist", _ENTROPY, 0.0, plain("none", 8, 150, nn.ReLU)),
    ("relu none momentum", "mnist", _SQUARED, 0.9, plain("none", 3, 400, nn.ReLU)),
    ("conv group entropy", "cifar10", _ENTROPY, 0.9, _conv("group")),
    ("conv l1", "cifar10", _SQUARED, 0.0, _conv("l1")),
]
_LAST: list[tuple[str, str, str, float, Callable[..., nn.Module]]] = [
    ("relu deep none", "mnist", _SQUARED, 0.0, plain("none", 8, 150, nn.ReLU)),
    ("relu deep none cifar entropy", "cifar10", _ENTROPY, 0.0, plain("none", 6, 300, nn.ReLU)),
    ("relu deep batch entropy", "mnist", _ENTROPY, 0.0, plain("batch", 8, 150, nn.ReLU)),
    ("silu deep none entropy", "mnist", _ENTROPY, 0.9, plain("none", 6, 100, nn.SiLU)),
    ("tanh deep none entropy", "mnist", _ENTROPY, 0.9, plain("none", 10, 100)),
    ("gelu deep layer entropy", "mnist", _ENTROPY, 0.9, plain("layer", 10, 100, nn.GELU)),
    ("conv deep none entropy", "cifar10", _ENTROPY, 0.9, plain_conv(6, 24)),
    ("transformer none", "mnist", _SQUARED, 0.9, transformer("none")),
    ("transformer deep entropy", "mnist", _ENTROPY, 0.9, transformer("layer", 32, 4)),
]
_DEVELOPING = ("fc", "tanh none", "tanh batch", "example")
_NEW = (
    "gelu none entropy",
    "gelu layer",
    "relu deep none entropy",
    "relu none momentum",
    "conv group entropy",
    "conv l1",
    "resnet layer entropy",
)


def _group(name: str) -> str:
    if name in {row[0] for row in _LAST}:
        return "last"
    if name in _NEW:
        return "new"
    return "dev" if name.startswith(_DEVELOPING) or name == "conv batch" else "judged"


CASES = {
    name: Case(name, data, loss, momentum, make, _group(name))
    for name, data, loss, momentum, make in _TABLE + _LAST
}

# Networks without normalization as torch initializes them. The trial runs of the prediction were
# chosen on the plain ones; the fresh ones were added later, when only the end of a plateau was
# still open, which was chosen on another network while some of these had been seen.
Nets = dict[str, tuple[str, Callable[..., nn.Module]]]
_ACTIVATIONS = {
    "tanh": nn.Tanh,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
    "relu": nn.ReLU,
    "softsign": nn.Softsign,
}
_SIZES = ((2, 100), (3, 100), (4, 100), (3, 400), (5, 200))  # depth and width
_LOSSES = {"entropy": "cross_entropy", "squares": "squared_error"}


def _plain_nets() -> Nets:
    """Return the data of each network and the function that builds it."""
    chains = {
        f"{name} {depth}x{width}": ("mnist", plain("none", depth, width, activation))
        for (name, activation), (depth, width) in itertools.product(_ACTIVATIONS.items(), _SIZES)
    }
    transformers = {
        f"transformer {layers}": ("mnist", transformer("none", 32, layers)) for layers in (1, 3)
    }
    convolutions = {
        f"conv {channels}": ("cifar10", plain_conv(3, channels)) for channels in (8, 16)
    }
    return chains | transformers | convolutions | {"example": ("digits", example)}


class Recurrent(nn.Module):
    """An LSTM that reads an image row by row."""

    def __init__(self, columns: int, width: int) -> None:
        super().__init__()
        self.cells = nn.LSTM(columns, width, batch_first=True)
        self.head = nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Scores of the classes."""
        return self.head(self.cells(images.flatten(1, 2))[0][:, -1])


class Residual(nn.Module):
    """Blocks of two linear layers around which the input is carried, without normalization."""

    def __init__(self, inputs: int, width: int, blocks: int) -> None:
        super().__init__()
        self.stem = nn.Linear(inputs, width)
        block = (nn.Linear(width, width), nn.ELU(), nn.Linear(width, width))
        self.blocks = nn.ModuleList(nn.Sequential(*copy.deepcopy(block)) for _ in range(blocks))
        self.head = nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Scores of the classes."""
        features = self.stem(images.flatten(1))
        for block in self.blocks:
            features = features + block(nn.functional.elu(features))
        return self.head(features)


def _seeded(make: Callable[[tuple[int, ...]], nn.Module]) -> Callable[..., nn.Module]:
    def made(input_shape: tuple[int, ...]) -> nn.Module:
        torch.manual_seed(0)
        return make(input_shape)

    return made


_FRESH: Nets = {
    "mish 3x150": ("mnist", plain("none", 3, 150, nn.Mish)),
    "elu 4x250": ("mnist", plain("none", 4, 250, nn.ELU)),
    "leaky 6x120": ("mnist", plain("none", 6, 120, nn.LeakyReLU)),
    "hardswish 3x300": ("cifar10", plain("none", 3, 300, nn.Hardswish)),
    "softplus 3x80": ("mnist", plain("none", 3, 80, nn.Softplus)),
    "lstm 64": ("mnist", _seeded(lambda shape: Recurrent(shape[0] * shape[2], 64))),
    "residual 3": ("mnist", _seeded(lambda shape: Residual(torch.Size(shape).numel(), 100, 3))),
    "conv 12": ("mnist", plain_conv(2, 12)),
}


def _combined(nets: Nets, prefix: str, group: Callable[[str], str]) -> dict[str, Case]:
    """Every network with both losses, without and with momentum."""
    found = {}
    for (net, (data, make)), (label, loss), momentum in itertools.product(
        nets.items(), _LOSSES.items(), (0.0, 0.9)
    ):
        name = f"{prefix} {net} {label}{f' {momentum}' * (momentum > 0)}"
        found[name] = Case(name, data, loss, momentum, make, group(net))
    return found


# "plain dev": an earlier rule was chosen on these
PLAIN_CASES = _combined(
    _plain_nets(),
    "plain",
    lambda net: "plain dev" if net.startswith(("tanh", "silu")) else "plain",
)
FRESH_CASES = _combined(_FRESH, "fresh", lambda net: "fresh")
