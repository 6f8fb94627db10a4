"""How a batch becomes a call of the model: the one place that interprets the forms of batches.

==========================  ======================  =========================
batch                       call                    target
==========================  ======================  =========================
``(x, y)``                  ``model(x)``            ``y``
``((x1, x2), y)``           ``model(x1, x2)``       ``y``
``({"a": a, "b": b}, y)``   ``model(a=a, b=b)``     ``y``
``(x1, x2, ..., y)``        ``model(x1, x2, ...)``  ``y``
a mapping                   ``model(**mapping)``    its ``labels``, or itself
a dataclass object          as a mapping            its ``labels``, or itself
a graph of torch_geometric  ``model(graph)``        its ``y``, or itself
==========================  ======================  =========================

A model that does not take the fields of a dataclass as arguments is given the object,
``model(batch)``. A model that takes several arguments is given a graph's attributes of these names,
as in ``model(graph.x, graph.edge_index, graph.batch)``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MethodType
from typing import Any

from torch import Tensor, nn

from normscope.errors import ArgumentTypeError, InputError, ShapeError
from normscope.problem.batch import (
    Batch,
    check_filled,
    describe_batch,
    is_graph,
    is_record,
    no_tensor_error,
    record_fields,
    tensors_of,
)
from normscope.text import plural

_LABELS = "labels"
_EXPECTED = "a batch is a pair (inputs, targets) of tensors"
_OTHER_FORMS = (
    "put several batches in a list, and for other call signatures use "
    "whole_loss(outputs=..., loss=...)."
)
_WITH_TARGET = (
    f"{_EXPECTED}, (x1, x2, ..., targets) or a dictionary of the model's arguments: {_OTHER_FORMS}"
)
_WITHOUT_TARGET = "give batches as tuples ({}), or as dictionaries of these arguments."


@dataclass(frozen=True, slots=True)
class ModelCall:
    """The arguments of a model on one batch, and the target of its output.

    Args:
        inputs: positional arguments.
        target: what the loss compares the output with; None if it was not read.
        named: arguments by name.
    """

    inputs: tuple[Any, ...]
    target: Any = None
    named: dict[str, Any] = field(default_factory=dict)

    def __call__(self, model: nn.Module) -> Any:
        """Return the model's output, of any structure.

        Raises:
            ArgumentTypeError: if its forward does not take these arguments.
        """
        try:
            return model(*self.inputs, **self.named)
        except TypeError:
            self.check(model)
            raise

    def check(self, model: nn.Module) -> None:
        """Raise `ArgumentTypeError` if a model's forward does not take these arguments."""
        if self.fits(model):
            return
        names = ", ".join(map(str, self.named))
        given = plural(len(self.inputs), "input") if self.inputs else f"the inputs {names}"
        taken = ", ".join(inspect.signature(model.forward).parameters)
        raise ArgumentTypeError(
            f"the batch gives the model {given}, but its forward takes ({taken}); "
            + (_WITHOUT_TARGET.format(taken) if self.target is None else _WITH_TARGET)
        )

    def fits(self, model: nn.Module) -> bool:
        """Return whether a model's forward takes these arguments, as far as its signature shows."""
        forward: Any = model.forward
        own = (forward.__self__,) if isinstance(forward, MethodType) else ()
        try:
            signature = _signature(forward.__func__) if own else inspect.signature(forward)
        except (TypeError, ValueError):  # code in C has none
            return True
        try:
            signature.bind(*own, *self.inputs, **self.named)
        except TypeError:
            return False
        return True


