"""Curvature of models whose output is not one tensor, against dense matrices by torch.func."""

import pytest
import torch
from tests.unit.structured import (
    LossInside,
    Output,
    Segmentation,
    ThreeHeads,
    Vae,
    at,
    dense_matrices,
    drawn,
    heads_loss,
    hessian,
    labels,
    make,
    segmentation_loss,
    vae_loss,
)
from torch import nn
from torch.nn import functional

import normscope as ns
from normscope.errors import NormscopeError, StateError

KINDS = ("fisher", "ggn", "hessian")
X = drawn(5, 4)


def largest_error(found, expected):
    assert torch.allclose(found, found.T, atol=1e-10 * float(expected.abs().max()))
    return float((found - expected).abs().max() / expected.abs().max())


def case_vae():
    model, target = make(Vae), drawn(5, 4, seed=3)
    expected = dense_matrices(
        model, lambda v: list(at(model, v, X)), lambda out: vae_loss(out, target), 5
    )
    return model, vae_loss, (X, target), expected


def case_heads():
    model, target = make(ThreeHeads), labels(3, 5)
    expected = dense_matrices(
        model, lambda v: list(at(model, v, X)), lambda out: heads_loss(out, target), 5
    )
    return model, heads_loss, (X, target), expected


def case_segmentation():
    model, x, target = make(Segmentation), drawn(4, 2, 3), labels(2, 4, 3)

    def outputs(vector):
        found = at(model, vector, x)
        return [found["out"], found["aux"]]  # the loss does not read the features

    expected = dense_matrices(
        model, outputs, lambda out: segmentation_loss({"out": out[0], "aux": out[1]}, target), 4
    )
    return model, segmentation_loss, (x, target), expected


TOKENS = labels(5, 3, 4)


def token_loss(logits):
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1), TOKENS[:, 1:].flatten())


def case_loss_inside():
    model = make(LossInside)
    expected = dense_matrices(
        model, lambda v: [at(model, v, TOKENS).logits], lambda out: token_loss(out[0]), 3
    )
    return model, "model", {"tokens": TOKENS, "labels": TOKENS}, expected


