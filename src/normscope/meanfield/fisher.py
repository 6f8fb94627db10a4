r"""From order parameters to the top of the spectrum of the Fisher matrix.

.. math:: \lambda_{\max} \ge \sum_l f_l, \qquad
    f_l = N_{l-1} \sum_{ab} E\langle \delta_a(x), \delta_b(y)\rangle
    \, \hat q_{ab,xy}^{l-1}

Reference: wei2018, Claim 3.1, with sums over positions instead of means.

Two random-matrix effects raise the largest eigenvalue above this bound on the mean gradient. Both
are checked by simulation (docs/research/mean_field.md):

*Several outputs.* Layers below the head are shared by all outputs. The mean gradients of C outputs
are random vectors that have passed k layers of n channels; the top eigenvalue of their Gram matrix
exceeds their mean square by the upper edge of a product of k Wishart matrices.

*Exploding gradients.* In a deep net with BatchNorm the gradients of different samples become
orthogonal while they grow, so each sample contributes eigenvalues of size
:math:`|\nabla f|^2 / m`. The largest is that of an extreme sample: the edge of a product of k
Wishart matrices, in which the slopes of each layer leave only n / kurtosis units, times the largest
of m log-normal variables, because the number of active units varies from sample to sample.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import ndtri

from normscope.errors import InputError
from normscope.meanfield.activations import Dropout, Nonlinearity
from normscope.meanfield.arrangements import Constant
from normscope.meanfield.assumptions import check_weight_means, logit_variances
from normscope.meanfield.field import PAIR, SAME, Field, Setting, Signal, Weighted
from normscope.meanfield.graph import INPUT, Graph, Input
from normscope.meanfield.integrals import Array
from normscope.meanfield.norms import Norm
from normscope.meanfield.pooling import MaxPool
from normscope.meanfield.result import LayerRow, row_of

_TRACY_WIDOM_MEAN = 1.2065  # of the orthogonal ensemble, below the edge


@dataclass(frozen=True, eq=False)
class FisherEstimate:
    """The results of a closure for one network, for each setting of a sweep.

    Args:
        layers: the table.
        lower_bound: sum of the layers' terms, per output.
        head: the part of it that comes from the last layer.
        mean_direction: largest eigenvalue along mean gradients, over all outputs.
        bulk: largest eigenvalue of a single sample.
        upper_bound: mean squared gradient of one output.
        notes: approximations that were made.
    """

    layers: tuple[LayerRow, ...]
    lower_bound: Array
    head: Array
    mean_direction: Array
    bulk: Array
    upper_bound: Array
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Flow:
    """A graph with its fields and signals."""

    graph: Graph
    start: Field
    fields: list[Field]
    signals: list[Signal | None]
    setting: Setting

    @property
    def outputs(self) -> int:
        """Of the network."""
        return self.fields[-1].channels


def estimate(
    graph: Graph, data: Input, setting: Setting, every_parameter: bool = False
) -> FisherEstimate:
    """Estimate the top of the Fisher spectrum from the order parameters of a graph.

    Args:
        graph: the network.
        data: moments of its inputs.
        setting: of the closure.
        every_parameter: whether biases and the norm layers' parameters count beside weights.

    Returns:
        The estimate.

    Raises:
        InputError: if no weights lead to the output.
    """
    start = data.field(setting)
    fields = graph.forward(start, setting)
    check_weight_means(graph, start, fields)
    flow = _Flow(graph, start, fields, graph.backward(start, fields, setting), setting)
    rows, heads, direction = [], [], np.zeros(1)
    upper = np.zeros(1)
    for index, node in enumerate(graph.nodes):
        signal = flow.signals[index]
        if not isinstance(node.operation, Weighted) or signal is None:
            continue
        row, own = _row(flow, index, signal, every_parameter)
        first = bool(np.all(signal.path[:, 1] == 0))
        heads.append(first)
        direction = direction + row.term * _over_outputs(flow, index, signal)
        upper = upper + own
        rows.append(row)
    if not rows:
        raise InputError("the network has no linear or convolution layer, so there is no bound.")
    notes = _approximations(flow) + (_left_out(flow) if every_parameter else ())
    return _summed(rows, heads, direction, upper, notes)


def _over_outputs(flow: _Flow, index: int, signal: Signal) -> Array:
    """Return the top eigenvalue of the mean gradients at a layer over their mean square."""
    layers = signal.path[:, 1]
    passed = np.where(layers > 0, signal.path[:, 0] + 1 / flow.fields[index].channels, 0.0)
    return product_edge(passed * finite_outputs(flow.outputs), layers)


def _row(flow: _Flow, index: int, signal: Signal, every: bool) -> tuple[LayerRow, Array]:
    """Return the row of one weighted layer, and its part of the mean squared gradient."""
    node, output = flow.graph.nodes[index], flow.fields[index]
    operation = node.operation
    assert isinstance(operation, Weighted)
    assert output.gathered is not None
    source = flow.start if node.inputs[0] == INPUT else flow.fields[node.inputs[0]]
    term = operation.fan_in * (signal.kernel[:, PAIR] * output.gathered[:, PAIR]).sum((-2, -1))
    taken = output.gathered[:, SAME]
    if signal.centred:  # the statistics above remove the mean of the inputs
        taken = taken - output.gathered[:, PAIR]
    own = operation.fan_in * (signal.kernel[:, SAME] * taken).sum((-2, -1))
    size = flow.setting.batch_size
    bulk = np.zeros_like(own)  # of a single sample among infinitely many
    if not np.isinf(size):
        factor = sample_factor(signal.path, flow.outputs, size)
        bulk = np.where(signal.path[:, 1] == 0, 0.0, own / size * factor)
    if every:
        term = term + (signal.total if operation.has_bias else 0.0)
        term = term + _norm_terms(flow, index)
    # A squared norm. Only moments estimated on few samples give less than zero, and then zero is
    # the closest value that it can have.
    term = np.maximum(term, 0.0)
    return row_of(node.name, operation.fan_in, output, source, signal, term, bulk), own


def _norm_terms(flow: _Flow, index: int) -> Array:
    """Return the terms of scale and shift of a normalization right after a weighted layer."""
    for later, node in enumerate(flow.graph.nodes):
        signal = flow.signals[later]
        if isinstance(node.operation, Norm) and node.inputs == (index,) and signal is not None:
            return np.asarray(signal.total + _scale_term(flow, later))
    return np.zeros(1)


def _scale_term(flow: _Flow, index: int) -> Array:
    """Return the mean product of two samples' derivatives by the scale before an activation."""
    gamma = np.asarray(getattr(flow.graph.nodes[index].operation, "gamma", 1.0))
    field = flow.fields[index]
    std, total = np.sqrt(field.variance), np.zeros(1)
    step = 1e-4 * std
    for later, node in enumerate(flow.graph.nodes):
        signal = flow.signals[later]
        if node.inputs != (index,) or signal is None:
            continue
        if isinstance(node.operation, Nonlinearity):
            mean = node.operation.function.mean
            rise = (mean(field.mean, std + step) - mean(field.mean, std - step)) / 2e-4
            rise = rise / gamma.reshape(-1, 1)  # E[y_hat phi'(gamma y_hat + beta)]
            pairs = rise[:, :, None] * rise[:, None, :]
            total = total + (signal.kernel[:, PAIR] * pairs).sum((-2, -1))
    return np.asarray(total)


