"""The order of the cells and their groups."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from normscope.errors import InputError
from normscope.sweeps import Diagram, grid_cells

SMALL = {"width": 8, "epochs": 1, "samples": 256}


def order_of(*sizes):
    """The places of a grid in the order in which they are computed."""
    axes = {f"axis {number}": range(size) for number, size in enumerate(sizes)}
    return [tuple(cell.parameters.values()) for cell in grid_cells(axes, {}, [0])]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=3))
def test_every_place_comes_once(sizes):
    found = order_of(*sizes)
    expected = 1
    for size in sizes:
        expected *= size
    assert len(found) == len(set(found)) == expected
    assert all(0 <= i < size for place in found for i, size in zip(place, sizes, strict=True))


def test_a_part_of_the_order_covers_the_whole_grid():
    quarter = order_of(9, 17)[: 9 * 17 // 4]
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


def kind_of(cell):
    return cell.parameters["norm"], cell.seed


def test_units_gather_alike_cells_only():
    """Nets that differ in gamma and rate train together, up to eight; others alone."""
    axes = {"gamma": [0.5, 1.0, 2.0], "norm": ["batch", "none", "layer"]}
    axes["learning_rate"] = [0.01, 0.1, 1.0, 10.0]
    plan = Diagram(axes, SMALL, [0, 1])
    cells = [cell for unit in plan.units for cell in unit.cells]
    assert sorted(map(repr, cells)) == sorted(map(repr, plan.cells))
    sizes = {}
    for unit in plan.units:
        (kind,) = {kind_of(cell) for cell in unit.cells}
        sizes.setdefault(kind, []).append(len(unit.cells))
    together = {(norm, seed): [8, 4] for norm in ("batch", "none") for seed in (0, 1)}
    assert sizes == {**together, ("layer", 0): [1] * 12, ("layer", 1): [1] * 12}
    for kind in sizes:  # in the order of the grid
        own = [cell for cell in cells if kind_of(cell) == kind]
        assert own == [cell for cell in plan.cells if kind_of(cell) == kind]


def test_units_are_the_same_every_time():
    axes = {"gamma": [1.0, 2.0, 3.0], "learning_rate": [0.1, 0.2, 0.3]}
    assert Diagram(axes, SMALL, [0, 1]).units == Diagram(axes, SMALL, [0, 1]).units
