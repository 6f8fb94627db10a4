from contextlib import nullcontext

import numpy as np
import pytest
import torch
import xarray as xr
from torch import nn

import normscope as ns
from normscope.errors import (
    ArgumentTypeError,
    InputError,
    NormscopeWarning,
    ShapeError,
    StateError,
    UnknownNameError,
)
from normscope.plots.names import quantity_name
from normscope.probes import PRESETS, PROBES, Curvature, LossVariation, Probe, Scope
from normscope.problem import cross_entropy


def net(**options):
    return ns.models.build("fully_connected", input_shape=(1, 8, 8), width=9, **options)


def batch(seed=0, samples=8):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, 1, 8, 8, generator=generator)
    return x, torch.randint(0, 10, (samples,), generator=generator)


def sgd(model, rate=0.1):
    return torch.optim.SGD(model.parameters(), rate)


def test_public_name_is_the_class():
    assert ns.Scope is Scope
    assert ns.probes.PROBES is PROBES


@pytest.mark.parametrize("name", PROBES)
def test_probe_measures_what_it_declares(name):
    model = net()
    scope = Scope(model, "cross_entropy", sgd(model), [name], every=1)
    for seed in range(2):
        scope.step(*batch(seed))
    probe = PROBES[name]()
    results = scope.results
    for variable, dimensions in probe.variables.items():
        assert results[variable].dims == ("step", *dimensions)
        assert np.isfinite(results[variable].isel(step=0)).any(), variable
    assert set(results.data_vars) == {*probe.variables, "loss", "learning_rate"}
    assert results["seed"].item() == 0
    assert PROBES.summary(name)


LESS_DRAWN = {  # of the probes' variables these have no panel: another one shows them
    *("loss_low", "loss_high", "smoothness", "top_eigenvalue_residual"),
    *("gradient_distance_low", "gradient_distance_high"),
    *("gradient_cosine_low", "gradient_cosine_high", "activation_mean", "activation_variance"),
    *("critical_rate_error", "directional_threshold"),
}


def panels(scope):
    return [axes.get_title().replace("\n", " ") for axes in scope.plot().axes]


@pytest.mark.parametrize("name", PROBES)
def test_plot_has_a_panel_for_each_quantity_of_a_probe(name):
    model = net()
    scope = Scope(model, "cross_entropy", sgd(model), [name], every=1)
    for seed in range(3):
        scope.step(*batch(seed))
    drawn = [each for each in PROBES[name]().variables if each not in LESS_DRAWN]
    assert panels(scope) == ["loss", *map(quantity_name, drawn)]


class CustomProbe(Probe):
    """A user's probe: the updates, over nothing, layers, distances and two dimensions at once."""

    name = "test_custom"
    needs_learning_rate = needs_update = True

    @property
    def variables(self):
        layers, units = ("layer",), ("layer", "unit")
        return {
            "update_norm": (),
            "weight_norm": layers,
            "unit_norm": units,
            "scaled": ("distance",),
            "table": ("distance", "unit"),
        }

    def coordinates(self, context):
        return {"unit": np.arange(2)}

    def measure(self, context):
        own, updated = context.parameters, context.updated_parameters
        assert context.updated_parameters is updated  # computed once
        moved = [float((updated[name] - own[name]).norm()) for name in updated]
        norms = [[float(own[name].norm()) for name in layer.parameters] for layer in context.layers]
        weights = np.array([np.linalg.norm(each) for each in norms])
        distances = np.array(context.distances)
        return {
            "update_norm": np.linalg.norm(moved),
            "weight_norm": weights,
            "unit_norm": np.stack([weights, weights], 1),
            "scaled": distances,
            "table": np.stack([distances, 2 * distances], 1),
        }


@pytest.mark.parametrize("maker", [sgd, lambda model: torch.optim.Adam(model.parameters())])
def test_custom_probe_sees_the_update_and_is_drawn(maker):
    model = net()
    optimizer = maker(model)
    scope = Scope(model, "cross_entropy", optimizer, [CustomProbe()], every=1)
    steps = []
    for seed in range(3):
        x, y = batch(seed)
        before = [each.detach().clone() for each in model.parameters()]
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        scope.step(x, y)
        optimizer.step()
        after = [each.detach() for each in model.parameters()]
        moved = [float((a - b).norm()) for a, b in zip(after, before, strict=True)]
        steps.append(np.linalg.norm(moved))
    np.testing.assert_allclose(scope.results["update_norm"], steps, rtol=1e-4)
    assert panels(scope) == ["loss", *(each.replace("_", " ") for each in CustomProbe().variables)]
    drawn = scope.plot().axes
    layers = scope.results.sizes["layer"]
    assert [len(axes.lines) for axes in drawn] == [1, 1, layers, layers, 2, 2]
    assert "weight norm" in scope._repr_html_()


