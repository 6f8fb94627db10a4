"""Torch's modules for self-attention and for the layers of a transformer's encoder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from normscope.meanfield.activations import ACTIVATIONS, Dropout, Nonlinearity
from normscope.meanfield.attention import Attention
from normscope.meanfield.combinations import Addition
from normscope.meanfield.integrals import Array
from normscope.meanfield.norms import SampleNorm, TokenNorm
from normscope.meanfield.reading.attention import weights_of_equal_logits
from normscope.meanfield.reading.builder import Builder, Parts, Units, refused
from normscope.meanfield.reading.layout import Arrangement
from normscope.meanfield.reading.rules import argument, linear_of, operation_of_module

MODULES = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)
"""Modules that are read as several layers."""


def of_module(builder: Builder, node: fx.Node, name: str, module: Any) -> Units | Parts:
    """Return the output of one of these modules.

    Args:
        builder: of the graph.
        node: the call.
        name: of the module.
        module: the module.

    Returns:
        The output; of attention, one that may be unpacked, without its weights.

    Raises:
        NoClosureError: if it is not self-attention over tokens without padding.
    """
    if isinstance(module, nn.MultiheadAttention):
        sources = [argument(node, k, each) for k, each in enumerate(("query", "key", "value"))]
        if len(set(sources)) > 1:
            raise refused(name, "attention to something else than the tokens themselves")
        at, rows = _tokens(builder, name, sources[0])
        weights = _weights(builder, name, rows, node, "attn_mask", "key_padding_mask")
        made = _attention(builder, name, module, at, weights)
        return Parts((Units(made, rows.layout_of(module.embed_dim)),))
    at, rows = _tokens(builder, name, argument(node, 0, "src"))
    mask = "mask" if isinstance(module, nn.TransformerEncoder) else "src_mask"
    weights = _weights(builder, name, rows, node, mask, "src_key_padding_mask")
    if isinstance(module, nn.TransformerEncoderLayer):
        made = _layer(builder, name, module, at, weights)
    else:
        made = at
        for k, layer in enumerate(module.layers):
            made = _layer(builder, f"{name}.layers.{k}", layer, made, weights)
        if module.norm is not None:
            made = _norm(builder, f"{name}.norm", module.norm, made)
    return Units(made, rows.layout_of(rows.units.shape[1]))


def _tokens(builder: Builder, name: str, source: Any) -> tuple[int, Arrangement]:
    """Return the node of a tensor of tokens, and its arrangement."""
    units = builder.units(source)
    known = units is not None and units.layout is not None and units.layout.index.dim() == 3
    found = builder.arrange(name, units, (-1,), merge=False) if units and known else None
    if found is None:
        raise refused(name, "attention over something else than tokens")
    return found[0].node, found[1]


def _weights(
    builder: Builder, name: str, rows: Arrangement, node: fx.Node, mask: str, padding: str
) -> Array:
    """Return the attention weights of equal logits under the mask of a call."""
    position = 5 if mask == "attn_mask" else 1
    given = builder.evaluator.value(argument(node, position, mask))
    padded = argument(node, 3 if mask == "attn_mask" else 2, padding)
    if isinstance(given, Tensor) and given.dtype == torch.bool:
        given = ~given  # True is not attended to, other than in torch's function
    count = len(rows.units)
    found = weights_of_equal_logits([count, count], given, causal=False)
    if found is None or padded is not None:
        raise refused(name, "attention with padding, or with a mask for each head")
    return found


def _attention(
    builder: Builder, name: str, module: nn.MultiheadAttention, at: int, weights: Array
) -> int:
    plain = module._qkv_same_embed_dim and module.bias_k is None and not module.add_zero_attn
    if not plain:
        raise refused(name, "attention with keys or values of other sizes, or added ones")
    width, bias = module.embed_dim, module.in_proj_bias
    parts = []
    for k, part in enumerate(("query", "key", "value")):
        rows = slice(k * width, (k + 1) * width)
        inner = linear_of(module.in_proj_weight[rows], None if bias is None else bias[rows])
        inner = replace(inner, each_position=True)
        parts.append(builder.add(f"{name}.in_proj ({part})", inner, (at,)))
    head = width // module.num_heads
    mixed = builder.add(name, Attention(weights, head**-0.5, head), parts)
    return _linear(builder, f"{name}.out_proj", module.out_proj, mixed)


def _layer(builder: Builder, name: str, layer: Any, at: int, weights: Array) -> int:
    """Add one layer of an encoder, with the norms before or after its two branches."""

    def attend(at: int) -> int:
        at = _attention(builder, f"{name}.self_attn", layer.self_attn, at, weights)
        return _dropout(builder, f"{name}.dropout1", layer.dropout1, at)

    def feed_forward(at: int) -> int:
        at = _linear(builder, f"{name}.linear1", layer.linear1, at)
        at = builder.add(f"{name}.activation", _activation(name, layer.activation), (at,))
        at = _dropout(builder, f"{name}.dropout", layer.dropout, at)
        at = _linear(builder, f"{name}.linear2", layer.linear2, at)
        return _dropout(builder, f"{name}.dropout2", layer.dropout2, at)

    branches: tuple[tuple[str, Callable[[int], int]], ...]
    branches = (("norm1", attend), ("norm2", feed_forward))
    for norm, branch in branches:
        module = getattr(layer, norm)
        inner = branch(_norm(builder, f"{name}.{norm}", module, at) if layer.norm_first else at)
        at = builder.add(name, Addition(), (at, inner))
        if not layer.norm_first:
            at = _norm(builder, f"{name}.{norm}", module, at)
    return at


def _linear(builder: Builder, name: str, module: nn.Linear, at: int) -> int:
    inner = replace(linear_of(module.weight, module.bias), each_position=True)
    return builder.add(name, inner, (at,))


def _norm(builder: Builder, name: str, module: nn.Module, at: int) -> int:
    found = operation_of_module(module, {})
    if isinstance(found, SampleNorm):
        found = TokenNorm(found.gamma, found.beta, found.beta_variance, found.eps)
    if not isinstance(found, TokenNorm):
        raise refused(name, f"the module {type(module).__name__}")
    return builder.add(name, found, (at,))


def _dropout(builder: Builder, name: str, module: nn.Dropout, at: int) -> int:
    active = builder.model.get_submodule(name).training or not builder.model.training
    found = operation_of_module(module, {}) if active else None
    return builder.add(name, found, (at,)) if isinstance(found, Dropout) else at


def _activation(name: str, function: Any) -> Nonlinearity:
    if isinstance(function, nn.Module):
        found = operation_of_module(function, {})
        if isinstance(found, Nonlinearity):
            return found
    known = getattr(function, "__name__", "")
    if known not in ACTIVATIONS:
        raise refused(name, f"the activation {known or type(function).__name__}")
    return Nonlinearity(ACTIVATIONS[known])
