"""Batch normalization in closed form: right under every composition of derivatives."""

from __future__ import annotations

import torch
from torch import Tensor

from normscope.errors import InputError, ShapeError, StateError
from normscope.layers.standardize import Batch, LocalBatch, along_channels, standardize
from normscope.layers.synchronize import ProcessGroup, SynchronizedBatch
from normscope.layers.transforms import writable


def closed_form_batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    momentum: float | Tensor,
    eps: float,
    group: ProcessGroup | None = None,
) -> Tensor:
    """Batch-normalized input by the definition, differentiated by Fact C.1.

    Reference: ioffe2015, Alg. 1; santurkar2018, Fact C.1.

    Args:
        input: (batch, channels, ...); half precision is computed in float32.
        running_mean: (channels,), or None.
        running_var: (channels,), or None.
        weight: (channels,), or None for 1.
        bias: (channels,), or None for 0.
        training: normalize by the batch's statistics rather than by the running ones.
        momentum: weight of this batch in the running statistics.
        eps: added to the variance.
        group: the processes that share the batch's statistics.

    Returns:
        A tensor like the input.
    """
    vectors = {
        "running_mean": running_mean,
        "running_var": running_var,
        "weight": weight,
        "bias": bias,
    }
    _check_eps(eps, training)
    _check_channels(input.size(1), vectors)
    half = input.dtype in (torch.float16, torch.bfloat16)
    values = input.float() if half else input
    if training:
        batch = LocalBatch.of(values) if group is None else SynchronizedBatch.of(values, group)
        _refuse_single_values(batch.count, input)
        output, mean, variance = standardize(values, eps, batch)
        _update_running(running_mean, running_var, mean, variance, momentum, batch)
    else:
        output = _standardized_by_running(values, running_mean, running_var, eps)
    return _scaled_and_shifted(output, weight, bias).to(input.dtype)


def _refuse_single_values(count: int, input: Tensor) -> None:
    if count == 1:
        raise ShapeError(
            f"Expected more than 1 value per channel when training, got input size {input.size()}"
        )


def _check_eps(eps: float, training: bool) -> None:
    if eps <= 0.0 and (training or eps < 0.0):
        needed = "positive during training" if training else "non-negative"
        raise InputError(f"batch_norm eps must be {needed}, but got {eps}")


def _check_channels(channels: int, vectors: dict[str, Tensor | None]) -> None:
    for name, vector in vectors.items():
        if vector is not None and vector.numel() != channels:
            raise StateError(
                f"{name} should contain {channels} elements not {vector.numel()}; make the layer "
                "with as many features as its input has channels."
            )


def _standardized_by_running(
    values: Tensor, running_mean: Tensor | None, running_var: Tensor | None, eps: float
) -> Tensor:
    if running_mean is None or running_var is None:
        raise StateError(
            "running_mean and running_var must be given outside of training; "
            "give both, or normalize by the batch with training=True."
        )
    mean, variance = running_mean.to(values.dtype), running_var.to(values.dtype)
    inverse_spread = torch.rsqrt(variance + eps)
    return (values - along_channels(mean, values)) * along_channels(inverse_spread, values)


def _scaled_and_shifted(values: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    if weight is not None:
        values = values * along_channels(weight.to(values.dtype), values)
    if bias is not None:
        values = values + along_channels(bias.to(values.dtype), values)
    return values


def _update_running(
    running_mean: Tensor | None,
    running_var: Tensor | None,
    mean: Tensor,
    variance: Tensor,
    momentum: float | Tensor,
    batch: Batch,
) -> None:
    """Move the running statistics towards the batch's mean and unbiased variance."""
    if batch.count == 0:  # nothing was seen
        return
    unbiased = variance.detach() * (batch.count / (batch.count - 1))
    for running, seen in ((running_mean, mean.detach()), (running_var, unbiased)):
        if running is not None and writable(running):
            moved = momentum * seen.flatten() + (1 - momentum) * running.detach()
            running.copy_(moved)
