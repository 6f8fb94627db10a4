import pytest
import torch
from torch import nn
from torch.nn import functional

from normscope.problem import is_cross_entropy, is_squared_error, known_loss
from normscope.problem import loss as losses

SCORES = torch.zeros(4, 3)
LABELS = torch.tensor([0, 2, 1, 2])


class OwnEntropy(nn.CrossEntropyLoss):
    def forward(self, input, target):
        return super().forward(input, target).square()


class OwnSquares(nn.MSELoss):
    def forward(self, input, target):
        return super().forward(input, target).sqrt()


@pytest.mark.parametrize(
    "loss",
    [
        losses.cross_entropy,
        functional.cross_entropy,
        nn.CrossEntropyLoss(),
        nn.CrossEntropyLoss(torch.ones(3), label_smoothing=0.1, reduction="sum"),
    ],
)
def test_cross_entropy_is_recognized_however_it_is_given(loss):
    assert is_cross_entropy(loss)
    assert not is_squared_error(loss)


@pytest.mark.parametrize(
    "loss", [losses.squared_error, functional.mse_loss, nn.MSELoss(), nn.MSELoss(reduction="sum")]
)
def test_squared_error_is_recognized_however_it_is_given(loss):
    assert is_squared_error(loss)
    assert not is_cross_entropy(loss)


@pytest.mark.parametrize("loss", [OwnEntropy(), OwnSquares(), nn.NLLLoss(), nn.L1Loss(), None])
def test_subclasses_and_other_losses_are_neither(loss):
    assert not is_cross_entropy(loss)
    assert not is_squared_error(loss)


def test_subclass_of_the_cross_entropy_is_not_known():
    assert known_loss(nn.CrossEntropyLoss(), SCORES, LABELS) is not None
    assert known_loss(OwnEntropy(), SCORES, LABELS) is None
    assert known_loss(OwnSquares(), SCORES, SCORES) is None


@pytest.mark.parametrize("loss", [functional.mse_loss, nn.MSELoss()])
def test_targets_that_are_broadcast_make_a_mean_square_unknown(loss):
    assert known_loss(loss, SCORES, torch.zeros(4, 3)) is not None
    assert known_loss(loss, SCORES, torch.zeros(4, 1)) is None
    assert known_loss(loss, SCORES, torch.zeros(3)) is None
