import copy
import logging
from collections import OrderedDict

import pytest
import torch
from torch import nn

from normscope.errors import ArgumentTypeError, InputError, UnknownNameError
from normscope.layers import (
    NORMS,
    BatchNorm1d,
    BatchNorm2d,
    Change,
    LpNorm1d,
    LpNorm2d,
    NoisyBatchNorm2d,
    NoNorm,
    convert,
    kind_of,
    norm_layers,
    plan_conversion,
)

KINDS = sorted(NORMS)
KINDS.remove("instance")  # has no layer for vectors, see test_convert_positions.py
NORMALIZING = [kind for kind in KINDS if kind != "none"]
STATISTICS = ("batch", "noisy", "l1", "l2", "linf")


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def randomized(model):
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if tensor.is_floating_point():
                tensor.copy_(torch.rand_like(tensor) + (0.5 if "running" in name else -0.3))
            else:
                tensor.fill_(11)
    return model


def conv_net(norm=nn.BatchNorm2d, **options):
    return randomized(
        nn.Sequential(
            nn.Conv2d(2, 6, 3), norm(6, **options), nn.ReLU(),
            nn.Sequential(nn.Conv2d(6, 4, 3), norm(4, **options), nn.ReLU()),
            nn.Flatten(), nn.Linear(36, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3),
        )
    )  # fmt: skip


def plain_net():
    return nn.Sequential(
        nn.Conv2d(2, 6, 3), nn.ReLU(), nn.Sequential(nn.Conv2d(6, 4, 3), nn.ReLU()),
        nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Sequential(nn.Linear(8, 3), nn.Softmax(1)),
    )  # fmt: skip


IMAGES = torch.randn(4, 2, 7, 7)


def kinds_in(model):
    return [kind_of(module) for module in model.modules() if kind_of(module)]


def same_state(left, right):
    left, right = left.state_dict(), right.state_dict()
    return list(left) == list(right) and all(left[name].equal(right[name]) for name in left)


@pytest.mark.parametrize("to", KINDS)
def test_every_norm_layer_becomes_the_kind(to):
    model = conv_net()
    before = copy.deepcopy(model)
    converted = convert(model, to)
    if to == "group":  # 6 and 4 channels: 2, 4 groups; a vector of 8 has 4 units in each of 2
        assert [m.num_groups for m in norm_layers(converted).values()] == [2, 4, 2]
    assert kinds_in(converted) == [to] * 3
    assert converted(IMAGES).shape == (4, 3)
    assert same_state(model, before)
    assert kinds_in(model) == ["batch"] * 3


@pytest.mark.parametrize("to", NORMALIZING)
def test_scale_and_shift_are_kept_and_not_shared(to):
    model = conv_net()
    converted = convert(model, to)
    for old, new in zip(norm_layers(model).values(), norm_layers(converted).values(), strict=True):
        assert torch.equal(old.weight, new.weight)
        assert torch.equal(old.bias, new.bias)
        assert old.weight.data_ptr() != new.weight.data_ptr()
    assert torch.equal(model[0].weight, converted[0].weight)


@pytest.mark.parametrize("first", KINDS)
@pytest.mark.parametrize("to", KINDS)
def test_converting_twice_is_converting_once(first, to):
    once = convert(convert(conv_net(), first), to)
    twice = convert(once, to)
    assert str(twice) == str(once)
    assert same_state(once, twice)
    assert plan_conversion(once, to) == []


@pytest.mark.parametrize("to", ["batch", "noisy"])
def test_batch_statistics_are_kept_so_eval_outputs_stay(to):
    model = conv_net().eval()
    converted = convert(model, to)
    assert same_state(model, converted)
    torch.testing.assert_close(converted(IMAGES), model(IMAGES))
    assert convert(converted, "batch")[1].num_batches_tracked == 11


def test_torch_batch_norm_becomes_ours_and_stays_itself():
    converted = convert(conv_net(), "batch")
    assert type(converted[1]) is BatchNorm2d
    assert type(converted[6]) is BatchNorm1d


