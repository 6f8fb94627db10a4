"""Curvature through operations that torch differentiates once only, against finite differences."""

import copy

import pytest
import torch
from tests.references.curvature import Reference
from tests.unit.curvature.networks import randomized
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import normscope as ns
from normscope.curvature import dense, operator, top_eigenvalue
from normscope.errors import NormscopeWarning, StateError

LENGTHS = torch.tensor([2, 3, 1])


class SqueezeExcite(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.down, self.up = nn.Conv2d(channels, 2, 1), nn.Conv2d(2, channels, 1)
        self.gate = nn.Hardsigmoid(inplace=True)

    def forward(self, x):
        squeezed = functional.softplus(self.down(functional.adaptive_avg_pool2d(x, 1)))
        return x * self.gate(self.up(squeezed))


class MobileBlock(nn.Module):
    """An inverted residual block as in MobileNetV3, with its stem and head."""

    def __init__(self, channels=3):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(1, channels, 3, padding=1, bias=False),
            *(nn.BatchNorm2d(channels), nn.Hardswish(inplace=True)),
        )
        self.block = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False),
            *(nn.BatchNorm2d(channels), SqueezeExcite(channels), nn.Hardswish(inplace=True)),
            *(nn.Conv2d(channels, channels, 1, bias=False), nn.BatchNorm2d(channels)),
        )
        self.head = nn.Linear(channels, 3)

    def forward(self, x):
        x = self.stem(x)
        return self.head((x + self.block(x)).mean((2, 3)))


class Warp(nn.Module):
    """A spatial transformer: the image sampled on a grid that depends on parameters."""

    def __init__(self):
        super().__init__()
        self.turn, self.head = nn.Linear(16, 6), nn.Linear(16, 3)

    def forward(self, x):
        matrix = self.turn(x.flatten(1)).tanh().view(-1, 2, 3) / 3
        grid = functional.affine_grid(matrix, x.shape, align_corners=False)
        return self.head(functional.grid_sample(x, grid, align_corners=False).flatten(1))


