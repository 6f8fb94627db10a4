"""Ranges as texts, there and back."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from normscope.ranges import number_range, range_text

ENDS = st.floats(1e-6, 1e6).map(lambda value: float(f"{value:.3g}"))


@given(ENDS, ENDS, st.integers(3, 40), st.booleans())
def test_range_of_the_command_line_is_found_again(first, last, count, by_ratio):
    values = number_range(f"{first!r}:{last!r}:{count}{':log' if by_ratio else ''}")
    text = range_text(values)
    assert text is not None
    assert number_range(text) == values


@pytest.mark.parametrize(
    "values",
    [
        [0.5, 1.0],  # no longer as a list
        [1, 2, 3],  # whole numbers, which a range would make decimal
        [0.1, 0.20000000000000004, 0.3],  # another digit, another training
        [0.01, 0.0215, 0.0464, 0.1],  # rounded by hand
        [-1.0, 0.5, 1.0],  # uneven, and no logarithm
        [1.0, 2.0, float("inf")],
        ["batch", "layer", "none"],
        [None, 1.0, 2.0],
        [],
    ],
)
def test_values_that_are_no_range_are_none(values):
    assert range_text(values) is None


def test_even_range_is_told_before_one_by_ratio():
    assert range_text([2.0, 2.0, 2.0]) == "2:2:3"


def test_numbers_of_numpy_are_numbers():
    assert range_text(list(np.linspace(0, 1, 3))) == "0:1:3"
