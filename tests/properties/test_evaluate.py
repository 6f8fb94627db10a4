"""The loss over data is what its reduction says, whatever the batches."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from normscope.training import evaluate

CLASSES = 4
REDUCTIONS = st.sampled_from(["mean", "sum"])
ENTRYWISE = (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss, nn.BCEWithLogitsLoss)


@st.composite
def label_losses(draw):
    """A cross-entropy or likelihood of torch: module, function or partial, with any options."""
    options = {"reduction": draw(REDUCTIONS)}
    if draw(st.booleans()):
        values = st.sampled_from([0.0, 0.25, 1.0, 5.0])
        options["weight"] = torch.tensor(draw(st.tuples(*[values] * CLASSES))).double()
    if draw(st.booleans()):
        options["ignore_index"] = draw(st.integers(-1, CLASSES - 1))
    if draw(st.booleans()):
        return nn.NLLLoss(**options)
    if draw(st.booleans()):
        options["label_smoothing"] = draw(st.sampled_from([0.0, 0.3]))
    if draw(st.booleans()):
        return partial(functional.cross_entropy, **options)
    return nn.CrossEntropyLoss(**options)


@st.composite
def label_cases(draw):
    loss = draw(label_losses())
    positions = draw(st.sampled_from([(), (), (3,)]))
    samples = draw(st.integers(1, 12))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    x = torch.randn(samples, CLASSES, *positions, generator=generator, dtype=torch.float64)
    y = torch.randint(CLASSES, (samples, *positions), generator=generator)
    options = loss.keywords if isinstance(loss, partial) else vars(loss)
    y[torch.rand(y.shape, generator=generator) < 0.3] = options.get("ignore_index", -100)
    return loss, x, y


def labels_count(loss, y):
    """How much the labels of the data count in a mean."""
    options = loss.keywords if isinstance(loss, partial) else {**vars(loss), **loss._buffers}
    weight = options.get("weight")
    counted = y[y != options.get("ignore_index", -100)]
    return counted.numel() if weight is None else weight[counted].sum().item()


@settings(max_examples=300, deadline=None)
@given(label_cases(), st.integers(1, 13))
def test_loss_of_labels_does_not_depend_on_the_batch_size(case, batch_size):
    loss, x, y = case
    expected = loss(x, y).item()
    if not labels_count(loss, y) and loss_is_mean(loss):
        with pytest.raises(ValueError, match="give at least one that counts"):
            evaluate(nn.Identity(), loss, (x, y), batch_size=batch_size)
        return
    found = evaluate(nn.Identity(), loss, (x, y), batch_size=batch_size)
    assert found.loss == pytest.approx(expected, rel=1e-12, abs=1e-12)
    listed = list(zip(x.split(batch_size), y.split(batch_size), strict=True))
    in_parts = evaluate(nn.Identity(), loss, listed)
    assert in_parts.loss == pytest.approx(expected, rel=1e-12, abs=1e-12)
    assert in_parts.accuracy == found.accuracy


def loss_is_mean(loss):
    options = loss.keywords if isinstance(loss, partial) else vars(loss)
    return options["reduction"] == "mean"


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(ENTRYWISE), REDUCTIONS, st.booleans(), st.integers(2, 12), st.integers(1, 13)
)
def test_loss_of_values_does_not_depend_on_the_batch_size(
    kind, reduction, custom, samples, batch_size
):
    generator = torch.Generator().manual_seed(samples)
    x, y = torch.rand(2, samples, 3, generator=generator, dtype=torch.float64)
    loss = kind(reduction=reduction)
    given_loss = (lambda output, target: loss(output, target)) if custom else loss
    found = evaluate(nn.Identity(), given_loss, (x, y), batch_size=batch_size)
    assert found.loss == pytest.approx(loss(x, y).item(), rel=1e-12)
