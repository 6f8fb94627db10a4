"""The statements on layers of real networks: values, untouched models, clear refusals."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import normscope as ns
from normscope.errors import InputError, NormscopeError, StateError, UnknownNameError
from normscope.theorems import check, check_layer
from normscope.theorems.check_layer import product_count
from normscope.theorems.observation import Observation


def batch(samples=10, features=3, outputs=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(samples, features, generator=generator),
        torch.randn(samples, outputs, generator=generator),
    )


def images(samples=6, shape=(2, 5, 5), classes=3):
    generator = torch.Generator().manual_seed(1)
    return (
        torch.randn(samples, *shape, generator=generator),
        torch.randint(classes, (samples,), generator=generator),
    )


def vector_net(norm, seed=0):
    torch.manual_seed(seed)
    if getattr(norm, "weight", None) is not None:
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    return nn.Sequential(nn.Linear(3, 4), norm, nn.Tanh(), nn.Linear(4, 2))


class OwnBatchNorm(nn.BatchNorm1d):
    """A subclass with another forward that computes the same."""

    def forward(self, input):
        return super().forward(input) * 1.0


@pytest.mark.parametrize(
    "norm",
    [
        nn.BatchNorm1d(4),
        nn.BatchNorm1d(4, eps=0.1),
        nn.BatchNorm1d(4, affine=False),
        nn.BatchNorm1d(4, track_running_stats=False),
        ns.layers.BatchNorm1d(4),
        OwnBatchNorm(4),
        nn.SyncBatchNorm(4),
    ],
    ids=lambda norm: repr(norm)[:40],
)
def test_exact_forms_hold_on_every_batch_norm(norm):
    found = check_layer(vector_net(norm), "squared_error", batch(), "1")
    assert not found.refuted
    labels = {verdict.label for verdict in found}
    assert labels == {
        "fact_c1",
        "fact_c2",
        "theorem_4_1",
        "theorem_4_2",
        "theorem_4_2 (norm_preserving)",
        "theorem_4_4",
        "theorem_c1",
    }
    assert all(abs(v.slack) < 1e-8 for v in found if v.kind == "identity")
    assert [v.unit for v in found if v.name == "theorem_4_1"] == [0, 1, 2, 3, None]


def test_sides_are_those_of_the_dense_derivatives():
    """Gradient and Hessians by y and z of the whole layer, as matrices."""
    net, (x, t) = vector_net(nn.BatchNorm1d(4)).double(), batch()
    x, t = x.double(), t.double()
    y = net[0](x).detach()
    units, size = 4, len(x)

    def by_input(flat):
        values = flat.reshape(units, size).T
        centred = values - values.mean(0)
        z = net[1].weight * centred / (centred.square().mean(0) + net[1].eps).sqrt() + net[1].bias
        return ns.problem.squared_error(net[3](torch.tanh(z)), t)

    d = torch.autograd.functional.jacobian(by_input, y.T.reshape(-1))
    hessian = torch.autograd.functional.hessian(by_input, y.T.reshape(-1))
    found = check_layer(net, "squared_error", (x, t), "1")
    total = next(v for v in found if v.name == "theorem_4_2" and v.unit is None)
    assert total.lhs == pytest.approx(float(d @ hessian @ d), rel=1e-9)
    for unit in range(units):
        part = slice(unit * size, (unit + 1) * size)
        own = next(v for v in found if v.label == "theorem_4_2" and v.unit == unit)
        block = float(d[part] @ hessian[part, part] @ d[part])
        assert own.lhs == pytest.approx(block, rel=1e-9)
        assert own.rhs == pytest.approx(block, rel=1e-8)
    coupled = sum(v.lhs for v in found if v.label == "theorem_4_2" and v.unit is not None)
    assert coupled != pytest.approx(total.lhs, rel=1e-3)  # the units do not stand alone


def test_units_are_as_checked_on_plain_tensors():
    net, data = vector_net(nn.BatchNorm1d(4)).double(), batch()
    x, t = (part.double() for part in data)
    y = net[0](x).detach()
    z = net[1](y).detach().requires_grad_()
    loss = ns.problem.squared_error(net[3](torch.tanh(z)), t)
    (g,) = torch.autograd.grad(loss, z)
    found = check_layer(net, "squared_error", (x, t), "1", units=[2])
    options = {"gamma": net[1].weight[2], "eps": net[1].eps}
    alone = check("theorem_4_1", y=y[:, 2], g=g[:, 2], **options)
    (of_layer,) = [v for v in found if v.name == "theorem_4_1" and v.unit == 2]
    assert of_layer.rhs == pytest.approx(alone.rhs, rel=1e-10)


@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_channel_of_a_convolution_is_a_unit(dimensions):
    conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dimensions - 1](2, 3, 2)
    norm = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[dimensions - 1](3)
    net = nn.Sequential(conv, norm, nn.ReLU(inplace=True), nn.Flatten(), nn.LazyLinear(3))
    data = images(samples=4, shape=(2, *[3] * dimensions))
    net(data[0])
    found = check_layer(net, "cross_entropy", data, "1")
    assert not found.refuted
    (first,) = [v for v in found if v.name == "fact_c1" and v.unit == 0]
    assert len(first.lhs) == 4 * 2**dimensions  # samples times positions


@pytest.mark.parametrize("name", ["vgg", "preact_resnet18"])
def test_builtin_networks_hold(name):
    net = ns.models.build(name, width=0.05, input_shape=(1, 8, 8))
    layer = next(iter(ns.layers.norm_layers(net)))
    found = check_layer(net, "cross_entropy", images(8, (1, 8, 8)), layer, units=[0])
    assert not found.refuted
    assert "theorem_c1" not in {v.name for v in found}  # 512 values: no matrix is made
    assert [(each.name, each.layer, each.unit) for each in found.unchecked] == [
        ("theorem_c1", layer, None)
    ]


def test_shortcut_from_the_layers_input_is_left_aside():
    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(3)
            self.linear = nn.Linear(3, 2)

        def forward(self, x):
            return self.linear(torch.tanh(self.norm(x)) + 5 * x)

    assert not check_layer(Residual(), "squared_error", batch(), "norm").refuted


def test_layer_may_be_called_by_keyword():
    class ByKeyword(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.linear = nn.BatchNorm1d(3), nn.Linear(3, 2)

        def forward(self, x):
            return self.linear(torch.tanh(self.norm(input=x)))

    assert not check_layer(ByKeyword(), "squared_error", batch(), "norm").refuted


def test_dropout_and_other_norms_around_do_not_matter():
    net = nn.Sequential(
        nn.Linear(3, 6),
        nn.LayerNorm(6),
        nn.Dropout(0.4),
        nn.BatchNorm1d(6),
        nn.Tanh(),
        nn.BatchNorm1d(6),
        nn.Linear(6, 2),
    )
    for layer in ("3", "5"):
        assert not check_layer(net, "squared_error", batch(20), layer).refuted


def test_printed_forms_fail_on_a_layer():
    found = check_layer(
        vector_net(nn.BatchNorm1d(4)), "squared_error", batch(), "1", form="printed"
    )
    assert "theorem_4_1" in {v.name for v in found.refuted}
    article = check_layer(
        vector_net(nn.BatchNorm1d(4)), "squared_error", batch(), "1", form="article"
    )
    assert {v.name for v in article} == {"theorem_4_1", "theorem_4_2", "theorem_4_4"}


def test_model_is_untouched_bit_for_bit():
    net = vector_net(nn.BatchNorm1d(4))
    net[1].eval()
    net[0].weight.grad = torch.ones_like(net[0].weight)
    before = copy.deepcopy(net.state_dict())
    flags = [module.training for module in net.modules()]
    state = torch.get_rng_state()
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in net.modules()]
    check_layer(net, "squared_error", batch(), "1")
    after = net.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert [module.training for module in net.modules()] == flags
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(net[0].weight.grad, torch.ones_like(net[0].weight))
    assert net[1].weight.grad is None
    assert [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in net.modules()] == hooks
    assert net[0].weight.dtype == torch.float32


def test_model_is_untouched_after_an_error():
    net = vector_net(nn.BatchNorm1d(4))
    before = copy.deepcopy(net.state_dict())
    with pytest.raises(ZeroDivisionError):
        check_layer(net, lambda output, target: 1 / 0, batch(), "1")
    assert all(torch.equal(before[key], value) for key, value in net.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())


def test_own_dtype_has_a_tolerance_of_its_own():
    found = check_layer(vector_net(nn.BatchNorm1d(4)), "squared_error", batch(), "1", dtype=None)
    assert not found.refuted
    assert found[0].tolerance == pytest.approx(2.3e-4, rel=0.02)
    assert max(abs(v.slack) for v in found if v.kind == "identity") > 1e-10


def test_whole_loss_and_loader_serve():
    loss = ns.whole_loss(lambda model, data: (model(data["x"]) - data["t"]).square().mean())
    x, t = batch()
    net = vector_net(nn.BatchNorm1d(4))
    assert not check_layer(net, loss, {"x": x, "t": t}, "1").refuted
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, t), batch_size=5)
    assert not check_layer(net, "squared_error", loader, "1").refuted


def test_unit_with_zero_scale_is_passed_over_where_it_hides_the_outputs():
    net = vector_net(nn.BatchNorm1d(4))
    with torch.no_grad():
        net[1].weight[1] = 0
    found = check_layer(net, "squared_error", batch(), "1")
    assert not found.refuted
    assert [v.unit for v in found if v.name == "fact_c2"] == [0, 2, 3]
    assert [(each.name, each.unit) for each in found.unchecked] == [("fact_c2", 1)]
    assert found.unchecked[0].too_large is None


class FrozenBatchNorm(nn.Module):
    """As object detectors have it: fixed statistics, no momentum."""

    def __init__(self):
        super().__init__()
        for name, value in (("weight", 1.0), ("bias", 0.0), ("running_mean", 0.5)):
            self.register_buffer(name, torch.full((4,), value))
        self.register_buffer("running_var", torch.ones(4))
        self.eps = 1e-5

    def forward(self, x):
        return (x - self.running_mean) * (self.running_var + self.eps).rsqrt()


class EvalBatchNorm(nn.BatchNorm1d):
    """Batch normalization that never uses its batch."""

    def forward(self, input):
        return nn.functional.batch_norm(input, self.running_mean, self.running_var, training=False)


@pytest.mark.parametrize(
    ("norm", "layer", "error", "said"),
    [
        (nn.BatchNorm1d(4), "2", InputError, "is not a norm layer"),
        (nn.BatchNorm1d(4), "11", UnknownNameError, "did you mean '1'"),
        (nn.LayerNorm(4), "1", InputError, "is not a batch normalization"),
        (ns.layers.LpNorm1d(4, p=1), "1", InputError, "is not a batch normalization"),
        (ns.layers.NoisyBatchNorm1d(4), "1", InputError, "adds noise"),
        (FrozenBatchNorm(), "1", InputError, "fixed statistics"),
        (EvalBatchNorm(4), "1", StateError, "eval mode"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_wrong_layers_are_refused(norm, layer, error, said):
    with pytest.raises(error, match=said):
        check_layer(vector_net(norm), "squared_error", batch(), layer)


def test_layer_run_twice_or_never_is_refused():
    class Twice(nn.Module):
        def __init__(self, times):
            super().__init__()
            self.norm, self.linear, self.times = nn.BatchNorm1d(3), nn.Linear(3, 2), times

        def forward(self, x):
            for _ in range(self.times):
                x = self.norm(x)
            return self.linear(x)

    with pytest.raises(StateError, match="runs 2 times"):
        check_layer(Twice(2), "squared_error", batch(), "norm")
    with pytest.raises(StateError, match="does not run"):
        check_layer(Twice(0), "squared_error", batch(), "norm")


def test_loss_that_ignores_the_layer_is_refused():
    net = nn.ModuleDict({"norm": nn.BatchNorm1d(3), "linear": nn.Linear(3, 2)})

    def loss(model, data):
        model["norm"](data[0])
        return model["linear"](data[0]).square().mean()

    with pytest.raises(StateError, match="does not depend"):
        check_layer(net, ns.whole_loss(loss), batch(), "norm")


@pytest.mark.parametrize("units", [[4], [-1], [], 3, [0.5], [True], "01", ["0"]], ids=repr)
def test_unknown_units_are_refused(units):
    with pytest.raises(InputError, match="from 0 to 3"):
        check_layer(vector_net(nn.BatchNorm1d(4)), "squared_error", batch(), "1", units=units)


def test_units_named_twice_are_refused():
    """Twice in one product, a unit's own block would come out doubled."""
    with pytest.raises(InputError, match="each unit once"):
        check_layer(vector_net(nn.BatchNorm1d(4)), "squared_error", batch(), "1", units=[0, 0])


