"""Statistics shared by two processes against one process with the whole batch."""

from __future__ import annotations

import pytest
import torch
import torch.multiprocessing
from tests.references import batch_norm_processes as processes

from normscope.errors import ArgumentTypeError, StateError
from normscope.layers.batch_norm import BatchNorm1d
from normscope.layers.batch_norm_function import batch_norm
from normscope.layers.standardize import resolved_group


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
