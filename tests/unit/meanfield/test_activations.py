"""Quadrature against closed forms, and both against Gauss-Hermite tensor grids."""

import numpy as np
import pytest
from scipy.special import erf

from normscope.errors import UnknownNameError
from normscope.meanfield import Rectifier, Smooth
from normscope.meanfield.activations import ACTIVATIONS, activation

SMOOTH = ["erf", "tanh", "gelu", "silu", "sigmoid"]
FUNCTIONS = {
    "relu": lambda z: np.maximum(z, 0),
    "leaky_relu": lambda z: np.where(z > 0, z, 0.01 * z),
    "linear": lambda z: z,
    "erf": erf,
    "tanh": np.tanh,
}


def tensor_grid(function, means, stds, c, nodes=120):
    """E[f(x) f(y)] by Gauss-Hermite quadrature in both variables."""
    z, w = np.polynomial.hermite_e.hermegauss(nodes)
    w = w / w.sum()
    x = means[0] + stds[0] * z[:, None]
    y = means[1] + stds[1] * (c * z[:, None] + np.sqrt(1 - c * c) * z[None, :])
    return float((w[:, None] * w[None, :] * function(x) * function(y)).sum())


@pytest.mark.parametrize("std", [0.3, 1.0, 2.0, 3.0])
@pytest.mark.parametrize("c", [-0.5, 0.0, 0.3, 0.99])
def test_series_agrees_with_the_closed_form_of_erf(std, c):
    zero, stds, c = np.zeros(2), np.full(2, std), np.full(2, c)
    closed, summed = ACTIVATIONS["erf"], Smooth(erf)
    pairs = ((zero, zero), (stds, stds), c)
    assert summed.product(*pairs) == pytest.approx(closed.product(*pairs), abs=1e-10)
    assert summed.slope_product(*pairs) == pytest.approx(closed.slope_product(*pairs), abs=1e-10)


def test_quadrature_of_a_polynomial_is_exact():
    cube = Smooth(lambda z: z**3)
    one, c = np.ones(1), np.array([0.4])
    # E[x^3 y^3] = 9 c + 6 c^3, E[9 x^2 y^2] = 9 (1 + 2 c^2)
    assert cube.product((0 * one, 0 * one), (one, one), c) == pytest.approx(9 * c + 6 * c**3)
    slopes = cube.slope_product((0 * one, 0 * one), (one, one), c)
    assert slopes == pytest.approx(9 * (1 + 2 * c**2), abs=1e-10)
    assert cube.slope_moment(0 * one, one, 2) == pytest.approx(27.0, rel=1e-9)


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize("means", [(0.0, 0.0), (0.4, -0.2)])
def test_smooth_activations_agree_with_a_tensor_grid(name, means):
    chosen = ACTIVATIONS[name]
    arrays = tuple(np.array([m]) for m in means)
    stds = (np.array([0.8]), np.array([0.6]))
    found = chosen.product(arrays, stds, np.array([0.35]))
    expected = tensor_grid(chosen.function, means, (0.8, 0.6), 0.35)
    assert float(found[0]) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("name", SMOOTH)
def test_slopes_agree_with_differences_of_the_product(name):
    """Price: the derivative of E[f f] by the correlation is E[f' f'] times both deviations."""
    chosen, step = ACTIVATIONS[name], 1e-5
    means, stds = (np.array([0.1]), np.array([0.1])), (np.array([1.2]), np.array([1.2]))
    high, low = (chosen.product(means, stds, np.array([0.3 + h])) for h in (step, -step))
    found = chosen.slope_product(means, stds, np.array([0.3]))
    assert found == pytest.approx((high - low) / (2 * step * 1.2**2), abs=1e-8)
    own = chosen.slope_product(means, stds, np.array([1.0]))
    assert own == pytest.approx(chosen.slope_moment(means[0], stds[0], 2), abs=1e-8)


@pytest.mark.parametrize("slope", [0.0, 0.01, 0.3, 1.0])
@pytest.mark.parametrize("means", [(0.0, 0.0), (0.5, -0.3)])
def test_rectifiers_agree_with_sampling(slope, means):
    z = np.random.default_rng(0).standard_normal((2, 400_000))
    c, stds = 0.5, (1.1, 0.7)
    x = means[0] + stds[0] * z[0]
    y = means[1] + stds[1] * (c * z[0] + np.sqrt(1 - c * c) * z[1])
    chosen = Rectifier(slope)
    pairs = tuple(np.array([m]) for m in means), tuple(np.array([s]) for s in stds)
    fx, fy = (np.where(v > 0, v, slope * v) for v in (x, y))
    gx, gy = (np.where(v > 0, 1.0, slope) for v in (x, y))
    assert float(chosen.product(*pairs, np.array([c]))[0]) == pytest.approx(
        (fx * fy).mean(), abs=5e-3
    )
    found = chosen.slope_product(*pairs, np.array([c]))
    assert float(np.ravel(found)[0]) == pytest.approx((gx * gy).mean(), abs=5e-3)
    assert float(chosen.mean(pairs[0][0], pairs[1][0])[0]) == pytest.approx(fx.mean(), abs=5e-3)
    fourth = chosen.slope_moment(pairs[0][0], pairs[1][0], 4)
    assert float(fourth[0]) == pytest.approx((gx**4).mean(), abs=5e-3)


def test_relu_at_zero_mean_is_the_papers_kernel():
    c = np.linspace(-1, 1, 9)
    zero, one = np.zeros(9), np.full(9, 1.0)
    expected = (np.sqrt(1 - c**2) + c * np.pi / 2 + c * np.arcsin(c)) / (2 * np.pi)
    relu = ACTIVATIONS["relu"]
    assert relu.product((zero, zero), (one, one), c) == pytest.approx(expected, abs=1e-14)
    slopes = relu.slope_product((zero, zero), (one, one), c)
    assert slopes == pytest.approx((np.pi / 2 + np.arcsin(c)) / (2 * np.pi), abs=1e-14)


def test_activation_takes_names_functions_and_itself():
    assert activation("tanh") is ACTIVATIONS["tanh"]
    assert activation(ACTIVATIONS["relu"]) is ACTIVATIONS["relu"]
    assert activation(np.sin).name == "sin"
    with pytest.raises(UnknownNameError, match="did you mean 'relu'"):
        activation("relo")
