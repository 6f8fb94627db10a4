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
    OutputHessian,
    dense,
    operator,
    spectrum,
    top_eigenvalue,
    trace,
)
from normscope.curvature.kinds import is_mean_over_samples, matrix_name
from normscope.curvature.output_hessian import ScaledIdentity
from normscope.errors import DuplicateNameError, StateError, UnknownNameError
from normscope.problem import MODES, whole_loss


class OuterProducts(OutputHessian):
    """m g g^T for each sample, with g its gradient of the mean loss."""

    def __init__(self, gradient):
        self.gradient = gradient

    def times(self, tangent):
        along = (self.gradient * tangent).sum(1, keepdim=True)
        return len(tangent) * along * self.gradient


def outer_products(at):
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
    KINDS.register(name="test_outer_products")(outer_products)
    KINDS.register(name="test_damped")(Damped)
    yield
    KINDS._items.clear()
    KINDS._items.update(before)


def test_three_kinds_are_registered():
    assert set(KINDS) >= {"fisher", "ggn", "hessian"}


@pytest.mark.parametrize("kind", KINDS)
class TestEveryKind:
    """What a registered kind must fulfil; a new one needs no test of these."""

    def test_has_a_summary_and_a_name_of_its_matrix(self, kind):
        assert KINDS.summary(kind).endswith(".")
        assert matrix_name(kind)
        assert "_" not in matrix_name(kind)

    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize("name", ["torch_batch", "residual", "conv2d"])
    def test_matrix_is_symmetric_and_products_are_its_own(self, name, mode, kind):
        problem = network(name), "cross_entropy", batch(name, 9)
        matrix = dense(*problem, kind=kind, mode=mode)
        assert bool(matrix.isfinite().all())
        torch.testing.assert_close(matrix, matrix.T, rtol=1e-10, atol=1e-12)
        made = operator(*problem, kind=kind, mode=mode)
        vectors = torch.randn(made.shape[0], 3, dtype=torch.float64)
        torch.testing.assert_close(made @ vectors, matrix @ vectors, rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(
            made @ vectors[:, 0], matrix @ vectors[:, 0], rtol=1e-9, atol=1e-11
        )

    def test_modes_differ_only_with_batch_statistics(self, kind):
        def matrices(name):
            problem = network(name), "cross_entropy", batch(name, 9)
            return [dense(*problem, kind=kind, mode=mode) for mode in MODES]

        train, frozen, eval_, as_is = matrices("layer")
        torch.testing.assert_close(frozen, train)
        torch.testing.assert_close(eval_, train)
        torch.testing.assert_close(as_is, train)
        train, frozen, eval_, as_is = matrices("torch_batch")
        assert float((frozen - train).norm()) > 1e-3 * float(train.norm())
        assert float((eval_ - train).norm()) > 1e-3 * float(train.norm())
        torch.testing.assert_close(as_is, train)

    @pytest.mark.parametrize("mode", MODES)
    def test_model_and_random_numbers_are_untouched(self, mode, kind):
        model, data = network("dropout"), batch("dropout", 9)
        model[1].eval()
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        generator = torch.random.get_rng_state()
        top_eigenvalue(model, "cross_entropy", data, kind=kind, mode=mode, which="magnitude")
        assert all(torch.equal(tensor, before[n]) for n, tensor in model.state_dict().items())
        assert torch.equal(torch.random.get_rng_state(), generator)
        assert (model.training, model[1].training) == (True, False)
        assert all(each.grad is None for each in model.parameters())

    @pytest.mark.parametrize("reduction", ["mean", "sum"])
    def test_batches_are_averaged_over_samples_or_added_as_the_loss_is(self, kind, reduction):
        model, loss = network("layer"), nn.CrossEntropyLoss(reduction=reduction)
        x, y = batch("layer", 9)
        batches = [(x[:6], y[:6]), (x[6:], y[6:])]
        first, second = (dense(model, loss, each, kind=kind) for each in batches)
        is_mean = reduction == "mean" or is_mean_over_samples(kind)
        expected = (6 * first + 3 * second) / 9 if is_mean else first + second
        torch.testing.assert_close(dense(model, loss, batches, kind=kind), expected)

    def test_spectrum_of_a_mean_over_samples_begins_at_zero(self, kind):
        x, y = batch("layer", 9)
        batches = [(x[:6], y[:6]), (x[6:], y[6:])]
        found = spectrum(network("layer"), "cross_entropy", batches, kind=kind, probes=2)
        if is_mean_over_samples(kind):
            assert float(found["eigenvalue"].min()) > -1e-4 * float(found["eigenvalue"].max())

    def test_eigenvalues_and_trace_are_those_of_the_matrix(self, kind):
        problem = network("torch_batch"), "cross_entropy", batch("torch_batch", 9)
        values = torch.linalg.eigvalsh(dense(*problem, kind=kind))
        top = top_eigenvalue(*problem, kind=kind, tol=1e-6)
        assert top.value == pytest.approx(float(values[-1]), rel=1e-6)
        found = trace(*problem, kind=kind, products=1000)
        assert found.value == pytest.approx(float(values.sum()))


@pytest.mark.parametrize("name", ["torch_batch", "residual"])  # a chain, and not a chain
def test_new_kind_is_the_matrix_of_its_definition(name, registered):
    model, (inputs, labels) = network(name), batch(name, 9)
    found = dense(model, "cross_entropy", (inputs, labels), kind="test_outer_products", mode="eval")
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
    values = torch.linalg.eigvalsh(dense(*problem, kind="test_damped"))
    top = top_eigenvalue(*problem, kind="test_damped", tol=1e-6)
    assert top.value == pytest.approx(float(values[-1]), rel=1e-6)
    assert str(top).startswith("test damped matrix, largest")
    found = trace(*problem, kind="test_damped", products=1000)
    assert found.value == pytest.approx(float(values.sum()))
    moments = spectrum(*problem, kind="test_damped", probes=2, lanczos_steps=4)["moment"]
    assert float(moments[0]) > 1


def test_new_kind_averages_over_batches(registered):
    model = network("torch_batch")
    parts = [batch("torch_batch", 6, seed) for seed in (1, 2)]
    found = dense(model, "cross_entropy", parts, kind="test_damped")
    expected = sum(dense(model, "cross_entropy", part, kind="test_damped") for part in parts) / 2
    torch.testing.assert_close(found, expected)


def test_name_in_use_is_refused(registered):
    with pytest.raises(DuplicateNameError, match="test_damped"):
        KINDS.register(name="test_damped")(Damped)


def test_matrix_is_named_by_the_docstring_or_else_by_the_kind(registered):
    names = {"fisher": "Fisher matrix", "ggn": "Gauss-Newton matrix", "hessian": "Hessian"}
    assert {kind: matrix_name(kind) for kind in names} == names
    assert matrix_name("test_damped") == "test damped matrix"
    assert matrix_name("kind_of_another_process") == "kind of another process matrix"


def test_unknown_kind_names_the_choices():
    problem = nn.Linear(2, 1), "squared_error", (torch.ones(2, 2), torch.ones(2, 1))
    with pytest.raises(UnknownNameError, match="fisher, ggn"):
        operator(*problem, kind="fischer")
    with pytest.raises(UnknownNameError, match="did you mean 'ggn'"):
        operator(*problem, kind="gauss_newton")


def test_fisher_metric_is_one_over_the_samples():
    made = operator(network("torch_batch"), "cross_entropy", batch("torch_batch", 8), "fisher")
    assert made.first_batch().metric == ScaledIdentity(0.125)


@pytest.mark.parametrize("kind", ["fisher", "ggn"])
def test_kind_that_needs_outputs_refuses_a_whole_loss(kind):
    loss = whole_loss(lambda model, data: functional.cross_entropy(model(data[0]), data[1]))
    with pytest.raises(StateError, match="whole_loss"):
        operator(network("torch_batch"), loss, batch("torch_batch", 8), kind)
