"""Curvature is measured in the parameters' precision, whatever surrounds the call."""

import pytest
import torch
from tests.unit.curvature.networks import Residual, randomized
from torch import nn

from normscope.curvature import dense, operator, spectrum, top_eigenvalue, trace
from normscope.curvature.precision import components, length
from normscope.errors import NormscopeWarning

LOSS = nn.CrossEntropyLoss(label_smoothing=0.1)  # not one of the losses in closed form
NETWORKS = {
    "chain": lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)),
    "graph": Residual,
}


def batch():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(12, 3, generator=generator), torch.arange(12) % 2


CALLS = {
    "operator": lambda *call: operator(*call) @ torch.ones(operator(*call).shape[0]),
    "dense": dense,
    "top_eigenvalue": lambda *call: top_eigenvalue(*call).values,
    "trace": lambda *call: torch.tensor(trace(*call, products=9).value),
    "spectrum": lambda *call: torch.as_tensor(spectrum(*call, probes=2)["nodes"].values),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", ["fisher", "ggn", "hessian"])
@pytest.mark.parametrize("network", NETWORKS)
def test_autocast_around_a_measurement_changes_nothing(network, kind, call):
    model = randomized(NETWORKS[network]()).float()
    expected = CALLS[call](model, LOSS, batch(), kind)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = CALLS[call](model, LOSS, batch(), kind)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("size", [5, 1 << 16, (1 << 16) + 3, 3_000_000])
def test_length_and_components_are_those_in_double_precision(size):
    vector = torch.randn(size, generator=torch.Generator().manual_seed(0)).abs()
    exact = vector.double()
    assert length(vector) == pytest.approx(float(exact.norm()), rel=1e-6)
    basis = torch.stack([vector, torch.ones(size)])
    expected = [float(exact @ exact), float(exact.sum())]
    assert components(basis, vector).tolist() == pytest.approx(expected, rel=1e-5)


class Autocast(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return self.last(torch.tanh(self.first(x)))


def test_rounding_of_an_autocast_in_the_model_is_named():
    torch.manual_seed(0)
    data = torch.randn(32, 8), torch.randint(3, (32,))
    with pytest.warns(NormscopeWarning, match="outputs are bfloat16 .* measure without that auto"):
        found = top_eigenvalue(Autocast(), "cross_entropy", data, tol=1e-5)
    assert not found.converged
