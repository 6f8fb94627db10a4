r"""From order parameters to the top of the spectrum of the Fisher matrix.

.. math:: \lambda_{\max} \ge \sum_l f_l, \qquad
    f_l = N_{l-1} \sum_{ab} E\langle \delta_a(x), \delta_b(y)\rangle
    \, \hat q_{ab,xy}^{l-1}

Reference: wei2018, Claim 3.1, with sums over positions instead of means.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from normscope.errors import InputError
from normscope.meanfield.bulk import finite_outputs, product_edge, sample_factor
from normscope.meanfield.field import PAIR, SAME, Field, Signal
from normscope.meanfield.gaussian_integrals import Array
from normscope.meanfield.graph import INPUT, Graph, Input
from normscope.meanfield.layer_row import LayerRow, row_of
from normscope.meanfield.norms import Norm
from normscope.meanfield.operations import Setting, Weighted
from normscope.meanfield.pointwise import Nonlinearity

__all__ = ["Estimate", "estimate"]


@dataclass(frozen=True, eq=False)
class Estimate:
    """What a closure says about one network, for each setting of a sweep.

    Args:
        layers: the table.
        lower_bound: sum of the layers' terms, per output.
        head: the part of it that comes from the last layer.
        mean_direction: largest eigenvalue along mean gradients, over all outputs.
        bulk: largest eigenvalue of a single sample.
        upper_bound: mean squared gradient of one output.
        notes: approximations made on the way.
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
    """A graph with everything that has flowed through it."""

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
) -> Estimate:
    """Flow order parameters through a graph and sum up what they say of the Fisher matrix.

    Args:
        graph: the network.
        data: moments of its inputs.
        setting: how to flow.
        every_parameter: whether biases and the norm layers' parameters count beside weights.

    Returns:
        The estimate.

    Raises:
        InputError: if no weights lead to the output.
    """
    start = data.field(setting.resolve)
    fields = graph.forward(start, setting)
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
    return _summed(rows, heads, direction, upper, _approximations(flow))


def _over_outputs(flow: _Flow, index: int, signal: Signal) -> Array:
    """Top eigenvalue of the outputs' mean gradients at a layer over their mean square."""
    layers = signal.path[:, 1]
    passed = np.where(layers > 0, signal.path[:, 0] + 1 / flow.fields[index].channels, 0.0)
    return product_edge(passed * finite_outputs(flow.outputs), layers)


def _row(flow: _Flow, index: int, signal: Signal, every: bool) -> tuple[LayerRow, Array]:
    """One weighted layer's line, and its part of the mean squared gradient."""
    node, output = flow.graph.nodes[index], flow.fields[index]
    operation = node.operation
    assert isinstance(operation, Weighted)
    assert output.gathered is not None
    source = flow.start if node.inputs[0] == INPUT else flow.fields[node.inputs[0]]
    term = operation.fan_in * (signal.kernel[:, PAIR] * output.gathered[:, PAIR]).sum((-2, -1))
    taken = output.gathered[:, SAME]
    if signal.centred:  # the statistics above take the mean of what goes in away
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
    return row_of(node.name, operation.fan_in, output, source, signal, term, bulk), own


def _norm_terms(flow: _Flow, index: int) -> Array:
    """Terms of scale and shift of a normalization that follows a weighted layer directly."""
    for later, node in enumerate(flow.graph.nodes):
        signal = flow.signals[later]
        if isinstance(node.operation, Norm) and node.inputs == (index,) and signal is not None:
            return np.asarray(signal.total + _scale_term(flow, later))
    return np.zeros(1)


def _scale_term(flow: _Flow, index: int) -> Array:
    """Mean product of two samples' derivatives by the scale, where an activation follows."""
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
) -> Estimate:
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
    return Estimate(finished, bound, head, direction, bulk, upper, notes)


def _ratio(first: float | Array, second: float | Array) -> Array:
    second = np.asarray(second)
    return np.asarray(first) / np.where(second == 0, 1.0, second)


def _approximations(flow: _Flow) -> tuple[str, ...]:
    notes = []
    for node in flow.graph.nodes:
        source = node.inputs[0]
        nonlinear = isinstance(node.operation, Nonlinearity) and source != INPUT
        if nonlinear and not flow.fields[source].gaussian:
            notes.append(f"{node.name} takes values that are not normal as if they were")
    if flow.setting.resolve and not flow.fields[0].resolved:
        notes.append("large maps are taken to be alike at all positions")
    return tuple(notes)