@pytest.mark.parametrize("name", PROBES)
def test_same_seed_gives_the_same_values(name):
    def run(seed):
        model = net(norm="noisy")
        scope = Scope(model, "cross_entropy", sgd(model), [name], every=1, seed=seed)
        for number in range(3):
            scope.step(*batch(number))
        return scope.results

    assert run(3).identical(run(3))


def test_results_are_written_as_netcdf(tmp_path):
    model = net()
    scope = Scope(model, "cross_entropy", sgd(model), "full")
    scope.step(*batch())
    scope.results.to_netcdf(tmp_path / "scope.nc", engine="scipy")
    with xr.open_dataset(tmp_path / "scope.nc", engine="scipy") as read:
        assert read["ray_loss"].values.tolist() == scope.results["ray_loss"].values.tolist()
        assert read["layer"].values.tolist() == scope.results["layer"].values.tolist()


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_run(preset):
    model = net()
    scope = Scope(model, "cross_entropy", sgd(model), preset, every=10)
    scope.step(*batch())
    assert scope.results.sizes["step"] == 1
    assert all(probe in str(scope.cost) for probe in scope.cost.probes)


class Counted(torch.autograd.Function):
    """Counts forward and backward passes in a list of two."""

    @staticmethod
    def forward(ctx, x, counts):
        ctx.counts = counts
        counts[0] += 1
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.counts[1] += 1
        return gradient, None


@pytest.mark.parametrize(
    ("probes", "text"),
    [
        ("economy", "about 3.67 forward+backward passes per measured step"),
        ("standard", "about 9.33 forward+backward passes per measured step"),
        ("gradient_norms", "about 1 forward+backward passes per measured step"),
        ("covariate_shift", "measured every 10 steps: 40.0% of the training"),  # four layers
    ],
)
def test_cost_is_what_is_counted(probes, text):
    counts = [0, 0]  # outside the model, whose attributes are put back
    model = net()
    optimizer = sgd(model)
    model.register_forward_hook(lambda _, inputs, output: Counted.apply(output, counts))
    scope = Scope(model, "cross_entropy", optimizer, probes, every=10)
    for seed in range(3):  # the second is looked at if that completes the first, no further one
        scope.step(*batch(seed))
    forward, backward = counts
    assert scope.cost.passes == pytest.approx(forward / 3 + backward * 2 / 3)
    assert text in str(scope.cost)


def test_costs_rise_with_the_presets():
    model = net()
    passes = [
        Scope(model, "cross_entropy", sgd(model), preset).cost.passes
        for preset in ("economy", "standard", "full")
    ]
    assert passes == sorted(passes)
    assert passes[0] == pytest.approx(1 + 8 / 3)
    assert passes[1] == pytest.approx(1 + 8 + 1 / 3)


def test_covariate_shift_says_what_it_adds():
    model = net()
    text = str(Scope(model, "cross_entropy", sgd(model), "covariate_shift").cost)
    assert "about 3  covariate_shift: at most one for each layer after the first" in text


def test_results_are_empty_before_the_first_step():
    model = net()
    scope = Scope(model, "cross_entropy", sgd(model))
    assert dict(scope.results.sizes) == {}
    with pytest.raises(StateError, match="nothing to draw"):
        scope.plot()


def test_steps_name_what_is_measured():
    model = net()
    scope = Scope(model, "cross_entropy", sgd(model), "gradient_norms", steps=[1, 3])
    assert [scope.step(*batch()) for _ in range(5)] == [False, True, False, True, False]
    assert scope.results["step"].values.tolist() == [1, 3]
    assert "2 measured, at step 5" in repr(scope)


