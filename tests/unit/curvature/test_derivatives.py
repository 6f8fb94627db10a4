"""Derivatives that a user-defined backward pass loses are refused; what is right is not."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import normscope as ns
from normscope.curvature import (
    KINDS,
    BatchCurvature,
    dense,
    operator,
    spectrum,
    top_eigenvalue,
    trace,
)
from normscope.errors import NormscopeWarning, StateError


def function(forward, backward, name="Custom"):
    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type(name, (torch.autograd.Function,), methods)


def square(context, x):
    context.save_for_backward(x)
    return x**2


def square_with_attribute(context, x):
    context.slope = 2 * x
    return x**2


def square_with_intermediate(context, x):
    context.save_for_backward(2 * x)
    return x**2


def square_with_number(context, x):
    context.slope, context.mean = x.detach(), float(x.mean())
    context.save_for_backward(x)
    return x**2 * context.mean


def saved(context):
    return context.saved_tensors[0]


@torch.no_grad()
def without_graph(context, gradient):
    return 2 * saved(context) * gradient


def through_numpy(context, gradient):
    product = 2 * saved(context).detach().numpy() * gradient.detach().numpy()
    return torch.from_numpy(np.ascontiguousarray(product))


#: the backward pass does not depend on the gradient, for autograd
DETACHED = {
    "detach": function(square, lambda c, g: (2 * saved(c) * g).detach()),
    "no_grad": function(square, without_graph),
    "numpy": function(square, through_numpy),
    "once_differentiable": function(square, once_differentiable(lambda c, g: 2 * saved(c) * g)),
}

#: neither differentiable nor the derivative of the forward pass: there is no way to J v
CONTRADICTED = function(lambda c, x: x.round(), lambda c, g: g.detach())


class ForwardSquare(torch.autograd.Function):
    """A square whose backward pass is not differentiable, with a derivative in forward mode."""

    @staticmethod
    def forward(context, x):
        context.save_for_backward(x)
        context.save_for_forward(x)
        return x**2

    @staticmethod
    @once_differentiable
    def backward(context, gradient):
        return 2 * context.saved_tensors[0] * gradient

    @staticmethod
    def jvp(context, tangent):
        return 2 * context.saved_tensors[0] * tangent


#: ... or not on the input: Gauss-Newton products are right, the Hessian is not
FIRST_ORDER = {
    "detached input": function(square, lambda c, g: 2 * saved(c).detach() * g),
    "data": function(square, lambda c, g: 2 * saved(c).data * g),
    "attribute": function(square_with_attribute, lambda c, g: c.slope * g),
    "saved intermediate": function(square_with_intermediate, lambda c, g: saved(c) * g),
    "number": function(square_with_number, lambda c, g: 2 * saved(c) * c.mean * g),
}


class Net(nn.Module):
    def __init__(self, activation, width=8):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(6, width), nn.Linear(width, 3)
        self.activation = activation

    def forward(self, x):
        return self.second(self.activation(self.first(x)))


def data(dtype=torch.float64, samples=40):
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(samples, 6, generator=generator, dtype=torch.float64)
    return inputs.to(dtype), torch.arange(samples) % 3


CALLS = {
    "operator": lambda *call: operator(*call) @ torch.ones(83, dtype=torch.float64),
    "dense": dense,
    "top_eigenvalue": top_eigenvalue,
    "trace": trace,
    "spectrum": lambda *call: spectrum(*call, probes=2),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", DETACHED)
def test_hessian_of_a_detached_backward_pass_is_refused(name, call):
    model = Net(DETACHED[name].apply).double()
    with pytest.raises(StateError, match="backward pass of Custom is not differentiable"):
        CALLS[call](model, "cross_entropy", data(), "hessian")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("kind", ["fisher", "ggn"])
@pytest.mark.parametrize("name", DETACHED)
def test_gauss_newton_of_a_detached_backward_pass_is_by_differences(name, kind, dtype):
    expected = dense(Net(torch.square).double(), "cross_entropy", data(), kind)
    with pytest.warns(NormscopeWarning, match=r"by differences, with .* of \de-0[5-9]"):
        found = dense(Net(DETACHED[name].apply).to(dtype), "cross_entropy", data(dtype), kind)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", ["fisher", "ggn"])
def test_backward_pass_that_differences_contradict_is_refused_by_every_call(kind, call):
    model = Net(CONTRADICTED.apply).double()
    with pytest.raises(StateError, match="backward pass of Custom is not differentiable"):
        CALLS[call](model, "cross_entropy", data(), kind)


@pytest.mark.parametrize("kind", ["fisher", "ggn"])
def test_function_with_a_forward_derivative_is_measured_without_differences(kind):
    found = dense(Net(ForwardSquare.apply).double(), "cross_entropy", data(), kind)
    expected = dense(Net(torch.square).double(), "cross_entropy", data(), kind)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", FIRST_ORDER)
def test_hessian_without_a_second_derivative_is_refused(name, call):
    model = Net(FIRST_ORDER[name].apply).double()
    with pytest.raises(StateError, match="backward pass of Custom is not differentiable"):
        CALLS[call](model, "cross_entropy", data(), "hessian")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", [*DETACHED, *FIRST_ORDER])
def test_missing_derivatives_are_found_in_less_precision(name, dtype):
    if name == "numpy" and dtype == torch.bfloat16:
        pytest.skip("NumPy has no bfloat16")
    model = Net((DETACHED | FIRST_ORDER)[name].apply).to(dtype)
    with pytest.raises(StateError, match="not differentiable"):
        operator(model, "cross_entropy", data(dtype), "hessian")


def test_refusal_is_repeated_for_the_same_operator():
    curvature = operator(Net(CONTRADICTED.apply).double(), "cross_entropy", data(), "fisher")
    for _ in range(2):
        with pytest.raises(StateError, match="not differentiable"):
            curvature @ torch.ones(83, dtype=torch.float64)


@pytest.mark.parametrize("kind", ["fisher", "ggn"])
@pytest.mark.parametrize("name", FIRST_ORDER)
def test_gauss_newton_needs_first_derivatives_only(name, kind):
    found = dense(Net(FIRST_ORDER[name].apply).double(), "cross_entropy", data(), kind)
    scaled = name == "number"
    plain = Net(lambda z: z**2 * (float(z.detach().mean()) if scaled else 1)).double()
    torch.testing.assert_close(found, dense(plain, "cross_entropy", data(), kind))


def test_few_outputs_need_no_derivative_of_the_backward_pass():
    batch = data(samples=4)
    found = dense(Net(DETACHED["detach"].apply).double(), "cross_entropy", batch)
    torch.testing.assert_close(found, dense(Net(torch.square).double(), "cross_entropy", batch))


def test_part_of_the_network_behind_a_detached_backward_pass_is_found():
    class Branch(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.stem = nn.Linear(6, 8)
            self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(12))
            self.gate, self.head = nn.Linear(8, 8), nn.Linear(8, 3)

        def forward(self, x):
            x = self.stem(x)
            for block in self.blocks:
                x = x + torch.tanh(block(x))
            return self.head(x + 0.01 * CONTRADICTED.apply(10 * self.gate(x)))

    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        with pytest.raises(StateError, match="not differentiable"):
            top_eigenvalue(Branch().to(dtype), "cross_entropy", data(dtype), "ggn")


def test_advisor_and_probe_refuse_too():
    model = Net(CONTRADICTED.apply).double()
    with pytest.raises(StateError, match="not differentiable"):
        ns.max_learning_rate(model, "cross_entropy", data(), verify=False)
    with (
        ns.Scope(model, "cross_entropy", learning_rate=0.1, probes=["curvature"]) as scope,
        pytest.warns(match="not differentiable"),
    ):
        scope.step(*data())
    assert not np.isfinite(scope.results["top_eigenvalue"].values).any()


@pytest.mark.parametrize("name", FIRST_ORDER)
@pytest.mark.parametrize("kind", ["ggn", "hessian"])
def test_loss_without_a_second_derivative_is_refused(kind, name):
    def loss(output, target):
        return (FIRST_ORDER[name].apply(output) * (1 + target.unsqueeze(1))).mean()

    with pytest.raises(StateError, match="backward pass of Custom is not differentiable"):
        operator(Net(torch.tanh).double(), loss, data(), kind)


def test_operator_of_a_library_is_checked_too():
    @torch.library.custom_op("normscope_tests::squared", mutates_args=())
    def squared(x: torch.Tensor) -> torch.Tensor:
        return x**2

    squared.register_autograd(
        lambda context, g: 2 * saved(context).detach() * g,
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )
    with pytest.raises(StateError, match="not differentiable"):
        operator(Net(squared).double(), "cross_entropy", data(), "hessian")


def relu_with_mask(context, x):
    context.mask = x > 0
    return x * context.mask


def clipped(context, x, low=0.0, high=0.5):
    output = x.clamp(low, high)
    context.save_for_backward(output)
    return output


def rectified_growth(context, x):
    output = x.expm1().relu()
    context.save_for_backward(output)
    return output


def exponential(context, x):
    output = torch.exp(x / 4)
    context.save_for_backward(output)
    return output


def dropped(context, x):
    context.kept = (torch.rand_like(x) > 0.3).to(x)
    return x * context.kept


def fused(context, x, weight, bias):
    output = functional.linear(x, weight, bias).relu()
    context.save_for_backward(x, weight)
    context.mask = (output > 0).to(x)
    return output


def fused_backward(context, gradient):
    x, weight = context.saved_tensors
    gradient = gradient * context.mask
    return gradient @ weight, gradient.T @ x, gradient.sum(0)


class Fused(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        return function(fused, fused_backward).apply(x, self.inner.weight, self.inner.bias)


class Plain(Fused):
    def forward(self, x):
        return self.inner(x).relu()


right_square = function(square, lambda c, g: 2 * saved(c) * g).apply
clone = lambda context, x: x.clone()  # noqa: E731

#: functions with their written-out equals
RIGHT = {
    "square": (right_square, torch.square),
    "saved output": (
        function(exponential, lambda c, g: g * saved(c) / 4).apply,
        lambda z: torch.exp(z / 4),
    ),
    "mask": (function(relu_with_mask, lambda c, g: g * c.mask).apply, torch.relu),
    "saved output at kinks": (
        function(clipped, lambda c, g: g * ((saved(c) > 0) & (saved(c) < 0.5))).apply,
        lambda z: z.clamp(0.0, 0.5),
    ),
    "smooth and at kinks": (
        function(rectified_growth, lambda c, g: g * (saved(c) > 0) * (1 + saved(c))).apply,
        lambda z: z.expm1().relu(),
    ),
    "reversed": (function(clone, lambda c, g: -g).apply, lambda z: 2 * z.detach() - z),
    "straight through": (
        function(lambda c, x: x.round(), lambda c, g: g).apply,
        lambda z: z + (z.round() - z).detach(),
    ),
    "own square with a stopped gradient": (
        lambda z: right_square(z) * torch.tanh(z.detach()),
        lambda z: z**2 * torch.tanh(z.detach()),
    ),
    "checkpointed": (lambda z: checkpoint(right_square, z, use_reentrant=False), torch.square),
}


@pytest.mark.parametrize("mode", ["train", "frozen"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", RIGHT)
def test_right_functions_give_the_curvature_of_their_equals(name, dtype, mode):
    own, plain = (nn.Sequential(Net(each, 8), nn.BatchNorm1d(3)).to(dtype) for each in RIGHT[name])
    for kind in ("fisher", "ggn", "hessian"):
        found = dense(own, "cross_entropy", data(dtype), kind, mode)
        expected = dense(plain, "cross_entropy", data(dtype), kind, mode)
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def test_missing_derivative_is_found_beside_values_at_kinks():
    rectified = function(rectified_growth, lambda c, g: g * (saved(c) > 0) * (1 + saved(c).data))
    with pytest.raises(StateError, match="backward pass of Custom is not differentiable"):
        dense(Net(rectified.apply).double(), "cross_entropy", data(), "hessian")


@pytest.mark.parametrize("samples", [40, 1000])
def test_fused_layer_with_a_stored_mask_is_accepted(samples):
    torch.manual_seed(0)
    inner = Fused().double()
    plain = Plain().double()
    plain.load_state_dict(inner.state_dict())
    found, expected = (
        dense(Net(layer).double(), "cross_entropy", data(samples=samples), "hessian")
        for layer in (inner, plain)
    )
    torch.testing.assert_close(found, expected)


def test_random_function_is_accepted():
    drops = function(dropped, lambda c, g: g * c.kept).apply
    top = top_eigenvalue(Net(lambda z: drops(z).tanh()), "cross_entropy", data(torch.float32))
    assert top.converged
    hessian = operator(Net(lambda z: drops(z).tanh()).double(), "cross_entropy", data(), "hessian")
    assert (hessian @ torch.ones(83, dtype=torch.float64)).norm() > 0


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Linear(2, 8), nn.Linear(8, 3)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, 0.1, batch_first=True)

    def forward(self, x):
        return self.head(checkpoint(self.block, self.embed(x.view(-1, 3, 2)), use_reentrant=False))[
            :, 0
        ]


class RootMeanSquare(nn.Module):
    """Normalizes in float32, as language models do."""

    def forward(self, x):
        wide = x.to(torch.float32)
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


class Half(nn.Module):
    """Multiplies in bfloat16."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(16, 16)

    def forward(self, x):
        weight = self.inner.weight.to(torch.bfloat16)
        return (x.to(torch.bfloat16) @ weight).to(x.dtype)


