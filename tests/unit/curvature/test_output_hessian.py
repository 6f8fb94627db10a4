import pytest
import torch
from torch import nn
from torch.nn import functional

from normscope.curvature import FactoredHessian
from normscope.curvature.output_hessian import (
    AutogradHessian,
    CrossEntropyHessian,
    ScaledIdentity,
    output_hessian,
)
from normscope.problem import loss as losses

LABELS = torch.tensor([0, 2, 1, 2])
SCORES = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
MAPS = torch.randn(2, 3, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
VALUES = torch.ones(4, 3, dtype=torch.float64)

KNOWN = {
    "function": (functional.cross_entropy, SCORES, LABELS),
    "module": (nn.CrossEntropyLoss(), SCORES, LABELS),
    "sum": (nn.CrossEntropyLoss(reduction="sum"), SCORES, LABELS),
    "smoothed": (nn.CrossEntropyLoss(label_smoothing=0.3), SCORES, LABELS),
    "ours": (losses.cross_entropy, SCORES, LABELS),
    "positions": (functional.cross_entropy, MAPS, LABELS.view(2, 2)),
    "mse": (functional.mse_loss, SCORES, VALUES),
    "mse module": (nn.MSELoss(), SCORES, VALUES),
    "mse sum": (nn.MSELoss(reduction="sum"), SCORES, VALUES),
    "squared error": (losses.squared_error, SCORES, VALUES),
    "squared error of labels": (losses.squared_error, SCORES, LABELS),
}


def doubled(loss, hook):
    """The loss times two, by a hook or by another forward."""
    if hook:
        loss.register_forward_hook(lambda module, inputs, value: 2 * value)
    else:
        plain = loss.forward
        loss.forward = lambda output, target: 2 * plain(output, target)
    return loss


UNKNOWN = {
    "weighted": (
        nn.CrossEntropyLoss(torch.tensor([1.0, 2.0, 3.0]).double()),
        SCORES,
        LABELS,
    ),
    "ignored": (nn.CrossEntropyLoss(ignore_index=2), SCORES, LABELS),
    "ignored by default": (functional.cross_entropy, SCORES, torch.tensor([0, -100, 1, 2])),
    "probabilities": (functional.cross_entropy, SCORES, SCORES.softmax(1)),
    "own": (lambda f, y: f.sin().square().mean(), SCORES, LABELS),
    "hooked": (doubled(nn.CrossEntropyLoss(), hook=True), SCORES, LABELS),
    "hooked mse": (doubled(nn.MSELoss(), hook=True), SCORES, VALUES),
    "replaced": (doubled(nn.CrossEntropyLoss(), hook=False), SCORES, LABELS),
    "replaced mse": (doubled(nn.MSELoss(), hook=False), SCORES, VALUES),
    "subclass": (type("Own", (nn.MSELoss,), {})(), SCORES, VALUES),
}


def by_autograd(loss, output, target):
    return torch.autograd.functional.hessian(
        lambda f: loss(f.view_as(output), target), output.view(-1)
    )


@pytest.mark.parametrize("case", [*KNOWN, *UNKNOWN])
def test_output_hessian_equals_autograd(case):
    loss, output, target = (KNOWN | UNKNOWN)[case]
    hessian = output_hessian(loss, output, target)
    assert isinstance(hessian, FactoredHessian) == (case in KNOWN)
    assert isinstance(hessian, AutogradHessian) == (case in UNKNOWN)
    expected = by_autograd(loss, output, target)
    for column, direction in zip(expected.T, torch.eye(output.numel()).double(), strict=True):
        product = hessian.times(direction.view_as(output)).reshape(-1)
        assert torch.allclose(product, column, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "hessian", [CrossEntropyHessian(SCORES.softmax(1), 0.3), ScaledIdentity(2.0)]
)
def test_roots_multiply_to_the_hessian_and_are_transposes(hessian):
    left, right = torch.randn(2, 4, 3, dtype=torch.float64)
    assert torch.allclose(hessian.root(hessian.root_transposed(left)), hessian.times(left))
    one = (hessian.root(left) * right).sum()
    assert torch.allclose(one, (left * hessian.root_transposed(right)).sum())


def test_linear_loss_has_no_hessian():
    hessian = output_hessian(lambda f, y: f.sum(), SCORES, LABELS)
    assert not hessian.times(VALUES).any()
