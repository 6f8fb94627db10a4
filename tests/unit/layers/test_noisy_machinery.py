"""Noisy batch normalization under autocast, other layouts, transforms and the compiler."""

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from normscope.layers.batch_norm import BatchNorm1d
from normscope.layers.noisy import Noise, NoisyBatchNorm1d, NoisyBatchNorm2d, add_noise, draw


def noise_of(seed, x):
    generator = torch.Generator().manual_seed(seed)
    return draw(Noise(), x.shape, dtype=x.dtype, device=x.device, generator=generator)


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
