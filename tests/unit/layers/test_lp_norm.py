"""The l_p layers as modules: running statistics, options, errors, and PyTorch's machinery."""

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from tests.references.lp_norm import lp_norm
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from normscope.errors import ArgumentTypeError, InputError, ShapeError
from normscope.layers import LpNorm1d, LpNorm2d, LpNorm3d

LAYERS = [
    (LpNorm1d, nn.BatchNorm1d, (8, 3)),
    (LpNorm1d, nn.BatchNorm1d, (8, 3, 4)),
    (LpNorm2d, nn.BatchNorm2d, (4, 3, 5, 2)),
    (LpNorm3d, nn.BatchNorm3d, (3, 3, 2, 3, 2)),
]


@pytest.mark.parametrize(("layer", "native", "shape"), LAYERS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
def test_centred_order_two_is_batch_norm(layer, native, shape, dtype, tolerance):
    torch.manual_seed(0)
    ours, theirs = layer(3, p=2, centred=True, dtype=dtype), native(3, dtype=dtype)
    for module in (ours, theirs):
        nn.init.constant_(module.weight, 1.5)
        nn.init.constant_(module.bias, -0.5)
    x = torch.randn(shape, dtype=dtype).requires_grad_()
    y, expected = ours(x), theirs(x)
    torch.testing.assert_close(y, expected, rtol=tolerance, atol=tolerance)
    gradient = torch.randn_like(y)
    grads = [
        torch.autograd.grad(out, (x, module.weight, module.bias), gradient)
        for out, module in ((y, ours), (expected, theirs))
    ]
    torch.testing.assert_close(*grads, rtol=10 * tolerance, atol=10 * tolerance)


@pytest.mark.parametrize("p", [1, 2.5, math.inf])
@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("momentum", [0.1, 0.0, 1.0, None])
def test_running_statistics_average_the_batches(p, centred, momentum):
    torch.manual_seed(0)
    layer = LpNorm2d(3, p=p, centred=centred, momentum=momentum, dtype=torch.float64)
    mean, size = torch.zeros(3).double(), torch.ones(3).double()
    for step in range(1, 4):
        x = torch.randn(4, 3, 2, 2, dtype=torch.float64) + step
        layer(x)
        _, batch_mean, batch_size = lp_norm(x, layer.weight, layer.bias, p, centred, layer.eps)
        share = 1 / step if momentum is None else momentum
        mean, size = torch.lerp(mean, batch_mean, share), torch.lerp(size, batch_size, share)
    torch.testing.assert_close(layer.running_mean, mean.detach())
    torch.testing.assert_close(layer.running_scale, size.detach())
    assert layer.num_batches_tracked == 3
    before = copy.deepcopy(layer.state_dict())
    y = layer.eval()(x)
    shaped = (1, 3, 1, 1)
    torch.testing.assert_close(y, (x - mean.view(shaped)) / size.view(shaped))
    assert all(torch.equal(before[name], value) for name, value in layer.state_dict().items())


def test_eval_gradient_is_that_of_a_fixed_affine_map():
    layer = LpNorm1d(2, p=1).eval()
    layer.running_mean.copy_(torch.tensor([1.0, 2.0]))
    layer.running_scale.copy_(torch.tensor([2.0, 4.0]))
    x = torch.randn(1, 2, requires_grad=True)  # one value is enough here
    (gradient,) = torch.autograd.grad(layer(x).sum(), x)
    torch.testing.assert_close(gradient, torch.tensor([[0.5, 0.25]]))


def test_without_running_statistics_eval_uses_the_batch():
    layer = LpNorm1d(3, p=1, track_running_stats=False, affine=False)
    x = torch.randn(8, 3)
    assert list(layer.state_dict()) == []
    assert torch.equal(layer(x), layer.eval()(x))


def test_state_dict_names_and_round_trip():
    layer = LpNorm2d(3, p=math.inf)
    layer(torch.randn(4, 3, 2, 2))
    names = ["weight", "bias", "running_mean", "running_scale", "num_batches_tracked"]
    assert list(layer.state_dict()) == names
    fresh = LpNorm2d(3, p=math.inf)
    fresh.load_state_dict(layer.state_dict())
    x = torch.randn(4, 3, 2, 2)
    assert torch.equal(fresh.eval()(x), layer.eval()(x))


def test_reset_restores_the_start():
    layer = LpNorm1d(3)
    start = copy.deepcopy(layer.state_dict())
    layer(torch.randn(8, 3))
    nn.init.normal_(layer.weight)
    layer.reset_parameters()
    assert all(torch.equal(start[name], value) for name, value in layer.state_dict().items())


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_give_the_same_output(duplicate):
    layer = LpNorm1d(3, p=3)
    layer(torch.randn(8, 3))
    x = torch.randn(8, 3)
    twin = duplicate(layer)
    assert torch.equal(twin(x), layer(x))
    assert torch.equal(twin.running_scale, layer.running_scale)


@pytest.mark.parametrize("p", [1, 2, 3, math.inf])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_counts_in_float32(p, dtype):
    x = (torch.randn(512, 3) + 2).to(dtype)
    layer = LpNorm1d(3, p=p)
    reference = LpNorm1d(3, p=p)
    y = layer(x)
    assert y.dtype == dtype
    assert torch.equal(y, reference(x.float()).to(dtype))
    assert torch.equal(layer.running_scale, reference.running_scale)
    low = LpNorm1d(3, p=p).to(dtype)
    assert torch.equal(low(x), y)
    assert low.running_scale.dtype == dtype


def test_autocast_keeps_statistics_in_float32():
    layer = LpNorm1d(3, p=1)
    linear = nn.Linear(3, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(linear(torch.randn(8, 3)))
    assert y.dtype == torch.bfloat16
    assert layer.running_scale.dtype == torch.float32
    y.float().square().sum().backward()
    assert linear.weight.grad.isfinite().all()


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own, on first use
@pytest.mark.parametrize("p", [1, 2, 3, math.inf])
@pytest.mark.parametrize("centred", [False, True])
def test_func_transforms_agree_with_autograd(p, centred):
    layer = LpNorm1d(3, p=p, centred=centred, dtype=torch.float64)
    x = torch.randn(6, 3, dtype=torch.float64)

    def loss(x):
        return layer(x).pow(3).sum()

    leaf = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(leaf), leaf)
    torch.testing.assert_close(torch.func.grad(loss)(x), gradient)
    hessian = torch.autograd.functional.hessian(loss, x)
    for ours in (torch.func.hessian(loss)(x), torch.func.jacrev(torch.func.jacrev(loss))(x)):
        torch.testing.assert_close(ours, hessian, rtol=1e-8, atol=1e-8)
    direction = torch.randn_like(x)
    _, along = torch.func.jvp(loss, (x,), (direction,))
    torch.testing.assert_close(along, (gradient * direction).sum())


def test_transform_leaves_captured_statistics_and_moves_given_ones():
    layer = LpNorm1d(3, p=1)
    before = copy.deepcopy(layer.state_dict())
    x = torch.randn(5, 8, 3)
    torch.func.vmap(layer)(x)
    assert all(torch.equal(before[name], value) for name, value in layer.state_dict().items())
    params, buffers = torch.func.stack_module_state([copy.deepcopy(layer) for _ in range(5)])

    def run(params, buffers, x):
        y = torch.func.functional_call(layer, (params, buffers), (x,))
        return y, buffers

    y, moved = torch.func.vmap(run)(params, buffers, x)
    for i in range(5):
        alone = copy.deepcopy(layer)
        torch.testing.assert_close(y[i], alone(x[i]))
        torch.testing.assert_close(moved["running_scale"][i], alone.running_scale)
    assert torch.equal(layer.running_mean, before["running_mean"])


@pytest.mark.parametrize("p", [1, 3, math.inf])
@pytest.mark.usefixtures("fresh_compiler")
def test_compiled_layer_equals_eager(p):
    torch.manual_seed(0)
    layer, x = LpNorm1d(3, p=p), torch.randn(8, 3, requires_grad=True)
    twin = copy.deepcopy(layer)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    gradient = torch.randn(8, 3)
    y, expected = compiled(x), twin(x)
    torch.testing.assert_close(y, expected)
    ours, theirs = (torch.autograd.grad(out, x, gradient)[0] for out in (y, expected))
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(layer.state_dict(), twin.state_dict())


def test_measuring_in_eval_mode_and_no_grad_changes_nothing():
    layer = LpNorm1d(3)
    state, random = copy.deepcopy(layer.state_dict()), torch.get_rng_state()
    with torch.no_grad():
        layer.eval()(torch.ones(4, 3))
    assert all(torch.equal(state[name], value) for name, value in layer.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)


@pytest.mark.parametrize(
    ("layer", "shape", "wanted"),
    [
        (LpNorm1d, (3,), "2D or 3D"),
        (LpNorm1d, (2, 3, 4, 4), "2D or 3D"),
        (LpNorm2d, (2, 3), "4D"),
        (LpNorm3d, (2, 3, 4, 4), "5D"),
    ],
)
def test_wrong_dimensions_are_refused_as_by_torch(layer, shape, wanted):
    with pytest.raises(ShapeError, match=f"expected {wanted} input \\(got {len(shape)}D input\\)"):
        layer(3)(torch.zeros(shape))


@pytest.mark.parametrize("shape", [(1, 3), (1, 3, 1), (0, 3)])
def test_one_value_per_channel_is_refused_in_training(shape):
    with pytest.raises(ValueError, match="Expected more than 1 value per channel when training"):
        LpNorm1d(3)(torch.zeros(shape))
    assert LpNorm1d(3).eval()(torch.zeros(shape)).shape == shape


def test_wrong_channels_and_types_are_refused():
    with pytest.raises(ShapeError, match="expects 3 channels, got 4"):
        LpNorm1d(3)(torch.zeros(2, 4))
    with pytest.raises(ArgumentTypeError, match="floating-point"):
        LpNorm1d(3)(torch.zeros(2, 3, dtype=torch.int64))


@pytest.mark.parametrize("p", [0.5, 0, -1, -math.inf, math.nan])
def test_order_below_one_is_refused(p):
    with pytest.raises(InputError, match="at least 1"):
        LpNorm1d(3, p=p)


def test_wrong_options_are_refused():
    for p in ("1", None, True):
        with pytest.raises(ArgumentTypeError, match="number"):
            LpNorm1d(3, p=p)
    for eps in ("a", None, True):
        with pytest.raises(ArgumentTypeError, match="eps expects a finite number"):
            LpNorm1d(3, eps=eps)
    for eps in (-1e-5, math.nan, math.inf):
        with pytest.raises(InputError, match="eps"):
            LpNorm1d(3, eps=eps)


def test_repr_shows_the_options():
    expected = "LpNorm2d(3, p=inf, centred=True, eps=1e-05, momentum=0.1, affine=True"
    assert repr(LpNorm2d(3, p=math.inf, centred=True)).startswith(expected)


def test_numbers_of_numpy_are_numbers():
    layer = LpNorm1d(3, p=np.int64(2), eps=np.float32(0.5))
    assert (layer.p, layer.eps) == (2.0, 0.5)
    assert type(layer.p) is type(layer.eps) is float


def test_input_may_be_given_by_name():
    x = torch.randn(8, 3)
    assert torch.equal(LpNorm1d(3)(input=x), LpNorm1d(3)(x))


@pytest.mark.parametrize("p", [1, 2, 3, math.inf])
@pytest.mark.parametrize("training", [True, False])
def test_tracing_and_fake_tensors_work(p, training):
    x = torch.randn(8, 3)
    layer = LpNorm1d(3, p=p).train(training)
    graph = make_fx(copy.deepcopy(layer))(x)
    other = torch.randn(8, 3)
    torch.testing.assert_close(graph(other), layer(other))
    with FakeTensorMode():
        assert LpNorm1d(3, p=p).train(training)(torch.empty(8, 3)).shape == (8, 3)
