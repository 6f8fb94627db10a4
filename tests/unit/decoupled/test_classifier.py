"""The halfspace estimator: scikit-learn's own checks, the minimum of L-BFGS, degenerate input."""

import itertools
import warnings

import numpy as np
import pytest
from scipy import sparse
from scipy.optimize import minimize
from scipy.special import expit
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator
from tests.references.decoupled import gaussian_halfspace as gaussian
from tests.references.decoupled import logistic_sum

import normscope as ns
from normscope.decoupled import GDNPClassifier, MarginLoss, margin_loss
from normscope.errors import ArgumentTypeError, InputError, UnknownNameError


def best_value(inputs, signs, intercept):
    """The least logistic loss by L-BFGS on inputs scaled to one."""
    scaled = inputs / inputs.std()
    if intercept:
        scaled = np.column_stack([scaled, np.ones(len(scaled))])

    def evaluate(w):
        margins = -signs * (scaled @ w)
        slopes = 1 / (1 + np.exp(-margins))
        return np.logaddexp(0, margins).mean(), scaled.T @ (-signs * slopes) / len(scaled)

    options = {"ftol": 0.0, "gtol": 1e-11, "maxiter": 10_000}
    start = np.zeros(scaled.shape[1])
    return minimize(evaluate, start, jac=True, method="L-BFGS-B", options=options).fun


def test_estimator_passes_the_checks_of_scikit_learn():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        check_estimator(GDNPClassifier(), on_skip=None)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("intercept", [False, True])
def test_minimum_is_that_of_lbfgs_at_any_scale(scale, intercept):
    inputs, signs = gaussian(scale)
    model = GDNPClassifier(fit_intercept=intercept).fit(inputs, signs)
    assert model.converged_
    value = logistic_sum(inputs, signs, model.coef_[0], model.intercept_[0])
    assert value == pytest.approx(model.objective_[0], abs=1e-13)
    assert abs(value - best_value(inputs, signs, intercept)) < 1e-8


def correlated(samples=300):
    """Overlapping classes, with columns of unit size."""
    random = np.random.default_rng(0)
    inputs = random.standard_normal((samples, 3)) @ random.standard_normal((3, 3))
    inputs /= inputs.std(axis=0)
    return inputs, np.where(inputs @ [1.0, -1.0, 0.5] + random.standard_normal(samples) > 0, 1, -1)


@pytest.mark.parametrize("expectation", ["sample", "gaussian"])
@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("sizes", [(1e-4, 1.0, 1e4), (1e4, 1e-4, 1e-4), (1e-8, 1e8, 1.0)])
def test_scale_of_columns_does_not_matter(sizes, intercept, kind, expectation):
    """Once converged_ at 0.57 where the minimum is 0.38."""
    inputs, signs = correlated()
    options = {"fit_intercept": intercept, "expectation": expectation}
    model = GDNPClassifier(**options).fit(kind(inputs * sizes), signs)
    even = GDNPClassifier(**options).fit(inputs, signs)
    assert model.converged_
    np.testing.assert_allclose(model.coef_ * sizes, even.coef_, rtol=1e-6)
    np.testing.assert_allclose(model.intercept_, even.intercept_, atol=1e-7)
    if expectation == "sample":
        assert abs(model.objective_[0] - best_value(inputs, signs, intercept)) < 1e-12


def nearly_alike(noise):
    """Two columns that differ by this much, with the span of the correlated ones."""
    inputs, signs = correlated()
    near = inputs[:, 0] + noise * inputs[:, 1]
    return np.column_stack([inputs[:, 0], near, inputs[:, 2]]), signs, inputs


@pytest.mark.parametrize("noise", [1e-2, 1e-4, 1e-6])
def test_columns_that_nearly_agree_are_told_apart(noise):
    near, signs, inputs = nearly_alike(noise)
    model = GDNPClassifier().fit(near, signs)
    assert model.converged_
    assert abs(model.objective_[0] - best_value(inputs, signs, True)) < 1e-10


