import pickle

import pytest
import torch
from torch import nn

from normscope.errors import ArgumentTypeError, InputError
from normscope.training.optimizers import bound_optimizer, sgd


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
