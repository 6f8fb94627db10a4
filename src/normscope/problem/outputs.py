"""Structured outputs of models, and the one tensor that curvature works on in their place.

A model may return a tuple, a list, a mapping, a named tuple or a dataclass of tensors. The loss
receives exactly that. Gauss-Newton and Fisher matrices go through the tensors that the loss depends
on, which `pack_output` joins into one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node

from normscope.errors import StateError
from normscope.problem.error_messages import check_finite, no_gradient_error
from normscope.problem.references import first_reached, graph_nodes


def replace_tensors(output: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Return a copy of an output, of the same types, with a function applied to its tensors.

    Args:
        output: a tensor, or nested tuples, lists, mappings and dataclasses. Other content stays.
        function: of one tensor.

    >>> replace_tensors({"a": (torch.ones(1), None)}, torch.neg)
    {'a': (tensor([-1.]), None)}
    """
    if isinstance(output, Tensor):
        return function(output)
    if isinstance(output, Mapping):
        parts = {key: replace_tensors(part, function) for key, part in output.items()}
        if not isinstance(output, MutableMapping):
            return parts
        made = copy.copy(output)
        for key, part in parts.items():
            made[key] = part
        return made
    if isinstance(output, tuple | list):
        items = [replace_tensors(part, function) for part in output]
        return type(output)._make(items) if hasattr(output, "_make") else type(output)(items)
    if is_dataclass(output) and not isinstance(output, type):
        copied: Any = copy.copy(output)
        for name in (each.name for each in fields(output)):
            object.__setattr__(copied, name, replace_tensors(getattr(output, name), function))
        return copied
    return output


def output_tensors(output: Any) -> list[Tensor]:
    """Return the tensors of an output, in order.

    >>> len(output_tensors([torch.ones(1), {"a": torch.ones(1)}]))
    2
    """
    found: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    replace_tensors(output, note)
    return found


