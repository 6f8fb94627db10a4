import copy
import math
from functools import partial

import numpy as np
import pytest
import torch
import xarray as xr
from torch import nn

import normscope as ns
from normscope.errors import ArgumentTypeError, InputError, NormscopeWarning, StateError
from normscope.learning_rate.update_rule import UpdateRule, rule_of
from normscope.plots.edge_of_stability import stability_headline
from normscope.plots.stability import stability_gauge
from normscope.probes import Curvature, Scope, Stability
from normscope.probes.stability import FORWARD_PASSES, PRECISION

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.05),
    "momentum": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9),
    "nesterov": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, nesterov=True),
    "weight decay": lambda p: torch.optim.SGD(p, 0.05, momentum=0.5, weight_decay=0.1),
    "adam": lambda p: torch.optim.Adam(p, 0.002),
    "adamw": lambda p: torch.optim.AdamW(p, 0.002, weight_decay=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.002, momentum=0.5),
}
OTHERS = {  # followed by their real updates; their rules are not known
    "nadam": lambda p: torch.optim.NAdam(p, 0.002),
    "adagrad": lambda p: torch.optim.Adagrad(p, 0.01),
    "adamax": lambda p: torch.optim.Adamax(p, 0.002),
    "rprop": lambda p: torch.optim.Rprop(p, 0.002),
}
KNOWN, OPTIMIZERS = tuple(OPTIMIZERS), {**OPTIMIZERS, **OTHERS}
ALL = {"sharpness": True, "preconditioned_sharpness": True, "batch_sharpness": True}


def net(norm="batch", dtype=torch.float64, **options):
    options = {"input_shape": (1, 4, 4), "width": 8, "depth": 3, "activation": "tanh", **options}
    return ns.models.build("fully_connected", norm=norm, **options).to(dtype)


def batch(seed=0, samples=16, shape=(1, 4, 4), dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, *shape, generator=generator, dtype=dtype)
    return x, torch.randint(0, 10, (samples,), generator=generator)


def train(model, optimizer, batches, scope=None, loss=nn.functional.cross_entropy):
    for x, y in batches:
        optimizer.zero_grad()
        loss(model(x), y).backward()
        if scope is not None:
            scope.step(x, y)
        optimizer.step()


def flat(tensors):
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


class Quadratic:
    """Half the mean squared output of a linear model: the Hessian is X'X / m everywhere."""

    def __init__(self, size=6):
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(20, size, generator=generator, dtype=torch.float64)
        self.x *= torch.linspace(0.3, 3, size, dtype=torch.float64)
        self.y = torch.zeros(20, 1, dtype=torch.float64)
        self.hessian = self.x.T @ self.x / 20
        self.model = nn.Linear(size, 1, bias=False).double()
        start = torch.randn(1, size, generator=generator, dtype=torch.float64)
        self.model.weight.data.copy_(start)

    @property
    def weights(self):
        return self.model.weight.detach().flatten().clone()

    @property
    def gradient(self):
        return self.hessian @ self.weights

    def measure(self, optimizer, **options):
        scope = Scope(self.model, "squared_error", optimizer, [Stability(**options)], every=1)
        scope.step(self.x, self.y)
        return scope.results.isel(step=0)

    def take_step(self, optimizer):
        optimizer.zero_grad()
        (self.model(self.x).square().sum() / 40).backward()
        optimizer.step()


FIRST_UPDATES = {  # over -eta, by the rules of each optimizer at its first step
    "sgd": lambda g, w: g,
    "momentum": lambda g, w: g,
    "nesterov": lambda g, w: 1.9 * g,
    "weight decay": lambda g, w: g + 0.1 * w,
    "adam": lambda g, w: g.sign(),
    "adamw": lambda g, w: g.sign() + 0.1 * w,
    "rmsprop": lambda g, w: g.sign() / math.sqrt(0.01),
}


