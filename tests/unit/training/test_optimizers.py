import pickle

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import SGD

from normscope.errors import ArgumentTypeError, InputError
from normscope.training import sgd
from normscope.training.optimizers import bind_optimizer, take_step


def test_sgd_is_fused_where_it_can_be():
    assert sgd(0.1)(nn.Linear(2, 2).parameters()).defaults["fused"] is True
    complex_layer = nn.Linear(2, 2, dtype=torch.complex64)
    assert not sgd(0.1)(complex_layer.parameters()).defaults["fused"]


def test_sgd_factory_can_be_sent_to_another_process():
    factory = pickle.loads(pickle.dumps(sgd(0.2, momentum=0.5)))
    assert factory(nn.Linear(2, 2).parameters()).defaults["lr"] == 0.2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"learning_rate": -0.1}, "learning_rate"),
        ({"learning_rate": float("nan")}, "learning_rate"),
        ({"learning_rate": 0.1, "momentum": 1.0}, "momentum"),
        ({"learning_rate": 0.1, "nesterov": True}, "nesterov"),
        ({"learning_rate": 0.1, "weight_decay": -1.0}, "weight_decay"),
    ],
)
def test_sgd_refuses_values_out_of_range(arguments, words):
    with pytest.raises(InputError, match=words):
        sgd(**arguments)


def test_bind_optimizer_refuses_what_cannot_train_the_model():
    model = nn.Linear(2, 2)
    with pytest.raises(InputError, match="not the model's"):
        bind_optimizer(torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1), model)
    with pytest.raises(ArgumentTypeError, match="got float"):
        bind_optimizer(0.1, model)
    with pytest.raises(ArgumentTypeError, match="got NoneType"):
        bind_optimizer(lambda parameters: None, model)
    with pytest.raises(ArgumentTypeError, match="LBFGS"):
        bind_optimizer(torch.optim.LBFGS, model)
    with pytest.raises(InputError, match="requires_grad"):
        bind_optimizer(sgd(0.1), model.requires_grad_(False))


@pytest.mark.parametrize("kind", [np.float64, np.float32, torch.tensor, np.array])
def test_sgd_keeps_numbers_of_any_kind_as_plain_ones(kind):
    factory = sgd(kind(0.25), momentum=kind(0.5), weight_decay=kind(0.125), nesterov=np.True_)
    (group,) = factory(nn.Linear(2, 2).parameters()).param_groups
    assert (group["lr"], group["momentum"], group["weight_decay"]) == (0.25, 0.5, 0.125)
    assert {type(group[name]) for name in ("lr", "momentum", "weight_decay")} == {float}
    assert group["nesterov"] is True


@pytest.mark.parametrize("value", ["0.1", None, [0.1], np.array([0.1, 0.2]), 1j])
@pytest.mark.parametrize("name", ["learning_rate", "momentum", "weight_decay"])
def test_sgd_refuses_what_is_not_a_number(name, value):
    with pytest.raises(ArgumentTypeError, match=f"{name} must be a number, got"):
        sgd(**{"learning_rate": 0.1, name: value})


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_half_precision_is_updated_in_every_entry(dtype, momentum):
    """The fused kernel of the CPU leaves most entries of half-precision parameters alone."""
    parameter = nn.Parameter(torch.ones(100, dtype=dtype))
    optimizer = sgd(0.5, momentum)([parameter])
    parameter.grad = torch.ones_like(parameter)
    take_step(optimizer)
    assert parameter.tolist() == [0.5] * 100


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))


def set_gradients(model: nn.Module, step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def test_step_leaves_parameters_without_gradient_until_they_have_one():
    models = network(), network()
    ours, theirs = (
        SGD(m.parameters(), lr=0.1, momentum=0.9, dampening=0.2, fused=fused)
        for m, fused in zip(models, (True, False), strict=True)
    )
    for step in range(4):
        for model in models:
            set_gradients(model, step)
            if step < 2:
                model[0].weight.grad = None
        take_step(ours)
        theirs.step()
    assert ours.param_groups[0]["fused"]
    for mine, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("late", [False, True])  # a first gradient that comes late: not fused
def test_step_serves_groups_with_their_own_rates(late):
    models = network(), network()
    ours, theirs = (
        SGD(
            [{"params": m[0].parameters(), "lr": 0.5}, {"params": m[2].parameters()}],
            lr=0.1,
            momentum=0.9,
            fused=fused,
        )
        for m, fused in zip(models, (True, False), strict=True)
    )
    for step in range(4):
        for model in models:
            set_gradients(model, step)
            if late and step == 0:
                model[0].weight.grad = None
        take_step(ours)
        theirs.step()
    assert all(group["fused"] for group in ours.param_groups)
    for mine, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("late", [False, True])
def test_step_calls_hooks_and_counts_for_schedulers(late):
    model, called = network(), []
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
    optimizer.register_step_post_hook(lambda *arguments: called.append("hook"))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    for step in range(2):
        set_gradients(model, step)
        if late and step == 0:
            model[0].weight.grad = None
        take_step(optimizer)
        scheduler.step()  # warns, which is an error here, if it saw no step of the optimizer
    assert called == ["hook", "hook"]
    assert optimizer.param_groups[0]["lr"] == 0.05


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_step_takes_sparse_gradients_as_plain_sgd_does(momentum):
    models = [nn.Sequential(nn.Embedding(9, 3, sparse=True), nn.Linear(3, 2)) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    ours = sgd(0.1, momentum=momentum)(models[0].parameters())
    theirs = SGD(models[1].parameters(), lr=0.1, momentum=momentum)
    for step in range(4):
        for model, optimizer, update_by in zip(
            models, (ours, theirs), (take_step, SGD.step), strict=True
        ):
            optimizer.zero_grad()
            model(torch.tensor([step, 2, 7])).square().sum().backward()
            assert model[0].weight.grad.is_sparse
            update_by(optimizer)
    for mine, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(mine, other)
