"""The hidden layer: scikit-learn's checks, gradients of a unit, its bound, data that need it."""

import itertools
import warnings

import numpy as np
import pytest
from scipy import sparse
from scipy.optimize import brentq
from sklearn.datasets import load_iris, make_moons
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.estimator_checks import check_estimator

from normscope.decoupled import (
    GDNPMLPClassifier,
    HiddenUnits,
    Options,
    SignedDesign,
    margin_loss,
)
from normscope.decoupled.hidden_units import refit_outputs, sweep
from normscope.errors import InputError, UnknownNameError


@pytest.fixture
def units():
    random = np.random.default_rng(0)
    signs = np.where(np.arange(400) % 2 == 0, 1.0, -1.0)
    inputs = random.standard_normal((400, 3)) + 0.4 * signs[:, None]
    design = SignedDesign(inputs, signs, constant=False)
    weights, outputs = random.standard_normal((4, 3)), random.standard_normal(4)
    return HiddenUnits(design, margin_loss("logistic"), weights, outputs)


def test_estimator_passes_the_checks_of_scikit_learn():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        check_estimator(GDNPMLPClassifier(hidden_units=2, max_iter=3, unit_steps=5), on_skip=None)


@pytest.mark.slow
def test_estimator_passes_the_checks_with_its_defaults():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        check_estimator(GDNPMLPClassifier(), on_skip=None)


def test_value_is_the_loss_of_the_network(units):
    outputs = np.tanh(units.design.inputs @ units.weights.T) @ units.outputs
    expected = np.log1p(np.exp(-units.design.signs * outputs)).mean()
    assert units.value() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("index", [0, 2])
def test_gradient_of_a_unit_agrees_with_differences(units, index):
    objective, w, h = units.unit(index), units.weights[index].copy(), 1e-6
    direction = objective.direction(w)
    length = float(np.linalg.norm(w) / np.linalg.norm(direction.w))
    assert objective.value(direction, length) == pytest.approx(units.value(), rel=1e-12)
    gradient, expected = objective.gradient(direction, length), []
    for unit in np.eye(3):
        sides = []
        for sign in (1, -1):
            units.weights[index] = w + sign * h * unit
            sides.append(units.value())
        expected.append((sides[0] - sides[1]) / (2 * h))
    np.testing.assert_allclose(gradient, expected, atol=1e-8)


def test_curvature_of_a_unit_agrees_with_differences(units):
    loss, h = units.unit(1).loss, 1e-6
    margins = np.linspace(-3, 3, 400)
    expected = (loss.slope(margins + h) - loss.slope(margins - h)) / (2 * h)
    np.testing.assert_allclose(loss.curvature(margins), expected, atol=1e-8)
    assert np.abs(loss.slope(margins)).max() <= loss.slope_bound
    assert np.abs(loss.curvature(margins)).max() <= loss.curvature_bound


def test_refitted_outputs_are_stationary(units):
    before = units.value()
    refit_outputs(units, 5000, 1e-9)
    assert units.value() < before
    activations = np.tanh(units.design.inputs @ units.weights.T)
    signs = units.design.signs
    slopes = 1 / (1 + np.exp(signs * (activations @ units.outputs)))
    np.testing.assert_allclose(activations.T @ (signs * slopes) / 400, 0, atol=1e-8)


def test_hidden_layer_learns_what_a_line_cannot():
    inputs, labels = make_moons(200, noise=0.15, random_state=0)
    model = GDNPMLPClassifier(random_state=0, max_iter=20).fit(inputs, labels)
    assert model.score(inputs, labels) > 0.96
    assert model.converged_
    assert model.predict_proba(inputs).shape == (200, 2)


