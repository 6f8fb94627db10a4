"""Checksum of a model's structure and code and of its loss, which identify a stored surface."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Set
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any

from torch import Tensor, nn

from normscope.landscape.points import checksum
from normscope.problem.copies import cell_content
from normscope.problem.loss import WholeLoss

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")  # differs from process to process
_LONGEST = 32  # characters of a checksum
_PLAIN = (bool, int, float, str, tuple)


def structure_digest(model: nn.Module, loss: Any, with_flags: bool) -> str:
    """Return a checksum of the structure and code of a model and of its loss.

    Args:
        model: its modules, with their classes, names, plain attributes and forward passes.
        loss: a function with its code and the values it refers to, or a module.
        with_flags: whether the flag ``training`` of each module counts.
    """
    describe = _Description()
    text = f"{describe.module(model, with_flags)}\n{describe(loss)}"
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:_LONGEST]


class _Description:
    """Describes values by text that is the same in another process; each function once."""

    def __init__(self) -> None:
        self._seen: dict[int, Any] = {}  # by id; kept, so that no id is used again

    def __call__(self, value: Any) -> str:
        """Return the description of a value."""
        if isinstance(value, nn.Module):
            return f"{self.module(value, with_flags=True)} {self(value.state_dict())}"
        if isinstance(value, Tensor):
            return f"tensor {tuple(value.shape)} {value.dtype} {checksum([value])}"
        if isinstance(value, Mapping):
            return str(sorted(f"{key}: {self(each)}" for key, each in value.items()))
        if isinstance(value, list | tuple):
            return str(list(map(self, value)))
        if isinstance(value, Set):  # in no order that another process has
            return str(sorted(map(self, value)))
        parts = () if id(value) in self._seen else _parts(value)
        self._seen[id(value)] = value
        if parts is None:
            return _ADDRESS.sub("", repr(value))
        name = getattr(value, "__qualname__", "")
        return f"{_type_name(value)} {name} {self(parts)}"

    def module(self, model: nn.Module, with_flags: bool) -> str:
        """Return the description of a model, with the flag ``training`` of its modules or not."""
        lines = [_ADDRESS.sub("", repr(model))]
        for name, module in model.named_modules():
            plain = {
                key: value
                for key, value in vars(module).items()
                if not key.startswith("_")
                and (with_flags or key != "training")
                and isinstance(value, _PLAIN)
            }
            parts = (plain, type(module).forward)
            lines.append(f"{name}: {_type_name(module)} {self(parts)}")
        return "\n".join(lines)


def _parts(value: Any) -> tuple[Any, ...] | None:
    """Return what a function, its code or another callable computes with; None for other values."""
    if isinstance(value, CodeType):
        return value.co_code, value.co_names, value.co_consts
    if isinstance(value, FunctionType):
        cells = [cell_content(cell) for cell in value.__closure__ or ()]
        return value.__code__, value.__defaults__, value.__kwdefaults__, _globals(value), cells
    if isinstance(value, MethodType):
        return value.__func__, value.__self__
    if isinstance(value, partial):
        return value.func, value.args, value.keywords
    if isinstance(value, WholeLoss):
        return value.function, value.outputs, value.loss
    if callable(value) and not isinstance(value, type) and hasattr(value, "__dict__"):
        kept = (*_PLAIN, Tensor, FunctionType)
        own = {key: each for key, each in vars(value).items() if isinstance(each, kept)}
        return type(value).__call__, own
    return None


def _globals(function: FunctionType) -> dict[str, Any]:
    """Return the plain values, tensors and functions of its own file that a function refers to."""
    found = {name: function.__globals__.get(name) for name in function.__code__.co_names}
    return {
        name: value
        for name, value in found.items()
        if isinstance(value, (*_PLAIN, Tensor))
        or (isinstance(value, FunctionType) and value.__module__ == function.__module__)
    }


def _type_name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
