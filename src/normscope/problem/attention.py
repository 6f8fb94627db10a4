"""Attention in operations that can be differentiated twice."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from normscope.problem.global_state import FunctionMode


class MathAttention(FunctionMode):
    """Inside, attention is a product of matrices: the fused kernels have no second derivative.

    Other threads are not affected. ``torch.nn.attention.sdpa_kernel`` selects kernels for the
    whole process: another model would give other bits meanwhile.

    Attributes:
        used: whether any attention was computed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.used = False

    def call(self, function: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Compute attention in products; call any other function as it is."""
        if function is functional.scaled_dot_product_attention:
            self.used = True
            return _attention(*args, **options)
        if function is functional.multi_head_attention_forward:
            self.used = True
            # With weights it is made of products. Inside ``function`` this mode is off.
            output, weights = function(*args, **options | {"need_weights": True})
            return output, weights if options.get("need_weights", True) else None
        return function(*args, **options)

    def enter_in_modules(self, model: nn.Module) -> None:
        """Enter the mode in the forward pass of every module, until the model is restored.

        A checkpointed part is recomputed during ``torch.autograd.grad``, inside which the mode is
        off, and must compute the same.
        """
        for module in model.modules():
            module.__dict__["forward"] = _entered(self, module.forward)


def _entered(mode: MathAttention, forward: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(forward)  # a model may read the signature
    def call(*inputs: Any, **options: Any) -> Any:
        with mode:
            return forward(*inputs, **options)

    return call


def _attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, **options: Any
) -> Tensor:
    """Return scaled dot-product attention as torch's reference implementation computes it."""
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        blank = torch.zeros(attn_mask.shape, dtype=query.dtype, device=query.device)
        attn_mask = blank.masked_fill(~attn_mask, -torch.inf)
    attention = torch.ops.aten._scaled_dot_product_attention_math
    result: Tensor = attention(query, key, value, attn_mask, **options)[0]
    return result
