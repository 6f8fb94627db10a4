"""Batch normalization by PyTorch's native kernel, with care for what it loses on a CPU.

The CPU kernel applies ``x * (1/s) + (bias - mean * (1/s))``, two large numbers where the mean is
large against the spread. Batch normalization does not see a shift of its input, so the remedy is
the kernel itself, on the input less the mean that it found; with running statistics it is the
closed form. And where all tensors are of half
precision, so are its statistics; they are in float32 if it is given parameters in float32.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from normscope.layers.batch_norm_closed_form import closed_form_batch_norm
from normscope.layers.standardize import LARGEST_RATIO, along_channels
from normscope.layers.transforms import tracing_active, transform_active

_LARGEST_SQUARE = {dtype: ratio**2 for dtype, ratio in LARGEST_RATIO.items()}
_HALF = (torch.float16, torch.bfloat16)


def fused_batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Tensor:
    """Batch-normalized input by the native kernel, accurate also where the mean is large.

    Args:
        input: (batch, channels, ...).
        running_mean: (channels,), or None.
        running_var: (channels,), or None.
        weight: (channels,), or None for 1.
        bias: (channels,), or None for 0.
        training: normalize by the batch's statistics rather than by the running ones.
        momentum: weight of this batch in the running statistics.
        eps: added to the variance.

    Returns:
        A tensor like the input.
    """
    function = _unwatched if torch.compiler.is_compiling() or tracing_active() else eager_batch_norm
    vectors = running_mean, running_var, weight, bias
    return function(input, *vectors, training, momentum, eps)


def eager_batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Tensor:
    """As `fused_batch_norm`, where nothing is compiled or traced."""
    largest = _LARGEST_SQUARE.get(input.dtype)
    if (
        largest is None
        or not input.is_cpu
        or eps <= 0.0
        or (training and input.numel() <= input.size(1))  # an empty batch, or PyTorch's error
    ):
        vectors = running_mean, running_var, weight, bias
        return _unwatched(input, *vectors, training, momentum, eps)
    if not training:
        vectors = running_mean, running_var, weight, bias
        return _by_running(input, *vectors, eps, largest)
    # What torch.batch_norm calls, for all its results. (torch.native_batch_norm has them too, but
    # does not compare sizes, and reads beyond the end of a vector that is too short.)
    output, mean, inverse_spread, _, _ = torch._batch_norm_impl_index(
        input, weight, bias, running_mean, running_var, True, momentum, eps, False
    )
    ratio = mean * inverse_spread
    # The sum of squares is the cheapest bound on the largest; infinities stay PyTorch's.
    if largest < torch.dot(ratio, ratio).item() < math.inf and ratio.square().max() > largest:
        vectors = running_mean, running_var, weight, bias
        return _centred_first(input, *vectors, momentum, eps, mean)
    return output


def _unwatched(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Tensor:
    """PyTorch's function, as compiled and traced programs keep it, or half precision on a CPU."""
    vectors = running_mean, running_var, weight, bias
    eager = not (torch.compiler.is_compiling() or tracing_active())
    if eager and training and input.is_cpu and input.dtype in _HALF and input.numel() > 0:
        return _half_precision(input, *vectors, momentum, eps)
    return functional.batch_norm(input, *vectors, training, momentum, eps)


def _by_running(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    largest: float,
) -> Tensor:
    """By the kernel, or in closed form where some running mean is large against its spread."""
    mean, variance = running_mean, running_var
    if mean is not None and variance is not None and input.numel() > 0 and not transform_active():
        # Bounds on the largest ratio, the cheapest first; infinities stay PyTorch's.
        total = torch.dot(mean, mean).item()
        if (
            largest * eps < total < math.inf
            and largest * (variance.min().item() + eps) < total
            and (mean.square() > largest * (variance + eps)).any()
        ):
            return closed_form_batch_norm(input, mean, variance, weight, bias, False, 0.0, eps)
    return functional.batch_norm(input, mean, variance, weight, bias, False, 0.0, eps)


def _half_precision(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    momentum: float,
    eps: float,
) -> Tensor:
    """The kernel with every vector in float32, one at least, so that its statistics are too."""
    weight = input.new_ones(input.size(1), dtype=torch.float32) if weight is None else weight
    mean, variance, bias = (
        v if v is None else v.float() for v in (running_mean, running_var, bias)
    )
    output = functional.batch_norm(input, mean, variance, weight.float(), bias, True, momentum, eps)
    for running, moved in ((running_mean, mean), (running_var, variance)):
        if running is not None and moved is not None and running is not moved:
            running.copy_(moved)
    return output


def _centred_first(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    momentum: float,
    eps: float,
    mean: Tensor,
) -> Tensor:
    """The kernel on the values less their rough mean, which its first call has counted."""
    if running_mean is not None and running_var is not None:
        _correct_running(input, mean, running_mean, running_var, momentum, eps)
    centred = input - along_channels(mean, input)
    return torch.batch_norm(centred, weight, bias, None, None, True, 0.0, eps, False)


@torch.no_grad()
def _correct_running(
    input: Tensor,
    mean: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> None:
    """Replace the share of the kernel's rough statistics in the running ones by the right ones."""
    _, rough_variance = _statistics(input, eps)
    missing_mean, variance = _statistics(input - along_channels(mean, input), eps)
    running_mean.add_(missing_mean, alpha=momentum)
    running_var.add_(variance - rough_variance, alpha=momentum)


def _statistics(input: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Mean and unbiased variance as the kernel finds them."""
    mean, variance = input.new_zeros(input.size(1)), input.new_ones(input.size(1))
    torch.batch_norm(input, None, None, mean, variance, True, 1.0, eps, False)
    return mean, variance
