"""Objects among a module's attributes that a forward pass may change, and how to set them back."""

from __future__ import annotations

import random
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

CONTAINERS = frozenset({list, dict, set, deque, OrderedDict, defaultdict})
"""Types that are copied with what they hold."""

_LARGEST_ARRAY = 2**24  # bytes; a larger one is data, and not written to
_NOT_RESET = (
    *(nn.Module, Tensor, torch.Generator, type),
    *(types.ModuleType, types.FunctionType, types.MethodType, types.BuiltinFunctionType, partial),
)


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
    if isinstance(value, _NOT_RESET) or type(value) in CONTAINERS:
        return None
    return _object_restorer(value)


def _object_restorer(value: Any) -> Callable[[], Any] | None:
    container: Any = next((kind for kind in type(value).__mro__ if kind in CONTAINERS), None)
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