def test_budget_limits_the_time_spent():
    model = net()
    scope = Scope(model, "cross_entropy", sgd(model), "economy", budget=1e-9)
    measured = [scope.step(*batch()) for _ in range(5)]
    assert measured == [True, False, False, False, False]
    assert scope.overhead > 1e-9


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (
            "los_variation",
            "unknown probe or preset 'los_variation'; did you mean 'loss_variation'?",
        ),
        (["curvatur"], "unknown probe 'curvatur'; did you mean 'curvature'?"),
        (["standard", "curvature"], "'standard' is a preset, not a probe, and must be given alone"),
    ],
)
def test_unknown_probe_names_the_closest(choice, message):
    model = net()
    with pytest.raises(UnknownNameError) as caught:
        Scope(model, "cross_entropy", sgd(model), choice)
    assert message in str(caught.value)


def test_wrong_probes_are_refused():
    model = net()
    with pytest.raises(InputError, match="'curvature' is asked for twice"):
        Scope(model, "cross_entropy", probes=["curvature", Curvature()])
    with pytest.raises(ArgumentTypeError, match="names and probes such as CovariateShift"):
        Scope(model, "cross_entropy", probes=[3])
    with pytest.raises(InputError, match="no probe is asked for"):
        Scope(model, "cross_entropy", probes=[])


def test_optimizer_of_another_model_is_refused():
    with pytest.raises(InputError, match="holds parameters that are not the model's"):
        Scope(net(), "cross_entropy", sgd(net()))
    with pytest.raises(ArgumentTypeError, match="the torch Optimizer that trains the model"):
        Scope(net(), "cross_entropy", ns.sgd(0.1))


def test_model_must_be_a_module():
    with pytest.raises(ArgumentTypeError, match=r"must be an nn\.Module, got function"):
        Scope(lambda x: x, "cross_entropy")


@pytest.mark.parametrize("rate", [-0.1, float("inf"), float("nan")])
def test_senseless_learning_rate_is_refused(rate):
    with pytest.raises(InputError, match="learning_rate must be finite and not negative"):
        Scope(net(), "cross_entropy", learning_rate=rate)


def test_batch_that_does_not_fit_is_refused():
    scope = Scope(net(), "cross_entropy", probes="gradient_norms", every=1)
    x, y = batch()
    with pytest.raises(ShapeError, match="given to step does not fit together"):
        scope.step(x, y[:-1])
    with pytest.raises(ArgumentTypeError, match=r"step takes inputs and targets, step\(x, y\)"):
        scope.step(x)


def test_closed_scope_measures_no_more():
    scope = Scope(net(), "cross_entropy", probes="gradient_norms")
    scope.step(*batch())
    scope.close()
    scope.close()
    with pytest.raises(StateError, match="the scope is closed; make a new one"):
        scope.step(*batch())
    assert scope.results.sizes["step"] == 1
    assert "closed" in repr(scope)


def test_configured_probe_serves_several_scopes():
    probe = Curvature()
    model = net()
    scopes = [Scope(model, "cross_entropy", probes=[probe]) for _ in range(2)]
    for scope in scopes:
        scope.step(*batch())
    assert scopes[0].results.identical(scopes[1].results)
    assert probe._start is None
    assert repr(probe) == "Curvature(kind='hessian', tolerance=0.003, max_products=60)"


class Failing(Probe):
    """Breaks off in the middle of a pass."""

    name = "failing"
    error: BaseException = ZeroDivisionError("in the probe")

    @property
    def variables(self):
        return {"nothing": ()}

    def measure(self, context):
        with context.batch_loss.at(context.copy_parameters()):
            torch.rand(3)
            np.random.rand()  # noqa: NPY002 - it must be put back too
            context.observed.model.features[0].weight.data.fill_(3.0)
            context.batch_loss.forward()
            raise self.error


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_failing_probe_leaves_everything_as_it_was(error):
    model = net(norm="noisy")
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    x, y = batch()
    for _ in range(2):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()

    def everything():
        slots = [model.state_dict(), optimizer.state_dict()["state"]]
        gradients = [p.grad.clone() for p in model.parameters()]
        own = [(id(p), p.clone()) for p in model.parameters()]
        flags = [module.training for module in model.modules()]
        random = torch.get_rng_state(), np.random.get_state()[1]  # noqa: NPY002
        return [repr(part) for part in (*slots, gradients, own, flags, *random)]

    before = everything()
    probe = Failing()
    probe.error = error("in the probe")
    scope = Scope(model, "cross_entropy", optimizer, ["gradient_norms", probe], every=1)
    with pytest.raises(error, match="in the probe"):
        scope.step(x, y)
    assert everything() == before
    assert scope.results.sizes.get("step", 0) == 0