class Segments(nn.Module):
    """A mean over segments: torch has its first derivative only, and none in forward mode."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(16, 6), nn.Linear(3, 3)

    def forward(self, x):
        hidden = self.first(x.flatten(1)).tanh().T
        return self.head(self.reduce(hidden).T.square())

    def reduce(self, hidden):
        return torch.segment_reduce(hidden.contiguous(), "mean", lengths=LENGTHS, axis=0)


class WrittenOut(Segments):
    def reduce(self, hidden):
        return torch.stack([part.mean(0) for part in hidden.split(LENGTHS.tolist())])


class SinglePrecision(Segments):
    """Refuses float64."""

    def forward(self, x):
        assert x.dtype == torch.float32
        return super().forward(x)


NETWORKS = {
    "mobile": MobileBlock,
    "grid_sample": Warp,
    "orthogonal": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(16, 4), nn.utils.parametrizations.orthogonal(nn.Linear(4, 4)),
        nn.Tanh(), nn.Linear(4, 3),
    ),
    "weight_norm": lambda: nn.Sequential(
        nn.Flatten(), nn.utils.parametrizations.weight_norm(nn.Linear(16, 4)), nn.BatchNorm1d(4),
        nn.Tanh(), nn.Linear(4, 3),
    ),
}  # fmt: skip


def data(dtype=torch.float64, samples=6):
    generator = torch.Generator().manual_seed(3)
    images = torch.randn(samples, 1, 4, 4, generator=generator, dtype=torch.float64)
    return images.to(dtype), torch.arange(samples) % 3


@pytest.mark.parametrize("mode", ["train", "frozen", "eval"])
@pytest.mark.parametrize("kind", ["fisher", "ggn", "hessian"])
@pytest.mark.parametrize("name", NETWORKS)
def test_matrix_is_that_of_finite_differences(name, kind, mode):
    model = randomized(NETWORKS[name]())
    expected = Reference(model, functional.cross_entropy, data(), mode).matrix(kind)
    found = dense(model, "cross_entropy", data(), kind, mode)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6 * float(expected.abs().max()))
    single = dense(model.float(), "cross_entropy", data(torch.float32), kind, mode)
    scale = float(expected.abs().max())
    torch.testing.assert_close(single.double(), expected, rtol=1e-3, atol=2e-4 * scale)


@pytest.mark.parametrize("kind", ["fisher", "ggn", "hessian"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_unknown_operation_is_measured_by_differences_with_their_error(kind, dtype):
    model, plain = randomized(Segments()), randomized(WrittenOut())
    expected = dense(plain, "cross_entropy", data(samples=40), kind)
    with pytest.warns(NormscopeWarning, match=r"by differences, with .* of \de-0[5-9]"):
        found = dense(model.to(dtype), "cross_entropy", data(dtype, 40), kind)
    scale = float(expected.abs().max())
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5 * scale)


@pytest.mark.parametrize("kind", ["ggn", "hessian"])
def test_eigenvalue_of_an_unknown_operation_leaves_the_model_as_it_is(kind):
    model = randomized(Segments())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    expected = top_eigenvalue(randomized(WrittenOut()), "cross_entropy", data(samples=40), kind)
    with pytest.warns(NormscopeWarning, match="by differences"):
        found = top_eigenvalue(model, "cross_entropy", data(samples=40), kind)
    assert found.converged
    assert found.value == pytest.approx(expected.value, rel=1e-5)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.filterwarnings("ignore:an operation of the model")
def test_differences_that_are_too_inaccurate_in_single_precision_are_refused():
    model = randomized(SinglePrecision()).float()
    for kind in ("fisher", "hessian"):
        with pytest.raises(StateError, match=r"differences have .* of \d.\de-0[23]"):
            dense(model, "cross_entropy", data(torch.float32, 40), kind)


def test_hessian_of_a_loss_without_a_second_derivative_is_by_differences():
    class Recognizer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 5)

        def forward(self, x):
            return self.inner(x.squeeze(1)).log_softmax(2)  # (samples, steps, symbols)

    def loss(output, target):
        lengths = torch.full((len(output),), 4), torch.full((len(output),), 2)
        labels = torch.stack([target + 1, (target + 1) % 4 + 1], 1)
        return functional.ctc_loss(output.transpose(0, 1), labels, *lengths)

    model = randomized(Recognizer())
    expected = Reference(model, loss, data(), "train").matrix("hessian")
    with pytest.warns(NormscopeWarning, match="products with the Hessian are computed by"):
        found = dense(model, loss, data(), "hessian")
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    with pytest.raises(StateError, match=r"Gauss-Newton matrix needs; measure kind='hessian'"):
        dense(model, loss, data(), "ggn")


def test_straight_through_gradient_is_no_gradient_of_a_loss_for_differences():
    class Rounded(Segments):
        def forward(self, x):
            hidden = self.first(x.flatten(1)).T
            rounded = hidden + ((4 * hidden).round() / 4 - hidden).detach()
            return self.head(self.reduce(rounded).T.square())

    with pytest.raises(StateError, match=r"no second derivative|symmetric"):
        dense(randomized(Rounded()), "cross_entropy", data(samples=40), "hessian")
    with pytest.raises(StateError, match=r"no second derivative|not differentiable"):
        dense(randomized(Rounded()), "cross_entropy", data(samples=40), "ggn")


class Residual(nn.Module):
    def __init__(self, inputs, channels, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, channels, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)
        self.shortcut = nn.Identity()
        if stride > 1:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x):
        out = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(out)) + self.shortcut(x))


def resnet18(width):
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    inputs = width
    for stage in range(4):
        channels = width * 2**stage
        layers += [Residual(inputs, channels, 1 + (stage > 0)), Residual(channels, channels, 1)]
        inputs = channels
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 10)]
    return nn.Sequential(*layers)


def test_rounding_of_a_deep_residual_net_is_not_taken_for_a_wrong_derivative():
    model = resnet18(6)
    generator = torch.Generator().manual_seed(0)
    batch = torch.randn(24, 3, 16, 16, generator=generator), torch.arange(24) % 10
    single = top_eigenvalue(model, "cross_entropy", batch, "hessian", stop="value")
    exact = batch[0].double(), batch[1]
    double = top_eigenvalue(model.double(), "cross_entropy", exact, "hessian", stop="value")
    assert single.converged
    assert double.converged
    assert single.value == pytest.approx(double.value, rel=2e-3)


class Checkpointed(nn.Module):
    """A reentrant checkpoint with no trained parameter before it, as when adapters are trained."""

    def __init__(self, is_checkpointed):
        super().__init__()
        self.embed = nn.Embedding(5, 4).requires_grad_(False)
        self.body = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 4))
        self.head, self.is_checkpointed = nn.Linear(4, 3), is_checkpointed

    def forward(self, tokens):
        hidden = self.embed(tokens).mean(1).requires_grad_()
        if self.is_checkpointed:
            return self.head(checkpoint(self.body, hidden, use_reentrant=True))
        return self.head(self.body(hidden))


@pytest.mark.parametrize("kind", ["fisher", "ggn", "hessian"])
def test_reentrant_checkpoint_hides_no_parameter(kind):
    plain = randomized(Checkpointed(is_checkpointed=False))
    model = copy.deepcopy(plain)
    model.is_checkpointed = True
    batch = torch.arange(18).view(6, 3) % 5, torch.arange(6) % 3
    expected = dense(plain, "cross_entropy", batch, kind)
    torch.testing.assert_close(dense(model, "cross_entropy", batch, kind), expected)
    assert expected[:16].abs().max() > 1e-3
    output = model(batch[0])  # and torch's own checkpoints are back
    assert output.grad_fn.next_functions[1][0].name() == "CheckpointFunctionBackward"


@pytest.mark.parametrize("is_trained", [True, False])
def test_learning_rate_with_reentrant_checkpoints_is_that_without(is_trained):
    plain = randomized(Checkpointed(is_checkpointed=False))
    plain.embed.requires_grad_(is_trained)
    model = copy.deepcopy(plain)
    model.is_checkpointed = True
    batch = torch.arange(18).view(6, 3) % 5, torch.arange(6) % 3
    limits = [ns.max_learning_rate(each, "cross_entropy", batch).limit for each in (plain, model)]
    assert limits[1] == pytest.approx(limits[0], rel=1e-6)


class SparseTables(nn.Module):
    """Tables of rows whose gradients are sparse tensors."""

    def __init__(self, is_sparse):
        super().__init__()
        self.table = nn.Embedding(5, 3, sparse=is_sparse)
        self.bag = nn.EmbeddingBag(5, 3, sparse=is_sparse)
        self.head = nn.Linear(3, 3)

    def forward(self, tokens):
        return self.head(torch.tanh(self.table(tokens).sum(1) + self.bag(tokens)))


@pytest.mark.parametrize("kind", ["fisher", "ggn", "hessian"])
def test_matrix_of_an_embedding_with_sparse_gradients(kind):
    plain, model = randomized(SparseTables(False)), randomized(SparseTables(True))
    batch = torch.arange(18).view(6, 3) % 5, torch.arange(6) % 3
    expected = Reference(plain, functional.cross_entropy, batch, "train").matrix(kind)
    found = dense(model, "cross_entropy", batch, kind)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6 * float(expected.abs().max()))


def test_sparse_gradients_are_advised_and_examined_as_dense_ones():
    plain, model = randomized(SparseTables(False)), randomized(SparseTables(True))
    batch = torch.arange(18).view(6, 3) % 5, torch.arange(6) % 3
    limits = [ns.max_learning_rate(each, "cross_entropy", batch).limit for each in (plain, model)]
    assert limits[1] == pytest.approx(limits[0], rel=1e-6)
    given = {"norms": ["none"], "verify": False}
    reports = [ns.compare(each, "cross_entropy", batch, **given) for each in (plain, model)]
    assert str(reports[1]) == str(reports[0])
    diagnosis = ns.doctor(model, "cross_entropy", batch)
    assert "Not checked" not in str(diagnosis)
    assert len(diagnosis.findings) == len(ns.doctor(plain, "cross_entropy", batch).findings)


class OnlyForward(torch.autograd.Function):
    """The cube, with a derivative in forward mode and a backward pass that has none."""

    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * gradient

    @staticmethod
    def jvp(ctx, tangent):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * tangent


def test_forward_mode_of_a_model_with_a_loss_inside():
    class Inside(nn.Module):
        def __init__(self, cube):
            super().__init__()
            self.first, self.last, self.cube = nn.Linear(3, 4), nn.Linear(4, 2), cube

        def forward(self, x, labels):
            logits = self.last(self.cube(self.first(x)))
            return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}

    batch = {"x": torch.randn(6, 3).double(), "labels": torch.randint(2, (6,))}
    model = Inside(OnlyForward.apply).double()
    plain = Inside(lambda x: x**3).double()
    plain.load_state_dict(model.state_dict())
    matrix = operator(model, "model", batch, kind="ggn")
    vector = torch.randn(matrix.shape[0], dtype=torch.float64)
    with pytest.warns(NormscopeWarning, match="by differences"):
        found = matrix @ vector
    expected = operator(plain, "model", batch, kind="ggn") @ vector
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("kind", ["fisher", "ggn", "hessian"])
@pytest.mark.parametrize("layer", [nn.Embedding, nn.EmbeddingBag])
def test_gradient_scaled_by_frequency_is_not_taken_for_the_derivative(layer, kind):
    class Words(nn.Module):
        def __init__(self, is_scaled=False):
            super().__init__()
            self.words = layer(5, 3, scale_grad_by_freq=is_scaled)
            self.head = nn.Linear(3, 2)

        def forward(self, x):
            found = self.words(x).tanh()
            return self.head(found if found.dim() == 2 else found.mean(1))

    plain, scaled = Words().double(), Words(is_scaled=True).double()
    scaled.load_state_dict(plain.state_dict())
    data = torch.tensor([[0, 0, 1], [2, 0, 4], [3, 3, 3]]), torch.tensor([0, 1, 1])
    expected = dense(plain, "cross_entropy", data, kind)
    torch.testing.assert_close(dense(scaled, "cross_entropy", data, kind), expected)
