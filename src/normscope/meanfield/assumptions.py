"""What the theory assumes of weights: finite values of mean zero."""

from __future__ import annotations

import math

import numpy as np

from normscope.errors import InputError, NoClosureError
from normscope.meanfield.activations import Nonlinearity
from normscope.meanfield.attention import Attention
from normscope.meanfield.field import PAIR, Field, Weighted
from normscope.meanfield.graph import INPUT, MEASURE, Graph
from normscope.meanfield.integrals import Array
from normscope.meanfield.norms import Norm

FALSE_ALARM = 1e-6  # largest probability that weights of mean zero are refused, for one layer
LARGEST_LOGITS = 2.0  # variance; attention terms are within 6 % of simulation at 1.7, 17 % at 4
_LARGEST_SHIFT = 0.01  # of the second moment of a layer's output; changes lambda_max by 20 %
_ROUNDING = 1e-12  # of a mean square
_LARGEST_MEAN = 1.0  # squared, times fan in, over the variance; changes lambda_max by up to 22 %


def check_finite(graph: Graph) -> None:
    """Raise if variances, scales or shifts are not finite, or variances are negative.

    Args:
        graph: the network, with the values that are used in place of the model's.

    Raises:
        InputError: naming the layer.
    """
    for node in graph.nodes:
        operation = node.operation
        if isinstance(operation, Weighted):
            values: list[float | Array] = [operation.weight_variance, operation.bias_variance]
        elif isinstance(operation, Norm):
            values = [operation.gamma, operation.beta, operation.beta_variance]
        else:
            continue
        if not all(np.isfinite(value).all() for value in values):
            raise InputError(
                f"{node.name}: the theory needs finite weights, got NaN or infinity; initialize "
                "the layer again, or load a checkpoint from before it failed."
            )
        if isinstance(operation, Weighted) and min(values) < 0:
            raise InputError(
                f"{node.name}: variances must not be negative, got weight_variance "
                f"{operation.weight_variance:g} and bias_variance {operation.bias_variance:g}."
            )


def check_weight_means(graph: Graph, start: Field, fields: list[Field]) -> None:
    """Raise for weights whose mean is too far from zero for the theory.

    A mean is refused only if at most one of 10^6 layers with weights of mean zero reaches it, and
    if it matters. It shifts all units of a layer alike, by fan_in * mean * (mean input). Without a
    normalization that removes it, a shift of 1 % of the second moment changes lambda_max by about
    20 %. Otherwise only a mean that makes the units alike matters: fan_in * mean^2 = variance
    changes lambda_max by 0 to 22 % (measured on three hidden layers of 50 to 300 units, with
    BatchNorm or LayerNorm). Layers of constant weights, other than zero, are always refused.

    Args:
        graph: the network.
        start: order parameters of its input.
        fields: those of every node's output.

    Raises:
        NoClosureError: naming the layer.
    """
    for index, node in enumerate(graph.nodes):
        weights = node.operation
        if not isinstance(weights, Weighted) or not _has_mean(weights):
            continue
        variance = _variance(weights)
        matters = weights.fan_in * weights.weight_mean**2 > _LARGEST_MEAN * variance
        if not matters and _is_exposed(graph, index):
            source = None if node.inputs[0] == INPUT else fields[node.inputs[0]]
            matters = _shift(weights, source, fields[index], start) > _LARGEST_SHIFT
        if matters:
            raise NoClosureError(
                f"{node.name}: the theory is about weights of mean zero, got a mean of "
                f"{weights.weight_mean:.3g} at a standard deviation of {math.sqrt(variance):.3g}",
                f"Pass weight_variance for weights of mean zero. {MEASURE}",
            )


def logit_variances(graph: Graph, fields: list[Field]) -> dict[str, float]:
    """Return the variance of the logits of every attention.

    Args:
        graph: the network.
        fields: order parameters of every node's output.

    Returns:
        By the name of the node: the variance over the tokens that a token attends to.

    Raises:
        NoClosureError: if it is too large for weights that are nearly uniform.
    """
    found = {}
    for node in graph.nodes:
        if isinstance(node.operation, Attention):
            query, key = (fields[index] for index in node.inputs[:2])
            variance = found[node.name] = node.operation.logit_variance(query, key)
            if not variance <= LARGEST_LOGITS:
                raise NoClosureError(
                    f"{node.name}: the theory takes attention weights as nearly uniform, which "
                    f"needs logits of a variance up to {LARGEST_LOGITS:g}, got {variance:.3g}",
                    f"Scale queries or keys down. {MEASURE}",
                )
    return found


def _variance(weights: Weighted) -> float:
    """Return the variance of the weights about their mean."""
    mean_square = weights.weight_variance / weights.fan_in
    variance = mean_square - weights.weight_mean**2
    return variance if variance > _ROUNDING * mean_square else 0.0


def _has_mean(weights: Weighted) -> bool:
    """Return whether weights of mean zero almost never have this mean.

    By Hoeffding's inequality for random signs, n independent weights of any symmetric distribution
    have n mean^2 / (mean square) = z^2 or more with a probability of at most 2 exp(-z^2 / 2).
    """
    count = weights.fan_in * weights.outputs
    if weights.weight_mean == 0 or count < 2:
        return False
    squared = count * weights.weight_mean**2 / (weights.weight_variance / weights.fan_in)
    return _variance(weights) == 0 or 2 * math.exp(-squared / 2) < FALSE_ALARM


def _is_exposed(graph: Graph, index: int) -> bool:
    """Return whether a node's output reaches an activation or weights without normalization."""
    for later, node in enumerate(graph.nodes):
        if index not in node.inputs or isinstance(node.operation, Norm):
            continue
        if isinstance(node.operation, (Nonlinearity, Weighted)) or _is_exposed(graph, later):
            return True
    return False


def _shift(weights: Weighted, source: Field | None, output: Field, start: Field) -> float:
    """Return the squared shift of all units by the mean weight, over their second moment."""
    if source is None:  # signs of the input are unknown; this is its largest squared mean
        squared = start.row_means(start.kernel[:, PAIR]).mean(-1)
    else:
        squared = np.square(source.mean.mean(-1))
    second = output.second.mean(-1)
    shifts = (weights.fan_in * weights.weight_mean) ** 2 * squared
    return float(np.max(shifts / np.maximum(second, 1e-300)))
