"""Curvature at the ends of a dtype's range is right, or refused."""

import math

import pytest
import torch
from torch import nn

from normscope.curvature import dense, operator, spectrum, top_eigenvalue, trace
from normscope.errors import InputError


class Net(nn.Module):
    """A chain if it is not ``mixed``."""

    def __init__(self, mixed=False):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.mixed = nn.Linear(6, 8), nn.Linear(8, 3), mixed

    def forward(self, x):
        x = self.first(x)
        return self.second(x + torch.sin(x) if self.mixed else torch.tanh(x))


def data(scale, dtype):
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(20, 6, generator=generator, dtype=torch.float64) * scale
    return inputs.to(dtype), torch.zeros(20, 3, dtype=dtype)


CALLS = {
    "operator": lambda *call, **options: float(
        (operator(*call, **options) @ torch.ones(48, dtype=call[2][0].dtype)).double().norm()
    ),
    "dense": lambda *call, **options: float(dense(*call, **options).double().norm()),
    "top_eigenvalue": lambda *call, **options: top_eigenvalue(*call, **options, tol=1e-4).value,
    "trace": lambda *call, **options: trace(*call, **options, products=48).value,
    "spectrum": lambda *call, **options: float(spectrum(*call, **options, probes=2)["nodes"].max()),
}


def measure(call, mixed, scale, dtype, kind="fisher"):
    """Of the first weight alone, whose Fisher matrix grows with the square of the inputs."""
    model, batch = Net(mixed).to(dtype), data(scale, dtype)
    return CALLS[call](model, "squared_error", batch, kind=kind, params="first.weight")


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("scale", [1e-6, 1e-10, 1e-12, 1e-14])
def test_small_eigenvalues_are_right_in_single_precision(call, mixed, scale):
    found = measure(call, mixed, scale, torch.float32)
    assert found == pytest.approx(measure(call, mixed, scale, torch.float64), rel=1e-4)
    assert 0 < found < 10 * scale**2 * 48


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize(
    ("scale", "dtype", "wider"),
    [(1e-4, torch.float16, "float"), (1e-17, torch.float32, "double"), (1e-25, torch.float32, "")],
)
def test_underflow_is_refused(call, mixed, scale, dtype, wider):
    with pytest.raises(InputError, match=rf"underflows {dtype}; .*model\.{wider}"):
        measure(call, mixed, scale, dtype)


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("kind", ["fisher", "ggn"])
def test_half_precision_within_its_range_is_accepted(kind, mixed):
    found = measure("top_eigenvalue", mixed, 1.0, torch.float64, kind)
    for dtype in (torch.float16, torch.bfloat16):
        with pytest.warns(match="relative residual"):
            half = measure("top_eigenvalue", mixed, 1.0, dtype, kind)
        assert half == pytest.approx(found, rel=0.03)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["fisher", "ggn", "hessian"])
def test_curvature_of_zero_is_zero(kind, dtype):
    model = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3)).to(dtype)
    with torch.no_grad():
        model[0].bias.fill_(-100.0)  # every unit is dead
    batch = data(1.0, dtype)
    top = top_eigenvalue(model, "squared_error", batch, kind, params="0")
    assert top.converged
    assert top.value == 0
    assert trace(model, "squared_error", batch, kind, params="0").value == 0
    assert not dense(model, "squared_error", batch, kind, params="0").any()


def test_vector_without_curvature_is_accepted():
    model, (inputs, targets) = nn.Linear(2, 1, bias=False), data(1.0, torch.float32)
    flat = inputs[:, :2] * torch.tensor([1.0, 0.0])
    matrix = operator(model, "squared_error", (flat, targets[:, :1]))
    assert not (matrix @ torch.tensor([0.0, 1.0])).any()
    start = torch.tensor([0.0, 1.0])
    top = top_eigenvalue(model, "squared_error", (flat, targets[:, :1]), start=start)
    assert top.value == pytest.approx(float(flat.square().sum(0)[0]) / 20, rel=1e-5)


def test_eigenvector_of_a_tiny_eigenvalue_has_length_one():
    model, batch = Net().float(), data(1e-14, torch.float32)
    top = top_eigenvalue(model, "squared_error", batch, params="first.weight", k=2)
    lengths = top.vectors.double().norm(dim=0)
    assert all(math.isclose(length, 1.0, rel_tol=1e-4) for length in lengths.tolist())
