"""l_p normalization by the statistics of the batch, with its gradient in closed form.

Notation in this file: p = order, t = the values whose size is averaged (x, or x - mean when
centred), s = scale, d = x - mean, h = ds/dt, N = values per channel, g = gradient of the output.

The same mathematics exists three times: in differentiable tensor operations (``plain_lp_norm``,
``closed_form_gradient``), arranged for speed without large temporaries (``fused_output``,
``fused_gradient``), and in C for batches that fit into the cache
(:mod:`normscope.layers.compiled`). Plain tensor operations spend most of their time on
fresh memory for their results; each fused pass allocates only the tensor it returns and works in
that tensor's memory.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from normscope.layers.compiled import (
    LARGEST_UNCENTRED_RATIO,
    compiled_gradient,
    compiled_output,
    is_channels_last,
)
from normscope.layers.standardize import LARGEST_RATIO, along_channels, channel_axes
from normscope.layers.transforms import eager


def lp_normalize(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, order: float, centred: bool, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    r"""Return output, mean and scale of l_p normalization by the statistics of the batch.

    .. math:: y = \gamma (x - \bar x) / s + \beta

    Reference: santurkar2018, Section 3.3.

    Args:
        x: (batch, channels, *positions), float32 or float64.
        weight: (channels,) or None for ones.
        bias: (channels,) or None for zeros.
        order: p, at least 1.
        centred: whether the scale is that of x - mean instead of x.
        eps: as in :func:`scale`.

    Returns:
        Like x, (channels,) and (channels,); only the first carries gradients.

    >>> lp_normalize(torch.tensor([[1.0], [3.0]]), None, None, 1, True, 0.0)[0]
    tensor([[-1.],
            [ 1.]])
    """
    if x.device.type != "cpu" or not eager():
        return plain_lp_norm(x, weight, bias, order, centred, eps)
    results = compiled_output(x, weight, bias, order, centred, eps)
    if results is None:
        with torch.no_grad():
            results = fused_output(x, weight, bias, order, centred, eps)
        # The compiled kernel has checked this itself.
        if spread_is_lost(x, results[1], results[2], centred):
            return plain_lp_norm(x, weight, bias, order, centred, eps)
    function: Any = LpNormalize  # torch declares no types for ``apply``
    output = function.apply(x, weight, bias, (order, centred, eps), results)
    return output, results[1], results[2]


class LpNormalize(torch.autograd.Function):
    """Attaches the closed-form gradient to an l_p normalization that is already computed.

    The arguments are x, weight, bias, (order, centred, eps) and the results of ``fused_output``.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        options: tuple[float, bool, float],
        results: tuple[Tensor, Tensor, Tensor, Tensor | None],
    ) -> Tensor:
        """Return the output that was computed."""
        ctx.save_for_backward(x, weight)
        ctx.options = options
        output, *ctx.statistics = results
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Apply the closed form, by fast kernels, or differentiably if a graph is needed."""
        (gradient,) = gradients
        x, weight = ctx.saved_tensors
        order, centred, eps = ctx.options
        input_needed, weight_needed, bias_needed, *_ = ctx.needs_input_grad
        to_input: Tensor | None
        if torch.is_grad_enabled():
            to_input, to_weight, to_bias = closed_form_gradient(
                gradient, x, weight, order, centred, eps
            )
        else:
            to_input, to_weight, to_bias = fused_gradient(
                gradient,
                x,
                weight,
                tuple(ctx.statistics),
                order,
                centred,
                input_needed=input_needed,
            )
        return (
            to_input,
            to_weight if weight_needed else None,
            to_bias if bias_needed else None,
            None,
            None,
        )


def affine(normalized: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Return weight * normalized + bias per channel; None leaves that part out."""
    if weight is not None:
        normalized = normalized * along_channels(weight, normalized)
    return normalized if bias is None else normalized + along_channels(bias, normalized)


