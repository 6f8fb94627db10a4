r"""Standardization over a batch, forward by its definition and backward in closed form.

.. math::
    \mu = \frac1m \sum_i x_i, \quad \sigma^2 = \frac1m \sum_i (x_i - \mu)^2, \quad
    \hat x_i = \frac{x_i - \mu}{\sqrt{\sigma^2 + \epsilon}}

Reference: ioffe2015, Alg. 1 (forward) and Section 3 (gradients); santurkar2018, Fact C.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from normscope.layers.transforms import forward_mode_active

# Largest |mean| / spread with which a kernel is believed that does not subtract the mean first:
# rounding then costs an output at most a share of about 3e-5 of the spread.
LARGEST_RATIO = {dtype: 3e-5 / torch.finfo(dtype).eps for dtype in (torch.float32, torch.float64)}


class Batch(Protocol):
    """What is averaged over: the batch of one process, or of several together."""

    @property
    def count(self) -> int:
        """Values per channel, over all processes."""

    def reduce(
        self, averaged: Sequence[Tensor], summed: Sequence[Tensor] = ()
    ) -> tuple[Tensor, ...]:
        """Averages per channel, broadcastable, then sums over processes of per-channel tensors."""


def channel_axes(dimensions: int) -> tuple[int, ...]:
    """The axes a channel is averaged over: all but axis 1.

    >>> channel_axes(4)
    (0, 2, 3)
    """
    return (0, *range(2, dimensions))


def along_channels(vector: Tensor, like: Tensor) -> Tensor:
    """One value per channel, shaped to broadcast against (batch, channels, ...).

    >>> along_channels(torch.ones(3), torch.zeros(2, 3, 4)).shape
    torch.Size([3, 1])
    """
    # Against a matrix a vector broadcasts as it is, which saves a small layer the views.
    return vector if like.dim() == 2 else vector.reshape(-1, *(1,) * (like.dim() - 2))


@dataclass(frozen=True)
class LocalBatch:
    """The batch of this process alone."""

    count: int

    @classmethod
    def of(cls, values: Tensor) -> LocalBatch:
        """The batch that these values, (batch, channels, ...), make up."""
        return cls(count=values.size(0) * values.shape[2:].numel())

    def reduce(
        self, averaged: Sequence[Tensor], summed: Sequence[Tensor] = ()
    ) -> tuple[Tensor, ...]:
        """Averages per channel, then the summed tensors as they are: there is no other process."""
        means = (tensor.mean(channel_axes(tensor.dim()), keepdim=True) for tensor in averaged)
        return *means, *summed


def standardize_by_definition(
    values: Tensor, eps: float, batch: Batch
) -> tuple[Tensor, Tensor, Tensor]:
    r"""Standardized values, mean and 1/m variance, in plain differentiable operations.

    The two passes are corrected: the rounding error left in the computed mean shows as the
    average of the deviations and is taken out of them, so that values of 1e4 with a spread of
    1e-2 keep the digits they have.

    Reference: chan1983, the corrected two-pass algorithm.

    Args:
        values: (batch, channels, ...), float32 or float64.
        eps: added to the variance.
        batch: what to average over.

    Returns:
        The standardized values, and mean and variance of shape (1, channels, 1, ...).

    >>> values = torch.tensor([[0.0], [2.0]])
    >>> standardized, mean, variance = standardize_by_definition(values, 0.0, LocalBatch.of(values))
    >>> standardized.flatten().tolist(), mean.item(), variance.item()
    ([-1.0, 1.0], 1.0, 1.0)
    """
    (mean,) = batch.reduce([values])
    deviation = values - mean
    residual, square = batch.reduce([deviation, deviation * deviation])
    deviation = deviation - residual
    # The correction may leave -1e-20 where all values are equal; NaN stays NaN.
    variance = (square - residual * residual).clamp_min(0.0)
    return deviation * torch.rsqrt(variance + eps), mean + residual, variance


class Standardize(torch.autograd.Function):
    r"""Standardized values, mean and variance, with hand-written derivatives of every order.

    With :math:`h, a, v` the gradients that arrive at :math:`\hat x, \mu, \sigma^2` and
    :math:`\langle\cdot\rangle` the average over the batch,

    .. math::
        \frac{\partial L}{\partial x} = \frac1s \left(h - \langle h \rangle
        - \hat x \langle h \hat x \rangle\right) + \frac{a}{m} + \frac{2 v s \hat x}{m},
        \quad s = \sqrt{\sigma^2 + \epsilon}.

    It is written in differentiable operations on the function's own outputs, which makes double
    and higher backward exact: PyTorch's native kernel keeps mean and 1/s as constants, which
    corrupts a third derivative.

    Reference: santurkar2018, Fact C.1; ioffe2015, Section 3.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(values: Tensor, eps: float, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """The three results of :func:`standardize_by_definition`."""
        return standardize_by_definition(values, eps, batch)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Keep the outputs, of which all derivatives are made."""
        _, ctx.eps, ctx.batch = inputs
        standardized, _, variance = output
        ctx.save_for_backward(standardized, variance)

    @staticmethod
    def backward(
        ctx: Any, to_standardized: Tensor, to_mean: Tensor, to_variance: Tensor
    ) -> tuple[Tensor | None, None, None]:
        """Gradient of the values from the gradients of the three results."""
        if not ctx.needs_input_grad[0]:
            return None, None, None
        standardized, variance = ctx.saved_tensors
        scale = torch.rsqrt(variance + ctx.eps)
        batch = ctx.batch
        average, projection, to_mean, to_variance = batch.reduce(
            [to_standardized, to_standardized * standardized], summed=[to_mean, to_variance]
        )
        constant = scale * average - to_mean / batch.count
        slope = scale * projection - 2.0 * to_variance / (scale * batch.count)
        return scale * to_standardized - constant - slope * standardized, None, None


def standardize(values: Tensor, eps: float, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Standardized values, mean and variance, differentiated in closed form.

    Forward mode differentiates the definition instead, operation by operation.

    Args:
        values: (batch, channels, ...), float32 or float64.
        eps: added to the variance.
        batch: what to average over.

    Returns:
        As :func:`standardize_by_definition`.

    >>> values = torch.tensor([[0.0], [2.0]], requires_grad=True)
    >>> standardized, _, _ = standardize(values, 0.0, LocalBatch.of(values))
    >>> (standardized ** 3).sum().backward()
    >>> values.grad.flatten().tolist()  # two values always standardize to -1 and 1
    [0.0, 0.0]
    """
    # PyTorch turns forward mode off inside a Function's own jvp, so that a jvp of a jvp would
    # silently be zero; and torch.compile cannot trace every Function.
    if forward_mode_active() or torch.compiler.is_compiling():
        return standardize_by_definition(values, eps, batch)
    results: tuple[Tensor, Tensor, Tensor] = Standardize.apply(  # type: ignore[no-untyped-call]
        values, eps, batch
    )  # PyTorch does not annotate apply
    return results
