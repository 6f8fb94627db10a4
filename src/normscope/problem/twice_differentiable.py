"""Operations whose gradient torch cannot differentiate, written in operations where it can."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from normscope.problem.global_state import FunctionMode

_MOST_ROWS = 25  # above which torch.cdist multiplies matrices, which it can differentiate twice


class TwiceDifferentiable(FunctionMode):
    """Inside, every operation has a second derivative where an equal expression is known.

    The fused kernels of attention have none, nor do hardsigmoid, embedding_bag, cdist, pdist and
    the multi-class margin losses, nor sparse gradients of embeddings. One scaled by frequency is
    not the derivative of anything. Values agree up to rounding. Other threads are not affected:
    ``torch.nn.attention.sdpa_kernel`` would select kernels for the whole process.

    Attributes:
        used: whether any operation was replaced.
    """

    def __init__(self) -> None:
        super().__init__()
        self.used = False

    def call(self, function: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Compute a known operation by its equal expression; call any other as it is."""
        expression = _EXPRESSIONS.get(function)
        if expression is None or (function is functional.embedding and _is_exact(**options)):
            return function(*args, **options)
        self.used = True
        return expression(*args, **options)  # inside this mode is off

    def enter_in_modules(self, model: nn.Module) -> None:
        """Enter the mode in the forward pass of every module, until the model is restored.

        A checkpointed part is recomputed during ``torch.autograd.grad``, inside which the mode is
        off, and must compute the same.
        """
        for module in model.modules():
            module.__dict__["forward"] = _entered(self, module.forward)


def _entered(mode: TwiceDifferentiable, forward: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(forward)  # a model may read the signature
    def call(*inputs: Any, **options: Any) -> Any:
        with mode:
            return forward(*inputs, **options)

    return call


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **options: Any,
) -> Tensor:
    """Return scaled dot-product attention as torch's reference implementation computes it."""
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        blank = torch.zeros(attn_mask.shape, dtype=query.dtype, device=query.device)
        attn_mask = blank.masked_fill(~attn_mask, -torch.inf)
    attention = torch.ops.aten._scaled_dot_product_attention_math
    result: Tensor = attention(query, key, value, attn_mask, dropout_p, is_causal, **options)[0]
    return result


def _multi_head_attention(*args: Any, **options: Any) -> tuple[Tensor, Tensor | None]:
    """Return multi-head attention with its weights computed, which makes it of products."""
    attend = functional.multi_head_attention_forward
    output, weights = attend(*args, **options | {"need_weights": True})
    return output, weights if options.get("need_weights", True) else None


def _hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    """Return relu6(x + 3) / 6."""
    result = functional.relu6(input + 3) / 6
    return input.copy_(result) if inplace else result


def _is_exact(sparse: bool, scale_grad_by_freq: bool, **options: Any) -> bool:
    """Return whether the gradient of an embedding is dense and that of its output."""
    return not sparse and not scale_grad_by_freq


def _embedding(
    input: Tensor, weight: Tensor, sparse: bool, scale_grad_by_freq: bool, **options: Any
) -> Tensor:
    """Return the rows of a table, whose gradient would be sparse or scaled by frequency."""
    return functional.embedding(input, weight, **options)


def _embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """Return the sum, mean or maximum of the embeddings in each bag."""
    indices, bags, count = _bags(input, offsets, include_last_offset)
    if padding_idx is not None:
        kept = indices != padding_idx % len(weight)
        indices, bags = indices[kept], bags[kept]
    rows = functional.embedding(indices, weight, None, max_norm, norm_type)
    if per_sample_weights is not None:
        factors = per_sample_weights.reshape(-1)
        rows = rows * (factors if padding_idx is None else factors[kept]).unsqueeze(1)
    blank = torch.zeros(count, weight.shape[1], dtype=rows.dtype, device=rows.device)
    if mode == "max":
        places = bags.unsqueeze(1).expand_as(rows)
        return blank.scatter_reduce(0, places, rows, "amax", include_self=False)
    total = blank.index_add(0, bags, rows)
    if mode == "sum":
        return total
    return total / torch.bincount(bags, minlength=count).clamp(min=1).unsqueeze(1)


