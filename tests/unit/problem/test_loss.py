"""Losses: values and derivatives against closed forms, and clear errors."""

import functools
import math
from functools import partial

import pytest
import torch
from torch import nn
from torch.func import grad, jacrev
from torch.nn import functional

from normscope.curvature import top_eigenvalue
from normscope.errors import ArgumentTypeError, InputError, ShapeError, UnknownNameError
from normscope.problem import (
    LOSSES,
    accuracy,
    cross_entropy,
    is_cross_entropy,
    is_squared_error,
    known_loss,
    loss_modules,
    squared_error,
    stateless_loss,
    whole_loss,
)
from normscope.problem.loss import call_loss, check_probabilities

SAMPLES, CLASSES = 7, 5
LABELS = torch.tensor([0, 4, 2, 2, 1, 3, 0])


@pytest.fixture
def output():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(SAMPLES, CLASSES, generator=generator, dtype=torch.float64)


@pytest.fixture
def vectors():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(SAMPLES, CLASSES, generator=generator, dtype=torch.float64).softmax(dim=1)


def one_hot():
    return torch.eye(CLASSES, dtype=torch.float64)[LABELS]


def log_softmax(output):
    return output - output.exp().sum(dim=1, keepdim=True).log()


def test_labels_of_tokens_are_refused_with_the_loss_to_use():
    with pytest.raises(ShapeError, match=r"label per token.*flatten\(0, -2\)"):
        cross_entropy(torch.zeros(2, 3, 5), torch.zeros(2, 3, dtype=torch.long))
    with pytest.raises(ShapeError) as caught:
        cross_entropy(torch.zeros(2, 3), torch.zeros(4, dtype=torch.long))
    assert "token" not in str(caught.value)


def test_losses_registry_holds_all_by_name():
    assert list(LOSSES) == ["cross_entropy", "model", "squared_error"]
    assert LOSSES["squared_error"] is squared_error
    with pytest.raises(UnknownNameError, match="cross_entropy"):
        LOSSES["cross_entropie"]


def test_cross_entropy_equals_its_definition(output, vectors):
    by_label = -sum(log_softmax(output)[i, label] for i, label in enumerate(LABELS)) / SAMPLES
    torch.testing.assert_close(cross_entropy(output, LABELS), by_label)
    by_vector = -(vectors * log_softmax(output)).sum() / SAMPLES
    torch.testing.assert_close(cross_entropy(output, vectors), by_vector)


def test_squared_error_sums_outputs_and_averages_samples(output, vectors):
    expected = sum(
        (output[i, j].item() - vectors[i, j].item()) ** 2 / 2
        for i in range(SAMPLES)
        for j in range(CLASSES)
    )
    assert squared_error(output, vectors).item() == pytest.approx(expected / SAMPLES, rel=1e-12)


def test_squared_error_reads_labels_as_one_hot_vectors(output):
    assert torch.equal(squared_error(output, LABELS), squared_error(output, one_hot()))


def test_squared_error_takes_targets_of_any_matching_shape():
    output = torch.arange(24.0).reshape(2, 3, 2, 2)
    assert squared_error(output, output - 1).item() == 6.0  # 12 outputs, each 1/2
    assert squared_error(torch.tensor([1.0, 3.0]), torch.tensor([0.0, 0.0])).item() == 2.5


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
@pytest.mark.parametrize("loss", [cross_entropy, squared_error])
def test_losses_take_labels_of_any_integer_type(loss, dtype, output):
    assert torch.equal(loss(output, LABELS.to(dtype)), loss(output, LABELS))


def test_cross_entropy_gradient_is_softmax_minus_target(output):
    gradient = grad(cross_entropy)(output, LABELS)
    torch.testing.assert_close(gradient, (output.softmax(dim=1) - one_hot()) / SAMPLES)


def test_squared_error_gradient_is_residual_over_samples(output):
    gradient = grad(squared_error)(output, LABELS)
    torch.testing.assert_close(gradient, (output - one_hot()) / SAMPLES)


def test_squared_error_hessian_is_identity_over_samples(output):
    hessian = jacrev(grad(squared_error))(output, LABELS).reshape(2 * (output.numel(),))
    torch.testing.assert_close(hessian, torch.eye(output.numel(), dtype=torch.float64) / SAMPLES)


