from functools import partial

import numpy as np
import pytest
import torch
from tests.references.curvature import Reference, hessian_by_double_loop
from tests.unit.curvature.networks import NETWORKS, batch, network
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from normscope.curvature import dense, operator
from normscope.curvature.chains import ChainJacobian
from normscope.curvature.jacobian import GraphJacobian
from normscope.errors import (
    ArgumentTypeError,
    InputError,
    NormscopeError,
    NormscopeWarning,
    ShapeError,
    StateError,
    UnknownNameError,
)
from normscope.problem import whole_loss

KINDS = ("fisher", "ggn", "hessian")
MODES = ("train", "frozen", "eval")


def relative_error(measured, expected):
    return float((measured - expected).norm() / expected.norm())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", NETWORKS)
def test_operator_equals_finite_differences(name, mode):
    model, data = network(name), batch(name)
    reference = Reference(model, functional.cross_entropy, data, mode, seed=5)
    for kind in KINDS:
        measured = dense(model, functional.cross_entropy, data, kind=kind, mode=mode, seed=5)
        assert relative_error(measured, reference.matrix(kind)) < 1e-6
        assert relative_error(measured, measured.T) < 1e-12


def bounded_error(output, target):
    """Twice differentiable, not convex, known to nobody."""
    return torch.sin(output - target.unsqueeze(1)).square().mean()


@pytest.mark.parametrize("loss", ["squared_error", functional.mse_loss, bounded_error])
@pytest.mark.parametrize("kind", KINDS)
def test_operator_equals_finite_differences_for_other_losses(loss, kind):
    model, (inputs, labels) = network("torch_batch"), batch("torch_batch")
    one_hot = functional.one_hot(labels, 2).double()
    target = labels if loss is bounded_error else one_hot
    measured = dense(model, loss, (inputs, target), kind=kind)
    plain = (lambda f, y: (f - y).square().sum() / 2 / len(f)) if loss == "squared_error" else loss
    expected = Reference(model, plain, (inputs, target), "train").matrix(kind)
    assert relative_error(measured, expected) < 1e-6


@pytest.mark.parametrize("name", ["torch_batch", "our_batch", "layer", "conv2d", "embedding"])
def test_hessian_equals_double_loop_also_in_the_rows_of_gamma(name):
    model, data = network(name), batch(name)
    expected = hessian_by_double_loop(network(name).train(), functional.cross_entropy, data)
    matrix = operator(model, functional.cross_entropy, data, kind="hessian")
    measured = matrix @ torch.eye(matrix.shape[0], dtype=torch.float64)
    assert relative_error(measured, expected) < 1e-12
    norms = [
        n
        for n, module in model.named_modules()
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.LayerNorm)
    ]
    gamma = matrix.slices[f"{norms[0]}.weight"]
    assert relative_error(measured[gamma], expected[gamma]) < 1e-12


@pytest.mark.parametrize("kind", KINDS)
def test_functional_batch_norm_is_frozen_too(kind):
    from tests.unit.curvature.networks import Functional, dense_net, randomized

    plain = randomized(Functional())
    twin = randomized(dense_net(nn.BatchNorm1d(4, affine=False)))
    twin[0], twin[3] = plain.first, plain.head
    data = batch("torch_batch")
    for mode in ("train", "frozen"):
        measured = dense(plain, functional.cross_entropy, data, kind=kind, mode=mode)
        expected = Reference(twin, functional.cross_entropy, data, mode).matrix(kind)
        assert relative_error(measured, expected) < 1e-6


def test_frozen_differs_from_train_and_eval():
    model, data = network("torch_batch"), batch("torch_batch")
    train, frozen, eval_ = (
        dense(model, functional.cross_entropy, data, mode=mode) for mode in MODES
    )
    assert relative_error(frozen, train) > 0.1
    assert relative_error(frozen, eval_) > 0.1


def test_modes_leave_layer_group_and_instance_norm_alone():
    for name in ("layer", "group", "instance"):
        train, frozen, eval_ = (
            dense(network(name), functional.cross_entropy, batch(name), mode=mode) for mode in MODES
        )
        assert torch.equal(train, frozen)
        assert torch.equal(train, eval_)


