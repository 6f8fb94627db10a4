"""The first guess from a part of the data: what it costs, and what it does without."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from normscope.curvature import coarse, operator, top_eigenvalue
from normscope.curvature.search import Request
from normscope.errors import NormscopeWarning
from normscope.models import build


def data(samples: int = 128) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(samples, 3, generator=generator), torch.arange(samples) % 2


def without_means(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let vectors be searched on the part even where its samples agree."""
    monkeypatch.setattr(coarse, "_averaged", lambda operator, request: (0.0, None))


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
    with pytest.warns(NormscopeWarning, match="only" if most < k else "above the tolerance"):
        found = top_eigenvalue(
            model, "cross_entropy", given, "hessian", k=k, tol=1e-7, max_products=most
        )
    assert found.matvecs <= most


@pytest.mark.parametrize("which", ["largest", "smallest", "magnitude"])
def test_guess_for_a_hessian_comes_from_the_gauss_newton_matrix(
    which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 40), nn.Tanh(), nn.Linear(40, 2)).double()
    without_means(monkeypatch)
    spaces = []
    own = coarse._space

    def watched(part, request):
        spaces.append(type(own(part, request)).__name__)
        return own(part, request)

    monkeypatch.setattr(coarse, "_space", watched)
    batch = data(256)
    found = top_eigenvalue(model, "cross_entropy", batch, "hessian", which=which, tol=1e-6)
    assert spaces == ["OutputSpace" if which == "largest" else "ParameterSpace"]
    product = operator(model, "cross_entropy", batch, "hessian") @ found.vectors[:, 0]
    assert (product - found.value * found.vectors[:, 0]).norm() <= 1e-5 * abs(found.value)


@pytest.mark.parametrize("which", ["largest", "smallest"])
def test_a_guess_from_another_matrix_is_not_made_sharper_than_it_can_be(
    which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 40), nn.Tanh(), nn.Linear(40, 2))
    without_means(monkeypatch)
    costs = {}
    for kind in ("ggn", "hessian"):
        made = operator(model, "cross_entropy", data(512), kind)
        request = Request(1, which, 1e-3, 100, seed=0)
        guess = coarse.coarse_guess(made, request)
        assert guess is not None
        costs[kind] = guess.cost
    if which == "largest":  # the same matrix on the part, for another one on the whole
        assert costs["hessian"] < costs["ggn"]
    monkeypatch.setattr(coarse, "_FOREIGN_TOLERANCE", 0.005)
    sharper = coarse.coarse_guess(made, request)
    assert sharper is not None
    assert (sharper.cost > costs["hessian"]) == (which == "largest")


class Stream(IterableDataset):
    def __iter__(self):
        yield from zip(*data(16), strict=True)


def test_loader_without_a_length_is_measured() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    found = top_eigenvalue(model, "cross_entropy", DataLoader(Stream(), batch_size=8))
    expected = top_eigenvalue(model, "cross_entropy", data(16))
    assert found.value == pytest.approx(expected.value, rel=2e-3)


def test_guess_among_close_eigenvalues_does_not_hide_the_largest() -> None:
    # train-mode batch norm: one eigenvalue for each output, here within two per cent; a start near
    # one of them ended 6e-3 below the largest, with a small residual
    torch.manual_seed(0)
    model = build("fully_connected", width=150)
    batch = torch.randn(256, 1, 28, 28), torch.zeros(256, dtype=torch.long)
    found = top_eigenvalue(model, "cross_entropy", batch)
    model, inputs = model.double(), batch[0].double()
    several = top_eigenvalue(model, "cross_entropy", (inputs, batch[1]), k=4, tol=1e-5)
    assert found.value == pytest.approx(several.value, rel=1e-3)


def wide_net(outputs: int = 10) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 300), nn.ReLU(), nn.Linear(300, 60), nn.Linear(60, outputs))


def guess_for(model: nn.Module, samples: int = 256, kind: str = "fisher", **options):
    x = torch.randn(samples, 3, generator=torch.Generator().manual_seed(1))
    made = operator(model, "squared_error", (x, torch.arange(samples) % 2), kind)
    chosen = {"count": 1, "which": "largest", "tolerance": 1e-3, "max_products": 100, "seed": 0}
    return coarse.coarse_guess(made, Request(**chosen | options))


@pytest.mark.parametrize("kind", ["fisher", "ggn", "hessian"])
@pytest.mark.parametrize("k", [1, 3])
def test_samples_that_agree_give_a_model_of_their_mean_gradients(kind: str, k: int) -> None:
    guess = guess_for(wide_net(), kind=kind, count=k)
    assert guess.model is not None
    assert guess.vectors.shape == (32 * 10, k)
    # on an eighth: one product to see whether they agree, ten halves, and a lift for each
    assert guess.cost == pytest.approx((1 + 10 / 2 + k / 2) / 8)


@pytest.mark.parametrize(
    ("model", "options"),
    [
        (
            nn.Sequential(nn.Linear(3, 300, bias=False), nn.Tanh(), nn.Linear(300, 10, bias=False)),
            {},
        ),
        (wide_net(), {"which": "smallest"}),
        (wide_net(), {"kind": "hessian", "samples": 192}),  # a sixth, which each step meets again
        (wide_net(), {"kind": "hessian", "which": "smallest"}),
        (wide_net(50), {}),  # the gradients of fifty outputs would cost more than they save
        (wide_net(), {"max_products": 2}),
        (wide_net(), {"samples": 127}),  # 32 samples would be more than a quarter
    ],
    ids=["odd", "smallest", "hessian", "other end", "outputs", "max_products", "samples"],
)
def test_no_model_is_made_where_it_would_not_help(model: nn.Module, options: dict) -> None:
    guess = guess_for(model, **options)
    assert guess is None or guess.model is None


