"""What santurkar2018's trainings are made of, and what is noted of them."""

from contextlib import suppress

import numpy as np
import pytest
import xarray as xr

from normscope.errors import InputError
from normscope.experiments import EXPERIMENTS, run
from normscope.results import Store

RAY = [*("loss_variation", "gradient_predictiveness", "effective_smoothness"), "covariate_shift"]
MOMENTS = ["activation_moments"]
CLAIMS = EXPERIMENTS["santurkar2018/loss_scale"].claims


class Planned(Store):
    """Keeps what is asked of it and returns records without numbers."""

    def __init__(self):
        super().__init__(":memory:")
        self.asked = []

    def compute(self, name, parameters, seed, *rest, **options):
        self.asked.append({**parameters, "seed": seed})
        return xr.Dataset(coords={"step": parameters["measured"]})


def planned(name, scale="paper", **settings):
    """The trainings that an experiment asks for, of which none is run."""
    with Planned() as store, suppress(KeyError):  # there are no numbers to select
        run(f"santurkar2018/{name}", scale, store=store, **settings)
    return store.asked


def test_vgg_trains_as_the_paper_says():
    asked = planned("figure4", seeds=2)
    assert [(each["norm"], each["seed"]) for each in asked] == [
        (norm, seed) for seed in (0, 1) for norm in ("none", "batch")
    ]
    for training in asked:
        assert (training["network"], training["learning_rate"]) == ("vgg", 0.1)
        assert (training["batch_size"], training["steps"]) == (128, 15_000)
        assert training["distances"] == [0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0]
        assert training["measured"] == list(range(0, 15_000, 250))
        assert (training["shift_every"], training["evaluated"]) == (500, 10_000)
        assert training["options"] == {"data": "cifar10", "width": 1.0}


def test_only_digits_are_measured_at_three_points_of_the_ray():
    points = {
        data: len(planned("figure4", data=data)[0]["distances"])
        for data in ("digits", "mnist", "cifar10")
    }
    assert points == {"digits": 3, "mnist": 8, "cifar10": 8}


def test_landscape_is_measured_at_the_papers_rate():
    probes = {each["learning_rate"]: each["probes"] for each in planned("figure1")}
    assert probes == {0.1: [*RAY, *MOMENTS], 0.5: MOMENTS}


def test_deep_linear_network_trains_as_the_paper_says():
    (training, *_) = planned("figure9", linear_steps=40, linear_every=20)
    assert (training["network"], training["norm"]) == ("deep_linear", "none")
    assert (training["learning_rate"], training["batch_size"]) == (1e-6, None)
    assert training["distances"] == [0.01, 0.1, 1.0, 3.0, 6.0, 10.0, 20.0, 30.0]
    assert (training["measured"], training["steps"]) == ([0, 2, 20], 40)
    assert training["options"] == {"depth": 25, "samples": 1000}


@pytest.mark.parametrize(
    ("figures", "norms"),
    [
        ((1, 3, 4, 6, 8, 9, 10), ("none", "batch")),
        ((2, 7), ("none", "batch", "noisy")),
        ((11, 12, 13, 14), ("none", "batch", "l1", "l2", "linf")),
    ],
)
def test_figures_have_the_papers_normalizations(figures, norms):
    for figure in figures:
        asked = planned(f"figure{figure}")
        assert tuple(dict.fromkeys(each["norm"] for each in asked)) == norms


@pytest.mark.parametrize("name", ["figure6", "figure8"])
def test_one_layer_is_refused_before_any_training(name):
    events = []
    with pytest.raises(InputError, match="depth must be at least 2, got 1"):
        run(f"santurkar2018/{name}", depth=1, progress=events.append)
    assert events == []


@pytest.mark.parametrize("rates", [(1e-6,), (1e-9, 1e-8), (1e-10, 1e-9, 1e-6)])
def test_rates_without_those_to_be_judged_are_refused_before_any_training(rates):
    """For 100 samples the means are at 1e-8 and 1e-9, for 1000 at 1e-9 and 1e-10."""
    events = []
    with pytest.raises(InputError, match=r"rates must hold 1e-06, 1e-08, 1e-09 .* 100 samples"):
        run("santurkar2018/loss_scale", rates=rates, samples=100, progress=events.append)
    assert events == []


def test_default_rates_of_the_loss_scale_are_those_to_be_judged():
    rates = {each["learning_rate"] for each in planned("loss_scale")}
    assert rates == {1e-10, 1e-9, 1e-7, 1e-6, 1e-5}


def scaled(left):
    """Results with these shares left of a first loss of 8, by rate, in three seeds."""
    shares = np.tile(np.array(list(left.values()))[None, :, None], (1, 1, 3))
    dimensions = ("norm", "learning_rate", "seed")
    return xr.Dataset(
        {
            "final_loss": (dimensions, 8 * shares),
            "training_loss": ((*dimensions, "step"), np.full((1, 3, 3, 1), 8.0)),
        },
        {"norm": ["none"], "learning_rate": list(left)},
        {"samples": 100, "steps": 2000},
    )


def test_loss_scale_judges_the_rates_of_its_samples_and_names_its_steps():
    results = scaled({1e-9: 0.9, 1e-8: 0.7, 1e-6: 0.1})
    found = [(claim.text, claim.measured, claim.holds) for claim in CLAIMS(results)]
    rate = "DLN: the learning rate 1e-6"
    mean = "does not train in 2,000 steps if the loss is a mean over"
    assert [text for text, _, _ in found[:3]] == [
        f"{rate} trains in 2,000 steps if the loss is summed",
        f"{rate} {mean} the samples",
        f"{rate} {mean} samples and outputs",
    ]
    assert [measured.split()[0] for _, measured, _ in found[:3]] == ["0.1", "0.7", "0.9"]
    assert found[3][1] == "best rate by seed, after 2,000 steps: 1e-06, 1e-06, 1e-06"
    assert [holds for _, _, holds in found] == [True] * 4


def test_rates_that_were_not_run_leave_the_loss_scale_undecided():
    """One seed lacks the mean over samples, all lack the one over outputs too."""
    results = scaled({1e-9: np.nan, 1e-8: 0.7, 1e-6: 0.1})
    results["training_loss"][0, 0] = np.nan
    results["training_loss"][0, 1, 2], results["final_loss"][0, 1, 2] = np.nan, np.nan
    claims = CLAIMS(results)
    assert [claim.holds for claim in claims] == [True, None, None, None]
    lack = "(undecided: not measured in"
    assert claims[1].measured == f"0.7 ± 0 of the first loss is left {lack} 1 of 3 seeds)"
    assert claims[2].measured == f"not measured {lack} 3 of 3 seeds)"
    assert claims[3].measured.endswith(f": unknown, unknown, unknown {lack} 3 of 3 seeds)")


def test_divergence_is_no_training_at_the_loss_scale():
    claims = CLAIMS(scaled({1e-9: np.nan, 1e-8: np.nan, 1e-6: np.nan}))
    assert [claim.holds for claim in claims[:3]] == [False, True, True]
    assert claims[0].measured == "inf to inf of the first loss is left"