def test_units_may_be_a_tensor():
    found = check_layer(
        vector_net(nn.BatchNorm1d(4)), "squared_error", batch(), "1", units=torch.tensor([3, 1])
    )
    assert [v.unit for v in found if v.name == "fact_c1"] == [3, 1, None]
    assert not found.refuted


@pytest.mark.parametrize("bound", [-2.0, float("nan"), float("inf"), "much"])
def test_unusable_bounds_are_refused(bound):
    with pytest.raises(InputError, match="bound must be"):
        check_layer(vector_net(nn.BatchNorm1d(4)), "squared_error", batch(), "1", bound=bound)


def test_what_cannot_be_checked_is_said():
    net = vector_net(nn.BatchNorm1d(4))
    found = check_layer(net, "squared_error", batch(20), "1", dense_limit=19)
    assert "theorem_c1, not checked: a unit has 20 values, above dense_limit=19" in str(found)
    assert "dense_limit=19" in found._repr_html_()
    (plain,) = found.to_dict()["unchecked"]
    assert plain["name"] == "theorem_c1"
    assert plain["too_large"] == {"values": 20, "limit": 19}
    assert not check_layer(net, "squared_error", batch(20), "1", dense_limit=20).unchecked


@pytest.mark.parametrize("form", ["exact", "printed", "article"])
def test_constant_unit_refutes_nothing(form):
    """Without eps there is nothing to divide by: not checked, and not false."""
    net = vector_net(nn.BatchNorm1d(4, affine=False))
    with torch.no_grad():
        net[0].weight[1] = 0
    found = check_layer(net, "squared_error", batch(), "1", form=form)
    assert not [v for v in found if v.slack != v.slack]
    assert not [v for v in found.refuted if v.unit == 1]
    silent = {each.unit for each in found.unchecked}
    assert silent == (set() if form == "exact" else {1, None})  # the total has that unit too
    assert form == "exact" or {v.unit for v in found} == {0, 2, 3}


