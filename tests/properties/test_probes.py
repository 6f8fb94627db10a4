"""What must hold for the probes of any small net."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import normscope as ns
from normscope.probes import Scope
from normscope.probes.gradients import difference_and_cosine

SETTINGS = {"deadline": None, "max_examples": 15, "derandomize": True}

NETS = st.fixed_dictionaries(
    {
        "norm": st.sampled_from(["none", "batch", "l1", "layer", "noisy"]),
        "depth": st.integers(1, 4),
        "width": st.integers(2, 6),
        "seed": st.integers(0, 5),
    }
)


def measured(options, probes, rate, distances, scale=1.0):
    model = ns.models.build("fully_connected", input_shape=(5,), outputs=3, **options).double()
    generator = torch.Generator().manual_seed(options["seed"])
    x = torch.randn(7, 5, generator=generator, dtype=torch.double)
    y = torch.randn(7, 3, generator=generator, dtype=torch.double)
    loss = ns.problem.squared_error
    scope = Scope(
        model,
        lambda output, target: scale * loss(output, target),
        torch.optim.SGD(model.parameters(), rate),
        probes,
        distances=distances,
    )
    scope.step(x, y)
    return scope.results.isel(step=0)


RAY = ["loss_variation", "gradient_predictiveness", "effective_smoothness"]


@settings(**SETTINGS)
@given(NETS, st.floats(1e-3, 0.5), st.floats(0.1, 10.0))
def test_ray_depends_on_rate_and_distance_by_their_product(options, rate, factor):
    one = measured(options, RAY, rate, [factor, 2 * factor])
    other = measured(options, RAY, rate * factor, [1.0, 2.0])
    for name in ("ray_loss", "gradient_distance", "smoothness"):
        np.testing.assert_allclose(one[name], other[name], rtol=1e-6, atol=1e-9)


@settings(**SETTINGS)
@given(NETS, st.floats(0.1, 10.0))
def test_scaled_loss_with_the_inverse_rate_meets_the_same_points(options, scale):
    one = measured(options, [*RAY, "covariate_shift"], 0.1, [0.5, 1.0])
    other = measured(options, [*RAY, "covariate_shift"], 0.1 / scale, [0.5, 1.0], scale)
    np.testing.assert_allclose(other["ray_loss"], scale * one["ray_loss"], rtol=1e-8)
    np.testing.assert_allclose(other["smoothness"], scale * one["smoothness"], rtol=1e-6)
    np.testing.assert_allclose(other["gradient_cosine"], one["gradient_cosine"], atol=1e-8)
    np.testing.assert_allclose(
        other["shift_distance"], scale * one["shift_distance"], rtol=1e-5, atol=1e-10
    )


@settings(**SETTINGS)
@given(NETS)
def test_values_keep_their_bounds(options):
    results = measured(options, [*RAY, "covariate_shift", "gradient_norms"], 0.1, [0.5, 2.0])
    for name in ("gradient_cosine", "shift_cosine"):
        known = results[name].values[np.isfinite(results[name])]
        assert (np.abs(known) <= 1).all()
    assert results["loss_low"] <= results["loss_high"]
    assert results["shift_distance"][0] == 0
    assert results["gradient_norm"].sizes["layer"] == options["depth"]
    assert results["effective_smoothness"] == results["smoothness"].max()


@settings(**SETTINGS)
@given(st.integers(1, 30), st.integers(0, 9), st.floats(-3, 3), st.booleans())
def test_comparison_agrees_with_the_formulas(size, seed, factor, transposed):
    generator = torch.Generator().manual_seed(seed)
    one, two = torch.randn(2, size, 5, generator=generator, dtype=torch.double)
    two = one * factor + two
    shapes = (lambda t: t.T) if transposed else (lambda t: t)
    found = difference_and_cosine({"a": shapes(one)}, {"a": shapes(two.clone())})
    cosine = nn.functional.cosine_similarity(one.flatten(), two.flatten(), dim=0).item()
    np.testing.assert_allclose(found, [(one - two).norm().item(), cosine], rtol=1e-10, atol=1e-12)