@pytest.mark.parametrize("name", FIRST_UPDATES)
def test_first_step_on_a_quadratic_has_the_closed_form(name):
    task = Quadratic()
    optimizer = OPTIMIZERS[name](task.model.parameters())
    rate = optimizer.param_groups[0]["lr"]
    gradient = task.gradient
    update = FIRST_UPDATES[name](gradient, task.weights)
    curvature = update @ task.hessian @ update
    found = task.measure(optimizer)
    expected = float(2 * gradient @ update / curvature)
    assert found["critical_rate"].item() == pytest.approx(expected, rel=1e-5)
    assert found["stability_distance"].item() == pytest.approx(expected / rate, rel=1e-5)
    assert found["critical_rate_error"].item() <= PRECISION
    sharpness = float(curvature / (update @ update))
    assert found["directional_sharpness"].item() == pytest.approx(sharpness, rel=1e-5)
    threshold = found["directional_threshold"].item()
    assert threshold / sharpness == pytest.approx(expected / rate, rel=1e-5)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_later_step_on_a_quadratic_follows_the_real_update(name):
    task = Quadratic()
    optimizer = OPTIMIZERS[name](task.model.parameters())
    for _ in range(7):
        task.take_step(optimizer)
    found = task.measure(optimizer)
    before, gradient = task.weights, task.gradient
    task.take_step(optimizer)
    update = task.weights - before
    slope, curvature = float(gradient @ update), float(update @ task.hessian @ update)
    expected = max(-2 * slope / curvature, 0.0)
    assert found["stability_distance"].item() == pytest.approx(expected, rel=1e-5)
    assert found["directional_threshold"].item() == pytest.approx(
        -2 * slope / float(update @ update), rel=1e-5
    )


def bisected_multiple(model, loss, x, y, update):
    """The multiple of the update at which the loss is that at the parameters, by bisection."""
    own = flat(model.parameters())
    twin = copy.deepcopy(model)

    def value(multiple):
        nn.utils.vector_to_parameters(own + multiple * update, twin.parameters())
        with torch.no_grad():
            return loss(twin(x), y).item()

    base, low, high = value(0.0), 0.0, 1.0
    while value(high) < base:
        low, high = high, 1.5 * high
    while low == 0.0 or high / low > 1.001:
        middle = (low + high) / 2
        low, high = (middle, high) if value(middle) < base else (low, middle)
    return high


@pytest.mark.parametrize("norm", ["none", "batch"])
@pytest.mark.parametrize("name", ["sgd", "nesterov", "adam", "rmsprop"])
def test_critical_rate_agrees_with_a_bisection(name, norm):
    model = net(norm)
    optimizer = OPTIMIZERS[name](model.parameters())
    scope = Scope(model, "cross_entropy", optimizer, ["stability"], every=1)
    compared = 0
    for seed in range(8):
        x, y = batch(seed)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        before, frozen = flat(model.parameters()), copy.deepcopy(model)
        gradient = flat([p.grad for p in model.parameters()])
        scope.step(x, y)
        optimizer.step()
        update = flat(model.parameters()) - before
        found = scope.results["stability_distance"].values[-1]
        if gradient @ update >= 0:
            assert found == 0
        else:
            assert np.isfinite(scope.results["critical_rate_error"].values[-1])
            expected = bisected_multiple(frozen, nn.functional.cross_entropy, x, y, update)
            assert found == pytest.approx(expected, rel=PRECISION)
            compared += 1
    assert compared >= 5


def hessian_of(model, x, y, loss=nn.functional.cross_entropy):
    """The dense Hessian of the loss, by autograd, in float64."""
    names = [name for name, _ in model.named_parameters()]
    shapes = [p.shape for p in model.parameters()]
    sizes = [p.numel() for p in model.parameters()]

    def value(vector):
        pieces = zip(names, torch.split(vector, sizes), shapes, strict=True)
        tensors = {name: piece.view(shape) for name, piece, shape in pieces}
        buffers = {name: b.clone() for name, b in model.named_buffers()}
        return loss(torch.func.functional_call(model, {**tensors, **buffers}, (x,)), y)

    return torch.autograd.functional.hessian(value, flat(model.parameters()))


