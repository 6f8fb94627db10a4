"""The same mathematics as lp_formulas, arranged for speed: no graph and no large temporaries.

Most of the time of plain tensor operations goes into fresh memory for their results. Here each
pass allocates only the tensor it returns and works in that tensor's memory until then. A batch
that fits the processor's cache costs more in calls than in arithmetic; compiled kernels serve
there (see :mod:`normscope.layers.compiled.binding`).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from normscope.layers.compiled.binding import LARGEST_UNCENTRED_RATIO, compiled_gradient
from normscope.layers.standardize import LARGEST_RATIO, along_channels, channel_axes


def _dense(x: Tensor) -> Tensor:
    """The tensor itself when it fills its memory in a known format, else a contiguous copy."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim())
    if x.is_contiguous() or (last is not None and x.is_contiguous(memory_format=last)):
        return x
    return x.contiguous()


def _like(gradient: Tensor, x: Tensor) -> Tensor:
    """The gradient in the memory layout of x."""
    return gradient if gradient.stride() == x.stride() else torch.empty_like(x).copy_(gradient)


def _average(x: Tensor) -> Tensor:
    # Faster than mean, which divides by a whole number and converts it first.
    return x.sum(channel_axes(x.dim())).mul_(x.shape[1] / x.numel())


def _largest(x: Tensor, mean: Tensor | None) -> Tensor:
    """Largest size of each channel's values, about the mean if one is given.

    Rounding keeps order, so this is bit for bit the maximum over the rounded differences.
    """
    high, low = x.amax(channel_axes(x.dim())), x.amin(channel_axes(x.dim()))
    return torch.maximum(high, -low) if mean is None else torch.maximum(high - mean, mean - low)


