"""One line of the table of order parameters: a weighted layer."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from normscope.meanfield.field import PAIR, SAME, Field, Signal
from normscope.meanfield.gaussian_integrals import Array

__all__ = ["NOTHING", "LayerRow", "row_of"]

Number = float | Array

NOTHING = 1e-9  # of the mean squared gradient, below which a mean gradient is rounding


@dataclass(frozen=True, eq=False)
class LayerRow:
    """Order parameters of one linear layer or convolution, and its term of the bound.

    A number, or an array over the values of gamma in a sweep. The paper's names: ``second_moment``
    is q, ``second_moment_pair`` q_xy, ``second_moment_positions`` q_ab,xy; with ``input_`` before
    them they are q^ of the layer below; ``gradient`` is q~ (summed over positions),
    ``gradient_pair`` S, ``gradient_total`` D; ``term`` is f_l.

    Args:
        name: of the layer.
        inputs: of one unit, N.
        positions: of its output.
        second_moment: mean square of its output.
        second_moment_pair: mean product for two samples at one position.
        second_moment_positions: mean product for two samples at two positions.
        input_second_moment: mean square of what it takes in.
        input_pair: mean product for two samples of that, at one position.
        input_positions: the same at two positions.
        gradient: squared norm of one sample's gradient at the layer's output.
        gradient_pair: product of two samples' gradients, summed over positions.
        gradient_total: the same over all pairs of positions.
        growth: gradient over that of the weighted layer above (the one before it in the table's
            reverse order); 1 for the last.
        term: the layer's part of the lower bound.
        share: of the lower bound.
        bulk: the layer's part of the largest eigenvalue of a single sample.
    """

    name: str
    inputs: int
    positions: int
    second_moment: Number
    second_moment_pair: Number
    second_moment_positions: Number
    input_second_moment: Number
    input_pair: Number
    input_positions: Number
    gradient: Number
    gradient_pair: Number
    gradient_total: Number
    growth: Number
    term: Number
    share: Number
    bulk: Number

    @property
    def is_rounding(self) -> bool:
        """Whether the term of a single setting is zero but for rounding.

        Its scale is what it would be if all samples had the same input and gradient; the terms of
        two samples cancel from numbers of that size.
        """
        scale = self.inputs * float(self.input_second_moment) * float(self.gradient)
        return abs(float(self.term)) <= NOTHING * scale

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, texts and lists."""
        return {each.name: _plain(getattr(self, each.name)) for each in fields(self)}


def row_of(
    name: str, fan_in: int, output: Field, source: Field, signal: Signal, term: Array, bulk: Array
) -> LayerRow:
    """The line of one weighted layer; growth and share are filled in when all are there."""
    empty = np.zeros_like(term)
    return LayerRow(
        name,
        fan_in,
        output.count,
        *_moments(output),
        *_moments(source),
        signal.own,
        signal.diagonal,
        signal.total,
        growth=empty,
        term=term,
        share=empty,
        bulk=bulk,
    )


def _moments(field: Field) -> tuple[Array, Array, Array]:
    """Mean square; mean product of two samples at one and at two positions."""
    second, pair = (
        np.diagonal(field.kernel[:, plane], axis1=-2, axis2=-1).mean(-1) for plane in (SAME, PAIR)
    )
    over_all = field.row_means(field.kernel[:, PAIR]).mean(-1)
    count = field.count
    different = pair if count == 1 else (over_all - pair / count) / (1 - 1 / count)
    return np.asarray(second), np.asarray(pair), np.asarray(different)


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value
