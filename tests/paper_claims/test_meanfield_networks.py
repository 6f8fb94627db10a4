"""Mean-field theory of networks that people train, against the measured top eigenvalue.

Frozen statistics, iid normal pixels, torch's default initialization; a prediction is within 20 % of
the mean over the seeds.
"""

import runpy
from pathlib import Path

import pytest
import torch
from torch import nn

from normscope.curvature import top_eigenvalue
from normscope.meanfield import predict

NETWORKS = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "networks.py"))
SHAPE = (3, 32, 32)


def ratio(make, samples, seeds):
    """Mean prediction over the mean of the measured values."""
    predicted, measured = 0.0, 0.0
    for seed in range(seeds):
        torch.manual_seed(seed)
        model = make()
        predicted += predict(model, SHAPE, "frozen", batch_size=samples).lambda_max
        layers = [each for each in model.modules() if isinstance(each, (nn.Linear, nn.Conv2d))]
        inputs = torch.randn(samples, *SHAPE, generator=torch.Generator().manual_seed(seed))
        batch, weights = (inputs, torch.zeros(samples, 10)), [each.weight for each in layers]
        found = top_eigenvalue(model, "squared_error", batch, "fisher", "frozen", params=weights)
        measured += found.value
    return predicted / measured


@pytest.mark.parametrize(
    ("name", "options"),
    [("SmallViT", {"width": 64, "depth": 2}), ("SmallConvNeXt", {"width": 32, "depth": 1})],
)
def test_small_networks_within_twenty_percent(name, options):
    assert ratio(lambda: NETWORKS[name](**options), samples=64, seeds=2) == pytest.approx(
        1, abs=0.2
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "width"),
    [
        ("ResNet18", 16),
        ("ResNet18", 32),
        ("SmallViT", 64),
        ("SmallViT", 128),
        ("SmallConvNeXt", 64),
    ],
)
def test_networks_within_twenty_percent(name, width):
    assert ratio(lambda: NETWORKS[name](width), samples=128, seeds=3) == pytest.approx(1, abs=0.2)
