"""Noisy batch normalization against Algorithm 1 by loops, and as a citizen of PyTorch."""

import copy
import math
import pickle

import pytest
import torch
from tests.references.noisy import noisy_batch_norm
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import gradcheck, gradgradcheck

from normscope.errors import ArgumentTypeError, InputError
from normscope.layers import (
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    Noise,
    NoisyBatchNorm1d,
    NoisyBatchNorm2d,
    NoisyBatchNorm3d,
)
from normscope.layers.noisy import add_noise, draw

CASES = [
    (NoisyBatchNorm1d, BatchNorm1d, (6, 3)),
    (NoisyBatchNorm1d, BatchNorm1d, (6, 3, 5)),
    (NoisyBatchNorm2d, BatchNorm2d, (4, 3, 5, 2)),
    (NoisyBatchNorm3d, BatchNorm3d, (3, 2, 2, 3, 4)),
]
OFF = Noise(mean=0.0, std=1.0, mean_jitter=0.0, std_jitter=0.0)


def noise_of(seed, x):
    generator = torch.Generator().manual_seed(seed)
    return draw(Noise(), x.shape, dtype=x.dtype, device=x.device, generator=generator)


def trained(layer, shape, dtype=torch.float64):
    layer = layer.to(dtype)
    torch.manual_seed(0)
    nn.init.normal_(layer.weight)
    nn.init.normal_(layer.bias)
    return layer, torch.randn(shape, dtype=dtype) * 2 + 1


@pytest.mark.parametrize(("noisy", "_plain", "shape"), CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noisy_output_and_gradients_follow_algorithm_1(noisy, _plain, shape, dtype):
    layer, x = trained(noisy(shape[1], generator=5), shape, dtype)
    x.requires_grad_()
    y = layer(x)
    expected = noisy_batch_norm(x, layer.weight, layer.bias, layer.eps, *noise_of(5, x))
    tolerance = {"rtol": 1e-12, "atol": 1e-12} if dtype == torch.float64 else {}
    torch.testing.assert_close(y, expected, **tolerance)
    gradient = torch.randn_like(y)
    sources = (x, layer.weight, layer.bias)
    ours = torch.autograd.grad(y, sources, gradient)
    theirs = torch.autograd.grad(expected, sources, gradient)
    tolerance = (
        {"rtol": 1e-10, "atol": 1e-10} if dtype == torch.float64 else {"rtol": 1e-4, "atol": 1e-5}
    )
    torch.testing.assert_close(ours, theirs, **tolerance)


@pytest.mark.parametrize(("noisy", "plain", "shape"), CASES)
def test_noisy_without_noise_is_batch_norm(noisy, plain, shape):
    layer, x = trained(noisy(shape[1], noise=OFF), shape, torch.float32)
    other = plain(shape[1])
    other.load_state_dict(layer.state_dict())
    assert torch.equal(layer(x), other(x))
    assert torch.equal(layer.running_var, other.running_var)


@pytest.mark.parametrize(("noisy", "plain", "shape"), CASES)
def test_noisy_in_eval_mode_is_batch_norm(noisy, plain, shape):
    layer, x = trained(noisy(shape[1], generator=0), shape)
    layer(x)
    other = plain(shape[1]).double()
    other.load_state_dict(layer.state_dict())
    state = layer.generator.get_state()
    assert torch.equal(layer.eval()(x), other.eval()(x))
    assert torch.equal(layer.generator.get_state(), state)


def test_noise_differs_between_steps_samples_and_positions():
    layer = NoisyBatchNorm2d(2, generator=1)
    x = torch.randn(1, 2, 3, 3).expand(4, -1, -1, -1)
    first, second = layer(x), layer(x)
    assert not torch.equal(first, second)
    assert len(first[:, 0, 0, 0].unique()) == 4
    constant = NoisyBatchNorm2d(2, generator=1)(torch.zeros(2, 2, 3, 3))
    assert len(constant.unique()) == constant.numel()


def test_noise_comes_after_the_learned_map():
    layer = NoisyBatchNorm1d(2, generator=2)
    nn.init.zeros_(layer.weight)
    nn.init.constant_(layer.bias, 10.0)
    x = torch.randn(50, 2)
    factor, shift = noise_of(2, x)
    torch.testing.assert_close(layer(x), factor * 10 + shift)


def test_noisy_gradcheck():
    layer, x = trained(NoisyBatchNorm1d(2), (5, 2))
    x.requires_grad_()

    def output(x, weight, bias):
        return torch.func.functional_call(
            copy.deepcopy(layer), {"weight": weight, "bias": bias}, (x,)
        )

    layer.generator = torch.Generator().manual_seed(3)  # each call copies it: the same noise
    inputs = (x, layer.weight, layer.bias)
    assert gradcheck(output, inputs)
    assert gradgradcheck(output, inputs)


def test_add_noise_gradient_is_the_factor():
    a = torch.randn(4, 3, requires_grad=True)
    generator = torch.Generator().manual_seed(4)
    (gradient,) = torch.autograd.grad(add_noise(a, Noise(), generator).sum(), a)
    assert torch.equal(gradient, noise_of(4, a)[0])


def test_seed_makes_layers_agree_and_the_default_generator_is_left_alone():
    x = torch.randn(8, 3)
    state = torch.get_rng_state()
    layers = [NoisyBatchNorm1d(3, generator=7) for _ in range(2)]
    assert torch.equal(layers[0](x), layers[1](x))
    assert torch.equal(torch.get_rng_state(), state)


def test_shared_generator_and_default_generator_are_used():
    x = torch.randn(8, 3)
    shared = torch.Generator().manual_seed(7)
    first = NoisyBatchNorm1d(3, generator=shared)(x)
    assert not torch.equal(first, NoisyBatchNorm1d(3, generator=shared)(x))
    assert torch.equal(first, NoisyBatchNorm1d(3, generator=7)(x))
    torch.manual_seed(7)
    assert torch.equal(first, NoisyBatchNorm1d(3)(x))


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))]
)
def test_copied_layer_goes_on_with_the_same_noise_on_its_own(duplicate):
    layer = NoisyBatchNorm1d(3, generator=7)
    x = torch.randn(8, 3)
    layer(x)
    twin = duplicate(layer)
    first = layer(x)
    assert torch.equal(twin(x), first)
    assert twin.generator is not layer.generator
    assert twin.noise == layer.noise


