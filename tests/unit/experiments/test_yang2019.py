"""The experiments on gradient explosion at quick scale, and the parts they are made of."""

import math

import numpy as np
import pytest
import torch
import xarray as xr

from normscope.errors import ArgumentTypeError, InputError, UnknownNameError
from normscope.experiments import EXPERIMENTS, run
from normscope.experiments.yang2019.explosion import growth_per_layer
from normscope.experiments.yang2019.growth import (
    ARCHITECTURES,
    Stack,
    _averages,
    _relu_averages,
    batch_growth,
    residual_growth,
    squared_gradients,
)
from normscope.results import Store

judge_explosion = EXPERIMENTS["yang2019/explosion"].claims
judge_trainability = EXPERIMENTS["yang2019/trainability"].claims
TINY = {
    "batch_sizes": (4, 8),
    "widths": (10, 20),
    "depths": (4, 8),
    "depth": 8,
    "width": 20,
    "batch_size": 8,
    "seeds": 2,
}
FEW = {"depths": (2, 3), "learning_rates": (0.1,), "width": 8, "steps": 12, "seeds": 1}


@pytest.fixture(scope="module")
def explosion():
    return run("yang2019/explosion", **TINY)


def test_explosion_has_its_dimensions_and_finite_numbers(explosion):
    numbers = explosion.dataset
    assert dict(numbers.sizes) == {
        "architecture": 4,
        "activation": 3,
        "seed": 2,
        "layer": 8,
        "batch_size": 2,
        "width": 2,
        "depth": 2,
    }
    assert all(np.isfinite(values).all() for values in numbers.data_vars.values())
    assert np.allclose(numbers["squared_gradient"].isel(layer=-1), 1)
    assert np.allclose(numbers["expected_gradient"].isel(layer=-1), 1)


def test_explosion_shares_networks_between_sweeps_and_repeats(explosion):
    with Store(":memory:") as store:
        again = run("yang2019/explosion", store=store, **TINY)
        kept = store.counts("yang2019/explosion network")
    xr.testing.assert_identical(again.dataset, explosion.dataset)
    # architectures x activations, shallow depth, other batch, other width: 12 + 4 + 3 + 1 kinds
    assert sum(kept.values()) == 2 * (12 + 4 + 3 + 1)


def test_explosion_writes_and_draws(explosion, tmp_path):
    paths = explosion.write(tmp_path)
    assert paths["figure"].stat().st_size < 150_000
    assert "pi/(pi-1)" in paths["claims"].read_text(encoding="utf-8")


def test_narrow_nets_leave_the_theory_undecided(explosion):
    verdicts = {claim.text: claim.verdict for claim in explosion.claims}
    assert verdicts[
        "layer normalization does not explode with ReLU: the factor per layer is 1"
    ] == ("undecided")
    # a batch of eight says nothing of the limit of large ones
    assert any("misprint" in text and said == "undecided" for text, said in verdicts.items())


def test_growth_is_judged_by_its_spread_over_seeds():
    numbers = explosion_numbers({"relu": [1.49, 1.46]}, (64, 256))
    assert verdict_of(numbers, "squared gradient norm grows").holds is True
    assert verdict_of(numbers, "the norm itself").holds is False
    assert verdict_of(numbers, "explode, the less").holds is True
    assert verdict_of(numbers, "exponentially").holds is True
    assert verdict_of(numbers, "skip connections").holds is True
    assert verdict_of(numbers, "squared gradient norm").numbers["growth"] == pytest.approx(
        [1.459, 1.46, 1.461]
    )
    numbers["growth"].loc[{"batch_size": 256}] += np.array([-0.2, 0.0, 0.2])
    assert verdict_of(numbers, "squared gradient norm grows").holds is None
    assert verdict_of(numbers, "explode, the less").holds is None
    assert verdict_of(explosion_numbers({"relu": [1.4, 1.5]}, (64, 256)), "the less").holds is False
    alone = explosion_numbers({"relu": [1.49, 1.46]}, (64, 256), seeds=2)
    for claim in judge_explosion(alone):
        assert (claim.origin, claim.holds) in {("paper", None), ("beyond the paper", claim.holds)}
        assert claim.origin != "paper" or (claim.rule and claim.statement and claim.resolve)