def test_lp_statistics_start_afresh():
    converted = convert(conv_net(), "l1")
    assert converted[1].running_mean.tolist() == [0.0] * 6
    assert converted[1].running_scale.tolist() == [1.0] * 6


@pytest.mark.parametrize("to", NORMALIZING)
def test_options_device_dtype_mode_and_flags_are_carried(to):
    model = conv_net(eps=1e-2, momentum=None).double()
    model[1].eval()
    model[1].weight.requires_grad_(False)
    norm = convert(model, to)[1]
    assert getattr(norm, "eps", 1e-2) == 1e-2  # dyt has none
    assert norm.weight.dtype == torch.float64
    assert norm.training is False
    assert (norm.weight.requires_grad, norm.bias.requires_grad) == (False, True)
    if to in STATISTICS:
        assert norm.momentum is None


@pytest.mark.parametrize("to", NORMALIZING)
def test_absent_scale_and_statistics_stay_absent(to):
    norm = convert(conv_net(affine=False, track_running_stats=False), to)[1]
    assert norm.weight is None
    assert getattr(norm, "running_mean", None) is None


@pytest.mark.parametrize("to", NORMALIZING)
def test_removed_layers_come_back_at_their_places_with_their_options(to):
    removed = convert(conv_net(eps=1e-2), "none")
    assert isinstance(removed[1], NoNorm)
    assert isinstance(removed[1], nn.Identity)
    back = convert(removed.double(), to)
    assert kinds_in(back) == [to] * 3
    assert getattr(back[1], "eps", 1e-2) == 1e-2  # dyt has none
    assert str(back) == str(convert(conv_net(eps=1e-2), to))
    assert back(IMAGES.double()).dtype == torch.float64


@pytest.mark.parametrize("to", NORMALIZING)
def test_process_group_is_carried_where_the_kind_has_one(to):
    removed = convert(nn.Sequential(nn.Linear(3, 3), BatchNorm1d(3, process_group="world")), "none")
    norm = convert(removed, to)[1]
    assert getattr(norm, "process_group", None) == ("world" if to in ("batch", "noisy") else None)


@pytest.mark.parametrize("to", NORMALIZING)
def test_centring_is_carried_between_lp_kinds(to):
    model = nn.Sequential(nn.Linear(3, 3), LpNorm1d(3, p=3, centred=True))
    assert getattr(convert(model, to)[1], "centred", None) == (
        True if to in ("l1", "l2", "linf") else None
    )


def test_synchronized_norm_is_batch_norm_already_and_shares_nothing_alone():
    model = nn.Sequential(nn.Conv2d(1, 3, 1), nn.SyncBatchNorm(3))
    assert plan_conversion(model, "batch") == []
    noisy = convert(model, "noisy")[1]
    assert type(noisy) is NoisyBatchNorm2d
    assert noisy.process_group is None


def test_layer_kind_is_layer_norm_for_vectors_and_one_group_for_images():
    converted = convert(conv_net(), "layer")
    assert isinstance(converted[1], nn.GroupNorm)
    assert isinstance(converted[6], nn.LayerNorm)
    sequences = nn.Sequential(nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4))
    assert isinstance(convert(sequences, "layer")[1], nn.GroupNorm)


@pytest.mark.parametrize(
    ("layer", "norm", "expected"),
    [
        (nn.Conv2d(2, 4, 1), nn.GroupNorm(2, 4), "BatchNorm2d"),
        (nn.Conv3d(2, 4, 1), nn.GroupNorm(2, 4), "BatchNorm3d"),
        (nn.Linear(2, 4), nn.GroupNorm(2, 4), "BatchNorm1d"),
        (nn.Flatten(), nn.LayerNorm(4), "BatchNorm1d"),
        (nn.Flatten(), nn.RMSNorm(4), "BatchNorm1d"),
        (nn.Conv2d(2, 4, 1), nn.LayerNorm([4, 5, 5]), "BatchNorm2d"),
        (nn.Conv2d(2, 4, 1), nn.InstanceNorm2d(4, affine=True), "BatchNorm2d"),
        (nn.Conv1d(2, 4, 1), LpNorm1d(4, p=3), "BatchNorm1d"),
        (nn.ConvTranspose2d(2, 4, 1), nn.GroupNorm(1, 4), "BatchNorm2d"),
    ],
    ids=str,
)
def test_other_norms_become_batch_norm_of_their_dimensions(layer, norm, expected):
    converted = convert(nn.Sequential(layer, norm), "batch")
    assert type(converted[1]).__name__ == expected
    assert converted[1].num_features == 4


