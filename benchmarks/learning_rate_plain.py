"""Plain nets as torch initializes them, without normalization: more cases for the benchmark.

The rule for nets whose last layer one step upsets was chosen on those of tanh and SiLU; the others
were looked at afterwards. ``python benchmarks/learning_rate_accuracy.py --plain`` runs them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

from learning_rate_cases import Case, example, plain, plain_conv, transformer
from torch import nn

__all__ = ["PLAIN_CASES"]

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
_CHOSEN_ON = ("tanh", "silu")


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