def test_gradients_that_would_fill_the_memory_are_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unknown(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = wide_net()

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x) if bool((x < 9).any()) else x

    monkeypatch.setattr(coarse, "_GRADIENT_BYTES", 10 * 4 * 1000)
    assert guess_for(Unknown()).model is None
    assert guess_for(wide_net()).model is not None  # layer by layer, few are held
    monkeypatch.undo()
    assert guess_for(Unknown()).model is not None


@pytest.mark.parametrize("k", [1, 4, 8])
@pytest.mark.parametrize("stop", ["residual", "value"])
@pytest.mark.parametrize(("kind", "samples"), [("fisher", 128), ("ggn", 128), ("hessian", 256)])
def test_model_leads_to_the_eigenvalues_of_the_dense_matrix(
    kind: str, samples: int, stop: str, k: int
) -> None:
    x = torch.randn(samples, 3, generator=torch.Generator().manual_seed(1)).double()
    torch.manual_seed(0)
    layers = nn.Linear(3, 40), nn.ReLU(), nn.Linear(40, 20), nn.ReLU(), nn.Linear(20, 6)
    model = nn.Sequential(*layers).double()
    batch = 1 + x, torch.arange(samples) % 2
    made = operator(model, "cross_entropy", batch, kind)
    guess = coarse.coarse_guess(made, Request(k, "largest", 1e-5, 100, 0))
    assert guess is not None
    assert guess.model is not None
    found = top_eigenvalue(model, "cross_entropy", batch, kind, k=k, stop=stop, tol=1e-5)
    identity = torch.eye(made.shape[0], dtype=torch.float64)
    expected = torch.linalg.eigvalsh(made @ identity).flip(0)[:k]
    assert found.converged
    assert torch.allclose(found.values, expected, rtol=1e-5)


def test_trial_of_agreement_is_counted_where_vectors_are_searched_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried = guess_for(wide_net(), samples=512)
    assert tried.model is not None
    monkeypatch.setattr(coarse, "_AGREEING", {False: 2.0, True: 2.0})
    spent = guess_for(wide_net(), samples=512)
    without_means(monkeypatch)
    plain = guess_for(wide_net(), samples=512)
    assert spent.model is plain.model is None
    assert spent.cost == pytest.approx(plain.cost + 1 / 8)
    monkeypatch.undo()
    monkeypatch.setattr(coarse, "_AGREEING", {False: 2.0, True: 2.0})
    monkeypatch.setattr(coarse, "_LARGEST_COST", 2.0)
    few = guess_for(wide_net(), samples=512, max_products=3)  # one is left, an eighth of it spent
    assert few.cost <= 1.0 + 1 / 32


def test_large_parameter_vectors_are_not_kept_with_their_products(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert guess_for(wide_net(), kind="hessian").model is not None
    monkeypatch.setattr(coarse, "_LARGEST_VECTOR", 1000)
    assert guess_for(wide_net(), kind="hessian").model is None


class Similarities(nn.Module):
    """As many outputs for a sample as there are others to compare it with."""

    def __init__(self) -> None:
        super().__init__()
        layers = nn.Linear(5, 300), nn.ReLU(), nn.Linear(300, 100), nn.ReLU()
        self.body, self.head = nn.Sequential(*layers), nn.Linear(100, 100)

    def forward(self, x: Tensor) -> Tensor:
        features = self.body(x)
        return self.head(features) @ features[: len(x) // 4].T / 10


@pytest.mark.parametrize("kind", ["fisher", "hessian"])
def test_outputs_that_depend_on_the_batch_size_are_measured(kind: str) -> None:
    torch.manual_seed(0)
    model, x = Similarities().double(), torch.randn(256, 5).double() + 1
    batch = x, torch.arange(256)

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return output.square().sum(1).mean()

    found = top_eigenvalue(model, loss, batch, kind)
    several = top_eigenvalue(model, loss, batch, kind, k=2, tol=1e-6, start=found)
    assert found.value == pytest.approx(several.value, rel=1e-3)


@pytest.mark.parametrize("kind", ["fisher", "ggn", "hessian"])
def test_inference_mode_takes_the_same_guess(kind: str) -> None:
    expected = guess_for(wide_net(), kind=kind)
    with torch.inference_mode():
        found = guess_for(wide_net(), kind=kind)
    assert found.model is not None
    assert torch.allclose(found.model.matrix, expected.model.matrix)


def test_half_precision_takes_the_model_too() -> None:
    x = torch.randn(256, 3, generator=torch.Generator().manual_seed(1))
    batch = x, torch.arange(256) % 2
    expected = top_eigenvalue(wide_net(), "squared_error", batch)
    made = operator(wide_net().bfloat16(), "squared_error", (x.bfloat16(), batch[1]), "fisher")
    assert coarse.coarse_guess(made, Request(1, "largest", 1e-2, 100, 0)).model is not None
    found = top_eigenvalue(
        wide_net().bfloat16(), "squared_error", (x.bfloat16(), batch[1]), tol=0.1
    )
    assert found.value == pytest.approx(expected.value, rel=0.03)
