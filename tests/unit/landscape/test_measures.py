"""Curvature and roughness in dtypes whose rounding is larger than the differences of the loss."""

import numpy as np
import pytest
import torch
from torch import nn

from normscope.errors import NormscopeWarning
from normscope.landscape import surface


def quadratic(dtype, extent, points=51):
    """A line of w**2 * 0.035 + 1 around its minimum."""
    model = nn.Linear(1, 1, bias=False).to(dtype)
    nn.init.zeros_(model.weight)
    batch = torch.full((4, 1), 0.07**0.5, dtype=dtype), torch.full((4, 1), 0.0, dtype=dtype)

    def loss(output, target):
        return (output - target).square().mean() / 2 + 1

    direction = [torch.ones(1)]
    return surface(model, loss, batch, direction, extent=extent, points=points, hessian=False)


@pytest.mark.parametrize(("dtype", "extent"), [(torch.float32, 1e-3), (torch.bfloat16, 1.0)])
def test_numbers_that_are_rounding_are_nan_with_a_warning(dtype, extent):
    with pytest.warns(NormscopeWarning, match="(curvature|roughness) along alpha is NaN"):
        numbers = quadratic(dtype, extent).numbers("alpha")
    assert np.isnan([numbers["curvature"], numbers["roughness"]]).all()


@pytest.mark.parametrize(
    ("dtype", "extent"), [(torch.float64, 1e-3), (torch.float32, 0.2), (torch.float32, 1.0)]
)
def test_the_least_spacing_above_the_rounding_is_used(dtype, extent):
    numbers = quadratic(dtype, extent).numbers("alpha")
    assert numbers["curvature"] == pytest.approx(0.07, rel=0.1)
    assert numbers["roughness"] == pytest.approx(0.07, rel=0.1)
