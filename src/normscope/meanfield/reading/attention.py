"""Attention in a forward pass: torch's function and module, and the usual products by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from normscope.meanfield.arrangements import ChannelPart
from normscope.meanfield.attention import Attention
from normscope.meanfield.integrals import Array
from normscope.meanfield.reading.builder import TENSOR, Builder, Parts, Units, refused
from normscope.meanfield.reading.calls import argument, constant
from normscope.meanfield.reading.layout import Layout
from normscope.meanfield.reading.rules import linear_of
from normscope.meanfield.weighted import Linear

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
    number = next((each for each in node.args if isinstance(each, (int, float))), None)
    if name in ("mul", "imul", "mul_", "__rmul__") and number is not None:
        return replace(logits, scale=logits.scale * number)
    if name in ("div", "truediv", "itruediv", "div_") and number:
        return replace(logits, scale=logits.scale / number)
    if name in ("masked_fill", "masked_fill_", "contiguous", "float", "type_as", "to"):
        return logits
    if name in ("add", "iadd", "add_") and _is_mask(builder, node):
        return logits
    if name == "dropout":
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
    scale = builder.evaluator.value(argument(node, 6, "scale"))
    sizes = [each[0].layout.count for each in (query, key) if each[0].layout is not None]
    weights = _weights(sizes, mask, causal)
    if weights is None or argument(node, 7, "enable_gqa", False):
        return None
    width = query[1][-1]
    logits = Logits(query[0], key[0], scale or width**-0.5, width, weights)
    return _attend(builder, builder.name(node), logits, *value)


def _weights(sizes: list[int], mask: Any, causal: bool) -> Array | None:
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


def of_module(builder: Builder, node: fx.Node, name: str, module: nn.MultiheadAttention) -> Parts:
    """Return the outputs of torch's module for self-attention.

    Args:
        builder: of the graph.
        node: the call.
        name: of the module.
        module: the module.

    Returns:
        The output; attention weights are left out.

    Raises:
        NoClosureError: if it is not plain self-attention.
    """
    sources = [argument(node, k, n) for k, n in enumerate(("query", "key", "value"))]
    units = builder.units(sources[0])
    plain = (
        len(set(sources)) == 1
        and module._qkv_same_embed_dim
        and module.bias_k is None
        and not module.add_zero_attn
        and argument(node, 3, "key_padding_mask") is None
    )
    if units is None or units.layout is None or not plain:
        raise refused(name, "attention other than self-attention without padding")
    last = units.layout.index.dim() - 1
    found = builder.arrange(name, units, (last,), merge=False)
    if found is None or last != 2:
        raise refused(name, "attention over something else than tokens")
    source, rows = found
    width, heads = module.embed_dim, module.num_heads
    assert rows.layout is not None
    mask = builder.evaluator.value(argument(node, 5, "attn_mask"))
    if isinstance(mask, Tensor) and mask.dtype == torch.bool:
        mask = ~mask  # True means not attended to, other than in torch's function
    count = len(rows.units)
    weights = _weights([count, count], mask, False)
    if weights is None:
        raise refused(name, "a mask that differs between heads")
    at = builder.add(f"{name}.in_proj", _projection(module), (source.node,))
    ranges = [frozenset(range(k * width, (k + 1) * width)) for k in range(3)]
    parts = [builder.add(name, ChannelPart(each), (at,)) for each in ranges]
    scale = (width // heads) ** -0.5
    mixed = builder.add(name, Attention(weights, scale, width // heads), parts)
    output = replace(linear_of(module.out_proj), each_position=True)
    last_node = builder.add(f"{name}.out_proj", output, (mixed,))
    return Parts((Units(last_node, rows.layout_of(width)),))


def _projection(module: nn.MultiheadAttention) -> Linear:
    weight, bias = module.in_proj_weight, module.in_proj_bias
    inner = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    inner.weight = weight
    if bias is not None:
        inner.bias = bias
    return replace(linear_of(inner), each_position=True)