@pytest.mark.parametrize("start", ["random", "zero"])
@pytest.mark.parametrize("output_weights", ["refit", "fixed"])
def test_every_start_and_treatment_of_outputs_learns(start, output_weights):
    inputs, labels = load_iris(return_X_y=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = GDNPMLPClassifier(
            3, start=start, output_weights=output_weights, max_iter=4, random_state=0
        ).fit(inputs, labels)
    assert model.score(inputs, labels) > 0.93
    assert model.hidden_coef_.shape == (3, 3, 4)
    if output_weights == "fixed":
        np.testing.assert_array_equal(model.output_coef_, 1)


def test_unit_paths_hold_the_gradient_and_its_bound():
    """The first turn of the first unit from zero, against plain formulas at its start."""
    random = np.random.default_rng(2)
    signs = np.where(np.arange(500) % 2 == 0, 1.0, -1.0)
    z = random.standard_normal((500, 3)) - [0.6, 0.2, 0.0]  # Gaussian up to sampling
    model = GDNPMLPClassifier(
        2, start="zero", output_weights="fixed", fit_intercept=False, max_iter=1, tol=1e-6
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(-signs[:, None] * z, signs)
    ((first, second),) = model.unit_paths_
    assert (first.unit, second.unit) == (0, 1)
    for path in (first, second):
        assert path.gradient.shape == path.bound.shape == (path.steps + 1,)
        assert path.gradient[0] < path.bound[0]
    # 500 samples are not the Gaussian that the bound is proved for: in the end they exceed it
    assert first.gradient[-1] > first.bound[-1]
    moment, mean = z.T @ z / 500, z.mean(axis=0)
    unit = -mean / np.sqrt(mean @ moment @ mean)

    def slopes(length):
        tanh = np.tanh(length * (z @ unit))
        return (1 - tanh**2) / (1 + np.exp(-tanh))  # of the logistic loss of tanh

    def along(length):
        return np.mean(slopes(length) * (z @ unit))

    length = brentq(along, 0.01, 4)
    gradient = z.T @ slopes(length) / 500
    squared = gradient @ np.linalg.solve(moment, gradient)
    assert first.gradient[0] == pytest.approx(squared, rel=1e-6)
    quotient = mean @ np.linalg.solve(moment, mean)
    curvature = 0.25 + 4 / (3 * np.sqrt(3))  # of l(tanh): l'' tanh'^2 + l' tanh''
    constant = (1 + curvature * np.sqrt(quotient) * length) ** 2
    expected = constant * (quotient - (mean @ unit) ** 2)
    assert first.bound[0] == pytest.approx(expected, rel=1e-6)


def test_zero_inputs_without_an_intercept_are_refused():
    with pytest.raises(InputError, match="nothing to learn"):
        GDNPMLPClassifier(2, fit_intercept=False).fit(np.zeros((4, 2)), [0, 1, 0, 1])


def test_constant_columns_get_no_weight():
    inputs = np.column_stack([np.linspace(-1, 1, 20), np.full(20, 1e9)])
    labels = (inputs[:, 0] > 0.1).astype(int)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = GDNPMLPClassifier(2, max_iter=2, random_state=0).fit(inputs, labels)
    np.testing.assert_array_equal(model.hidden_coef_[:, :, 1], 0)


def test_crossed_classes_without_a_mean_are_learned():
    inputs = np.array([[1.0, 1.0], [-1.0, -1.0], [1.0, -1.0], [-1.0, 1.0]] * 5)
    labels = np.array([1, 1, 0, 0] * 5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = GDNPMLPClassifier(8, random_state=0).fit(inputs, labels)
    assert model.score(inputs, labels) == 1


def test_sparse_input_gives_the_network_of_dense_input():
    random = np.random.default_rng(1)
    inputs = sparse.random_array((80, 10), density=0.3, rng=random, format="csr")
    labels = random.integers(0, 2, 80)
    options = {"hidden_units": 2, "max_iter": 2, "unit_steps": 3, "random_state": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        thin = GDNPMLPClassifier(**options).fit(inputs, labels)
        dense = GDNPMLPClassifier(**options).fit(inputs.toarray(), labels)
    np.testing.assert_allclose(thin.hidden_coef_, dense.hidden_coef_, rtol=1e-6, atol=1e-8)


def test_objective_never_rises_from_sweep_to_sweep():
    inputs, labels = make_moons(100, noise=0.3, random_state=1)
    values = []
    for sweeps in range(1, 6):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model = GDNPMLPClassifier(3, max_iter=sweeps, tol=0.0, random_state=0)
            values.append(model.fit(inputs, labels).objective_[0])
    assert all(later <= earlier for earlier, later in itertools.pairwise(values))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"start": "nothing"}, UnknownNameError),
        ({"output_weights": "free"}, UnknownNameError),
        ({"hidden_units": 0}, InputError),
        ({"tol": -1.0}, InputError),
        ({"tol": float("nan")}, InputError),
    ],
)
def test_bad_options_are_refused(options, error):
    with pytest.raises(error):
        GDNPMLPClassifier(**options).fit(np.eye(4), [0, 1, 0, 1])


def test_one_class_is_refused():
    with pytest.raises(InputError, match="one class"):
        GDNPMLPClassifier().fit(np.eye(3), [1, 1, 1])


def test_network_of_badly_scaled_columns_is_not_called_converged():
    """Once converged_ at 0.57; with columns of unit size it is 0.38."""
    random = np.random.default_rng(0)
    inputs = random.standard_normal((300, 2))
    labels = inputs.sum(axis=1) + random.standard_normal(300) > 0
    even = GDNPMLPClassifier(3, random_state=0).fit(inputs, labels)
    assert even.converged_
    with pytest.warns(ConvergenceWarning, match="can fall, by more than tol=0.001.* standardize"):
        uneven = GDNPMLPClassifier(3, random_state=0).fit(inputs * (1e-4, 1e4), labels)
    assert not uneven.converged_
    assert uneven.objective_[0] > even.objective_[0] + 0.1


def test_decrease_that_is_left_is_one_that_a_step_reaches(units):
    """Along S^{-1} times the gradient, by the bound of the curvature."""
    (path, *_) = sweep(units, Options(), 1, 0.0)
    objective, w = units.unit(0), units.weights[0].copy()
    length = float(np.sqrt(w @ units.design.second_moment(w)))
    gradient = objective.gradient(objective.direction(w), length)
    before = units.value()
    units.weights[0] = w - units.design.solve(gradient) / objective.loss.curvature_bound
    expected = gradient @ units.design.solve(gradient) / (2 * objective.loss.curvature_bound)
    assert before - units.value() >= expected > 0
    assert path.decrease > 0