@pytest.mark.parametrize("mode", MODES)
def test_several_batches_are_the_mean_weighted_by_samples(mode):
    model = network("torch_batch")
    sizes = (7, 4, 3)
    batches = [batch("torch_batch", m, seed=m) for m in sizes]
    references = [Reference(model, functional.cross_entropy, b, mode) for b in batches]
    for kind in KINDS:
        measured = dense(model, functional.cross_entropy, batches, kind=kind, mode=mode)
        parts = [m * r.matrix(kind) for m, r in zip(sizes, references, strict=True)]
        assert relative_error(measured, sum(parts) / sum(sizes)) < 1e-6
    made = operator(model, functional.cross_entropy, batches, mode=mode)
    assert (made.batch_size, made.batch_sizes, made.samples) == (7, sizes, 14)


WEIGHTS = torch.tensor([1.0, 20.0, 0.1, 3.0]).double()
REDUCED = {
    "ignored": nn.CrossEntropyLoss(),
    "class ignored": nn.CrossEntropyLoss(ignore_index=1),
    "weighted": nn.CrossEntropyLoss(weight=WEIGHTS),
    "sum": nn.CrossEntropyLoss(reduction="sum"),
}


@pytest.mark.parametrize("loss", REDUCED.values(), ids=REDUCED)
@pytest.mark.parametrize("kind", ["hessian", "ggn", "fisher"])
def test_several_batches_count_as_in_the_loss_over_all_data(loss, kind):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(30, 5, generator=generator, dtype=torch.float64)
    y = torch.randint(4, (30,), generator=generator)
    y[:12] = loss.ignore_index  # of the first batch all, of the second some
    model = nn.Sequential(nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, 4)).double()
    parts = list(zip(x.split(8), y.split(8), strict=True))
    whole = dense(model, loss, (x, y), kind=kind, mode="eval")
    in_parts = dense(model, loss, parts, kind=kind, mode="eval")
    torch.testing.assert_close(in_parts, whole, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("function", [functional.mse_loss, functional.huber_loss])
@pytest.mark.parametrize("kind", ["hessian", "ggn"])
def test_functions_that_sum_are_summed_over_batches(function, kind):
    x, model = torch.randn(30, 5).double(), nn.Linear(5, 2).double()
    parts = [(each, torch.zeros(len(each), 2).double()) for each in x.split(8)]
    loss = partial(function, reduction="sum")
    whole = dense(model, loss, (x, torch.zeros(30, 2).double()), kind=kind)
    torch.testing.assert_close(dense(model, loss, parts, kind=kind), whole)


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_sum_written_by_hand_warns_over_several_batches(reduction):
    def loss(output, target):
        return functional.cross_entropy(output, target, reduction=reduction)

    x, y, model = torch.randn(9, 5), torch.randint(3, (9,)), nn.Linear(5, 3)
    batches = [(x[:5], y[:5]), (x[5:], y[5:])]
    if reduction == "sum":
        with pytest.warns(NormscopeWarning, match="two batches together is the sum of theirs"):
            dense(model, loss, batches)
    else:
        torch.testing.assert_close(dense(model, loss, batches), dense(model, loss, (x, y)))


def test_data_of_ignored_labels_alone_is_refused():
    data = [(torch.randn(3, 2), torch.full((3,), -100))] * 2
    with pytest.raises(InputError, match="ignores every label"):
        operator(nn.Linear(2, 4), nn.CrossEntropyLoss(), data, kind="hessian")


def test_batch_size_is_part_of_the_question():
    model, (inputs, labels) = network("torch_batch"), batch("torch_batch", 32)
    largest = []
    for size in (32, 16, 8, 4):
        batches = list(zip(inputs.split(size), labels.split(size), strict=True))
        measured = dense(model, functional.cross_entropy, batches, kind="hessian")
        parts = [
            Reference(model, functional.cross_entropy, b, "train").matrix("hessian")
            for b in batches
        ]
        expected = torch.linalg.eigvalsh(sum(parts) / len(parts))[-1]
        largest.append(float(torch.linalg.eigvalsh(measured)[-1]))
        assert largest[-1] == pytest.approx(float(expected), rel=1e-6)
    assert min(abs(a / b - 1) for a in largest for b in largest if a != b) > 0.005
    evaluated = [
        dense(model, functional.cross_entropy, data, kind="hessian", mode="eval")
        for data in (
            (inputs, labels),
            list(zip(inputs.split(4), labels.split(4), strict=True)),
        )
    ]
    assert relative_error(*evaluated) < 1e-12


@pytest.mark.parametrize("batches", [1, 3])
def test_matmat_is_matvec_column_by_column(batches):
    data = [batch("residual", 6, seed=s) for s in range(batches)]
    made = operator(network("residual"), functional.cross_entropy, data, kind="hessian")
    block = torch.randn(made.shape[0], 3, dtype=torch.float64)
    columns = torch.stack([made.matvec(column) for column in block.T], dim=1)
    assert torch.allclose(made @ block, columns, rtol=1e-12, atol=1e-14)
    assert torch.equal(made @ block[:, 0], made.matvec(block[:, 0]))


@pytest.mark.parametrize("kind", KINDS)
def test_params_select_a_block_of_the_whole(kind):
    model, data = network("residual"), batch("residual")
    whole = operator(model, functional.cross_entropy, data, kind=kind)
    matrix = whole @ torch.eye(whole.shape[0], dtype=torch.float64)
    choices = {
        "block": ["block.0.weight", "block.0.bias", "block.2.weight", "block.2.bias"],
        "head.weight": ["head.weight"],
    }
    for choice, names in choices.items():
        for params in (choice, names, [dict(model.named_parameters())[n] for n in names]):
            part = operator(model, functional.cross_entropy, data, kind=kind, params=params)
            assert part.names == tuple(names)
            rows = torch.cat([torch.arange(matrix.shape[0])[whole.slices[n]] for n in names])
            block = part @ torch.eye(part.shape[0], dtype=torch.float64)
            assert relative_error(block, matrix[rows][:, rows]) < 1e-12


def test_params_keep_the_order_of_the_model():
    model, data = network("residual"), batch("residual")
    made = operator(model, functional.cross_entropy, data, params=["head.bias", "stem.weight"])
    assert made.names == ("stem.weight", "head.bias")
    assert made.slices == {"stem.weight": slice(0, 12), "head.bias": slice(12, 14)}


def test_tied_weight_is_there_once():
    model = network("tied")
    made = operator(model, functional.cross_entropy, batch("tied"))
    assert made.names == tuple(name for name, _ in model.named_parameters())
    assert made.shape[0] == sum(p.numel() for p in model.parameters())
    alias = operator(model, functional.cross_entropy, batch("tied"), params="second.weight")
    assert alias.names == ("first.weight",)


def test_parameters_without_gradient_are_left_out():
    model = network("torch_batch")
    model[0].weight.requires_grad_(False)
    made = operator(model, functional.cross_entropy, batch("torch_batch"))
    assert "0.weight" not in made.names
    with pytest.raises(InputError, match=r"0\.weight.*requires_grad=False"):
        operator(model, functional.cross_entropy, batch("torch_batch"), params="0.weight")


def test_dropout_is_fixed_by_the_seed():
    model, data = network("dropout"), batch("dropout")
    one, again, other = (
        operator(model, functional.cross_entropy, data, kind="hessian", seed=s) for s in (0, 0, 1)
    )
    vector = torch.ones(one.shape[0], dtype=torch.float64)
    assert torch.equal(one @ vector, one @ vector)
    assert torch.equal(one @ vector, again @ vector)
    assert not torch.allclose(one @ vector, other @ vector)
    twice = operator(model, functional.cross_entropy, [data, data], kind="hessian")
    assert torch.equal(twice @ vector, twice @ vector)


def test_shuffling_loader_gives_the_same_operator_each_time():
    inputs, labels = batch("dropout", 12)
    loader = DataLoader(TensorDataset(inputs, labels), batch_size=4, shuffle=True)
    own = DataLoader(
        TensorDataset(inputs, labels),
        batch_size=4,
        shuffle=True,
        generator=torch.Generator().manual_seed(3),
    )
    model = network("dropout")
    for data in (loader, own):
        before = torch.get_rng_state()
        state = own.generator.get_state()
        made = operator(model, functional.cross_entropy, data)
        vector = torch.ones(made.shape[0], dtype=torch.float64)
        assert torch.equal(made @ vector, made @ vector)
        assert torch.equal(torch.get_rng_state(), before)
        assert torch.equal(own.generator.get_state(), state)


def test_data_that_changes_between_passes_is_refused():
    class Changing:
        def __init__(self):
            self.passes = 0

        def __iter__(self):
            self.passes += 1
            for seed in range(2):
                inputs, labels = batch("torch_batch", 5, seed)
                yield inputs + self.passes, labels

    made = operator(network("none"), functional.cross_entropy, Changing())
    with pytest.raises(StateError, match="same values each time"):
        made @ torch.ones(made.shape[0], dtype=torch.float64)


def test_operator_stays_at_the_point_where_it_was_made():
    for data in (batch("torch_batch"), [batch("torch_batch"), batch("torch_batch", 5)]):
        model = network("torch_batch")
        made = operator(model, functional.cross_entropy, data, kind="hessian", mode="eval")
        vector = torch.ones(made.shape[0], dtype=torch.float64)
        before = made @ vector
        with torch.no_grad():
            for tensor in [*model.parameters(), model[1].running_var]:
                tensor.add_(1.0)
        assert torch.equal(made @ vector, before)


def test_whole_loss_has_the_same_hessian():
    model, (inputs, labels) = network("torch_batch"), batch("torch_batch")
    loss = whole_loss(lambda net, b: functional.cross_entropy(net(b["x"]), b["y"]))
    data = {"x": inputs, "y": labels}
    expected = dense(model, functional.cross_entropy, (inputs, labels), kind="hessian")
    found = dense(model, loss, data, kind="hessian")  # by a graph, the other layer by layer
    assert (found - expected).norm() <= 1e-12 * expected.norm()
    with pytest.raises(StateError, match="whole_loss"):
        operator(model, loss, data, kind="ggn")


def test_to_scipy_gives_the_same_products():
    from scipy.sparse.linalg import eigsh

    made = operator(network("conv2d"), functional.cross_entropy, batch("conv2d"), kind="hessian")
    scipy = made.to_scipy()
    assert scipy.shape == made.shape
    assert scipy.dtype == np.float64
    vector = np.linspace(0, 1, made.shape[0])
    assert np.allclose(scipy @ vector, (made @ torch.from_numpy(vector)).numpy(), rtol=1e-13)
    block = np.stack([vector, vector**2], axis=1)
    assert np.allclose(scipy @ block, (made @ torch.from_numpy(block)).numpy(), rtol=1e-13)
    matrix = made @ torch.eye(made.shape[0], dtype=torch.float64)
    top = eigsh(scipy, k=1, which="LA", return_eigenvectors=False)[0]
    assert top == pytest.approx(float(torch.linalg.eigvalsh(matrix)[-1]), rel=1e-9)


def test_operator_works_inside_no_grad_and_inference_mode():
    model, data = network("torch_batch"), batch("torch_batch")
    expected = dense(model, functional.cross_entropy, data, kind="hessian")
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            assert torch.equal(
                dense(model, functional.cross_entropy, data, kind="hessian"), expected
            )


def test_operator_in_float32_and_bfloat16():
    model, (inputs, labels) = network("torch_batch"), batch("torch_batch")
    expected = dense(model, functional.cross_entropy, (inputs, labels))
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 0.05)):
        low = dense(network("torch_batch").to(dtype), functional.cross_entropy, (inputs, labels))
        assert low.dtype == dtype
        assert relative_error(low.double(), expected) < tolerance


