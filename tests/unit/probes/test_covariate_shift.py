"""Definition 2.1 against a formula by hand and against copies that are really stepped."""

import ctypes

import numpy as np
import pytest
import torch
from tests.references.probes import covariate_shift
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.optim.optimizer import register_optimizer_step_post_hook

import normscope as ns
from normscope.errors import ArgumentTypeError, InputError, NormscopeWarning, StateError
from normscope.probes import Scope
from normscope.problem import cross_entropy, squared_error


def measured(model, optimizer, data, loss="cross_entropy", **options):
    scope = Scope(model, loss, optimizer, ["covariate_shift"], **options)
    scope.step(*data)
    return scope.results.isel(step=0)


def batch(shape=(1, 8, 8), samples=6):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(samples, *shape, generator=generator, dtype=torch.double)
    return x, torch.randint(0, 10, (samples,), generator=generator)


def test_two_linear_layers_follow_the_formula():
    # f = a b x; L = |f - y|^2 / 2m; the gradient by a is e (b x)^T / m, that by b is a^T e x^T / m
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4, bias=False), nn.Linear(4, 2, bias=False)).double()
    x = torch.randn(5, 3, generator=generator, dtype=torch.double)
    y = torch.randn(5, 2, generator=generator, dtype=torch.double)
    b, a = (layer.weight.detach() for layer in model)
    rate = 0.2
    error = x @ b.T @ a.T - y
    by_a = error.T @ (x @ b.T) / 5
    by_b = a.T @ error.T @ x / 5
    moved = b - rate * by_b
    by_a_moved = (x @ moved.T @ a.T - y).T @ (x @ moved.T) / 5
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    results = measured(model, optimizer, (x, y), "squared_error")
    distance = (by_a - by_a_moved).norm().item()
    cosine = ((by_a * by_a_moved).sum() / (by_a.norm() * by_a_moved.norm())).item()
    assert results["layer"].values.tolist() == ["0", "1"]
    np.testing.assert_allclose(results["shift_distance"], [0.0, distance], rtol=1e-12)
    np.testing.assert_allclose(results["shift_cosine"], [1.0, cosine], rtol=1e-12)
    alone = measured(model, None, (x, y), "squared_error", learning_rate=rate)
    np.testing.assert_allclose(alone["shift_distance"], results["shift_distance"], rtol=1e-12)


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1),
    "momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01),
    "nesterov": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True, foreach=True),
    "fused": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, fused=True),
    "adam": lambda p: torch.optim.Adam(p, 0.05),
    "adamw fused": lambda p: torch.optim.AdamW(p, 0.05, fused=True),
    "adamw tensor rate": lambda p: torch.optim.AdamW(p, torch.tensor(0.05), foreach=False),
    "amsgrad": lambda p: torch.optim.Adam(p, 0.05, amsgrad=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.01, centered=True, momentum=0.5),
    "adagrad": lambda p: torch.optim.Adagrad(p, 0.05),
    "rprop": lambda p: torch.optim.Rprop(p, 0.01),
    "maximize": lambda p: torch.optim.SGD(p, 0.1, maximize=True),
}


