"""Plain attributes of modules, which a forward pass may change: find, copy and restore them."""

from __future__ import annotations

import copy
import random
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_MODULE_SLOTS = frozenset(vars(nn.Module()))
_CONTAINERS = frozenset({list, dict, set, deque, OrderedDict, defaultdict})
_IMMUTABLE = frozenset({bool, int, float, str, type(None)})
_RESTORED_IN_PLACE = (
    *(torch.Generator, np.random.Generator, np.random.RandomState, random.Random),
    *(bytearray, np.ndarray),
)
_LARGEST_ARRAY = 2**24  # bytes; a larger one is data, and not written to
_NOT_RESET = (
    *(nn.Module, Tensor, torch.Generator, type),
    *(types.ModuleType, types.FunctionType, types.MethodType, types.BuiltinFunctionType, partial),
)


def plain_attributes(module: nn.Module) -> dict[str, Any]:
    """Return a module's own attributes that can be changed in place."""
    return {
        name: value
        for name, value in module.__dict__.items()
        if name not in _MODULE_SLOTS and not _is_immutable(value)
    }


def _is_immutable(value: object) -> bool:
    if type(value) is tuple:
        return _IMMUTABLE.issuperset(map(type, value))
    return type(value) in _IMMUTABLE


class Copies:
    """Copies of tensors and containers; what is shared stays shared, parameters stay.

    Args:
        kept: modules that stay, with their parameters, where other objects are copied too; empty
            if other objects stay.
    """

    def __init__(self, kept: Sequence[nn.Module] = ()) -> None:
        self._made: dict[int, Any] = {id(module): module for module in kept}
        for module in kept:
            self._made |= {id(each): each for each in module._parameters.values()}
        self._copies_objects = bool(kept)
        self._storages: dict[int, torch.UntypedStorage] = {}

    def of(self, value: Any) -> Any:
        """Return a copy of a mutable value, the value itself otherwise."""
        if id(value) in self._made:
            return self._made[id(value)]
        if isinstance(value, Tensor):
            self._made[id(value)] = self._of_tensor(value)
        elif type(value) in _CONTAINERS:
            self._of_container(value)
        elif type(value) is tuple:
            parts = tuple(map(self.of, value))
            same = all(one is other for one, other in zip(parts, value, strict=True))
            self._made[id(value)] = value if same else parts
        elif self._copies_objects and not isinstance(value, _RESTORED_IN_PLACE):
            self._of_object(value)
        return self._made.get(id(value), value)

    def _of_container(self, value: Any) -> None:
        twin = self._made[id(value)] = copy.copy(value)  # before its parts, which may hold it
        if isinstance(twin, set):
            twin.clear()
            twin.update(map(self.of, value))
            return
        for key in list(twin) if isinstance(twin, dict) else range(len(twin)):
            twin[key] = self.of(twin[key])

    def _of_object(self, value: Any) -> None:
        memo = dict(self._made)  # of its own: a copy that fails leaves parts of objects in it
        try:
            memo[id(value)] = copy.deepcopy(value, memo)
        except Exception:  # an object may raise anything; one that cannot be copied stays
            memo = {id(value): value}
        self._made |= memo

    def _of_tensor(self, tensor: Tensor) -> Tensor:
        if isinstance(tensor, nn.Parameter):
            return tensor
        if type(tensor) is not Tensor or tensor.layout is not torch.strided or tensor.is_meta:
            return tensor.detach().clone()
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._storages:  # views of one memory stay views of one
            whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
            self._storages[storage.data_ptr()] = whole.clone().untyped_storage()
        own, offset = self._storages[storage.data_ptr()], tensor.storage_offset()
        twin = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        twin.set_(own, offset, tensor.size(), tensor.stride())
        return twin.requires_grad_(tensor.requires_grad)


def unregistered_modules(values: Iterable[Any], known: Sequence[nn.Module]) -> list[nn.Module]:
    """Return modules among attributes, such as in a list, where torch does not find them."""
    held = [
        module for value in values if isinstance(value, nn.Module) for module in value.modules()
    ]
    ids = {id(module) for module in known}
    fresh = {id(module): module for module in held if id(module) not in ids}
    found = [each for each in fresh.values() if not isinstance(each, torch.jit.ScriptModule)]
    if not found:
        return []
    below = contained(map(plain_attributes, found))
    return found + unregistered_modules(below, [*known, *fresh.values()])


def contained(attributes: Iterable[Mapping[str, Any]]) -> Iterator[Any]:
    """Yield the values and what containers among them hold, to any depth, each once."""
    waiting = [value for values in attributes for value in values.values()]
    seen: set[int] = set()
    while waiting:
        value = waiting.pop()
        if id(value) in seen or _is_immutable(value):
            continue
        seen.add(id(value))
        yield value
        if type(value) in _CONTAINERS or type(value) is tuple:
            waiting += value.values() if isinstance(value, dict) else value


def state_restorer(value: Any) -> Callable[[], Any] | None:
    """Return what sets an object back to its present state; None if that is not needed.

    Random number generators, arrays and subclasses of containers get their content back, other
    objects their own attributes, but not what these hold. Modules, tensors, plain containers and
    the generators of torch are left to the isolation context.

    Args:
        value: of an attribute.

    Returns:
        A function that may be called several times.

    >>> from collections import Counter
    >>> counts = Counter(a=1)
    >>> restore = state_restorer(counts)
    >>> counts.update("ab")
    >>> restore()
    >>> counts
    Counter({'a': 1})
    """
    if isinstance(value, np.random.Generator):
        return partial(setattr, value.bit_generator, "state", value.bit_generator.state)
    if isinstance(value, np.random.RandomState):
        return partial(value.set_state, value.get_state(legacy=False))
    if isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        return partial(value.setstate, value.getstate())
    if type(value) is bytearray:
        return partial(value.__setitem__, slice(None), bytes(value))
    if type(value) is np.ndarray and value.flags.writeable and value.nbytes <= _LARGEST_ARRAY:
        # in place, not on a copy: other arrays may be views of the same memory
        return partial(_write_back, value, value.copy())
    if isinstance(value, _NOT_RESET) or type(value) in _CONTAINERS:
        return None
    return _object_restorer(value)


def _object_restorer(value: Any) -> Callable[[], Any] | None:
    container: Any = next((kind for kind in type(value).__mro__ if kind in _CONTAINERS), None)
    if container is not None:  # a subclass, such as a Counter; its own methods may do more
        is_mapping = issubclass(container, dict)
        content = list(container.items(value) if is_mapping else container.__iter__(value))
        return partial(_refill, container, value, content)
    try:
        own = object.__getattribute__(value, "__dict__")  # not that of what a proxy stands for
    except AttributeError:
        return None
    return partial(_reset, own, dict(own)) if type(own) is dict else None


def _write_back(array: np.ndarray[Any, Any], content: np.ndarray[Any, Any]) -> None:
    if array.shape != content.shape:
        raise ValueError("resized")  # copyto would broadcast the content
    np.copyto(array, content)


def _refill(container: Any, value: Any, content: list[Any]) -> None:
    container.clear(value)
    (container.extend if container in (list, deque) else container.update)(value, content)


def _reset(own: dict[str, Any], before: dict[str, Any]) -> None:
    for name in own.keys() - before.keys():
        own.pop(name, None)
    for name, content in before.items():
        if own.get(name, own) is not content:
            own[name] = content
