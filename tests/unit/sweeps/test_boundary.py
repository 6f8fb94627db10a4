"""Bisection for the critical learning rate: accuracy, number of trainings, resuming."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from normscope.errors import InputError
from normscope.results import Store
from normscope.sweeps import boundary, phase_diagram
from normscope.sweeps.boundary import Search

SMALL = {"epochs": 1, "width": 32, "samples": 640, "test_samples": 64}


@given(st.floats(1e-4, 1e2), st.floats(-1.5, 1.5))
def test_search_brackets_the_limit_to_five_percent(limit, decades):
    search = Search(limit * 10**decades)
    while (rate := search.next_rate()) is not None:
        search.learn(rate, diverged=rate > limit)
    assert search.low <= limit <= search.high <= 1.05 * search.low * (1 + 1e-5)
    assert search.trainings <= 14


@given(st.floats(1e-3, 1e3), st.floats(0.3, 3.0))
def test_repeated_search_starts_at_the_bracket(limit, ratio):
    first = Search(1.0)
    while (rate := first.next_rate()) is not None:
        first.learn(rate, diverged=rate > limit)
    again, other = first.repeated(), limit * ratio
    while (rate := again.next_rate()) is not None:
        again.learn(rate, diverged=rate > other)
    assert again.low <= other <= again.high <= 1.05 * again.low * (1 + 1e-5)
    if first.low <= other < first.high:
        assert (again.low, again.high, again.trainings) == (first.low, first.high, 2)
    assert again.trainings <= 12


@pytest.mark.parametrize("ending", [True, False])
def test_search_without_a_limit_gives_up(ending):
    search = Search(1.0)
    while (rate := search.next_rate()) is not None:
        search.learn(rate, diverged=ending)
    assert math.isnan(search.critical)
    assert search.trainings < 12


def test_boundary_needs_a_fifth_of_the_grid_s_trainings():
    gammas = [0.5, 1.0, 2.0]
    with Store(":memory:") as store:
        found = boundary(gammas, store=store, **SMALL)
        trainings = len(store.select())
        assert trainings == int(found["trainings"].sum())
        # a grid with steps of 5 % over the decade around the boundaries that were found
        rates = found["critical_learning_rate"]
        span = float(rates.max() / rates.min()) * 10
        columns = math.ceil(math.log(span) / math.log(1.05))
        assert 5 * trainings <= columns * len(gammas)
        # the brackets hold: stable below, exploded above
        for gamma in gammas:
            low, high = (float(found[name].sel(gamma=gamma)[0]) for name in ("low", "high"))
            assert high <= 1.05 * low * (1 + 1e-5)
            row = phase_diagram(gammas=[gamma], learning_rates=[low, high], data="digits", **SMALL)
            assert row["diverged"].values.ravel().tolist() == [False, True]
    assert np.isfinite(found["theory"].sel(closure="train")).all()


def test_boundary_over_another_setting():
    """Larger weights have a larger curvature and a smaller limit; the trainings are the same."""
    network = {"norm": "none", **SMALL}
    with Store(":memory:") as store:
        found = boundary([0.5, 4.0], setting="sigma_w2", store=store, seeds=2, **network)
        trainings = len(store.select())
        alone = boundary([1.0], sigma_w2=4.0, store=store, seeds=2, **network)
        assert len(store.select()) == trainings
    assert found["low"].dims == ("sigma_w2", "seed")
    assert found["theory"].dims == ("closure", "sigma_w2")
    assert (found["high"].isel(sigma_w2=1) < found["low"].isel(sigma_w2=0)).all()
    for name in ("low", "high"):
        np.testing.assert_array_equal(alone[name].values[0], found[name].sel(sigma_w2=4.0))


def test_boundary_that_was_interrupted_goes_on():
    def stop(event):
        raise KeyboardInterrupt

    with Store(":memory:") as store:
        with pytest.raises(KeyboardInterrupt):
            boundary([1.0], store=store, progress=stop, **SMALL)
        begun = len(store.select(state="finished")) + len(store.select(state="diverged"))
        assert begun == 1
        resumed = boundary([1.0], store=store, **SMALL)
    xr_identical = boundary([1.0], **SMALL)
    assert resumed.identical(xr_identical)


def test_read_only_store_gives_what_it_has(tmp_path):
    path, rounds = tmp_path / "runs.sqlite", []

    def stop(event):
        rounds.append(event.stage)
        if "round 4" in rounds:
            raise KeyboardInterrupt

    with Store(path) as store, pytest.raises(KeyboardInterrupt):
        boundary([1.0], seeds=2, store=store, progress=stop, **SMALL)
    with Store(path, read_only=True) as store:
        partial = boundary([1.0], seeds=2, store=store, **SMALL)
    whole = boundary([1.0], seeds=2, store=path, **SMALL)
    low, high = (partial[name].values[0] for name in ("low", "high"))
    assert low[0] <= whole["low"][0, 0] < whole["high"][0, 0] <= high[0]
    assert np.isnan([low[1], high[1]]).all()  # the second seed was not begun
    with Store(path, read_only=True) as store:
        assert boundary([1.0], seeds=2, store=store, **SMALL).identical(whole)


@pytest.mark.parametrize("tolerance", [0.0, 1e-7, math.inf, math.nan])
def test_tolerance_is_checked(tolerance):
    with pytest.raises(InputError, match="tolerance must be at least 1e-05"):
        boundary([1.0], tolerance=tolerance)


@pytest.mark.parametrize("tolerance", [1e-5, 1e-7])
def test_search_ends_where_rounding_leaves_nothing_between(tolerance):
    search = Search(1.0, tolerance)
    while (rate := search.next_rate()) is not None:
        search.learn(rate, diverged=rate > 1.2345678)
        assert search.trainings < 60
    assert search.low <= 1.2345678 <= search.high <= 1.00002 * search.low


def test_records_are_not_those_of_a_diagram():
    """A small net alone and in a group differ by rounding: which came first must not matter."""
    with Store(":memory:") as store:
        boundary([1.0], store=store, **SMALL)
        assert store.select("phase_diagram") == []
        assert len(store.select("phase_boundary")) > 3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"learning_rate": 0.1}, "what is searched for"),
        ({"gamma": 1.0}, "give its values as gammas"),
        ({"setting": "sigma_w2", "sigma_w2": 1.0}, "give its values as sigma_w2"),
        ({"setting": "learning_rate"}, "setting must not be learning_rate"),
        ({"setting": "sigma"}, "unknown option 'sigma'"),
        ({"gammas": 1.0}, "gammas needs values in a list"),
        ({"gammas": []}, "gamma needs values"),
        ({"gammas": [1, 1.0]}, "each of them once"),
        ({"gammas": ["a"]}, "gamma must be a finite number"),
        ({"epochs": -1}, "epochs must be above 0"),
    ],
)
def test_wrong_settings_are_refused_before_anything_is_stored(arguments, said):
    with Store(":memory:") as store:
        with pytest.raises(InputError, match=said):
            boundary(**{"gammas": [1.0], "store": store, **arguments})
        assert store.select() == []
