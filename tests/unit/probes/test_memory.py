"""Two parameter-sized buffers beyond the model's own, however many points the ray has."""

import pytest
import torch
from tests.references.allocation import peak_allocation
from torch import nn

from normscope.probes import Scope

LAYERS = 16  # so that what one of them needs for a moment does not count


def model_of(kind):
    if kind == "linear":
        layers = [nn.Linear(300, 300) for _ in range(LAYERS)]
        return nn.Sequential(*layers), torch.randn(4, 300)
    layers = [nn.Conv2d(100, 100, 3, padding=1) for _ in range(LAYERS)]
    return nn.Sequential(*layers, nn.Flatten()), torch.randn(2, 100, 2, 2)


def peak_in_parameters(kind, points):
    model, x = model_of(kind)
    y = torch.zeros(len(x), dtype=torch.long)
    distances = torch.linspace(0.1, 1, points).tolist()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    probes = ["loss_variation", "gradient_predictiveness", "effective_smoothness"]
    scope = Scope(model, "cross_entropy", optimizer, probes, distances=distances)
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    return peak_allocation(lambda: scope.step(x, y)) / size


@pytest.mark.parametrize("kind", ["linear", "conv"])
def test_peak_is_two_buffers_for_any_number_of_points(kind):
    few, many = peak_in_parameters(kind, 3), peak_in_parameters(kind, 12)
    assert many == pytest.approx(few, rel=0.02)
    # beside the two, the gradient of a layer on its way and what the kernels work with
    assert 1.9 < many < 2.5


def test_gauge_sees_what_is_allocated():
    def two_of_three():
        first = torch.ones(1000)
        del first
        return [torch.ones(1000) for _ in range(2)]

    assert peak_allocation(two_of_three) == 8000
