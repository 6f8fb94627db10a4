"""Our layers in the place of PyTorch's: same constructor, state, results, gradients and errors."""

from __future__ import annotations

import inspect
import itertools

import pytest
import torch
from torch import nn
from torch.testing._internal.common_modules import module_db

from normscope.layers import BatchNorm1d, BatchNorm2d, BatchNorm3d
from normscope.layers.batch_norm_function import batch_norm

PAIRS = {
    nn.BatchNorm1d: BatchNorm1d,
    nn.BatchNorm2d: BatchNorm2d,
    nn.BatchNorm3d: BatchNorm3d,
}
INFOS = [info for info in module_db if info.module_cls in PAIRS]
DTYPES = [torch.float32, torch.float64]


def _randomize(layer, seed):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in layer.state_dict().items():
            if tensor.is_floating_point():
                tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.5)
            assert name


def _twins(cls, *args, training=True, seed=0, fused=None, **kwargs):
    theirs, ours = cls(*args, **kwargs), PAIRS[cls](*args, **kwargs)
    _randomize(theirs, seed)
    ours.load_state_dict(theirs.state_dict())
    ours.fused = fused
    return theirs.train(training), ours.train(training)


def _run(layer, x):
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    output = layer(x)
    weights = torch.linspace(-1, 1, output.numel(), dtype=torch.float64).reshape(output.shape)
    (output * weights.to(output)).sum().backward()
    return [output.detach(), x.grad, *(p.grad for p in layer.parameters())]


def _assert_same(theirs, ours, x, atol):
    for expected, result in zip(_run(theirs, x), _run(ours, x), strict=True):
        torch.testing.assert_close(result, expected, rtol=0.05 * atol, atol=atol)
    for (name, expected), (other, result) in zip(
        theirs.state_dict().items(), ours.state_dict().items(), strict=True
    ):
        assert name == other
        torch.testing.assert_close(result, expected, rtol=0.05 * atol, atol=atol)


@pytest.mark.parametrize("fused", [None, False], ids=["default", "closed_form"])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("info", INFOS, ids=lambda info: info.name)
def test_layer_equals_torch_on_its_own_module_inputs(info, dtype, training, fused):
    torch.manual_seed(0)  # of the inputs PyTorch makes
    inputs = info.module_inputs_func(
        info, device="cpu", dtype=dtype, requires_grad=False, training=training
    )
    assert len(inputs) >= 6
    for case in inputs:
        arguments = case.constructor_input
        theirs, ours = _twins(
            info.module_cls,
            *arguments.args,
            **arguments.kwargs,
            dtype=dtype,
            training=training,
            fused=fused,
        )
        atol = 2e-5 if dtype == torch.float32 else 1e-12
        (x,) = case.forward_input.args
        _assert_same(theirs, ours, x, atol)


@pytest.mark.parametrize("info", INFOS, ids=lambda info: info.name)
def test_layer_raises_as_torch_on_its_own_error_inputs(info):
    cases = info.module_error_inputs_func(
        info, device="cpu", dtype=torch.float32, requires_grad=False, training=True
    )
    assert cases
    for case in cases:
        arguments = case.module_error_input.constructor_input
        layer = PAIRS[info.module_cls](*arguments.args, **arguments.kwargs)
        with pytest.raises(case.error_type, match=case.error_regex):
            layer(*case.module_error_input.forward_input.args)


@pytest.mark.parametrize("cls", PAIRS, ids=lambda cls: cls.__name__)
def test_constructor_is_torchs_with_process_group(cls):
    theirs = inspect.signature(cls).parameters
    ours = dict(inspect.signature(PAIRS[cls]).parameters)
    assert ours.pop("process_group").default is None
    assert list(ours) == list(theirs)
    for name, parameter in theirs.items():
        assert ours[name].default == parameter.default
        assert ours[name].kind == parameter.kind


@pytest.mark.parametrize("cls", PAIRS, ids=lambda cls: cls.__name__)
def test_layer_is_one_of_torchs_and_prints_like_it(cls):
    assert isinstance(PAIRS[cls](3), cls)
    assert repr(PAIRS[cls](3, momentum=None)) == repr(cls(3, momentum=None))
    assert "process_group='world'" in repr(PAIRS[cls](3, process_group="world"))


OPTIONS = list(
    itertools.product([True, False], [True, False], [0.1, 0.0, 1.0, None], ["train", "eval"])
)