@dataclass(frozen=True, eq=False)
class PackedOutput:
    """The tensors of a structured output that the loss depends on, as one tensor.

    Args:
        tensor: the chosen tensors side by side, with their graph: (samples, -1) if each has one
            row per sample, else flat.
        chosen: these tensors.
        positions: of them among all tensors of the output.
        output: the output, without its graph.
        by_rows: whether `tensor` has one row per sample.
        inner_loss: the loss, if the model computed it: with its graph from the chosen tensors.
        inner_nodes: the nodes of that graph.
    """

    tensor: Tensor
    chosen: tuple[Tensor, ...]
    positions: tuple[int, ...]
    output: Any
    by_rows: bool
    inner_loss: Tensor | None = None
    inner_nodes: frozenset[Node] = frozenset()

    def split(self, packed: Tensor) -> list[Tensor]:
        """Return the parts of a tensor in the shape of `tensor`, like the chosen tensors."""
        rows = len(packed) if self.by_rows else 1
        sizes = [each.numel() // rows for each in self.chosen]
        parts = torch.split(packed, sizes, dim=-1)
        pairs = zip(parts, self.chosen, strict=True)
        return [part.reshape(each.shape).to(each.dtype) for part, each in pairs]

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """Return tensors like the chosen ones as one tensor."""
        return _join(parts, len(self.tensor) if self.by_rows else None)

    def unpack(self, packed: Tensor) -> Any:
        """Return the output with other values of the chosen tensors."""
        parts = dict(zip(self.positions, self.split(packed), strict=True))
        position = iter(range(len(output_tensors(self.output))))

        def part(tensor: Tensor) -> Tensor:
            found = parts.get(next(position))
            return tensor.clone() if found is None else found  # a loss may overwrite it

        return replace_tensors(self.output, part)


def _join(parts: Sequence[Tensor], rows: int | None) -> Tensor:
    if rows is None:
        return torch.cat([part.reshape(-1) for part in parts])
    return torch.cat([part.reshape(rows, -1) for part in parts], dim=1)


def pack_output(
    output: Any,
    loss: Tensor,
    loss_of: Callable[[Any], Tensor],
    leaves: Mapping[str, Tensor],
    samples: int | None,
) -> PackedOutput:
    """Return the tensors that the loss depends on as one.

    They are independent arguments of the loss, also where one is computed from another. A scalar in
    which the loss is linear is a loss that the model computed itself, from other outputs: these are
    found in the graph.

    Args:
        output: of the model, with its graph.
        loss: of that output, with its graph.
        loss_of: returns the loss of an output of the same structure.
        leaves: the parameters by name.
        samples: in the batch; None if its rows are not samples.

    Returns:
        The packed output.

    Raises:
        StateError: if the loss does not depend on the output, or not on the output alone.
    """
    tensors = output_tensors(output)
    positions, is_inner = _positions_read(output, tensors, loss_of, leaves)
    inner_nodes: frozenset[Node] = frozenset()
    if is_inner:
        positions, inner_nodes = _positions_before(loss, tensors, leaves)
        _require_independent([tensors[k] for k in positions])
    chosen = tuple(tensors[k] for k in positions)
    if any(each.is_complex() for each in chosen):
        raise StateError(
            "a Gauss-Newton or Fisher matrix needs real outputs, but the loss reads a complex one; "
            "return torch.view_as_real of it, or use kind='hessian'."
        )
    by_rows = samples is not None and all(t.dim() > 0 and len(t) == samples for t in chosen)
    packed = _join(chosen, samples if by_rows else None)
    check_finite(packed, "the model's output")
    return PackedOutput(
        packed,
        chosen,
        tuple(positions),
        replace_tensors(output, Tensor.detach),
        by_rows,
        loss if is_inner else None,
        inner_nodes,
    )


def _positions_read(
    output: Any,
    tensors: Sequence[Tensor],
    loss_of: Callable[[Any], Tensor],
    leaves: Mapping[str, Tensor],
) -> tuple[list[int], bool]:
    """Return the tensors that the loss gets a gradient from, and whether it is linear in a scalar.

    The loss runs on copies without the model's graph. If it still depends on a parameter, it reads
    that otherwise, or a tensor inside an object that is not copied.
    """
    copies: list[Tensor] = []

    def copy_of(tensor: Tensor) -> Tensor:
        copied = tensor.detach().clone()
        if copied.is_floating_point() or copied.is_complex():
            copied.requires_grad_()
        copies.append(copied)
        return copied.clone()  # a loss may overwrite it

    value = loss_of(replace_tensors(output, copy_of))
    name = first_reached([value], leaves)
    if name is not None:
        raise StateError(
            f"the loss uses the parameter {name!r} beside the tensors that the model returns in "
            "tuples, lists, mappings and dataclasses, which a Gauss-Newton or Fisher matrix does "
            "not include; return them so, or use kind='hessian'."
        )
    if not value.requires_grad:
        raise no_gradient_error()
    real = [k for k, copied in enumerate(copies) if copied.requires_grad]
    gradients = torch.autograd.grad(
        value, [copies[k] for k in real], allow_unused=True, create_graph=True
    )
    read = {k: g for k, g in zip(real, gradients, strict=True) if g is not None}
    constant = {k for k, g in read.items() if _is_constant(g, copies[k])}
    linear = len(constant) == len(read) or any(tensors[k].dim() == 0 for k in constant)
    trained = [k for k in read if tensors[k].requires_grad]
    return trained or list(read), linear


def _is_constant(gradient: Tensor, tensor: Tensor) -> bool:
    """Return whether the gradient in a tensor does not change with it: the loss is linear."""
    if not gradient.requires_grad:
        return True
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(gradient.shape, generator=generator).to(gradient)
    (change,) = torch.autograd.grad(
        gradient, tensor, drawn, retain_graph=True, allow_unused=True, materialize_grads=True
    )
    return not bool(change.any())


def _positions_before(
    loss: Tensor, tensors: Sequence[Tensor], leaves: Mapping[str, Tensor]
) -> tuple[list[int], frozenset[Node]]:
    """Return the outputs that a loss was computed from, and the nodes of the graph between.

    The search stops at the first outputs that are not scalars: hidden states lie behind them. It
    passes outputs in which the loss is linear, such as the losses of the samples, if there are
    others behind them: the curvature is in these.
    """
    ends = [k for k, tensor in enumerate(tensors) if tensor.dim() and tensor.grad_fn is not None]
    while True:
        found, nodes = _first_outputs(loss, tensors, ends, leaves)
        if any(isinstance(node, BackwardCFunction) for node in nodes):
            return found, nodes  # a user-defined function may lack its second derivative
        gradients = torch.autograd.grad(loss, [tensors[k] for k in found], create_graph=True)
        pairs = zip(found, gradients, strict=True)
        linear = {k for k, gradient in pairs if _is_constant(gradient, tensors[k])}
        if not linear:
            return found, nodes
        ends = [k for k in ends if k not in linear]
        try:
            _first_outputs(loss, tensors, ends, leaves)
        except StateError:  # nothing but parameters behind one of them
            if len(linear) == len(found):
                raise
            return found, nodes


def _first_outputs(
    loss: Tensor, tensors: Sequence[Tensor], ends: Sequence[int], leaves: Mapping[str, Tensor]
) -> tuple[list[int], frozenset[Node]]:
    """Return which of some outputs are first on the way back from the loss, and the nodes passed.

    Raises:
        StateError: if the way leads to a parameter around them, or to none of them.
    """
    last = {(tensors[k].grad_fn, tensors[k].output_nr): k for k in reversed(ends)}
    parameters = {id(leaf): name for name, leaf in leaves.items()}
    found, seen, waiting = set(), set(), [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        name = parameters.get(id(getattr(node, "variable", None)))
        if name is not None:
            raise StateError(
                f"the model computes its loss from the parameter {name!r} beside its other outputs,"
                " or the loss is linear in these, so that a Gauss-Newton or Fisher matrix does not "
                "include it; return the tensor that the loss is computed from, or use "
                "kind='hessian'."
            )
        for edge in node.next_functions:
            if edge in last:
                found.add(last[edge])
            else:
                waiting.append(edge[0])
    if not found:
        raise no_gradient_error()
    return sorted(found), frozenset(seen)


def _require_independent(chosen: Sequence[Tensor]) -> None:
    """Refuse outputs of which one is computed from another: their graph has both paths."""
    ends = {(tensor.grad_fn, tensor.output_nr) for tensor in chosen}
    if any(edge in ends for node in graph_nodes(*chosen) for edge in node.next_functions):
        raise StateError(
            "the model computes its loss from several outputs, one of which is computed from "
            "another, so that their parts in a Gauss-Newton or Fisher matrix cannot be told "
            "apart; give whole_loss(outputs=..., loss=...), or use kind='hessian'."
        )