def scale(values: Tensor, order: float, eps: float) -> Tensor:
    r"""Return the size of the values of each channel, the power mean of order p.

    .. math:: s = \left(\tfrac1N \sum_i |t_i|^p + \epsilon\right)^{1/p}, \quad
        s = \max_i |t_i| + \epsilon \text{ for } p = \infty

    The values are divided by their largest size before the power is taken, so no power overflows
    or underflows if the result itself does not. Differentiable to any order away from the kinks
    (t = 0 for p < 2, ties of the maximum for p = inf, between which the gradient is split evenly).

    Reference: santurkar2018, Section 3.3.

    Args:
        values: (batch, channels, *positions).
        order: p, at least 1.
        eps: added under the root.

    Returns:
        (1, channels, 1, ...).

    >>> scale(torch.tensor([[3.0], [-4.0]]), 1, eps=0.0)
    tensor([[3.5000]])
    """
    dims = channel_axes(values.dim())
    if order == math.inf:
        return values.abs().amax(dims, keepdim=True) + eps
    if order == 1:
        return values.abs().mean(dims, keepdim=True) + eps
    floor = eps ** (1 / order)
    largest = values.detach().abs().amax(dims, keepdim=True).clamp(min=floor)
    largest = torch.where(largest > 0, largest, 1.0)
    relative = values / largest
    if order % 2:  # an even power has no kink at zero
        relative = relative.abs()
    power = relative.pow(order).mean(dims, keepdim=True)
    size: Tensor = largest * (power + (floor / largest).pow(order)).pow(1 / order)
    return size


def slope(values: Tensor, size: Tensor, order: float) -> Tensor:
    r"""Return the derivative of :func:`scale` with respect to each value.

    .. math:: h_i = \tfrac1N \left(|t_i| / s\right)^{p-1} \operatorname{sign} t_i

    For p = inf it is the sign at the largest value, shared evenly between ties, and 0 elsewhere.

    Args:
        values: (batch, channels, *positions).
        size: their scale, broadcastable.
        order: p.

    Returns:
        Like values.

    >>> slope(torch.tensor([[3.0], [-4.0]]), torch.tensor([[3.5]]), 1)
    tensor([[ 0.5000],
            [-0.5000]])
    """
    dims = channel_axes(values.dim())
    if order == math.inf:
        largest = values.detach().abs().amax(dims, keepdim=True)
        at_largest = (values.detach().abs() == largest).to(values.dtype)
        return values.sign() * (at_largest / at_largest.sum(dims, keepdim=True))
    count = values.numel() // values.shape[1]
    if order == 1:
        return values.sign() / count
    relative = values / size
    if order % 2 == 0:
        return relative.pow(order - 1) / count
    return relative.abs().pow(order - 1) * relative.sign() / count


