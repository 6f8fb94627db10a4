"""Length-direction decoupling: each misprint of the article fails, its corrected form holds.

Float64; the seeds are 0, 1 and 2 throughout.
"""

import itertools

import numpy as np
import pytest

from normscope.decoupled import (
    GaussianObjective,
    HiddenUnits,
    Options,
    SampleObjective,
    SignedDesign,
    direction_constant,
    gdnp,
    inequalities,
    margin_loss,
    ordinary_least_squares,
    rayleigh_ascent,
    train_units,
)
from normscope.experiments.kohler2018.halfspace import best_by_lbfgs
from normscope.experiments.kohler2018.mlp import coupling, joint_minimum, off_line
from normscope.experiments.kohler2018.problems import moments

SEEDS = pytest.mark.parametrize("seed", [0, 1, 2])


def given_moments(seed, size=6, condition=10.0, quotient=0.3):
    return moments(size, condition, quotient, np.random.default_rng(seed))


@SEEDS
def test_least_squares_objective_has_gamma_squared_outside_the_fraction(seed):
    random, given = np.random.default_rng(seed), given_moments(seed)
    w, gamma = random.standard_normal(6), 1.7
    norm = np.sqrt(w @ given.second @ w)
    weights = gamma * w / norm
    truth = 2 * given.mean @ weights + weights @ given.second @ weights
    overlap = given.mean @ w
    assert 2 * gamma * overlap / norm + gamma**2 == pytest.approx(truth, rel=1e-12)
    printed = 2 * gamma * overlap / (norm + gamma**2)
    assert abs(printed - truth) > 0.1 * abs(truth)
    best = -((overlap / norm) ** 2)  # at gamma = -u'w/|w|_S
    at_best = 2 * (-overlap / norm) * overlap / norm + (overlap / norm) ** 2
    assert at_best == pytest.approx(best, rel=1e-12)


@SEEDS
def test_gradient_descent_is_linear_and_not_sublinear(seed):
    given = given_moments(seed)
    path = ordinary_least_squares(S=given.second, u=given.mean, method="gd", steps=400)
    factor = (1 - path.smallest / path.largest) ** (2.0 * np.arange(400))
    assert (path.excess <= factor * path.excess[0] * (1 + 1e-9)).all()
    # sub-linear convergence would bring the ratio of neighbours to one
    assert path.gap[-1] / path.gap[-2] < (1 - path.smallest / path.largest) ** 2 * (1 + 1e-6)


@SEEDS
def test_rayleigh_rate_needs_the_pencil_and_the_start(seed):
    random = np.random.default_rng(seed)
    b, a = random.standard_normal((2, 7, 7))
    b, a = b + b.T, a @ a.T / 7 + np.eye(7)
    start = random.standard_normal(7)
    for _ in range(30):  # towards the top, until the quotient is above the second eigenvalue
        start = np.linalg.solve(a, b @ start) + 10 * start
    path = rayleigh_ascent(b, a, start, 40)
    assert (path.ratio <= path.bound * (1 + 1e-9)).all()
    first, second, least = path.eigenvalues[[0, 1, -1]]
    factor = 1 - (first - second) / (first - least)
    steps = np.arange(39)
    printed = factor ** (2.0 * steps) * path.ratio[:-1]  # 2t for one step from w_t
    assert (path.ratio[1:][5:] > printed[5:]).all()
    alone = np.linalg.eigvalsh(b)[::-1]  # of B alone, as the article says
    assert not np.allclose(alone[[0, 1, -1]], [first, second, least], rtol=0.05)


@pytest.mark.parametrize("condition", [1e1, 1e6])
@SEEDS
def test_least_squares_rate_holds_at_every_step(seed, condition):
    given = given_moments(seed, size=20, condition=condition)
    path = ordinary_least_squares(S=given.second, u=given.mean, steps=500)
    assert (path.gap <= path.bound * (1 + 1e-9)).all()


@SEEDS
def test_gdnp_criterion_needs_the_product_with_the_normalized_weights(seed):
    given = given_moments(seed)
    design = given.sampled(500, np.random.default_rng(seed))
    wide = SignedDesign(design.inputs * 1000, design.signs, constant=False)
    best = best_by_lbfgs(SampleObjective(design, margin_loss("logistic")))
    values = {}
    for form in ("exact", "printed"):
        objective = SampleObjective(wide, margin_loss("logistic"))
        options = Options(form=form, safeguard=False)
        path = itertools.islice(gdnp(objective, -objective.mean, options), 500)
        values[form] = min(point.value for point in path)
    assert abs(values["exact"] - best) < 1e-8
    assert values["printed"] - best > 1e-4


