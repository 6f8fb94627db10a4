import re
from itertools import pairwise
from pathlib import Path

import pytest

import normscope
from normscope.plots.axes import logarithmic_axis, step_axis
from normscope.plots.style import new_figure

SIZES = {"page": (6.4, 4.0), "panel": (3.4, 2.6)}
RANGES = [
    (0.2, 3.0),
    (0.9, 1.1),
    (0.034, 0.048),
    (2e4, 7e4),
    (1e-7, 1.0),
    (1e-20, 1e5),
    (1e-250, 1e200),
]


def drawn(low, high, size):
    """Axes with both scales logarithmic from low to high, after they were drawn."""
    figure = new_figure(*size)
    axes = figure.subplots()
    axes.plot([low, high], [low, high])
    logarithmic_axis(axes, "xy")
    figure.draw_without_rendering()
    return axes


def labels_in_view(axis):
    low, high = axis.get_view_interval()
    pairs = zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=True)
    return [label for place, label in pairs if low <= place <= high and label.get_text()]


@pytest.mark.parametrize("limits", RANGES, ids=lambda each: f"{each[0]:g} to {each[1]:g}")
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_three_labels_are_in_view_and_none_overlaps_another(limits, size):
    axes = drawn(*limits, size)
    for axis, first, last in ((axes.xaxis, "x0", "x1"), (axes.yaxis, "y0", "y1")):
        boxes = [label.get_window_extent() for label in labels_in_view(axis)]
        assert len(boxes) >= 3
        ends = [(getattr(box, first), getattr(box, last)) for box in boxes]
        assert all(before[1] < after[0] for before, after in pairwise(ends))
        assert not [each for each in axis.get_ticklabels(minor=True) if each.get_text()]


def test_labels_are_plain_numbers_where_those_are_short():
    texts = [each.get_text() for each in labels_in_view(drawn(0.2, 3.0, (6.4, 4.0)).xaxis)]
    assert texts == ["0.2", "0.5", "1", "2"]
    texts = [each.get_text() for each in labels_in_view(drawn(0.001, 1e4, (6.4, 4.0)).xaxis)]
    assert texts == ["0.01", "1", "100", "10000"]
    texts = [each.get_text() for each in labels_in_view(drawn(1e-7, 1.0, (6.4, 4.0)).xaxis)]
    assert texts[0] == r"$\mathdefault{10^{-6}}$"


def test_labels_follow_limits_that_are_set_later():
    axes = drawn(0.2, 3.0, (6.4, 4.0))
    axes.set_xlim(1e-3, 1.0)
    assert [each.get_text() for each in labels_in_view(axes.xaxis)] == ["0.001", "0.01", "0.1", "1"]


def test_powers_of_two_are_marked_as_numbers():
    axes = new_figure().subplots()
    axes.plot([4, 64], [1, 1])
    logarithmic_axis(axes, "x", base=2)
    assert [each.get_text() for each in labels_in_view(axes.xaxis)] == ["4", "8", "16", "32", "64"]


@pytest.mark.parametrize("limits", [(48, 96), (33, 60), (3, 3.5), (100, 1000)])
def test_axis_of_few_powers_of_two_has_three_numbers_and_no_small_marks(limits):
    axes = new_figure().subplots()
    axes.plot(limits, [1, 1])
    logarithmic_axis(axes, "x", base=2)
    axes.set_xlim(*limits)
    assert len(labels_in_view(axes.xaxis)) >= 3
    assert not len(axes.xaxis.get_ticklocs(minor=True))


@pytest.mark.parametrize("limits", [(2.3025851, 2.3025862), (1.0, 1.0000001), (1e5 + 0.1, 1e5 + 1)])
def test_labels_of_a_narrow_axis_are_as_long_as_tells_them_apart(limits):
    axes = drawn(*limits, (6.4, 4.0))
    texts = [each.get_text() for each in labels_in_view(axes.xaxis)]
    assert len(set(texts)) == len(texts)
    if limits[1] < 10:
        low, high = axes.get_xlim()
        seen = [place for place in axes.get_xticks() if low <= place <= high]
        assert [float(text) for text in texts] == pytest.approx(seen, rel=1e-12)


