"""The first guess from a part of the data: what it costs, and what it does without."""

from __future__ import annotations

import pytest
import torch
from tests.references.curvature import Reference
from tests.unit.curvature.networks import batch, network
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset

from normscope.curvature import CurvatureOperator, operator, top_eigenvalue, warm_start
from normscope.curvature.davidson import agreement, gradient_model, output_model, top_means
from normscope.curvature.eigensolver import Request
from normscope.curvature.spaces import OutputSpace, search_space
from normscope.errors import NormscopeWarning
from normscope.models import build
from normscope.problem import Evaluator, Problem, parameter_layout


def data(samples: int = 128) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(samples, 3, generator=generator), torch.arange(samples) % 2


def without_means(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let vectors be searched on the part even where its samples agree."""
    monkeypatch.setattr(
        warm_start, "_from_mean_gradients", lambda operator, request: warm_start._Means()
    )


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
    own = warm_start._space

    def watched(part, request):
        spaces.append(type(own(part, request)).__name__)
        return own(part, request)

    monkeypatch.setattr(warm_start, "_space", watched)
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
        guess = warm_start.warm_start(made, request)
        assert guess is not None
        costs[kind] = guess.cost
    if which == "largest":  # the same matrix on the part, for another one on the whole
        assert costs["hessian"] < costs["ggn"]
    monkeypatch.setattr(warm_start, "_FOREIGN_TOLERANCE", 0.005)
    sharper = warm_start.warm_start(made, request)
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
    return warm_start.warm_start(made, Request(**chosen | options))


@pytest.mark.parametrize("kind", ["fisher", "ggn", "hessian"])
@pytest.mark.parametrize("k", [1, 3])
def test_samples_that_agree_give_a_model_of_their_mean_gradients(kind: str, k: int) -> None:
    guess = guess_for(wide_net(), kind=kind, count=k)
    assert guess.mean_model is not None
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
        (wide_net(), {"kind": "hessian", "samples": 120}),  # a seventh, which each step uses again
        (wide_net(), {"kind": "hessian", "which": "smallest"}),
        (wide_net(50), {}),  # the gradients of fifty outputs would cost more than they save
        (wide_net(), {"max_products": 2}),
        (wide_net(), {"samples": 63}),  # 16 samples would be more than a quarter
    ],
    ids=["odd", "smallest", "hessian", "other end", "outputs", "max_products", "samples"],
)
def test_no_model_is_made_where_it_would_not_help(model: nn.Module, options: dict) -> None:
    guess = guess_for(model, **options)
    assert guess is None or guess.mean_model is None


def test_gradients_that_would_fill_the_memory_are_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unknown(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = wide_net()

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x) if bool((x < 9).any()) else x

    monkeypatch.setattr(warm_start, "_GRADIENT_BYTES", 10 * 4 * 1000)
    assert guess_for(Unknown()).mean_model is None
    assert guess_for(wide_net()).mean_model is not None  # layer by layer, few are held
    monkeypatch.undo()
    assert guess_for(Unknown()).mean_model is not None


@pytest.mark.parametrize("k", [1, 4, 8])
@pytest.mark.parametrize("stop", ["residual", "value"])
@pytest.mark.parametrize(("kind", "samples"), [("fisher", 128), ("ggn", 128), ("hessian", 256)])
@pytest.mark.parametrize("searches", [False, True])
def test_start_leads_to_the_eigenvalues_of_the_dense_matrix(
    searches: bool, kind: str, samples: int, stop: str, k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm_start, "_SEPARATE", (0.0, 1.0) if searches else (1.0, 1.0))
    x = torch.randn(samples, 3, generator=torch.Generator().manual_seed(1)).double()
    torch.manual_seed(0)
    layers = nn.Linear(3, 40), nn.ReLU(), nn.Linear(40, 20), nn.ReLU(), nn.Linear(20, 6)
    model = nn.Sequential(*layers).double()
    batch = 1 + x, torch.arange(samples) % 2
    made = operator(model, "cross_entropy", batch, kind)
    guess = warm_start.warm_start(made, Request(k, "largest", 1e-5, 100, 0))
    assert guess is not None
    assert (guess.mean_model is None) == (searches and k == 1)
    found = top_eigenvalue(model, "cross_entropy", batch, kind, k=k, stop=stop, tol=1e-5)
    identity = torch.eye(made.shape[0], dtype=torch.float64)
    expected = torch.linalg.eigvalsh(made @ identity).flip(0)[:k]
    assert found.converged
    assert torch.allclose(found.values, expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("norm", "mode", "expected"), [(True, "train", 32), (True, "eval", 16), (False, "train", 16)]
)
def test_part_has_more_samples_where_the_batch_has_statistics(
    norm: bool, mode: str, expected: int
) -> None:
    torch.manual_seed(0)
    layers = [nn.Linear(3, 60), *([nn.BatchNorm1d(60)] if norm else []), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(60, 10))
    made = operator(model, "cross_entropy", data(128), "fisher", mode)
    part = warm_start._part(made, 1 / 16, 1 / 4, seed=0)
    assert part is not None
    assert part.samples == expected


def test_sequence_counts_as_several_samples() -> None:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x).transpose(1, 2)  # (samples, classes, positions)

    x, labels = torch.randn(40, 9, 3), torch.arange(360).view(40, 9) % 4
    made = operator(Tagger(), functional.cross_entropy, (x, labels), "ggn")
    part = warm_start._part(made, 1 / 16, 1 / 8, seed=0)
    assert part is not None
    assert part.samples == 4


def test_trial_of_agreement_is_counted_where_vectors_are_searched_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried = guess_for(wide_net(), samples=512)
    assert tried.mean_model is not None
    monkeypatch.setattr(warm_start, "_AGREEING", {False: 2.0, True: 2.0})
    spent = guess_for(wide_net(), samples=512)
    without_means(monkeypatch)
    plain = guess_for(wide_net(), samples=512)
    assert spent.mean_model is plain.mean_model is None
    assert spent.cost == pytest.approx(plain.cost + 1 / 8)
    monkeypatch.undo()
    monkeypatch.setattr(warm_start, "_AGREEING", {False: 2.0, True: 2.0})
    monkeypatch.setattr(warm_start, "_LARGEST_COST", 2.0)
    few = guess_for(wide_net(), samples=512, max_products=3)  # one is left, an eighth of it spent
    assert few.cost <= 1.0 + 1 / 32


def test_large_parameter_vectors_are_not_kept_with_their_products(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert guess_for(wide_net(), kind="hessian").mean_model is not None
    monkeypatch.setattr(warm_start, "_LARGEST_VECTOR", 1000)
    assert guess_for(wide_net(), kind="hessian").mean_model is None


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
    assert found.mean_model is not None
    assert torch.allclose(found.mean_model.matrix, expected.mean_model.matrix)


def test_half_precision_takes_the_model_too() -> None:
    x = torch.randn(256, 3, generator=torch.Generator().manual_seed(1))
    batch = x, torch.arange(256) % 2
    expected = top_eigenvalue(wide_net(), "squared_error", batch)
    made = operator(wide_net().bfloat16(), "squared_error", (x.bfloat16(), batch[1]), "fisher")
    assert warm_start.warm_start(made, Request(1, "largest", 1e-2, 100, 0)).mean_model is not None
    found = top_eigenvalue(
        wide_net().bfloat16(), "squared_error", (x.bfloat16(), batch[1]), tol=0.1
    )
    assert found.value == pytest.approx(expected.value, rel=0.03)


# Mean gradients on a part of the data, against the dense matrix


def space_of(model, data, kind="fisher", mode="train"):
    layout = parameter_layout(model)
    evaluator = Evaluator(Problem(model, functional.cross_entropy, data), layout, mode, 0)
    space = search_space(CurvatureOperator(evaluator, kind), "largest", 1)
    assert isinstance(space, OutputSpace)
    return space


def dense_of(space):
    return torch.stack([space.times(row) for row in torch.eye(space.size, dtype=space.dtype)])


@pytest.mark.parametrize("mode", ["train", "frozen", "eval"])
@pytest.mark.parametrize("kind", ["fisher", "ggn"])
@pytest.mark.parametrize("name", ["torch_batch", "conv2d", "tied", "residual"])
def test_mean_model_is_the_matrix_between_vectors_the_same_for_all_samples(name, kind, mode):
    model, data = network(name), batch(name)
    space = space_of(model, data, kind, mode)
    samples, outputs = len(data[1]), space.size // len(data[1])
    means = output_model(space, 100)
    same = torch.eye(outputs, dtype=torch.float64).repeat(samples, 1) / samples**0.5
    expected = same.T @ dense_of(space) @ same
    assert torch.allclose(means.matrix, expected, rtol=1e-8, atol=1e-10)
    assert means.frame.samples == 100
    top = top_means(means, space, 1)[:, 0]
    largest = float(torch.linalg.eigvalsh(expected)[-1])
    assert float(top @ space.times(top.contiguous())) == pytest.approx(largest, rel=1e-8)


def test_mean_fisher_is_that_of_the_mean_gradients():
    model, data = network("conv2d"), batch("conv2d")
    jacobian = Reference(model, functional.cross_entropy, data, "train").jacobian
    by_output = jacobian.view(len(data[1]), -1, jacobian.shape[1]).mean(0)
    expected = by_output @ by_output.T  # wei2018: what bounds the largest eigenvalue
    assert torch.allclose(output_model(space_of(model, data), 9).matrix, expected, rtol=1e-6)


@pytest.mark.parametrize("kind", ["fisher", "ggn"])
@pytest.mark.parametrize("name", ["conv2d", "residual"])
def test_gradient_model_has_an_orthonormal_frame_of_mean_gradients(name, kind):
    model, data = network(name), batch(name)
    space = space_of(model, data, kind)
    means = output_model(space, 9)
    gradients = gradient_model(means, space, 0.125)
    assert gradients.frame.cost == pytest.approx(3 / 16)  # three halves of an eighth
    size = sum(parameter.numel() for parameter in model.parameters())
    like = torch.empty(0, dtype=torch.float64)
    count = len(gradients.matrix)
    columns = [gradients.frame.vector(row, like) for row in torch.eye(count, dtype=torch.float64)]
    frame = torch.stack(columns, 1)
    assert frame.shape == (size, count)
    assert torch.allclose(frame.T @ frame, torch.eye(count, dtype=torch.float64), atol=1e-8)
    drawn = torch.randn(size, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    assert torch.allclose(gradients.frame.means(drawn), frame.T @ drawn, rtol=1e-8, atol=1e-10)
    # the same eigenvalues, but for those that are as good as zero
    expected = torch.linalg.eigvalsh(means.matrix)[-count:]
    assert torch.allclose(gradients.matrix.diagonal(), expected)


def test_gradient_model_leaves_out_directions_without_a_gradient_and_no_others():
    model, data = network("conv2d"), batch("conv2d")
    space = space_of(model, data)
    for smallest, kept in ((1e-2, 3), (1e-4, 2)):
        matrix = torch.diag(torch.tensor([smallest, 0.5, 1.0], dtype=torch.float64))
        means = output_model(space, 9)
        means.matrix = matrix
        assert len(gradient_model(means, space, 0.1).matrix) == kept


def net(activation, norm):
    torch.manual_seed(0)
    layers = [nn.Linear(20, 100), *norm, activation, nn.Linear(100, 100), *norm[:0], activation]
    return nn.Sequential(*layers, nn.Linear(100, 3))


def test_agreement_is_high_where_units_have_a_mean_and_low_where_they_have_none():
    generator = torch.Generator().manual_seed(1)
    data = torch.randn(64, 20, generator=generator), torch.randint(3, (64,), generator=generator)
    # squares have a mean whatever the sample; a centred odd function has none
    assert agreement(space_of(net(nn.ReLU(), []), data), seed=0) > 0.8
    odd = net(nn.Tanh(), [])
    for layer in odd:
        if isinstance(layer, nn.Linear):
            nn.init.zeros_(layer.bias)
            layer.bias.requires_grad_(False)
    assert agreement(space_of(odd, data), seed=0) < 0.5


def test_agreement_of_a_net_without_gradients_is_none():
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2, bias=False))
    nn.init.zeros_(model[0].weight)
    nn.init.constant_(model[0].bias, -1.0)  # every unit is off
    data = torch.randn(3, 4), torch.tensor([0, 1, 0])
    assert agreement(space_of(model, data), seed=0) == 0.0