@SEEDS
def test_printed_criterion_breaks_the_rate_for_short_starts(seed):
    given = given_moments(seed, quotient=0.8)
    design = given.matched()
    objective = GaussianObjective(design, margin_loss("logistic"))
    broken = {}
    for form in ("exact", "printed"):
        options = Options(form=form, safeguard=False)
        path = list(itertools.islice(gdnp(objective, -1e-3 * design.mean, options), 40))
        gap = np.array([given.quotient - point.direction.mean**2 for point in path])
        bound = (1 - objective.smallest / objective.largest) ** (2 * np.arange(40)) * gap[0]
        broken[form] = bool((gap > bound * (1 + 1e-6) + 1e-13).any())
    assert broken == {"exact": False, "printed": True}


@SEEDS
def test_bisection_inequality_holds_squared_and_not_as_printed(seed):
    """The square of 2^-T zeta |b-a| / mu holds for x of any size, 2^-T zeta |b-a| / mu^2 not."""
    printed_holds = []
    for size, halvings in itertools.product((1.0, 1e4), (4, 12, 20)):
        base = given_moments(seed, condition=2.0).matched()
        design = SignedDesign(base.inputs * size, base.signs, constant=False)
        objective = GaussianObjective(design, margin_loss("logistic"))
        options = Options(bisections=halvings, safeguard=False)
        path = list(itertools.islice(gdnp(objective, -design.mean, options), 30))
        sides = inequalities(objective, design, path)
        smallest, largest = np.linalg.eigvalsh(design.inputs.T @ design.inputs / len(design.signs))[
            [0, -1]
        ]
        widths = np.array([point.bisected.right - point.bisected.left for point in path])
        halved = np.array([point.bisected.halvings for point in path])  # fewer at a slope of zero
        assert np.median(halved) == halvings
        shrunk = 0.25 * largest * widths / 2.0**halved
        np.testing.assert_allclose(sides.length_right, (shrunk / smallest) ** 2, rtol=1e-9)
        assert (sides.length_left <= sides.length_right).all()
        assert (sides.direction_left <= sides.direction_right * (1 + 1e-9) + 1e-30).all()
        assert (sides.whole_left <= sides.whole_right).all()
        printed_holds.append(bool((sides.length_left <= shrunk / smallest**2).all()))
    assert not all(printed_holds)


@SEEDS
def test_printed_bisection_bound_fails_for_large_inputs(seed):
    """2^-T zeta |b-a| / mu^2 has the dimension of 1/x^2: large inputs break it."""
    base = given_moments(seed, condition=1.5).matched()
    design = SignedDesign(base.inputs * 1e5, base.signs, constant=False)
    objective = GaussianObjective(design, margin_loss("logistic"))
    fails = 0
    for point in itertools.islice(gdnp(objective, -design.mean, Options(bisections=3)), 5):
        found, smoothness = point.bisected, 0.25 * objective.largest
        shrunk = 2.0**-found.halvings * smoothness * (found.right - found.left)
        left = objective.length_slope(point.direction, point.length) ** 2
        assert left <= (shrunk / objective.smallest) ** 2
        fails += left > shrunk / objective.smallest**2
    assert fails > 0


@SEEDS
def test_direction_constant_is_more_than_the_slope_of_the_loss(seed):
    """Phi read as max|phi'| is exceeded by the sigmoid; with E|1 + t n| it is not."""
    given = given_moments(seed, quotient=0.9)
    design = given.matched()
    objective = GaussianObjective(design, margin_loss("sigmoid"))
    direction = objective.direction(-np.linalg.solve(given.second, given.mean))
    factors = []
    for length in (0.3, 1.0, 3.0):
        curvature = objective.mean_curvature(direction, length)
        slope = objective.mean_slope(direction, length)
        factors.append(slope - curvature * length * direction.mean)
    assert max(factors) > 0.25
    assert max(factors) <= direction_constant(0.25, given.quotient)


