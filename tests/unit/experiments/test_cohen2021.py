import numpy as np
import pytest
import torch
import xarray as xr

import normscope as ns
from normscope.errors import InputError
from normscope.experiments.cohen2021.full_batch import gradient_descent_claims
from normscope.experiments.cohen2021.mini_batches import mini_batch_claims
from normscope.experiments.cohen2021.trainings import Setting, settings_of, settled, train

SMALL = {"every": 5, "data": "digits", "samples": 60, "width": 8, "channels": 3}


def gauge(ratios, edge=20.0):
    """What the gauge would measure for ratios of sharpness and edge, (runs, steps)."""
    ratios = np.atleast_2d(np.array(ratios, dtype=float))
    edges = np.where(np.isnan(ratios), np.nan, edge)
    return xr.Dataset(
        {
            "sharpness": (("run", "step"), ratios * edge),
            "sharpness_threshold": (("run", "step"), edges),
        },
        {"run": [f"run {number}" for number in range(len(ratios))]},
    )


@pytest.mark.parametrize(
    ("ratios", "holds"),
    [
        ([4.0, 0.2, 0.5, 0.8, 1.05, 1.09], True),
        ([4.0, 0.2, 0.5, 0.95, 1.2, 1.2], False),
        ([0.5, 0.95, 1.0, 1.0, 0.7, 0.7], False),
        ([4.0, 3.0, 0.5, 0.6, 0.7, 0.8], None),  # the edge was never reached from below
        ([0.5, 0.9, 0.9, 1.0, 1.0, np.nan], True),
        ([np.nan] * 6, None),
    ],
)
def test_rule_compares_the_last_third_with_the_edge(ratios, holds):
    results = gauge([ratios])
    assert settled(results, "run 0", "sharpness", "sharpness_threshold").holds is holds
    (claim,) = gradient_descent_claims(results)
    assert claim.holds is holds
    assert "run 0" in claim.text


def test_every_training_has_its_own_verdict():
    claims = gradient_descent_claims(gauge([[0.5, 1, 1], [0.5, 1, 1.3], [0.5, 0.6, 0.7]]))
    assert [claim.holds for claim in claims] == [True, False, None]
    assert "1.3 times 2 / rate" in claims[1].measured
    assert "largest after the first third 0.7" in claims[2].measured
    assert claims[2].resolve == "more steps"
    assert all("last third" in claim.rule and claim.statement for claim in claims)


def test_small_and_large_batches_have_their_own_edges():
    results = xr.Dataset(
        {
            "batch_sharpness": (("run", "step"), [[1.0, 2.0, 2.0], [1.0, 38.0, 38.0]]),
            "batch_threshold_small": (("run", "step"), np.full((2, 3), 2.0)),
            "batch_threshold_large": (("run", "step"), np.full((2, 3), 38.0)),
            "batch_size": ("run", [16, 2048]),
            "momentum": ("run", [0.9, 0.9]),
        },
        {"run": ["small", "large"]},
    )
    small, large = mini_batch_claims(results)
    assert small.holds
    assert large.holds
    assert "2 (1 - momentum) / rate" in small.text
    assert "2 (1 + momentum) / rate" in large.text


def test_full_batch_training_is_plain_gradient_descent():
    setting = Setting("fc-tanh", learning_rate=0.1, steps=10, **SMALL)
    found = train(setting, seed=3)
    model = ns.models.build(
        *("fully_connected", "none", 3),
        input_shape=(1, 8, 8),
        depth=3,
        width=8,
        activation="tanh",
        sigma_w2=1 / 3,
        sigma_b2=0.0,
    )
    x, y = (each[:60] for each in ns.data.load("digits").train)
    target = torch.nn.functional.one_hot(y, 10).float()
    losses = []
    for _ in range(11):
        loss = (model(x) - target).square().sum() / 120
        losses.append(loss.item())
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter -= 0.1 * gradient
    np.testing.assert_allclose(found["loss"], losses[::5], rtol=1e-4)
    np.testing.assert_allclose(found["sharpness_threshold"], 20)


def test_training_that_diverges_ends_there():
    setting = Setting("fc-tanh", learning_rate=1e3, steps=200, **SMALL)
    found = train(setting, seed=0)
    assert 1 <= found.sizes["step"] < 41
    assert np.isfinite(found["loss"]).all()


def test_settings_of_different_lengths_are_refused():
    with pytest.raises(InputError, match="one entry for each training, got 1, 2 and 1"):
        settings_of(["cnn"], [0.1, 0.2], [10], **SMALL)
    with pytest.raises(InputError, match="among fc-tanh, cnn, cnn-bn; got 'vgg'"):
        settings_of(["vgg"], [0.1], [10], **SMALL)
    with pytest.raises(InputError, match="batch_sizes, momenta, rates and every"):
        ns.experiments.run("cohen2021/mini_batches", batch_sizes=(8,))