def texts_within(limits, size=(6.4, 4.0), base=10):
    """The labels of a horizontal axis with exactly these limits."""
    figure = new_figure(*size)
    axes = figure.subplots()
    logarithmic_axis(axes, "x", base)
    axes.set_xlim(*limits)
    figure.draw_without_rendering()
    return [each.get_text() for each in labels_in_view(axes.xaxis)]


TEN = r"$\mathdefault{10^{9}}$"
SMALL = [(3.2, 2.4), (2.2, 1.7)]
LONG = [(30863, 30934), (2.5688e-5, 2.5748e-5), (1.2576e-5, 1.3168e-5), (5e-324, 1e-320)]


@pytest.mark.parametrize(("size", "base"), [(SMALL[0], 10), (SMALL[1], 10), (SMALL[0], 2)])
@pytest.mark.parametrize("limits", LONG, ids=str)
def test_axis_without_room_for_three_long_labels_has_two(limits, size, base):
    texts = texts_within(limits, size, base)
    assert len(set(texts)) == len(texts) >= 2


def test_axis_without_room_for_two_labels_has_one():
    assert len(texts_within((1.23456789e-5, 1.23456799e-5), (1.2, 1.2))) == 1


def test_powers_of_the_smallest_numbers_are_said_as_they_are():
    texts = texts_within((5e-324, 1e-320))
    assert texts == [rf"$\mathdefault{{10^{{-{each}}}}}$" for each in (323, 322, 321, 320)]


@pytest.mark.parametrize("limits", [(0.0013, 0.0026), (0.0013, 1.3), (900, 1170), (40, 4e7)])
@pytest.mark.parametrize("size", SMALL, ids=str)
def test_labels_of_small_figures_do_not_overlap(limits, size):
    axes = drawn(*limits, size)
    for axis in (axes.xaxis, axes.yaxis):
        boxes = [label.get_window_extent() for label in labels_in_view(axis)]
        assert len(boxes) >= 2
        assert not any(one.overlaps(next_one) for one, next_one in pairwise(boxes))


def test_numbers_above_ten_thousand_are_powers():
    assert all(text.startswith("$") for text in texts_within((2e4, 7e4)))
    assert texts_within((10, 1e5))[-1] == r"$\mathdefault{10^{5}}$"


def test_few_plain_numbers_go_before_many_powers():
    assert texts_within((2e-4, 0.2)) == ["0.001", "0.01", "0.1"]  # not 3e-4, 1e-3, 3e-3 ...


def test_steps_are_whole():
    axes = new_figure().subplots()
    axes.plot([0, 3], [1, 1])
    step_axis(axes)
    assert all(place == int(place) for place in axes.get_xticks())


def test_one_step_has_one_mark():
    axes = new_figure().subplots()
    axes.plot([3], [1], "o")
    step_axis(axes)
    assert list(axes.get_xticks()) == [3]


@pytest.mark.parametrize(
    ("limits", "texts"),
    [
        ((0, 5), ["0", "1", "2", "3", "4", "5"]),
        ((0, 1e9), ["0", *(rf"$\mathdefault{{{n}\times 10^{{8}}}}$" for n in (2, 4, 6, 8)), TEN]),
        ((2_000_000, 2_000_004), [f"200000{n}" for n in range(5)]),
        ((2.3, 2.4), ["2.3", "2.35", "2.4"]),
    ],
)
def test_labels_of_steps_need_no_offset(limits, texts):
    figure = new_figure(6.4, 4.0)
    axes = figure.subplots()
    step_axis(axes)
    axes.set_xlim(*limits)
    figure.draw_without_rendering()
    assert [each.get_text() for each in labels_in_view(axes.xaxis)] == texts
    assert axes.xaxis.get_offset_text().get_text() == ""


def test_no_other_logarithmic_axis_is_drawn():
    package = Path(normscope.__file__).parent
    pattern = re.compile(r"""set_[xy]scale\(\s*"log"|[xy]scale="log"|\.(loglog|semilog[xy])\(""")
    found = [
        path.name
        for part in ("plots", "report")
        for path in (package / part).rglob("*.py")
        if pattern.search(path.read_text("utf-8"))
    ]
    assert found == []