def test_columns_that_agree_up_to_rounding_are_not_called_converged():
    near, signs, inputs = nearly_alike(1e-10)
    with pytest.warns(ConvergenceWarning, match=r"stopped after \d+ steps at a residual of"):
        model = GDNPClassifier().fit(near, signs)
    assert not model.converged_
    assert abs(model.objective_[0] - best_value(inputs, signs, True)) < 1e-6


def test_columns_without_a_matrix_are_converged_only_near_the_minimum(monkeypatch):
    monkeypatch.setattr("normscope.decoupled.design.LARGEST_FORMED", 1)
    inputs, signs = correlated()
    model = GDNPClassifier().fit(inputs * (1e-4, 1.0, 1e4), signs)
    assert model.converged_
    assert abs(model.objective_[0] - best_value(inputs, signs, True)) < 1e-12


@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_column_without_a_square_is_refused(size):
    inputs, signs = correlated()
    with pytest.raises(InputError, match="column 1 is too small or too large for its square"):
        GDNPClassifier().fit(inputs * (1.0, size, 1.0), signs)


def test_minimum_at_a_length_that_was_asked_for_is_that_of_slsqp():
    """Real, ill-conditioned columns; once converged_ at 0.099 with this tolerance."""
    inputs, labels = load_breast_cancer(return_X_y=True)
    inputs, signs = StandardScaler().fit_transform(inputs), 2 * labels - 1
    model = GDNPClassifier(max_length=4.0, tol=1e-3).fit(inputs, signs)
    columns = np.column_stack([inputs, np.ones(len(inputs))])

    def evaluate(w):
        margins = -signs * (columns @ w)
        return np.logaddexp(0, margins).mean(), columns.T @ (-signs * expit(margins)) / len(columns)

    within = {
        "type": "ineq",
        "fun": lambda w: 16 - np.mean((columns @ w) ** 2),
        "jac": lambda w: -2 * columns.T @ (columns @ w) / len(columns),
    }
    start = np.linalg.lstsq(columns, signs, rcond=None)[0]
    options = {"maxiter": 2000, "ftol": 1e-14}
    best = minimize(evaluate, start, jac=True, method="SLSQP", constraints=within, options=options)
    assert best.success
    assert model.converged_
    assert model.objective_[0] == pytest.approx(best.fun, rel=1e-3)


def test_bounded_loss_that_ends_at_its_default_length_has_not_converged():
    inputs, signs = correlated()
    with pytest.warns(ConvergenceWarning, match="ended at its default bound of 10 .* max_length"):
        model = GDNPClassifier("sigmoid").fit(inputs, signs)
    assert model.at_bound_
    assert not model.converged_
    asked = GDNPClassifier("sigmoid", max_length=10.0).fit(inputs, signs)  # the bound is asked for
    assert asked.at_bound_
    assert asked.converged_
    np.testing.assert_array_equal(asked.coef_, model.coef_)


def test_bounded_loss_with_a_minimum_inside_reaches_it():
    """A few samples just on the wrong side keep the length finite."""
    random = np.random.default_rng(1)
    right, wrong = 0.3 * random.standard_normal((60, 2)) + 3, -0.1 * random.random((10, 2))
    inputs = np.concatenate([right, wrong, -right, -wrong])
    signs = np.repeat([1, -1], 70)
    model = GDNPClassifier("sigmoid", fit_intercept=False).fit(inputs, signs)
    assert model.converged_
    assert not model.at_bound_

    def evaluate(w):
        margins = -signs * (inputs @ w)
        slopes = expit(margins) * expit(-margins)
        return expit(margins).mean(), inputs.T @ (-signs * slopes) / len(inputs)

    options = {"ftol": 0.0, "gtol": 1e-12, "maxiter": 10_000}
    found = minimize(evaluate, model.coef_[0] + 0.1, jac=True, method="L-BFGS-B", options=options)
    assert abs(model.objective_[0] - found.fun) < 1e-12
    assert np.linalg.norm(evaluate(model.coef_[0])[1]) < 1e-7


def test_gaussian_expectation_gives_the_line_of_least_squares():
    inputs, signs = gaussian()
    model = GDNPClassifier(expectation="gaussian", fit_intercept=False, tol=1e-9)
    coefficients = model.fit(inputs, signs).coef_[0]
    line = np.linalg.solve(inputs.T @ inputs, inputs.T @ signs)
    ratio = coefficients / line
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-5)
    assert ratio[0] > 0