def _summed(
    rows: list[LayerRow], heads: list[bool], direction: Array, upper: Array, notes: tuple[str, ...]
) -> FisherEstimate:
    bound = np.asarray(sum(np.asarray(row.term) for row in rows))
    bulk = np.asarray(sum(np.asarray(row.bulk) for row in rows))
    head = np.asarray(
        sum(np.asarray(row.term) for row, first in zip(rows, heads, strict=True) if first)
    )
    positive = np.where(bound > 0, bound, 1.0)
    above = [*rows[1:], rows[-1]]
    finished = tuple(
        replace(row, share=row.term / positive, growth=_ratio(row.gradient, later.gradient))
        for row, later in zip(rows, above, strict=True)
    )
    return FisherEstimate(finished, bound, head, direction, bulk, upper, notes)


def _ratio(first: float | Array, second: float | Array) -> Array:
    second = np.asarray(second)
    with np.errstate(invalid="ignore"):  # both infinite in a batch of fewer than four values
        return np.asarray(first) / np.where(second == 0, 1.0, second)


def _approximations(flow: _Flow) -> tuple[str, ...]:
    notes = []
    for node in flow.graph.nodes:
        source = node.inputs[0]
        nonlinear = isinstance(node.operation, Nonlinearity) and source != INPUT
        if nonlinear and not flow.fields[source].gaussian:
            notes.append(f"{node.name} takes values that are not normal as if they were")
    logits = logit_variances(flow.graph, flow.fields)
    if logits:
        notes.append(
            "attention weights are expanded about uniform ones, to first order in the variance of "
            f"the logits ({max(logits.values()):.2g} or less, over tokens)"
        )
    operations = [node.operation for node in flow.graph.nodes]
    if any(isinstance(each, MaxPool) for each in operations):
        notes.append("max pooling takes the values of a window as normal and equally correlated")
    if any(isinstance(each, Dropout) for each in operations):
        notes.append("dropout counts by the mean and variance of its mask in train mode")
    if flow.setting.resolve and not flow.fields[0].resolved:
        notes.append("large maps are taken to be alike at all positions")
    return tuple(notes)