@pytest.mark.parametrize("fused", [None, False], ids=["default", "closed_form"])
@pytest.mark.parametrize(("affine", "track", "momentum", "mode"), OPTIONS)
def test_every_option_equals_torch_over_several_batches(affine, track, momentum, mode, fused):
    options = {"affine": affine, "track_running_stats": track, "momentum": momentum}
    theirs, ours = _twins(
        nn.BatchNorm1d, 4, **options, dtype=torch.float64, training=mode == "train", fused=fused
    )
    for seed, shape in enumerate([(5, 4), (2, 4), (3, 4, 6)]):
        generator = torch.Generator().manual_seed(seed)
        x = 3 + 2 * torch.randn(shape, dtype=torch.float64, generator=generator)
        for layer in (theirs, ours):
            layer.zero_grad()
        _assert_same(theirs, ours, x, 1e-12)


@pytest.mark.parametrize("fused", [None, False], ids=["default", "closed_form"])
def test_running_statistics_without_counter_equal_torch(fused):
    theirs, ours = _twins(nn.BatchNorm1d, 3, fused=fused)
    theirs.num_batches_tracked = ours.num_batches_tracked = None
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    _assert_same(theirs, ours, x, 1e-6)


@pytest.mark.parametrize("cls", PAIRS, ids=lambda cls: cls.__name__)
def test_state_dict_loads_both_ways(cls):
    theirs, ours = cls(3), PAIRS[cls](3)
    _randomize(ours, 1)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert theirs.load_state_dict(ours.state_dict()).missing_keys == []
    fresh = PAIRS[cls](3)
    fresh.load_state_dict(theirs.state_dict())
    for name, tensor in ours.state_dict().items():
        assert torch.equal(fresh.state_dict()[name], tensor)


@pytest.mark.parametrize(
    ("layer", "shape", "message"),
    [
        (BatchNorm1d(3), (3,), "expected 2D or 3D input"),
        (BatchNorm1d(3), (2, 3, 4, 4), "expected 2D or 3D input"),
        (BatchNorm2d(3), (2, 3), "expected 4D input"),
        (BatchNorm3d(3), (2, 3, 4, 4), "expected 5D input"),
    ],
)
def test_wrong_dimensions_raise_torchs_error(layer, shape, message):
    with pytest.raises(ValueError, match=message):
        layer(torch.zeros(shape))


@pytest.mark.parametrize("fused", [None, False], ids=["default", "closed_form"])
@pytest.mark.parametrize("shape", [(1, 3), (1, 3, 1)])
def test_one_value_per_channel_raises_torchs_error_in_training_only(shape, fused):
    theirs, ours = _twins(nn.BatchNorm1d, 3, fused=fused)
    with pytest.raises(ValueError) as expected:  # noqa: PT011 (its words are compared below)
        theirs(torch.zeros(shape))
    with pytest.raises(ValueError) as raised:  # noqa: PT011
        ours(torch.zeros(shape))
    assert str(raised.value) == str(expected.value)
    assert ours.eval()(torch.zeros(shape)).shape == shape


@pytest.mark.parametrize("fused", [None, False], ids=["default", "closed_form"])
def test_wrong_number_of_channels_raises(fused):
    layer = BatchNorm1d(1)
    layer.fused = fused
    with pytest.raises(RuntimeError, match="should contain 5 elements not 1"):
        layer(torch.randn(4, 5))


@pytest.mark.parametrize("fused", [None, False], ids=["default", "closed_form"])
@pytest.mark.parametrize(("training", "eps"), [(True, 0.0), (True, -1.0), (False, -1.0)])
def test_eps_that_cannot_be_used_raises_torchs_error(training, eps, fused):
    arguments = (torch.randn(4, 2), torch.zeros(2), torch.ones(2), None, None, training, 0.1, eps)
    with pytest.raises(ValueError, match=f"but got {eps}") as expected:
        nn.functional.batch_norm(*arguments)
    with pytest.raises(ValueError, match=f"but got {eps}") as raised:
        batch_norm(*arguments, fused=fused)
    assert str(raised.value) == str(expected.value)


def test_closed_form_outside_of_training_needs_running_statistics():
    with pytest.raises(RuntimeError, match="running_mean and running_var must be given"):
        batch_norm(torch.randn(4, 2), fused=False)


def test_update_bn_of_weight_averaging_resets_and_refills_the_statistics():
    data = [torch.randn(8, 3, generator=torch.Generator().manual_seed(s)) for s in range(3)]
    theirs, ours = _twins(nn.BatchNorm1d, 3)
    for layer in (theirs, ours):
        torch.optim.swa_utils.update_bn(data, nn.Sequential(layer))
    torch.testing.assert_close(ours.running_mean, torch.stack([x.mean(0) for x in data]).mean(0))
    torch.testing.assert_close(ours.running_var, theirs.running_var)
    assert ours.num_batches_tracked == 3