@pytest.mark.parametrize(
    ("name", "divisor"),
    [("adam", "exp_avg_sq"), ("adamw", "exp_avg_sq"), ("rmsprop", "square_avg")],
)
def test_preconditioned_sharpness_agrees_with_the_dense_matrix(name, divisor):
    model = net(width=5)
    optimizer = OPTIMIZERS[name](model.parameters())
    train(model, optimizer, [batch(seed) for seed in range(4)])
    scope = Scope(model, "cross_entropy", optimizer, [Stability(preconditioned_sharpness=True)])
    hessian = hessian_of(model, *batch(4))
    train(model, optimizer, [batch(4)], scope)
    moments = flat([optimizer.state[p][divisor] for p in model.parameters()])
    correction = 1 - 0.999**5 if divisor == "exp_avg_sq" else 1.0
    scale = ((moments / correction).sqrt() + 1e-8).clamp(min=1e-6 * float(moments.sqrt().max()))
    root = scale.rsqrt()
    expected = torch.linalg.eigvalsh(root[:, None] * hessian * root)[-1].item()
    found = scope.results["preconditioned_sharpness"].item()
    error = scope.results["preconditioned_sharpness_error"].item()
    assert 0 < error < 3e-3
    assert found == pytest.approx(expected, rel=error)
    rate = optimizer.param_groups[0]["lr"]
    threshold = scope.results["preconditioned_threshold"].item()
    wanted = {"adam": 38 / rate, "adamw": 38 / rate - 1.9, "rmsprop": 3 / rate}[name]
    assert threshold == pytest.approx(wanted, rel=1e-3)


@pytest.mark.parametrize(("rate", "steps"), [(0.5, 7), (0.05, 7), (0.05, 0)])
def test_adafactor_is_followed_by_its_update_up_to_its_limit(rate, steps):
    task = Quadratic()
    optimizer = torch.optim.Adafactor(task.model.parameters(), rate)
    for _ in range(steps):
        task.take_step(optimizer)  # the eighth is limited to a rate of 0.354
    before, gradient = task.weights, task.gradient
    if rate == 0.5:
        with pytest.warns(NormscopeWarning, match="limits the rate to .*, here 0.354"):
            found = task.measure(optimizer)
        assert math.isnan(found["critical_rate"].item())
    else:
        found = task.measure(optimizer)
        beyond = rate * found["stability_distance"].item() > (steps + 1) ** -0.5
        assert math.isnan(found["critical_rate"].item()) == beyond
    task.take_step(optimizer)
    update = task.weights - before
    expected = -2 * float(gradient @ update) / float(update @ task.hessian @ update)
    assert found["stability_distance"].item() == pytest.approx(max(expected, 0.0), rel=1e-5)
    with pytest.raises(InputError, match="the update rule of Adafactor is not known"):
        Scope(task.model, "squared_error", optimizer, [Stability(preconditioned_sharpness=True)])


class MaskedNet(nn.Module):
    """Dropout with the masks of one seed, for a dense reference."""

    def __init__(self, model, seed):
        super().__init__()
        self.model, self.seed = model, seed

    def forward(self, x):
        torch.manual_seed(self.seed)
        return self.model(x)


def test_sharpness_with_dropout_is_that_of_one_mask():
    torch.manual_seed(0)
    model = nn.Sequential(net(width=5), nn.Dropout(0.5))
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    scope = Scope(model, "cross_entropy", optimizer, [Stability(**ALL)], every=1)
    for step in range(4):
        x, y = batch(step)
        seed = int(np.random.SeedSequence([0, step]).generate_state(1)[0])
        hessian = hessian_of(MaskedNet(model, seed), x, y)
        gradient = torch.autograd.grad(
            nn.functional.cross_entropy(MaskedNet(model, seed)(x), y), list(model.parameters())
        )
        train(model, optimizer, [(x, y)], scope)
        found = scope.results.isel(step=step)
        top = torch.linalg.eigvalsh(hessian)[-1].item()
        for name in ("sharpness", "preconditioned_sharpness"):
            error = found[f"{name}_error"].item()
            assert 0 < error < 3e-3
            assert found[name].item() == pytest.approx(top, rel=error)
        along = flat(gradient)
        expected = float(along @ hessian @ along / (along @ along))
        assert found["batch_sharpness"].item() == pytest.approx(expected, rel=1e-6)


