"""Batch normalization as a link of a chain: through its statistics, or with them as constants."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from normscope.curvature.chain_links import Link, OuterProduct, Pair, Trace
from normscope.curvature.images import channels_last, exact_statistics
from normscope.layers.compiled.binding import faster_sums

__all__ = ["BatchNormLink", "normalized"]


class BatchNormLink(Link):
    r"""Batch normalization, per channel and over a batch of m values.

    .. math:: \frac{\partial y}{\partial x} =
        \frac{\gamma}{s}\Bigl(I - \frac{1 1^\top}{m} - \frac{\hat x \hat x^\top}{m}\Bigr), \qquad
        \frac{\partial y}{\partial\gamma} = \hat x, \qquad \frac{\partial y}{\partial\beta} = 1

    The first is symmetric: up and down are the same map. With constant statistics it is gamma/s.

    Reference: ioffe2015, Section 3; theory of the backward pass in santurkar2018, Fact C.1.
    Notation: x_hat = normalized, gamma/s = scale.

    Args:
        normalized: (batch, channels, *positions).
        scale: (channels,).
        inverse: 1/s, (channels,).
        through: whether derivatives flow through the statistics.
        names: of gamma and beta; None for one that is not asked for.
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

    def down(self, delta: Tensor, to_input: bool) -> tuple[Tensor | None, Trace]:
        """The cotangents of the input and the parameters."""
        gamma, beta = (name is not None for name in self.names)
        if not (self._through or gamma or beta):
            return self._mapped(delta, None, None), (None, None)
        correlation, total = self._sums(delta)
        trace = (correlation if gamma else None, total if beta else None)
        if not to_input:
            return None, trace
        if not self._through:
            return self._mapped(delta, None, None), trace
        share = self._share(delta)
        return self._mapped(delta, -share * correlation, -share * total), trace

    def up(self, tangent: Tensor | None, trace: Trace) -> Tensor:
        """The tangent of the output."""
        assert not isinstance(trace, OuterProduct)
        factor, shift = trace
        if tangent is None:
            return self.output(self._zero if factor is None else factor, shift)
        if self._through:
            correlation, total = self._sums(tangent)
            share = self._share(tangent)
            factor = _sum(factor, -share * correlation)
            shift = _sum(shift, -share * total)
        return self._mapped(tangent, factor, shift)

    def moved_down(
        self,
        moved: Tensor,
        delta: Tensor,
        tangent: Tensor | None,
        direction: Pair,
        to_input: bool,
    ) -> tuple[Tensor | None, Pair]:
        r"""How the cotangents move, with the scale w = gamma/s, and x_hat if it is not constant.

        .. math::
            \dot d = w \dot g + \dot w g \quad\text{or}\quad
            \dot d = \dot w\,(g - \langle g\rangle - \hat x G)
            + w\,(\dot g - \langle\dot g\rangle - \dot{\hat x} G - \hat x \dot G), \quad
            G = \langle g \hat x\rangle

        Notation: g = delta, d = the input's cotangent, <.> the average over the batch.
        """
        along, total = self._sums(moved)
        gamma = direction[0]
        drift = self._zero if gamma is None else gamma * self._inverse
        meeting = self._zero if tangent is None else self._sums(delta, tangent)[0]
        if self._through:
            sums = along, total, meeting
            below, along = self._moved_through(moved, delta, tangent, drift, sums)
        else:
            below = self._mapped(moved, None, None).addcmul_(delta, self._broadcast(drift))
            along = along + self._inverse * meeting
        weight, bias = self.names
        gradients = (None if weight is None else along, None if bias is None else total)
        return below if to_input else None, gradients

    def _moved_through(
        self,
        moved: Tensor,
        delta: Tensor,
        tangent: Tensor | None,
        drift: Tensor,
        sums: tuple[Tensor, Tensor, Tensor],
    ) -> tuple[Tensor, Tensor]:
        """The input's and gamma's part where statistics move with the batch."""
        along, total, meeting = sums
        share = len(self._scale) / moved.numel()
        g_along, g_mean = (part * share for part in self._sums(delta))
        t_along = t_mean = self._zero
        if tangent is not None:
            t_along, t_mean = (part * share for part in self._sums(tangent))
        along = along + self._inverse * (meeting - (g_mean * t_mean + g_along * t_along) / share)
        drift = drift - self._scale * t_along * self._inverse
        pull = self._scale * g_along * self._inverse
        factor = pull * t_along - drift * g_along - self._scale * along * share
        shift = pull * t_mean - drift * g_mean - self._scale * total * share
        below = self._mapped(moved, factor, shift).addcmul_(delta, self._broadcast(drift))
        if tangent is not None:
            below.addcmul_(tangent, self._broadcast(-pull))
        return below, along

    def output(self, gamma: Tensor | None, beta: Tensor | None) -> Tensor:
        """The normalized values times gamma plus beta."""
        if gamma is None and beta is None:
            return self._normalized
        factor = self._broadcast(self._one if gamma is None else gamma)
        shift = self._broadcast(self._zero if beta is None else beta)
        return torch.addcmul(shift, self._normalized, factor)

    def _mapped(self, tangent: Tensor, factor: Tensor | None, shift: Tensor | None) -> Tensor:
        """Scale times a tangent, plus shift, plus factor times x_hat: in place."""
        scale = self._broadcast(self._scale)
        if shift is None:
            tangent.mul_(scale)
        else:
            torch.addcmul(self._broadcast(shift), tangent, scale, out=tangent)
        if factor is not None:
            tangent.addcmul_(self._normalized, self._broadcast(factor))
        return tangent

    def _share(self, tangent: Tensor) -> Tensor:
        """The scale over the number of values that a channel's statistics are taken of."""
        return self._scale * (len(self._scale) / tangent.numel())

    def _sums(self, delta: Tensor, values: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Per channel, the sums of delta times x_hat (or other values) and of delta.

        Where the compiled kernel does not serve, the fused backward pass gives them, told that its
        input is normalized already. It is not asked for the cotangent of the input too: new memory
        costs more than two passes in place.
        """
        values = self._normalized if values is None else values
        compiled = faster_sums(delta, values)
        if compiled is not None:
            return compiled
        _, correlation, total = torch.ops.aten.native_batch_norm_backward(
            *(delta, values, self._scale),
            *(self._zero, self._one),  # running statistics
            *(self._zero, self._one),  # statistics of the batch
            *(self._through, 0.0),
            [False, True, True],
        )
        return correlation, total

    def _broadcast(self, channels: Tensor) -> Tensor:
        return channels.view(-1, *[1] * (self._normalized.dim() - 2))


def _sum(total: Tensor | None, part: Tensor) -> Tensor:
    return part if total is None else total + part


def normalized(
    inputs: Tensor, statistics: tuple[Tensor, Tensor] | None, eps: float
) -> tuple[Tensor, Tensor]:
    """The inputs minus their mean over their standard deviation, per channel.

    Args:
        inputs: (batch, channels, *positions).
        statistics: mean and variance; None for those of the batch, the variance with 1/m.
        eps: added to the variance.

    Returns:
        The normalized inputs, and one over the standard deviation.

    >>> normalized(torch.tensor([[0.0], [4.0]]), None, 0.0)[0].flatten()
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
