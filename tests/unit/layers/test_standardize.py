"""The closed form: against the dense Jacobian, autograd of the definition, finite differences."""

from __future__ import annotations

import pytest
import torch
import torch.multiprocessing
from tests.references import batch_norm as reference
from tests.references import batch_norm_processes as processes
from torch import func
from torch.autograd import forward_ad, gradcheck, gradgradcheck

from normscope.errors import ArgumentTypeError, StateError
from normscope.layers import BatchNorm1d
from normscope.layers.batch_norm_function import batch_norm
from normscope.layers.standardize import (
    LocalBatch,
    channel_axes,
    resolved_group,
    standardize,
    standardize_by_definition,
)

# The first use of forward mode makes PyTorch script its own decompositions.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")

SHAPES = [(2, 3), (6, 3), (4, 2, 3), (2, 3, 2, 2), (2, 2, 2, 1, 2)]


def _double(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def _closed_form(x, eps=1e-3):
    return standardize(x, eps, LocalBatch.of(x))


def _definition(x, eps=1e-3):
    return standardize_by_definition(x, eps, LocalBatch.of(x))


@pytest.mark.parametrize("shape", SHAPES)
def test_results_equal_those_of_var_and_mean(shape):
    x = _double(*shape)
    standardized, mean, variance = _closed_form(x)
    axes = channel_axes(x.dim())
    torch.testing.assert_close(mean, x.mean(axes, keepdim=True), rtol=0, atol=1e-14)
    expected = x.var(axes, unbiased=False, keepdim=True)
    torch.testing.assert_close(variance, expected, rtol=1e-13, atol=0)
    expected = reference.normalized(x, None, None, 1e-3)
    torch.testing.assert_close(standardized, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("shape", SHAPES)
def test_gradient_equals_dense_jacobian(shape):
    x, g = _double(*shape).requires_grad_(), _double(*shape, seed=1)
    (gradient,) = torch.autograd.grad(_closed_form(x)[0], x, g)
    ones = torch.ones(shape[1], dtype=torch.float64)
    expected = reference.input_gradient(x.detach(), ones, g, 1e-3)
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("shape", SHAPES)
def test_first_and_second_derivatives_pass_finite_differences(shape):
    x = _double(*shape).requires_grad_()
    assert gradcheck(_closed_form, (x,), check_forward_ad=True, check_batched_forward_grad=True)
    assert gradgradcheck(_closed_form, (x,), check_fwd_over_rev=True)


def _third_order(function, x, weights):
    """Gradient of a scalar made of second derivatives, all three results taking part."""
    value = sum((r.pow(3) * w).sum() for r, w in zip(function(x), weights, strict=True))
    (first,) = torch.autograd.grad(value, x, create_graph=True)
    (second,) = torch.autograd.grad(first.sin().sum(), x, create_graph=True)
    return torch.autograd.grad(second.square().sum(), x)[0]


def test_third_derivative_equals_that_of_the_definition():
    x = _double(6, 3).requires_grad_()
    weights = [_double(6, 3, seed=1), _double(1, 3, seed=2), _double(1, 3, seed=3)]
    expected = _third_order(_definition, x, weights)
    gradient = _third_order(_closed_form, x, weights)
    torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-9)


def test_gradient_through_a_forward_mode_tangent_equals_that_of_the_definition():
    x, tangent, weights = _double(6, 3).requires_grad_(), _double(6, 3, seed=1), _double(6, 3)

    def gradient(function):
        with forward_ad.dual_level():
            output = function(forward_ad.make_dual(x, tangent))[0]
            moved = forward_ad.unpack_dual(output).tangent
            result = torch.autograd.grad((moved * weights).sin().sum(), x)[0]
            return forward_ad.unpack_dual(result).primal

    expected = gradient(_definition)
    torch.testing.assert_close(gradient(_closed_form), expected, rtol=1e-11, atol=1e-11)


def _nested_jvp(function):
    along, across = _double(4, 2, seed=2), _double(4, 2, seed=3)

    def inner(x):
        return func.jvp(function, (x,), (along,))[1]

    return lambda x: func.jvp(inner, (x,), (across,))[1]


TRANSFORMS = {
    "jacrev(jacrev)": lambda f: func.jacrev(func.jacrev(f)),
    "jacfwd(jacrev)": lambda f: func.jacfwd(func.jacrev(f)),
    "jacrev(jacfwd)": lambda f: func.jacrev(func.jacfwd(f)),
    "jacfwd(jacfwd)": lambda f: func.jacfwd(func.jacfwd(f)),
    "jvp(jvp)": lambda f: _nested_jvp(f),
    "jacrev(jacrev(grad))": lambda f: func.jacrev(func.jacrev(func.grad(lambda x: f(x).sum()))),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_nested_transforms_equal_those_of_the_definition(name):
    x, weights = _double(4, 2), _double(4, 2, seed=1)

    def of(function):
        return lambda x: sum(
            (weights * function(x)[0].pow(3)).sum(0) + r.sum(0) for r in function(x)
        )

    expected = TRANSFORMS[name](of(_definition))(x)
    result = TRANSFORMS[name](of(_closed_form))(x)
    torch.testing.assert_close(result, expected, rtol=1e-10, atol=1e-10)


def test_vmap_over_the_batch_of_batches_equals_a_loop():
    many = _double(3, 5, 2, 4)
    batched = func.vmap(_closed_form)(many)
    for results, looped in zip(batched, zip(*map(_closed_form, many), strict=True), strict=True):
        torch.testing.assert_close(results, torch.stack(looped), rtol=0, atol=1e-14)


def test_vmap_over_an_inner_axis_of_the_gradient_equals_a_loop():
    many = _double(5, 2, 3)
    gradient = func.grad(lambda x: _closed_form(x)[0].pow(3).sum())
    batched = func.vmap(gradient, in_dims=2, out_dims=2)(many)
    looped = torch.stack([gradient(many[..., i]) for i in range(3)], dim=2)
    torch.testing.assert_close(batched, looped, rtol=0, atol=1e-13)


@pytest.mark.parametrize("by", [_closed_form, _definition])
def test_large_mean_costs_no_digits_in_single_precision(by):
    x = 1e4 + 1e-2 * torch.randn(256, 8, generator=torch.Generator().manual_seed(0))
    standardized, mean, variance = by(x, eps=1e-8)
    exact, exact_mean, exact_variance = by(x.double(), eps=1e-8)
    torch.testing.assert_close(standardized.double(), exact, rtol=0, atol=5e-6)
    torch.testing.assert_close(variance.double(), exact_variance, rtol=1e-5, atol=0)
    torch.testing.assert_close(mean.double(), exact_mean, rtol=6e-8, atol=0)  # half a unit


def test_equal_values_standardize_to_zero_with_finite_gradient():
    x = torch.full((7, 3), 0.1, requires_grad=True)
    standardized, _, variance = _closed_form(x, eps=1e-5)
    standardized.sum().backward()
    assert standardized.abs().max() < 1e-5
    assert (variance >= 0).all()
    assert torch.isfinite(x.grad).all()


def test_backward_of_one_result_alone_needs_no_other():
    x = _double(5, 2).requires_grad_()
    (gradient,) = torch.autograd.grad(_closed_form(x)[1].sum(), x)
    torch.testing.assert_close(gradient, torch.full_like(gradient, 1 / 5))


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What each of two gloo processes computed."""
    folder = tmp_path_factory.mktemp("processes")
    torch.multiprocessing.spawn(processes.run, args=(str(folder),), nprocs=2)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.fixture(scope="module")
def others(results):
    """The results beside the main comparison."""
    return [result["others"] for result in results]


def _tolerance(name):
    return 1e-12 if name.endswith("double") else 1e-6


def _expected(name):
    """One process, in double precision unless that is what is compared."""
    x, g = processes.whole_batch(name)
    layer = processes.layer_for(name, None).double()
    return processes.step(layer, x.double(), g.double())


# Second derivatives are compared in double precision: a formula is right or wrong.
DOUBLE = [name for name in processes.CASES if name.endswith("double")]
PARTS = [(name, what) for name in processes.CASES for what in ("output", "input_gradient")]
SUMS = [(name, what) for name in processes.CASES for what in ("weight_gradient", "bias_gradient")]


@pytest.mark.parametrize(("name", "what"), PARTS + [(name, "second_input") for name in DOUBLE])
def test_parts_together_equal_the_whole_batch(name, what, results):
    together = torch.cat([result[name][what] for result in results]).double()
    expected = _expected(name)[what]
    scale = max(1.0, expected.abs().max().item())
    torch.testing.assert_close(together, expected, rtol=0, atol=_tolerance(name) * scale)


@pytest.mark.parametrize(("name", "what"), SUMS + [(name, "second_weight") for name in DOUBLE])
def test_parameter_gradients_stay_local_and_sum_to_the_whole(name, what, results):
    parts = [result[name][what].double() for result in results]
    expected = _expected(name)[what]
    scale = max(1.0, expected.abs().max().item())
    torch.testing.assert_close(sum(parts), expected, rtol=0, atol=_tolerance(name) * scale)
    if what == "weight_gradient":
        assert not torch.allclose(parts[0], parts[1])


@pytest.mark.parametrize("name", processes.CASES)
@pytest.mark.parametrize("what", ["running_mean", "running_var", "num_batches_tracked"])
def test_running_statistics_are_those_of_the_whole_batch_everywhere(name, what, results):
    first, second = (result[name][what] for result in results)
    assert torch.equal(first, second)
    expected = _expected(name)[what]
    torch.testing.assert_close(
        first.to(expected.dtype), expected, rtol=_tolerance(name), atol=_tolerance(name)
    )


def test_two_parts_normalized_apart_would_differ():
    """The comparison above can fail: without sharing it does."""
    x, g = processes.whole_batch("unequal_double")
    apart = processes.step(processes.layer_for("unequal_double", None), x[:5], g[:5])
    assert (apart["output"] - _expected("unequal_double")["output"][:5]).abs().max() > 0.1


def test_deep_copy_shares_its_group_and_synchronises(others):
    assert all(other["copy_shares_group"] for other in others)
    together = torch.cat([other["x"] for other in others])
    expected = batch_norm(together, training=True)
    output = torch.cat([other["copied_output"] for other in others])
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-12)


def test_group_of_one_is_no_group(others):
    for other in others:
        expected = batch_norm(other["x"], training=True)
        torch.testing.assert_close(other["alone"], expected, rtol=0, atol=1e-12)


def test_group_of_others_is_refused(others):
    for other in others:
        assert other["outsider"].startswith(("StateError", "ArgumentTypeError"))
        assert "process_group" in other["outsider"]


def test_vmap_and_grad_synchronise(others):
    together = torch.cat([other["x"] for other in others])
    both = torch.stack([together, 2 * together + together**2])
    expected = torch.stack([batch_norm(x, training=True) for x in both])
    output = torch.cat([other["vmapped"] for other in others], dim=1)
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-12)
    gradient = torch.func.grad(lambda x: batch_norm(x, training=True).pow(3).sum())(together)
    result = torch.cat([other["gradient"] for other in others])
    torch.testing.assert_close(result, gradient, rtol=0, atol=1e-12)


def test_forward_mode_is_refused(others):
    for other in others:
        assert "StateError: statistics shared by processes have no forward-mode" in other["jvp"]


def test_one_value_in_all_processes_together_is_refused(others):
    for other in others:
        assert "Expected more than 1 value per channel" in other["single_value"]


def test_compiled_layer_synchronises(others):
    together = torch.cat([other["x"] for other in others])
    output = torch.cat([other["compiled"] for other in others])
    expected = batch_norm(together, training=True)
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-12)


def test_evaluation_does_not_communicate(others):
    assert others[0]["eval"].shape == (4, 3)
    expected = batch_norm(others[0]["x"], training=True)
    torch.testing.assert_close(others[0]["eval_untracked"], expected, rtol=0, atol=1e-12)


def test_training_before_the_processes_met_is_an_error():
    layer = BatchNorm1d(3, process_group="world")
    with pytest.raises(StateError, match=r"torch\.distributed is not initialised"):
        layer(torch.randn(4, 3))
    assert layer.eval()(torch.randn(4, 3)).shape == (4, 3)


@pytest.mark.parametrize("wrong", ["all", 3, object()])
def test_choice_that_is_no_group_is_an_error(wrong):
    with pytest.raises(ArgumentTypeError, match="process_group must be None, 'world'"):
        BatchNorm1d(3, process_group=wrong)


def test_no_choice_needs_no_processes():
    assert resolved_group(None) is None