def test_groups_with_their_own_rates_scale_the_metric():
    task = Quadratic()
    model = nn.Sequential(nn.Linear(6, 3, bias=False), nn.Linear(3, 1, bias=False)).double()
    groups = [{"params": model[0].parameters()}, {"params": model[1].parameters(), "lr": 0.02}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    scope = Scope(model, "squared_error", optimizer, [Stability(**ALL)])
    scope.step(task.x, task.y)
    hessian = hessian_of(model, task.x, task.y, lambda out, y: ((out - y) ** 2).sum() / 40)
    root = torch.cat([torch.ones(18), torch.full((3,), 0.2)]).double().sqrt()
    expected = torch.linalg.eigvalsh(root[:, None] * hessian * root)[-1].item()
    found = scope.results.isel(step=0)
    assert found["preconditioned_sharpness"].item() == pytest.approx(expected, rel=1e-2)
    assert found["preconditioned_threshold"].item() == pytest.approx(2 / 0.1)
    assert math.isnan(found["sharpness_threshold"].item())
    rates = torch.cat([torch.full((18,), 0.1), torch.full((3,), 0.02)]).double()
    output = model(task.x).square().sum() / 40
    gradient = flat(torch.autograd.grad(output, list(model.parameters())))
    update = rates * gradient
    along = float(update @ hessian @ update / (update @ update))
    assert found["directional_sharpness"].item() == pytest.approx(along, rel=1e-5)


def test_sharpness_is_the_top_eigenvalue_with_its_threshold():
    task = Quadratic()
    optimizer = torch.optim.SGD(task.model.parameters(), 0.1, momentum=0.9, weight_decay=0.5)
    found = task.measure(optimizer, sharpness=True, batch_sharpness=True)
    top = torch.linalg.eigvalsh(task.hessian)[-1].item()
    assert found["sharpness"].item() == pytest.approx(top, rel=1e-3)
    assert found["sharpness_threshold"].item() == pytest.approx(38 - 0.5)
    assert found["batch_threshold_large"].item() == pytest.approx(38 - 0.5)
    assert found["batch_threshold_small"].item() == pytest.approx(2 - 0.5)


def test_batch_sharpness_is_the_mean_over_batches():
    model, batches = net(width=5), [batch(seed) for seed in range(3)]
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    probe = Stability(batch_sharpness=True, batches=batches)
    scope = Scope(model, "cross_entropy", optimizer, [probe])
    scope.step(*batch(7))
    expected = []
    for x, y in batches:
        loss = nn.functional.cross_entropy(model(x), y)
        gradient = flat(torch.autograd.grad(loss, list(model.parameters())))
        hessian = hessian_of(model, x, y)
        expected.append(float(gradient @ hessian @ gradient / (gradient @ gradient)))
    assert scope.results["batch_sharpness"].item() == pytest.approx(np.mean(expected), rel=1e-6)


@pytest.mark.parametrize("rate", [0.05, 0.5])
@pytest.mark.parametrize(
    "rule",
    [
        UpdateRule("SGD", weight_decay=0.3),
        UpdateRule("SGD", momentum=0.9, dampening=0.2),
        UpdateRule("SGD", momentum=0.9, nesterov=True, weight_decay=0.1),
        rule_of(torch.optim.Adam([torch.zeros(1)], betas=(0.8, 0.99))),
        rule_of(torch.optim.AdamW([torch.zeros(1)], weight_decay=0.2)),
        rule_of(torch.optim.RMSprop([torch.zeros(1)], momentum=0.5)),
    ],
)
def test_critical_curvature_is_the_inverse_of_the_largest_rate(rule, rate):
    curvature = rule.critical_curvature(rate)
    assert rule.largest_stable_rate(curvature) == pytest.approx(rate)


class Counted(nn.Module):
    """Counts its forward passes outside of itself, where no isolation restores the count."""

    def __init__(self, inside, calls):
        super().__init__()
        self.inside, self.count = inside, calls.append

    def forward(self, x):
        self.count(1)
        return self.inside(x)


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_critical_rate_takes_at_most_six_forward_passes(name):
    calls = []
    model = Counted(net(), calls)
    optimizer = OPTIMIZERS[name](model.parameters())
    scope = Scope(model, "cross_entropy", optimizer, ["stability"], every=1)
    for seed in range(6):
        calls.clear()
        scope.step(*batch(seed))
        # one is the gradient's, which all probes share, and one the Hessian product's
        assert len(calls) <= 1 + FORWARD_PASSES + 1
        train(model, optimizer, [batch(seed)])


def state_bits(model, optimizer):
    values = [*model.state_dict().values(), *(p.grad for p in model.parameters())]
    for state in optimizer.state.values():
        values += [value for value in state.values() if isinstance(value, torch.Tensor)]
    return [value.clone() for value in values], torch.get_rng_state()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_is_bit_identical(name):
    def trained(with_scope):
        torch.manual_seed(0)
        model = nn.Sequential(net(dtype=torch.float32), nn.Dropout(0.2))
        optimizer = OPTIMIZERS[name](model.parameters())
        probe = Stability(**{**ALL, "preconditioned_sharpness": name in KNOWN})
        scope = Scope(model, "cross_entropy", optimizer, [probe], every=2) if with_scope else None
        batches = [batch(seed, dtype=torch.float32) for seed in range(5)]
        train(model, optimizer, batches, scope)
        if scope is not None:
            assert np.isfinite(scope.results["directional_sharpness"]).all()
        return state_bits(model, optimizer)

    (without, state), (with_it, same_state) = trained(False), trained(True)
    assert all(torch.equal(one, two) for one, two in zip(without, with_it, strict=True))
    assert torch.equal(state, same_state)


def test_critical_rate_survives_the_rounding_of_an_autocast():
    def measured(enabled):
        model = net(dtype=torch.float32)
        optimizer = torch.optim.SGD(model.parameters(), 1e-4)  # changes the loss by 1e-4
        scope = Scope(model, "cross_entropy", optimizer, ["stability"])
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            scope.step(*batch(samples=128, dtype=torch.float32))
        return scope.results["critical_rate"].item()

    assert measured(True) == pytest.approx(measured(False), rel=0.1)


def test_unknown_rule_is_refused_for_what_needs_it():
    model = net()
    optimizer = OPTIMIZERS["nadam"](model.parameters())
    with pytest.raises(InputError, match="the update rule of NAdam is not known; leave it out"):
        Scope(model, "cross_entropy", optimizer, [Stability(preconditioned_sharpness=True)])
    scope = Scope(model, "cross_entropy", optimizer, [Stability(sharpness=True)])
    scope.step(*batch())
    assert scope.results["critical_rate"].item() > 0
    assert math.isnan(scope.results["sharpness_threshold"].item())


def test_optimizer_whose_update_cannot_be_computed_is_refused():
    model = net()
    optimizer = torch.optim.SparseAdam(list(model.parameters()), 0.1)
    with pytest.raises(StateError, match=r"update of SparseAdam .* leave out the probe stab"):
        Scope(model, "cross_entropy", optimizer, ["stability"])


def test_wrong_options_are_refused():
    with pytest.raises(ArgumentTypeError, match="sharpness must be True or False, got 3"):
        Stability(sharpness=3)
    with pytest.raises(InputError, match="give batch_sharpness=True"):
        Stability(batches=[batch()])


def test_learning_rate_of_zero_has_no_distance():
    task = Quadratic()
    found = task.measure(torch.optim.SGD(task.model.parameters(), 0.0), sharpness=True)
    assert math.isnan(found["critical_rate"].item())
    assert math.isnan(found["sharpness_threshold"].item())


def test_update_lost_in_rounding_is_not_measured():
    task = Quadratic()
    model = task.model.float()
    optimizer = torch.optim.SGD(model.parameters(), 1e-9)
    scope = Scope(model, "squared_error", optimizer, ["stability"])
    with pytest.warns(NormscopeWarning, match="rounding of the parameters changes it"):
        scope.step(task.x.float(), task.y.float())
    assert math.isnan(scope.results["critical_rate"].item())


def test_maximizing_optimizer_is_not_measured():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, maximize=True)
    scope = Scope(model, "cross_entropy", optimizer, ["stability"])
    with pytest.warns(NormscopeWarning, match="the optimizer maximizes the loss"):
        scope.step(*batch())
    assert math.isnan(scope.results["critical_rate"].item())


