"""What santurkar2018's trainings are made of, and what is noted of them."""

import numpy as np
import pytest
import torch
import xarray as xr

from normscope.data import Dataset, Split
from normscope.errors import InputError
from normscope.experiments import run
from normscope.experiments.santurkar2018 import loss_scale as scale
from normscope.experiments.santurkar2018.figures import normalized_layers
from normscope.experiments.santurkar2018.measurements import deep_linear_trainings, vgg_trainings
from normscope.experiments.santurkar2018.trainings import (
    ALL_PROBES,
    MOMENTS,
    NETWORKS,
    Curve,
)
from normscope.problem import cross_entropy
from normscope.results import Store


def on_images(data="cifar10", rates=(0.1,)):
    size = {"width": 1.0, "steps": 100, "every": 20, "evaluated": 7}
    return vgg_trainings(("none", "batch"), rates, data=data, **size)


def test_vgg_trains_as_the_paper_says():
    for training in on_images():
        assert (training.network, training.learning_rate, training.batch_size) == ("vgg", 0.1, 128)
        assert training.distances == (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0)
        assert training.measured == (0, 20, 40, 60, 80)
        assert (training.shift_every, training.evaluated, training.steps) == (40, 7, 100)
    assert [training.norm for training in on_images()] == ["none", "batch"]


def test_only_digits_are_looked_at_in_three_points_of_the_ray():
    points = {data: len(on_images(data)[0].distances) for data in ("digits", "mnist", "cifar10")}
    assert points == {"digits": 3, "mnist": 8, "cifar10": 8}


def test_landscape_is_measured_at_the_papers_rate():
    probes = {each.learning_rate: each.probes for each in on_images(rates=(0.1, 0.5))}
    assert probes == {0.1: ALL_PROBES, 0.5: MOMENTS}


def test_deep_linear_network_trains_as_the_paper_says():
    size = {"depth": 25, "samples": 1000, "linear_steps": 40, "linear_every": 20}
    (training,) = deep_linear_trainings(("batch",), **size)
    assert (training.network, training.norm) == ("deep_linear", "batch")
    assert (training.learning_rate, training.batch_size) == (1e-6, None)
    assert training.distances == (0.01, 0.1, 1.0, 3.0, 6.0, 10.0, 20.0, 30.0)
    assert (training.measured, training.steps) == ((0, 2, 20), 40)
    assert training.options == {"depth": 25, "samples": 1000}


def test_losses_are_summed_squares_and_mean_cross_entropy():
    linear, images = (NETWORKS[name].loss for name in ("deep_linear", "vgg"))
    assert linear(torch.full((3, 2), 2.0), torch.zeros(3, 2)).item() == 24
    alike = torch.zeros(5, 2), torch.zeros(5, dtype=torch.long)
    assert images(*alike).item() == pytest.approx(np.log(2))


@pytest.mark.parametrize("name", ["figure6", "figure8"])
def test_one_layer_is_refused_before_any_training(name):
    events = []
    with pytest.raises(InputError, match="depth must be at least 2, got 1"):
        run(f"santurkar2018/{name}", depth=1, progress=events.append)
    assert events == []


@pytest.mark.parametrize("rates", [(1e-6,), (1e-9, 1e-8), (1e-10, 1e-9, 1e-6)])
def test_rates_without_those_to_be_judged_are_refused_before_any_training(rates):
    """For 100 samples the means are at 1e-8 and 1e-9, for 1000 at 1e-9 and 1e-10."""
    labels = []
    with (
        Store(":memory:") as store,
        pytest.raises(InputError, match=r"rates must hold 1e-06, 1e-08, 1e-09 .* 100 samples"),
    ):
        scale.loss_scale(rates=rates, samples=100, store=store, progress=labels.append)
    assert labels == []


def test_default_rates_of_the_loss_scale_are_those_to_be_judged():
    scale._check_rates((1e-10, 1e-9, 1e-7, 1e-6, 1e-5), 1000)


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
    found = [(claim.text, claim.measured, claim.holds) for claim in scale._claims(results)]
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
    claims = scale._claims(results)
    assert [claim.holds for claim in claims] == [True, None, None, None]
    lack = "(undecided: not measured in"
    assert claims[1].measured == f"0.7 ± 0 of the first loss is left {lack} 1 of 3 seeds)"
    assert claims[2].measured == f"not measured {lack} 3 of 3 seeds)"
    assert claims[3].measured.endswith(f": unknown, unknown, unknown {lack} 3 of 3 seeds)")


def test_divergence_is_no_training_at_the_loss_scale():
    claims = scale._claims(scaled({1e-9: np.nan, 1e-8: np.nan, 1e-6: np.nan}))
    assert [claim.holds for claim in claims[:3]] == [False, True, True]
    assert claims[0].measured == "inf to inf of the first loss is left"


class First(torch.nn.Module):
    """Says class 0 of everything."""

    def forward(self, x):
        return torch.tensor([[1.0, 0.0]]).expand(len(x), 2)


def test_curve_notes_means_of_losses_and_accuracies_of_their_own_split():
    """Class 0 is right for three of four in training, for one of four in the test."""
    x = torch.zeros(4, 1)
    splits = (Split(x, torch.tensor(labels)) for labels in ([0, 0, 0, 1], [0, 1, 1, 1]))
    curve = Curve(Dataset("four", *splits), cross_entropy, (0, 2), evaluated=4)
    for step, loss in enumerate((5.0, 3.0, 2.0, 1.0)):
        curve.record(step, loss, First())
    found = curve.variables(First(), diverged=False)
    assert found["training_loss"][1].tolist() == [5.0, 2.5]
    assert found["training_accuracy"][1].tolist() == [0.75, 0.75]
    assert found["test_accuracy"][1].tolist() == [0.25, 0.25]
    assert (found["final_test_accuracy"], found["final_loss"]) == (0.25, 1.0)
    assert (found["updates_taken"], found["diverged"]) == (4, 0)


def test_layers_that_a_norm_layer_follows_are_the_features():
    names = ["features.0", "features.3", "classifier"]
    data = xr.Dataset({"a": ("layer", [1.0, 2.0, 3.0])}, {"layer": names})
    assert normalized_layers(data)["a"].values.tolist() == [1.0, 2.0]
