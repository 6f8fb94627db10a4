"""Names at the ends of lines, and the values under the pointer."""

from itertools import pairwise

import numpy as np
import pytest
from matplotlib.figure import Figure

from normscope.plots.labels import add_values, label_ends, values_of


def heights(axes):
    """Height of every name as a share of the axes, by the name."""
    return {text.get_text(): text.xy[1] for text in axes.texts}


def test_names_are_at_the_height_where_lines_end():
    axes = Figure(figsize=(5, 4)).subplots()
    axes.set(xlim=(0, 1), ylim=(0, 10))
    axes.plot([0, 1], [9, 2], label="falls")
    axes.plot([1, 0], [8, 1], label="is drawn backwards")
    axes.plot([0, 0.5, 1], [3, 5, np.nan], label="ends early")
    axes.plot([0, 1], [1, 1])  # has no name
    label_ends(axes)
    wanted = {"falls": 0.2, "ends early": 0.5, "is drawn backwards": 0.8}
    assert heights(axes) == pytest.approx(wanted)
    assert axes.texts[0].get_color() == axes.lines[0].get_color()


def test_names_of_lines_that_end_together_do_not_overlap():
    figure = Figure(figsize=(5, 3), layout="constrained")
    axes = figure.subplots()
    for number in range(6):
        axes.plot([0, 1], [number, 10.0], label=f"line {number}")
    label_ends(axes)
    figure.draw_without_rendering()
    boxes = sorted((text.get_window_extent() for text in axes.texts), key=lambda box: box.y0)
    assert all(low.y1 <= high.y0 + 1 for low, high in pairwise(boxes))
    assert max(heights(axes).values()) <= 1.0


def test_line_without_a_finite_point_has_no_name():
    axes = Figure().subplots()
    axes.plot([0, 1], [np.nan, np.nan], label="unknown")
    label_ends(axes)
    assert not axes.texts


def test_values_are_few_and_finite():
    axes = Figure().subplots()
    y = np.where(np.arange(1000) % 2, np.nan, 0.123456)
    add_values(axes, np.arange(1000), y, ("step", "loss"), "a net")
    (found,) = values_of(axes)
    assert len(found.texts) == len(found.places) == 100
    assert found.texts[1] == ("10", "0.123")
    assert values_of(Figure().subplots()) == []


def test_value_may_differ_from_the_height():
    axes = Figure().subplots()
    add_values(axes, [0.5], [3.0], ("", "limit"), shown=[0.5])
    assert values_of(axes)[0].texts == [("0.5", "0.5")]