def test_copied_model_keeps_one_generator_shared():
    shared = torch.Generator().manual_seed(0)
    model = nn.Sequential(*(NoisyBatchNorm1d(3, generator=shared) for _ in range(2)))
    twin = copy.deepcopy(model)
    assert twin[0].generator is twin[1].generator is not shared


@pytest.mark.parametrize(("noisy", "plain", "shape"), CASES)
def test_noisy_state_dict_is_that_of_batch_norm(noisy, plain, shape):
    layer = noisy(shape[1], generator=0)
    assert list(layer.state_dict()) == list(plain(shape[1]).state_dict())
    layer.load_state_dict(plain(shape[1]).state_dict())


def test_noisy_is_a_batch_norm_and_takes_its_arguments():
    layer = NoisyBatchNorm2d(4, 1e-3, 0.2, False, noise=Noise(mean=0.1))
    assert isinstance(layer, BatchNorm2d | nn.BatchNorm2d)
    assert (layer.eps, layer.momentum, layer.affine) == (1e-3, 0.2, False)
    assert "eps=0.001" in repr(layer)
    assert "noise=Noise(mean=0.1" in repr(layer)


def test_noisy_survives_checkpointing():
    layer = NoisyBatchNorm1d(3)
    x = torch.randn(6, 3, requires_grad=True)
    torch.manual_seed(0)
    direct = torch.autograd.grad(layer(x).square().sum(), x)
    torch.manual_seed(0)
    y = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)
    assert torch.equal(direct[0], torch.autograd.grad(y.square().sum(), x)[0])


def test_noisy_refuses_wrong_noise_and_generator():
    with pytest.raises(ArgumentTypeError, match="Noise"):
        NoisyBatchNorm1d(3, noise=0.5)
    for generator in ("0", 1.5, True):
        with pytest.raises(ArgumentTypeError, match="generator"):
            NoisyBatchNorm1d(3, generator=generator)
    for seed in (2**70, 2**64, -(2**63) - 1):
        with pytest.raises(InputError, match="seed"):
            NoisyBatchNorm1d(3, generator=seed)
    NoisyBatchNorm1d(3, generator=2**64 - 1)
    NoisyBatchNorm1d(3, generator=-(2**63))


