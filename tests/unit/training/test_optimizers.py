import pickle

import numpy as np
import pytest
import torch
from torch import nn

from normscope.errors import ArgumentTypeError, InputError
from normscope.training.optimizers import bound_optimizer, sgd
from normscope.training.update import take_update


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


def test_bound_optimizer_refuses_what_cannot_train_the_model():
    model = nn.Linear(2, 2)
    with pytest.raises(InputError, match="not the model's"):
        bound_optimizer(torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1), model)
    with pytest.raises(ArgumentTypeError, match="got float"):
        bound_optimizer(0.1, model)
    with pytest.raises(ArgumentTypeError, match="got NoneType"):
        bound_optimizer(lambda parameters: None, model)
    with pytest.raises(ArgumentTypeError, match="LBFGS"):
        bound_optimizer(torch.optim.LBFGS, model)
    with pytest.raises(InputError, match="requires_grad"):
        bound_optimizer(sgd(0.1), model.requires_grad_(False))


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
    take_update(optimizer)
    assert parameter.tolist() == [0.5] * 100