def test_scope_without_an_optimizer_takes_gradient_steps():
    task = Quadratic()
    scope = Scope(task.model, "squared_error", None, [Stability(**ALL)], learning_rate=0.1)
    scope.step(task.x, task.y)
    gradient = task.gradient
    along = float(gradient @ task.hessian @ gradient / (gradient @ gradient))
    found = scope.results.isel(step=0)
    assert found["critical_rate"].item() == pytest.approx(2 / along, rel=1e-5)
    for name in ("directional", "preconditioned", "sharpness"):
        assert found[f"{name}_threshold"].item() == pytest.approx(20)
    top = torch.linalg.eigvalsh(task.hessian)[-1].item()
    assert found["preconditioned_sharpness"].item() == pytest.approx(top, rel=1e-2)


def test_scope_says_how_far_the_edge_is():
    task = Quadratic()
    optimizer = torch.optim.SGD(task.model.parameters(), 0.1)
    scope = Scope(task.model, "squared_error", optimizer, [Stability(sharpness=True)], every=1)
    assert " ".join(str(scope).splitlines()) == repr(scope)
    scope.step(task.x, task.y)
    sharpness = scope.results["sharpness"].item()  # its edge is nearer than that of one step
    assert 2 / sharpness < scope.results["critical_rate"].item()
    shown = str(scope).splitlines()
    assert max(map(len, shown)) <= 80
    first = stability_headline(scope.results)
    assert " ".join(shown).startswith(first)
    assert first.startswith(f"at {sharpness / 20:.2g} of the edge")
    assert f"unstable from {2 / sharpness:.2g} on; sharpness {sharpness:.3g} (edge 20)" in first
    assert "of the edge" in scope._repr_html_()
    figure = stability_gauge(scope.results)
    assert figure.get_suptitle() == first
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == ["critical learning rate", "sharpness along the update", "sharpness"]
    assert [len(axes.lines) for axes in figure.axes] == [2, 2, 2]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"critical_rate": 0.14, "stability_distance": 1.4}, "would be unstable from 0.14 on"),
        (
            {"critical_rate": 0.05, "stability_distance": 0.5},
            "at 2 of the edge; unstable from 0.05",
        ),
        ({"critical_rate": 0.0, "stability_distance": 0.0}, "no critical rate"),
        (
            {"stability_distance": 0.0, "sharpness": 30.0, "sharpness_threshold": 40.0},
            "at 0.75 of the edge; would be unstable",
        ),
        (
            {"stability_distance": 40.0, "loss": np.nan},
            "the loss is not finite; before, at 0.025 of the edge",
        ),
        (
            {"critical_rate": 8.0, "stability_distance": 80.0, "critical_rate_error": np.inf},
            "at most 0.013 of the edge; no instability up to 8",
        ),
        ({"critical_rate": np.nan, "stability_distance": np.nan}, ""),
    ],
)
def test_headline_names_the_edge(values, words):
    found = stability_headline(
        xr.Dataset({name: ("step", [9.0, *[value] * 5]) for name, value in values.items()})
    )
    assert words in found