def test_gradients_of_the_training_are_neither_read_nor_changed():
    model = net()
    optimizer = sgd(model)
    clean = Scope(model, "cross_entropy", optimizer, "all")
    clean.step(*batch())
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 1e6)  # accumulated, scaled, clipped ...
    other = Scope(model, "cross_entropy", optimizer, "all")
    other.step(*batch())
    assert clean.results.identical(other.results)
    assert all(bool((p.grad == 1e6).all()) for p in model.parameters())


def test_flags_are_taken_as_they_are():
    model = net()
    x, y = batch()
    for training in (True, False):
        model.train(training)
        scope = Scope(model, "cross_entropy", sgd(model), "loss_variation")
        with nullcontext() if training else pytest.warns(NormscopeWarning, match="in eval mode"):
            scope.step(x, y)
        buffers = [b.clone() for b in model.buffers()]
        expected = cross_entropy(model(x), y).item()
        for old, new in zip(buffers, model.buffers(), strict=True):
            new.copy_(old)
        assert scope.results["loss"].item() == pytest.approx(expected, rel=1e-6)
        assert {module.training for module in model.modules()} == {training}


def test_works_without_gradient_mode():
    model = net()
    scope = Scope(model, "cross_entropy", sgd(model), ["gradient_predictiveness"], every=1)
    scope.step(*batch())
    with torch.no_grad():
        scope.step(*batch())
    with torch.inference_mode():
        scope.step(*batch())
    distances = scope.results["gradient_distance"].values
    assert np.array_equal(distances[0], distances[1])
    assert np.array_equal(distances[0], distances[2])


def test_training_under_autocast_is_measured_under_it():
    model = net(norm="layer")
    x, y = batch()
    scope = Scope(model, "cross_entropy", sgd(model), ["loss_variation"], every=1)
    scope.step(x, y)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = cross_entropy(model(x), y)  # fills autocast's memory of cast weights
        scope.step(x, y)
        assert cross_entropy(model(x), y).item() == inside.item()
    plain, cast = scope.results["ray_loss"].values
    assert scope.results["loss"].values[1] == pytest.approx(inside.item(), rel=1e-6)
    assert not np.array_equal(plain, cast)
    np.testing.assert_allclose(plain, cast, rtol=0.05)
    assert len(set(cast)) > 1  # the moved weights were used, not the remembered ones


def test_probe_base_class_cannot_be_made():
    with pytest.raises(TypeError, match="abstract"):
        Probe()
    assert isinstance(LossVariation(), Probe)