def test_dimensions_are_those_of_the_layer_with_the_same_channels():
    model = nn.ModuleList([nn.Conv2d(2, 4, 1), nn.Linear(9, 7), nn.GroupNorm(2, 4)])
    assert type(convert(model, "batch")[2]) is BatchNorm2d


@pytest.mark.parametrize(("groups", "channels", "expected"), [(1, 64, 32), (1, 7, 1), (4, 64, 4)])
def test_one_group_becomes_as_many_as_fit_and_other_group_norms_stay(groups, channels, expected):
    model = nn.Sequential(nn.Conv2d(1, channels, 1), nn.GroupNorm(groups, channels))
    assert convert(model, "group")[1].num_groups == expected
    assert len(plan_conversion(model, "group")) == (groups != expected)


def test_group_norm_becomes_one_group_though_a_linear_layer_of_its_width_is_nearby():
    class WithTime(nn.Module):
        def __init__(self):
            super().__init__()
            self.time, self.norm = nn.Linear(4, 16), nn.GroupNorm(4, 16)

        def forward(self, x):
            return self.norm(x)

    images = torch.randn(2, 16, 4, 4)
    expected = nn.functional.group_norm(images, 1)
    torch.testing.assert_close(convert(WithTime(), "layer")(images), expected)


def test_group_norm_without_any_layer_is_refused():
    with pytest.raises(InputError, match="spatial dimensions"):
        convert(nn.Sequential(nn.GroupNorm(2, 4)), "batch")


def test_subclass_and_root_are_converted():
    class Own(nn.BatchNorm2d):
        def forward(self, x):
            return super().forward(x)

    assert isinstance(convert(conv_net(Own), "l1")[1], LpNorm2d)
    assert isinstance(convert(Own(3), "noisy"), NoisyBatchNorm2d)


class Fused(nn.BatchNorm2d):
    def __init__(self, num_features):
        super().__init__(num_features)
        self.drop, self.activation = nn.Identity(), nn.LeakyReLU(0.3)

    def forward(self, x):
        return self.activation(self.drop(super().forward(x)))


def test_fused_activation_stays_behind_the_new_layer():
    model = conv_net(Fused).eval()
    converted = convert(model, "noisy")
    torch.testing.assert_close(converted(IMAGES), model(IMAGES))
    assert not converted[1].training
    back = convert(convert(converted, "none"), "layer")
    assert isinstance(back[1][0], nn.GroupNorm)
    assert isinstance(back[1][2], nn.LeakyReLU)


def test_norm_that_does_something_else_is_refused_by_name():
    class Squared(nn.BatchNorm2d):
        def forward(self, x):
            return super().forward(x) ** 2

    with pytest.raises(InputError, match="Squared '1' does more than normalize"):
        convert(conv_net(Squared), "layer")


def test_shared_layer_is_converted_once_and_stays_shared():
    norm = nn.BatchNorm1d(3)
    model = nn.Sequential(nn.Linear(3, 3), norm, nn.Linear(3, 3), norm)
    model.also = [norm]  # a reference that is no registered module
    converted = convert(model, "l2")
    assert converted[1] is converted[3]
    assert converted.also[0] is converted[1]
    assert len(plan_conversion(model, "l2")) == 1


