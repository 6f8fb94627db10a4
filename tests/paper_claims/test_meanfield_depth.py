"""Exploding gradients: their rate, and the branch of the largest eigenvalue that follows."""

import math

import pytest
import torch
from tests.references.meanfield import RandomNetwork, largest_eigenvalue, squared_gradients

from normscope.meanfield import fully_connected_specification, predict

RATE = math.pi / (math.pi - 1)
# linear layers -> largest eigenvalue measured once, train and frozen; 200-300-...-300-10
MEASURED = {
    3: (48.5, 94.5),
    6: (49.6, 203.0),
    10: (155.0, 387.0),
    15: (1490.0, 2551.0),
    20: (12287.0, 21493.0),
}


def deep(layers, width=300, outputs=10):
    return fully_connected_specification((200, *[width] * (layers - 1), outputs), bias_variance=0.0)


def simulated(layers, width, samples, outputs, seeds):
    tops = []
    for seed in range(seeds):
        sizes = (200, *[width] * (layers - 1), outputs)
        network = RandomNetwork(sizes, bias_variance=0.0, seed=seed)
        x = torch.randn(samples, 200, generator=torch.Generator().manual_seed(seed + 50))
        tops.append(largest_eigenvalue(network, x, steps=300))
    return sum(tops) / seeds


def test_frozen_recursion_grows_by_pi_over_pi_minus_one():
    rows = predict(deep(12), closure="frozen", batch_size=math.inf).layers
    for row in rows[1:-1]:
        assert row.growth == pytest.approx(RATE, rel=1e-12)


def test_simulated_gradients_grow_by_pi_over_pi_minus_one():
    """Geometric mean over 15 layers, width 1000, batch 256: within 2 %."""
    network = RandomNetwork((300, *[1000] * 18, 10), bias_variance=0.0, seed=0)
    x = torch.randn(256, 300, generator=torch.Generator().manual_seed(0))
    sizes = squared_gradients(network, x)
    assert (sizes[1] / sizes[16]) ** (1 / 15) == pytest.approx(RATE, rel=0.02)


@pytest.mark.parametrize(("batch_size", "rate"), [(4, 3.00), (8, 1.79), (16, 1.59), (64, 1.49)])
def test_small_batches_grow_faster(batch_size, rate):
    """Rates measured once at width 1000 and depth 40."""
    found = predict(deep(12), batch_size=batch_size).layers[5].growth
    assert found == pytest.approx(rate, rel=0.03)


@pytest.mark.parametrize("layers", MEASURED)
def test_regime_of_the_depth_table_is_flagged(layers):
    expected = "head" if layers < 8 else "explosive"
    assert predict(deep(layers), batch_size=300).regime == expected
    assert predict(deep(layers)).regime == expected  # also at the default batch size


@pytest.mark.parametrize("layers", MEASURED)
def test_train_eigenvalue_of_the_depth_table(layers):
    """Within 4 % on the head branch, within 20 % on the explosive one (seeds scatter as much)."""
    found = predict(deep(layers), batch_size=300).lambda_max
    assert found == pytest.approx(MEASURED[layers][0], rel=0.04 if layers < 8 else 0.2)


def test_lower_bound_says_nothing_past_eight_layers():
    found = predict(deep(20), closure="frozen", batch_size=300)
    assert 82.5 <= predict(deep(3), closure="frozen").lower_bound <= 179
    assert 82.5 <= found.lower_bound <= 179
    assert found.regime == "explosive"


@pytest.mark.parametrize(
    ("layers", "width", "samples", "outputs"),
    [(15, 100, 100, 10), (15, 100, 100, 1), (15, 200, 100, 10), (20, 150, 150, 5)],
)
def test_explosive_branch_over_sizes(layers, width, samples, outputs):
    """Other widths, batches and numbers of outputs than the table's: within 30 %, four seeds."""
    top = simulated(layers, width, samples, outputs, seeds=4)
    found = predict(deep(layers, width, outputs), batch_size=samples)
    assert found.regime == "explosive"
    assert top == pytest.approx(found.lambda_max, rel=0.3)


@pytest.mark.slow
@pytest.mark.parametrize("layers", [10, 15, 20])
def test_explosive_branch_at_the_tables_size(layers):
    top = simulated(layers, 300, 300, 10, seeds=3)
    assert top == pytest.approx(predict(deep(layers), batch_size=300).lambda_max, rel=0.25)


@pytest.mark.parametrize("activation", ["tanh", "erf"])
@pytest.mark.parametrize("closure", ["train", "frozen"])
def test_odd_activations_have_no_answer(activation, closure):
    spec = fully_connected_specification(activation=activation)
    found = predict(spec, closure=closure)
    assert found.lambda_max is None
    assert found.max_learning_rate() is None
    assert found.regime == "undetermined"
