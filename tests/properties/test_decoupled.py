"""Properties of the decoupled methods over generated problems."""

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from normscope.decoupled import (
    GaussianObjective,
    Options,
    SignedDesign,
    gdnp,
    margin_loss,
    ordinary_least_squares,
)
from normscope.experiments.kohler2018.problems import moments

SIZES = st.integers(2, 12)
SEEDS = st.integers(0, 2**31)
CONDITIONS = st.floats(1.01, 1e6)


@settings(max_examples=60, deadline=None)
@given(SIZES, CONDITIONS, SEEDS, st.floats(1e-6, 1e6))
def test_gdnp_keeps_to_its_bound(size, condition, seed, scale):
    random = np.random.default_rng(seed)
    drawn = moments(size, condition, 0.5, random)
    start = random.standard_normal(size)
    path = ordinary_least_squares(
        S=scale * drawn.second, u=scale * drawn.mean, steps=60, start=start
    )
    assert (path.gap <= path.bound * (1 + 1e-9)).all()
    assert (np.diff(path.gap) <= 1e-12 * path.gap[:-1]).all()


@settings(max_examples=40, deadline=None)
@given(SIZES, st.floats(1.01, 1e3), SEEDS, st.floats(1e-3, 1e3))
def test_path_of_least_squares_does_not_depend_on_the_length_of_the_start(
    size, condition, seed, factor
):
    random = np.random.default_rng(seed)
    drawn = moments(size, condition, 0.5, random)
    start = random.standard_normal(size)
    options = {"S": drawn.second, "u": drawn.mean, "steps": 20}
    one = ordinary_least_squares(**options, start=start)
    other = ordinary_least_squares(**options, start=factor * start)
    np.testing.assert_allclose(one.gap, other.gap, rtol=1e-6, atol=1e-12)


@settings(max_examples=30, deadline=None)
@given(SIZES, st.floats(1.01, 50.0), st.floats(0.05, 0.8), SEEDS, st.floats(1e-3, 1e3))
def test_gdnp_on_halfspaces_does_not_depend_on_the_scale_of_the_inputs(
    size, condition, quotient, seed, scale
):
    drawn = moments(size, condition, quotient, np.random.default_rng(seed)).matched()
    scaled = SignedDesign(drawn.inputs * scale, drawn.signs, constant=False)
    values = []
    for design in (drawn, scaled):
        objective = GaussianObjective(design, margin_loss("logistic"))
        path = itertools.islice(gdnp(objective, -design.mean, Options()), 15)
        values.append([point.value for point in path])
    both = min(map(len, values))  # a path may end where no step is left to take
    np.testing.assert_allclose(values[0][:both], values[1][:both], rtol=1e-9)
    assert (np.diff(values[0]) <= 1e-12).all()