def test_attention_has_curvature():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.MultiheadAttention(4, 2, batch_first=True)
            self.head = nn.Linear(4, 2)

        def forward(self, x):
            return self.head(self.inner(x, x, x, need_weights=False)[0].mean(1))

    torch.manual_seed(0)
    model, data = Attention().double(), (torch.randn(3, 5, 4).double(), torch.tensor([0, 1, 1]))
    measured = dense(model, functional.cross_entropy, data, kind="hessian")
    expected = Reference(model, functional.cross_entropy, data, "train").matrix("hessian")
    assert relative_error(measured, expected) < 1e-6


def test_recurrent_network_has_curvature():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.head = nn.LSTM(2, 3, batch_first=True), nn.Linear(3, 2)

        def forward(self, x):
            return self.head(self.inner(x)[0][:, -1])

    torch.manual_seed(0)
    model, data = Recurrent().double(), (torch.randn(4, 3, 2).double(), torch.tensor([0, 1, 1, 0]))
    measured = dense(model, functional.cross_entropy, data, kind="hessian")
    expected = Reference(model, functional.cross_entropy, data, "train").matrix("hessian")
    assert relative_error(measured, expected) < 1e-6


class InPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        hidden = torch.tanh(self.first(x))
        result = self.second(hidden)
        hidden += 1  # tanh's derivative needs the old value
        return result


