"""The same mathematics as lp_formulas, arranged for speed: no graph and no large temporaries.

Most of the time of plain tensor operations goes into fresh memory for their results. Here each
pass allocates only the tensor it returns and works in that tensor's memory until then.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def _dense(x: Tensor) -> Tensor:
    """The tensor itself when it fills its memory in a known format, else a contiguous copy."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim())
    if x.is_contiguous() or (last is not None and x.is_contiguous(memory_format=last)):
        return x
    return x.contiguous()


def _like(gradient: Tensor, x: Tensor) -> Tensor:
    """The gradient in the memory layout of x."""
    return gradient if gradient.stride() == x.stride() else torch.empty_like(x).copy_(gradient)


def _channel(values: Tensor, x: Tensor) -> Tensor:
    """One value per channel, shaped to broadcast against x (for a matrix it does so as it is)."""
    return values if x.dim() == 2 else values.view(-1, *([1] * (x.dim() - 2)))


def _dims(x: Tensor) -> list[int]:
    return [0, *range(2, x.dim())]


def _average(x: Tensor) -> Tensor:
    # Faster than mean, which divides by a whole number and converts it first.
    return x.sum(_dims(x)).mul_(x.shape[1] / x.numel())


def _largest(x: Tensor, mean: Tensor | None) -> Tensor:
    """Largest size of each channel's values, about the mean if one is given.

    Rounding keeps order, so this is bit for bit the maximum over the rounded differences.
    """
    high, low = x.amax(_dims(x)), x.amin(_dims(x))
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
        torch.sub(x, _channel(mean, x), out=output).mul_(_channel(factor, x))
        return output if bias is None else output.add_(_channel(bias, x)), mean, size, largest
    # |mean| <= scale, so the products are of the output's own size and lose nothing to speak of.
    offset = -mean * factor if bias is None else torch.addcmul(bias, mean, factor, value=-1)
    torch.addcmul(_channel(offset, x), x, _channel(factor, x), out=output)
    return output, mean, size, largest


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
    values = x if mean is None else torch.sub(x, _channel(mean, x), out=scratch)
    if unit is not None:
        values = torch.div(values, _channel(unit, x), out=scratch)
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
    torch.addcmul(_channel(offset, x), direction, _channel(pull, x), out=result)
    return result.addcmul_(gradient, _channel(factor, x)), to_weight, to_bias


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
    values = x if mean is None else torch.sub(x, _channel(mean, x), out=result)
    if order == 1:
        return torch.sign(values, out=result), None
    if largest is not None:
        signs = x if mean is None else values.sign()
        torch.abs(values, out=result).eq_(_channel(largest, x))
        # Where all values are zero no direction is left: the sign of zero is zero.
        shares = result.sum(_dims(x)).masked_fill_(largest == 0, math.inf)
        return result.copysign_(signs), shares
    relative = torch.mul(values, _channel(inverse, x), out=result)
    if order == 2:
        return relative, None
    signs = x if mean is None else relative.clone()
    return relative.abs_().pow_(order - 1).copysign_(signs), None
