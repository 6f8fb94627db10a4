"""The recursions as printed in the paper, for chains of linear layers and convolutions with ReLU.

BatchNorm divides by the root of q, and the products of gradients at two positions start at one and
keep their mean over positions from layer to layer. The other closures avoid both approximations.

Reference: wei2018, Eqs. (20)-(25), (34)-(43) and Claim 3.1; base cases of Claim 6.1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from normscope.errors import InputError
from normscope.meanfield.activations import Nonlinearity, Rectifier
from normscope.meanfield.assumptions import check_weight_means
from normscope.meanfield.field import Combination, Operation, Setting, Weighted
from normscope.meanfield.fisher import FisherEstimate
from normscope.meanfield.graph import INPUT, Graph, Input
from normscope.meanfield.integrals import Array
from normscope.meanfield.norms import BatchNorm
from normscope.meanfield.pooling import Flatten
from normscope.meanfield.result import LayerRow
from normscope.meanfield.weighted import Convolution

Three = tuple[Array, Array, Array]  # for one sample; two samples; two samples at two positions


@dataclass(frozen=True)
class _Step:
    """One layer of the paper: weights, optional BatchNorm, and ReLU except after the last."""

    name: str
    weights: Weighted
    norm: BatchNorm | None
    positions: int


def printed_estimate(graph: Graph, data: Input) -> FisherEstimate:
    """Return the lower bound exactly as printed.

    Args:
        graph: a chain of linear layers or convolutions, BatchNorm or none, and ReLU.
        data: moments of its inputs.

    Returns:
        The estimate; its largest eigenvalue is the lower bound, as in the paper.

    Raises:
        InputError: if the paper has no recursion for an operation of the network.
    """
    steps, start = _steps(graph), data.field(Setting())
    check_weight_means(graph, start, graph.forward(start, Setting()))
    below: list[Three] = [_input_moments(data)]
    moments: list[Three] = []
    for step in steps:
        w, b = step.weights.weight_variance, step.weights.bias_variance
        q, q_xy, q_ab = (b + w * value for value in below[-1])
        moments.append((q, q_xy, q_ab))
        below.append(_activated(step.norm, (q, q_xy, q_ab)))
    signal: Three = (np.ones(1), np.ones(1), np.ones(1))
    rows = [_row(steps[-1], moments[-1], below[-2], signal)]
    for index in reversed(range(len(steps) - 1)):
        w = steps[index + 1].weights.weight_variance
        signal = _pulled_back(steps[index].norm, moments[index], signal, w)
        rows.insert(0, _row(steps[index], moments[index], below[index], signal))
    return _summed(rows)


def _steps(graph: Graph) -> list[_Step]:
    """Return the chain as the paper's layers."""
    steps: list[_Step] = []
    positions = graph.shape[1:]
    for index, node in enumerate(graph.nodes):
        operation = node.operation
        if node.inputs != ((INPUT if index == 0 else index - 1),):
            raise _refused(node.name, "a branch")
        if isinstance(operation, Weighted):
            if isinstance(operation, Convolution):
                positions = operation.window.outputs(positions)
            count = int(np.prod(positions)) if isinstance(operation, Convolution) else 1
            steps.append(_Step(node.name, operation, None, count))
        elif isinstance(operation, BatchNorm) and steps and operation.beta == 0:
            steps[-1] = replace(steps[-1], norm=operation)
        elif not _allowed(operation):
            raise _refused(node.name, type(operation).__name__)
    if not steps or not isinstance(graph.nodes[-1].operation, Weighted):
        raise _refused(graph.nodes[-1].name, "a last layer that is not linear")
    return steps


def _allowed(operation: Operation | Combination) -> bool:
    if isinstance(operation, Nonlinearity):
        return isinstance(operation.function, Rectifier) and operation.function.slope == 0
    return isinstance(operation, Flatten)


def _refused(name: str, what: str) -> InputError:
    return InputError(
        f"{name}: the printed recursions do not cover {what}, only chains of linear layers or "
        "convolutions, BatchNorm with beta = 0, and ReLU; use closure='train' or 'frozen'."
    )


def _input_moments(data: Input) -> Three:
    field = data.field(Setting())
    one = field.kernel[:, :, 0, 0]
    two = field.kernel[:, 1, 0, -1]
    return one[:, 0], one[:, 1], two


def _activated(norm: BatchNorm | None, moments: Three) -> Three:
    if norm is not None:
        squared = np.square(np.asarray(norm.gamma)).reshape(-1)
        return squared / 2, squared / (2 * np.pi), squared / (2 * np.pi)
    q, q_xy, q_ab = moments
    return q / 2, _arc_cosine(q, q_xy / q), _arc_cosine(q, q_ab / q)


def _arc_cosine(q: Array, c: Array) -> Array:
    root = np.sqrt(np.maximum(1 - c * c, 0.0))
    return np.asarray(q / (2 * np.pi) * (root + c * np.pi / 2 + c * np.arcsin(c)))


def _pulled_back(norm: BatchNorm | None, moments: Three, signal: Three, w: float) -> Three:
    q, q_xy, q_ab = moments
    if norm is not None:
        squared = np.square(np.asarray(norm.gamma)).reshape(-1) * w / q
        return signal[0] * squared / 2, signal[1] * squared / 4, signal[2] * squared / 4
    slopes = [w / (2 * np.pi) * (np.pi / 2 + np.arcsin(value / q)) for value in (q_xy, q_ab)]
    return w / 2 * signal[0], slopes[0] * signal[1], slopes[1] * signal[2]


def _row(step: _Step, moments: Three, below: Three, signal: Three) -> LayerRow:
    k, fan_in = step.positions, step.weights.fan_in
    own, pair, different = signal
    backward, forward = (k - 1) * different + pair, (k - 1) * below[2] + below[1]
    term = fan_in * backward * forward
    zero = np.zeros_like(term)
    totals = (k * own, k * pair, k * backward)
    return LayerRow(
        step.name, fan_in, k, *moments, *below, *totals, zero, term, share=zero, bulk=zero
    )


def _summed(rows: list[LayerRow]) -> FisherEstimate:
    bound = np.asarray(sum(np.asarray(row.term) for row in rows))
    upper = np.asarray(
        sum(row.inputs * np.asarray(row.input_second_moment * row.gradient) for row in rows)
    )
    above = [*rows[1:], rows[-1]]
    finished = tuple(
        replace(row, share=row.term / bound, growth=row.gradient / later.gradient)
        for row, later in zip(rows, above, strict=True)
    )
    head = np.asarray(rows[-1].term)
    return FisherEstimate(finished, bound, head, bound, np.zeros_like(bound), upper)
