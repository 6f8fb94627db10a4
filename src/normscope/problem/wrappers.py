"""Models that torch.jit, torch.compile, checkpoints, DataParallel, DDP or FSDP have wrapped."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from functools import partial
from types import FunctionType, MethodType
from typing import Any

from torch import distributed, nn
from torch.jit import ScriptModule
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils import checkpoint

from normscope.errors import ArgumentTypeError
from normscope.interrupts import Undo


def refuse_scripted(model: nn.Module) -> None:
    """Raise if a module is compiled by torch.jit: its parameters and modules are fixed.

    Args:
        model: the model.

    Raises:
        ArgumentTypeError: if there is one.
    """
    if any(isinstance(module, ScriptModule) for module in model.modules()):
        raise ArgumentTypeError(
            "the parameters of a model compiled by torch.jit cannot be replaced for a "
            "measurement; pass the module that was scripted or traced."
        )


FSDP_PREFIX = "_fsdp_wrapped_module."
"""What the wrapper FullyShardedDataParallel adds to the names of modules and parameters."""


def is_sharded(model: nn.Module) -> bool:
    """Return whether parameters are sharded by FSDP, or are DTensors: they cannot be replaced.

    >>> is_sharded(nn.Linear(1, 1))
    False
    """
    kinds = {type(each) for each in (*model.modules(), *model.parameters())}
    return any(is_distributed(kind) for kind in kinds)


def refuse_sharded(model: nn.Module) -> None:
    """Raise if parameters are sharded by FSDP, or are DTensors.

    Public functions replace such a model first (`normscope.problem.sharded.gather_shards`).

    Args:
        model: the model.

    Raises:
        ArgumentTypeError: if it is so.
    """
    if is_sharded(model):
        raise ArgumentTypeError(
            "the parameters of a model sharded by FSDP or as DTensors cannot be replaced for a "
            "measurement; load its full state into a plain copy of the model, and pass that."
        )


def is_distributed(kind: type) -> bool:
    """Return whether a class shards parameters: FSDP's wrapper and mixin, DTensor."""
    parts = ("torch.distributed.fsdp", "torch.distributed.tensor")
    return any(base.__module__.startswith(parts) for base in kind.__mro__)


def run_unwrapped(model: nn.Module) -> None:
    """Make every module run uncompiled and in this process alone.

    Call it inside an isolation context, which restores the modules. What torch.compile makes
    has no second derivative, and is the training's. Wrappers for data-parallel training and norm
    layers with shared statistics would wait for other processes, which may take fewer passes.
    """
    for module in model.modules():
        own = module.__dict__
        if own.get("_compiled_call_impl") is not None:  # by model.compile()
            own["_compiled_call_impl"] = None
        inner = _wrapped_module(module)
        if inner is not None:
            own["forward"] = inner
            continue
        for name, value in list(own.items()):
            if isinstance(value, FunctionType):  # among the attributes, or forward itself
                own[name] = uncompiled(value)
        of_class = getattr(type(module).forward, _ORIGINAL, None)
        if of_class is not None and "forward" not in own:
            own["forward"] = MethodType(of_class, module)
        if isinstance(module, _BatchNorm):
            _use_own_statistics(module)


def _use_own_statistics(layer: _BatchNorm) -> None:
    """Let a layer with statistics shared by processes take those of its own batch."""
    own = layer.__dict__
    if not isinstance(layer, nn.SyncBatchNorm):
        if own.get("process_group") is not None:
            own["process_group"] = None
        return
    if distributed.is_available():
        own["process_group"] = distributed.GroupMember.NON_GROUP_MEMBER  # None is all processes
    if type(layer).forward is nn.SyncBatchNorm.forward:
        # which refuses CPU tensors once torch.distributed is initialized
        own.setdefault("forward", partial(_BatchNorm.forward, layer))


_CHECKPOINT: Any = checkpoint.CheckpointFunction  # without annotations


