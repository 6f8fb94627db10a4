"""Parts of GDNP: losses, bisection, the design's operators, the Gaussian objective."""

import itertools

import numpy as np
import pytest
from scipy import sparse
from scipy.integrate import quad

from normscope.decoupled import (
    GaussianObjective,
    MarginLoss,
    Options,
    SampleObjective,
    SignedDesign,
    gdnp,
    margin_loss,
)
from normscope.decoupled.gdnp import bisect_length
from normscope.errors import InputError, ShapeError, UnknownNameError


@pytest.fixture
def design():
    random = np.random.default_rng(0)
    signs = np.where(random.random(300) < 0.5, 1.0, -1.0)
    inputs = random.standard_normal((300, 6)) @ random.standard_normal((6, 6))
    return SignedDesign(inputs + 0.3 * signs[:, None], signs, constant=False)


@pytest.mark.parametrize("loss", ["logistic", "sigmoid", np.sin])
def test_derivatives_agree_with_differences_of_another_order(loss):
    made, at, h = margin_loss(loss), np.linspace(-6, 6, 41), 1e-5
    first = (made.value(at + h) - made.value(at - h)) / (2 * h)
    second = (made.slope(at + h) - made.slope(at - h)) / (2 * h)
    np.testing.assert_allclose(made.slope(at), first, atol=1e-9)
    np.testing.assert_allclose(made.curvature(at), second, atol=1e-7)


@pytest.mark.parametrize("loss", ["logistic", "sigmoid"])
def test_bounds_of_the_losses_are_attained_and_kept(loss):
    made, at = margin_loss(loss), np.linspace(-40, 40, 80_001)
    assert np.abs(made.slope(at)).max() == pytest.approx(made.slope_bound, rel=1e-6)
    assert np.abs(made.curvature(at)).max() == pytest.approx(made.curvature_bound, rel=1e-6)


def test_function_of_wrong_shape_is_refused():
    with pytest.raises(ShapeError, match="elementwise"):
        margin_loss(np.sum).value(np.zeros(3))


def test_loss_object_is_taken_as_it_is():
    made = MarginLoss(np.exp, np.exp, np.exp)
    assert margin_loss(made) is made


@pytest.mark.parametrize("guess", [-50.0, 0.0, 3.0, 90.0])
def test_bisection_finds_the_zero_from_any_guess(guess):
    found = bisect_length(lambda x: np.tanh(x - 3), guess, 0.1, 100.0, 80)
    assert found.length == pytest.approx(3, abs=1e-12)
    assert found.left <= 3 <= found.right


@pytest.mark.parametrize(("slope", "end"), [(-1.0, 7.0), (1.0, -7.0)])
def test_bisection_says_when_it_is_at_its_bound(slope, end):
    found = bisect_length(lambda _: slope, 0.0, 1.0, 7.0, 10)
    assert found.at_bound
    assert found.length == end


def test_bisection_halves_as_often_as_it_may():
    found = bisect_length(lambda x: x - 0.3, 0.0, 1.0, 10.0, 5)
    assert found.halvings == 5
    assert abs(found.length - 0.3) <= (found.right - found.left) / 2**5


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("guess", [0.0, 1.0, 900.0, 1000.0])
def test_bisection_goes_to_its_bound_where_the_slope_underflows(sign, guess):
    found = bisect_length(lambda x: -sign * np.exp(-sign * x), sign * guess, 1.0, 1000.0, 60, 1e-9)
    assert np.exp(-1000.0) == 0
    assert found.at_bound
    assert found.length == sign * 1000


def test_bisection_takes_an_exact_zero_for_a_passage():
    found = bisect_length(lambda x: x - 1, 0.0, 1.0, 100.0, 60)
    assert not found.at_bound
    assert found.length == pytest.approx(1, abs=1e-14)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_bisection_finds_a_minimum_before_a_plateau(sign):
    """The slope of a saturated unit: negative, positive, and nothing from 8 on."""

    def slope(x):
        return (sign * x - 2) * sign * (abs(x) < 8)

    found = bisect_length(slope, sign * 2, 10.0, 20.0, 60)
    assert not found.at_bound
    assert found.length == pytest.approx(sign * 2, abs=1e-12)