def test_function_that_the_user_put_on_the_layer_is_the_one_checked():
    net = vector_net(nn.BatchNorm1d(4))
    own = net[1].forward
    doubled = net[1].forward = lambda x: 2 * own(x)
    with pytest.raises(StateError, match="another formula"):
        check_layer(net, "squared_error", batch(), "1")
    assert net[1].forward is doubled
    calls = []
    net[1].forward = lambda x: calls.append(x) or own(x)
    assert not check_layer(net, "squared_error", batch(), "1").refuted
    assert len(calls) == 1


def test_bfloat16_model_is_checked_in_its_own_precision():
    net = vector_net(nn.BatchNorm1d(4)).bfloat16()
    data = tuple(part.bfloat16() for part in batch(32))
    found = check_layer(net, "squared_error", data, "1", dtype=None)
    assert not found.refuted
    assert found[0].tolerance == pytest.approx(5.9e-2, rel=0.02)
    wrong = vector_net(EvalBatchNorm(4)).bfloat16()
    with pytest.raises(StateError, match="eval mode"):
        check_layer(wrong, "squared_error", data, "1", dtype=None)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_data_that_are_not_finite_are_blamed_as_such(value):
    x, t = batch()
    x[3, 1] = value
    with pytest.raises(InputError, match="inputs hold values that are infinite or NaN"):
        check_layer(vector_net(nn.BatchNorm1d(4)), "squared_error", (x, t), "1")
    with pytest.raises(InputError, match="gradients hold values"):
        check_layer(
            vector_net(nn.BatchNorm1d(4)), "squared_error", (batch()[0], t * torch.nan), "1"
        )


