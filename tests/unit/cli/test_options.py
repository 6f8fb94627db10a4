"""Values of options: literals, lists, ranges."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from normscope.cli.options import named_lists, named_values, numbers, value_list
from normscope.errors import InputError
from normscope.ranges import number_range


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3", [3]),
        ("0.5", [0.5]),
        ("mnist", ["mnist"]),
        ("None", [None]),
        ("1,2,3", [1, 2, 3]),
        ("batch,none", ["batch", "none"]),
        ("0:1:5", [0.0, 0.25, 0.5, 0.75, 1.0]),
        ("1e-3:1:4:log", [0.001, 0.01, 0.1, 1.0]),
        ("2:7:1", [2.0]),
        ("(1, 8, 8)", [(1, 8, 8)]),
        ("[30, 60]", [[30, 60]]),
        ("[1],[2]", [[1], [2]]),
        ("C:data", ["C:data"]),
    ],
)
def test_text_is_one_value_or_several(text, expected):
    assert value_list(text) == expected


@given(
    st.floats(1e-6, 1e3), st.floats(1e-6, 1e3), st.integers(2, 40), st.sampled_from(["", ":log"])
)
def test_range_keeps_its_ends_and_its_spacing(first, last, count, kind):
    found = number_range(f"{first!r}:{last!r}:{count}{kind}")
    assert len(found) == count
    assert (found[0], found[-1]) == (first, last)
    scaled = [math.log(value) for value in found] if kind else found
    even = (scaled[-1] - scaled[0]) / (count - 1)
    for before, after in itertools.pairwise(scaled):
        assert after - before == pytest.approx(even, rel=1e-6, abs=1e-9)


def test_numbers_are_one_or_several():
    assert numbers("2", "gamma") == 2.0
    assert numbers("1,2", "gamma") == [1.0, 2.0]
    assert numbers("1:2:2", "gamma") == [1.0, 2.0]


@pytest.mark.parametrize("text", ["1:2", "1:2:0", "1:2:3:lin", "1:2:3:log:log", "nan:1:3", "1:x:3"])
def test_wrong_range_says_what_a_range_is(text):
    with pytest.raises(InputError, match="first:last:count"):
        number_range(text)


@pytest.mark.parametrize("text", ["0:1:3:log", "1:-1:3:log", "1:0:3:log", "-1:1:1:log"])
def test_logarithmic_range_lies_above_zero(text):
    with pytest.raises(InputError, match="above 0"):
        number_range(text)


def test_range_over_all_numbers_is_finite():
    assert number_range("1e308:-1e308:5") == [1e308, 5e307, 0.0, -5e307, -1e308]


def test_names_come_with_their_values():
    assert named_values(["width=100", "data=mnist"]) == {"width": 100, "data": "mnist"}
    assert named_lists(["lr=0.1,1", "gamma=1:2:3"]) == {"lr": [0.1, 1], "gamma": [1.0, 1.5, 2.0]}
    for wrong in ("width", "=3"):
        with pytest.raises(InputError, match="name=value"):
            named_lists([wrong])
