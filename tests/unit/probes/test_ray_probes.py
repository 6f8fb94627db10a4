"""The three probes along the gradient's ray, against copies of the model run one by one."""

import copy
import math
import types

import numpy as np
import pytest
import torch
from tests.references.probes import gradient_at, own_values, ray
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

import normscope as ns
from normscope.errors import InputError
from normscope.probes import EffectiveSmoothness, Scope
from normscope.problem import cross_entropy

RAY = ["loss_variation", "gradient_predictiveness", "effective_smoothness"]
DISTANCES = [0.01, 0.5, 1.0, 4.0]


def net(name="conv_net", **options):
    sizes = {"conv_net": {"channels": (4, 5)}, "fully_connected": {"width": 12, "depth": 3}}
    options = {"input_shape": (1, 8, 8), **sizes.get(name, {}), **options}
    return ns.models.build(name, **options).double()


def batch(samples=6, shape=(1, 8, 8)):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(samples, *shape, generator=generator, dtype=torch.double)
    return x, torch.randint(0, 10, (samples,), generator=generator)


def measured(model, optimizer, probes=RAY, loss="cross_entropy", data=None, **options):
    options = {"distances": DISTANCES, "every": 1, **options}
    with Scope(model, loss, optimizer, probes, **options) as scope:
        scope.step(*(batch() if data is None else data))
    return scope.results.isel(step=0)


def check_against_copies(model, rates, results, data, loss=cross_entropy):
    expected = ray(model, loss, *data, DISTANCES, rates)
    columns = {key: np.array([point[key] for point in expected]) for key in expected[0]}
    slopes = columns["distance"] / columns["length"]
    near = {"rtol": 1e-10, "atol": 1e-12}
    np.testing.assert_allclose(results["ray_loss"], columns["loss"], **near)
    np.testing.assert_allclose(results["gradient_distance"], columns["distance"], **near)
    np.testing.assert_allclose(results["gradient_cosine"], columns["cosine"], **near)
    np.testing.assert_allclose(results["smoothness"], slopes, rtol=1e-9)
    np.testing.assert_allclose(results["effective_smoothness"], slopes.max(), rtol=1e-9)
    for name, key in {"gradient_distance": "distance", "gradient_cosine": "cosine"}.items():
        assert results[f"{name}_low"].item() == pytest.approx(columns[key].min(), rel=1e-10)
        assert results[f"{name}_high"].item() == pytest.approx(columns[key].max(), rel=1e-10)
    assert results["loss_low"].item() == pytest.approx(columns["loss"].min(), rel=1e-10)
    assert results["loss_high"].item() == pytest.approx(columns["loss"].max(), rel=1e-10)


@pytest.mark.parametrize("norm", ["batch", "none", "l1", "layer"])
@pytest.mark.parametrize("name", ["conv_net", "fully_connected"])
def test_ray_agrees_with_copies_of_the_model(name, norm):
    model = net(name, norm=norm)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9, weight_decay=0.1)
    results = measured(model, optimizer)
    rates = {parameter: 0.3 for parameter, _ in model.named_parameters()}
    check_against_copies(model, rates, results, batch())
    assert results["learning_rate"].item() == 0.3
    value, _ = gradient_at(model, own_values(model), cross_entropy, *batch())
    assert results["loss"].item() == pytest.approx(value, rel=1e-12)


