"""The network of the tour: one architecture on one data set, under any normalization."""

from __future__ import annotations

import functools
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor, nn

from normscope.data import Dataset, load
from normscope.models import build
from normscope.problem.problem import Problem

__all__ = ["LOSS", "Net"]

LOSS = "cross_entropy"


@functools.lru_cache(maxsize=2)
def _loaded(data: str) -> Dataset:
    return load(data)


@dataclass(frozen=True)
class Net:
    """A fully connected net, its data, and how it is trained.

    Args:
        data: a registered data set.
        width: units of a hidden layer.
        depth: number of linear layers.
        batch_size: samples per step.
        momentum: of SGD.
    """

    data: str
    width: int
    depth: int
    batch_size: int
    momentum: float

    @property
    def samples(self) -> Dataset:
        """Its data, loaded once."""
        return _loaded(self.data)

    def model(self, norm: str, seed: int, depth: int | None = None) -> nn.Module:
        """The network before training; the seed alone decides its weights, whatever the norm.

        Args:
            norm: its normalization.
            seed: of its weights.
            depth: other than its own.

        Returns:
            The module.
        """
        return build(
            "fully_connected",
            norm=norm,
            seed=seed,
            input_shape=tuple(self.samples.train.x.shape[1:]),
            outputs=len(self.samples.classes),
            depth=self.depth if depth is None else depth,
            width=self.width,
        )

    def problem(self, norm: str, seed: int, depth: int | None = None) -> Problem:
        """The network with its loss and all training samples; arguments as of `model`."""
        return Problem(self.model(norm, seed, depth), LOSS, self.samples.train)

    def batch(self, samples: int | None = None) -> tuple[Tensor, Tensor]:
        """The first training samples: a batch, or as many as asked for."""
        x, y = self.samples.train
        size = self.batch_size if samples is None else samples
        return x[:size], y[:size]

    def settings(self, **further: Any) -> dict[str, Any]:
        """Its settings and further ones by name, as the store keeps them."""
        return {**asdict(self), **further}
