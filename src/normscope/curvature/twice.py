"""Layers whose second derivative is slow in PyTorch, replaced while a model is measured."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from normscope.curvature.batch_norm_graph import graph_batch_norm, serves
from normscope.curvature.constant_norm_graph import constant_norm
from normscope.curvature.convolution_graph import graph_convolution
from normscope.layers.batch_norm import _ClosedFormBatchNorm
from normscope.layers.standardize import LARGEST_RATIO
from normscope.layers.transforms import forward_mode_active, transform_active

__all__ = ["constant_norm_if_it_serves", "differentiate_twice_fast"]

_CONVOLUTIONS: dict[Callable[..., Tensor], int] = {
    nn.Conv1d._conv_forward: 1,
    nn.Conv2d._conv_forward: 2,
    nn.Conv3d._conv_forward: 3,
}
_BATCH_NORM_FORWARDS = (_BatchNorm.forward, _ClosedFormBatchNorm.forward)


def differentiate_twice_fast(model: nn.Module, norms: bool) -> None:
    """Give convolutions and batch normalizations fast derivatives of their gradients.

    Use it inside `isolated`, which restores the modules. Modules are replaced, not
    functions, so that a checkpointed part is recomputed the same way. Those that compute in their
    own way, and calls that are no module's, stay PyTorch's, and slower.

    Args:
        model: whose modules are changed.
        norms: also the batch normalizations, by the statistics of the batch or by running ones.
    """
    for module in model.modules():
        if isinstance(module, _ConvNd):
            dimensions = _CONVOLUTIONS.get(type(module)._conv_forward)
            if dimensions is not None and module.padding_mode == "zeros":
                _replace(module, "_conv_forward", functools.partial(_convolve, dimensions))
        elif norms and type(module).forward in _BATCH_NORM_FORWARDS and _is_local(module):
            _replace(module, "forward", _normalize)


def _replace(module: nn.Module, name: str, function: Callable[..., Tensor]) -> None:
    """Let an instance's function stand before the class's, unless it has another already."""
    if name not in module.__dict__:
        module.__dict__[name] = functools.partial(function, module, getattr(module, name))


def _is_local(module: nn.Module) -> bool:
    """Whether the layer leaves the choice of kernel open and talks to no other process."""
    if isinstance(module, nn.SyncBatchNorm):
        return False
    if not isinstance(module, _ClosedFormBatchNorm):
        return True
    return module.process_group is None and module.fused is None


def _convolve(
    dimensions: int,
    module: Any,
    own: Callable[..., Tensor],
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
) -> Tensor:
    if _is_special(input):
        return own(input, weight, bias)
    geometry = module.stride, module.padding, module.dilation, module.groups
    output = graph_convolution(dimensions, input, weight, bias, *geometry)
    return own(input, weight, bias) if output is None else output


def _normalize(module: Any, own: Callable[..., Tensor], input: Tensor) -> Tensor:
    module._check_input_dim(input)
    # a model may have put the layer into the other mode on its way
    if not module.training:
        return _normalize_by_constants(module, own, input)
    if _is_special(input) or not serves(input):
        return own(input)
    output, mean, inverse = graph_batch_norm(input, module.weight, module.bias, module.eps)
    if (mean * inverse).abs().max() > LARGEST_RATIO[input.dtype]:
        return own(input)  # our layers have a remedy for lost digits
    if module.track_running_stats and module.num_batches_tracked is not None:
        _advance(module, mean, inverse, input.numel() // input.shape[1])
    return output


def _normalize_by_constants(module: Any, own: Callable[..., Tensor], input: Tensor) -> Tensor:
    mean, variance = module.running_mean, module.running_var
    if mean is None or variance is None:
        return own(input)  # by the statistics of the batch, after all
    affine = module.weight, module.bias
    output = constant_norm_if_it_serves(input, *affine, mean, variance, module.eps)
    return own(input) if output is None else output


def constant_norm_if_it_serves(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    variance: Tensor,
    eps: float,
) -> Tensor | None:
    """Normalize by constants with fast derivatives.

    Args:
        input: (batch, channels, ...).
        weight: (channels,), or None for 1.
        bias: (channels,), or None for 0.
        mean: (channels,), a constant, as is the next.
        variance: of each channel.
        eps: added to it.

    Returns:
        Like ``input``; None if the function does not take it, or would lose digits on it.
    """
    if not _constant_norm_serves(input, mean, variance, eps):
        return None
    return constant_norm(input, weight, bias, mean, variance, eps)


def _constant_norm_serves(input: Tensor, mean: Tensor, variance: Tensor, eps: float) -> bool:
    """Whether the function takes the input, and loses no digits on it."""
    if _is_special(input) or not serves(input) or not mean.dtype == variance.dtype == input.dtype:
        return False
    if mean.requires_grad or variance.requires_grad:
        return False  # they are no constants
    ratio = mean.abs() * torch.rsqrt(variance + eps)
    return bool(ratio.max() <= LARGEST_RATIO[input.dtype])


def _is_special(input: Tensor) -> bool:
    """Whether someone looks at the operations one by one, or changes their precision."""
    return (
        torch.compiler.is_compiling()
        or transform_active()
        or forward_mode_active()
        or torch.is_autocast_enabled(input.device.type)
    )


@torch.no_grad()
def _advance(module: Any, mean: Tensor, inverse: Tensor, count: int) -> None:
    """Move the running statistics, which a model may read on its way, as the layer does."""
    module.num_batches_tracked.add_(1)
    share = module.momentum
    if share is None:
        share = 1.0 / float(module.num_batches_tracked)
    variance = (inverse.pow(-2) - module.eps) * (count / (count - 1))
    for running, seen in ((module.running_mean, mean), (module.running_var, variance)):
        running.lerp_(seen.to(running.dtype), share)