class UsedTwice(nn.Module):
    """Calls one layer twice, and uses the weight of another one more time."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        x = torch.tanh(self.first(torch.tanh(self.first(x.flatten(1)))))
        return self.head(torch.tanh(self.second(x)) + x @ self.second.weight)


class Branching(UsedTwice):
    """Calls a layer once more when its parameters have moved, and leaves another out."""

    def __init__(self):
        super().__init__()
        self.home = self.first.weight.sum().item()

    def forward(self, x):
        x = torch.tanh(self.first(x.flatten(1)))
        if abs(self.first.weight.sum().item() - self.home) > 1e-3:
            return self.head(torch.tanh(self.first(x)))
        return self.head(torch.tanh(self.second(input=x)))


class ReadsWeight(UsedTwice):
    """Reads the values of a weight, changes an output gradient and asks for that of its inputs."""

    def forward(self, x):
        hidden = self.first(x.flatten(1).requires_grad_())
        hidden.register_hook(lambda gradient: -gradient)
        return self.head(torch.tanh(self.second(hidden))) * self.first.weight.detach().norm()


def tied_weights():
    first, second = nn.Linear(64, 64), nn.Linear(64, 64)
    second.weight = first.weight
    return nn.Sequential(nn.Flatten(), first, nn.Tanh(), second, nn.Tanh(), nn.Linear(64, 10))


def hooked():
    model = tied_weights()
    model[3].register_forward_hook(lambda layer, _, output: output * layer.weight.detach().norm())
    return model


@pytest.mark.parametrize("make", [UsedTwice, Branching, ReadsWeight, tied_weights, hooked])
def test_ray_agrees_with_copies_of_unusual_models(make):
    torch.manual_seed(0)
    model = make().double()
    results = measured(model, torch.optim.SGD(model.parameters(), 0.3))
    expected = ray(model, cross_entropy, *batch(), DISTANCES, dict.fromkeys(own_values(model), 0.3))
    names = {"ray_loss": "loss", "gradient_distance": "distance", "gradient_cosine": "cosine"}
    for name, key in names.items():
        np.testing.assert_allclose(results[name], [point[key] for point in expected], rtol=1e-8)


def wide(bias=True):
    """Weights that are compared one by one, the second of them in several pieces."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, 512, bias=bias),
        nn.BatchNorm1d(512),
        nn.ReLU(inplace=True),
        nn.Linear(512, 600, bias=bias),
        nn.ReLU(inplace=True),  # writes to the output of the layer itself
        nn.Linear(600, 10),
    )


class Sequences(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.head = nn.Linear(64, 300), nn.Linear(300, 10)

    def forward(self, x):
        return self.head(torch.tanh(self.wide(x.flatten(2))).mean(1))


def forward_replaced():
    def forward(self, x):
        return nn.Sequential.forward(self, x) * self[1].weight.detach().norm() / 10

    model = wide()
    model.forward = types.MethodType(forward, model)
    return model


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize(
    "make",
    [
        wide,
        lambda: wide(bias=False),
        lambda: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), *wide()),
        Sequences,
        forward_replaced,
    ],
    ids=["wide", "without bias", "norm first", "sequences", "forward replaced"],
)
def test_ray_agrees_with_copies_of_wide_models(make, given):
    torch.manual_seed(0)
    model, (x, y) = make().double(), batch()
    expected = ray(model, cross_entropy, x, y, DISTANCES, dict.fromkeys(own_values(model), 0.3))
    optimizer = torch.optim.SGD(model.parameters(), 0.3)
    scope = Scope(model, "cross_entropy", optimizer, RAY, every=1, distances=DISTANCES)
    loss = cross_entropy(model(x), y)
    loss.backward()
    for _ in range(2):  # the first step checks the training's gradient, the second takes it
        scope.step(x, y, loss if given else None)
    names = {"ray_loss": "loss", "gradient_distance": "distance", "gradient_cosine": "cosine"}
    for name, key in names.items():
        found = scope.results[name].isel(step=-1)
        np.testing.assert_allclose(found, [point[key] for point in expected], rtol=1e-8)


def test_differences_far_below_the_gradient_are_kept():
    torch.manual_seed(0)
    model, rates = wide().double(), [1.0, 2.0, 4.0]
    results = measured(model, torch.optim.SGD(model.parameters(), 1e-9), distances=rates)
    expected = ray(model, cross_entropy, *batch(), rates, dict.fromkeys(own_values(model), 1e-9))
    wanted = [point["distance"] for point in expected]
    np.testing.assert_allclose(results["gradient_distance"], wanted, rtol=1e-4)


