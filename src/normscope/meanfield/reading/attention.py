"""Attention in a forward pass: torch's function, and the usual products by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx
from torch.nn import functional

from normscope.meanfield.attention import Attention
from normscope.meanfield.integrals import Array
from normscope.meanfield.reading.builder import TENSOR, Builder, Units
from normscope.meanfield.reading.calls import constant
from normscope.meanfield.reading.layout import Layout
from normscope.meanfield.reading.rules import argument

_MASKED = -1e4  # logits below it are those of tokens that are not attended to


@dataclass(frozen=True, eq=False)
class Logits:
    """Products of queries and keys.

    Args:
        query: the units.
        key: the units.
        scale: of the product.
        width: units of one head.
        weights: after the softmax, those of equal logits, (queries, keys).
    """

    query: Units
    key: Units
    scale: float
    width: int
    weights: Array | None = None


def of_call(builder: Builder, node: fx.Node, name: str) -> Any:
    """Return the value of a call that belongs to attention, None for other calls."""
    if name == "scaled_dot_product_attention":
        return _of_function(builder, node)
    inputs = [builder.value(each) for each in node.all_input_nodes]
    logits = next((each for each in inputs if isinstance(each, Logits)), None)
    if name in ("matmul", "bmm"):
        return _of_product(builder, node, inputs, logits)
    return None if logits is None else _of_logits(builder, node, name, logits)


def _of_logits(builder: Builder, node: fx.Node, name: str, logits: Logits) -> Logits | None:
    """Return logits scaled, masked, or as weights."""
    numbers = [found for each in node.args if (found := builder.number(each)) is not None]
    number = numbers[0] if numbers else None
    if name in ("mul", "imul", "mul_", "__rmul__") and number is not None:
        return replace(logits, scale=logits.scale * number)
    if name in ("div", "truediv", "itruediv", "div_") and number:
        return replace(logits, scale=logits.scale / number)
    if name in ("masked_fill", "masked_fill_", "contiguous", "float", "type_as", "to"):
        return logits
    if name in ("add", "iadd", "add_") and _is_mask(builder, node):
        return logits
    if name == "dropout" and not argument(node, 2, "training", True):
        return logits
    if name == "softmax":
        value = builder.evaluator.value(node)
        if not isinstance(value, Tensor) or value.is_meta or value.dim() < 3:
            return None
        allowed = (value > 0).flatten(0, -3).any(0).double()
        return replace(logits, weights=(allowed / allowed.sum(-1, keepdim=True)).cpu().numpy())
    return None


def _is_mask(builder: Builder, node: fx.Node) -> bool:
    """Return whether a sum with logits only masks some of them."""
    others = [each for each in node.args if builder.value(each) is TENSOR]
    tensor = constant(builder, others[0]) if len(others) == 1 else None
    return tensor is not None and bool(((tensor == 0) | (tensor < _MASKED)).all())


def _of_product(builder: Builder, node: fx.Node, inputs: list[Any], logits: Any) -> Any:
    """Return the product of queries and keys, or that of weights and values."""
    if len(node.args) != 2 or len(inputs) != 2:
        return None
    first, second = (builder.value(each) for each in node.args)
    if isinstance(first, Logits) and isinstance(second, Units):
        if first.weights is None:
            return None
        value = _tokens(builder, node, second, -2)
        return None if value is None else _attend(builder, builder.name(node), first, *value)
    if not isinstance(first, Units) or not isinstance(second, Units):
        return None
    query, key = _tokens(builder, node, first, -2), _tokens(builder, node, second, -1)
    if query is None or key is None:
        return None
    return Logits(query[0], key[0], 1.0, query[1][-1])


def _tokens(
    builder: Builder, node: fx.Node, units: Units, dim: int
) -> tuple[Units, tuple[int, ...]] | None:
    """Return units with tokens as positions, and the sizes of the dimensions of their channels.

    Args:
        builder: of the graph.
        node: the call.
        units: of a tensor (samples, heads, tokens, width of a head) or without heads.
        dim: the dimension of the tokens.

    Returns:
        None if other dimensions hold positions too.
    """
    if units.layout is None or units.layout.index.dim() < 3:
        return None
    total = units.layout.index.dim()
    channels = [d for d in range(1, total) if d != dim % total]
    found = builder.arrange(builder.name(node), units, channels, merge=False)
    return None if found is None else (found[0], found[1].inner_shape)


def _attend(
    builder: Builder, name: str, logits: Logits, value: Units, sizes: tuple[int, ...]
) -> Units:
    """Add attention to the graph; its output is (samples, heads, tokens, width of a head)."""
    assert logits.weights is not None
    operation = Attention(logits.weights, logits.scale, logits.width)
    at = builder.add(name, operation, (logits.query.node, logits.key.node, value.node))
    tokens = len(logits.weights)
    index = Layout.fresh((2, math.prod(sizes), tokens)).index.reshape(2, *sizes, tokens)
    return Units(at, Layout(index.movedim(-1, -2), math.prod(sizes), (tokens,)))


def _of_function(builder: Builder, node: fx.Node) -> Units | None:
    """Return torch's scaled dot-product attention."""
    given = [builder.units(argument(node, k, n)) for k, n in enumerate(("query", "key", "value"))]
    found = [None if each is None else _tokens(builder, node, each, -2) for each in given]
    query, key, value = found
    if query is None or key is None or value is None:
        return None
    mask = builder.evaluator.value(argument(node, 3, "attn_mask"))
    causal = bool(argument(node, 5, "is_causal", False))
    scale = builder.number(argument(node, 6, "scale"))
    sizes = [each[0].layout.count for each in (query, key) if each[0].layout is not None]
    weights = weights_of_equal_logits(sizes, mask, causal)
    others = (argument(node, 4, "dropout_p", 0.0), argument(node, 7, "enable_gqa", False))
    if weights is None or any(others):
        return None
    width = query[1][-1]
    logits = Logits(query[0], key[0], scale or width**-0.5, width, weights)
    return _attend(builder, builder.name(node), logits, *value)


def weights_of_equal_logits(sizes: list[int], mask: Any, causal: bool) -> Array | None:
    """Return the attention weights of equal logits; None if the mask differs between heads."""
    queries, keys = sizes
    zeros = torch.zeros(1, 1, queries, 1, dtype=torch.float64)
    if isinstance(mask, Tensor):
        mask = mask if mask.dtype == torch.bool else mask.double()
        flat = mask.reshape(-1, *mask.shape[-2:])
        if not torch.equal(flat, flat[:1].expand_as(flat)):
            return None
        mask = flat[0].cpu()
    weights = functional.scaled_dot_product_attention(
        zeros,
        torch.zeros(1, 1, keys, 1, dtype=torch.float64),
        torch.eye(keys, dtype=torch.float64)[None, None],
        mask,
        0.0,
        causal,
    )
    return np.asarray(weights[0, 0].numpy())
