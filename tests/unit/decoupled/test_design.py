"""S behind an operator: its largest eigenvalue, its inverse on badly scaled columns, its centre."""

import numpy as np
import pytest
from scipy import sparse

from normscope.decoupled import GDNPClassifier, GDNPMLPClassifier, SecondMoment, SignedDesign
from normscope.decoupled.design import column_centres, column_variances
from normscope.errors import NormscopeWarning

CROSSED = np.array(
    [[1, -1, 0, 0, 0], [-1, 1, 0, 0, 0], [0, 0, 1, -1, 0], [0, 0, -1, 1, 0]], dtype=float
)
KINDS = pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array])


@KINDS
def test_largest_eigenvalue_is_found_where_the_mean_is_zero(kind):
    design = SignedDesign(kind(CROSSED), [1, 1, -1, -1], False)
    assert not design.moments.formed
    assert not design.mean.any()
    top = np.linalg.eigvalsh(CROSSED.T @ CROSSED / 4)[-1]
    assert design.moments.spectrum == (pytest.approx(top, rel=2e-6), None)


def test_largest_eigenvalue_is_found_across_the_ones_and_the_mean():
    """The top eigenvector is orthogonal to both: no start made of them would find it."""
    inputs = np.zeros((4, 6))
    inputs[0, :2], inputs[1, :2], inputs[2:, 2:] = (5, -5), (-5, 5), 1.0
    design = SignedDesign(inputs, [1, 1, -1, -1], False)
    assert not design.moments.formed
    assert design.moments.spectrum[0] == pytest.approx(25.0, rel=2e-6)


def test_hidden_units_are_trained_where_the_mean_is_zero():
    model = GDNPMLPClassifier(4, random_state=0, fit_intercept=False).fit(CROSSED, [1, 1, 0, 0])
    # without an intercept F(-x) = -F(x): nothing is better than chance
    assert model.objective_[0] == pytest.approx(np.log(2), abs=1e-3)


def test_zero_input_has_no_eigenvalue():
    assert SecondMoment(np.zeros((2, 3)), False).spectrum == (0.0, None)


def badly_scaled(samples, size, formed_scale):
    random = np.random.default_rng(0)
    inputs = random.standard_normal((samples, size)) + 0.3
    signs = np.where(random.random(samples) < 0.5, 1.0, -1.0)
    return inputs, signs, formed_scale ** np.linspace(-1, 1, size)


@KINDS
@pytest.mark.parametrize("size", [20, 600])
def test_quotient_does_not_depend_on_the_scale_of_the_columns(kind, size):
    inputs, signs, scales = badly_scaled(700, size, 1e6)
    even, uneven = (SignedDesign(kind(x), signs, False) for x in (inputs, inputs * scales))
    assert even.moments.formed == (size == 20)
    z = -signs[:, None] * inputs
    expected = z.mean(axis=0) @ np.linalg.solve(z.T @ z / 700, z.mean(axis=0))
    for design in (even, uneven):
        assert design.mean @ design.solve(design.mean) == pytest.approx(expected, rel=1e-7)


def test_inverse_that_is_not_found_is_said():
    inputs, signs, _ = badly_scaled(600, 560, 1.0)
    near = inputs[:, :1] + inputs * np.geomspace(1e-9, 1, 560)  # columns that nearly agree
    design = SignedDesign(near, signs, False)
    with pytest.warns(NormscopeWarning, match="relative residual"):
        design.solve(design.mean)


@KINDS
@pytest.mark.parametrize("value", [7.0, 0.1, 1e9])
def test_constant_column_is_exactly_nothing_beside_an_intercept(kind, value):
    random = np.random.default_rng(3)
    inputs = random.standard_normal((150, 3))
    labels = inputs[:, 0] + random.standard_normal(150) > 0
    wider = np.column_stack([inputs, np.full(150, value), np.zeros(150)])
    model, alone = GDNPClassifier().fit(kind(wider), labels), GDNPClassifier().fit(inputs, labels)
    np.testing.assert_allclose(model.coef_[0, -2:], 0, atol=1e-12)
    np.testing.assert_allclose(model.coef_[0, :3], alone.coef_[0], rtol=1e-9)
    assert model.intercept_[0] == pytest.approx(alone.intercept_[0], rel=1e-9)


def test_large_offset_leaves_the_fit_of_dense_input():
    random = np.random.default_rng(4)
    inputs = np.round(random.standard_normal((150, 3)) * 64) / 64  # exact beside the offset
    labels = inputs[:, 0] + random.standard_normal(150) > 0
    near, far = (GDNPClassifier().fit(inputs + offset, labels) for offset in (0.0, 2.0**30))
    np.testing.assert_allclose(far.coef_, near.coef_, rtol=1e-9)


@KINDS
def test_columns_have_the_moments_of_numpy(kind):
    random = np.random.default_rng(5)
    inputs = random.standard_normal((60, 4)) * (random.random((60, 4)) < 0.4)
    inputs[:, 1] = random.standard_normal(60) + 5  # every entry stored
    weights = random.random(60)
    weights /= weights.sum()
    centres = column_centres(kind(inputs), weights)
    np.testing.assert_allclose(centres, np.average(inputs, axis=0, weights=weights), rtol=1e-12)
    about = np.average((inputs - centres) ** 2, axis=0, weights=weights)
    np.testing.assert_allclose(column_variances(kind(inputs), centres, weights), about, rtol=1e-12)


def test_sparse_entries_that_are_stored_twice_are_added():
    twice = sparse.csr_array((np.ones(3), [0, 0, 0], [0, 2, 3]), shape=(2, 1))
    assert column_variances(twice, np.zeros(1), np.full(2, 0.5)).item() == 2.5


def test_second_moment_is_shared_by_the_classes(monkeypatch):
    made = []
    original = SecondMoment.__init__

    def counting(self, *arguments):
        made.append(self)
        original(self, *arguments)

    monkeypatch.setattr(SecondMoment, "__init__", counting)
    inputs = np.random.default_rng(6).standard_normal((60, 2))
    GDNPClassifier(tol=1e-2).fit(inputs, np.arange(60) % 3)
    assert len(made) == 1