def test_loss_that_differentiates_itself_is_compared():
    model = tied_weights().double()

    def loss(model, data):
        output = model(data[0])
        plain = cross_entropy(output, data[1])
        (inner,) = torch.autograd.grad(plain, model[1].weight, retain_graph=True)
        return plain + inner.norm().detach() * output.square().mean()

    class Whole(nn.Module):  # of a copy of the model, for the reference
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, x):
            return loss(self.model, (x, batch()[1]))

    optimizer = torch.optim.SGD(model.parameters(), 0.3)
    results = measured(model, optimizer, loss=ns.whole_loss(loss), data=(batch(),))
    rates = dict.fromkeys(own_values(Whole()), 0.3)
    expected = ray(Whole(), lambda value, _: value, *batch(), DISTANCES, rates)
    wanted = [point["distance"] for point in expected]
    np.testing.assert_allclose(results["gradient_distance"], wanted, rtol=1e-8)


def test_small_differences_survive_single_precision():
    model = net("fully_connected")
    x, y = batch()
    distances, rates = [1e-4, 1e-3, 1e-2], dict.fromkeys(own_values(model), 1.0)
    expected = [point["distance"] for point in ray(model, cross_entropy, x, y, distances, rates)]
    single = model.float()
    optimizer = torch.optim.SGD(single.parameters(), 1.0)
    results = measured(single, optimizer, data=(x.float(), y), distances=distances)
    np.testing.assert_allclose(results["gradient_distance"], expected, rtol=0.02)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")  # torch's own layer
def test_sparse_inputs_give_the_same_ray():
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.3)
    x, y = batch()
    dense = x.flatten(1).float()
    probes = ["loss_variation", "gradient_predictiveness"]
    sparse = measured(model, optimizer, probes, data=(dense.to_sparse(), y))
    plain = measured(model, optimizer, probes, data=(dense, y))
    for name in ("ray_loss", "gradient_distance"):
        np.testing.assert_allclose(sparse[name], plain[name], rtol=1e-4)


@pytest.mark.parametrize("inside", [True, False])
def test_autocast_gives_finite_rays(inside):
    class Autocast(UsedTwice):
        def forward(self, x):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=inside):
                hidden = self.first(x.flatten(1))
            return self.head(torch.tanh(hidden.float()))

    model = Autocast()
    x, y = batch()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=not inside):
        results = measured(model, torch.optim.SGD(model.parameters(), 0.3), data=(x.float(), y))
    assert np.isfinite(results["gradient_distance"]).all()


def test_ray_goes_by_each_groups_own_rate():
    model = net("fully_connected")
    first, *rest = model.parameters()
    groups = [{"params": [first], "lr": 0.7}, {"params": rest[:3], "lr": 0.05}]
    optimizer = torch.optim.Adam(groups, lr=1.0)
    names = [name for name, _ in model.named_parameters()]
    rates = {names[0]: 0.7, **dict.fromkeys(names[1:4], 0.05)}
    for parameter in rest[3:]:
        parameter.requires_grad_(False)
    check_against_copies(model, rates, measured(model, optimizer), batch())


def test_frozen_and_unknown_parameters_stay():
    model = net("fully_connected")
    *trained, last = model.parameters()
    trained[2].requires_grad_(False)
    optimizer = torch.optim.SGD(trained, lr=0.2)  # the last one is not in it
    results = measured(model, optimizer)
    twin = copy.deepcopy(model)
    list(twin.parameters())[-1].requires_grad_(False)
    moving = {n: 0.2 for n, p in twin.named_parameters() if p.requires_grad}
    check_against_copies(twin, moving, results, batch())
    assert last.requires_grad


def test_maximizing_optimizer_goes_up():
    model = net("fully_connected")
    up = measured(model, torch.optim.SGD(model.parameters(), 0.2, maximize=True))
    rates = {name: -0.2 for name, _ in model.named_parameters()}
    check_against_copies(model, rates, up, batch())


def test_given_learning_rate_needs_no_optimizer():
    model = net()
    with_optimizer = measured(model, torch.optim.SGD(model.parameters(), 0.2))
    without = measured(model, None, learning_rate=0.2)
    assert with_optimizer.drop_vars("seed").identical(without.drop_vars("seed"))


