"""The settings that two halves of one training must share, as text that can be compared."""

from __future__ import annotations

import zlib
from collections.abc import Sized

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from normscope.curvature.batch import Batch, tensors_of
from normscope.curvature.problem import Problem

__all__ = ["settings_of"]

_SAMPLED_VALUES = 1_000_000
_WAYS_TO_COMPUTE = ("foreach", "fused", "capturable", "differentiable")


def settings_of(problem: Problem, optimizer: Optimizer, **choices: object) -> dict[str, str]:
    """The settings of a training, by name.

    Args:
        problem: model, loss and data; the model counts by its shapes, not by its weights.
        optimizer: counts by its class and its initial options.
        **choices: the other arguments of the run.

    Returns:
        A text for each setting; two runs with equal texts take the same steps from the same state.

    >>> from normscope.training import sgd
    >>> line = nn.Linear(1, 1)
    >>> problem = Problem(line, "squared_error", (torch.ones(2, 1), torch.ones(2, 1)))
    >>> settings_of(problem, sgd(0.1)(line.parameters()), batch_size=2)["batch_size"]
    '2'
    """
    return {
        "model": _model_text(problem.model),
        "loss": getattr(problem.loss, "__qualname__", type(problem.loss).__qualname__),
        "data": _data_text(problem),
        "optimizer": _optimizer_text(optimizer),
    } | {name: repr(choice) for name, choice in choices.items()}


def _model_text(model: nn.Module) -> str:
    state = model.state_dict().items()
    shapes = [f"{name} {t.dtype} {tuple(t.shape)}" for name, t in state if isinstance(t, Tensor)]
    return f"{type(model).__qualname__} {_checksum(repr(shapes).encode())}"


def _optimizer_text(optimizer: Optimizer) -> str:
    options = {
        name: float(value) if isinstance(value, int | Tensor) else value  # 0 and 0.0 are the same
        for name, value in sorted(optimizer.defaults.items())
        if name not in _WAYS_TO_COMPUTE
    }
    return f"{type(optimizer).__qualname__} {options}"


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
