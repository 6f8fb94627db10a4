"""Images lie in memory as the convolutions of a model like them, if the model takes them so."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.data import DataLoader, TensorDataset

import normscope as ns
from normscope.curvature import operator
from normscope.curvature.autograd.batch_norm import channels_last
from normscope.errors import StateError
from normscope.problem import Evaluator, Problem, parameter_layout
from normscope.problem import evaluate as evaluation
from normscope.problem.twice_differentiable import TwiceDifferentiable

SEEN: list[tuple[torch.dtype, bool]] = []  # not the model's own: that is put back as it was


LOOKS = {
    "view": lambda x: x.view(len(x), -1),
    "as_strided": lambda x: x.as_strided((len(x), 18), (18, 1)),  # reads other values, silently
    None: lambda x: x.flatten(1),
}


class Viewed(nn.Module):
    """A net that may look at its memory: ``view`` refuses images whose channels are neighbours."""

    def __init__(self, look, drop):
        super().__init__()
        self.convolution = nn.Conv2d(2, 3, 3)
        self.drop = nn.Dropout(drop)
        self.head = nn.Linear(3 * 2 * 3, 2)
        self.look = look

    def forward(self, x):
        if bool(x.isnan().any()):  # no reader of layers can follow this
            raise ValueError
        SEEN.append((x.dtype, channels_last(x)))
        x = self.drop(torch.tanh(self.convolution(x)))
        return self.head(LOOKS[self.look](x))


def measured(look, dtype=torch.float32, kind="hessian", drop=0.0):
    torch.manual_seed(0)
    SEEN.clear()
    model = Viewed(look, drop).to(dtype)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(4, 2, 4, 5, generator=generator).to(dtype)
    matrix = operator(model, "cross_entropy", (x, torch.arange(4) % 2), kind, "train")
    vector = torch.randn(matrix.shape[0], generator=generator).to(dtype)
    product = matrix @ vector
    # derivatives are checked in float64, which has no faster order
    return product, [order for given, order in SEEN if given == dtype], x


@pytest.mark.parametrize("kind", ["fisher", "hessian"])
def test_images_are_rearranged_for_convolutions(kind):
    product, seen, _ = measured(look=None, kind=kind)
    assert seen == [False, True, *[True] * (len(seen) - 2)]  # compared once
    assert len(seen) > 2
    expected, plain, _ = measured(look=None, dtype=torch.float64, kind=kind)
    assert not any(plain)  # there is no faster order in double precision
    torch.testing.assert_close(product.double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("look", ["view", "as_strided"])
def test_a_model_that_looks_at_its_memory_gets_images_as_given(look):
    product, seen, x = measured(look=look)
    assert seen.count(True) == 1  # asked once
    assert seen.count(False) > 1
    expected, _, _ = measured(look=None)
    torch.testing.assert_close(product, expected, rtol=1e-5, atol=1e-6)
    assert x.is_contiguous()


def test_a_refused_order_of_memory_leaves_the_random_draws_as_they_are():
    look = "view"
    product, seen, _ = measured(look=look, drop=0.5)
    assert True in seen
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation, "prefers_channels_last", lambda _: False)
        expected, plain, _ = measured(look=look, drop=0.5)
    assert True not in plain
    assert torch.equal(product, expected)


def test_an_error_of_the_model_is_its_own():
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(7, 2))
    data = torch.zeros(4, 2, 4, 5), torch.arange(4) % 2
    with pytest.raises(RuntimeError, match="7"):
        operator(model, "cross_entropy", data, "hessian") @ torch.zeros(100)


class BackwardLooks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g.view(len(g), -1).reshape(g.shape)


class Particular(nn.Module):
    """Takes images in one order only, and says so in its own way."""

    def __init__(self, way):
        super().__init__()
        self.way, self.convolution, self.head = way, nn.Conv2d(2, 3, 2), nn.LazyLinear(2)

    def forward(self, x):
        if bool(x.isnan().any()):
            raise ValueError
        if self.way == "assert":
            assert x.is_contiguous()
        x = torch.tanh(self.convolution(x))
        return self.head((BackwardLooks.apply(x) if self.way == "backward" else x).flatten(1))


@pytest.mark.parametrize("kind", ["fisher", "hessian"])
@pytest.mark.parametrize("way", ["assert", "backward"])
def test_a_model_that_refuses_an_order_in_its_own_way_gets_the_other(way, kind):
    torch.manual_seed(0)
    model, x = Particular(way), torch.randn(4, 2, 4, 5)
    model(x)
    data = x, torch.arange(4) % 2
    matrix = operator(model, "cross_entropy", data, kind)
    vector = torch.randn(matrix.shape[0])
    model.way = None
    expected = operator(model, "cross_entropy", data, kind) @ vector
    torch.testing.assert_close(matrix @ vector, expected, rtol=1e-4, atol=1e-5)


class ViewedIfLarge(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution, self.head = nn.Conv2d(2, 3, 2), nn.Linear(3, 2)

    def forward(self, x):
        if bool(x.isnan().any()):
            raise ValueError
        x = torch.tanh(self.convolution(x))
        return self.head(x.view(len(x), 3, -1).mean(2) if x.shape[2] > 3 else x.mean((2, 3)))


def test_every_shape_of_images_is_tried():
    torch.manual_seed(0)
    sizes = (4, 4), (6, 7)
    data = [(torch.randn(4, 2, *size), torch.arange(4) % 2) for size in sizes]
    matrix = operator(ViewedIfLarge(), "cross_entropy", data, "hessian")
    first = matrix @ torch.ones(matrix.shape[0])
    assert torch.equal(matrix @ torch.ones(matrix.shape[0]), first)


@pytest.mark.parametrize("chain", [True, False])
def test_batch_statistics_of_rearranged_images_keep_their_digits(chain):
    """Many positions, and a mean of six spreads: torch loses two digits of the mean so."""
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 3, 1), nn.BatchNorm2d(3), nn.Tanh(), nn.AvgPool2d(32), nn.Flatten()
    model = nn.Sequential(*layers, nn.Linear(3, 2))
    model[0].weight.data.fill_(1.0)
    data = torch.randn(64, 1, 32, 32) + 6, torch.arange(64) % 2
    subject = model if chain else Hidden(model)
    matrix = operator(subject, "cross_entropy", data, "ggn", "train")
    vector = torch.randn(matrix.shape[0])
    exact = operator(subject.double(), "cross_entropy", (data[0].double(), data[1]), "ggn", "train")
    expected = exact @ vector.double()
    assert ((matrix @ vector).double() - expected).norm() <= 2e-5 * expected.norm()


class Hidden(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        if bool(x.isnan().any()):
            raise ValueError
        return self.inner(x)


@pytest.mark.parametrize("mode", ["train", "frozen", "eval"])
def test_a_bias_before_a_norm_layer_does_not_keep_images_as_given(mode):
    """Its gradient is zero up to rounding, which differs between the orders."""
    torch.manual_seed(0)
    layers = nn.Conv2d(2, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Flatten(), nn.Linear(60, 2)
    model = nn.Sequential(*layers)
    data = torch.randn(8, 2, 5, 6), torch.arange(8) % 2
    evaluator = Evaluator(Problem(model, "cross_entropy", data), parameter_layout(model), mode, 0)
    assert evaluator._uses_channels_last(data)


@pytest.mark.parametrize(("change", "is_refused"), [(1e-9, False), (1e-6, True)])
def test_loss_that_differs_between_calls_is_refused_beyond_rounding(change, is_refused):
    calls = iter([1.0, 1.0 + change])
    model = nn.Linear(2, 1).double()
    batch = torch.ones(3, 2, dtype=torch.float64), torch.zeros(3, 1, dtype=torch.float64)

    def loss(output, target):
        return 0.0 * output.sum() + next(calls)

    evaluator = Evaluator(Problem(model, loss, batch), parameter_layout(model), "train", 0)
    evaluator(batch)
    if is_refused:
        with pytest.raises(StateError, match=r"had 1 before"):
            evaluator(batch)
    else:
        evaluator(batch)


MASK = torch.tensor([[True, False, True], [False, False, False], [True, True, False]])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True},
        {"scale": 0.3},
        {"dropout_p": 0.5},
        {"attn_mask": MASK},
        {"attn_mask": torch.randn(3, 3, generator=torch.Generator().manual_seed(0))},
    ],
    ids=lambda options: next(iter(options), "plain"),
)
def test_attention_is_that_of_the_reference_kernel(options):
    torch.manual_seed(0)
    inputs = [torch.randn(2, 4, 3, 8, requires_grad=True) for _ in range(3)]
    values = []
    for context in (sdpa_kernel(SDPBackend.MATH), TwiceDifferentiable()):
        torch.manual_seed(1)
        with context:
            values.append(functional.scaled_dot_product_attention(*inputs, **options))
    assert torch.equal(*values)


@pytest.mark.parametrize("training", [True, False])
def test_curvature_of_attention_layers_leaves_the_kernels_alone(training):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True)
    model = nn.Sequential(nn.Unflatten(1, (2, 6)), layer, nn.Flatten(), nn.Linear(12, 2))
    model = model.double().train(training)
    x, y = torch.randn(4, 12, dtype=torch.float64), torch.tensor([0, 1, 1, 0])
    enabled = []
    layer.linear1.register_forward_hook(
        lambda *_: enabled.append(torch.backends.cuda.flash_sdp_enabled())
    )
    mode = "train" if training else "eval"
    names = ["1.self_attn.in_proj_weight"]
    found = ns.curvature.dense(
        model, "cross_entropy", (x, y), kind="hessian", params=names, mode=mode
    )
    assert enabled
    assert all(enabled)

    def loss(weight):
        with sdpa_kernel(SDPBackend.MATH):
            output = torch.func.functional_call(model, {names[0]: weight}, (x,))
        return functional.cross_entropy(output, y)

    weight = layer.self_attn.in_proj_weight.detach()
    expected = torch.autograd.functional.hessian(loss, weight).reshape(found.shape)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_dropped_iterator_of_batches_leaves_random_numbers_alone():
    data = DataLoader(TensorDataset(torch.randn(6, 2), torch.randn(6, 1)), 2, shuffle=True)
    model = nn.Linear(2, 1)
    problem = Problem(model, "squared_error", data)
    evaluator = Evaluator(problem, parameter_layout(model), "train", 0)
    before = torch.get_rng_state()
    iterator = evaluator.batches()
    first = next(iterator)[1][0]
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(5)
    state = torch.get_rng_state()
    rest = [batch[0] for _, batch in iterator]
    assert torch.equal(state, torch.get_rng_state())
    again = [batch[0] for _, batch in evaluator.batches()]
    assert all(map(torch.equal, [first, *rest], again))
