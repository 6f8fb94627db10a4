"""Properties of order parameters that hold for every architecture."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normscope.meanfield import (
    convolutional_specification,
    fully_connected_specification,
    predict,
)
from normscope.meanfield.activations import ACTIVATIONS
from normscope.meanfield.integrals import both_below

NAMES = st.sampled_from(sorted(ACTIVATIONS))
SMALL = settings(max_examples=40, deadline=None)


@SMALL
@given(NAMES, st.floats(-1.5, 1.5), st.floats(0.05, 2.5), st.floats(-1.0, 1.0))
def test_products_obey_cauchy_and_schwarz(name, mean, std, correlation):
    chosen = ACTIVATIONS[name]
    m, s = np.array([mean]), np.array([std])
    own = chosen.product((m, m), (s, s), np.ones(1))
    other = chosen.product((m, m), (s, s), np.array([correlation]))
    assert abs(other[0]) <= own[0] * (1 + 1e-9) + 1e-12
    assert own[0] >= chosen.mean(m, s)[0] ** 2 - 1e-9


@SMALL
@given(st.floats(-3, 3), st.floats(-3, 3), st.floats(-0.999, 0.999))
def test_bivariate_probability_is_symmetric_and_within_its_margins(h, k, c):
    from scipy.special import ndtr

    value = float(both_below(np.array(h), np.array(k), np.array(c)))
    assert value == pytest.approx(
        float(both_below(np.array(k), np.array(h), np.array(c))), abs=1e-12
    )
    low, high = max(0.0, ndtr(h) + ndtr(k) - 1), min(ndtr(h), ndtr(k))
    assert low - 1e-9 <= value <= high + 1e-9


@SMALL
@given(st.floats(0.1, 3.0), st.floats(1.1, 3.0), st.sampled_from(["train", "frozen"]))
def test_bound_scales_with_gamma_squared(gamma, factor, closure):
    """ReLU passes a common scale of all norm layers on, and every norm layer undoes the last."""
    graph = convolutional_specification((2, 9, 9), (8, 12), padding=1)
    low, high = (predict(graph, closure=closure, gamma=g) for g in (gamma, gamma * factor))
    assert high.lower_bound == pytest.approx(low.lower_bound * factor**2, rel=1e-9)


@SMALL
@given(st.floats(0.1, 5.0), st.floats(0.0, 2.0), st.sampled_from(["train", "frozen"]))
def test_batch_norm_forgets_the_weights_below_it(weight, bias, closure):
    """Only the head's own term and the head's weights, which gradients pass, remain."""
    base = fully_connected_specification((20, 50, 50, 3), weight_variance=1.0, bias_variance=0.0)
    other = fully_connected_specification(
        (20, 50, 50, 3), weight_variance=weight, bias_variance=bias
    )
    first, second = (predict(graph, closure=closure).layers for graph in (base, other))
    assert second[-1].term == pytest.approx(first[-1].term, rel=1e-9)
    assert second[1].gradient == pytest.approx(first[1].gradient, rel=1e-9)


@SMALL
@given(
    st.integers(0, 2),
    st.integers(1, 2),
    st.sampled_from(["batch", "none", "layer"]),
    st.sampled_from(["flatten", "average"]),
)
def test_kernels_stay_positive_and_terms_are_no_negative_numbers(padding, stride, norm, head):
    graph = convolutional_specification(
        (2, 8, 8), (6, 8), padding=padding, stride=stride, norm=norm, head=head
    )
    for closure in ("train", "frozen"):
        found = predict(graph, closure=closure)
        assert all(row.term >= -1e-9 * found.lower_bound for row in found.layers)
        assert all(row.second_moment >= row.second_moment_pair - 1e-12 for row in found.layers)
        assert all(row.gradient > 0 for row in found.layers)
        assert found.lambda_max >= found.lower_bound * (1 - 1e-12)
