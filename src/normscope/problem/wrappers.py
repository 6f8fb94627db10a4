"""Models that torch.jit, torch.compile or FSDP has wrapped."""

from __future__ import annotations

from torch import nn
from torch.jit import ScriptModule

from normscope.errors import ArgumentTypeError


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


def refuse_sharded(model: nn.Module) -> None:
    """Raise if parameters are sharded by FSDP, or are DTensors: they cannot be replaced.

    Args:
        model: the model.

    Raises:
        ArgumentTypeError: if it is so.
    """
    kinds = {type(each) for each in (*model.modules(), *model.parameters())}
    if any(_is_distributed(kind) for kind in kinds):
        raise ArgumentTypeError(
            "the parameters of a model sharded by FSDP or as DTensors cannot be replaced for a "
            "measurement; load its full state into a plain copy of the model, and pass that."
        )


def _is_distributed(kind: type) -> bool:
    parts = ("torch.distributed.fsdp", "torch.distributed.tensor")
    return any(base.__module__.startswith(parts) for base in kind.__mro__)


def run_uncompiled(model: nn.Module) -> None:
    """Make every module run uncompiled, until the isolation context around restores them.

    What torch.compile makes has no second derivative, and is the training's.
    """
    for module in model.modules():
        own = module.__dict__
        if own.get("_compiled_call_impl") is not None:  # by model.compile()
            own["_compiled_call_impl"] = None
        if isinstance(own.get("_modules", {}).get("_orig_mod"), nn.Module):
            own["forward"] = module._orig_mod  # by torch.compile(model)