@lru_cache(maxsize=32)  # every batch of a list is checked
def _signature(method: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a class's function, which outlives its models."""
    return inspect.signature(method)


def read_batch(batch: Batch, model: nn.Module) -> ModelCall:
    """Return how the model is called on a batch, which `check_batch` has accepted.

    Args:
        batch: of any form listed above.
        model: whose forward decides whether it is given the ``labels`` of a mapping.

    >>> import torch
    >>> read_batch((torch.ones(1), torch.zeros(1), 2), nn.Identity()).inputs
    (tensor([1.]), tensor([0.]))
    """
    if isinstance(batch, tuple | list):
        *inputs, target = batch
        if len(inputs) > 1 or isinstance(inputs[0], Tensor):
            return ModelCall(tuple(inputs), target)
        return _read_inputs(inputs[0], target, model)
    if isinstance(batch, Mapping):
        return _read_inputs(batch, batch.get(_LABELS, batch), model)
    if is_record(batch):
        inside = record_fields(batch)
        call = _read_inputs(inside, inside.get(_LABELS, batch), model)
        return call if call.fits(model) else ModelCall((batch,), call.target)
    target = getattr(batch, "y", None)
    target = batch if target is None else target
    whole = ModelCall((batch,), target)
    named = ModelCall((), target, {} if whole.fits(model) else _attributes(batch, model))
    return named if named.named else whole


def _attributes(graph: Any, model: nn.Module) -> dict[str, Any]:
    """Return the graph's attributes that a model's forward has arguments for."""
    names = inspect.signature(model.forward).parameters
    found = {name: getattr(graph, name, None) for name in names}
    return {name: value for name, value in found.items() if value is not None}


def _read_inputs(inputs: Any, target: Any, model: nn.Module) -> ModelCall:
    """Return the call with the inputs of a pair, or with a mapping."""
    if isinstance(inputs, tuple | list):
        return ModelCall(tuple(inputs), target)
    if not isinstance(inputs, Mapping):
        return ModelCall((inputs,), target)
    named = dict(inputs)
    if _LABELS in named and not _takes(model, _LABELS):
        del named[_LABELS]
    return ModelCall((), target, named)


def single_input(batch: Batch) -> Tensor | None:
    """Return the x of a batch on which a model is called as ``model(x)``; None for other calls.

    >>> import torch
    >>> single_input((torch.ones(1), torch.zeros(1)))
    tensor([1.])
    """
    if isinstance(batch, tuple | list) and len(batch) == 2 and isinstance(batch[0], Tensor):
        return batch[0]
    return None


def _takes(model: nn.Module, name: str) -> bool:
    """Return whether a model's forward takes an argument of that name."""
    try:
        parameters = inspect.signature(model.forward).parameters
    except (TypeError, ValueError):
        return True
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def check_batch(batch: Batch, model: nn.Module) -> None:
    """Reject what is not a batch of a form that `read_batch` reads.

    Args:
        batch: the batch. In a pair of two tensors inputs and targets have equally many rows.
        model: whose forward must take the inputs.

    Raises:
        ArgumentTypeError: if it has another form, or the model does not take its inputs.
        InputError: if it is empty or has no storage.
        ShapeError: if a pair of tensors differs in length.
    """
    if single_input(batch) is not None and isinstance(batch[1], Tensor):
        check_pair(batch)
        return
    _reject_arrays(batch)
    several = isinstance(batch, tuple | list) and len(batch) > 1
    if not (several or isinstance(batch, Mapping) or is_graph(batch) or is_record(batch)):
        check_pair(batch)
    check_filled(batch)
    call = read_batch(batch, model)
    for part in ((call.inputs, call.named), call.target):
        if next(tensors_of(part), None) is None:
            raise no_tensor_error(batch) if not several else _form_error(batch)
    if not model._forward_pre_hooks:  # they may change the arguments
        call.check(model)


def _form_error(batch: Batch) -> ArgumentTypeError:
    return ArgumentTypeError(f"{_EXPECTED}, got {describe_batch(batch)}; {_OTHER_FORMS}")


def _reject_arrays(batch: Batch) -> None:
    parts = batch.values() if isinstance(batch, Mapping) else batch
    parts = parts if isinstance(parts, Iterable) and not isinstance(parts, Tensor) else ()
    if not is_graph(batch) and any(type(part).__name__ == "ndarray" for part in parts):
        raise ArgumentTypeError(
            f"{_EXPECTED}, got {describe_batch(batch)}; convert NumPy arrays with torch.from_numpy."
        )


def check_pair(batch: Batch) -> None:
    """Reject what is not a pair (inputs, targets) of equally many samples, at least one.

    Args:
        batch: the batch.

    Raises:
        ArgumentTypeError: if it is not a pair of tensors.
        InputError: if it is empty or has no storage.
        ShapeError: if inputs and targets differ in length.
    """
    _reject_arrays(batch)
    if isinstance(batch, Tensor):
        raise ArgumentTypeError(
            f"{_EXPECTED}, got a Tensor; a list is a list of batches: if one batch is a list "
            "[inputs, targets], pass tuple(batch)."
        )
    is_pair = isinstance(batch, tuple | list) and len(batch) == 2
    if not is_pair or not all(isinstance(part, Tensor) for part in batch):
        raise _form_error(batch)
    inputs, targets = batch
    if inputs.dim() == 0 or targets.dim() == 0 or len(inputs) != len(targets):
        raise ShapeError(
            "inputs and targets need one row per sample, as many in each, got shapes "
            f"{tuple(inputs.shape)} and {tuple(targets.shape)}."
        )
    check_filled(batch)


def calls_of(data: object, model: nn.Module) -> Iterator[ModelCall]:
    """Yield the call of the model on every batch; targets are not needed.

    Args:
        data: a tensor of inputs, or one batch that is a tuple, a mapping or a graph; or a list, a
            DataLoader or another iterable of such batches. A tuple ends with the target, unless the
            model takes all of it.
        model: the model to call.

    Yields:
        The call of each batch.

    Raises:
        ArgumentTypeError: if the data or a batch is something else.
        InputError: if a list of tensors looks like one batch ``[x, y]``.

    >>> import torch
    >>> calls = calls_of([torch.zeros(3, 2), (torch.zeros(5, 2), None)], nn.Identity())
    >>> [call.inputs[0].shape[0] for call in calls]
    [3, 5]
    """
    if isinstance(data, Tensor | tuple | Mapping) or is_graph(data):
        yield _call_of(data, model)
        return
    if isinstance(data, str) or not isinstance(data, Iterable):
        raise ArgumentTypeError(
            "data must be a tensor, a tuple (x, y), a dictionary of the model's arguments, a list "
            f"of batches or a DataLoader, got {type(data).__name__}."
        )
    if isinstance(data, list):
        _reject_batch_as_list(data)
    for batch in data:
        yield _call_of(batch, model)


def _call_of(batch: Any, model: nn.Module) -> ModelCall:
    if isinstance(batch, Tensor):
        return ModelCall((batch,))
    if isinstance(batch, tuple | list) and len(batch) == 1:
        batch = (*batch, None)
    several = isinstance(batch, tuple | list) and len(batch) > 1
    if several or isinstance(batch, Mapping) or is_graph(batch):
        _reject_arrays(batch)
        call = read_batch(batch, model)
        if several and batch[-1] is not None and not call.fits(model):
            whole = ModelCall(tuple(batch))  # such as (x, edge_index, batch)
            call = whole if whole.fits(model) else call
        if next(tensors_of((call.inputs, call.named)), None) is not None:
            return call
    raise ArgumentTypeError(
        "a batch must be a tensor x, a tuple (x, y) whose x is a tensor, or a dictionary of the "
        f"model's arguments, got {describe_batch(batch)}."
    )


def _reject_batch_as_list(data: list[Any]) -> None:
    """A DataLoader gives lists [x, y]: in such a list y would count as a second batch."""
    tensors = [item for item in data if isinstance(item, Tensor)]
    if len(tensors) == len(data) and len({tensor.dim() for tensor in tensors}) > 1:
        raise InputError(
            "a list is a list of batches, but its tensors have different numbers of dimensions; "
            "pass one batch as a tuple (x, y)."
        )
