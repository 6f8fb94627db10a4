"""Checksum of a model's structure and its loss, which identify a stored surface."""

from __future__ import annotations

import hashlib
import re
from functools import partial
from typing import Any

from torch import Tensor, nn

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")  # differs from process to process
_LONGEST = 32  # characters of a checksum


def structure_digest(model: nn.Module, loss: Any, with_flags: bool) -> str:
    """Return a checksum of the structure of a model and of its loss.

    Args:
        model: its modules, with their classes, names and plain attributes.
        loss: a name, a function, or a module with its plain attributes.
        with_flags: whether the flag ``training`` of each module counts.
    """
    text = f"{_describe_module(model, with_flags)}\n{_describe(loss)}"
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:_LONGEST]


def _describe_module(model: nn.Module, with_flags: bool) -> str:
    lines = [_ADDRESS.sub("", repr(model))]
    for name, module in model.named_modules():
        plain = {
            key: value
            for key, value in sorted(vars(module).items())
            if not key.startswith("_")
            and (with_flags or key != "training")
            and isinstance(value, bool | int | float | str | tuple)
        }
        lines.append(f"{name}: {_type_name(module)} {_ADDRESS.sub('', repr(plain))}")
    return "\n".join(lines)


def _describe(value: Any) -> str:
    """Return a description of a loss that is the same in another process."""
    if isinstance(value, nn.Module):
        return _describe_module(value, with_flags=True)
    if isinstance(value, partial):
        inner = [_describe(each) for each in (value.func, *value.args)]
        inner += [f"{name}={_describe(each)}" for name, each in sorted(value.keywords.items())]
        return f"partial({', '.join(inner)})"
    if isinstance(value, Tensor):
        return f"tensor {tuple(value.shape)} {value.detach().cpu().flatten()[:8].tolist()}"
    if callable(value):
        name = getattr(value, "__qualname__", None)
        return f"{getattr(value, '__module__', '')}.{name}" if name else _type_name(value)
    return _ADDRESS.sub("", repr(value))


def _type_name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
