"""Least squares: every method against its plain form, the bound, and input that cannot work."""

import numpy as np
import pytest
from scipy import sparse
from scipy.sparse.linalg import cg
from tests.references import decoupled as plain

from normscope.decoupled import ordinary_least_squares
from normscope.errors import ArgumentTypeError, InputError, ShapeError, UnknownNameError

METHODS = ("gd", "bn_gd", "gdnp", "agd", "cg")


def problem(condition, size=12, seed=0):
    random = np.random.default_rng(seed)
    basis, _ = np.linalg.qr(random.standard_normal((size, size)))
    second = basis @ np.diag(np.geomspace(1 / condition, 1, size)) @ basis.T
    mean, start = random.standard_normal((2, size))
    return (second + second.T) / 2, mean, start


def test_gdnp_is_the_articles_recursion():
    second, mean, start = problem(50.0)
    path = ordinary_least_squares(S=second, u=mean, steps=100, start=start)
    expected = plain.gdnp_least_squares(second, mean, start, 100)
    np.testing.assert_allclose(path.rho, expected, rtol=1e-11)


@pytest.mark.parametrize(
    ("method", "reference"),
    [
        ("gd", plain.descent),
        ("bn_gd", plain.normalized_descent),
        ("agd", plain.accelerated),
    ],
)
def test_method_is_its_plain_recursion(method, reference):
    second, mean, start = problem(50.0)
    rate = 0.3
    path = ordinary_least_squares(
        S=second, u=mean, method=method, steps=60, start=start, learning_rate=rate
    )
    points = reference(second, mean, start, 60, rate)
    np.testing.assert_allclose(path.w, points, rtol=1e-9, atol=1e-9)
    objective = 2 * points @ mean + np.einsum("ti,ij,tj->t", points, second, points)
    np.testing.assert_allclose(path.excess, objective - path.best, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("rate", [0.05, 0.3, 3.0])  # at 3 w crosses u'w = 0 on its way
def test_normalized_descent_is_its_plain_recursion_on_either_side(sign, rate):
    second, mean, start = problem(10.0)
    path = ordinary_least_squares(
        S=second, u=mean, method="bn_gd", steps=25, start=sign * start, learning_rate=rate
    )
    expected = plain.normalized_descent(second, mean, sign * start, 25, rate)
    np.testing.assert_allclose(path.w, expected, rtol=1e-7, atol=1e-9 * np.abs(expected).max())


def test_normalized_descent_starts_at_the_start_it_is_given():
    path = ordinary_least_squares(
        S=np.diag([1.0, 4.0]), u=[-1.0, -3.0], method="bn_gd", start=[-1.0, -0.5], steps=50
    )
    np.testing.assert_allclose(path.w[0], [-1.0, -0.5], rtol=1e-14)
    assert path.excess[0] == pytest.approx(10.25, rel=1e-14)
    np.testing.assert_allclose(path.coef, [1.0, 0.75], rtol=1e-4)


def test_conjugate_gradients_agree_with_scipy():
    second, mean, start = problem(50.0)
    points = []
    cg(second, -mean, x0=start, maxiter=5, rtol=0.0, callback=lambda w: points.append(w.copy()))
    path = ordinary_least_squares(S=second, u=mean, method="cg", steps=6, start=start)
    np.testing.assert_allclose(path.w[1:6], points, rtol=1e-8)


@pytest.mark.parametrize("condition", [1.5, 10.0, 1e3, 1e6])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_gdnp_keeps_to_its_bound_at_every_step(condition, seed):
    second, mean, start = problem(condition, seed=seed)
    path = ordinary_least_squares(S=second, u=mean, steps=500, start=start)
    assert path.gap[0] > 0
    assert (path.gap <= path.bound * (1 + 1e-9)).all()
    smallest, largest = np.linalg.eigvalsh(second)[[0, -1]]
    expected = (1 - smallest / largest) ** (2.0 * np.arange(500)) * path.gap[0]
    np.testing.assert_allclose(path.bound, expected, rtol=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_reaches_the_solution(method):
    second, mean, start = problem(10.0)
    path = ordinary_least_squares(S=second, u=mean, method=method, steps=2000, start=start)
    np.testing.assert_allclose(path.coef, -np.linalg.solve(second, mean), rtol=1e-9)
    assert path.best == pytest.approx(-mean @ np.linalg.solve(second, mean), rel=1e-12)
    assert path.w.shape == (2000, 12)
    assert path.claimed


def test_samples_give_the_regression_of_numpy():
    random = np.random.default_rng(3)
    inputs, targets = random.standard_normal((40, 5)), random.standard_normal(40)
    path = ordinary_least_squares(inputs, targets, steps=400)
    expected = np.linalg.lstsq(inputs, targets, rcond=None)[0]
    np.testing.assert_allclose(path.coef, expected, rtol=1e-10)


def test_fewer_samples_than_features_gives_the_shortest_solution():
    random = np.random.default_rng(4)
    inputs, targets = random.standard_normal((5, 12)), random.standard_normal(5)
    path = ordinary_least_squares(inputs, targets, method="cg", steps=30)
    np.testing.assert_allclose(path.coef, np.linalg.pinv(inputs) @ targets, rtol=1e-8)


def test_gap_keeps_its_digits_below_the_rounding_of_the_objective():
    second, mean, start = problem(2.0)
    path = ordinary_least_squares(S=second, u=mean, steps=300, start=start)
    assert 0 < path.gap[-1] < 1e-100
    assert path.rate == pytest.approx(0.25, rel=0.1)


def test_diverging_path_is_an_outcome():
    second, mean, start = problem(10.0)
    path = ordinary_least_squares(
        S=second, u=mean, method="gd", steps=3000, start=start, learning_rate=2.0
    )
    assert path.excess[-1] > 1e300
    assert np.isnan(path.rate) or path.rate >= 0


def test_path_prints_as_a_table_and_becomes_a_frame(tmp_path):
    second, mean, _ = problem(10.0)
    path = ordinary_least_squares(S=second, u=mean, steps=20)
    assert str(path).splitlines()[1].split() == ["step", "rho", "gap", "bound", "excess"]
    assert len(str(path).splitlines()) <= 12
    frame = path.to_dataframe()
    assert list(frame.columns) == ["rho", "gap", "bound", "excess"]
    assert len(frame) == 20
    axes = path.plot()
    assert axes.get_yscale() == "log"
    assert path.plot(ax=axes) is axes
    assert len(axes.lines) == 4


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({}, InputError, "give either"),
        ({"X": np.eye(2)}, InputError, "X with y"),
        ({"S": np.eye(2), "u": [1, 2], "X": np.eye(2), "y": [1, 2]}, InputError, "either"),
        ({"S": np.eye(2), "u": [0, 0]}, InputError, "zero"),
        ({"S": np.diag([1.0, 0.0]), "u": [1, 1]}, InputError, "range"),
        ({"S": np.diag([1.0, -1.0]), "u": [1, 1]}, InputError, "negative"),
        ({"S": np.array([[1.0, 2.0], [0.0, 1.0]]), "u": [1, 1]}, ShapeError, "symmetric"),
        ({"S": np.eye(2), "u": [1, 1, 1]}, ShapeError, "u must be 2"),
        ({"S": np.eye(2), "u": [1, 0], "start": [0, 1]}, InputError, "u'w = 0"),
        ({"S": np.eye(2), "u": [1, 0], "method": "gnp"}, UnknownNameError, "gdnp"),
        ({"S": np.eye(2), "u": [1, 0], "steps": 0}, InputError, "steps"),
        ({"S": np.eye(2), "u": [1, 0], "learning_rate": -1.0}, InputError, "learning_rate"),
        ({"S": np.full((2, 2), np.nan), "u": [1, 0]}, InputError, "S must be finite, got 4"),
        ({"X": [[1.0], [np.nan]], "y": [1, 0]}, InputError, "X must be finite, got 1"),
        ({"X": [[1.0], [2.0]], "y": [1, np.inf]}, InputError, "y must be finite"),
        ({"X": [1.0, 2.0], "y": [1, 0]}, ShapeError, "X must be a matrix"),
        ({"X": sparse.eye_array(2), "y": [1, 0]}, ArgumentTypeError, "X.toarray"),
        ({"S": np.eye(2), "u": [1, 0], "learning_rate": 0.1}, InputError, "'gdnp' chooses its own"),
        (
            {"S": np.eye(2), "u": [1, 0], "method": "cg", "learning_rate": 0.1},
            InputError,
            "takes no learning_rate",
        ),
    ],
)
def test_bad_input_is_refused_in_words(arguments, error, text):
    with pytest.raises(error, match=text):
        ordinary_least_squares(**arguments)