def _centred(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return deviations from the mean, and the mean, corrected for the rounding of the mean.

    Reference: chan1983, the corrected two-pass algorithm.
    """
    dims = channel_axes(x.dim())
    mean = x.mean(dims, keepdim=True)
    deviation = x - mean
    residual = deviation.mean(dims, keepdim=True)
    return deviation - residual, mean + residual


def plain_lp_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, order: float, centred: bool, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return output, mean and scale by plain tensor operations.

    For transforms, compilers, and input whose mean is large relative to its spread.
    """
    deviation, mean = _centred(x)
    size = scale(deviation if centred else x, order, eps)
    statistics = mean.detach().flatten(), size.detach().flatten()
    return affine(deviation / size, weight, bias), *statistics


def closed_form_gradient(
    gradient: Tensor, x: Tensor, weight: Tensor | None, order: float, centred: bool, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    r"""Return the gradients of x, weight and bias, in differentiable tensor operations.

    .. math::
        \frac{\partial L}{\partial x} = \frac{\gamma}{s} \Big(g - \bar g -
        \frac{\langle g, d \rangle}{s} (h - c \bar h)\Big), \quad
        \frac{\partial L}{\partial \gamma} = \frac{\langle g, d \rangle}{s}, \quad
        \frac{\partial L}{\partial \beta} = \sum_i g_i

    with c = 1 when centred and 0 otherwise; the bar is the average over a channel's values.
    For p = 2, centred, this is the gradient of batch normalization.

    Args:
        gradient: of the output.
        x: the input.
        weight: (channels,) or None for ones.
        order: p.
        centred: whether the mean is subtracted before the scale is taken.
        eps: as in :func:`scale`.

    Returns:
        Like x, (channels,) and (channels,).
    """
    dims = channel_axes(x.dim())
    deviation, _ = _centred(x)
    values = deviation if centred else x
    size = scale(values, order, eps)
    direction = slope(values, size, order)
    if centred:
        direction = direction - direction.mean(dims, keepdim=True)
    to_weight = (gradient * (deviation / size)).sum(dims, keepdim=True)
    to_input = (gradient - gradient.mean(dims, keepdim=True) - to_weight * direction) / size
    return affine(to_input, weight, None), to_weight.flatten(), gradient.sum(dims)


def _dense(x: Tensor) -> Tensor:
    """Return the tensor itself if it is dense in a known memory format, else a contiguous copy."""
    return x if x.is_contiguous() or is_channels_last(x) else x.contiguous()


def _like(gradient: Tensor, x: Tensor) -> Tensor:
    """Return the gradient in the memory layout of x."""
    return gradient if gradient.stride() == x.stride() else torch.empty_like(x).copy_(gradient)


def _average(x: Tensor) -> Tensor:
    # Faster than mean, which divides by an integer and converts it first.
    return x.sum(channel_axes(x.dim())).mul_(x.shape[1] / x.numel())


def _largest(x: Tensor, mean: Tensor | None) -> Tensor:
    """Return the largest size of the values of each channel, relative to the mean if one is given.

    Rounding is monotonic, so this equals the maximum over the rounded differences bit for bit.
    """
    high, low = x.amax(channel_axes(x.dim())), x.amin(channel_axes(x.dim()))
    return torch.maximum(high, -low) if mean is None else torch.maximum(high - mean, mean - low)


def fused_output(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, order: float, centred: bool, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return output, mean, scale and (for p = inf) largest size of the values of each channel."""
    x = _dense(x)
    output = torch.empty_like(x)
    mean = _average(x)
    size, largest = _scale(x, mean if centred else None, order, eps, scratch=output)
    factor = size.reciprocal() if weight is None else weight / size
    if centred:
        # The scale may be far below the mean: subtract before rounding.
        torch.sub(x, along_channels(mean, x), out=output).mul_(along_channels(factor, x))
        return output if bias is None else output.add_(along_channels(bias, x)), mean, size, largest
    # |mean| <= scale, so the products round like numbers of size one. The caller handles an output
    # whose spread is far below that (see spread_is_lost).
    offset = -mean * factor if bias is None else torch.addcmul(bias, mean, factor, value=-1)
    torch.addcmul(along_channels(offset, x), x, along_channels(factor, x), out=output)
    return output, mean, size, largest


def spread_is_lost(x: Tensor, mean: Tensor, size: Tensor, centred: bool) -> bool:
    """Return whether rounding cost some channel more than a small share of its spread.

    That happens where the mean is large relative to the deviations. When centred, the scale is
    their size. Otherwise a scale close to the mean only shows that the values must be checked: a
    few of them first, since a spread among these is a spread among all.
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
    """Return the result of :func:`scale`, and the largest size for p = inf."""
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
    """Return the average of |x - mean|^order over each channel, in the given unit."""
    values = x if mean is None else torch.sub(x, along_channels(mean, x), out=scratch)
    if unit is not None:
        values = torch.div(values, along_channels(unit, x), out=scratch)
    if order == 2:
        return _average(torch.square(values, out=scratch))
    size = torch.abs(values, out=scratch)
    return _average(size if order == 1 else size.pow_(order))


def _trustworthy(power: Tensor, eps: float) -> bool:
    """Return whether no power overflowed, and none that underflowed matters."""
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
    """Return the gradients as in :func:`closed_form_gradient`.

    The gradient of the input is ``factor * g + offset + pull * direction``, where the direction
    is the slope h up to a factor per channel.
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
    """Return the sums per channel of gradient * (x - mean) * inverse and of gradient.

    The native backward pass of batch normalization computes exactly these.
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
    """Return N times the slope h; for p = inf the sign at the largest values, and their number."""
    values = x if mean is None else torch.sub(x, along_channels(mean, x), out=result)
    if order == 1:
        return torch.sign(values, out=result), None
    if largest is not None:
        signs = x if mean is None else values.sign()
        torch.abs(values, out=result).eq_(along_channels(largest, x))
        # Where all values are zero there is no direction: the sign of zero is zero.
        shares = result.sum(channel_axes(x.dim())).masked_fill_(largest == 0, math.inf)
        return result.copysign_(signs), shares
    relative = torch.mul(values, along_channels(inverse, x), out=result)
    if order == 2:
        return relative, None
    signs = x if mean is None else relative.clone()
    return relative.abs_().pow_(order - 1).copysign_(signs), None