def named(model, *prefixes):
    starts = tuple(f"{prefix}." for prefix in prefixes)
    return [name for name, _ in model.named_parameters() if name.startswith(starts)]


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("trained", [0, 3])
def test_update_is_the_optimizers_own(kind, trained):
    model = ns.models.build(
        "fully_connected", input_shape=(1, 8, 8), width=7, depth=3, activation="tanh"
    ).double()
    optimizer = OPTIMIZERS[kind](model.parameters())
    data = batch()
    for _ in range(trained):  # so that it has a state
        optimizer.zero_grad()
        cross_entropy(model(data[0]), data[1]).backward()
        optimizer.step()
    names = [name for name, _ in model.named_children()]
    layers = [n for n, m in model.named_modules() if isinstance(m, nn.Linear)]
    children = [n for n, m in model.named_modules() if next(m.parameters(False), None) is not None]
    own = [named(model, layer) for layer in layers]
    before = [named(model, *children[: children.index(layer)]) for layer in layers]
    before[0] = []
    assert names
    assert len(before[1]) == 4  # weight and bias of the first layer, gamma and beta of its norm
    expected = covariate_shift(model, optimizer, cross_entropy, *data, own, before)
    results = measured(model, optimizer, data)
    assert results["layer"].values.tolist() == layers
    distances, cosines = zip(*expected, strict=True)
    np.testing.assert_allclose(results["shift_distance"], distances, rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(results["shift_cosine"], cosines, rtol=1e-10)


class Backwards(nn.Module):
    """Runs its layers in another order than it registers them; one of them is never run."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(4, 10)
        self.unused = nn.Linear(2, 2)
        self.norm = nn.BatchNorm1d(4)
        self.first = nn.Linear(3, 4)

    def forward(self, x):
        return self.last(torch.tanh(self.norm(self.first(x))))


def test_layers_are_in_the_order_they_run():
    model = Backwards().double()
    data = batch((3,))
    optimizer = torch.optim.SGD(model.parameters(), 0.3)
    results = measured(model, optimizer, data)
    assert results["layer"].values.tolist() == ["first", "last", "unused"]
    assert np.isnan(results["shift_distance"].values[2])  # has no gradient
    own = [named(model, "first"), named(model, "last")]
    before = [[], named(model, "first", "norm")]
    expected = covariate_shift(model, optimizer, cross_entropy, *data, own, before)
    np.testing.assert_allclose(results["shift_distance"][:2], [e[0] for e in expected], rtol=1e-10)


def test_norm_before_the_first_layer_takes_its_update():
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 10)).double()
    data = batch((3,))
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    expected = covariate_shift(
        model, optimizer, cross_entropy, *data, [named(model, "1")], [named(model, "0")]
    )
    results = measured(model, optimizer, data)
    assert expected[0][0] > 1e-3
    np.testing.assert_allclose(results["shift_distance"], [expected[0][0]], rtol=1e-10)


def test_tied_weight_belongs_to_the_first_layer():
    model = nn.Sequential(nn.Linear(10, 10), nn.Tanh(), nn.Linear(10, 10), nn.Linear(10, 10))
    model[2].weight = model[0].weight
    model[3] = model[0]
    results = measured(model, torch.optim.SGD(model.parameters(), 0.5), batch((10,)))
    assert results["layer"].values.tolist() == ["0", "2"]  # "2" has a bias of its own
    assert (results["shift_distance"].values[1:] > 0).all()


def test_frozen_layer_has_no_shift():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 10)).double()
    model[1].requires_grad_(False)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.5)
    shifts = measured(model, optimizer, batch((3,)))["shift_distance"].values
    assert np.isnan(shifts[1])
    assert shifts[0] == 0 < shifts[2]


def test_parametrized_layer_is_one_layer():
    model = nn.Sequential(
        parametrizations.weight_norm(nn.Linear(3, 4)), nn.Tanh(), nn.Linear(4, 10)
    ).double()
    data = batch((3,))
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    results = measured(model, optimizer, data)
    assert results["layer"].values.tolist() == ["0", "2"]
    expected = covariate_shift(
        model, optimizer, cross_entropy, *data, [named(model, "2")], [named(model, "0")]
    )
    assert results["shift_distance"].values[1] == pytest.approx(expected[0][0], rel=1e-10)


def test_recurrent_layer_uses_the_moved_weights():
    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.read = nn.LSTM(3, 4, batch_first=True)
            self.head = nn.Linear(4, 10)

        def forward(self, x):
            return self.head(self.read(x)[0][:, -1])

    model = Reader().double()
    data = batch((5, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    expected = covariate_shift(
        model, optimizer, cross_entropy, *data, [named(model, "head")], [named(model, "read")]
    )
    results = measured(model, optimizer, data)
    assert results["layer"].values.tolist() == ["read", "head"]
    assert results["shift_distance"].values[1] == pytest.approx(expected[0][0], rel=1e-10)


def test_attention_layers_all_have_a_place():
    model = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).double()
    x, _ = batch((5, 8))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    results = measured(model, optimizer, (x, torch.zeros_like(x)), squared_error)
    layers = results["layer"].values.tolist()
    assert layers == ["self_attn", "self_attn.out_proj", "linear1", "linear2"]
    assert np.isfinite(results["shift_cosine"]).all()


class Sum(nn.Module):
    """A weight that is the sum of two: both have one gradient, in one tensor or one memory."""

    def __init__(self, flat):
        super().__init__()
        self.one = nn.Parameter(torch.randn((160 * 128,) if flat else (160, 128)) * 0.1)
        self.other = nn.Parameter(torch.randn(160, 128) * 0.1)

    def forward(self, x):
        return functional.linear(x, self.one.view(160, 128) + self.other)


@pytest.mark.parametrize("flat", [True, False])
def test_parameters_may_share_one_gradient(flat):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 128), nn.Tanh(), Sum(flat)).double()
    data = batch((8,))
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    expected = covariate_shift(
        model, optimizer, cross_entropy, *data, [named(model, "2")], [named(model, "0")]
    )
    results = measured(model, optimizer, data)
    assert results["shift_distance"].values[1] == pytest.approx(expected[0][0], rel=1e-10)
    assert results["shift_cosine"].values[1] == pytest.approx(expected[0][1], rel=1e-10)


def test_gradient_may_be_one_number_for_all_entries():
    class Shifted(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(160, 128))

        def forward(self, x):
            return x + self.weight.sum().tanh()

    model = nn.Sequential(nn.Linear(8, 10), Shifted()).double()
    results = measured(model, torch.optim.SGD(model.parameters(), 0.5), batch((8,)))
    assert np.isfinite(results["shift_distance"]).all()


class RootHead(nn.Module):
    """A parameter of the model itself that is used last."""

    def __init__(self):
        super().__init__()
        self.head = nn.Parameter(torch.randn(10, 5))
        self.body = nn.Linear(4, 5)

    def forward(self, x):
        return functional.linear(torch.tanh(self.body(x)), self.head)


def test_parameter_of_the_model_itself_has_the_place_of_its_use():
    model = RootHead().double()
    data = batch((4,))
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    expected = covariate_shift(
        model, optimizer, cross_entropy, *data, [["head"]], [named(model, "body")]
    )
    results = measured(model, optimizer, data)
    assert results["layer"].values.tolist() == ["body", "RootHead"]
    assert expected[0][0] > 1e-2
    np.testing.assert_allclose(results["shift_distance"], [0, expected[0][0]], rtol=1e-10)


def test_projection_within_attention_runs_after_its_parents_weights():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(10, 2, batch_first=True)

        def forward(self, x):
            return self.attention(x, x, x)[0].mean(1)

    model = Attention().double()
    data = batch((5, 10))
    optimizer = torch.optim.SGD(model.parameters(), 2.0)
    own = named(model, "attention.out_proj")
    before = [name for name in named(model, "attention") if name not in own]
    expected = covariate_shift(model, optimizer, cross_entropy, *data, [own], [before])
    results = measured(model, optimizer, data)
    assert results["layer"].values.tolist() == ["attention", "attention.out_proj"]
    assert expected[0][0] > 1e-2
    np.testing.assert_allclose(results["shift_distance"], [0, expected[0][0]], rtol=1e-10)
    np.testing.assert_allclose(results["shift_cosine"], [1, expected[0][1]], rtol=1e-10)


class Hidden(torch.autograd.Function):
    """Reads a weight behind torch's back."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x)
        memory = (ctypes.c_double * weight.numel()).from_address(weight.data_ptr())
        return x @ torch.from_numpy(np.array(memory).reshape(weight.shape)).T

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return None, gradient.T @ x


def test_layer_whose_use_cannot_be_seen_has_no_shift():
    class Foreign(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 3))

        def forward(self, x):
            return Hidden.apply(x, self.weight)

    model = nn.Sequential(Foreign(), nn.Linear(4, 10)).double()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.warns(NormscopeWarning, match="where '0' ran cannot be seen"):
        results = measured(model, optimizer, batch((3,)))
    assert results["layer"].values.tolist() == ["1", "0"]
    assert np.isnan(results["shift_distance"].values[1])