def train_on_a_quadratic(rate, steps, **options):
    """A scope over SGD on w^2 / 2 from w = 1, and its words after each step."""
    model = nn.Linear(1, 1, bias=False).double()
    model.weight.data.fill_(1.0)
    optimizer = torch.optim.SGD(model.parameters(), rate, **options)
    scope = Scope(model, "squared_error", optimizer, ["stability"], every=1)
    x, y = torch.ones(4, 1).double(), torch.zeros(4, 1).double()
    words = []
    for _ in range(steps):
        train(model, optimizer, [(x, y)], scope, lambda out, y: (out - y).square().mean() / 2)
        words.append(stability_headline(scope.results))
    return scope, words


@pytest.mark.parametrize("rate", [0.02, 0.05])  # stable below 3.8
def test_headline_calls_no_stable_training_with_momentum_unstable(rate):
    scope, words = train_on_a_quadratic(rate, 40, momentum=0.9)
    assert (scope.results["stability_distance"] == 0).any()
    assert abs(scope.results["loss"].values[-1]) < scope.results["loss"].values[0]
    assert not any("beyond" in each or "; unstable" in each for each in words)
    assert any("no critical rate" in each for each in words)


def test_headline_calls_an_unstable_training_unstable():
    _, words = train_on_a_quadratic(2.5, 10)
    assert words[-1] == "at 1.2 of the edge; unstable from 2 on"