@pytest.mark.parametrize("probe", RAY)
def test_ray_probe_needs_a_learning_rate(probe):
    with pytest.raises(InputError, match=f"{probe} needs a learning rate; give optimizer= or"):
        Scope(net(), "cross_entropy", probes=[probe])


def test_probe_alone_measures_the_same():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.2)
    together = measured(model, optimizer)
    for probe in RAY:
        alone = measured(model, optimizer, [probe])
        for name in set(alone.data_vars):
            np.testing.assert_allclose(alone[name], together[name], rtol=1e-12, err_msg=name)


def test_dropout_masks_are_the_same_along_the_ray():
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 10)).double()
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    small = measured(model, optimizer, distances=[1e-9, 1e-8, 1e-7, 1e-6])
    # other masks would change the loss by far more than these steps do
    np.testing.assert_allclose(small["ray_loss"], small["loss"].item(), rtol=1e-4)
    np.testing.assert_allclose(small["gradient_cosine"], 1.0, rtol=1e-6)


def test_noise_differs_between_steps():
    model = net("fully_connected", norm="noisy")
    scope = Scope(model, "cross_entropy", torch.optim.SGD(model.parameters(), 0.1), RAY, every=1)
    for _ in range(2):
        scope.step(*batch())
    first, second = scope.results["loss"].values
    assert first != second


def test_local_smoothness_is_the_hessians_along_the_gradient():
    model = net("fully_connected", activation="tanh")
    results = measured(
        model, torch.optim.SGD(model.parameters(), 0.1), [EffectiveSmoothness(local=True)]
    )
    parameters = list(model.parameters())
    twin_loss = cross_entropy(model(batch()[0]), batch()[1])
    gradient = torch.autograd.grad(twin_loss, parameters, create_graph=True)
    fixed = [g.detach() for g in gradient]
    inner = sum((g * f).sum() for g, f in zip(gradient, fixed, strict=True))
    product = torch.autograd.grad(inner, parameters)
    size = sum(f.square().sum() for f in fixed).sqrt()
    expected = sum(p.square().sum() for p in product).sqrt() / size
    assert results["local_smoothness"].item() == pytest.approx(expected.item(), rel=1e-9)


def test_local_smoothness_of_weight_normalization_is_that_of_short_steps():
    model = nn.Sequential(nn.Flatten(), parametrizations.weight_norm(nn.Linear(64, 10)), nn.Tanh())
    model = model.double()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    results = measured(model, optimizer, [EffectiveSmoothness(local=True)], distances=[1e-5])
    local = results["local_smoothness"].item()
    assert results["effective_smoothness"].item() == pytest.approx(local, rel=1e-3)


class FirstOrder(torch.autograd.Function):
    """A square whose backward pass has no derivative in the input."""

    @staticmethod
    def forward(context, x):
        context.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(context, gradient):
        return 2 * context.saved_tensors[0].detach() * gradient


class Squared(nn.Module):
    def forward(self, x):
        return FirstOrder.apply(x)


