"""Parameters that a loss or a model reaches by references of its own."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from normscope.curvature import dense, operator, top_eigenvalue, trace
from normscope.errors import StateError
from normscope.problem import Evaluator, Problem, parameter_layout, whole_loss
from normscope.problem.references import graph_leaves

DATA = (
    torch.randn(12, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64),
    torch.arange(12) % 2,
)


def chain():
    torch.manual_seed(0)
    layers = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2)
    return nn.Sequential(*layers).double()


class Branched(nn.Module):
    """Not a chain: measured through its graph."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 2)
        self.double()

    def forward(self, x):
        return self.last(x + self.first(x).tanh())


MODELS = {"chain": chain, "graph": Branched}


def penalized(parameters, factor=0.7):
    """The cross-entropy with a penalty, whose Hessian is not diagonal, on ``parameters()``."""

    def loss(output, target):
        norm = sum(each.square().sum() for each in parameters()).sqrt()
        return functional.cross_entropy(output, target) + factor * norm

    return loss


def hessian_by_autograd(model, loss):
    """The Hessian of ``loss(output, target, parameters)``, by torch alone."""
    own = dict(model.named_parameters())
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    sizes = [each.numel() for each in own.values()]

    def value(flat):
        pieces = zip(own.items(), flat.split(sizes), strict=True)
        new = {name: piece.view_as(each) for (name, each), piece in pieces}
        output = torch.func.functional_call(model, {**new, **buffers}, (DATA[0],))
        return loss(lambda: new.values())(output, DATA[1])

    flat = torch.cat([each.detach().flatten() for each in own.values()])
    return torch.autograd.functional.hessian(value, flat)


@pytest.mark.parametrize("build", MODELS.values(), ids=MODELS)
def test_hessian_includes_a_penalty_on_the_models_parameters(build):
    model = build()
    expected = hessian_by_autograd(model, penalized)
    found = dense(model, penalized(model.parameters), DATA, kind="hessian")
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    top = top_eigenvalue(model, penalized(model.parameters), DATA, kind="hessian", tol=1e-8)
    assert top.value == pytest.approx(float(torch.linalg.eigvalsh(expected)[-1]), rel=1e-6)


@pytest.mark.parametrize("build", MODELS.values(), ids=MODELS)
def test_gauss_newton_matrix_refuses_such_a_loss_and_the_fisher_does_not_need_it(build):
    model = build()
    loss = penalized(model.parameters)
    name = next(name for name, _ in model.named_parameters())
    with pytest.raises(
        StateError, match=f"the loss uses the parameter '{name}' beside the model's"
    ):
        operator(model, loss, DATA, kind="ggn")
    plain = dense(model, "cross_entropy", DATA, kind="fisher")
    assert torch.equal(dense(model, loss, DATA, kind="fisher"), plain)


@pytest.mark.parametrize("kind", ["hessian", "ggn"])
@pytest.mark.parametrize("build", MODELS.values(), ids=MODELS)
def test_loss_over_a_list_made_before_is_refused(kind, build):
    model = build()
    held = list(model.parameters())
    for measure in (operator, trace, top_eigenvalue):
        with pytest.raises(StateError, match=r"loss uses the parameter .* reference of its own"):
            measure(model, penalized(lambda: held), DATA, kind=kind)
    plain = dense(model, "cross_entropy", DATA, kind="fisher")
    assert torch.equal(dense(model, penalized(lambda: held), DATA, kind="fisher"), plain)


def test_list_of_parameters_that_are_not_asked_for_is_a_constant():
    model = Branched()
    held = [model.last.weight]
    found = dense(model, penalized(lambda: held), DATA, kind="hessian", params="first")
    plain = dense(model, "cross_entropy", DATA, kind="hessian", params="first")
    assert torch.equal(found, plain)


def test_whole_loss_over_another_reference_to_the_model_is_measured_or_refused():
    model = Branched()
    expected = hessian_by_autograd(model, penalized)

    def loss(given, batch):
        return penalized(model.parameters)(model(batch[0]), batch[1])  # not the one it is given

    found = dense(model, whole_loss(loss), DATA, kind="hessian")
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    held = list(model.parameters())

    def held_loss(given, batch):
        return penalized(lambda: held)(given(batch[0]), batch[1])

    with pytest.raises(StateError, match=r"the model or the loss uses .* 'first.weight'"):
        operator(model, whole_loss(held_loss), DATA, kind="hessian")