class TupleOutput(nn.Linear):
    def forward(self, x):
        return super().forward(x), x


class Detached(nn.Linear):
    def forward(self, x):
        return super().forward(x).detach()


class Unread(nn.Linear):
    """A layer of one's own, which only a graph can multiply."""

    def forward(self, x):
        return torch.sin(super().forward(x))


class Mean(nn.Linear):
    def forward(self, x):
        return super().forward(x).mean(0, keepdim=True)


GOOD = (torch.ones(3, 3), torch.tensor([0, 1, 0]))
PLAIN = nn.Linear(3, 2)
BAD = {
    "no parameter": (nn.Tanh(), GOOD, {}, InputError, "no parameter"),
    "frozen model": (
        nn.Linear(3, 2).requires_grad_(False),
        GOOD,
        {},
        InputError,
        "requires_grad=False",
    ),
    "empty data": (PLAIN, [], {}, InputError, "empty"),
    "empty batch": (PLAIN, (torch.ones(0, 3), torch.ones(0)), {}, InputError, "empty"),
    "infinite data": (PLAIN, (GOOD[0] * torch.inf, GOOD[1]), {}, StateError, "not finite"),
    "in-place": (InPlace(), GOOD, {}, StateError, "in place"),
    "tuple output": (TupleOutput(3, 2), GOOD, {}, ArgumentTypeError, "must be a tensor"),
    "detached": (Detached(3, 2), GOOD, {}, StateError, "depends on the parameters"),
    "mixed rows": (Mean(3, 2), GOOD, {"loss": lambda f, y: f.mean()}, ShapeError, "one row per"),
    "vector loss": (
        PLAIN,
        GOOD,
        {"loss": nn.CrossEntropyLoss(reduction="none")},
        ShapeError,
        "must be a scalar",
    ),
    "number loss": (PLAIN, GOOD, {"loss": lambda f, y: 1.0}, ArgumentTypeError, "tensor"),
    "nan loss": (PLAIN, GOOD, {"loss": lambda f, y: f.mean() * torch.nan}, StateError, "finite"),
    "batch of one": (
        nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)),
        (GOOD[0][:1], GOOD[1][:1]),
        {},
        InputError,
        "more than one value per channel",
    ),
    "frozen batch of one": (
        nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)),
        (GOOD[0][:1], GOOD[1][:1]),
        {"mode": "frozen"},
        InputError,
        "more than one value per channel",
    ),
    "kind": (PLAIN, GOOD, {"kind": "hesian"}, UnknownNameError, "did you mean 'hessian'"),
    "mode": (PLAIN, GOOD, {"mode": "training"}, UnknownNameError, "did you mean 'train'"),
    "name": (PLAIN, GOOD, {"params": "weigth"}, UnknownNameError, "did you mean 'weight'"),
    "foreign tensor": (PLAIN, GOOD, {"params": torch.ones(2)}, InputError, "not a parameter"),
    "no name": (PLAIN, GOOD, {"params": []}, InputError, "names no parameter"),
    "number as name": (
        PLAIN,
        GOOD,
        {"params": [3]},
        ArgumentTypeError,
        "names of parameters or modules, and",
    ),
    "lazy": (nn.LazyLinear(2), GOOD, {}, InputError, "lazy"),
    "not a module": (lambda x: x, GOOD, {}, ArgumentTypeError, "Module"),
    "complex": (nn.Linear(3, 2, dtype=torch.complex64), GOOD, {}, InputError, "complex"),
}