def test_bisection_stays_where_nothing_has_a_slope():
    found = bisect_length(lambda _: 0.0, 3.0, 1.0, 100.0, 60)
    assert (found.length, found.at_bound) == (3.0, False)


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array])
def test_operators_of_the_design_agree_with_matrices(kind, constant):
    random = np.random.default_rng(1)
    inputs = random.standard_normal((50, 4)) + 2
    signs = np.where(random.random(50) < 0.5, 1.0, -1.0)
    design = SignedDesign(kind(inputs), signs, constant)
    plain = inputs
    if constant:
        centred = inputs - inputs.mean(axis=0)
        plain = np.column_stack([centred, np.full(50, np.sqrt(centred.var(axis=0).mean()))])
    z = -signs[:, None] * plain
    w, v = random.standard_normal(design.size), random.standard_normal(50)
    np.testing.assert_allclose(design.margins(w), z @ w)
    np.testing.assert_allclose(design.adjoint(v), z.T @ v, atol=1e-12)
    np.testing.assert_allclose(design.mean, z.mean(axis=0), atol=1e-14)
    np.testing.assert_allclose(design.second_moment(w), z.T @ z @ w / 50)
    np.testing.assert_allclose(design.solve(z.T @ z @ w / 50), w)
    eigenvalues = np.linalg.eigvalsh(z.T @ z / 50)
    np.testing.assert_allclose(design.moments.spectrum, eigenvalues[[-1, 0]])
    coefficients, intercept = design.moments.unscaled(w)
    np.testing.assert_allclose(inputs @ coefficients + intercept, plain @ w)


def test_operator_form_finds_the_same_ends_and_solutions():
    random = np.random.default_rng(2)
    inputs = random.standard_normal((40, 60))
    design = SignedDesign(inputs, np.ones(40), constant=False)
    assert not design.moments.formed
    top = np.linalg.eigvalsh(inputs.T @ inputs / 40)[-1]
    assert top <= design.moments.spectrum[0] <= top * (1 + 1e-4)
    solved = design.solve(design.mean)
    np.testing.assert_allclose(design.second_moment(solved), design.mean, atol=1e-8)


@pytest.mark.parametrize("kind", [SampleObjective, GaussianObjective])
@pytest.mark.parametrize("loss", ["logistic", "sigmoid"])
def test_gradients_of_objectives_agree_with_differences(design, kind, loss):
    objective = kind(design, margin_loss(loss))
    w, h = np.linspace(-0.4, 0.5, 6), 1e-6

    def value(point):
        direction = objective.direction(point)
        return objective.value(direction, np.sqrt(point @ design.second_moment(point)))

    length = float(np.sqrt(w @ design.second_moment(w)))
    gradient = objective.gradient(objective.direction(w), length)
    expected = [(value(w + h * e) - value(w - h * e)) / (2 * h) for e in np.eye(6)]
    np.testing.assert_allclose(gradient, expected, atol=1e-8)
    along = objective.length_slope(objective.direction(w), length)
    assert along == pytest.approx(w @ gradient / length, abs=1e-12)


def test_quadrature_agrees_with_an_integral(design):
    objective = GaussianObjective(design, margin_loss("logistic"))
    direction = objective.direction(-design.mean)
    centre, spread = direction.mean, np.sqrt(1 - direction.mean**2)

    def integrand(n):
        return np.logaddexp(0, 2 * (centre + spread * n)) * np.exp(-n * n / 2) / np.sqrt(2 * np.pi)

    expected, _ = quad(integrand, -12, 12, epsabs=1e-12)
    assert objective.value(direction, 2.0) == pytest.approx(expected, abs=1e-9)


def test_gaussian_path_is_that_of_least_squares(design):
    """For Gaussian z the direction step is the one of least squares, whatever the loss."""
    from normscope.decoupled import ordinary_least_squares

    objective = GaussianObjective(design, margin_loss("logistic"), nodes=200)
    path = itertools.islice(gdnp(objective, -design.mean, Options()), 30)
    quotients = [-(point.direction.mean**2) for point in path]
    second = design.inputs.T @ design.inputs / len(design.signs)
    expected = ordinary_least_squares(S=second, u=design.mean, steps=30).rho
    np.testing.assert_allclose(quotients, expected, rtol=1e-9)


@pytest.mark.parametrize("nodes", [0, 1, 257, 400])
def test_quadrature_without_weights_is_refused(design, nodes):
    with pytest.raises(InputError, match=f"2 to 256 nodes, got {nodes}"):
        GaussianObjective(design, margin_loss("logistic"), nodes)


def test_largest_quadrature_is_finite(design):
    objective = GaussianObjective(design, margin_loss("logistic"), 256)
    assert np.isfinite(objective.weights).all()
    assert objective.weights @ objective.nodes**2 == pytest.approx(1, rel=1e-12)


def test_start_without_length_is_refused(design):
    with pytest.raises(InputError, match="start"):
        next(gdnp(SampleObjective(design, margin_loss("logistic")), np.zeros(6)))


def test_unknown_form_is_refused():
    with pytest.raises(UnknownNameError, match="exact"):
        Options(form="exakt")
