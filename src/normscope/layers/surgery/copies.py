"""Copies of models, also of those that hold tensors with a graph."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from normscope.errors import StateError
from normscope.layers.surgery.functions import rebind_functions
from normscope.problem.isolation import isolated


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