@contextmanager
def without_reentrant_checkpoints() -> Iterator[None]:
    """Inside, this thread runs checkpoints with ``use_reentrant=True`` as plain calls.

    `torch.autograd.grad` cannot differentiate them: the graph hides their parameters, and it raises
    an error or, if no trained parameter comes before, silently leaves them out. Only one thread at
    a time may be inside.

    Yields:
        Nothing.
    """
    thread, checkpointed = threading.get_ident(), _CHECKPOINT.apply

    def apply(function: Callable[..., Any], preserves_random: bool, *inputs: Any) -> Any:
        if threading.get_ident() != thread:
            return checkpointed(function, preserves_random, *inputs)
        return function(*inputs)

    restore = Undo(partial(_set_checkpoint, vars(_CHECKPOINT).get("apply")))
    try:
        _set_checkpoint(staticmethod(apply))
        yield
    finally:
        restore()


def _set_checkpoint(apply: Any) -> None:
    """Set what reentrant checkpoints call; None for torch's own."""
    if apply is not None:
        _CHECKPOINT.apply = apply
    elif "apply" in vars(_CHECKPOINT):
        del _CHECKPOINT.apply


_ORIGINAL = "_torchdynamo_orig_callable"  # of what torch.compile returns for a function


def uncompiled(function: Any) -> Any:
    """Return the function or module that torch.compile was given; others as they are.

    The functions in the fields of a dataclass, such as a `whole_loss`, are replaced in a copy.

    >>> uncompiled(len) is len
    True
    """
    if is_dataclass(function) and not isinstance(function, type):
        own = {field.name: getattr(function, field.name) for field in fields(function)}
        new = {name: uncompiled(each) for name, each in own.items()}
        changed = {name: each for name, each in new.items() if each is not own[name]}
        return replace(function, **changed) if changed else function
    if isinstance(function, nn.Module):
        inner = _compiled_module(function)
        return function if inner is None else inner
    return getattr(function, _ORIGINAL, function)


def _wrapped_module(module: nn.Module) -> nn.Module | None:
    """Return the module inside torch.compile, DataParallel or DistributedDataParallel."""
    if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
        wrapped: nn.Module = module.module
        return wrapped
    return _compiled_module(module)


def _compiled_module(module: nn.Module) -> nn.Module | None:
    children = vars(module).get("_modules")
    inner = children.get("_orig_mod") if isinstance(children, dict) else None  # not of torch.jit
    return inner if isinstance(inner, nn.Module) else None


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the module inside torch.compile, DataParallel and DistributedDataParallel.

    >>> line = nn.Linear(1, 1)
    >>> unwrapped(nn.DataParallel(line)) is line
    True
    """
    while (inner := _wrapped_module(model)) is not None:
        model = inner
    return model


_WRAPPERS = ("module", "_orig_mod")  # attributes that hold the module inside


def rename_wrapped(state: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return a state dict by the names of a model that is wrapped in another way.

    Args:
        state: of the model, maybe inside DataParallel, DistributedDataParallel or torch.compile.
        names: in the state dict of the model, which may be wrapped too.

    Returns:
        The same values; keys that fit no name, or several of which fit one, are kept.

    >>> rename_wrapped({"module.weight": 1, "bias": 2}, ["_orig_mod.weight", "bias"])
    {'_orig_mod.weight': 1, 'bias': 2}
    """
    known = set(names)
    missing = {_plain_name(name): name for name in names if name not in state}
    spare = Counter(_plain_name(key) for key in state if key not in known)
    found = {}
    for key, value in state.items():
        plain = _plain_name(key)
        fits = key not in known and spare[plain] == 1
        found[missing.get(plain, key) if fits else key] = value
    return found


def _plain_name(name: str) -> str:
    """Return a name in a state dict without the parts of wrappers."""
    return ".".join(part for part in str(name).split(".") if part not in _WRAPPERS)
