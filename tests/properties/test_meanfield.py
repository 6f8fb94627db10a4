"""Properties of order parameters that hold for every architecture."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

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


MODULES = (nn.ReLU, nn.LeakyReLU, nn.Tanh, nn.GELU, nn.SiLU, nn.Sigmoid, nn.Identity)


@st.composite
def trained_like_networks(draw):
    """A network whose norm layers have scales and shifts as after training, and its input."""
    torch.manual_seed(draw(st.integers(0, 2**16)))
    maps, spread = draw(st.booleans()), draw(st.sampled_from([0.0, 0.1, 1.0, 3.0]))
    norm = draw(st.sampled_from(["batch", "layer", "none"]))
    activation = draw(st.sampled_from(MODULES))
    padding, stride = draw(st.integers(0, 2)), draw(st.integers(1, 2))
    channels, shape, modules = draw(st.integers(1, 6)), (5, 5) if maps else (), []
    inputs = (channels, *shape)
    for width in draw(st.lists(st.integers(2, 40), min_size=1, max_size=2 if maps else 5)):
        if maps:
            modules.append(nn.Conv2d(channels, width, 3, stride, padding=max(padding, 1)))
            shape = tuple((size + 2 * max(padding, 1) - 3) // stride + 1 for size in shape)
        else:
            modules.append(nn.Linear(channels, width))
        modules += [*norm_layers(norm, (width, *shape), spread), activation()]
        channels = width
    if maps:
        average = draw(st.booleans())
        modules += [*([nn.AdaptiveAvgPool2d(1)] if average else []), nn.Flatten()]
        channels *= 1 if average else shape[0] * shape[1]
    return nn.Sequential(*modules, nn.Linear(channels, draw(st.integers(1, 12)))), inputs


def norm_layers(norm, shape, spread):
    """No layer or one, with scales around one and shifts of this spread around a common one."""
    if norm == "none":
        return []
    kind = (nn.BatchNorm2d if len(shape) > 1 else nn.BatchNorm1d) if norm == "batch" else None
    layer = nn.LayerNorm(shape) if kind is None else kind(shape[0])
    with torch.no_grad():
        layer.weight.copy_((0.5 * torch.randn(layer.weight.shape)).exp())
        layer.bias.copy_(spread * (torch.randn(()) + torch.randn(layer.bias.shape)))
    return [layer]


@settings(max_examples=150, deadline=None)
@given(
    trained_like_networks(),
    st.sampled_from(["train", "frozen"]),
    st.sampled_from(["weights", "all"]),
    st.sampled_from([4, 32, 1000]),
    st.sampled_from([None, 0.0, 1.0]),
)
def test_eigenvalue_is_never_below_its_lower_bound(network, closure, parameters, batch, centre):
    """Also with shifts, and with data of any mean, whose moments are estimated on few samples."""
    model, shape = network
    data = None if centre is None else torch.randn(6, *shape) + centre
    options = {"parameters": parameters, "batch_size": batch, "data": data}
    found = predict(model, shape, closure, **options)
    assert all(row.term >= 0 for row in found.layers)
    if found.lambda_max is not None:
        assert np.isfinite(found.lambda_max)
        assert found.lambda_max >= found.lower_bound * (1 - 1e-12)


@SMALL
@given(st.integers(1, 5), st.integers(2, 300), st.floats(0.05, 4.0), st.booleans())
def test_printed_eigenvalue_is_its_lower_bound(depth, width, gamma, maps):
    if maps:
        graph = convolutional_specification((2, 9, 9), (width,), padding=1, gamma=gamma)
    else:
        graph = fully_connected_specification((20, *[width] * depth, 3), gamma=gamma)
    found = predict(graph, closure="printed")
    assert found.lambda_max == found.lower_bound > 0