def detached_loss(output, target):
    return nn.functional.cross_entropy(output, target).detach()


@pytest.mark.parametrize("model", [PLAIN, Unread(3, 2)], ids=["chain", "graph"])
@pytest.mark.parametrize("kind", ["ggn", "hessian"])
def test_loss_without_a_gradient_is_one_clear_sentence(model, kind):
    with pytest.raises(StateError, match=r"^the loss must be differentiable in the") as caught:
        operator(model, detached_loss, GOOD, kind) @ torch.ones(8)
    assert "\n" not in str(caught.value)


def test_fisher_matrix_needs_no_gradient_of_the_loss():
    expected = operator(PLAIN, nn.functional.cross_entropy, GOOD, "fisher") @ torch.ones(8)
    assert torch.equal(operator(PLAIN, detached_loss, GOOD, "fisher") @ torch.ones(8), expected)


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("kind", KINDS)
def test_bad_input_is_one_clear_sentence(case, kind):
    model, data, options, error, message = BAD[case]
    arguments = {"loss": functional.cross_entropy, "kind": kind, **options}
    loss = arguments.pop("loss")

    def measure():
        made = operator(model, loss, data, **arguments)
        made @ torch.ones(made.shape[0])

    with pytest.raises(error, match=message) as caught:
        measure()
    assert isinstance(caught.value, NormscopeError)
    assert "\n" not in str(caught.value)