def explosion_numbers(growth, batch_sizes, seeds=3, **changes):
    """What the experiment would return for wide nets with this growth, by activation."""
    spread = 0.001 * (np.arange(seeds) - (seeds - 1) / 2)
    names, architectures = list(growth), list(ARCHITECTURES)
    depths = changes.get("depths", (10, 40))
    gains = [
        [[1.49 ** (d - 1) if a == "batch" else 2.0] * seeds for d in depths] for a in ARCHITECTURES
    ]
    return xr.Dataset(
        {
            "growth": (
                ("activation", "batch_size", "seed"),
                np.array([[value + spread for value in growth[name]] for name in names]),
            ),
            "expected_growth": (
                ("activation", "batch_size"),
                np.array([[batch_growth(name, size) for size in batch_sizes] for name in names]),
            ),
            "gain_by_depth": (("architecture", "depth", "seed"), np.array(gains)),
            "expected_gradient": (
                ("architecture", "activation", "layer"),
                np.ones((len(architectures), len(names), 40)),
            ),
        },
        {
            "architecture": architectures,
            "activation": names,
            "batch_size": list(batch_sizes),
            "depth": list(depths),
            "seed": range(seeds),
        },
        {"width": 1000, "depth": 40, "batch_size": 64},
    )


def verdict_of(numbers, words):
    (claim,) = [claim for claim in judge_explosion(numbers) if words in claim.text]
    return claim


def test_linear_growth_is_judged_by_what_is_above_one():
    right = explosion_numbers({"linear": [1.2, 1 + 1 / 253]}, (8, 256))
    assert verdict_of(right, "linear: ").holds is True
    near_one = explosion_numbers({"linear": [1.2, 1.02]}, (8, 256))
    found = verdict_of(near_one, "linear: ")
    assert found.holds is False
    assert "256: +0.0160" in found.measured


def test_claims_without_their_data_are_left_out_or_undecided():
    numbers = explosion_numbers({"tanh": [1.36]}, (8,), depths=(6,))
    claims = {claim.text[:30]: claim.holds for claim in judge_explosion(numbers)}
    assert not any("ReLU the squared" in text for text in claims)
    assert claims["for every nonlinearity gradien"] is None
    assert claims["the squared gradient of the fi"] is None


def test_explosion_runs_without_relu():
    sizes = {**TINY, "batch_sizes": (8,), "widths": (10,), "depths": (4,), "seeds": 1}
    result = run("yang2019/explosion", activations=["tanh"], **sizes)
    assert result.figure().axes[0].get_title() == "tanh, batch 8"
    assert result.claims


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("explosion", {"activations": ["gelu"]}),
        ("explosion", {"activations": []}),
        ("explosion", {"seeds": 0}),
        ("explosion", {"depths": []}),
        ("explosion", {"depths": [1]}),
        ("explosion", {"depth": 2}),
        ("explosion", {"batch_sizes": ["a"]}),
        ("explosion", {"batch_sizes": [3]}),
        ("explosion", {"batch_sizes": [8, 8]}),
        ("explosion", {"width": -5}),
        ("explosion", {"batch_size": 2}),
        ("trainability", {"depths": []}),
        ("trainability", {"depths": [0]}),
        ("trainability", {"learning_rates": [0.0]}),
        ("trainability", {"learning_rates": [math.nan]}),
        ("trainability", {"learning_rates": ["fast"]}),
        ("trainability", {"seeds": 0}),
        ("trainability", {"steps": 0}),
        ("trainability", {"width": 0}),
        ("trainability", {"batch_size": 1}),
        ("trainability", {"longer": 0}),
    ],
    ids=str,
)
def test_unusable_settings_are_refused_before_anything_is_measured(name, setting):
    begun = []
    with pytest.raises((InputError, ArgumentTypeError), match=next(iter(setting))):
        run(f"yang2019/{name}", progress=begun.append, **setting)
    assert not begun
    # without the recipe's own look at the settings, as a sweep may call it
    measure = EXPERIMENTS[f"yang2019/{name}"].measure
    with Store(":memory:") as store, pytest.raises(InputError, match=next(iter(setting))):
        measure(store=store, progress=begun.append, **setting)
    assert not begun