def test_headline_names_the_step_of_old_values():
    steps = {"stability_distance": ("step", [4.0, np.nan]), "loss": ("step", [1.0, 0.9])}
    found = stability_headline(xr.Dataset(steps, coords={"step": [0, 1]}))
    assert found == "at 0.25 of the edge; would be unstable; last measured at step 0"


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_first_group_without_a_rate_is_not_the_reference(kind):
    task = Quadratic()
    model = nn.Sequential(nn.Linear(6, 3, bias=False), nn.Linear(3, 1, bias=False)).double()
    groups = [{"params": model[0].parameters(), "lr": 0.0}, {"params": model[1].parameters()}]
    scope = Scope(model, "squared_error", kind(groups, lr=0.1), [Stability(**ALL)])
    scope.step(task.x, task.y)
    found = scope.results.isel(step=0)
    assert found["learning_rate"].item() == 0.1
    alone = kind(model[1].parameters(), lr=0.1)
    inner = Scope(model[1], "squared_error", alone, [Stability(**ALL)])
    inner.step(model[0](task.x).detach(), task.y)
    expected = inner.results.isel(step=0)
    for name in ("critical_rate", "preconditioned_sharpness", "preconditioned_threshold"):
        assert found[name].item() == pytest.approx(expected[name].item(), rel=1e-4)


def test_sharpness_of_a_search_that_did_not_converge_is_not_given(monkeypatch):
    task = Quadratic(60)
    optimizer = torch.optim.SGD(task.model.parameters(), 0.1)
    assert task.measure(optimizer, sharpness=True)["sharpness_error"].item() < 0.01
    short = partial(Curvature, max_products=2)
    monkeypatch.setattr("normscope.probes.stability.Curvature", short)
    with pytest.warns(NormscopeWarning, match="ended at a relative residual of 0"):
        found = task.measure(optimizer, sharpness=True)
    assert math.isnan(found["sharpness"].item())
    assert found["sharpness_error"].item() > PRECISION


def test_gauge_needs_the_probe():
    model = net()
    scope = Scope(model, "cross_entropy", learning_rate=0.1, probes=["gradient_norms"])
    scope.step(*batch())
    with pytest.raises(StateError, match="give the scope the probe 'stability'"):
        stability_gauge(scope.results)