def _bags(
    input: Tensor, offsets: Tensor | None, include_last_offset: bool
) -> tuple[Tensor, Tensor, int]:
    """Return the indices in one row, the bag of each, and the number of bags."""
    if offsets is None:  # one bag in each row
        count, size = input.shape
        bags = torch.arange(count, device=input.device).repeat_interleave(size)
        return input.reshape(-1).long(), bags, count
    starts = offsets[:-1] if include_last_offset else offsets
    places = torch.arange(len(input), device=input.device)
    bags = torch.searchsorted(starts.long(), places, right=True) - 1
    return input.long(), bags, len(starts)


def _cdist(
    x1: Tensor,
    x2: Tensor,
    p: float = 2.0,
    compute_mode: str = "use_mm_for_euclid_dist_if_necessary",
) -> Tensor:
    """Return the distances between the rows of two matrices; with zero slope at zero."""
    large = x1.shape[-2] > _MOST_ROWS or x2.shape[-2] > _MOST_ROWS
    always = compute_mode == "use_mm_for_euclid_dist"
    if p == 2 and (always or (large and not compute_mode.startswith("donot"))):
        return torch.cdist(x1, x2, p, compute_mode)
    return _distances(x1.unsqueeze(-2) - x2.unsqueeze(-3), p)


def _pdist(input: Tensor, p: float = 2.0) -> Tensor:
    """Return the distances between the rows of a matrix."""
    first, second = torch.triu_indices(len(input), len(input), 1, device=input.device)
    return _distances(input[first] - input[second], p)


def _distances(differences: Tensor, p: float) -> Tensor:
    """Return the norms of the last dimension; all derivatives are zero where the norm is."""
    zero = (differences == 0).all(-1)
    filled = differences.masked_fill(zero.unsqueeze(-1), 1.0)
    lengths: Tensor = torch.linalg.vector_norm(filled, p, dim=-1)
    return lengths.masked_fill(zero, 0.0)


def _multi_margin_loss(
    input: Tensor,
    target: Tensor,
    p: int = 1,
    margin: float = 1.0,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Return the mean over classes of the margin violations, to the power of p."""
    scores, labels = input.reshape(-1, input.shape[-1]), target.reshape(-1)
    right = scores.gather(1, labels.unsqueeze(1))
    terms = (margin - right + scores).clamp(min=0) ** p
    if weight is not None:
        terms = terms * weight[labels].unsqueeze(1)
    is_other = torch.ones_like(scores).scatter(1, labels.unsqueeze(1), 0.0)
    losses = (terms * is_other).sum(1) / scores.shape[1]
    return _reduced(losses if input.dim() > 1 else losses[0], size_average, reduce, reduction)


def _multilabel_margin_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Return the mean over classes of the violated margins between labels and other classes."""
    scores, labels = (each.reshape(-1, each.shape[-1]) for each in (input, target))
    given = (labels >= 0).to(labels).cumprod(1).bool()  # up to the first negative one
    places = labels.clamp(min=0)
    is_label = torch.zeros_like(scores, dtype=torch.bool)
    is_label = is_label.scatter_reduce(1, places, given, "amax")
    right = scores.gather(1, places)
    violations = (1 - right.unsqueeze(2) + scores.unsqueeze(1)).clamp(min=0)
    counts = given.unsqueeze(2) & ~is_label.unsqueeze(1)
    losses = (violations * counts).sum((1, 2)) / scores.shape[1]
    return _reduced(losses if input.dim() > 1 else losses[0], size_average, reduce, reduction)


def _reduced(
    losses: Tensor, size_average: bool | None, reduce: bool | None, reduction: str
) -> Tensor:
    if size_average is not None or reduce is not None:  # torch's older arguments
        total = "mean" if size_average in (None, True) else "sum"
        reduction = "none" if reduce is False else total
    if reduction == "none":
        return losses
    return losses.mean() if reduction == "mean" else losses.sum()


_EXPRESSIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    functional.scaled_dot_product_attention: _attention,
    functional.multi_head_attention_forward: _multi_head_attention,
    functional.hardsigmoid: _hardsigmoid,
    functional.embedding: _embedding,
    functional.embedding_bag: _embedding_bag,
    functional.pdist: _pdist,
    torch.cdist: _cdist,
    functional.multi_margin_loss: _multi_margin_loss,
    functional.multilabel_margin_loss: _multilabel_margin_loss,
}
