"""Closed-form losses and gradients, side by side, against autograd one by one."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from normscope.learning_rate.last_layer_training import losses_and_gradients
from normscope.problem.loss import cross_entropy, squared_error
from normscope.problem.problem import Problem

SAMPLES, CANDIDATES, CLASSES = 6, 4, 3


def outputs(*positions):
    """(candidates, samples, positions, classes)."""
    torch.manual_seed(0)
    return torch.randn(CANDIDATES, SAMPLES, *positions, CLASSES, dtype=torch.float64)


def in_columns(given):
    return given.flatten(1, -2).transpose(1, 2)


def labels():
    return torch.tensor([0, 1, 2, 0, 1, 1])


def values():
    return torch.randn(SAMPLES, CLASSES, dtype=torch.float64)


def one_by_one(loss, given, target):
    """Losses and gradients of each candidate by itself."""
    found = []
    for candidate in given:
        leaf = candidate.clone().requires_grad_()
        value = loss(leaf, target)
        found.append((value.item(), torch.autograd.grad(value, leaf)[0]))
    losses, gradients = zip(*found, strict=True)
    return torch.tensor(losses, dtype=torch.float64), in_columns(torch.stack(gradients))


def uses_autograd(function):
    return "_by_autograd" in function.__qualname__


def compared(loss, given, target):
    problem = Problem(nn.Linear(2, CLASSES), loss, (torch.zeros(SAMPLES, 2), target))
    found = losses_and_gradients(problem, given[0], target)
    for computed, expected in zip(
        found(in_columns(given)), one_by_one(loss, given, target), strict=True
    ):
        torch.testing.assert_close(computed, expected, rtol=1e-12, atol=1e-14)
    return found


@pytest.mark.parametrize(
    ("loss", "target"),
    [
        (cross_entropy, labels()),
        (functional.cross_entropy, labels()),
        (nn.CrossEntropyLoss(), labels()),
        (nn.CrossEntropyLoss(reduction="sum"), labels()),
        (squared_error, labels()),
        (squared_error, values()),
        (nn.MSELoss(), values()),
        (nn.MSELoss(reduction="sum"), values()),
        (nn.MSELoss(), functional.one_hot(labels(), CLASSES)),  # integers, but not labels
    ],
)
def test_known_losses_have_the_gradients_of_autograd(loss, target):
    assert not uses_autograd(compared(loss, outputs(), target))


@pytest.mark.parametrize(
    ("loss", "target"),
    [
        (nn.CrossEntropyLoss(label_smoothing=0.2), labels()),
        (nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]).double()), labels()),
        (cross_entropy, values().softmax(1)),
        (functional.smooth_l1_loss, values()),
    ],
)
def test_other_losses_are_differentiated(loss, target):
    assert uses_autograd(compared(loss, outputs(), target))


def test_outputs_with_positions_are_differentiated():
    def loss(output, target):
        return functional.cross_entropy(output.flatten(0, 1), target.flatten())

    target = labels().unsqueeze(1).expand(SAMPLES, 2)
    assert uses_autograd(compared(loss, outputs(2), target))


@pytest.mark.parametrize("size", [1e-4, 1.0, 300.0])  # its square is below or above a half's range
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("loss", [nn.MSELoss(), "cross_entropy"])
def test_losses_of_half_precision_keep_small_and_large_sums(dtype, loss, size):
    torch.manual_seed(0)
    samples = 80_000  # whose entropies alone sum to more than half precision can hold
    given = (size * torch.randn(2, CLASSES, samples)).to(dtype)
    target = torch.zeros(samples, CLASSES, dtype=dtype)
    if loss == "cross_entropy":
        target = torch.randint(CLASSES, (samples,))
    problem = Problem(nn.Linear(2, CLASSES), loss, (torch.zeros(samples, 2), target))
    losses, gradient = losses_and_gradients(problem, given[0].T, target)(given)
    assert losses.dtype == torch.float32
    assert gradient.dtype == dtype
    for found, each in zip(losses, given.double(), strict=True):
        wide = target if loss == "cross_entropy" else target.double()
        # the logarithms are half as precise; near log(3) bfloat16 rounds all of them alike
        assert found.item() == pytest.approx(problem.loss_of(each.T, wide).item(), rel=2**-8)


class Remembering(nn.Module):
    """A loss over the mean of those that it has seen."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.ones(()).double())

    def forward(self, output, target):
        value = functional.smooth_l1_loss(output, target) / self.seen.item()
        self.seen.mul_(0.5).add_(0.5 * value.detach())
        return value


def test_candidates_do_not_share_the_memory_of_a_loss():
    loss, target = Remembering(), values()
    problem = Problem(nn.Linear(2, CLASSES), loss, (torch.zeros(SAMPLES, 2), target))
    found = losses_and_gradients(problem, outputs()[0], target)
    for _ in range(2):  # nor do the steps
        losses, gradients = found(in_columns(outputs()))
        for place, each in enumerate(outputs()):
            (value,), (gradient,) = one_by_one(Remembering(), [each], target)
            torch.testing.assert_close(losses[place], value)
            torch.testing.assert_close(gradients[place], gradient)
    assert loss.seen == 1


def test_scores_beyond_the_range_of_numbers_have_no_finite_loss():
    found = losses_and_gradients(
        Problem(nn.Linear(2, CLASSES), "cross_entropy", (torch.zeros(SAMPLES, 2), labels())),
        outputs()[0],
        labels(),
    )
    factors = torch.tensor([1.0, 1e308, torch.inf, torch.nan]).view(4, 1, 1)
    losses, _ = found(in_columns(outputs() * factors))
    assert losses.isfinite().tolist()[0]
    assert not losses.isfinite()[2:].any()