def test_model_may_write_to_its_parameters_and_inputs():
    class Clamping(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(64, 10)

        def forward(self, x):
            self.linear.weight.data.mul_(0.5)
            x.mul_(0.0)
            return self.linear(x.flatten(1))

    model = Clamping()
    x, y = batch()
    kept, weight = x.clone(), model.linear.weight.detach().clone()
    scope = Scope(model, "cross_entropy", sgd(model), "all")
    scope.step(x, y)
    assert torch.equal(x, kept)
    assert torch.equal(model.linear.weight, weight)


def test_model_that_is_one_layer_has_a_name_in_the_results():
    line = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(line.parameters(), lr=0.1)
    with Scope(line, "squared_error", optimizer, probes="gradient_norms", every=1) as scope:
        for _ in range(2):
            scope.step(torch.ones(4, 3), torch.zeros(4, 2))
            optimizer.step()
    assert scope.results["layer"].values.tolist() == ["Linear"]
    assert scope.results.sizes["step"] == 2


def train_with(probes, mode="as_is", held=("features.1",), steps=3):
    """Train a network with some modules in eval mode; return it, the losses and the scope."""
    torch.manual_seed(0)
    model = net(depth=3).train()
    for name in held:
        model.get_submodule(name).eval()
    optimizer, losses = sgd(model), []
    scope = probes and Scope(model, "cross_entropy", optimizer, probes, every=1, mode=mode)
    for seed in range(steps):
        x, y = batch(seed)
        loss = cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        if scope:
            scope.step(x, y)
        optimizer.step()
        losses.append(loss.item())
    return model, losses, scope


def test_training_of_a_partly_frozen_network_is_bit_identical():
    plain, losses, _ = train_with(None)
    for mode in ("as_is", "train", "frozen", "eval"):
        observed, same, _ = train_with("all", mode)
        assert same == losses
        pairs = zip(plain.state_dict().values(), observed.state_dict().values(), strict=True)
        assert all(torch.equal(one, other) for one, other in pairs)
        assert [m.training for m in observed.modules()] == [m.training for m in plain.modules()]


@pytest.mark.parametrize("mode", ["as_is", "train", "eval"])
def test_scope_measures_what_the_flags_say(mode):
    model, _, _ = train_with(None, steps=1)
    scope = Scope(model, "cross_entropy", sgd(model), ["curvature"], mode=mode)
    scope.step(*batch(7))
    found = {
        each: ns.curvature.top_eigenvalue(model, "cross_entropy", batch(7), "hessian", each).value
        for each in ("as_is", "train", "eval")
    }
    assert scope.results["top_eigenvalue"].item() == pytest.approx(found[mode], rel=0.02)
    assert len({round(value, 1) for value in found.values()}) == 3
    if mode != "as_is":
        model.train(mode == "train")
    expected = cross_entropy(model(batch(7)[0]), batch(7)[1]).item()
    assert scope.results["loss"].item() == pytest.approx(expected, rel=1e-6)


def test_probe_may_have_another_mode_than_the_scope():
    _, _, scope = train_with([Curvature(mode="eval")], steps=1)
    _, _, forced = train_with(["curvature"], "eval", steps=1)
    assert scope.results["top_eigenvalue"].item() == forced.results["top_eigenvalue"].item()


def test_model_in_eval_mode_gets_one_warning():
    model = net().eval()
    scope = Scope(model, "cross_entropy", sgd(model), ["loss_variation"], every=1)
    with pytest.warns(NormscopeWarning, match="in eval mode") as caught:
        scope.step(*batch(0))
    assert caught[0].filename == __file__
    scope.step(*batch(1))
    Scope(model, "cross_entropy", sgd(model), ["loss_variation"], mode="eval").step(*batch(0))
    plain = net(norm="none").eval()
    Scope(plain, "cross_entropy", sgd(plain), ["loss_variation"]).step(*batch(0))


def test_unknown_mode_is_refused():
    model = net()
    with pytest.raises(UnknownNameError, match="as_is"):
        Scope(model, "cross_entropy", sgd(model), mode="asis")


@pytest.mark.parametrize("held", [False, True])
def test_loss_with_a_penalty_is_measured_or_refused(held):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    data = torch.randn(8, 3, dtype=torch.float64), torch.arange(8) % 2
    parameters = list(model.parameters())

    def loss(output, target):
        own = parameters if held else model.parameters()
        return cross_entropy(output, target) + sum(each.square().sum() for each in own)

    with ns.Scope(model, loss, learning_rate=0.1, probes=["loss_variation"]) as scope:
        if held:
            with pytest.raises(StateError, match=r"'0.weight' through a reference of its own"):
                scope.step(*data)
            assert all(parameter.grad is None for parameter in parameters)
            return
        scope.step(*data)
    gradients = torch.autograd.grad(loss(model(data[0]), data[1]), parameters)
    distance = float(scope.results["distance"][0])
    with torch.no_grad():
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.sub_(0.1 * distance * gradient)
        expected = loss(model(data[0]), data[1]).item()
    assert float(scope.results["ray_loss"][0, 0]) == pytest.approx(expected, rel=1e-12)


class ActivatedSyncBatchNorm(nn.SyncBatchNorm):
    """As timm's ``SyncBatchNormAct``: the activation is part of the norm layer."""

    def forward(self, input):
        return torch.tanh(super().forward(input))


def test_sync_batch_norm_with_its_own_forward_keeps_it():
    x, y = batch()
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 9), ActivatedSyncBatchNorm(9))
    scope = Scope(model, "cross_entropy", sgd(model), ["gradient_norms"], every=1)
    scope.step(x, y)
    expected = nn.functional.cross_entropy(model(x), y).item()
    assert scope.results["loss"].item() == pytest.approx(expected, rel=1e-6)
