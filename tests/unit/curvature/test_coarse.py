"""The first guess from a part of the data: what it costs, and what it does without."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from normscope.curvature import top_eigenvalue
from normscope.errors import NormscopeWarning


def data(samples: int = 128) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(samples, 3, generator=generator), torch.arange(samples) % 2


class OneSize(nn.Module):
    """A model that takes batches of 128 only."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.view(128, 3))


@pytest.mark.parametrize("kind", ["fisher", "hessian"])
def test_model_of_one_batch_size_is_searched_without_a_guess(kind: str) -> None:
    torch.manual_seed(0)
    model = OneSize()
    found = top_eigenvalue(model, "cross_entropy", data(), kind=kind)
    expected = top_eigenvalue(model.inner, "cross_entropy", data(), kind=kind)
    assert found.value == pytest.approx(expected.value, rel=2e-3)


@pytest.mark.parametrize("most", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("batches", [1, 4])
def test_max_products_caps_the_work(most: int, k: int, batches: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
    x, y = data()
    parts = list(zip(x.chunk(batches), y.chunk(batches), strict=True))
    given = parts[0] if batches == 1 else parts
    with pytest.warns(NormscopeWarning, match="above the tolerance"):
        found = top_eigenvalue(
            model, "cross_entropy", given, "hessian", k=k, tol=1e-7, max_products=most
        )
    assert found.matvecs <= most


class Stream(IterableDataset):
    def __iter__(self):
        yield from zip(*data(16), strict=True)


def test_loader_without_a_length_is_measured() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    found = top_eigenvalue(model, "cross_entropy", DataLoader(Stream(), batch_size=8))
    expected = top_eigenvalue(model, "cross_entropy", data(16))
    assert found.value == pytest.approx(expected.value, rel=2e-3)