def fused_output(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, order: float, centred: bool, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Output, mean, scale and (for p = inf) largest size of each channel's values."""
    x = _dense(x)
    output = torch.empty_like(x)
    mean = _average(x)
    size, largest = _scale(x, mean if centred else None, order, eps, scratch=output)
    factor = size.reciprocal() if weight is None else weight / size
    if centred:
        # The scale may be far below the mean: subtract before anything is rounded.
        torch.sub(x, along_channels(mean, x), out=output).mul_(along_channels(factor, x))
        return output if bias is None else output.add_(along_channels(bias, x)), mean, size, largest
    # |mean| <= scale, so the products round like numbers of size one. Where the output's spread is
    # far below that, the caller sees to it (see spread_is_lost).
    offset = -mean * factor if bias is None else torch.addcmul(bias, mean, factor, value=-1)
    torch.addcmul(along_channels(offset, x), x, along_channels(factor, x), out=output)
    return output, mean, size, largest


def spread_is_lost(x: Tensor, mean: Tensor, size: Tensor, centred: bool) -> bool:
    """Whether rounding cost the output more than a small share of its spread in some channel.

    It did where the mean is large against the deviations. The scale is their size when centred;
    else it only tells, where it is that of the mean, that it is worth looking at the values: at a
    few of them first, since a spread among these is one among all.
    """
    largest = LARGEST_RATIO[x.dtype]
    ratio, limit = mean / size, largest if centred else LARGEST_UNCENTRED_RATIO
    # The sum of squares is the cheapest bound on the largest.
    if not torch.dot(ratio, ratio).item() > limit**2 or not ratio.abs().max().item() > limit:
        return False
    if centred:
        return True
    x, bound = x.detach(), mean.abs() / largest
    few = x[: 1 + 32 * x.shape[0] * x.shape[1] // x.numel()]
    return _range_is_below(few, bound) and _range_is_below(x, bound)


def _range_is_below(x: Tensor, bound: Tensor) -> bool:
    dims = channel_axes(x.dim())
    return (x.amax(dims) - x.amin(dims) - bound).min().item() < 0


def _scale(
    x: Tensor, mean: Tensor | None, order: float, eps: float, scratch: Tensor
) -> tuple[Tensor, Tensor | None]:
    """The scale of :func:`normscope.layers.lp_formulas.scale`, and the largest size for p = inf."""
    if order == math.inf:
        largest = _largest(x, mean)
        return largest + eps, largest
    power = _average_power(x, mean, order, scratch)
    if order == 1:
        return power.add_(eps), None
    if _trustworthy(power, eps):
        return power.add_(eps).pow_(1 / order), None
    floor = eps ** (1 / order)
    largest = _largest(x, mean).clamp_(min=floor)
    largest.masked_fill_(largest == 0, 1.0)
    power = _average_power(x, mean, order, scratch, largest)
    return power.add_((floor / largest).pow_(order)).pow_(1 / order).mul_(largest), None


def _average_power(
    x: Tensor, mean: Tensor | None, order: float, scratch: Tensor, unit: Tensor | None = None
) -> Tensor:
    """Average of |x - mean|^order over each channel, in the given unit."""
    values = x if mean is None else torch.sub(x, along_channels(mean, x), out=scratch)
    if unit is not None:
        values = torch.div(values, along_channels(unit, x), out=scratch)
    if order == 2:
        return _average(torch.square(values, out=scratch))
    size = torch.abs(values, out=scratch)
    return _average(size if order == 1 else size.pow_(order))


def _trustworthy(power: Tensor, eps: float) -> bool:
    """Whether no power overflowed, and none that vanished would have counted."""
    smallest = torch.finfo(power.dtype).tiny * 1e10
    within = float(power.max()) < math.inf
    return within and (eps >= smallest or float(power.min()) >= smallest)


def fused_gradient(
    gradient: Tensor,
    x: Tensor,
    weight: Tensor | None,
    statistics: tuple[Tensor, Tensor, Tensor | None],
    order: float,
    centred: bool,
    *,
    input_needed: bool = True,
) -> tuple[Tensor | None, Tensor, Tensor]:
    """Gradients as in :func:`normscope.layers.lp_formulas.closed_form_gradient`.

    The input's is put together as ``factor * g + offset + pull * direction``, where the direction
    is the slope h up to a factor of each channel.
    """
    compiled = compiled_gradient(gradient, x, weight, statistics, order, centred, input_needed)
    if compiled is not None:
        return compiled
    x = _dense(x)
    gradient = _like(gradient, x)
    mean, size, largest = statistics
    inverse = size.reciprocal()
    to_weight, to_bias = _projections(gradient, x, mean, inverse)
    if not input_needed:
        return None, to_weight, to_bias
    factor = inverse if weight is None else weight * inverse
    result = torch.empty_like(x)
    direction, shares = _direction(x, mean if centred else None, inverse, largest, order, result)
    share = factor * (-x.shape[1] / x.numel())
    pull = share * to_weight if shares is None else -factor * to_weight / shares
    offset = share * to_bias
    if centred:
        offset -= pull * _average(direction)
    torch.addcmul(along_channels(offset, x), direction, along_channels(pull, x), out=result)
    return result.addcmul_(gradient, along_channels(factor, x)), to_weight, to_bias


def _projections(
    gradient: Tensor, x: Tensor, mean: Tensor, inverse: Tensor
) -> tuple[Tensor, Tensor]:
    """Sums over each channel of gradient * (x - mean) * inverse and of gradient, in one sweep.

    The native backward pass of batch normalization computes just these on its way.
    """
    _, along, total = torch.ops.aten.native_batch_norm_backward(
        gradient, x, None, None, None, mean, inverse, True, 0.0, [False, True, True]
    )
    return along, total


def _direction(
    x: Tensor,
    mean: Tensor | None,
    inverse: Tensor,
    largest: Tensor | None,
    order: float,
    result: Tensor,
) -> tuple[Tensor, Tensor | None]:
    """N times the slope h; for p = inf the sign at the largest values, and the number of these."""
    values = x if mean is None else torch.sub(x, along_channels(mean, x), out=result)
    if order == 1:
        return torch.sign(values, out=result), None
    if largest is not None:
        signs = x if mean is None else values.sign()
        torch.abs(values, out=result).eq_(along_channels(largest, x))
        # Where all values are zero no direction is left: the sign of zero is zero.
        shares = result.sum(channel_axes(x.dim())).masked_fill_(largest == 0, math.inf)
        return result.copysign_(signs), shares
    relative = torch.mul(values, along_channels(inverse, x), out=result)
    if order == 2:
        return relative, None
    signs = x if mean is None else relative.clone()
    return relative.abs_().pow_(order - 1).copysign_(signs), None
