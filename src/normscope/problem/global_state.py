"""The state that torch, NumPy and Python keep for a thread or for the whole process."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _python_dispatch

_library: Any = torch._C  # annotated incompletely


def capture_global_state() -> Callable[[], None]:
    """Capture modes and settings; return what restores those that differ later.

    These are inference mode, grad mode, the stacks of function and dispatch modes, hooks on saved
    tensors, autocast, NumPy's treatment of floating-point errors and, after an error, the filters
    of warnings.
    """
    before = [(state, state.read()) for state in _STATES]

    def restore() -> None:
        for state, value in before:
            if state.read() != value:
                state.write(value)

    return restore


@dataclass(frozen=True)
class _State:
    """How to read and write one setting."""

    read: Callable[[], Any]
    write: Callable[[Any], Any]


def _stack(
    length: Callable[[], int],
    item: Callable[[int], Any],
    pop: Callable[[], Any],
    push: Callable[[Any], Any],
) -> _State:
    """A stack of modes."""

    def read() -> list[Any]:
        return [item(index) for index in range(length())]

    def write(modes: list[Any]) -> None:
        while length():
            pop()
        for mode in modes:
            push(mode)

    return _State(read, write)


_ended: list[Any] = []  # contexts that must not be freed: they would set inference mode again


def _set_inference_mode(enabled: bool) -> None:
    context = _library._InferenceMode(enabled)
    context.__enter__()
    _ended.append(context)


def _pop_saved_tensors_hooks(outermost: Any) -> None:
    hooks = _library._autograd
    while (top := hooks._top_saved_tensors_default_hooks(True)) is not None and top != outermost:
        hooks._pop_saved_tensors_default_hooks()


_DEVICES = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)


def _autocast() -> tuple[Any, ...]:
    depth = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    devices = [(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in _DEVICES]
    return torch.is_autocast_cache_enabled(), depth, devices


def _set_autocast(value: tuple[Any, ...]) -> None:
    cache, depth, devices = value
    torch.set_autocast_cache_enabled(cache)
    for device, enabled, dtype in devices:
        torch.set_autocast_enabled(device, enabled)
        torch.set_autocast_dtype(device, dtype)
    while torch.autocast_increment_nesting() - 1 > depth:
        torch.autocast_decrement_nesting()
        torch.autocast_decrement_nesting()
        torch.clear_autocast_cache()
    torch.autocast_decrement_nesting()


_FLAGS = [name for name in vars(_python_dispatch) if name.startswith("_is_in_")]


def _dispatch_flags() -> dict[str, Any]:
    return {name: vars(_python_dispatch)[name] for name in _FLAGS}


def _set_dispatch_flags(value: dict[str, Any]) -> None:
    vars(_python_dispatch).update(value)
    flag = "is_in_mode_without_ignore_compile_internals"
    if hasattr(_python_dispatch, f"set_{flag}"):  # not in older versions
        getattr(_python_dispatch, f"set_{flag}")(value[flag.replace("is_in_", "_is_in_any_")])


def _warning_filters() -> tuple[Any, ...]:
    module: Any = warnings
    return id(module.filters), module.filters, module.showwarning, module._showwarnmsg_impl


def _set_warning_filters(value: tuple[Any, ...]) -> None:
    if sys.exc_info()[0] is None:
        return  # another thread set them
    module: Any = warnings
    _, module.filters, module.showwarning, module._showwarnmsg_impl = value
    module._filters_mutated()


_FUNCTION_MODES = _stack(
    _library._len_torch_function_stack,
    _library._get_function_stack_at,
    _library._pop_torch_function_stack,
    _library._push_on_torch_function_stack,
)


class FunctionMode(TorchFunctionMode):
    """A function mode that restores the stack of modes on exit, whatever is on it then.

    torch takes the topmost mode off for every call. An interrupt may leave it off; popping another
    one would raise an error in place of the interrupt.
    """

    def __init__(self) -> None:
        super().__init__()
        self._before: list[list[Any]] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return self.call(func, args, kwargs or {})

    def call(self, function: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Return the result of a torch function called inside; subclasses may change it."""
        return function(*args, **options)

    def __enter__(self) -> Self:
        self._before.append(_FUNCTION_MODES.read())
        _library._push_on_torch_function_stack(self)
        return self

    def __exit__(self, *error: object) -> None:
        _FUNCTION_MODES.write(self._before.pop())


_STATES = (
    _State(torch.is_inference_mode_enabled, _set_inference_mode),  # sets grad mode, too
    _State(torch.is_grad_enabled, torch._C._set_grad_enabled),
    _FUNCTION_MODES,
    _stack(
        _library._len_torch_dispatch_stack,
        _library._get_dispatch_stack_at,
        partial(_library._pop_torch_dispatch_stack, None),
        _library._push_on_torch_dispatch_stack,
    ),
    _State(_dispatch_flags, _set_dispatch_flags),
    _State(
        lambda: _library._autograd._top_saved_tensors_default_hooks(True), _pop_saved_tensors_hooks
    ),
    _State(_autocast, _set_autocast),
    _State(np.geterr, lambda value: np.seterr(**value)),
    _State(_warning_filters, _set_warning_filters),
)


def uncached_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Return the present autocast without its cache of cast weights.

    The cache identifies a weight by its tensor, and lives as long as the autocast around the call:
    a weight that is trained inside would keep its first value.
    """
    if not torch.is_autocast_enabled(device.type):
        return nullcontext()
    dtype = torch.get_autocast_dtype(device.type)
    return torch.autocast(device.type, dtype=dtype, cache_enabled=False)