@pytest.mark.parametrize("sizes", [(1e-2, 1e2), (1e-4, 1e4), (1e4, 1e-3)])
@pytest.mark.parametrize("moments", [False, True])
def test_small_columns_are_not_lost_beside_large_ones(sizes, moments):
    """The weight of a column of 1e-4 beside one of 1e4 was once zero, if S was given."""
    random = np.random.default_rng(0)
    even = random.standard_normal((300, 2))
    targets, inputs = even @ [1.0, 2.0], even * sizes
    given = {"X": inputs, "y": targets}
    if moments:
        given = {"S": inputs.T @ inputs / 300, "u": -inputs.T @ targets / 300}
    path = ordinary_least_squares(**given, method="cg", steps=50)
    np.testing.assert_allclose(path.coef * sizes, [1.0, 2.0], rtol=1e-6)
    assert path.best == pytest.approx(-targets @ targets / 300, rel=1e-9)


@pytest.mark.parametrize("moments", [False, True])
def test_columns_of_sizes_beyond_double_precision_are_refused(moments):
    random = np.random.default_rng(0)
    inputs = random.standard_normal((300, 2)) * (1e-8, 1e8)
    targets = inputs @ [1e8, 1e-8]
    given = {"X": inputs, "y": targets}
    if moments:
        given = {"S": inputs.T @ inputs / 300, "u": -inputs.T @ targets / 300}
    with pytest.raises(InputError, match=r"columns differ too much in size, from 1e-08 to 1e\+08"):
        ordinary_least_squares(**given)


def test_columns_that_depend_on_others_are_still_left_out():
    random = np.random.default_rng(0)
    inputs = random.standard_normal((50, 2)) @ [[1.0, 0.0, 1e3], [0.0, 1.0, 1e3]]
    path = ordinary_least_squares(inputs, inputs @ [1.0, 2.0, 0.0], method="cg", steps=50)
    np.testing.assert_allclose(inputs @ path.coef, inputs @ [1.0, 2.0, 0.0], rtol=1e-8)
