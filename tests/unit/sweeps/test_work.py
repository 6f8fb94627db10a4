"""The order of the cells and their groups."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from normscope.errors import InputError
from normscope.sweeps import Cell, grid_cells
from normscope.sweeps.work import coarse_to_fine, group_cells


@given(st.lists(st.integers(1, 9), min_size=1, max_size=3))
def test_every_place_comes_once(sizes):
    found = coarse_to_fine(sizes)
    expected = 1
    for size in sizes:
        expected *= size
    assert len(found) == len(set(found)) == expected
    assert all(0 <= i < size for place in found for i, size in zip(place, sizes, strict=True))


def test_a_part_of_the_order_covers_the_whole_grid():
    quarter = coarse_to_fine([9, 17])[: 9 * 17 // 4]
    # no place of the grid is further than two rows and two columns from one that is known
    for i in range(9):
        for j in range(17):
            assert any(abs(i - a) <= 2 and abs(j - b) <= 2 for a, b in quarter)


def test_cells_hold_all_settings_and_seeds_follow_each_other():
    cells = grid_cells({"gamma": [1.0, 2.0], "learning_rate": [0.1]}, {"epochs": 2}, [3, 4])
    assert [cell.seed for cell in cells] == [3, 3, 4, 4]
    assert cells[0].parameters == {"epochs": 2, "gamma": 1.0, "learning_rate": 0.1}


@pytest.mark.parametrize("axes", [{"gamma": []}, {"gamma": [1.0, 1.0]}, {"gamma": [1, 1.0]}])
def test_empty_and_doubled_axes_are_refused(axes):
    with pytest.raises(InputError, match="gamma needs values, each of them once"):
        grid_cells(axes, {}, [0])


def test_truth_values_are_no_numbers():
    assert len(grid_cells({"flag": [True, 1]}, {}, [0])) == 2


def test_units_gather_alike_cells_only():
    cells = [Cell({"kind": kind, "number": n}, 0) for n, kind in enumerate("ababaca")]
    alone = {"c"}
    units = list(
        group_cells(
            cells, 2, lambda c: None if c.parameters["kind"] in alone else c.parameters["kind"]
        )
    )
    kinds = ["".join(cell.parameters["kind"] for cell in unit.cells) for unit in units]
    assert kinds == ["aa", "bb", "c", "aa"]
    assert sum(len(unit.cells) for unit in units) == len(cells)


def test_units_of_a_part_that_is_left_are_those_of_the_whole():
    cells = grid_cells({"gamma": [1.0, 2.0, 3.0], "learning_rate": [0.1, 0.2]}, {}, [0, 1])
    first = list(group_cells(cells, 4, lambda cell: cell.seed))
    again = list(group_cells(cells, 4, lambda cell: cell.seed))
    assert first == again
    assert [len(unit.cells) for unit in first] == [4, 4, 2, 2]