CASES = {
    "vae": case_vae,
    "heads": case_heads,
    "segmentation": case_segmentation,
    "loss_inside": case_loss_inside,
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_matrices_are_those_of_torch_func(case):
    model, loss, batch, expected = case()
    for kind in KINDS:
        found = ns.curvature.dense(model, loss, batch, kind=kind)
        assert largest_error(found, expected[kind]) < 1e-8, kind


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_eigenvalues_and_traces_follow(case):
    model, loss, batch, expected = case()
    for kind in KINDS:
        top = ns.curvature.top_eigenvalue(model, loss, batch, kind=kind, tol=1e-6)
        assert top.value == pytest.approx(float(torch.linalg.eigvalsh(expected[kind])[-1]))
    trace = ns.curvature.trace(model, loss, batch, kind="ggn", products=100)
    assert trace.value == pytest.approx(float(expected["ggn"].trace()))


def test_several_batches_are_averaged_by_samples():
    model, loss, (x, y), _ = case_heads()
    parts = [(x[:2], y[:2]), (x[2:], y[2:])]
    for kind in KINDS:
        first, second = (ns.curvature.dense(model, loss, part, kind=kind) for part in parts)
        both = ns.curvature.dense(model, loss, parts, kind=kind)
        assert torch.allclose(both, 0.4 * first + 0.6 * second, atol=1e-12)


SHOWN = ns.whole_loss(
    outputs=lambda model, batch: model(batch["tokens"]).logits,
    loss=lambda logits, batch: token_loss(logits),
)
SHOWN_AS_A_TUPLE = ns.whole_loss(
    outputs=lambda model, batch: (model(batch["tokens"]), "text"),
    loss=lambda outputs, batch: token_loss(outputs[0].logits),
)
FLAT = ns.whole_loss(
    outputs=lambda model, batch: model(batch["tokens"]).logits.flatten(0, 1),
    loss=lambda logits, batch: token_loss(logits.view(3, 4, 5)),
)


@pytest.mark.parametrize("loss", [None, "model", SHOWN, SHOWN_AS_A_TUPLE, FLAT])
def test_every_way_to_give_the_loss_of_a_language_model_has_the_same_matrices(loss):
    model, _, batch, expected = case_loss_inside()
    for kind in KINDS:
        found = ns.curvature.dense(model, loss, batch, kind=kind)
        assert largest_error(found, expected[kind]) < 1e-8, kind


def test_half_of_the_loss_of_the_model_and_a_penalty_on_its_scores():
    model, _, batch, _ = case_loss_inside()

    def half(output, target):
        return 0.5 * output.loss + 0.1 * output.logits.square().mean()

    expected = dense_matrices(
        model,
        lambda v: [at(model, v, TOKENS).logits],
        lambda out: 0.5 * token_loss(out[0]) + 0.1 * out[0].square().mean(),
        3,
    )
    for kind in KINDS:
        assert largest_error(ns.curvature.dense(model, half, batch, kind), expected[kind]) < 1e-8


class Temperature(nn.Module):
    """Returns scores and a scalar that the loss multiplies by, as contrastive models do."""

    def __init__(self):
        super().__init__()
        self.layer, self.scale = nn.Linear(4, 3), nn.Parameter(torch.tensor(0.3))

    def forward(self, x):
        return self.layer(x), self.scale.exp()


def test_scalar_that_is_not_a_loss_is_an_output_like_others():
    model, target = make(Temperature), labels(3, 5)

    def loss(output, target):
        return functional.cross_entropy(output[1] * output[0], target)

    expected = dense_matrices(
        model, lambda v: list(at(model, v, X)), lambda out: loss(out, target), 5
    )
    for kind in KINDS:
        found = ns.curvature.dense(model, loss, (X, target), kind)
        assert largest_error(found, expected[kind]) < 1e-8


def test_loss_receives_exactly_what_the_model_returns():
    seen = []

    def loss(output, target):
        seen.append(type(output).__name__)
        return output.logits.square().mean()

    model, _, batch, _ = case_loss_inside()
    ns.curvature.operator(model, loss, batch, kind="ggn") @ torch.ones(47).double()
    assert set(seen) == {"Output"}


class Around(LossInside):
    """A loss that also depends on a parameter other than by the returned scores."""

    def forward(self, tokens, labels=None):
        output = super().forward(tokens, labels)
        return Output(output.loss + self.mix.weight.square().sum(), output.logits, ())


class OnlyLoss(LossInside):
    def forward(self, tokens, labels=None):
        return {"loss": super().forward(tokens, labels).loss}


class Behind(LossInside):
    """A loss of two outputs, one computed from the other."""

    def forward(self, tokens, labels=None):
        output = super().forward(tokens, labels)
        return Output(output.loss + output.hidden[1].square().mean(), output.logits, output.hidden)


@pytest.mark.parametrize(
    ("kind_of_model", "said"),
    [(Around, "'mix.weight' beside"), (OnlyLoss, "beside"), (Behind, "cannot be told apart")],
)
def test_loss_that_is_not_of_the_returned_outputs_has_the_hessian_only(kind_of_model, said):
    model, batch = make(kind_of_model), {"tokens": TOKENS, "labels": TOKENS}
    for kind in ("ggn", "fisher"):
        with pytest.raises(StateError, match=said) as caught:
            ns.curvature.operator(model, "model", batch, kind=kind)
        assert "kind='hessian'" in str(caught.value)
    found = ns.curvature.dense(model, "model", batch, kind="hessian")
    point = torch.cat([p.detach().flatten() for p in model.parameters()])

    def loss_at(vector):
        output = at(model, vector, TOKENS, labels=TOKENS)
        return output["loss"] if isinstance(output, dict) else output.loss

    expected = hessian(loss_at)(point)
    assert largest_error(found, expected) < 1e-8
    advice = ns.max_learning_rate(model, "model", [batch], verify=False)
    assert advice.curvature.kind == "hessian"


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.pow(3).sum()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * 3 * x.detach().square()  # not differentiable again


class Fused(LossInside):
    def forward(self, tokens, labels=None):
        output = super().forward(tokens)
        return Output(Cube.apply(output.logits), output.logits, ())


def test_user_defined_function_inside_the_loss_of_the_model_is_refused():
    batch = {"tokens": TOKENS, "labels": TOKENS}
    with pytest.raises(StateError, match="user-defined function Cube"):
        ns.curvature.operator(make(Fused), "model", batch, kind="ggn")


def test_loss_that_uses_parameters_beside_a_structured_output_is_refused():
    model = make(ThreeHeads)

    def penalized(output, target):
        return heads_loss(output, target) + model.stem.weight.square().sum()

    batch = (X, labels(3, 5))
    for kind in ("ggn", "fisher"):
        with pytest.raises(StateError, match=r"'stem.weight' beside the tensors"):
            ns.curvature.operator(model, penalized, batch, kind=kind)
    ns.curvature.operator(model, penalized, batch, kind="hessian")


class Distribution(nn.Linear):
    """Returns an object whose tensors are not known."""

    def forward(self, x):
        mean, log_scale = super().forward(x).chunk(2, dim=1)
        return torch.distributions.Normal(mean, log_scale.exp())


def test_object_as_an_output_has_the_hessian_and_a_learning_rate():
    def loss(output, target):
        return 5 - output.log_prob(target).mean()

    model, batch = make(Distribution, 4, 4), (X, drawn(5, 2))
    for kind in ("ggn", "fisher"):
        with pytest.raises(StateError, match="tuples, lists, mappings and dataclasses"):
            ns.curvature.operator(model, loss, batch, kind=kind)
    point = torch.cat([p.detach().flatten() for p in model.parameters()])
    expected = hessian(lambda vector: loss(at(model, vector, X), batch[1]))(point)
    assert largest_error(ns.curvature.dense(model, loss, batch, kind="hessian"), expected) < 1e-8
    advice = ns.max_learning_rate(model, loss, batch, verify=False)
    assert advice.curvature.kind == "hessian"


@pytest.mark.parametrize("stop", ["residual", "value"])
def test_search_that_starts_on_a_part_of_the_samples_finds_the_same(stop):
    model, x, target = make(ThreeHeads), drawn(128, 4), labels(3, 128)
    expected = dense_matrices(
        model, lambda v: list(at(model, v, x)), lambda out: heads_loss(out, target), 128
    )
    for kind in KINDS:
        top = ns.curvature.top_eigenvalue(
            model, heads_loss, (x, target), kind=kind, tol=1e-5, stop=stop
        )
        assert top.value == pytest.approx(float(torch.linalg.eigvalsh(expected[kind])[-1]))


def test_loss_that_does_not_read_the_output_is_refused():
    for kind in KINDS:
        with pytest.raises(NormscopeError, match=r"gradient|depends"):
            ns.curvature.operator(make(Vae), lambda out, y: y.square().mean(), (X, X), kind=kind)


def test_loss_that_overwrites_a_structured_output_is_refused():
    def overwrites(output, target):
        return output[0].mul_(2).square().mean()

    with pytest.raises(StateError, match="overwrites the model's output"):
        ns.curvature.operator(make(ThreeHeads), overwrites, (X, labels(3, 5)), kind="ggn")


def test_complex_output_is_refused_for_the_gauss_newton_matrix():
    class Complex(nn.Linear):
        def forward(self, x):
            return {"spectrum": torch.fft.fft(super().forward(x))}

    def loss(output, target):
        return output["spectrum"].abs().square().mean()

    model = make(Complex, 4, 3)
    with pytest.raises(StateError, match="complex"):
        ns.curvature.operator(model, loss, (X, X), kind="ggn")
    assert ns.curvature.top_eigenvalue(model, loss, (X, X), kind="hessian").value > 0


def test_user_defined_kind_sees_a_structured_output_as_one_tensor():
    from normscope.curvature import KINDS as REGISTRY
    from normscope.curvature import GaussNewtonProduct
    from normscope.curvature.output_hessian import output_hessian

    @REGISTRY.register(name="test_structured")
    def again(at):
        """Gauss-Newton matrix by the documented names."""
        jacobian = at.jacobian()
        return GaussNewtonProduct(jacobian, output_hessian(at.loss, jacobian.output, at.target))

    try:
        model, loss, batch, expected = case_vae()
        found = ns.curvature.dense(model, loss, batch, kind="test_structured")
        assert largest_error(found, expected["ggn"]) < 1e-8
        model, loss, batch, _ = case_loss_inside()
        with pytest.raises(StateError, match="computes its loss itself"):
            ns.curvature.operator(model, loss, batch, kind="test_structured")
    finally:
        del REGISTRY._items["test_structured"]


class SampleLosses(nn.Module):
    """Returns its loss in several forms, in each of which the loss is linear."""

    def __init__(self, form):
        super().__init__()
        self.form, self.net = form, nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))

    def forward(self, x, labels):
        scores = self.net(x)
        log_probabilities = scores.log_softmax(1)
        losses = functional.nll_loss(log_probabilities, labels, reduction="none")
        forms = {
            "mean and samples": {"loss": losses.mean(), "samples": losses, "logits": scores},
            "samples": {"loss": losses, "logits": scores},
            "one entry": {"loss": losses.mean().reshape(1), "logits": scores},
            "log-probabilities": {"loss": log_probabilities, "logits": scores},
            "no scores": {"loss": losses.mean(), "samples": losses},
        }
        return forms[self.form]


LINEAR = {
    "mean and samples": "model",
    "samples": lambda output, target: output["loss"].mean(),
    "one entry": lambda output, target: output["loss"].sum(),
    "log-probabilities": lambda output, target: functional.nll_loss(output["loss"], target),
}


@pytest.mark.parametrize("form", LINEAR)
def test_curvature_goes_through_the_scores_behind_outputs_in_which_the_loss_is_linear(form):
    model, target = make(lambda: SampleLosses(form)), labels(3, 5)
    found = ns.curvature.dense(model, LINEAR[form], {"x": X, "labels": target}, kind="ggn")
    expected = ns.curvature.dense(model.net, "cross_entropy", (X, target), kind="ggn")
    assert largest_error(found, expected) < 1e-12


def test_loss_linear_in_all_outputs_is_refused_instead_of_a_matrix_of_zeros():
    model = make(lambda: SampleLosses("no scores"))
    with pytest.raises(StateError, match=r"linear in these.*kind='hessian'"):
        ns.curvature.dense(model, "model", {"x": X, "labels": labels(3, 5)}, kind="ggn")