def _left_out(flow: _Flow) -> tuple[str, ...]:
    """Return a note on parameters beside weights that have no term."""
    nodes = flow.graph.nodes
    weighted = {k for k, node in enumerate(nodes) if isinstance(node.operation, Weighted)}
    names = [
        node.name
        for node in nodes
        if (isinstance(node.operation, Norm) and node.inputs[0] not in weighted)
        or isinstance(node.operation, Constant)
    ]
    if not names:
        return ()
    return (
        f"the parameters of {len(names)} norms and constants that do not follow a weighted layer "
        f"have no term (the first is {names[0]})",
    )


def product_edge(ratio: Array, layers: Array) -> Array:
    r"""Return the upper edge of the spectrum of a product of Wishart matrices of mean one.

    .. math:: \min_{w > 0} (1 + 1/w) (1 + c w / k)^k

    For k = 1 it is Marchenko and Pastur's :math:`(1 + \sqrt{c})^2`.

    Notation: c = ratio, k = layers.

    Args:
        ratio: size of the matrix over the width, summed over the layers.
        layers: number of factors.

    Returns:
        The edge, 1 where there are no factors.

    >>> float(product_edge(np.array(0.25), np.array(1.0)).round(9))
    2.25
    """
    ratio, layers = (np.asarray(v, dtype=float) for v in np.broadcast_arrays(ratio, layers))
    c, k = np.maximum(ratio, 1e-12), np.maximum(layers, 1.0)
    # the logarithm is stationary where c w (1 + w) = 1 + c w / k, a quadratic in w
    linear = c * (1 - 1 / k)
    w = (-linear + np.sqrt(linear**2 + 4 * c)) / (2 * c)
    edge = (1 + 1 / w) * np.exp(k * np.log1p(c * w / k))
    return np.where((ratio <= 0) | (layers <= 0), 1.0, edge)


def finite_outputs(outputs: int) -> float:
    """Return the number of outputs whose edge is the mean top eigenvalue of a few outputs.

    >>> round(finite_outputs(10), 2)
    7.57
    """
    shrunk = 1 - 0.5 * _TRACY_WIDOM_MEAN * outputs ** (-2 / 3)
    return float(outputs * shrunk**2)


def extreme_normal(count: float) -> float:
    """Return the expected maximum of so many standard normal variables.

    >>> round(extreme_normal(300), 2)
    2.86
    """
    return float(ndtri(0.5264 ** (1 / count))) if count > 1 else 0.0


def sample_factor(path: Array, outputs: int, batch_size: float) -> Array:
    """Return the top eigenvalue of an extreme sample over its mean squared gradient.

    Args:
        path: of the gradients (:class:`normscope.meanfield.field.Signal`).
        outputs: of the network.
        batch_size: number of samples.

    Returns:
        The factor, at least about one.
    """
    edge = product_edge(path[:, 2] * outputs, path[:, 1])
    variance = path[:, 3]
    largest = np.exp(extreme_normal(batch_size) * np.sqrt(variance) - variance / 2)
    return np.asarray(edge * np.maximum(largest, 1.0))