def test_cross_entropy_hessian_is_softmax_covariance(output):
    hessian = jacrev(grad(cross_entropy))(output, LABELS)
    expected = torch.zeros_like(hessian)
    for i, p in enumerate(output.softmax(dim=1)):
        expected[i, :, i, :] = (torch.diag(p) - torch.outer(p, p)) / SAMPLES
    torch.testing.assert_close(hessian, expected)


@pytest.mark.parametrize("loss", [cross_entropy, squared_error])
def test_losses_per_sample_under_vmap_average_to_the_loss(loss, output):
    each = torch.vmap(lambda row, label: loss(row[None], label[None]))(output, LABELS)
    torch.testing.assert_close(each.mean(), loss(output, LABELS))


@pytest.mark.parametrize("loss", [cross_entropy, squared_error])
def test_losses_keep_the_type_of_the_output(loss, output, vectors):
    narrow = output.float().requires_grad_()
    value = loss(narrow, vectors)  # float64 targets
    value.backward()
    assert value.dtype == narrow.grad.dtype == torch.float32


@pytest.mark.parametrize("loss", [cross_entropy, squared_error])
def test_losses_are_computed_in_float32_under_autocast(loss, output):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert loss(output.bfloat16(), LABELS).dtype == torch.float32


@pytest.mark.parametrize("label", [CLASSES, -1, -100])  # torch leaves -100 out
@pytest.mark.parametrize("loss", [cross_entropy, squared_error])
def test_losses_refuse_labels_outside_the_outputs(loss, label, output):
    labels = LABELS.clone()
    labels[3] = label
    with pytest.raises(InputError, match="labels from 0 to 4"):
        loss(output, labels)
    with pytest.raises(InputError, match="labels from 0 to 4"):
        torch.vmap(lambda row, each: loss(row[None], each[None]))(output, labels)


@pytest.mark.parametrize("loss", [cross_entropy, squared_error])
@pytest.mark.parametrize(
    "target",
    [LABELS[:-1], LABELS[:, None], torch.zeros(SAMPLES), torch.zeros(SAMPLES, 1)],
    ids=["fewer labels", "labels in a column", "a float each", "one float column"],
)
def test_losses_refuse_targets_of_another_shape(loss, target, output):
    with pytest.raises(ShapeError, match=r"\(7, 5\).*got a target of type"):
        loss(output, target)  # the last two would broadcast silently


def test_losses_refuse_outputs_without_a_batch():
    with pytest.raises(ShapeError, match="unsqueeze"):
        cross_entropy(torch.zeros(3), torch.tensor(1))
    with pytest.raises(ShapeError, match="scalar"):
        squared_error(torch.tensor(1.0), torch.tensor(1.0))


def test_accuracy_counts_right_predictions(vectors):
    output = 2 * one_hot()
    assert accuracy(output, LABELS) == 1.0
    output[:3] = output[:3].roll(1, dims=1)
    assert accuracy(output, LABELS) == pytest.approx(4 / 7)
    assert accuracy(output, one_hot()) == pytest.approx(4 / 7)
    assert accuracy(vectors, vectors) == 1.0


def test_accuracy_counts_not_a_number_as_wrong():
    output = torch.full((4, 3), math.nan)
    assert accuracy(output, torch.zeros(4, dtype=torch.long)) == 0.0


def test_accuracy_refuses_what_it_cannot_count():
    with pytest.raises(ShapeError, match="at least one sample"):
        accuracy(torch.zeros(0, 3), torch.zeros(0, dtype=torch.long))
    with pytest.raises(ShapeError, match="batch, classes"):
        accuracy(torch.zeros(2, 3, 4), torch.zeros(2, 4, dtype=torch.long))
    with pytest.raises(ShapeError, match="got a target"):
        accuracy(torch.zeros(2, 3), torch.zeros(3, dtype=torch.long))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_check_probabilities_admits_them_in_any_precision(vectors, dtype):
    check_probabilities(vectors.to(dtype))
    check_probabilities(vectors[:, :, None].expand(-1, -1, 4).to(dtype))


def test_check_probabilities_leaves_labels_and_other_shapes_to_the_loss():
    check_probabilities(LABELS)
    check_probabilities(torch.full((3,), -1.0))


@pytest.mark.parametrize(
    "row",
    [[1.5, -0.5], [0.3, 0.3], [0.0, 0.0], [math.nan, 1.0], [math.inf, 0.0]],
    ids=["negative", "sum below 1", "zeros", "not a number", "infinite"],
)
def test_check_probabilities_refuses_other_values(row):
    with pytest.raises(InputError, match="use squared_error"):
        check_probabilities(torch.tensor([[0.5, 0.5], row]))


