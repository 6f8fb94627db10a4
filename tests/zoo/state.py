"""The state of a model and of the random numbers, to compare before and after a call."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_state_dict_hooks",
)


def fill_gradients(model: nn.Module, seed: int = 0) -> None:
    """Give every trained parameter a random gradient, so that a change of it shows."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if parameter.requires_grad:
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.grad = noise.to(parameter.dtype)


def snapshot(model: nn.Module) -> dict[str, Any]:
    """Return copies of all state of a model, and of the random-number generators."""
    state: dict[str, Any] = {
        "torch RNG": torch.get_rng_state(),
        "numpy RNG": np.random.get_state()[1].copy(),  # noqa: NPY002
        "python RNG": random.getstate(),
        "gradient mode": torch.is_grad_enabled(),
    }
    for name, parameter in model.named_parameters():
        state[f"parameter {name}"] = parameter.detach().clone()
        state[f"identity of {name}"] = id(parameter)
        state[f"requires_grad of {name}"] = parameter.requires_grad
        gradient = parameter.grad
        state[f"gradient of {name}"] = None if gradient is None else gradient.clone()
    for name, buffer in model.named_buffers():
        state[f"buffer {name}"] = buffer.clone()
    for name, module in model.named_modules():
        state[f"flag of {name}"] = module.training
        state[f"class of {name}"] = type(module)
        state[f"attributes of {name}"] = sorted(vars(module))
        state[f"hooks of {name}"] = [len(getattr(module, hooks, ())) for hooks in _HOOKS]
    return state


def changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return the names of what differs, bit for bit."""
    names = sorted(before.keys() | after.keys())
    missing = object()
    return [n for n in names if not _same(before.get(n, missing), after.get(n, missing))]


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and _equal(one, other)
    if isinstance(one, np.ndarray):
        return bool(np.array_equal(one, other))
    return type(one) is type(other) and bool(one == other)


def _equal(one: Tensor, other: Tensor) -> bool:
    return bool(((one == other) | ((one != one) & (other != other))).all())
