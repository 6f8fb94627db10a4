"""Replace layers whose second derivative is slow or wrong in PyTorch during a measurement."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils.parametrizations import _WeightNorm
from torch.nn.utils.weight_norm import WeightNorm

from normscope.curvature.autograd.batch_norm import graph_batch_norm, is_supported
from normscope.curvature.autograd.constant_norm import constant_norm
from normscope.curvature.autograd.convolution import graph_convolution
from normscope.layers.batch_norm import _ClosedFormBatchNorm
from normscope.layers.standardize import LARGEST_RATIO
from normscope.layers.transforms import forward_mode_active, transform_active

_CONVOLUTIONS: dict[Callable[..., Tensor], int] = {
    nn.Conv1d._conv_forward: 1,
    nn.Conv2d._conv_forward: 2,
    nn.Conv3d._conv_forward: 3,
}
_BATCH_NORM_FORWARDS = (_BatchNorm.forward, _ClosedFormBatchNorm.forward)


def use_fast_layers(model: nn.Module, norms: bool) -> None:
    """Replace the forward of convolutions and batch norm layers by ones fast to differentiate.

    Weight normalization is written out too: the second derivative of PyTorch's function is wrong.

    Call it inside `isolated`, which restores the modules. Modules are replaced, not
    functions, so that activation checkpointing recomputes the same. Layers with a custom forward,
    and calls of ``torch.nn.functional``, are not replaced and stay slower.

    Args:
        model: whose modules are changed.
        norms: also replace batch norm layers.
    """
    for module in model.modules():
        if isinstance(module, _ConvNd):
            dimensions = _CONVOLUTIONS.get(type(module)._conv_forward)
            if dimensions is not None and module.padding_mode == "zeros":
                _replace(module, "_conv_forward", functools.partial(_convolve, dimensions))
        elif norms and type(module).forward in _BATCH_NORM_FORWARDS and _is_local(module):
            _replace(module, "forward", _normalize)
        elif type(module).forward is _WeightNorm.forward:
            _replace(module, "forward", _weight)
        hooks = module._forward_pre_hooks
        for key, hook in hooks.items():
            if type(hook) is WeightNorm:
                hooks[key] = _WrittenOut(hook.name, hook.dim)


def fast_constant_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    variance: Tensor,
    eps: float,
) -> Tensor | None:
    """Normalize by constant statistics, with a gradient that is cheap to differentiate.

    Args:
        input: (batch, channels, ...).
        weight: (channels,), or None for 1.
        bias: (channels,), or None for 0.
        mean: (channels,), a constant, as is the next.
        variance: of each channel.
        eps: added to it.

    Returns:
        Like ``input``; None if the fast function does not take it, or would lose digits on it.
    """
    if (
        _is_special(input)
        or not is_supported(input)
        or not mean.dtype == variance.dtype == input.dtype
    ):
        return None
    if mean.requires_grad or variance.requires_grad:
        return None  # not constants
    ratio = mean.abs() * torch.rsqrt(variance + eps)
    if not bool(ratio.max() <= LARGEST_RATIO[input.dtype]):
        return None
    return constant_norm(input, weight, bias, mean, variance, eps)


def _replace(module: nn.Module, name: str, function: Callable[..., Tensor]) -> None:
    """Set an instance attribute that shadows the class's method, unless there is one already."""
    if name not in module.__dict__:
        module.__dict__[name] = functools.partial(function, module, getattr(module, name))


def _is_local(module: nn.Module) -> bool:
    """Return whether the layer uses the default kernel and no other process."""
    if isinstance(module, nn.SyncBatchNorm):
        return False
    if not isinstance(module, _ClosedFormBatchNorm):
        return True
    return module.process_group is None and module.fused is None


def _weight(module: Any, original: Callable[..., Tensor], length: Tensor, v: Tensor) -> Tensor:
    return _weight_norm(v, length, module.dim)


def _weight_norm(v: Tensor, length: Tensor, dim: int) -> Tensor:
    """Return g v / |v| as ``torch._weight_norm`` does, of operations with right derivatives."""
    return v * (length / torch.norm_except_dim(v, 2, dim))


class _WrittenOut(WeightNorm):
    """The hook of ``torch.nn.utils.weight_norm`` without PyTorch's fused function."""

    def compute_weight(self, module: nn.Module) -> Any:
        """Return the weight of the module."""
        v, length = getattr(module, self.name + "_v"), getattr(module, self.name + "_g")
        return _weight_norm(v, length, self.dim)


def _convolve(
    dimensions: int,
    module: Any,
    original: Callable[..., Tensor],
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
) -> Tensor:
    output = None
    if not _is_special(input):
        geometry = module.stride, module.padding, module.dilation, module.groups
        output = graph_convolution(dimensions, input, weight, bias, *geometry)
    return original(input, weight, bias) if output is None else output


def _normalize(module: Any, original: Callable[..., Tensor], input: Tensor) -> Tensor:
    module._check_input_dim(input)
    # checked at each call: a forward pass may switch the layer's mode
    if not module.training:
        return _normalize_by_running_statistics(module, original, input)
    if _is_special(input) or not is_supported(input):
        return original(input)
    output, mean, inverse = graph_batch_norm(input, module.weight, module.bias, module.eps)
    if (mean * inverse).abs().max() > LARGEST_RATIO[input.dtype]:
        return original(input)  # which recovers lost digits
    if module.track_running_stats and module.num_batches_tracked is not None:
        _update_running_statistics(module, mean, inverse, input.numel() // input.shape[1])
    return output


def _normalize_by_running_statistics(
    module: Any, original: Callable[..., Tensor], input: Tensor
) -> Tensor:
    mean, variance = module.running_mean, module.running_var
    if mean is None or variance is None:
        return original(input)  # which then uses batch statistics
    output = fast_constant_norm(input, module.weight, module.bias, mean, variance, module.eps)
    return original(input) if output is None else output


def _is_special(input: Tensor) -> bool:
    """Return whether a compiler, transform or autocast is active."""
    return (
        torch.compiler.is_compiling()
        or transform_active()
        or forward_mode_active()
        or torch.is_autocast_enabled(input.device.type)
    )


@torch.no_grad()
def _update_running_statistics(module: Any, mean: Tensor, inverse: Tensor, count: int) -> None:
    """Update the running statistics as the layer does; a model may read them while it runs."""
    module.num_batches_tracked.add_(1)
    share = module.momentum
    if share is None:
        share = 1.0 / float(module.num_batches_tracked)
    variance = (inverse.pow(-2) - module.eps) * (count / (count - 1))
    for running, current in ((module.running_mean, mean), (module.running_var, variance)):
        running.lerp_(current.to(running.dtype), share)
