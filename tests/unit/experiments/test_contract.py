"""What every experiment must keep, run at quick scale: one run serves all checks of a name."""

import numpy as np
import pytest
import xarray as xr
from matplotlib.figure import Figure

from normscope.experiments import EXPERIMENTS, SCALES, run
from normscope.papers import PAPERS


def check_numbers(dataset):
    """Finite somewhere, unless it says why not, and every dimension labelled."""
    for variable in dataset.data_vars.values():
        if np.issubdtype(variable.dtype, np.number) and "missing" not in variable.attrs:
            assert np.isfinite(variable.values).any(), variable.name
        assert all(dimension in dataset.coords for dimension in variable.dims), variable.dims


def check_claims(claims):
    """A number and a source each, and a plain verdict."""
    for claim in claims:
        assert any(letter.isdigit() for letter in claim.measured), claim
        assert any(paper in claim.source for paper in PAPERS), claim
        assert claim.holds in (True, False, None)
        assert not isinstance(claim.holds, np.bool_)


def check_files(result, folder):
    """The figure is drawn, and the numbers come back."""
    paths = result.write(folder)
    assert paths["figure"].stat().st_size > 1000
    back = xr.load_dataset(paths["numbers"], engine="scipy")
    for key, variable in result.dataset.data_vars.items():
        np.testing.assert_array_equal(back[key].values, variable.values)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_name_is_a_paper_and_a_figure(name):
    paper, _, figure = name.partition("/")
    assert (paper in PAPERS and figure.isidentifier()) or name == "tour"  # the demo: of no paper
    assert EXPERIMENTS.summary(name).endswith(".")
    assert all(EXPERIMENTS[name].settings(scale, {}) for scale in SCALES)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_quick_run_keeps_the_contract(name, tmp_path):
    result = run(name)
    check_numbers(result.dataset)
    check_claims(result.claims)
    check_files(result, tmp_path)
    assert isinstance(result.figure(), Figure)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_same_seed_gives_the_same_numbers(name):
    xr.testing.assert_identical(run(name).dataset, run(name).dataset)