def trainability_numbers(plain, longer, depths=(5, 20, 40, 80), skip=0.3):
    """Best losses by depth, the same for three seeds and two rates."""
    losses = np.array(
        [[[[value] * 3] * 2 for value in each] for each in (plain, [skip] * len(plain))]
    )
    more = np.array([[[value] * 3] * 2 for value in longer])
    return xr.Dataset(
        {
            "loss": (("architecture", "depth", "learning_rate", "seed"), losses),
            "best_loss": (("architecture", "depth", "seed"), losses.min(2)),
            "longer_loss": (("depth", "learning_rate", "seed"), more),
        },
        {
            "architecture": ["batch", "batch, skip"],
            "depth": list(depths),
            "learning_rate": [0.1, 1.0],
            "seed": [0, 1, 2],
        },
        {"classes": 10, "steps": 150, "longer": 10},
    )


NONE = math.nan


def test_trainability_tells_slow_from_untrainable():
    numbers = trainability_numbers([0.3, 0.9, 2.1, 2.3], [NONE, NONE, 1.0, 2.3])
    within, more, skips = judge_trainability(numbers)
    assert [claim.holds for claim in (within, more, skips)] == [True, True, True]
    assert "within 150 steps" in within.text
    assert "from depth 40 on" in within.measured
    assert "at rate 0.1" in within.measured
    assert "after 1500 steps" in more.measured
    assert "depth 40 trains: 1 " in more.measured
    assert "depth 80 does not: 2.3" in more.measured
    slow = trainability_numbers([0.3, 0.9, 2.1, 2.3], [NONE, NONE, 1.0, 1.6])
    assert judge_trainability(slow)[1].holds is False
    assert "depth 80 does not, but learns: 1.6" in judge_trainability(slow)[1].measured


def test_trainability_names_no_depth_beyond_which_one_trains():
    numbers = trainability_numbers([0.3, 2.1, 0.9, 2.3], [NONE, 2.3, NONE, 2.3])
    within = judge_trainability(numbers)[0]
    assert within.holds is False
    assert "on;" not in within.measured
    assert "at depth 20, 80 alone" in within.measured


@pytest.mark.parametrize(
    ("plain", "depths", "expected"),
    [
        ([0.3], (6,), [None, None, None]),  # one depth
        ([2.1, 2.3], (6, 8), [None, None, None]),  # too few steps even for a shallow net
        ([0.3, 0.4], (6, 8), [False, None, None]),  # nothing to lift
    ],
)
def test_trainability_without_a_comparison_decides_nothing(plain, depths, expected):
    numbers = trainability_numbers(plain, [NONE] * len(plain), depths)
    assert [claim.holds for claim in judge_trainability(numbers)] == expected


def test_trainability_trains_on_what_did_not_train(tmp_path):
    """A learning rate of nothing: both depths stop, and are trained again with twice the steps."""
    begun = []
    choices = {**FEW, "depths": (3, 2), "learning_rates": (1e-9,), "longer": 2}
    result = run("yang2019/trainability", progress=begun.append, **choices)
    numbers = result.dataset
    assert numbers["loss"].dims == ("architecture", "depth", "learning_rate", "seed")
    assert list(numbers["depth"].values) == [2, 3]
    assert np.isfinite(numbers["best_loss"]).all()
    assert np.isfinite(numbers["longer_loss"]).all()
    assert [event.stage.endswith("24 steps") for event in begun] == [False] * 4 + [True] * 2
    assert len(result.claims) == 3
    labels = [text.get_text() for text in result.figure().axes[0].get_legend().get_texts()]
    assert "batch, 2 times the steps" in labels
    assert result.write(tmp_path)["figure"].is_file()


def test_legend_of_the_learning_rates_is_beside_the_curves():
    figure = run("yang2019/trainability", **FEW, longer=1).figure()
    figure.canvas.draw()
    right = figure.axes[1]
    assert right.get_legend().get_window_extent().x0 >= right.get_window_extent().x1


