"""Laws of the learning-rate bound that hold for any numbers."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from normscope.learning_rate.bound import measure_curvature
from normscope.learning_rate.update_rule import UpdateRule
from normscope.problem import Problem

momenta = st.floats(0.0, 0.99)
curvatures = st.floats(1e-3, 1e3)


def iteration(rate, curvature, momentum, nesterov):
    """One step of SGD on a quadratic as a matrix over (weight, velocity)."""
    ahead = momentum if nesterov else 1.0
    direct = rate * curvature if nesterov else 0.0
    velocity = [curvature, momentum]
    weight = [1 - direct - rate * ahead * curvature, -rate * ahead * momentum]
    return np.array([weight, velocity])


@given(curvature=curvatures, momentum=momenta, nesterov=st.booleans(), factor=st.floats(0.01, 2.0))
def test_bound_separates_contraction_from_growth(curvature, momentum, nesterov, factor):
    bound = UpdateRule("SGD", momentum, nesterov).largest_stable_rate(curvature)
    radius = np.abs(
        np.linalg.eigvals(iteration(factor * bound, curvature, momentum, nesterov))
    ).max()
    if factor < 0.999:
        assert radius < 1
    elif factor > 1.001:
        assert radius > 1


@given(curvature=curvatures, momentum=momenta, decay=st.floats(0.0, 10.0))
def test_weight_decay_and_nesterov_never_raise_the_bound(curvature, momentum, decay):
    plain = UpdateRule("SGD", momentum).largest_stable_rate(curvature)
    decayed = UpdateRule("SGD", momentum, weight_decay=decay).largest_stable_rate(curvature)
    ahead = UpdateRule("SGD", momentum, nesterov=True).largest_stable_rate(curvature)
    assert decayed <= plain
    assert ahead <= plain


@settings(max_examples=10, deadline=None)
@given(scale=st.floats(1e-3, 1e3), seed=st.integers(0, 100))
def test_curvature_goes_as_the_scale_of_the_loss(scale, seed):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    data = (torch.randn(8, 3).double(), torch.randn(8, 2).double())

    def measured(factor):
        def loss(output, target):
            return factor * nn.functional.mse_loss(output, target)

        return measure_curvature(Problem(model, loss, data), [data], UpdateRule("SGD"))

    plain, scaled = measured(1.0), measured(scale)
    assert np.isclose(scaled.values[0], scale * plain.values[0], rtol=0.01)
    later = [scale * value for value in plain.later]  # the same steps
    assert np.allclose(scaled.later, later, rtol=0.01)
