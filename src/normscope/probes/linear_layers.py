"""Linear layers of a model, and what a graph does with their weights."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

__all__ = ["WIDE", "Products", "linear_weights", "uses_in_graph", "watch_inputs"]

WIDE = 2**14  # entries of a weight, from which on its gradient costs more than calls do

#: Of two gradients, here and at the start: inner product, squared norm here, and that of the
#: difference.
Products: TypeAlias = tuple[Tensor, Tensor, Tensor]


def uses_in_graph(loss: Tensor, weights: Mapping[str, Tensor]) -> Counter[str]:
    """How often the graph of a loss leads to each of these leaves."""
    # the nodes themselves, not their ids: torch makes new objects for those nobody holds
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


def watch_inputs(layer: nn.Linear, see: Callable[[Tensor], None]) -> None:
    """Show the inputs of a layer that are given by place; inside a scene, which undoes it."""

    def hook(_: nn.Module, inputs: tuple[Any, ...]) -> None:
        if len(inputs) == 1 and isinstance(inputs[0], Tensor):
            see(inputs[0])

    hooks = layer._forward_pre_hooks
    # a new dictionary, set in __dict__ like all that the scene puts back
    layer.__dict__["_forward_pre_hooks"] = OrderedDict({**hooks, -1 - len(hooks): hook})


def linear_weights(model: nn.Module, wanted: Collection[str]) -> dict[str, nn.Linear]:
    """Linear layers as they come, by the name of their weight."""
    found = {}
    for name, module in model.named_modules():
        weight = f"{name}.weight" if name else "weight"
        if type(module) is nn.Linear and weight in wanted and "forward" not in module.__dict__:
            found[weight] = module
    return {} if any(map(torch.is_autocast_enabled, ("cpu", "cuda"))) else found