def test_safeguard_is_idle_for_gaussian_expectations():
    inputs, signs = gaussian()
    with_it, without = (
        GDNPClassifier(expectation="gaussian", safeguard=safeguard).fit(inputs, signs)
        for safeguard in (True, False)
    )
    assert with_it.n_iter_ == without.n_iter_
    np.testing.assert_array_equal(with_it.coef_, without.coef_)


def test_function_as_loss_agrees_with_its_name():
    inputs, signs = gaussian(samples=200)
    named = GDNPClassifier("logistic").fit(inputs, signs)
    given = GDNPClassifier(lambda m: np.logaddexp(0, m)).fit(inputs, signs)
    np.testing.assert_allclose(given.coef_, named.coef_, rtol=1e-4, atol=1e-6)
    assert hasattr(named, "predict_proba")
    assert not hasattr(given, "predict_proba")


def test_sigmoid_separates_and_stops_at_its_length():
    inputs, signs = gaussian()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = GDNPClassifier("sigmoid", max_iter=300).fit(inputs, signs)
    assert (
        model.score(inputs, signs)
        >= GDNPClassifier().fit(inputs, signs).score(inputs, signs) - 0.02
    )
    assert np.sqrt((model.decision_function(inputs) ** 2).mean()) <= 10 * (1 + 1e-9)


def test_sparse_input_gives_the_weights_of_dense_input():
    random = np.random.default_rng(1)
    inputs = sparse.random_array((200, 30), density=0.2, rng=random, format="csr")
    labels = (inputs @ random.standard_normal(30) + random.standard_normal(200) > 0).astype(int)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        thin = GDNPClassifier(max_iter=50).fit(inputs, labels)
        dense = GDNPClassifier(max_iter=50).fit(inputs.toarray(), labels)
    np.testing.assert_allclose(thin.coef_, dense.coef_, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(thin.predict_proba(inputs), dense.predict_proba(inputs.toarray()))


def test_many_features_are_fitted_without_a_matrix(monkeypatch):
    from normscope.decoupled import SecondMoment

    def refuse(self):
        raise AssertionError("S was formed")

    monkeypatch.setattr(SecondMoment, "matrix", property(refuse))
    random = np.random.default_rng(2)
    inputs = random.standard_normal((800, 600))
    labels = inputs[:, 0] + 3 * random.standard_normal(800) > 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = GDNPClassifier(max_iter=5).fit(inputs, labels)
    assert model.score(inputs, labels) > 0.8


def test_real_data_is_learned():
    inputs, labels = load_breast_cancer(return_X_y=True)
    inputs = StandardScaler().fit_transform(inputs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = GDNPClassifier(max_iter=200).fit(inputs, labels)
    assert model.score(inputs, labels) > 0.98


def test_digits_are_told_apart_one_against_the_rest():
    inputs, labels = load_digits(n_class=4, return_X_y=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = GDNPClassifier(max_iter=30).fit(inputs / 16, labels)
    assert model.coef_.shape == (4, 64)
    assert model.score(inputs / 16, labels) > 0.97
    np.testing.assert_allclose(model.predict_proba(inputs / 16).sum(axis=1), 1)


def test_one_class_is_refused():
    with pytest.raises(InputError, match="one class"):
        GDNPClassifier().fit(np.eye(3), [1, 1, 1])


def test_constant_columns_get_no_weight():
    inputs, signs = gaussian(samples=200)
    wider = np.column_stack([inputs, np.full(len(inputs), 7.0), np.zeros(len(inputs))])
    model = GDNPClassifier().fit(wider, signs)
    alone = GDNPClassifier().fit(inputs, signs)
    np.testing.assert_allclose(model.coef_[0, -2:], 0, atol=1e-12)
    assert model.objective_[0] == pytest.approx(alone.objective_[0], abs=1e-10)


def test_fewer_samples_than_features_stay_in_the_span():
    random = np.random.default_rng(5)
    inputs, labels = random.standard_normal((6, 20)), np.array([0, 1, 0, 1, 0, 1])
    model = GDNPClassifier(fit_intercept=False).fit(inputs, labels)
    assert model.score(inputs, labels) == 1
    assert model.at_bound_
    sizes = np.sqrt((inputs**2).mean(axis=0))
    even, weights = inputs / sizes, model.coef_[0] * sizes
    beside = weights - np.linalg.pinv(even) @ (even @ weights)
    assert np.linalg.norm(beside) < 1e-8 * np.linalg.norm(weights)


def test_no_mean_gives_zero_weights():
    inputs = np.array([[1.0, 1.0], [-1.0, -1.0], [1.0, -1.0], [-1.0, 1.0]])
    model = GDNPClassifier(fit_intercept=False).fit(inputs, [1, 1, 0, 0])
    np.testing.assert_array_equal(model.coef_, 0)
    assert model.converged_
    assert model.objective_[0] == pytest.approx(np.log(2))


def test_all_zero_inputs_give_zero_weights():
    model = GDNPClassifier().fit(np.zeros((4, 2)), [0, 1, 0, 1])
    np.testing.assert_array_equal(model.coef_, 0)


def test_function_as_loss_is_given_margins_that_are_negative_on_the_right_side():
    inputs, signs = gaussian(samples=100)
    seen = []

    def loss(margins):
        seen.append(margins)
        return np.logaddexp(0, margins)

    model = GDNPClassifier(loss, max_length=1.0, tol=1e-2).fit(inputs, signs)
    model.loss(-signs * model.decision_function(inputs))
    right = model.predict(inputs) == signs
    assert (seen[-1][right] < 0).all()
    assert (seen[-1][~right] >= 0).all()
    value = np.logaddexp(0, seen[-1]).mean()
    assert value == pytest.approx(model.objective_[0], rel=1e-9)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"loss": "logistik"}, UnknownNameError),
        ({"loss": 3}, ArgumentTypeError),
        ({"expectation": "gauss"}, UnknownNameError),
        ({"max_iter": 0}, InputError),
        ({"tol": -1.0}, InputError),
        ({"tol": float("nan")}, InputError),
        ({"expectation": "gaussian", "quadrature_points": 400}, InputError),
        ({"expectation": "gaussian", "quadrature_points": 0}, InputError),
        ({"bisections": 0}, InputError),
        ({"max_length": -1.0}, InputError),
    ],
)
def test_bad_options_are_refused(options, error):
    with pytest.raises(error):
        GDNPClassifier(**options).fit(*gaussian(samples=20))