def test_layer_that_runs_at_later_steps_only_is_listed_from_the_start():
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.maker, self.judge = nn.Linear(4, 4), nn.Linear(4, 10)

    uses = []

    def loss(model, data):
        x = model.maker(data[0]) if uses else data[0]
        return cross_entropy(model.judge(x), data[1])

    model = Pair().double()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    probes = ["covariate_shift", "gradient_norms"]
    scope = Scope(model, ns.whole_loss(loss), optimizer, probes, every=1)
    scope.step(batch((4,)))
    uses.append(1)
    scope.step(batch((4,)))
    results = scope.results
    assert results["layer"].values.tolist() == ["judge", "maker"]
    assert np.isnan(results["gradient_norm"].sel(step=0, layer="maker"))
    assert results["gradient_norm"].sel(step=1, layer="maker") > 0
    assert results["shift_distance"].sel(step=1, layer="judge") > 0


def test_optimizer_with_attributes_of_its_own_is_copied():
    class Counting(torch.optim.SGD):
        def __init__(self, parameters):
            super().__init__(parameters, lr=0.1)
            self.taken = 0

        def step(self, closure=None):
            self.taken += 1
            return super().step(closure)

    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 10)).double()
    optimizer = Counting(model.parameters())
    results = measured(model, optimizer, batch((3,)))
    assert optimizer.taken == 0
    plain = measured(model, torch.optim.SGD(model.parameters(), 0.1), batch((3,)))
    assert results["shift_distance"].values[1] == plain["shift_distance"].values[1] > 0


