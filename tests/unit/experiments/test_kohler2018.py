"""The experiments on length-direction decoupling at quick scale: claims, figures, files."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from normscope.experiments import EXPERIMENTS, run
from normscope.experiments.kohler2018.problems import moments

VERDICTS = {
    "ols": [True, True, False, True, True],  # False: "gradient descent only sub-linear"
    "halfspace": [True, True, True, True, False, True, True],  # False: h as printed
    "mlp": [True, True, False, True],  # False: critical points on one line
}


@pytest.fixture(scope="module")
def results():
    """Every experiment once, at quick scale."""
    return {name: run(f"kohler2018/{name}") for name in VERDICTS}


@pytest.mark.parametrize("name", VERDICTS)
def test_claims_have_their_verdicts(results, name):
    claims = results[name].claims
    assert [claim.holds for claim in claims] == VERDICTS[name], [str(c) for c in claims]
    assert all(any(letter.isdigit() for letter in claim.measured) for claim in claims)
    assert results[name].dataset.sizes["seed"] >= 3


@pytest.mark.parametrize("name", VERDICTS)
def test_files_are_written(results, name, tmp_path):
    paths = results[name].write(tmp_path)
    assert all(path.stat().st_size > 0 for path in paths.values())


def test_same_seed_gives_same_numbers(results):
    assert run("kohler2018/mlp").dataset.identical(results["mlp"].dataset)


@pytest.mark.parametrize("kind", ["matched", "quadrature"])
def test_designs_have_the_moments(kind):
    given = moments(3, 7.0, 0.4, np.random.default_rng(0))
    design = given.matched() if kind == "matched" else given.quadrature(12)
    assert_allclose(design.mean, given.mean, atol=1e-12)
    assert_allclose(design.moments.matrix, given.second, atol=1e-10)
    assert given.quotient == pytest.approx(0.4)
    assert np.linalg.cond(given.second) == pytest.approx(7.0)


def test_losses_and_points_left_out_are_named(results):
    name = "halfspace"
    direction, length, whole, *_ = (claim.measured for claim in results[name].claims)
    assert "loss logistic and sigmoid" in direction
    assert "left out" not in direction
    points = results[name].dataset.sizes["seed"] * results[name].dataset.sizes["step"]
    for measured in (length, whole):
        assert "loss logistic;" in measured
        assert f"{points} of sigmoid (at the longest length" in measured


@pytest.mark.parametrize(
    ("name", "variable", "claim"),
    [
        ("halfspace", "direction_left", 0),
        ("halfspace", "direction_right", 0),
        ("halfspace", "length_left", 1),
        ("halfspace", "whole_left", 2),
        ("halfspace", "off_line", 5),
        ("halfspace", "identity", 6),
        ("mlp", "gradient", 0),
        ("mlp", "bound", 0),
        ("mlp", "off_line_from_zero", 1),
    ],
)
def test_one_number_that_is_none_fails_its_claim(results, name, variable, claim):
    dataset = results[name].dataset.copy(deep=True)
    dataset[variable].values.flat[1] = np.nan
    judge = EXPERIMENTS[f"kohler2018/{name}"].claims
    assert judge(results[name].dataset)[claim].holds
    assert not judge(dataset)[claim].holds