@pytest.mark.parametrize("to", NORMALIZING)
def test_plain_sequential_gets_norms_after_every_hidden_layer(to):
    model = plain_net()
    converted = convert(model, to)
    names = [type(module).__name__ for module in converted]
    assert [names[0], names[2], names[4]] == ["Conv2d", "ReLU", "Flatten"]
    assert kind_of(converted[1]) == kind_of(converted[3][1]) == kind_of(converted[6]) == to
    assert len(norm_layers(converted)) == 3
    assert converted(IMAGES).shape == (4, 3)
    assert torch.equal(converted[3][0].weight, model[2][0].weight)
    first = "1.alpha" if to == "dyt" else "1.weight"
    assert list(converted.state_dict())[:3] == ["0.weight", "0.bias", first]


def test_inserted_and_removed_net_computes_as_before():
    model = plain_net().eval()
    removed = convert(convert(model, "batch"), "none")
    assert torch.equal(removed(IMAGES), model(IMAGES))
    assert kinds_in(convert(removed, "l1")) == ["l1"] * 3


def test_insertion_follows_dtype_mode_and_names():
    model = nn.Sequential(OrderedDict(hidden=nn.Linear(3, 4), out=nn.Linear(4, 2))).double().eval()
    converted = convert(model, "batch")
    assert list(converted._modules) == ["hidden", "hidden_norm", "out"]
    assert converted.hidden_norm.weight.dtype == torch.float64
    assert not converted.hidden_norm.training


def test_plain_net_to_none_is_a_copy():
    model = plain_net()
    converted = convert(model, "none")
    assert str(converted) == str(model)
    assert converted is not model


@pytest.mark.parametrize(
    ("place", "named"), [("root", r"^the model itself \(Block\)"), ("inside", "^Block '1'")]
)
def test_insertion_into_unknown_order_is_refused(place, named):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x):
            return x + self.layer(x)

    model = Block() if place == "root" else nn.Sequential(nn.Linear(3, 3), Block())
    with pytest.raises(InputError, match=rf"{named} .* cannot know where"):
        convert(model, "batch")


def test_unknown_kind_is_refused_even_without_places():
    with pytest.raises(UnknownNameError, match="did you mean 'layer'"):
        convert(nn.Sequential(nn.ReLU()), "layers")


def test_plan_says_what_is_kept_and_convert_logs_it(caplog):
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.LayerNorm([3, 1]))
    plan = plan_conversion(model, "noisy")
    tensors = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    assert plan == [Change("1", "batch", "noisy", tensors), Change("2", "layer", "noisy", ())]
    assert str(plan[1]) == "2: layer -> noisy, keeps nothing"
    with caplog.at_level(logging.INFO, logger="normscope.layers"):
        convert(model, "noisy")
    assert [record.getMessage() for record in caplog.records] == [str(change) for change in plan]
    inserted = plan_conversion(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), "l1")
    assert [str(change) for change in inserted] == ["after 0: l1 inserted"]


@pytest.mark.parametrize("to", NORMALIZING)
def test_absent_bias_stays_absent_or_is_announced(to):
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, bias=False), nn.Linear(4, 2))
    (change,) = plan_conversion(model, to)
    has_bias = getattr(convert(model, to)[1], "bias", None) is not None
    added = ("bias",) if to in ("l1", "l2", "linf") else ("alpha",) if to == "dyt" else ()
    assert has_bias == (to in ("l1", "l2", "linf"))
    assert change.added == added
    assert (f"keeps weight, adds {', '.join(added)}" in str(change)) == bool(added)
    assert convert(convert(model, "none"), "batch")[1].bias is None


@pytest.mark.parametrize("to", ["batch", "l1", "layer"])
def test_tied_scales_stay_tied(to):
    model = randomized(
        nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3), nn.BatchNorm1d(3))
    )
    model[3].weight = model[1].weight
    model[2].bias = model[1].bias
    converted = convert(model, to)
    assert converted[3].weight is converted[1].weight
    assert converted[2].bias is converted[1].bias
    assert converted[3].bias is not converted[1].bias
    assert converted[1].weight is not model[1].weight
    assert converted[1].weight.equal(model[1].weight)
    assert converted[1].bias.equal(model[1].bias)


def test_scale_tied_to_a_layer_that_stays_stays_tied():
    model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.Linear(3, 3), BatchNorm1d(3))
    model[1].weight = model[3].weight
    converted = convert(model, "batch")
    assert converted[1].norm.weight is converted[3].weight