@pytest.mark.parametrize(
    "loss",
    [cross_entropy, squared_error, nn.CrossEntropyLoss(), nn.functional.mse_loss],
    ids=["cross_entropy", "squared_error", "module", "function"],
)
@pytest.mark.parametrize(
    ("output", "got"),
    [({"logits": torch.zeros(2, 3)}, "a dict of logits"), ((torch.zeros(2, 3),), "a tuple of 1")],
)
def test_output_that_is_no_tensor_is_refused_with_two_remedies(loss, output, got):
    said = rf"^the model.s output must be a tensor for this loss, got {got}; use loss='model' .*\.$"
    with pytest.raises(ArgumentTypeError, match=said) as caught:
        call_loss(loss, output, torch.tensor([0, 1]))
    assert "a callable that selects a tensor" in str(caught.value)


@pytest.mark.parametrize("output", [torch.zeros(2), {"logits": torch.zeros(2)}, {"loss": None}, 3])
def test_loss_of_the_model_refuses_an_output_without_one(output):
    with pytest.raises(ArgumentTypeError, match=r"output\.loss or output\['loss'\], got a"):
        LOSSES["model"](output, None)


def test_whole_loss_takes_exactly_one_form():
    def whole(model, batch):
        return model(batch)

    def loss(outputs, batch):
        return outputs.sum()

    for wrong in [
        {},
        {"outputs": whole},
        {"loss": loss},
        {"function": whole, "outputs": whole, "loss": loss},
        {"function": 3},
        {"outputs": whole, "loss": 3},
    ]:
        with pytest.raises(ArgumentTypeError, match="whole_loss takes"):
            whole_loss(**wrong)
    assert whole_loss(whole).parts == (whole,)
    assert whole_loss(outputs=whole, loss=loss).parts == (whole, loss)


SCORES, KNOWN_LABELS = torch.zeros(4, 3), torch.tensor([0, 2, 1, 2])


class OwnEntropy(nn.CrossEntropyLoss):
    def forward(self, input, target):
        return super().forward(input, target).square()


class OwnSquares(nn.MSELoss):
    def forward(self, input, target):
        return super().forward(input, target).sqrt()


@pytest.mark.parametrize(
    "loss",
    [
        cross_entropy,
        functional.cross_entropy,
        nn.CrossEntropyLoss(),
        nn.CrossEntropyLoss(torch.ones(3), label_smoothing=0.1, reduction="sum"),
    ],
)
def test_cross_entropy_is_recognized_however_it_is_given(loss):
    assert is_cross_entropy(loss)
    assert not is_squared_error(loss)


@pytest.mark.parametrize(
    "loss", [squared_error, functional.mse_loss, nn.MSELoss(), nn.MSELoss(reduction="sum")]
)
def test_squared_error_is_recognized_however_it_is_given(loss):
    assert is_squared_error(loss)
    assert not is_cross_entropy(loss)


@pytest.mark.parametrize("loss", [OwnEntropy(), OwnSquares(), nn.NLLLoss(), nn.L1Loss(), None])
def test_subclasses_and_other_losses_are_neither(loss):
    assert not is_cross_entropy(loss)
    assert not is_squared_error(loss)


def test_subclass_of_the_cross_entropy_is_not_known():
    assert known_loss(nn.CrossEntropyLoss(), SCORES, KNOWN_LABELS) is not None
    assert known_loss(OwnEntropy(), SCORES, KNOWN_LABELS) is None
    assert known_loss(OwnSquares(), SCORES, SCORES) is None


def doubled(module, inputs, value):
    return 2 * value


def hooked(kind):
    loss = kind()
    loss.register_forward_hook(doubled)
    return loss


def pre_hooked(kind):
    loss = kind()
    loss.register_forward_pre_hook(lambda module, inputs: (inputs[0] * 2, inputs[1]))
    return loss


def backward_hooked(kind):
    loss = kind()
    loss.register_full_backward_hook(lambda module, given, received: None)
    return loss


def replaced(kind):
    loss = kind()
    plain = loss.forward
    loss.forward = lambda output, target: 2 * plain(output, target)
    return loss


