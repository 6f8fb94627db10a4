"""What santurkar2018 says of the deep linear network, at its own size; three seeds each."""

import json
from pathlib import Path

import pytest
import torch

from normscope.data import DATASETS
from normscope.experiments import EXPERIMENTS, run
from normscope.models import build
from normscope.problem import Problem
from normscope.training import Outcome, fit, sgd

SEEDS = (0, 1, 2)
RATE, STEPS, SAMPLES, OUTPUTS = 1e-6, 10_000, 1000, 10
RESULTS = Path(__file__).parents[2] / "docs" / "results" / "santurkar2018"


def problem(norm, seed):
    """25 layers of 10 x 10 on 1000 Gaussian samples, the loss summed."""
    data = DATASETS["gaussian"](samples=SAMPLES, outputs=OUTPUTS, test_samples=1, seed=seed)
    summed = torch.nn.MSELoss(reduction="sum")
    return Problem(build("deep_linear", norm=norm, seed=seed), summed, tuple(data.train))


@pytest.mark.parametrize("seed", SEEDS)
def test_printed_learning_rate_belongs_to_the_summed_loss(seed):
    """Gradient descent can shed at most steps x rate x |g|^2 to first order.

    As a mean over samples and outputs that is below a tenth of the loss over the whole training,
    with the sum it is many times the loss.
    """
    standard = problem("none", seed)
    loss = standard.loss_on(standard.data)
    gradients = torch.autograd.grad(loss, list(standard.model.parameters()))
    square = sum(float(gradient.pow(2).sum()) for gradient in gradients)
    at_most = STEPS * RATE * square / loss.item()
    assert at_most > 10
    assert at_most / (SAMPLES * OUTPUTS) < 0.1


@pytest.mark.parametrize("seed", SEEDS)
def test_summed_loss_trains_and_batch_norm_trains_faster(seed):
    """After 60 of the 10,000 steps; losses relative to the first."""
    left = {}
    for norm in ("none", "batch"):
        losses = fit(problem(norm, seed), sgd(RATE), steps=60).losses
        left[norm] = losses[-1] / losses[0]
    assert left["none"] < 0.95
    assert left["batch"] < left["none"]


@pytest.mark.parametrize("seed", SEEDS)
def test_thirty_times_the_rate_is_too_much_for_the_standard_network_only(seed):
    """The paper caps its ray at 30 times the rate."""
    ends = {norm: fit(problem(norm, seed), sgd(30 * RATE), steps=60) for norm in ("none", "batch")}
    assert ends["none"].outcome is Outcome.DIVERGED
    assert ends["batch"].outcome is Outcome.FINISHED


ADDED = {"unfinished": False, "other_seeds": 3}  # settings that came later, as results were made


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_committed_results_are_of_the_present_settings(path):
    record = json.loads(path.read_text(encoding="utf-8"))
    settings = EXPERIMENTS[record["name"]].settings(record["scale"], {})
    present = {k: list(v) if isinstance(v, tuple) else v for k, v in settings.items()}
    added = {key: value for key, value in ADDED.items() if key in present}
    assert added | record["settings"] == present
    assert all(claim["verdict"] for claim in record["claims"])


@pytest.mark.slow
@pytest.mark.real_data
def test_vgg_trains_better_with_batch_norm_on_the_real_images():
    """Figure 1 at small scale, three seeds: both learning rates."""
    claims = run("santurkar2018/figure1", "small").claims
    assert [claim.holds for claim in claims] == [True, True, None]