class Listed(Branched):
    """Reads a weight from a list, which no registration tells of."""

    def __init__(self):
        super().__init__()
        self.weights = [self.last.weight]

    def forward(self, x):
        return functional.linear(x + self.first(x), self.weights[0], self.last.bias)


@pytest.mark.parametrize("kind", ["fisher", "ggn", "hessian"])
def test_model_with_a_list_of_its_parameters_is_refused(kind):
    with pytest.raises(StateError, match=r"the model uses the parameter 'last.weight'"):
        operator(Listed(), "cross_entropy", DATA, kind=kind)


def test_loss_with_parameters_of_its_own_has_a_gauss_newton_matrix():
    scale = nn.Parameter(torch.tensor(2.0, dtype=torch.float64))
    model = Branched()

    def loss(output, target):
        return functional.cross_entropy(output * scale, target)

    def fixed(output, target):
        return functional.cross_entropy(output * 2.0, target)

    torch.testing.assert_close(dense(model, loss, DATA, "ggn"), dense(model, fixed, DATA, "ggn"))
    assert scale.grad is None


class Head(Branched):
    """Calls its last layer by a function among its attributes."""

    def __init__(self):
        super().__init__()
        self.head = lambda x: self.last(x)

    def forward(self, x):
        return self.head(x + self.first(x))


def test_copy_that_runs_the_layers_of_the_first_model_is_refused():
    twin = copy.deepcopy(Head())
    with pytest.raises(StateError, match=r"not depend on its parameter 'last.weight', but on"):
        operator(twin, "cross_entropy", DATA, kind="hessian")


def test_weights_of_a_second_network_are_constants():
    class Adapted(Branched):
        def __init__(self):
            super().__init__()
            self.body = [nn.Linear(3, 3).double()]  # hidden, so that it is not trained

        def forward(self, x):
            return super().forward(self.body[0](x))

    model = Adapted()
    assert dense(model, "cross_entropy", DATA, kind="hessian").abs().max() > 0
    assert all(each.grad is None for each in model.body[0].parameters())


class Balanced(Branched):
    """Keeps a value of its forward pass for the loss, as a mixture of experts does."""

    def forward(self, x):
        hidden = self.first(x)
        self.spread = hidden.square().mean()
        return self.last(x + hidden.tanh())


def test_loss_over_activations_has_no_gauss_newton_matrix():
    model, seen = Balanced(), []
    model.last.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    attribute = lambda o, t: functional.cross_entropy(o, t) + 9 * model.spread  # noqa: E731
    hook = lambda o, t: functional.cross_entropy(o, t) + seen[-1].norm()  # noqa: E731
    for loss in (attribute, hook):
        with pytest.raises(StateError, match=r"'first.weight' beside the model's output"):
            operator(model, loss, DATA, kind="ggn")
    detached = lambda o, t: functional.cross_entropy(o, t) + seen[-1].detach().norm()  # noqa: E731
    torch.testing.assert_close(
        dense(model, detached, DATA, "ggn"), dense(model, "cross_entropy", DATA, "ggn")
    )


def test_graph_leaves_are_each_found_once():
    one, two = (torch.ones(2, requires_grad=True) for _ in range(2))
    value = (one * two + one.exp()).sum() + two.detach().sum()
    assert {id(leaf) for leaf in graph_leaves(value)} == {id(one), id(two)}
    assert len(graph_leaves(value)) == 2
    assert graph_leaves(value.detach()) == []
    assert graph_leaves(one)[0] is one


def test_direct_parameter_is_asked_of_the_first_batch_only():
    model, calls = Branched(), []

    def loss(output, target):
        calls.append(len(output))
        return functional.cross_entropy(output, target)

    problem = Problem(model, loss, [DATA, DATA])
    evaluator = Evaluator(problem, parameter_layout(model), "train", 0)
    assert evaluator.loss_is_of_output
    assert evaluator.on(problem).direct_parameter() is None
    assert calls == [12]
