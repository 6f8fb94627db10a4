"""Kinds of curvature: a new one needs one function and one decorator."""

import pytest
import torch
from tests.unit.curvature.networks import batch, network
from torch import nn
from torch.nn import functional

from normscope.curvature import (
    KINDS,
    BatchCurvature,
    GaussNewtonProduct,
    dense,
    operator,
    spectrum,
    top_eigenvalue,
    trace,
)
from normscope.curvature.output_hessian import OutputHessian, ScaledIdentity
from normscope.errors import DuplicateNameError, StateError, UnknownNameError
from normscope.problem import whole_loss


class OuterProducts(OutputHessian):
    """m g g^T for each sample, with g its gradient of the mean loss."""

    def __init__(self, gradient):
        self.gradient = gradient

    def times(self, tangent):
        along = (self.gradient * tangent).sum(1, keepdim=True)
        return len(tangent) * along * self.gradient


def empirical_fisher(at):
    """Mean over samples of the outer products of the loss's gradients."""
    jacobian = at.jacobian()
    with at.context():
        output = jacobian.output.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(at.loss(output, at.target), output)
    return GaussNewtonProduct(jacobian, OuterProducts(gradient))


class Damped(BatchCurvature):
    """The Gauss-Newton matrix plus the identity."""

    def __init__(self, at):
        self.inner = KINDS["ggn"](at)

    def times(self, vector):
        return self.inner.times(vector) + vector


@pytest.fixture
def registered():
    """Register two kinds for one test."""
    before = dict(KINDS._items) if list(KINDS) else {}
    KINDS.register(empirical_fisher)
    KINDS.register(name="damped")(Damped)
    yield
    KINDS._items.clear()
    KINDS._items.update(before)


def test_three_kinds_are_registered():
    assert list(KINDS) == ["fisher", "ggn", "hessian"]
    assert all(KINDS.summary(kind) for kind in KINDS)


@pytest.mark.parametrize("name", ["torch_batch", "residual"])  # a chain, and not a chain
def test_new_kind_is_the_matrix_of_its_definition(name, registered):
    model, (inputs, labels) = network(name), batch(name, 9)
    found = dense(model, "cross_entropy", (inputs, labels), kind="empirical_fisher", mode="eval")
    model.eval()
    rows = []
    for x, y in zip(inputs, labels, strict=True):
        loss = functional.cross_entropy(model(x[None]), y[None])
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        rows.append(torch.cat([gradient.reshape(-1) for gradient in gradients]))
    gradients = torch.stack(rows)
    torch.testing.assert_close(found, gradients.T @ gradients / len(inputs))


def test_new_kind_works_with_every_function(registered):
    model, data = network("torch_batch"), batch("torch_batch", 9)
    problem = model, "cross_entropy", data
    values = torch.linalg.eigvalsh(dense(*problem, kind="damped"))
    top = top_eigenvalue(*problem, kind="damped", tol=1e-6)
    assert top.value == pytest.approx(float(values[-1]), rel=1e-6)
    assert str(top).startswith("damped matrix, largest")
    assert trace(*problem, kind="damped", products=1000).value == pytest.approx(float(values.sum()))
    moments = spectrum(*problem, kind="damped", probes=2, lanczos_steps=4)["moment"]
    assert float(moments[0]) > 1


def test_new_kind_averages_over_batches(registered):
    model = network("torch_batch")
    parts = [batch("torch_batch", 6, seed) for seed in (1, 2)]
    found = dense(model, "cross_entropy", parts, kind="damped")
    expected = sum(dense(model, "cross_entropy", part, kind="damped") for part in parts) / 2
    torch.testing.assert_close(found, expected)


def test_name_in_use_is_refused(registered):
    with pytest.raises(DuplicateNameError, match="damped"):
        KINDS.register(name="damped")(Damped)


def test_unknown_kind_names_the_choices():
    with pytest.raises(UnknownNameError, match="fisher, ggn, hessian"):
        operator(nn.Linear(2, 1), "squared_error", (torch.ones(2, 2), torch.ones(2, 1)), "fischer")


def test_fisher_metric_is_one_over_the_samples():
    made = operator(network("torch_batch"), "cross_entropy", batch("torch_batch", 8))
    assert made.first_batch().metric == ScaledIdentity(0.125)


@pytest.mark.parametrize("kind", ["fisher", "ggn"])
def test_kind_that_needs_outputs_refuses_a_whole_loss(kind):
    loss = whole_loss(lambda model, data: functional.cross_entropy(model(data[0]), data[1]))
    with pytest.raises(StateError, match="whole_loss"):
        operator(network("torch_batch"), loss, batch("torch_batch", 8), kind)
