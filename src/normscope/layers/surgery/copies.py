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
from normscope.problem.isolation import isolated


def copy_module(module: nn.Module, replacements: Mapping[int, Any] | None = None) -> nn.Module:
    """Return a deep copy of a module.

    Tensors with a graph, such as an activation that the forward pass keeps in an attribute, are
    detached in the copy: ``copy.deepcopy`` does not take them.

    Args:
        module: any module; it is not changed.
        replacements: what to put into the copy instead of some objects, by their id.

    Returns:
        The copy.

    Raises:
        StateError: if the module cannot be copied.

    >>> layer = nn.Linear(2, 2)
    >>> layer.cache = 2 * layer.weight
    >>> copy_module(layer).cache.requires_grad
    False
    """
    given = dict(replacements or {})
    try:
        try:
            return copy.deepcopy(module, dict(given))
        except RuntimeError:  # a tensor with a graph
            detached = {id(tensor): tensor.detach().clone() for tensor in _with_graph(module)}
            return copy.deepcopy(module, detached | given)
    except Exception as error:  # what a module holds may raise anything
        reason = str(error).partition("\n")[0].rstrip(".")
        raise StateError(
            f"normscope works on a copy of the model, which copy.deepcopy cannot make ({reason}); "
            f"remove that attribute of {type(module).__name__} or one of its modules first."
        ) from error


def _with_graph(module: nn.Module) -> list[Tensor]:
    values = (leaf for each in module.modules() for leaf in pytree.tree_leaves(vars(each)))
    return [value for value in values if isinstance(value, Tensor) and not value.is_leaf]


def undisturbed(model: nn.Module) -> AbstractContextManager[None]:
    """Return a context in which copies of a model run, and which restores the model itself.

    A copy may reach the original, for instance by a lambda in an attribute.
    """
    if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
        return nullcontext()  # cannot be isolated
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    return isolated(model, tensors=buffers)
