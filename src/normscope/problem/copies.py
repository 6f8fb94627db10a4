"""Copies of models that run their own layers, also in functions among their attributes."""

from __future__ import annotations

import copy
import dis
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from normscope.errors import StateError
from normscope.problem.attributes import plain_attributes
from normscope.problem.isolation import isolated

_CONTAINERS = (list, tuple, dict)
_RELEVANT = (nn.Module, Tensor, FunctionType, MethodType, partial, *_CONTAINERS)


def copy_module(module: nn.Module, replacements: Mapping[int, Any] | None = None) -> nn.Module:
    """Return a deep copy of a module.

    Functions over the module among its attributes, which ``copy.deepcopy`` leaves as they are, run
    the copy's layers in the copy. Tensors with a graph, such as an activation that the forward pass
    keeps in an attribute, are detached: ``copy.deepcopy`` does not take them.

    Args:
        module: any module; it is not changed.
        replacements: what to put into the copy instead of some objects, by their id.

    Returns:
        The copy.

    Raises:
        StateError: if the module cannot be copied, or if an attribute refers to it by a global
            name.

    >>> layer = nn.Linear(2, 2)
    >>> layer.cache = 2 * layer.weight
    >>> copy_module(layer).cache.requires_grad
    False
    """
    memo = dict(replacements or {})
    try:
        copied = _deep_copy(module, memo)
    except Exception as error:  # what a module holds may raise anything
        reason = str(error).partition("\n")[0].rstrip(".")
        raise StateError(
            f"normscope works on a copy of the model, which copy.deepcopy cannot make ({reason}); "
            f"remove that attribute of {type(module).__name__} or one of its modules first."
        ) from error
    rebind_functions(copied, module, memo)
    return copied


def _deep_copy(module: nn.Module, memo: dict[int, Any]) -> nn.Module:
    given = dict(memo)
    try:
        return copy.deepcopy(module, memo)
    except RuntimeError:  # a tensor with a graph
        memo.clear()
        memo |= {id(tensor): tensor.detach().clone() for tensor in _with_graph(module)} | given
        return copy.deepcopy(module, memo)


def _with_graph(module: nn.Module) -> list[Tensor]:
    values = (leaf for each in module.modules() for leaf in pytree.tree_leaves(vars(each)))
    return [value for value in values if isinstance(value, Tensor) and not value.is_leaf]


def undisturbed(model: nn.Module) -> AbstractContextManager[None]:
    """Return a context in which copies of a model run, and which restores the model itself.

    A copy may reach the original, for instance by a hook.
    """
    if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
        return nullcontext()  # cannot be isolated
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    return isolated(model, tensors=buffers)


def refers_to(value: Any, model: nn.Module) -> bool:
    """Return whether a loss, a function or what holds functions refers to a model or its tensors.

    >>> layer = nn.Linear(1, 1)
    >>> refers_to(lambda output, target: layer.weight.sum(), layer), refers_to(nn.MSELoss(), layer)
    (True, False)
    """
    own = {id(each) for each in (*model.modules(), *model.parameters())}
    if isinstance(value, nn.Module):
        parts = (*value.modules(), *value.parameters())
        return any(id(each) in own for each in (*parts, *_held_by_functions(list(parts))))
    return any(id(each) in own for each in (value, *_held_by_functions(value)))


def rebound(value: Any, copies: Mapping[int, Any]) -> Any:
    """Return a function, or what holds functions, over copies of what it refers to.

    Args:
        value: a function, method, partial, or a container of them.
        copies: by the id of what they replace.
    """
    return _Rebinding(copies).of(value)


