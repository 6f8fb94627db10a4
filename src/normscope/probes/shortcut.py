"""Gradients compared without being taken: what the ways to do so have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Mapping

from torch import Tensor, nn

from normscope.probes.comparison import Comparison
from normscope.probes.linear_layers import uses_in_graph

__all__ = ["Shortcut"]


class Shortcut(ABC):
    """Compares gradients by the weights of some layers while a pass runs through them.

    It trusts a layer that is called once, whose signals come back once; the graph tells what else
    uses the weight.
    """

    def __init__(self) -> None:
        self._calls: Counter[str] = Counter()
        self._arrivals: Counter[str] = Counter()
        self._uses: Mapping[str, int] = {}

    @property
    @abstractmethod
    def names(self) -> Collection[str]:
        """The weights whose gradients need not be taken."""

    @property
    @abstractmethod
    def is_valid(self) -> bool:
        """Whether the pass since `meet` went as it was thought to."""

    @abstractmethod
    def meet(self, model: nn.Module, comparison: Comparison) -> None:
        """Get ready for a pass at another point; inside its scene.

        Args:
            model: the model.
            comparison: told the inner products, or shown the gradient, of each of ``names``.
        """

    @abstractmethod
    def forget(self) -> None:
        """Leave all weights to torch from now on."""

    def inspect(self, loss: Tensor, weights: Mapping[str, Tensor]) -> None:
        """Count in the graph of a loss how often each of ``names`` is used; before running back.

        Args:
            loss: with its graph.
            weights: the leaves of the pass, by name.
        """
        self._uses = uses_in_graph(loss, {name: weights[name] for name in self.names})

    def _start_counting(self) -> None:
        self._calls.clear()
        self._arrivals.clear()
        self._uses = {}

    def _is_plain(self, name: str) -> bool:
        return self._calls[name] == 1 and self._arrivals[name] == 1
