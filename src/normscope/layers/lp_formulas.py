"""The formulas of l_p normalization in differentiable tensor operations.

Notation in this file: p = order, t = the values whose size is averaged (x, or x - mean when
centred), s = scale, d = x - mean, h = ds/dt, N = values per channel, g = the output's gradient.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from normscope.layers.standardize import along_channels, channel_axes


def affine(normalized: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """The learned map of each channel, weight * normalized + bias; None leaves that part out."""
    if weight is not None:
        normalized = normalized * along_channels(weight, normalized)
    return normalized if bias is None else normalized + along_channels(bias, normalized)


def scale(values: Tensor, order: float, eps: float) -> Tensor:
    r"""Size of the values of each channel, the power mean of order p.

    .. math:: s = \left(\tfrac1N \sum_i |t_i|^p + \epsilon\right)^{1/p}, \quad
        s = \max_i |t_i| + \epsilon \text{ for } p = \infty

    The values are divided by their largest size before the power is taken, so nothing overflows
    or vanishes that the result itself could hold. Differentiable to any order away from the kinks
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
    if order % 2:  # an even power has no kink at zero, and needs none of the size's
        relative = relative.abs()
    power = relative.pow(order).mean(dims, keepdim=True)
    size: Tensor = largest * (power + (floor / largest).pow(order)).pow(1 / order)
    return size


def slope(values: Tensor, size: Tensor, order: float) -> Tensor:
    r"""Derivative of :func:`scale` with respect to each value.

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
    """Deviations from the mean, and the mean; what rounding left in the mean is taken out of both.

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
    """Output, mean and scale by plain tensor operations, for transforms, compilers, hard input."""
    deviation, mean = _centred(x)
    size = scale(deviation if centred else x, order, eps)
    statistics = mean.detach().flatten(), size.detach().flatten()
    return affine(deviation / size, weight, bias), *statistics


def closed_form_gradient(
    gradient: Tensor, x: Tensor, weight: Tensor | None, order: float, centred: bool, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    r"""Gradients with respect to x, weight and bias, in differentiable tensor operations.

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