class Wrapped(nn.Module):
    """Calls its parts one after the other."""

    def __init__(self, *parts):
        super().__init__()
        self.first, self.rest = parts[0], nn.ModuleList(parts[1:])
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        x = self.first(x.flatten(1))
        for part in self.rest:
            x = torch.relu(part(x))
        return x


def test_module_that_calls_sequential_parts_in_a_row_gets_norms():
    parts = [
        nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 5)),
        nn.Sequential(nn.Linear(5, 2)),
    ]
    model = nn.Sequential(Wrapped(parts[0]), Wrapped(*parts[1:]))
    converted = convert(model, "batch")
    assert list(norm_layers(converted)) == ["0.first.1", "0.first.4"]
    assert converted(torch.randn(6, 3)).shape == (6, 2)
    assert model[0].calls == 0
    both = convert(Wrapped(*parts), "batch")
    assert list(norm_layers(both)) == ["first.1", "first.4"]


def test_layer_called_by_another_module_itself_is_refused():
    with pytest.raises(InputError, match=r"itself \(Wrapped\) .* cannot know where"):
        convert(Wrapped(nn.Sequential(nn.Linear(3, 3)), nn.Linear(3, 3)), "batch")


@pytest.mark.parametrize("wrap", [nn.Identity, nn.Sequential], ids=["layer", "container"])
def test_output_layer_that_is_also_hidden_is_refused(wrap):
    shared = nn.Linear(3, 3) if wrap is nn.Identity else wrap(nn.Linear(3, 3))
    model = nn.Sequential(shared, nn.ReLU(), shared, nn.ReLU(), shared)
    with pytest.raises(InputError, match=r"'4.*' gives the output and is used before"):
        convert(model, "batch")


def test_shared_hidden_container_gets_its_norm_once():
    shared = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    converted = convert(nn.Sequential(shared, shared, nn.Linear(3, 2)), "batch")
    assert converted[0] is converted[1]
    assert [type(module) for module in converted[0]] == [nn.Linear, BatchNorm1d, nn.ReLU]


def test_norm_that_alters_its_scale_is_refused():
    class Absolute(nn.BatchNorm1d):
        def forward(self, x):
            return nn.functional.batch_norm(
                x, self.running_mean, self.running_var, self.weight.abs(), self.bias, False
            )

    with pytest.raises(InputError, match="Absolute '0' does more than normalize"):
        convert(nn.Sequential(Absolute(3)), "layer")


@pytest.mark.parametrize("function", [convert, plan_conversion])
def test_other_than_a_module_is_refused(function):
    with pytest.raises(ArgumentTypeError, match=r"convert expects an nn\.Module, got list"):
        function([1], "batch")


class Chain(nn.Module):
    """Calls its parts, and counts its calls: a copy, too, counts those in the original."""

    def __init__(self, *parts):
        super().__init__()
        self.one, self.two = parts
        self.calls = []
        self.count = lambda: self.calls.append(1)

    def forward(self, x):
        self.count()
        torch.rand(3)
        return self.two(self.one(x))


def test_conversion_leaves_random_numbers_spectral_norm_and_attributes_alone():
    def parts():
        layer = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))
        return nn.Sequential(layer, nn.ReLU(), nn.Linear(4, 4))

    model = Chain(parts(), parts())
    before, random_state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    for kind in ("batch", "noisy", "layer"):
        converted = convert(convert(model, kind), "group")
        assert all(value.equal(before[name]) for name, value in model.state_dict().items())
        assert (
            converted.one[0]
            .parametrizations.weight[0]
            ._u.equal(before["one.0.parametrizations.weight.0._u"])
        )
    assert torch.equal(torch.get_rng_state(), random_state)
    assert model.calls == []


def test_model_that_keeps_an_activation_with_its_graph_is_converted():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    model.cache = model[0](torch.ones(2, 4))
    assert isinstance(convert(model, "layer")[1], nn.LayerNorm)
    assert model.cache.grad_fn is not None
