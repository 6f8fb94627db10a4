"""The networks, losses and data of the learning-rate benchmark, each case by one name."""

from __future__ import annotations

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