def images():
    return nn.Sequential(
        *(nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 8, 2, padding=1), nn.BatchNorm2d(8), nn.ReLU()),
        *(nn.MaxPool2d(2, 1), nn.Dropout(0.2), nn.Flatten(), nn.LazyLinear(3)),
    )


ORDINARY = {
    "images": images,
    "attention": Attention,
    "float32 inside": lambda: nn.Sequential(
        nn.Linear(6, 16), RootMeanSquare(), nn.Linear(16, 16), RootMeanSquare(), nn.Linear(16, 3)
    ),
    "bfloat16 inside": lambda: nn.Sequential(nn.Linear(6, 16), Half(), nn.Tanh(), nn.Linear(16, 3)),
    "dead": lambda: nn.Sequential(nn.Linear(6, 8), nn.Hardtanh(50, 51), nn.Linear(8, 3)),
}


@pytest.mark.parametrize("mode", ["train", "frozen", "eval"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_networks_are_accepted(name, dtype, mode):
    torch.manual_seed(0)
    model = ORDINARY[name]()
    model(data(torch.float32)[0])
    model = model.to(dtype)
    for kind in ("fisher", "ggn", "hessian"):
        curvature = operator(model, "cross_entropy", data(dtype), kind, mode)
        ones = torch.ones(curvature.shape[0], dtype=dtype)
        assert (curvature @ ones).isfinite().all()


class Wrong(nn.Module):
    """PyTorch's fused function of weight normalization, called directly."""

    def __init__(self):
        super().__init__()
        self.v, self.length = nn.Parameter(torch.randn(8, 8)), nn.Parameter(torch.rand(8, 1))

    def forward(self, x):
        return torch.tanh(x @ torch._weight_norm(self.v, self.length, 0))


class WrongInSingle(Wrong):
    """The same, and not for float64."""

    def forward(self, x):
        assert x.dtype != torch.float64
        return super().forward(x)


@pytest.mark.parametrize(
    ("layer", "dtype"),
    [
        (Wrong, torch.float64),
        (Wrong, torch.float32),
        (Wrong, torch.bfloat16),
        (WrongInSingle, torch.float32),
    ],
)
def test_wrong_second_derivative_is_refused_by_every_call(layer, dtype):
    torch.manual_seed(0)
    model = Net(layer()).to(dtype)
    for call in CALLS.values():
        with pytest.raises(StateError, match="not those of a symmetric matrix"):
            call(model, "cross_entropy", data(dtype), "hessian")


def test_kind_that_is_not_symmetric_is_refused(monkeypatch):
    class Asymmetric(BatchCurvature):
        def times(self, vector):
            return vector.cumsum(0)

    monkeypatch.setattr(KINDS, "_items", dict(KINDS._items) if list(KINDS) else {})
    KINDS.register(name="test_asymmetric")(lambda at: Asymmetric())
    for call in CALLS.values():
        with pytest.raises(StateError, match="'test_asymmetric' must give the products of a symm"):
            call(Net(torch.tanh).double(), "cross_entropy", data(), "test_asymmetric")
