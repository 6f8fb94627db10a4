"""Batch normalization of a tensor, by PyTorch's kernel where that is right, else in closed form.

The native kernel is fast, but it passes mean and 1/s to its derivative formulas as constants. With
PyTorch 2.13 that is silently wrong under nested ``torch.func.jacrev`` and in a gradient through a
forward-mode tangent. The closed form is used there, and for statistics shared by several processes.
The third derivative by repeated backward is wrong too, which no forward pass can foresee; pass
``fused=False`` for that.

The kernel also loses accuracy on a CPU. It computes ``x * (1/s) + (bias - mean * (1/s))``, two
large numbers where the mean is large relative to the spread. Batch normalization is invariant to a
shift of its input, so the remedy is to call the kernel on the input minus the mean that it found;
with running statistics it is the closed form. With all tensors in half precision its statistics are
in half precision too, unless it gets float32 parameters.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from normscope.errors import InputError, ShapeError, StateError
from normscope.layers.standardize import (
    LARGEST_RATIO,
    Batch,
    GroupChoice,
    LocalBatch,
    ProcessGroup,
    SynchronizedBatch,
    along_channels,
    resolved_group,
    standardize,
)
from normscope.layers.transforms import (
    forward_mode_active,
    tracing_active,
    transform_active,
    writable,
)

Vectors = tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]
"""Running mean, running variance, weight and bias, each (channels,) or None."""

_LARGEST_SQUARE = {dtype: ratio**2 for dtype, ratio in LARGEST_RATIO.items()}
_HALF = (torch.float16, torch.bfloat16)


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float | Tensor = 0.1,
    eps: float = 1e-5,
    *,
    process_group: GroupChoice = None,
    fused: bool | None = None,
) -> Tensor:
    r"""Return the batch-normalized input; update the running statistics in place in training.

    .. math:: y = \gamma \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} + \beta

    Takes the arguments of :func:`torch.nn.functional.batch_norm`, and two more. Inside a
    ``torch.func`` transform, running statistics are updated only if the innermost transform
    received them as arguments: it may not write to captured tensors.

    Reference: ioffe2015, Alg. 1. Notation: gamma = weight, beta = bias.

    Args:
        input: (batch, channels, ...).
        running_mean: (channels,), or None.
        running_var: (channels,), or None.
        weight: (channels,), or None for 1.
        bias: (channels,), or None for 0.
        training: normalize by the statistics of the batch rather than by the running ones.
        momentum: weight of this batch in the running statistics.
        eps: added to the variance.
        process_group: processes that share the statistics of the batch: a group, "world" or None.
        fused: True for PyTorch's kernel, False for the closed form, None for the kernel
            wherever it is right.

    Returns:
        A tensor like the input.

    >>> import torch
    >>> batch_norm(torch.tensor([[0.0], [2.0]]), training=True, eps=3.0, fused=False).tolist()
    [[-0.5], [0.5]]
    """
    vectors = running_mean, running_var, weight, bias
    group = resolved_group(process_group) if training and process_group is not None else None
    if fused is None:
        fused = not (transform_active() or forward_mode_active())
    if group is not None or not fused or isinstance(momentum, Tensor):
        return closed_form_batch_norm(input, vectors, training, momentum, eps, group)
    if torch.compiler.is_compiling() or tracing_active():
        return functional.batch_norm(input, *vectors, training, momentum, eps)
    return eager_batch_norm(input, vectors, training, momentum, eps)


def closed_form_batch_norm(
    input: Tensor,
    vectors: Vectors,
    training: bool,
    momentum: float | Tensor,
    eps: float,
    group: ProcessGroup | None = None,
) -> Tensor:
    """Batch-normalize by the definition, correct under every composition of derivatives.

    Reference: ioffe2015, Alg. 1; santurkar2018, Fact C.1.

    Args:
        input: (batch, channels, ...); half precision is computed in float32.
        vectors: running mean and variance, weight and bias.
        training: normalize by the statistics of the batch rather than by the running ones.
        momentum: weight of this batch in the running statistics.
        eps: added to the variance.
        group: the processes that share the statistics of the batch.

    Returns:
        A tensor like the input.
    """
    running_mean, running_var, weight, bias = vectors
    _check_arguments(input.size(1), vectors, training, eps)
    values = input.float() if input.dtype in _HALF else input
    if training:
        batch = LocalBatch.of(values) if group is None else SynchronizedBatch.of(values, group)
        if batch.count == 1:
            raise ShapeError(
                "Expected more than 1 value per channel when training, "
                f"got input size {input.size()}"
            )
        output, mean, variance = standardize(values, eps, batch)
        _update_running((running_mean, running_var), (mean, variance), momentum, batch)
    else:
        output = _standardize_by_running(values, running_mean, running_var, eps)
    if weight is not None:
        output = output * along_channels(weight.to(output.dtype), output)
    if bias is not None:
        output = output + along_channels(bias.to(output.dtype), output)
    return output.to(input.dtype)


def _check_arguments(channels: int, vectors: Vectors, training: bool, eps: float) -> None:
    if eps <= 0.0 and (training or eps < 0.0):
        needed = "positive during training" if training else "non-negative"
        raise InputError(f"batch_norm eps must be {needed}, but got {eps}")
    names = ("running_mean", "running_var", "weight", "bias")
    for name, vector in zip(names, vectors, strict=True):
        if vector is not None and vector.numel() != channels:
            raise StateError(
                f"{name} should contain {channels} elements not {vector.numel()}; make the layer "
                "with as many features as its input has channels."
            )


def _standardize_by_running(
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


def _update_running(
    running: tuple[Tensor | None, Tensor | None],
    statistics: tuple[Tensor, Tensor],
    momentum: float | Tensor,
    batch: Batch,
) -> None:
    """Move the running statistics towards the mean and unbiased variance of the batch."""
    if batch.count == 0:
        return
    mean, variance = (each.detach() for each in statistics)
    unbiased = variance * (batch.count / (batch.count - 1))
    for buffer, value in zip(running, (mean, unbiased), strict=True):
        if buffer is not None and writable(buffer):
            buffer.copy_(momentum * value.flatten() + (1 - momentum) * buffer.detach())


def eager_batch_norm(
    input: Tensor, vectors: Vectors, training: bool, momentum: float, eps: float
) -> Tensor:
    """Batch-normalize by the native kernel, accurate also where the mean is large.

    Only for code that is not being compiled or traced.
    """
    largest = _LARGEST_SQUARE.get(input.dtype)
    if (
        largest is None
        or not input.is_cpu
        or eps <= 0.0
        or (training and input.numel() <= input.size(1))  # an empty batch, or PyTorch's error
    ):
        if training and input.is_cpu and input.dtype in _HALF and input.numel() > 0:
            return _half_precision(input, vectors, momentum, eps)
        return functional.batch_norm(input, *vectors, training, momentum, eps)
    if not training:
        return _eager_by_running(input, vectors, eps, largest)
    running_mean, running_var, weight, bias = vectors
    # This is what torch.batch_norm calls; it returns the statistics too. (torch.native_batch_norm
    # does as well, but does not check sizes and reads beyond the end of a vector.)
    output, mean, inverse_spread, _, _ = torch._batch_norm_impl_index(
        input, weight, bias, running_mean, running_var, True, momentum, eps, False
    )
    ratio = mean * inverse_spread
    # The sum of squares is the cheapest bound on the largest; infinities are left to PyTorch.
    if largest < torch.dot(ratio, ratio).item() < math.inf and ratio.square().max() > largest:
        return _centre_first(input, vectors, momentum, eps, mean)
    return output


def _eager_by_running(input: Tensor, vectors: Vectors, eps: float, largest: float) -> Tensor:
    """Normalize by the kernel, or in closed form if a running mean is far above its spread."""
    mean, variance, _, _ = vectors
    if mean is not None and variance is not None and input.numel() > 0 and not transform_active():
        # Bounds on the largest ratio, the cheapest first; infinities are left to PyTorch.
        total = torch.dot(mean, mean).item()
        if (
            largest * eps < total < math.inf
            and largest * (variance.min().item() + eps) < total
            and (mean.square() > largest * (variance + eps)).any()
        ):
            return closed_form_batch_norm(input, vectors, False, 0.0, eps)
    return functional.batch_norm(input, *vectors, False, 0.0, eps)


def _half_precision(input: Tensor, vectors: Vectors, momentum: float, eps: float) -> Tensor:
    """Run the kernel with at least one vector, in float32, so that its statistics are float32."""
    running_mean, running_var, weight, bias = vectors
    weight = input.new_ones(input.size(1), dtype=torch.float32) if weight is None else weight
    mean, variance, bias = (
        v if v is None else v.float() for v in (running_mean, running_var, bias)
    )
    output = functional.batch_norm(input, mean, variance, weight.float(), bias, True, momentum, eps)
    for running, moved in ((running_mean, mean), (running_var, variance)):
        if running is not None and moved is not None and running is not moved:
            running.copy_(moved)
    return output


def _centre_first(
    input: Tensor, vectors: Vectors, momentum: float, eps: float, mean: Tensor
) -> Tensor:
    """Run the kernel on the input minus the approximate mean that its first call found."""
    running_mean, running_var, weight, bias = vectors
    centred = input - along_channels(mean, input)
    if running_mean is not None and running_var is not None:
        # The first call has put its inaccurate statistics into the running ones: replace them.
        with torch.no_grad():
            _, inaccurate_variance = _kernel_statistics(input, eps)
            missing_mean, variance = _kernel_statistics(centred, eps)
            running_mean.add_(missing_mean, alpha=momentum)
            running_var.add_(variance - inaccurate_variance, alpha=momentum)
    return torch.batch_norm(centred, weight, bias, None, None, True, 0.0, eps, False)


def _kernel_statistics(input: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return the mean and unbiased variance as the kernel computes them."""
    mean, variance = input.new_zeros(input.size(1)), input.new_ones(input.size(1))
    torch.batch_norm(input, None, None, mean, variance, True, 1.0, eps, False)
    return mean, variance
