"""Plain nets as torch initializes them, without normalization: more cases for the benchmark.

The rehearsal of the prediction was chosen on the 120 that ``python
benchmarks/learning_rate_accuracy.py --plain`` runs. Those of ``--fresh`` were added when it was
settled but for where a plateau ends, which was chosen on another net while some had been seen.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator

import torch
from learning_rate_cases import Case, example, plain, plain_conv, transformer
from torch import Tensor, nn

__all__ = ["FRESH_CASES", "PLAIN_CASES"]

_ACTIVATIONS = {
    "tanh": nn.Tanh,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
    "relu": nn.ReLU,
    "softsign": nn.Softsign,
}
_SIZES = ((2, 100), (3, 100), (4, 100), (3, 400), (5, 200))  # depth and width
_MOMENTA = (0.0, 0.9)
_LOSSES = {"entropy": "cross_entropy", "squares": "squared_error"}
_CHOSEN_ON = ("tanh", "silu")  # an earlier rule


def _nets() -> dict[str, tuple[str, Callable[..., nn.Module]]]:
    """The data of each and what builds it."""
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


def _cases() -> Iterator[Case]:
    settings = itertools.product(_nets().items(), _LOSSES.items(), _MOMENTA)
    for (net, (data, make)), (said, loss), momentum in settings:
        name = f"plain {net} {said}{f' {momentum}' * (momentum > 0)}"
        group = "plain dev" if net.startswith(_CHOSEN_ON) else "plain"
        yield Case(name, data, loss, momentum, make, group)


PLAIN_CASES = {case.name: case for case in _cases()}


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


_FRESH: dict[str, tuple[str, Callable[..., nn.Module]]] = {
    "mish 3x150": ("mnist", plain("none", 3, 150, nn.Mish)),
    "elu 4x250": ("mnist", plain("none", 4, 250, nn.ELU)),
    "leaky 6x120": ("mnist", plain("none", 6, 120, nn.LeakyReLU)),
    "hardswish 3x300": ("cifar10", plain("none", 3, 300, nn.Hardswish)),
    "softplus 3x80": ("mnist", plain("none", 3, 80, nn.Softplus)),
    "lstm 64": ("mnist", _seeded(lambda shape: Recurrent(shape[0] * shape[2], 64))),
    "residual 3": ("mnist", _seeded(lambda shape: Residual(torch.Size(shape).numel(), 100, 3))),
    "conv 12": ("mnist", plain_conv(2, 12)),
}


def _fresh() -> Iterator[Case]:
    settings = itertools.product(_FRESH.items(), _LOSSES.items(), _MOMENTA)
    for (net, (data, make)), (said, loss), momentum in settings:
        name = f"fresh {net} {said}{f' {momentum}' * (momentum > 0)}"
        yield Case(name, data, loss, momentum, make, "fresh")


FRESH_CASES = {case.name: case for case in _fresh()}