def test_trainability_is_judged_by_its_spread_over_seeds():
    numbers = trainability_numbers([0.3, 0.9, 2.1, 2.3], [NONE, NONE, 1.0, 2.3])
    numbers["best_loss"].loc[{"architecture": "batch", "depth": [40, 80]}] += [0.0, -1.2, 0.8]
    within, _, skips = judge_trainability(numbers)
    assert (within.holds, within.resolve[:11]) == (None, "scale small")
    assert skips.holds is None
    assert within.numbers["depth 40"] == pytest.approx([2.1, 0.9, 2.9])
    one = trainability_numbers([0.3, 0.9, 2.1, 2.3], [NONE, NONE, 1.0, 2.3]).isel(seed=[0])
    assert [claim.holds for claim in judge_trainability(one)] == [None] * 3


def test_quick_trainability_has_too_few_seeds_to_decide():
    result = run("yang2019/trainability", seeds=1)
    assert [claim.holds for claim in result.claims] == [None, None]
    within, skips = (claim.numbers for claim in result.claims)
    assert within["depth 4"][0] < 1.15 < within["depth 48"][0]
    assert skips["depth 48"][0] < 1.15
    assert np.isnan(result.dataset["longer_loss"]).all()


@pytest.mark.parametrize("size", [4, 7, 32])
def test_closed_averages_agree_with_the_sphere(size, monkeypatch):
    """The general path, by points on the sphere, with ReLU in the place of tanh."""
    from normscope.experiments.yang2019 import growth

    averages = _averages.__wrapped__  # nothing kept from one activation to the next
    monkeypatch.setitem(growth.ACTIVATIONS, "tanh", growth.ACTIVATIONS["relu"])
    assert averages("tanh", size) == pytest.approx(_relu_averages(size), rel=3e-3)
    monkeypatch.setitem(growth.ACTIVATIONS, "tanh", growth.ACTIVATIONS["linear"])
    assert averages("tanh", size) == pytest.approx((size - 2, size / (size - 1)), rel=1e-9)


def test_growth_needs_a_batch_of_four():
    with pytest.raises(InputError, match="above 3"):
        batch_growth("relu", 3)
    with pytest.raises(UnknownNameError, match="did you mean 'relu'"):
        batch_growth("rely", 8)


def test_residual_growth_falls_with_depth():
    factors = residual_growth("batch", "relu", 16, 50)
    assert (np.diff(factors) < 0).all()
    correlation = -1 / 15  # of two samples of a batch of 16 behind the normalization
    pair = (1 - correlation**2) ** 0.5 + correlation * np.arccos(-correlation)
    expected = 1 + batch_growth("relu", 16) * (0.5 - pair / (2 * np.pi))
    assert factors[0] == pytest.approx(expected)
    layer = residual_growth("layer", "relu", 16, 50)
    assert layer.prod() == pytest.approx(1 + 50 / 2)  # telescopes: the variance itself


def test_growth_of_an_exponential_is_its_base():
    assert growth_per_layer(3.0 ** -np.arange(24.0)) == pytest.approx(3.0)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_squared_gradients_are_those_of_autograd(architecture):
    """Against a perturbation of each block's output."""
    network = Stack(architecture, 5, 2, depth=3, width=6, activation="tanh").double()
    inputs = torch.randn(7, 5, dtype=torch.float64)
    found = squared_gradients(network, inputs, seed=1)
    direction = torch.randn(7, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for place in range(3):
        offset = torch.zeros(7, 6, dtype=torch.float64, requires_grad=True)
        x = network.stem(inputs)
        for index, block in enumerate(network.blocks):
            x = x + block(x) if network.residual else block(x)
            x = x + offset if index == place else x
        (gradient,) = torch.autograd.grad((network.head(network.last(x)) * direction).sum(), offset)
        assert found[place] == pytest.approx(float(gradient.square().sum()), rel=1e-9)


def test_stack_is_what_it_says():
    plain, skip = (Stack(name, 4, 3, depth=5, width=6) for name in ("batch", "batch, skip"))
    assert len(plain.blocks) == len(skip.blocks) == 5
    products = sum(isinstance(m, torch.nn.Linear) for m in plain.modules())
    assert products == 5 + 1  # the stem is the first
    x = torch.randn(8, 4)
    torch.testing.assert_close(plain(x), plain(3 * x), rtol=1e-3, atol=1e-3)  # scale-invariant
    variance = float(Stack("batch", 400, 3, depth=2, width=500).stem.weight.detach().var())
    assert variance == pytest.approx(2 / 400, rel=0.05)
    assert math.isfinite(variance)