def test_single_sample_is_refused():
    with pytest.raises(NormscopeError, match="more than one value per channel"):
        check_layer(vector_net(nn.BatchNorm1d(4)), "squared_error", batch(1), "1")


@pytest.mark.parametrize("form", ["exact", "printed"])
def test_no_product_takes_gradients_of_weights_or_is_taken_twice(form, monkeypatch):
    """The weights are constants here, and the parts of Theorem 4.2 share their terms."""
    asked = []
    multiply = Observation._hessian

    def watched(self, chosen, rows, vectors):
        asked.append((chosen, rows, vectors))
        return multiply(self, chosen, rows, vectors)

    given = []

    class Weighed(nn.Linear):
        def forward(self, x):
            given.append(self.weight.requires_grad)
            return super().forward(x)

    monkeypatch.setattr(Observation, "_hessian", watched)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), Weighed(4, 2))
    found = check_layer(net, "squared_error", batch(), "1", form=form, dense_limit=2)
    assert {v.variant for v in found} == {"", "norm_preserving"}
    assert given == [False]
    assert all(each.requires_grad for each in net.parameters())  # as before
    for index, (_, rows, vectors) in enumerate(asked):
        others = [each for _, own, each in asked[:index] if own == rows]
        assert all((vectors * each).sum().abs() < 1e-9 for each in others)  # orthogonal
    assert len(asked) == product_count(4, 10, form, limit=2)


