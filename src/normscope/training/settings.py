"""The settings that two halves of one training must share, as text that can be compared."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sized
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from normscope.problem.batch import Batch, tensors_of
from normscope.problem.loss import Loss, WholeLoss
from normscope.problem.problem import Problem

__all__ = ["differences", "settings_of"]

_SAMPLED_VALUES = 1_000_000
_NO_OPTIONS = ("foreach", "fused", "capturable", "differentiable", "initial_lr")
_WORDS = {"lr": "learning rate", "params": "number of parameters"}
_OF_OPTIMIZER = "optimizer's "  # the beginning of the name of an optimizer's option


def settings_of(problem: Problem, optimizer: Optimizer, **choices: object) -> dict[str, str]:
    """The settings of a training, by name.

    Args:
        problem: model, loss and data; the model counts by its printed form and its shapes, not by
            its weights; a loss by its name, or as a module by its options and tensors.
        optimizer: counts by its class and the options its groups have now, the learning rate as
            it was before any scheduler.
        **choices: the other arguments of the run.

    Returns:
        A text for each setting. Runs with unequal texts differ; equal texts are no proof: two
        lambdas look alike, as do modules that differ in what they do not print.

    >>> from normscope.training import sgd
    >>> line = nn.Linear(1, 1)
    >>> problem = Problem(line, "squared_error", (torch.ones(2, 1), torch.ones(2, 1)))
    >>> settings_of(problem, sgd(0.1)(line.parameters()), batch_size=2)["batch_size"]
    '2'
    """
    return {
        "model": _model_text(problem.model),
        "loss": _loss_text(problem.loss),
        "data": _data_text(problem),
        **_optimizer_settings(optimizer),
    } | {name: repr(choice) for name, choice in choices.items()}


def differences(saved: Mapping[str, str], present: Mapping[str, str]) -> list[str]:
    """What differs between the settings of a run on disk and of the present one.

    Args:
        saved: there.
        present: here.

    Returns:
        A few words for each difference. Options of optimizers are compared only where these are
        of one class: else all of them differ.

    >>> differences({"seed": "0", "batch_size": "8"}, {"seed": "1", "batch_size": "8"})
    ['seed 0 there and 1 here']
    """
    same_class = saved.get("optimizer") == present.get("optimizer")
    return [
        f"{name} {saved.get(name, 'unset')} there and {present.get(name, 'unset')} here"
        for name in sorted(saved.keys() | present.keys())
        if saved.get(name) != present.get(name)
        and (same_class or not name.startswith(_OF_OPTIMIZER))
    ]


def _model_text(model: nn.Module) -> str:
    state = model.state_dict().items()
    shapes = [f"{name} {t.dtype} {tuple(t.shape)}" for name, t in state if isinstance(t, Tensor)]
    return f"{type(model).__qualname__} {_checksum(f'{shapes} {_printed(model)}'.encode())}"


def _loss_text(loss: Loss | WholeLoss | str) -> str:
    if isinstance(loss, WholeLoss):
        return f"whole_loss {_loss_text(loss.function)}"
    if not isinstance(loss, nn.Module):
        return getattr(loss, "__qualname__", None) or _printed(loss)
    options = [  # torch's losses do not print theirs
        f"{name}={value}"
        for module in loss.modules()
        for name, value in vars(module).items()
        if isinstance(value, str | int | float) and not name.startswith("_") and name != "training"
    ]
    tensors = _checksum(_batch_text(loss.state_dict()).encode())
    return f"{_printed(loss)} {' '.join(options)} {tensors}"


def _printed(value: object) -> str:
    """Its ``repr`` in one line, without addresses, which differ from run to run."""
    return " ".join(re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value)).split())


def _optimizer_settings(optimizer: Optimizer) -> dict[str, str]:
    """Its class, and every option of every group by a name of its own."""
    groups = optimizer.param_groups
    several = len(groups) > 1
    options = {
        f"{_OF_OPTIMIZER}{_WORDS.get(name, name)}{f' in group {number}' if several else ''}": value
        for number, group in enumerate(groups)
        for name, value in _options(group).items()
    }
    kind = type(optimizer).__qualname__ + (f" of {len(groups)} groups" if several else "")
    return {"optimizer": kind} | {name: repr(value) for name, value in options.items()}


def _options(group: dict[str, Any]) -> dict[str, Any]:
    initial = group | {"params": len(group["params"]), "lr": group.get("initial_lr", group["lr"])}
    return {
        # 0 and 0.0 are the same
        name: float(value) if isinstance(value, Real | np.generic | Tensor) else value
        for name, value in sorted(initial.items())
        if name not in _NO_OPTIONS and name != "param_names"
    }


def _data_text(problem: Problem) -> str:
    if problem.is_one_batch:
        return _batch_text(problem.data)
    if isinstance(problem.data, list):
        texts = [_batch_text(batch) for batch in problem.data]
        return f"{len(texts)} batches {_checksum(repr(texts).encode())}"
    length = len(problem.data) if isinstance(problem.data, Sized) else "unknown number of"
    return f"{type(problem.data).__qualname__} of {length} batches"


def _batch_text(batch: Batch) -> str:
    return " ".join(f"{tuple(t.shape)} {_values_checksum(t)}" for t in tensors_of(batch))


def _values_checksum(tensor: Tensor) -> str:
    """Checksum over evenly spaced values: enough to tell data sets apart, and quick on any."""
    stride = max(1, tensor.numel() // _SAMPLED_VALUES)
    sampled = tensor.detach().reshape(-1)[::stride].cpu().contiguous()
    return _checksum(sampled.view(torch.uint8).numpy().tobytes())


def _checksum(content: bytes) -> str:
    return f"{zlib.crc32(content):08x}"
