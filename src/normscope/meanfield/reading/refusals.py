"""Models whose forward pass is not what their modules say."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.nn.utils.parametrize import is_parametrized

from normscope.errors import NoClosureError
from normscope.meanfield.graph import MEASURE
from normscope.problem.hooks import has_global_hooks, has_hooks
from normscope.problem.modes import is_batch_norm


def refuse_hooks(model: nn.Module) -> None:
    """Raise if a forward hook may change the inputs or outputs of a module.

    A hook is refused before the forward pass is traced, so that it never gets a symbolic tensor.

    Args:
        model: any module.

    Raises:
        NoClosureError: naming the module.
    """
    if has_global_hooks(backward=False):
        raise NoClosureError(
            "a global forward hook may change what every module returns, which the theory cannot "
            "read",
            f"Remove it. {MEASURE}",
        )
    for name, module in model.named_modules():
        if has_hooks(module, backward=False):
            raise NoClosureError(
                f"{name or 'the model'}: a forward hook may change what {type(module).__name__} "
                "returns, which the theory cannot read",
                f"Remove it. {MEASURE}",
            )


def unreadable(module: nn.Module, model: nn.Module) -> str | None:
    """Return why a layer does not do what its class and weights say.

    Args:
        module: a layer that the forward pass calls.
        model: the model that it is part of.

    Returns:
        The reason, to follow the name of its class; None if there is none.
    """
    if "forward" in vars(module):
        return "whose forward method was replaced"
    if is_parametrized(module) and not _is_fresh_weight_norm(module):
        return "whose weights are parametrized"
    if is_batch_norm(module) and not module.training and _others_train(module, model):
        return "in eval mode inside a model in training mode (call its train() if it is trained so)"
    return None


def _others_train(frozen: nn.Module, model: nn.Module) -> bool:
    """Return whether a layer normalizes by running statistics although the model trains."""
    if getattr(frozen, "running_mean", None) is None:
        return False
    return model.training or any(each.training for each in model.modules() if is_batch_norm(each))


def _is_fresh_weight_norm(module: Any) -> bool:
    """Return whether weights are normalized and keep the length that they had.

    The derivatives by length and direction are then those by the weights, rotated: the top
    eigenvalue is the same.
    """
    (name, parts), *others = module.parametrizations.items()
    kinds = [type(each) for each in parts]
    if others or name != "weight" or kinds != [parametrizations._WeightNorm]:
        return False
    lengths = torch.norm_except_dim(parts.original1, 2, parts[0].dim)
    return torch.allclose(lengths, parts.original0, rtol=1e-5)