@pytest.mark.parametrize("kind", [nn.CrossEntropyLoss, nn.MSELoss])
@pytest.mark.parametrize("change", [hooked, pre_hooked, backward_hooked, replaced])
def test_loss_with_hooks_or_another_forward_is_custom(kind, change):
    loss = change(kind)
    assert not is_cross_entropy(loss)
    assert not is_squared_error(loss)
    assert known_loss(loss, SCORES, SCORES if kind is nn.MSELoss else KNOWN_LABELS) is None


@pytest.mark.parametrize("kind", [nn.CrossEntropyLoss, nn.MSELoss])
def test_loss_whose_class_or_function_is_patched_is_custom(kind, monkeypatch):
    is_known = is_cross_entropy if kind is nn.CrossEntropyLoss else is_squared_error
    name = "cross_entropy" if kind is nn.CrossEntropyLoss else "mse_loss"
    for owner, attribute in ((kind, "forward"), (functional, name)):
        plain = getattr(owner, attribute)
        patched = functools.wraps(plain)(
            lambda *args, plain=plain, **more: 2 * plain(*args, **more)
        )
        with monkeypatch.context() as patch:
            patch.setattr(owner, attribute, patched)
            assert not is_known(kind())
        assert is_known(kind())


def test_loss_is_custom_while_all_modules_have_a_hook():
    loss = nn.CrossEntropyLoss()
    handle = nn.modules.module.register_module_forward_hook(doubled)
    try:
        assert not is_cross_entropy(loss)
        assert is_cross_entropy(functional.cross_entropy)  # hooks are of modules
    finally:
        handle.remove()
    assert is_cross_entropy(loss)


@pytest.mark.parametrize("loss", [functional.mse_loss, nn.MSELoss()])
def test_targets_that_are_broadcast_make_a_mean_square_unknown(loss):
    assert known_loss(loss, SCORES, torch.zeros(4, 3)) is not None
    assert known_loss(loss, SCORES, torch.zeros(4, 1)) is None
    assert known_loss(loss, SCORES, torch.zeros(3)) is None


class RunningMean(nn.Module):
    """Mean squared error over a running mean of itself."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.ones(()))
        self.values = []

    def forward(self, output, target):
        value = functional.mse_loss(output, target)
        self.mean.lerp_(value.detach(), 0.5)
        self.values.append(value.item())
        return value / self.mean


def test_stateless_loss_is_the_same_function_at_every_call():
    loss, output, target = RunningMean(), torch.ones(3, 2), torch.zeros(3, 2)
    same = stateless_loss(loss, [loss])
    assert same(output, 3 * target + 2) == same(output, 3 * target + 2)
    assert same(2 * output, target) == same(2 * output, target)
    assert (loss.mean.item(), loss.values) == (1.0, [])
    assert stateless_loss(functional.mse_loss, []) is functional.mse_loss


class CountingLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, output, target):
        self.calls += 1
        return self.calls * functional.mse_loss(output, target)


def test_stateless_loss_does_not_count_its_calls():
    loss, output, target = CountingLoss(), torch.ones(3, 2), torch.zeros(3, 2)
    same = stateless_loss(loss, [loss])
    assert [same(output, target).item() for _ in range(2)] == [1.0, 1.0]
    assert loss.calls == 0
    weighted = nn.CrossEntropyLoss(weight=torch.ones(2))  # known in closed form if it stays itself
    assert stateless_loss(weighted, [weighted]) is weighted


@pytest.mark.parametrize("loss", [CountingLoss, RunningMean])
@pytest.mark.parametrize("kind", ["ggn", "hessian"])
def test_curvature_is_that_of_the_first_call_of_a_loss_with_state(loss, kind):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    x, y = torch.randn(8, 3).double(), torch.randn(8, 2).double()
    scale = (loss().double()(model(x), y) / functional.mse_loss(model(x), y)).item()
    found = top_eigenvalue(model, loss().double(), (x, y), kind=kind, tol=1e-6).value
    expected = top_eigenvalue(model, nn.MSELoss(), (x, y), kind=kind, tol=1e-6).value
    assert found == pytest.approx(scale * expected, rel=1e-5)


def test_loss_modules_are_found_in_closures_partials_and_methods():
    loss, model = RunningMean(), nn.Linear(1, 1)
    assert loss_modules(lambda output, target: loss(output, target), model) == [loss]
    assert loss_modules(partial(loss.forward, target=None), model) == [loss]
    assert loss_modules(nn.Sequential(model), model) == []  # it contains the model