class CheckpointedAttention(nn.Module):
    """Notes in KERNELS whether torch may choose fused attention kernels whenever it runs."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(8, 8)
        self.last = nn.Linear(64, 10)

    def forward(self, x):
        return self.last(checkpoint(self._attend, x[:, 0], use_reentrant=False).flatten(1))

    def _attend(self, x):
        KERNELS.append(torch.backends.cuda.flash_sdp_enabled())
        return nn.functional.scaled_dot_product_attention(x, self.mix(x), x)


KERNELS = []


def test_local_smoothness_of_attention_selects_no_kernels_for_the_process():
    torch.manual_seed(0)
    model = CheckpointedAttention().double()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    KERNELS.clear()
    results = measured(model, optimizer, [EffectiveSmoothness(local=True)], distances=[1e-5])
    local = results["local_smoothness"].item()
    assert results["effective_smoothness"].item() == pytest.approx(local, rel=1e-3)
    assert KERNELS
    assert all(KERNELS)


def test_local_smoothness_without_a_second_derivative_is_missing():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), Squared()).double()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.warns(match="backward pass of FirstOrder is not differentiable"):
        results = measured(model, optimizer, [EffectiveSmoothness(local=True)])
    assert math.isnan(results["local_smoothness"].item())


def test_smoothness_tends_to_the_local_value_for_short_steps():
    model = net("fully_connected", activation="tanh")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    results = measured(model, optimizer, [EffectiveSmoothness(local=True)], distances=[1e-5])
    local = results["local_smoothness"].item()
    assert results["effective_smoothness"].item() == pytest.approx(local, rel=1e-3)


def test_learning_rate_of_zero_gives_no_slope():
    model = net()
    results = measured(model, torch.optim.SGD(model.parameters(), 0.0))
    assert np.isnan(results["effective_smoothness"])
    assert (results["ray_loss"] == results["loss"]).all()
    assert (results["gradient_distance"] == 0).all()


def test_diverging_ray_is_a_result():
    model = net("fully_connected", norm="none", activation="linear").float()
    x, y = batch()
    optimizer = torch.optim.SGD(model.parameters(), 1e30)
    results = measured(model, optimizer, data=(x.float(), y))
    assert not np.isfinite(results["gradient_distance"]).any()
    assert np.isfinite(results["loss"])


def test_channels_last_changes_nothing():
    model = net()
    plain = measured(model, torch.optim.SGD(model.parameters(), 0.2))
    model = model.to(memory_format=torch.channels_last)
    x, y = batch()
    data = (x.to(memory_format=torch.channels_last), y)
    other = measured(model, torch.optim.SGD(model.parameters(), 0.2), data=data)
    for name in plain.data_vars:
        np.testing.assert_allclose(other[name], plain[name], rtol=1e-9, err_msg=name)


def test_whole_loss_takes_a_batch_of_any_form():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.2)
    x, y = batch()
    whole = ns.whole_loss(lambda model, batch: cross_entropy(model(batch["x"]), batch["y"]))
    one = measured(model, optimizer, loss=whole, data=({"x": x, "y": y},))
    other = measured(model, optimizer)
    for name in other.data_vars:
        np.testing.assert_allclose(one[name], other[name], rtol=1e-12, err_msg=name)


@pytest.mark.parametrize("distances", [[], [0.0, 1.0], [2.0, 1.0], [1.0, 1.0], [1.0, np.inf]])
def test_distances_must_increase_from_above_zero(distances):
    model = net()
    with pytest.raises(InputError, match="distances must be positive, finite and increasing"):
        measured(model, torch.optim.SGD(model.parameters(), 0.2), distances=distances)


class _Counted(torch.autograd.Function):
    """Counts passes by what it sees, not by the model's own attributes, which are put back."""

    @staticmethod
    def forward(ctx, x, counts):
        counts["forward"] += 1
        ctx.counts = counts
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.counts["backward"] += 1
        return gradient, None


@pytest.mark.parametrize(
    ("probes", "forward", "backward"),
    [
        (["loss_variation"], 5, 1),
        (["gradient_predictiveness"], 5, 5),
        (["effective_smoothness"], 5, 5),
        (["loss_variation", "effective_smoothness"], 5, 5),
        (RAY, 5, 5),
        ([*RAY, "gradient_norms", "statistics_gap"], 5, 5),
        (["gradient_norms"], 1, 1),
        (["statistics_gap"], 1, 0),
        (["covariate_shift"], 3, 3),  # three layers: two have something before them
        ([*RAY, "covariate_shift"], 7, 7),
    ],
)
def test_passes_are_as_few_as_stated(probes, forward, backward):
    counts = {"forward": 0, "backward": 0}

    class Counting(nn.Module):
        def forward(self, x):
            return _Counted.apply(x, counts)

    model = nn.Sequential(net("fully_connected"), Counting())
    scope = Scope(
        model,
        "cross_entropy",
        torch.optim.SGD(model.parameters(), 0.2),
        probes,
        distances=DISTANCES,
    )
    scope.step(*batch())
    assert counts == {"forward": forward, "backward": backward}
    assert scope.cost.passes >= forward / 3 + backward * 2 / 3 - 1e-9
