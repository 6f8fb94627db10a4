"""Which parameters a value depends on, read from its autograd graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from torch import Tensor, nn
from torch.autograd.graph import Node

from normscope.errors import StateError


def graph_nodes(*values: Tensor) -> Iterator[Node]:
    """Yield the nodes of the autograd graph of some values, each once, in a fixed order."""
    waiting, seen = [value.grad_fn for value in values], set()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)  # which keeps it alive: nodes are compared by identity
            yield node
            waiting += [following for following, _ in node.next_functions]


def graph_leaves(value: Tensor) -> list[Tensor]:
    """Return the leaf tensors with ``requires_grad`` that a value was computed from.

    Args:
        value: any tensor; one without a graph is its own leaf if it requires a gradient.

    Returns:
        The leaves, each once. Those inside a reentrant checkpoint are hidden.

    >>> import torch
    >>> one, two = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    >>> [leaf is one for leaf in graph_leaves((one * two.detach()).sum())]
    [True]
    """
    if value.grad_fn is None:
        return [value] if value.requires_grad else []
    variables = (getattr(node, "variable", None) for node in graph_nodes(value))
    return [leaf for leaf in variables if isinstance(leaf, Tensor)]  # of AccumulateGrad nodes


def first_reached(values: Iterable[Tensor | None], parameters: Mapping[str, Tensor]) -> str | None:
    """Return the name of a parameter that one of the values depends on; None if there is none.

    Args:
        values: tensors with their graph; None is left out.
        parameters: leaf tensors by name.
    """
    reached = {id(leaf) for value in values if value is not None for leaf in graph_leaves(value)}
    return next((name for name, tensor in parameters.items() if id(tensor) in reached), None)


def refuse_held_parameters(
    output: Tensor | None,
    loss: Tensor,
    parameters: Mapping[str, Tensor],
    user: str = "model or the loss",
) -> None:
    """Raise if a model that was evaluated at other values still used its own parameters.

    A list of parameters, a cached tensor or a function over another module may refer to them. The
    derivatives would not include these uses.

    Args:
        output: of the model; None if it is not known.
        loss: of that output.
        parameters: the model's own, by name.
        user: who may use them, if the output is not known.

    Raises:
        StateError: if there is such a parameter; it is named.
    """
    name = first_reached([loss, output], parameters)
    if name is None:
        return
    if output is not None:
        user = "loss" if first_reached([output], parameters) is None else "model"
    raise StateError(
        f"the {user} uses the parameter {name!r} through a reference of its own, such as a list of "
        "parameters made before the call, which cannot be measured at other values; read it from "
        "the model each time, as by model.parameters()."
    )


def refuse_foreign_parameters(
    output: Tensor | None, parameters: Mapping[str, Tensor], leaves: Sequence[Tensor]
) -> None:
    """Raise if an output uses the weight of another module in place of the model's own.

    This happens after ``copy.deepcopy`` of a model with a function over itself among its
    attributes: the copy's function still calls the layers of the first model. Other weights, such
    as those of a second network, count as constants.

    Args:
        output: of the model; None if it is not known.
        parameters: the model's own, by name.
        leaves: what they were replaced by.

    Raises:
        StateError: if a matrix of the model has no effect, and one of its shape from elsewhere has.
    """
    if output is None:
        return
    reached = graph_leaves(output)
    known = {id(leaf) for leaf in reached}
    own = {id(leaf) for leaf in (*parameters.values(), *leaves)}
    others = (leaf for leaf in reached if id(leaf) not in own)
    foreign = {leaf.shape for leaf in others if isinstance(leaf, nn.Parameter)}
    for (name, parameter), leaf in zip(parameters.items(), leaves, strict=True):
        if leaf.dim() > 1 and id(leaf) not in known and parameter.shape in foreign:
            raise StateError(
                f"the model's output does not depend on its parameter {name!r}, but on one of the "
                "same shape that is not the model's; look for an attribute with a function that "
                "calls another module, as copy.deepcopy leaves it, and make it a method."
            )