def test_reading_a_shuffled_loader_leaves_random_numbers_alone():
    data = TensorDataset(torch.randn(12, 3), torch.randint(2, (12,)))
    loader = DataLoader(data, 6, shuffle=True)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    before = torch.get_rng_state()
    found = check_layer(model, "cross_entropy", loader, layer="1")
    assert torch.equal(before, torch.get_rng_state())
    assert found.to_dict() == check_layer(model, "cross_entropy", loader, layer="1").to_dict()


def test_layer_in_a_checkpointed_part_is_refused_in_one_sentence():
    class Checkpointed(nn.Sequential):
        def forward(self, x):
            return checkpoint(super().forward, x, use_reentrant=False)

    inner = Checkpointed(nn.Linear(4, 4), nn.BatchNorm1d(4))
    model = nn.Sequential(nn.Linear(3, 4), inner, nn.Linear(4, 2))
    batch = torch.randn(8, 3), torch.randint(2, (8,))
    with pytest.raises(StateError, match="call it without") as caught:
        check_layer(model, "cross_entropy", batch, layer="1.1")
    assert "\n" not in str(caught.value)


def deep_net():
    torch.manual_seed(0)
    layers = [nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()]
    for _ in range(3):
        layers += [nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(100, 3))


def test_network_in_single_precision_gives_identities_in_double():
    """The sides have the digits of float32, their difference those of float64."""
    net = deep_net()
    found = check_layer(net, "cross_entropy", images(), "1", dense_limit=200)
    wide = check_layer(net.double(), "cross_entropy", images(), "1", dense_limit=200)
    assert {v.label for v in found} >= {"theorem_4_2", "theorem_c1"}
    for own, exact in zip(found, wide, strict=True):
        assert own.holds is exact.holds
        if own.kind == "identity":
            assert abs(own.slack) < 1e-10
        own, exact = own.to_dict(), exact.to_dict()
        assert own["lhs"] == pytest.approx(exact["lhs"], rel=1e-4)
        assert own["rhs"] == pytest.approx(exact["rhs"], rel=1e-4)


def test_products_without_digits_are_warned_of():
    class Rough(torch.autograd.Function):
        """The square, whose second derivative is wrong in proportion to the first vector."""

        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return 2 * grad * (x + 0.3 * torch.roll(x, 1, 0) - 0.3 * torch.roll(x, 1, 0).detach())

    net = vector_net(nn.BatchNorm1d(4))
    net[2].forward = Rough.apply
    with pytest.warns(ns.errors.NormscopeWarning, match="are asymmetric by"):
        check_layer(net, "squared_error", batch(), "1")


def test_progress_counts_products_and_estimates_the_time():
    events = []
    net = vector_net(nn.BatchNorm1d(4))
    check_layer(net, "squared_error", batch(), "1", dense_limit=2, progress=events.append)
    assert [each.done for each in events] == list(range(9))
    assert {each.total for each in events} == {product_count(4, 10, limit=2)} == {9}
    assert str(events[0]) == "layer 1, 0 of at most 9 products"
    assert all("in all" in each.detail for each in events[1:])


def test_autocast_around_the_check_is_left_aside():
    net = vector_net(nn.BatchNorm1d(4))
    plain = check_layer(net, "squared_error", batch(), "1").to_dict()
    with torch.autocast("cpu", torch.bfloat16):
        assert check_layer(net, "squared_error", batch(), "1").to_dict() == plain
