"""Attention logits of a forward pass, however the model computes its attention."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from normscope.problem.global_state import FunctionMode

_SOFTMAX: tuple[Any, ...] = (torch.softmax, functional.softmax, Tensor.softmax)


@dataclass(frozen=True)
class Logits:
    """Numbers about the logits of one attention.

    Attributes:
        path: of the module that computes it.
        largest: how far a logit is above the mean of its row, at most.
        entropy: of the attention weights, as a share of that of equal weights; the mean over rows.
    """

    path: str
    largest: float
    entropy: float


def describe_logits(path: str, logits: Tensor) -> Logits:
    """Return the numbers about logits, rows last; masked ones are minus infinity.

    >>> round(describe_logits("", torch.zeros(2, 3)).entropy, 6)
    1.0
    """
    logits = logits.detach().double()
    allowed = logits > torch.finfo(torch.float32).min / 4  # a mask may be a large negative number
    count = allowed.sum(-1)
    mean = torch.where(allowed, logits, 0.0).sum(-1) / count.clamp(min=1)
    weights = logits.softmax(-1)
    entropy = -(weights * weights.clamp(min=1e-300).log()).sum(-1)
    rows = count > 1
    if not rows.any():
        return Logits(path, 0.0, 1.0)
    share = entropy[rows] / count[rows].double().log()
    above = (logits.amax(-1) - mean)[rows]
    return Logits(path, float(above.max()), float(share.mean()))


def logits_of(
    query: Tensor, key: Tensor, mask: Tensor | None, is_causal: bool, scale: float | None
) -> Tensor:
    """Return the logits of scaled dot-product attention."""
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    if key.dim() > 2 and key.shape[-3] != query.shape[-3]:  # grouped queries
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
    logits = factor * (query.double() @ key.double().transpose(-2, -1))
    if is_causal:
        ones = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device)
        logits = logits.masked_fill(~ones.tril(), -math.inf)
    if mask is not None:
        hidden = logits.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else None
        logits = logits + mask if hidden is None else hidden
    return logits


class AttentionRecorder(FunctionMode):
    """Records the logits of every attention inside.

    Args:
        running: paths of the modules whose forward pass is running, the innermost last.
        replace: if given, returns the logits to use instead.
    """

    def __init__(self, running: list[str], replace: Callable[[Tensor], Tensor] | None = None):
        super().__init__()
        self.found: list[Logits] = []
        self._running = running
        self._replace = replace

    def call(self, function: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Record the logits if the function is an attention or a softmax over the last axis."""
        path = self._running[-1] if self._running else ""
        if function is functional.scaled_dot_product_attention:
            return self._attention(path, function, args, options)
        if function in _SOFTMAX and _is_attention(*args, **options):
            if self._replace is None:
                self.found.append(describe_logits(path, args[0]))
            else:
                args = (self._replace(args[0]), *args[1:])
        return function(*args, **options)

    def _attention(self, path: str, function: Any, args: tuple[Any, ...], options: Any) -> Any:
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
        given = dict(zip(names, args, strict=False)) | options
        mask, causal = given.get("attn_mask"), bool(given.get("is_causal"))
        query, key = given["query"], given["key"]
        if self._replace is None:
            with torch.no_grad():
                logits = logits_of(query, key, mask, causal, given.get("scale"))
                self.found.append(describe_logits(path, logits))
            return function(*args, **options)
        logits = self._replace(logits_of(query, key, mask, causal, given.get("scale")))
        value = given["value"]
        if value.dim() > 2 and value.shape[-3] != query.shape[-3]:
            value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
        return logits.softmax(-1).to(value.dtype) @ value

    def record_module(
        self, path: str, module: nn.MultiheadAttention, args: Any, named: dict[str, Any]
    ) -> None:
        """Record the logits of torch's attention layer, which calls no function seen here."""
        query, key = (named.get(n, args[i] if len(args) > i else None) for i, n in _QUERY_KEY)
        weight: Any = module.in_proj_weight
        if weight is None or query is None or key is None:
            return
        with torch.no_grad():
            bias = module.in_proj_bias
            size, heads = module.embed_dim, module.num_heads
            q, k = (
                functional.linear(
                    x, weight[at : at + size], None if bias is None else bias[at : at + size]
                )
                for x, at in ((query, 0), (key, size))
            )
            if not module.batch_first and q.dim() == 3:
                q, k = q.transpose(0, 1), k.transpose(0, 1)
            q, k = (x.view(*x.shape[:-1], heads, -1).transpose(-3, -2) for x in (q, k))
            mask = named.get("attn_mask")
            mask = None if mask is None else (~mask if mask.dtype == torch.bool else mask)
            if mask is not None and mask.dim() == 3:
                mask = mask.view(-1, heads, *mask.shape[1:])
            self.found.append(describe_logits(path, logits_of(q, k, mask, False, None)))


_QUERY_KEY = ((0, "query"), (1, "key"))


def _is_attention(scores: Tensor, dim: int | None = None, *more: Any, **named: Any) -> bool:
    """Return whether a softmax is over the last of several axes: queries by keys."""
    return scores.dim() > 2 and dim in (-1, scores.dim() - 1)
