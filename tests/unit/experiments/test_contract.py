"""What every experiment must keep, run at quick scale."""

import numpy as np
import pytest
import xarray as xr
from matplotlib.figure import Figure

from normscope.experiments import EXPERIMENTS, SCALES, run
from normscope.papers import PAPERS

_runs = {}


def quick(name):
    """The run of a name, made once."""
    if name not in _runs:
        _runs[name] = run(name)
    return _runs[name]


@pytest.fixture(params=list(EXPERIMENTS))
def name(request):
    return request.param


def test_name_is_a_paper_and_a_figure(name):
    paper, _, figure = name.partition("/")
    assert paper in PAPERS
    assert figure.isidentifier()
    assert EXPERIMENTS.summary(name).endswith(".")
    assert all(EXPERIMENTS[name].settings(scale, {}) for scale in SCALES)


def test_numbers_are_finite_somewhere_and_labelled(name):
    dataset = quick(name).dataset
    for variable in dataset.data_vars.values():
        if np.issubdtype(variable.dtype, np.number):
            assert np.isfinite(variable.values).any(), variable.name
        assert all(dimension in dataset.coords for dimension in variable.dims), variable.dims


def test_claims_have_numbers_and_a_source(name):
    for claim in quick(name).claims:
        assert any(letter.isdigit() for letter in claim.measured), claim
        assert any(paper in claim.source for paper in PAPERS), claim
        assert claim.holds in (True, False, None)
        assert not isinstance(claim.holds, np.bool_)


def test_files_are_written_and_numbers_come_back(name, tmp_path):
    result = quick(name)
    paths = result.write(tmp_path)
    assert paths["figure"].stat().st_size > 1000
    back = xr.load_dataset(paths["numbers"], engine="scipy")
    for key, variable in result.dataset.data_vars.items():
        np.testing.assert_array_equal(back[key].values, variable.values)


def test_figure_draws(name):
    assert isinstance(quick(name).figure(), Figure)


@pytest.mark.slow
def test_same_seed_gives_the_same_numbers(name):
    xr.testing.assert_identical(quick(name).dataset, run(name).dataset)