@SEEDS
def test_hidden_units_align_from_zero(seed):
    given = given_moments(seed, size=2, condition=5.0, quotient=0.4)
    design = given.quadrature(40)
    units = HiddenUnits(design, margin_loss("logistic"), np.zeros((3, 2)), np.ones(3))
    starts = np.tile(-design.mean, (3, 1))
    train_units(units, starts, Options(), unit_steps=60, max_sweeps=1, tol=0.0, refit=False)
    assert off_line(units.weights, given).max() < 1e-8


@SEEDS
def test_hidden_units_do_not_align_from_elsewhere(seed):
    given = given_moments(seed, size=2, condition=5.0, quotient=0.4)
    design, random = given.quadrature(40), np.random.default_rng(seed)
    units = HiddenUnits(design, margin_loss("logistic"), random.standard_normal((3, 2)), np.ones(3))
    trained = train_units(units, None, Options(), unit_steps=60, max_sweeps=1, tol=0.0, refit=False)
    assert max(path.residual for path in trained.last) < 1e-4  # each at its own critical point
    assert off_line(units.weights, given).max() > 1e-3


@SEEDS
def test_joint_critical_point_lies_off_the_line_where_the_coupling_is_singular(seed):
    given = given_moments(seed, size=2, condition=5.0, quotient=0.4)
    design, random = given.quadrature(40), np.random.default_rng(seed)
    found = [joint_minimum(design, random.standard_normal((3, 2))) for _ in range(4)]
    weights, value, gradient = min(found, key=lambda each: each[1])
    assert gradient < 1e-8
    assert off_line(weights, given).max() > 1e-2
    eigenvalues = np.abs(np.linalg.eigvalsh(coupling(design, weights)))
    assert eigenvalues.min() < 1e-6 * eigenvalues.max()
    # S W B has rank one, along u: Stein's identity at a critical point
    product = given.second @ weights.T @ coupling(design, weights)
    across = product - np.outer(given.mean, given.mean @ product) / (given.mean @ given.mean)
    assert np.abs(across).max() < 1e-6 * np.abs(product).max()
    line = SignedDesign(
        design.inputs @ given.line[:, None], design.signs, False, weights=design.weights
    )
    on_line = min(joint_minimum(line, random.standard_normal((3, 1)))[1] for _ in range(4))
    assert value < on_line - 1e-6


@SEEDS
def test_halfspace_gradient_needs_gaussian_z_and_not_gaussian_x(seed):
    """Stein's form of the gradient holds for Gaussian z; for labels that follow x it does not."""
    random, given = np.random.default_rng(seed), given_moments(seed, size=3)
    loss, samples = margin_loss("logistic"), 200_000

    def misfit(design):
        """Distance of the sampled gradient from the span of u and S w, over its norm."""
        objective = SampleObjective(design, loss)
        direction = objective.direction(np.array([1.0, -1.0, 0.5]))
        gradient = objective.gradient(direction, 4.0)
        curvature = objective.mean_curvature(direction, 4.0)
        slope = objective.mean_slope(direction, 4.0) - curvature * 4.0 * direction.mean
        stein = slope * design.mean + curvature * 4.0 * direction.moment
        return np.linalg.norm(gradient - stein) / np.linalg.norm(gradient)

    assert misfit(given.sampled(samples, random)) < 0.01
    inputs = random.standard_normal((samples, 3))  # Gaussian x, and labels by its sign
    signs = np.sign(inputs @ np.array([1.0, -1.0, 0.5]))
    assert misfit(SignedDesign(inputs, signs, constant=False)) > 1


def test_halfspace_without_a_mean_has_its_minimum_at_zero():
    """u = 0: f depends on the length only, so there is no direction to find; zero is the best."""
    design = SignedDesign(np.array([[2.0, 0], [-2.0, 0], [0, 1.0], [0, -1.0]]), np.ones(4), False)
    objective = GaussianObjective(design, margin_loss("logistic"))
    assert not design.mean.any()
    directions = [objective.direction(np.array(w)) for w in ([1.0, 0.0], [0.3, -2.0])]
    for length in (0.5, 3.0):
        first, second = (objective.value(direction, length) for direction in directions)
        assert first == pytest.approx(second, rel=1e-12)
        assert first > objective.value(directions[0], 0.0) == pytest.approx(np.log(2))
