"""Linear layers whose gradients are compared without being computed: the common base."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from normscope.probes.gradients import GradientComparison

__all__ = ["WIDE", "Products", "Shortcut", "linear_weights", "record_inputs"]

WIDE = 2**14  # entries of a weight from which its gradient costs more than the calls here

#: Of a gradient and the reference: inner product, squared norm, squared norm of the difference.
Products: TypeAlias = tuple[Tensor, Tensor, Tensor]


class Shortcut(ABC):
    """Compares the weight gradients of some layers during a pass, without computing them.

    A layer qualifies if it is called once and its output gradient arrives once; the autograd graph
    shows whether anything else uses the weight.
    """

    def __init__(self) -> None:
        self._calls: Counter[str] = Counter()
        self._arrivals: Counter[str] = Counter()
        self._uses: Mapping[str, int] = {}

    @property
    @abstractmethod
    def names(self) -> Collection[str]:
        """The weights whose gradients are not needed."""

    @property
    @abstractmethod
    def is_valid(self) -> bool:
        """Whether the pass since `begin_pass` met the assumptions."""

    @abstractmethod
    def begin_pass(self, model: nn.Module, comparison: GradientComparison) -> None:
        """Prepare a pass at another point, inside its context.

        Args:
            model: the model.
            comparison: receives the inner products, or the gradient, of each of ``names``.
        """

    @abstractmethod
    def disable(self) -> None:
        """Leave all weights to autograd from now on."""

    def inspect(self, loss: Tensor, weights: Mapping[str, Tensor]) -> None:
        """Count how often each of ``names`` is used in the graph, before the backward pass.

        Args:
            loss: with its graph.
            weights: the leaves of the pass, by name.
        """
        self._uses = _uses_in_graph(loss, {name: weights[name] for name in self.names})

    def _reset_counts(self) -> None:
        self._calls.clear()
        self._arrivals.clear()
        self._uses = {}

    def _is_plain(self, name: str) -> bool:
        return self._calls[name] == 1 and self._arrivals[name] == 1


def _uses_in_graph(loss: Tensor, weights: Mapping[str, Tensor]) -> Counter[str]:
    """Return how often the graph of a loss leads to each of these leaves."""
    # The nodes themselves, not their ids: torch recreates the objects of nodes nobody holds.
    names = {get_gradient_edge(weight).node: name for name, weight in weights.items()}
    found: Counter[str] = Counter()
    waiting = [loss.grad_fn]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        for following, _ in () if node is None else node.next_functions:
            if following is not None:
                found[names.get(following, "")] += 1
                if following not in seen:
                    seen.add(following)
                    waiting.append(following)
    return found


def record_inputs(layer: nn.Linear, see: Callable[[Tensor], None]) -> None:
    """Call ``see`` with the positional input of a layer; the context around removes the hook."""

    def hook(_: nn.Module, inputs: tuple[Any, ...]) -> None:
        if len(inputs) == 1 and isinstance(inputs[0], Tensor):
            see(inputs[0])

    hooks = layer._forward_pre_hooks
    # A new dictionary in __dict__, which the context restores.
    layer.__dict__["_forward_pre_hooks"] = OrderedDict({**hooks, -1 - len(hooks): hook})


def linear_weights(model: nn.Module, wanted: Collection[str]) -> dict[str, nn.Linear]:
    """Return plain linear layers by the name of their weight; none under autocast."""
    found = {}
    for name, module in model.named_modules():
        weight = f"{name}.weight" if name else "weight"
        if type(module) is nn.Linear and weight in wanted and "forward" not in module.__dict__:
            found[weight] = module
    return {} if any(map(torch.is_autocast_enabled, ("cpu", "cuda"))) else found
