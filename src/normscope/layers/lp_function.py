"""l_p normalization by the batch's own statistics, with its gradient in closed form."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from normscope.layers.compiled.binding import compiled_output
from normscope.layers.lp_formulas import closed_form_gradient, plain_lp_norm, scale
from normscope.layers.lp_kernels import fused_gradient, fused_output, spread_is_lost
from normscope.layers.transforms import eager

__all__ = ["LpNormalize", "lp_normalize", "scale"]


def lp_normalize(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, order: float, centred: bool, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    r"""Output, mean and scale of l_p normalization by the batch's own statistics.

    .. math:: y = \gamma (x - \bar x) / s + \beta

    Reference: santurkar2018, Section 3.3.

    Args:
        x: (batch, channels, *positions), float32 or float64.
        weight: (channels,) or None for ones.
        bias: (channels,) or None for zeros.
        order: p, at least 1.
        centred: take the scale of x - mean instead of x.
        eps: as in :func:`normscope.layers.lp_formulas.scale`.

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
        # The compiled kernel has looked, and refuses what may have lost digits.
        if spread_is_lost(x, results[1], results[2], centred):
            return plain_lp_norm(x, weight, bias, order, centred, eps)
    function: Any = LpNormalize  # torch declares no types for ``apply``
    output = function.apply(x, weight, bias, (order, centred, eps), results)
    return output, results[1], results[2]


class LpNormalize(torch.autograd.Function):
    """l_p normalization of a batch, computed already: ties the output to its closed gradient.

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
        """Hand the output on."""
        ctx.save_for_backward(x, weight)
        ctx.options = options
        output, *ctx.statistics = results
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """The closed form, by fast kernels, or differentiable when a graph of it is wanted."""
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
                *(gradient, x, weight, tuple(ctx.statistics), order, centred),
                input_needed=input_needed,
            )
        return (
            to_input,
            to_weight if weight_needed else None,
            to_bias if bias_needed else None,
            None,
            None,
        )