def test_hooks_and_schedulers_do_not_see_the_update():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 10)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    seen = []
    optimizer.register_step_post_hook(lambda *_: seen.append(1))
    handle = register_optimizer_step_post_hook(lambda *_: seen.append(2))
    try:
        measured(model, optimizer, batch((3,)))
    finally:
        handle.remove()
    assert seen == []
    assert not hasattr(optimizer, "_opt_called")
    assert scheduler.last_epoch == 0


def test_optimizer_that_cannot_be_copied_is_named():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 10)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.stream = (number for number in range(3))
    with pytest.raises(StateError, match=r"optimizer cannot be copied .*'stream'"):
        measured(model, optimizer, batch((3,)))


class Sharp(torch.optim.Optimizer):
    """Takes no step without a closure."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure=None):
        assert closure is not None, "a closure is needed"


@pytest.mark.parametrize(
    ("make", "name"),
    [(Sharp, "Sharp"), (lambda p: torch.optim.SparseAdam(list(p), 0.1), "SparseAdam")],
)
def test_optimizer_without_a_plain_update_is_refused_where_it_is_needed(make, name):
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 10)).double()
    optimizer = make(model.parameters())
    with pytest.raises(StateError, match=rf"(?s)update of {name} cannot be .* covariate_shift"):
        Scope(model, "cross_entropy", optimizer, "all")
    assert measured_ray(model, optimizer) > 0


def measured_ray(model, optimizer):
    scope = Scope(model, "cross_entropy", optimizer, ["loss_variation"])
    scope.step(*batch((3,)))
    return scope.results["loss_high"].item()


def test_optimizer_without_a_learning_rate_is_refused_where_it_is_needed():
    class Plain(torch.optim.Optimizer):
        def __init__(self, parameters):
            super().__init__(parameters, {})

        def step(self, closure=None):
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.data -= 0.1 * parameter.grad

    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 10)).double()
    optimizer = Plain(model.parameters())
    with pytest.raises(InputError, match=r"loss_variation needs .* Plain has no 'lr'"):
        Scope(model, "cross_entropy", optimizer, ["loss_variation", "covariate_shift"])
    Scope(model, "cross_entropy", optimizer, ["loss_variation"], learning_rate=0.1)
    found = measured(model, optimizer, batch((3,)))
    expected = measured(model, torch.optim.SGD(model.parameters(), 0.1), batch((3,)))
    np.testing.assert_allclose(found["shift_distance"], expected["shift_distance"], rtol=1e-12)
    assert np.isnan(found["learning_rate"])


def test_optimizer_that_evaluates_the_loss_itself_is_refused():
    model = nn.Linear(3, 10)
    with pytest.raises(ArgumentTypeError, match="LBFGS evaluates the loss itself"):
        Scope(model, "cross_entropy", torch.optim.LBFGS(model.parameters()))
