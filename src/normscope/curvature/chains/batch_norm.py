"""Derivatives of batch normalization, through its statistics or with them constant."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from normscope.curvature.autograd.batch_norm import (
    channel_sums,
    channels_last,
    exact_statistics,
)
from normscope.curvature.chains.links import (
    Link,
    Motion,
    OuterProduct,
    ParameterCotangent,
    WeightBias,
)


class BatchNormLink(Link):
    r"""Batch normalization, per channel and over a batch of m values.

    .. math:: \frac{\partial y}{\partial x} =
        \frac{\gamma}{s}\Bigl(I - \frac{1 1^\top}{m} - \frac{\hat x \hat x^\top}{m}\Bigr), \qquad
        \frac{\partial y}{\partial\gamma} = \hat x, \qquad \frac{\partial y}{\partial\beta} = 1

    The first is symmetric, so `jvp` and `vjp` are the same map. With constant statistics it is
    gamma/s.

    Reference: ioffe2015, Section 3; theory of the backward pass in santurkar2018, Fact C.1.
    Notation: x_hat = normalized, gamma/s = scale.

    Args:
        normalized: (batch, channels, *positions).
        scale: (channels,).
        inverse: 1/s, (channels,).
        through: whether derivatives flow through the statistics.
        names: of gamma and beta; None for one that is not differentiated by.
    """

    overwrites = True

    def __init__(
        self,
        normalized: Tensor,
        scale: Tensor,
        inverse: Tensor,
        through: bool,
        names: tuple[str | None, str | None],
    ) -> None:
        self.names = names
        self._normalized = normalized
        self._scale = scale
        self._inverse = inverse
        self._through = through
        self._zero, self._one = torch.zeros_like(scale), torch.ones_like(scale)

    def vjp(self, delta: Tensor, to_input: bool) -> tuple[Tensor | None, ParameterCotangent]:
        """Return the cotangents of the input and the parameters."""
        gamma, beta = (name is not None for name in self.names)
        if not (self._through or gamma or beta):
            return self._affine(delta, None, None), (None, None)
        correlation, total = channel_sums(delta, self._normalized)
        gradients = (correlation if gamma else None, total if beta else None)
        if not to_input:
            return None, gradients
        if not self._through:
            return self._affine(delta, None, None), gradients
        share = self._share(delta)
        return self._affine(delta, -share * correlation, -share * total), gradients

    def jvp(self, tangent: Tensor | None, direction: ParameterCotangent) -> Tensor:
        """Return the tangent of the output."""
        assert not isinstance(direction, OuterProduct)
        factor, shift = direction
        if tangent is None:
            return self.output(self._zero if factor is None else factor, shift)
        if self._through:
            correlation, total = channel_sums(tangent, self._normalized)
            share = self._share(tangent)
            factor = _sum(factor, -share * correlation)
            shift = _sum(shift, -share * total)
        return self._affine(tangent, factor, shift)

    def vjp_derivative(self, at: Motion, to_input: bool) -> tuple[Tensor | None, WeightBias]:
        r"""Differentiate the cotangents, with w = gamma/s; first for constant statistics.

        .. math::
            \dot d = w \dot g + \dot w g \quad\text{or}\quad
            \dot d = \dot w\,(g - \langle g\rangle - \hat x G)
            + w\,(\dot g - \langle\dot g\rangle - \dot{\hat x} G - \hat x \dot G), \quad
            G = \langle g \hat x\rangle

        Notation: g = delta, d = the input's cotangent, <.> the average over the batch.
        """
        moved, delta, tangent, (gamma, _) = at
        along, total = channel_sums(moved, self._normalized)
        drift = self._zero if gamma is None else gamma * self._inverse
        overlap = self._zero if tangent is None else channel_sums(delta, tangent)[0]
        if self._through:
            sums = along, total, overlap
            below, along = self._through_statistics(at, drift, sums)
        else:
            below = self._affine(moved, None, None).addcmul_(delta, self._broadcast(drift))
            along = along + self._inverse * overlap
        weight, bias = self.names
        gradients = (None if weight is None else along, None if bias is None else total)
        return below if to_input else None, gradients

    def _through_statistics(
        self, at: Motion, drift: Tensor, sums: tuple[Tensor, Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return the parts of the input and of gamma, with derivatives through the statistics."""
        moved, delta, tangent, _ = at
        along, total, overlap = sums
        share = len(self._scale) / moved.numel()
        g_along, g_mean = (part * share for part in channel_sums(delta, self._normalized))
        t_along = t_mean = self._zero
        if tangent is not None:
            t_along, t_mean = (part * share for part in channel_sums(tangent, self._normalized))
        along = along + self._inverse * (overlap - (g_mean * t_mean + g_along * t_along) / share)
        drift = drift - self._scale * t_along * self._inverse
        pull = self._scale * g_along * self._inverse
        factor = pull * t_along - drift * g_along - self._scale * along * share
        shift = pull * t_mean - drift * g_mean - self._scale * total * share
        below = self._affine(moved, factor, shift).addcmul_(delta, self._broadcast(drift))
        if tangent is not None:
            below.addcmul_(tangent, self._broadcast(-pull))
        return below, along

    def output(self, gamma: Tensor | None, beta: Tensor | None) -> Tensor:
        """Return the normalized values times gamma plus beta."""
        if gamma is None and beta is None:
            return self._normalized
        factor = self._broadcast(self._one if gamma is None else gamma)
        shift = self._broadcast(self._zero if beta is None else beta)
        return torch.addcmul(shift, self._normalized, factor)

    def _affine(self, tangent: Tensor, factor: Tensor | None, shift: Tensor | None) -> Tensor:
        """Return scale times a tangent, plus shift, plus factor times x_hat, in place."""
        scale = self._broadcast(self._scale)
        if shift is None:
            tangent.mul_(scale)
        else:
            torch.addcmul(self._broadcast(shift), tangent, scale, out=tangent)
        if factor is not None:
            tangent.addcmul_(self._normalized, self._broadcast(factor))
        return tangent

    def _share(self, tangent: Tensor) -> Tensor:
        """Return the scale over the number of values per channel."""
        return self._scale * (len(self._scale) / tangent.numel())

    def _broadcast(self, channels: Tensor) -> Tensor:
        return channels.view(-1, *[1] * (self._normalized.dim() - 2))


def _sum(total: Tensor | None, part: Tensor) -> Tensor:
    return part if total is None else total + part


def normalize(
    inputs: Tensor, statistics: tuple[Tensor, Tensor] | None, eps: float
) -> tuple[Tensor, Tensor]:
    """Subtract the mean and divide by the standard deviation, per channel.

    Args:
        inputs: (batch, channels, *positions).
        statistics: mean and variance; None for those of the batch (variance with 1/m).
        eps: added to the variance.

    Returns:
        The normalized inputs, and one over the standard deviation.

    >>> normalize(torch.tensor([[0.0], [4.0]]), None, 0.0)[0].flatten()
    tensor([-1.,  1.])
    """
    if statistics is None and not channels_last(inputs):
        values, _, inverse = torch.native_batch_norm(inputs, None, None, None, None, True, 0.0, eps)
        return values, inverse
    if statistics is None:
        mean, inverse = exact_statistics(inputs, eps)
        statistics = mean, (inverse.pow(-2) - eps).clamp_(min=0)
    mean, variance = statistics
    values = functional.batch_norm(inputs, mean, variance, None, None, False, 0.0, eps)
    return values, (variance + eps).rsqrt()
