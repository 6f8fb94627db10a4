"""Substitutes for operations without a second derivative equal them, values and gradients."""

import pytest
import torch
from torch.nn import functional

from normscope.problem.twice_differentiable import TwiceDifferentiable

INDICES = torch.tensor([[0, 1, 1], [2, 1, 4]])
FLAT, OFFSETS = INDICES.view(-1), torch.tensor([0, 2, 2])
LABELS = torch.tensor([0, 3, 2, 1])
SEVERAL = torch.tensor([[0, 2, -1, 1], [3, -1, 0, 0], [-1, 0, 1, 2], [1, 0, 2, 3]])
BAG = functional.embedding_bag


def bags(**options):
    return lambda w, p: BAG(INDICES, w, **options)


CASES = {
    "attention, arguments by position": lambda x, y: functional.scaled_dot_product_attention(
        x[None], y[None], x[None], None, 0.0, True
    ),
    "hardsigmoid": lambda x, y: functional.hardsigmoid(4 * x),
    "hardsigmoid in place": lambda x, y: torch.nn.Hardsigmoid(inplace=True)(4 * x),
    "bag sum": bags(mode="sum"),
    "bag mean": bags(),
    "bag max": bags(mode="max"),
    "bag mean without padding": bags(padding_idx=1),
    "bag max without padding": bags(mode="max", padding_idx=-4),
    "bag weights": lambda w, p: BAG(INDICES, w, mode="sum", per_sample_weights=p[:2, :3]),
    "bag weights without padding": lambda w, p: BAG(
        INDICES, w, mode="sum", per_sample_weights=p[:2, :3], padding_idx=1
    ),
    "bag offsets, one empty": lambda w, p: BAG(FLAT, w, OFFSETS),
    "bag last offset": lambda w, p: BAG(
        FLAT, w, torch.tensor([0, 2, 6]), mode="sum", include_last_offset=True
    ),
    "cdist": torch.cdist,
    "cdist to itself": lambda x, y: torch.cdist(x, x),
    "cdist p=1": lambda x, y: torch.cdist(x, y, 1.0),
    "cdist p=3": lambda x, y: torch.cdist(x[None], y[None], p=3.0),
    "cdist p=inf": lambda x, y: torch.cdist(x, y, float("inf")),
    "cdist of many": lambda x, y: torch.cdist(x.repeat(6, 1), y),
    "cdist by differences": lambda x, y: torch.cdist(
        x.repeat(6, 1), y, compute_mode="donot_use_mm_for_euclid_dist"
    ),
    "pdist": lambda x, y: functional.pdist(x),
    "pdist p=1": lambda x, y: functional.pdist(x, 1),
    "margin": lambda x, y: functional.multi_margin_loss(x[:4], LABELS),
    "margin squared": lambda x, y: functional.multi_margin_loss(
        x[:4], LABELS, p=2, margin=0.5, weight=torch.arange(1.0, 5.0).to(x), reduction="sum"
    ),
    "margin of one": lambda x, y: functional.multi_margin_loss(x[0], LABELS[0], reduction="none"),
    "labels": lambda x, y: functional.multilabel_margin_loss(x[:4], SEVERAL),
    "labels summed": lambda x, y: functional.multilabel_margin_loss(
        x[:4], SEVERAL, reduction="sum"
    ),
    "labels of one": lambda x, y: functional.multilabel_margin_loss(x[0], SEVERAL[0]),
}


def draw():
    torch.manual_seed(0)
    return [torch.randn(5, 4, dtype=torch.float64).requires_grad_() for _ in range(2)]


@pytest.mark.parametrize("name", CASES)
def test_substitute_equals_the_operation_and_has_a_second_derivative(name):
    found = []
    for mode in (None, TwiceDifferentiable()):
        leaves = draw()
        if mode is None:
            output = CASES[name](*leaves)
        else:
            with mode:
                output = CASES[name](*leaves)
            assert mode.used
        weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(1))
        gradients = torch.autograd.grad(
            (output * weights).sum(), leaves, create_graph=mode is not None, materialize_grads=True
        )
        found.append([output.detach(), *(gradient.detach() for gradient in gradients)])
    # torch's hardsigmoid has a slope of 1/6 in float32
    tolerance = 1e-7 if name.startswith("hardsigmoid") else 1e-10
    for expected, value in zip(*found, strict=True):
        torch.testing.assert_close(value, expected, rtol=tolerance, atol=1e-12)

    def under_substitutes(*inputs):
        with TwiceDifferentiable():
            return CASES[name](*inputs)

    zero_distance = name == "cdist to itself"  # where numerical derivatives fail
    assert zero_distance or torch.autograd.gradgradcheck(under_substitutes, draw())
    curved = torch.autograd.grad(
        sum(gradient.square().sum() for gradient in gradients if gradient.requires_grad)
        + 0 * leaves[0].sum(),
        leaves,
        allow_unused=True,
    )
    assert all(each is None or each.isfinite().all() for each in curved)


def test_other_operations_are_called_as_they_are():
    mode = TwiceDifferentiable()
    with mode:
        functional.relu(torch.randn(3))
    assert not mode.used