def test_estimator_is_reached_from_the_package():
    assert ns.decoupled.GDNPClassifier is GDNPClassifier


def test_separable_classes_end_at_the_bound_even_where_the_slope_underflows():
    model = GDNPClassifier().fit([[-1.0], [-1.0], [1.0], [1.0]], [0, 0, 1, 1])
    assert model.at_bound_
    assert model.converged_
    np.testing.assert_allclose(model.coef_, 1000.0)
    shorter = GDNPClassifier(max_length=900.0).fit([[-1.0], [-1.0], [1.0], [1.0]], [0, 0, 1, 1])
    np.testing.assert_allclose(shorter.coef_, 900.0)


def test_overlapping_classes_do_not_end_at_the_bound():
    assert not GDNPClassifier().fit(*gaussian()).at_bound_


def test_too_few_steps_are_said():
    inputs, signs = gaussian()
    with pytest.warns(ConvergenceWarning, match="in 2 steps.*raise max_iter"):
        model = GDNPClassifier(max_iter=2).fit(inputs, signs)
    assert not model.converged_
    assert model.n_iter_ == 2


def test_path_that_ends_itself_does_not_ask_for_more_steps():
    inputs, signs = gaussian(samples=100)
    true, calls = margin_loss("logistic"), itertools.count()
    # a value that rises with every call, whatever the slopes say: no step ever lowers it
    rising = MarginLoss(lambda m: true.value(m) + next(calls), true.slope, true.curvature)
    with pytest.warns(ConvergenceWarning, match="stopped after 0 steps") as caught:
        model = GDNPClassifier(rising).fit(inputs, signs)
    assert "max_iter" not in str(caught[0].message)
    assert not model.converged_
