"""Definition 2.1 against a formula by hand and against copies that are really stepped."""

import numpy as np
import pytest
import torch
from tests.references.probes import covariate_shift
from torch import nn
from torch.nn.utils import parametrizations
from torch.optim.optimizer import register_optimizer_step_post_hook

import normscope as ns
from normscope.errors import ArgumentTypeError, StateError
from normscope.losses import cross_entropy, squared_error
from normscope.probes import Scope


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
    assert results["layer"].values.tolist() == ["unused", "first", "last"]
    assert np.isnan(results["shift_distance"].values[0])  # has no gradient
    own = [named(model, "first"), named(model, "last")]
    before = [[], named(model, "first", "norm")]
    expected = covariate_shift(model, optimizer, cross_entropy, *data, own, before)
    np.testing.assert_allclose(results["shift_distance"][1:], [e[0] for e in expected], rtol=1e-10)


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


def test_optimizer_that_evaluates_the_loss_itself_is_refused():
    model = nn.Linear(3, 10)
    with pytest.raises(ArgumentTypeError, match="LBFGS evaluates the loss itself"):
        Scope(model, "cross_entropy", torch.optim.LBFGS(model.parameters()))
