"""The experiments on length-direction decoupling at quick scale: claims, figures, files."""

import importlib

import numpy as np
import pytest

from normscope.experiments import Recipe, Result
from normscope.experiments.kohler2018 import halfspace, mlp, ols
from normscope.experiments.kohler2018.halfspace import halfspace_claims
from normscope.experiments.kohler2018.mlp import mlp_claims
from normscope.experiments.kohler2018.problems import moments
from normscope.results import Store

VERDICTS = {
    "ols": [True, True, False, True, True],  # False: "gradient descent only sub-linear"
    "halfspace": [True, True, True, True, False, True, True],  # False: h as printed
    "mlp": [True, True, False, True],  # False: critical points on one line
}
MODULES = {"ols": ols, "halfspace": halfspace, "mlp": mlp}


@pytest.fixture(scope="module")
def results():
    """Every experiment once, at quick scale, by its own recipe."""
    from normscope.experiments import EXPERIMENTS

    made = {}
    for name in MODULES:
        importlib.import_module(f"normscope.experiments.kohler2018.{name}")
        recipe: Recipe = EXPERIMENTS._items[f"kohler2018/{name}"]
        settings = recipe.settings("quick", {})
        with Store(":memory:") as store:
            dataset = recipe(store, lambda label: None, **settings)
        claims = tuple(recipe.claims(dataset))
        made[name] = Result(recipe.name, "quick", dataset, claims, settings, {}, 0.0, recipe.figure)
    return made


@pytest.mark.parametrize("name", MODULES)
def test_claims_have_their_verdicts(results, name):
    claims = results[name].claims
    assert [claim.holds for claim in claims] == VERDICTS[name], [str(c) for c in claims]
    assert all(any(letter.isdigit() for letter in claim.measured) for claim in claims)
    assert results[name].dataset.sizes["seed"] >= 3


@pytest.mark.parametrize("name", MODULES)
def test_files_are_written(results, name, tmp_path):
    paths = results[name].write(tmp_path)
    assert all(path.stat().st_size > 0 for path in paths.values())


def test_same_seed_gives_same_numbers(results):
    with Store(":memory:") as store:
        again = mlp.mlp(nodes=40, store=store, progress=lambda label: None)
    assert again.identical(results["mlp"].dataset)


@pytest.mark.parametrize("kind", ["matched", "quadrature"])
def test_designs_have_the_moments(kind):
    given = moments(3, 7.0, 0.4, np.random.default_rng(0))
    design = given.matched() if kind == "matched" else given.quadrature(12)
    np.testing.assert_allclose(design.mean, given.mean, atol=1e-12)
    np.testing.assert_allclose(design.moments.matrix, given.second, atol=1e-10)
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
    recipe = {"halfspace": halfspace_claims, "mlp": mlp_claims}[name]
    assert recipe(results[name].dataset)[claim].holds
    assert not recipe(dataset)[claim].holds