def rebind_functions(copied: nn.Module, original: nn.Module, copies: Mapping[int, Any]) -> None:
    """Let the functions among a copy's attributes refer to the copy.

    ``copy.deepcopy`` binds methods to the copy, but leaves functions and lambdas as they are.

    Args:
        copied: a deep copy; it is changed.
        original: what it is a copy of.
        copies: the memo of ``copy.deepcopy``: copies by the id of what they are copies of.

    Raises:
        StateError: if an attribute still refers to the original, by a global name.
    """
    own = {id(each) for each in (*original.modules(), *original.parameters())}
    rebinding = _Rebinding(copies)
    for path, module in copied.named_modules():
        for name, value in plain_attributes(module).items():
            if not any(id(each) in own for each in _held_by_functions(value)):
                continue
            module.__dict__[name] = rebound = rebinding.of(value)
            if any(id(each) in own for each in _held_by_functions(rebound)):
                owner = repr(path) if path else "the model"
                raise StateError(
                    f"the attribute {name!r} of {owner} is a function that refers to the model by "
                    "a global name, so that a copy would still run the original; make it a method."
                )


class _Rebinding:
    """Functions, and what holds them, with copies in place of what they refer to.

    Args:
        copies: by the id of what they replace.
    """

    def __init__(self, copies: Mapping[int, Any]) -> None:
        self._copies = dict(copies)  # and the new functions: one may refer to itself

    def of(self, value: Any) -> Any:
        """Return the value over the copies; the value itself if it does not refer to others."""
        if id(value) in self._copies:
            return self._copies[id(value)]
        if isinstance(value, FunctionType):
            return self._function(value)
        if isinstance(value, MethodType):
            return MethodType(self.of(value.__func__), self.of(value.__self__))
        if type(value) is partial:
            named = {name: self.of(part) for name, part in value.keywords.items()}
            return partial(self.of(value.func), *map(self.of, value.args), **named)
        if type(value) in (list, tuple):
            return type(value)(map(self.of, value))
        if type(value) is dict:
            return {key: self.of(part) for key, part in value.items()}
        return value

    def _function(self, function: FunctionType) -> FunctionType:
        if not any(id(each) in self._copies for each in _held_by_functions(function)):
            return function
        cells = tuple(CellType() for _ in function.__closure__ or ())
        new = FunctionType(
            function.__code__, function.__globals__, function.__name__, None, cells or None
        )
        self._copies[id(function)] = new
        new.__dict__.update(function.__dict__)
        new.__defaults__ = self.of(function.__defaults__)
        new.__kwdefaults__ = self.of(function.__kwdefaults__)
        for cell, old in zip(cells, function.__closure__ or (), strict=True):
            for content in cell_content(old):
                cell.cell_contents = self.of(content)
        return new


def _held_by_functions(value: Any) -> Iterator[Any]:
    """Yield what functions among a value refer to, by closure, default or global name."""
    waiting, seen = [(value, False)], set[tuple[int, bool]]()  # and whether a function holds it
    while waiting:
        each, held = waiting.pop()
        if (id(each), held) in seen:
            continue
        seen.add((id(each), held))
        if held:
            yield each
        is_held = held or isinstance(each, FunctionType)
        waiting += [(part, is_held) for part in _parts(each) if isinstance(part, _RELEVANT)]


def _parts(value: Any) -> Iterable[Any]:
    """Return what a function, method, partial or container refers to."""
    if isinstance(value, FunctionType):
        return _references(value)
    if isinstance(value, MethodType):
        return value.__func__, value.__self__
    if isinstance(value, partial):
        return value.func, *value.args, *value.keywords.values()
    if isinstance(value, _CONTAINERS):
        return value.values() if isinstance(value, dict) else value
    return ()


def _references(function: FunctionType) -> list[Any]:
    found = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    for cell in function.__closure__ or ():
        found += cell_content(cell)
    for name in _global_names(function.__code__):
        value = function.__globals__.get(name)
        if isinstance(value, nn.Module | Tensor):
            found.append(value)
    return found


def cell_content(cell: CellType) -> list[Any]:
    """Return what a closure's cell holds, in a list; an empty list if it is not assigned yet."""
    try:
        return [cell.cell_contents]
    except ValueError:
        return []


def _global_names(code: CodeType) -> set[str]:
    loads = (each for each in dis.get_instructions(code) if each.opname == "LOAD_GLOBAL")
    inner = (_global_names(each) for each in code.co_consts if isinstance(each, CodeType))
    return {each.argval for each in loads}.union(*inner)