def test_infinite_gradient_is_refused():
    data = (torch.zeros(2, 3), torch.tensor([0, 1]))
    model = nn.Linear(3, 2, bias=False)
    with pytest.raises(StateError, match="gradient is not finite"):
        operator(model, lambda f, y: f.abs().sqrt().sum() + (f * 0).sum(), data, kind="hessian")


def test_wrong_vectors_are_refused():
    made = operator(PLAIN, functional.cross_entropy, GOOD)
    with pytest.raises(ShapeError, match=r"\(8,\)"):
        made @ torch.ones(7)
    with pytest.raises(ArgumentTypeError, match="to_scipy"):
        made @ np.ones(8)
    with pytest.raises(InputError, match="meta"):
        made @ torch.ones(8, device="meta")


def test_frozen_refuses_a_layer_it_cannot_hold():
    class OwnNorm(nn.Module):
        num_features, eps, momentum, running_mean, running_var = 3, 1e-5, 0.1, None, None

        def forward(self, x):
            return (x - x.mean(0)) / x.std(0)

    model = nn.Sequential(nn.Linear(3, 3), OwnNorm(), nn.Linear(3, 2))
    data = (torch.randn(5, 3), torch.tensor([0, 1, 0, 1, 1]))
    operator(model, functional.cross_entropy, data, mode="train")
    with pytest.raises(StateError, match="OwnNorm"):
        operator(model, functional.cross_entropy, data, mode="frozen")


def test_repr_says_what_it_is():
    made = operator(PLAIN, functional.cross_entropy, GOOD)
    assert repr(made) == (
        "CurvatureOperator(ggn, mode='train', shape=(8, 8), 1 batch of 3 samples)"
    )


def test_dense_refuses_large_networks():
    with pytest.raises(InputError, match="20000"):
        dense(nn.Linear(200, 101), functional.cross_entropy, (torch.ones(2, 200), GOOD[1][:2]))


@pytest.mark.parametrize("kind", ["fisher", "ggn"])
@pytest.mark.parametrize("name", ["torch_batch", "conv2d", "residual"])
@pytest.mark.parametrize("batches", [1, 2])
def test_block_through_the_jacobian_is_that_of_single_products(kind, name, batches, monkeypatch):
    inputs, labels = batch(name)
    parts = list(zip(inputs.chunk(batches), labels.chunk(batches), strict=True))
    made = operator(network(name), functional.cross_entropy, parts, kind=kind)
    outputs = 2 * len(inputs)
    matrix = torch.randn(made.shape[0], outputs, dtype=torch.float64)
    single = torch.stack([made @ column.contiguous() for column in matrix.T], 1)
    rows = []
    for kind_of in (ChainJacobian, GraphJacobian):
        own = kind_of.pull_back
        monkeypatch.setattr(
            kind_of, "pull_back", lambda *given, own=own: rows.append(1) or own(*given)
        )
    assert (made @ matrix - single).norm() <= 1e-12 * single.norm()
    assert len(rows) == outputs  # not one for each column and batch
    few = matrix[:, :1]
    assert (made @ few - single[:, :1]).norm() <= 1e-12 * single.norm()


@pytest.mark.parametrize("kind", ["fisher", "ggn"])
def test_block_through_the_jacobian_knows_a_loss_without_closed_form(kind):
    inputs, _ = batch("torch_batch")
    targets = torch.randn(len(inputs), 2, dtype=torch.float64)

    def quartic(output, target):
        return (output - target).pow(4).mean() + output[:, 0].mul(output[:, 1]).pow(2).mean()

    made = operator(network("torch_batch"), quartic, (inputs, targets), kind=kind)
    matrix = torch.eye(made.shape[0], dtype=torch.float64)
    single = torch.stack([made @ column.contiguous() for column in matrix.T], 1)
    assert (made @ matrix - single).norm() <= 1e-12 * single.norm()