def test_noise_moments_through_the_layer():
    """Over seeds, the output of a unit has the mean and variance that Algorithm 1 implies."""
    x = torch.randn(200, 50, generator=torch.Generator().manual_seed(0))
    outputs = torch.stack([NoisyBatchNorm1d(50, generator=seed)(x) for seed in range(100)])
    samples = outputs.mean(1).flatten()  # a unit's shift plus 200 jitters averaged
    assert abs(samples.mean()) < 4 * samples.std() / math.sqrt(len(samples))
    assert samples.var().item() == pytest.approx(0.25 / 3 + (0.01 + 0.01 / 3) / 200, rel=0.05)
    spread = outputs.var(1, unbiased=False).flatten()
    expected = (1 + 1.25 + 1.25**2) / 3 + 0.01 + 0.01 / 3  # E[sigma^2] + r_sigma^2 + r_mu^2/3
    assert spread.mean().item() == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_output_has_noise_of_full_precision(dtype):
    layer = NoisyBatchNorm1d(3, generator=0)
    x = torch.randn(64, 3).to(dtype)
    y = layer(x)
    assert y.dtype == dtype
    factor, shift = noise_of(0, x.float())
    a = BatchNorm1d(3)(x)
    assert torch.equal(y, torch.addcmul(shift, factor, a.float()).to(dtype))


def test_noisy_under_autocast():
    layer = NoisyBatchNorm1d(3, generator=0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(nn.Linear(3, 3)(torch.randn(8, 3)))
    assert y.dtype == torch.bfloat16
    y.sum().backward()
    assert layer.weight.grad.dtype == torch.float32


def test_noisy_keeps_channels_last():
    x = torch.randn(4, 3, 5, 5)
    last = x.to(memory_format=torch.channels_last)
    y = NoisyBatchNorm2d(3, generator=0)(last)
    assert y.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(y, NoisyBatchNorm2d(3, generator=0)(x))


def test_noisy_takes_non_contiguous_input():
    x = torch.randn(3, 8).t()
    expected = NoisyBatchNorm1d(3, generator=0)(x.contiguous())
    torch.testing.assert_close(NoisyBatchNorm1d(3, generator=0)(x), expected)


def test_func_grad_sees_the_same_noise_as_autograd():
    layer = NoisyBatchNorm1d(3)
    x = torch.randn(6, 3, requires_grad=True)
    torch.manual_seed(1)
    (expected,) = torch.autograd.grad(layer(x).pow(3).sum(), x)
    torch.manual_seed(1)
    ours = torch.func.grad(lambda x: layer(x).pow(3).sum())(x.detach())
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)


def test_vmap_draws_for_every_example():
    layer = NoisyBatchNorm1d(3)
    x = torch.randn(6, 3).expand(4, -1, -1)
    y = torch.func.vmap(layer, randomness="different")(x)
    assert len(y[:, 0, 0].unique()) == 4
    y = torch.func.vmap(layer, randomness="same")(x)
    assert len(y[:, 0, 0].unique()) == 1


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own, on first use
def test_forward_mode_derivative_is_the_factor():
    a = torch.randn(4, 3)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(a, torch.ones_like(a))
        y = add_noise(dual, Noise(), torch.Generator().manual_seed(4))
        tangent = torch.autograd.forward_ad.unpack_dual(y).tangent
    assert torch.equal(tangent, noise_of(4, a)[0])


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # the compiler's own look
@pytest.mark.parametrize("seed", [None, 0])
@pytest.mark.usefixtures("fresh_compiler")
def test_compiled_noisy_has_noise_of_the_right_size(seed):
    layer = NoisyBatchNorm1d(3, generator=seed)
    # Only the default generator's draws can be traced.
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=seed is None)
    torch.manual_seed(0)
    x = torch.zeros(3000, 3)
    x[::2] = 1
    disturbed = compiled(x)
    shift = (disturbed[::2] + disturbed[1::2]).mean(0) / 2
    assert (shift.abs() > 1e-3).all()
    assert (shift.abs() < 0.52).all()
    assert ((disturbed[::2] - disturbed[1::2]).mean(0) / 2 > 0.98).all()
    assert not torch.equal(disturbed, compiled(x))


@pytest.mark.filterwarnings("ignore:Converting a tensor to a Python")  # batch norm's look at sizes
@pytest.mark.filterwarnings("ignore:`torch.jit.trace")
def test_traced_noisy_draws_anew_for_every_activation():
    traced = torch.jit.trace(NoisyBatchNorm1d(3), torch.randn(64, 3), check_trace=False)
    x = torch.randn(64, 3)
    difference = traced(x) - traced(x)
    jitter = difference - difference.mean(0)  # what is left without each unit's own shift
    assert (jitter.std(0) > 0.05).all()
    units = NoisyBatchNorm1d(3, noise=Noise(mean=0.0, std=1.0))
    traced = torch.jit.trace(units, x, check_trace=False)
    assert (traced(x) != traced(x)).all()  # nothing but the activations' own noise


def test_noisy_works_with_fake_tensors():
    with FakeTensorMode():
        assert NoisyBatchNorm1d(3)(torch.empty(8, 3)).shape == (8, 3)
