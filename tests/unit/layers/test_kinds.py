import math

import pytest
import torch
from torch import nn

from normscope.errors import ArgumentTypeError, InputError, StateError, UnknownNameError
from normscope.layers import (
    NORMS,
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    DynamicTanh,
    LpNorm1d,
    LpNorm2d,
    LpNorm3d,
    NoisyBatchNorm1d,
    NoisyBatchNorm2d,
    NoisyBatchNorm3d,
    NoNorm,
    SampleRMSNorm,
    convert,
    is_batch_norm,
    is_norm,
    kind_of,
    norm_kind,
    norm_layers,
    normalization,
)
from normscope.layers.kinds import is_lp_norm

CLASSES = {
    "none": (NoNorm, NoNorm, NoNorm, NoNorm),
    "batch": (BatchNorm1d, BatchNorm1d, BatchNorm2d, BatchNorm3d),
    "noisy": (NoisyBatchNorm1d, NoisyBatchNorm1d, NoisyBatchNorm2d, NoisyBatchNorm3d),
    "l1": (LpNorm1d, LpNorm1d, LpNorm2d, LpNorm3d),
    "l2": (LpNorm1d, LpNorm1d, LpNorm2d, LpNorm3d),
    "linf": (LpNorm1d, LpNorm1d, LpNorm2d, LpNorm3d),
    "layer": (nn.LayerNorm, nn.GroupNorm, nn.GroupNorm, nn.GroupNorm),
    "group": (nn.GroupNorm, nn.GroupNorm, nn.GroupNorm, nn.GroupNorm),
    "rms": (nn.RMSNorm, SampleRMSNorm, SampleRMSNorm, SampleRMSNorm),
    "instance": (None, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
    "dyt": (DynamicTanh, DynamicTanh, DynamicTanh, DynamicTanh),
}
CASES = [
    (kind, dimensions) for kind in CLASSES for dimensions in range(4) if CLASSES[kind][dimensions]
]


def test_registry_holds_the_kinds_tested_here():
    assert sorted(NORMS) == sorted(CLASSES)


@pytest.mark.parametrize(("kind", "dimensions"), CASES)
def test_normalization_has_the_class_of_its_kind_and_takes_its_input(kind, dimensions):
    layer = normalization(kind, 6, dimensions)
    assert type(layer) is CLASSES[kind][dimensions]
    x = torch.randn(4, 6, *[3] * dimensions)
    assert layer(x).shape == x.shape


@pytest.mark.parametrize(("kind", "dimensions"), CASES)
def test_normalization_starts_at_gamma_with_zero_shift(kind, dimensions):
    layer = normalization(kind, 6, dimensions, gamma=0.25, dtype=torch.float64)
    if kind == "none":
        assert list(layer.parameters()) == []
    else:
        assert layer.weight.tolist() == [0.25] * 6
        assert kind == "rms" or layer.bias.tolist() == [0.0] * 6
        assert layer.weight.dtype == torch.float64


@pytest.mark.parametrize(("kind", "p"), [("l1", 1), ("l2", 2), ("linf", math.inf)])
def test_lp_kinds_have_their_order_and_take_the_size_before_centring(kind, p):
    layer = normalization(kind, 3, 2)
    assert layer.p == p
    assert layer.centred is False


@pytest.mark.parametrize(("channels", "groups"), [(64, 32), (30, 2), (7, 1), (96, 32)])
def test_group_norm_has_gcd_groups(channels, groups):
    assert normalization("group", channels, 2).num_groups == groups


@pytest.mark.parametrize(
    ("units", "groups"), [(1000, 8), (100, 4), (64, 16), (32, 8), (8, 2), (6, 1)]
)
def test_group_norm_of_vectors_has_at_least_four_units_in_a_group(units, groups):
    layer = normalization("group", units, 0)
    assert layer.num_groups == groups
    x = torch.randn(8, units, generator=torch.Generator().manual_seed(0))
    assert layer(x).std(0).min() > 0.1  # another input, another output


@pytest.mark.parametrize("dimensions", [0, 2])
def test_layer_kind_normalizes_each_sample_over_everything(dimensions):
    x = 3 + 5 * torch.randn(4, 6, *[3] * dimensions, dtype=torch.float64)
    y = normalization("layer", 6, dimensions, dtype=torch.float64, eps=0.0)(x).flatten(1)
    torch.testing.assert_close(y.mean(1), torch.zeros(4, dtype=torch.float64))
    torch.testing.assert_close(y.var(1, correction=0), torch.ones(4, dtype=torch.float64))


@pytest.mark.parametrize("kind", [kind for kind in CLASSES if kind != "none"])
def test_affine_false_has_no_scale_and_refuses_gamma(kind):
    named = normalization(kind, 6, 1, affine=False).named_parameters()
    assert [name for name, _ in named] == (["alpha"] if kind == "dyt" else [])
    with pytest.raises(InputError, match="no scale"):
        normalization(kind, 6, 1, gamma=2.0, affine=False)


def test_instance_normalization_of_vectors_is_refused():
    with pytest.raises(InputError, match="a vector has one value per channel; choose layer"):
        normalization("instance", 6, 0)


def test_no_norm_is_an_identity_that_remembers_its_place():
    layer = normalization("none", 6, 2, gamma=3.0, eps=1e-3)
    x = torch.randn(2, 6, 3, 3)
    assert isinstance(layer, nn.Identity)
    assert layer(x) is x
    assert (layer.num_features, layer.dimensions, layer.options) == (6, 2, {"eps": 1e-3})
    assert repr(layer) == "NoNorm(6, dimensions=2)"


def test_unknown_kind_names_the_closest():
    with pytest.raises(UnknownNameError, match="did you mean 'batch'"):
        normalization("bach", 3, 2)


def test_wrong_dimensions_are_refused():
    with pytest.raises(InputError, match=r"0 .vectors. to 3"):
        normalization("batch", 3, 4)


def test_unknown_option_is_refused_with_the_kind():
    with pytest.raises(ArgumentTypeError, match="'group' layer cannot be made"):
        normalization("group", 3, 2, momentum=0.1)


class FusedBatchNorm(nn.BatchNorm2d):
    def __init__(self, num_features):
        super().__init__(num_features)
        self.activation = nn.ReLU()

    def forward(self, x):
        return self.activation(super().forward(x))


class ForeignBatchNorm(nn.Module):
    """Batch norm that shares no class with torch's."""

    def __init__(self, num_features):
        super().__init__()
        self.num_features, self.eps, self.momentum = num_features, 1e-5, 0.1
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))


class FrozenBatchNorm(ForeignBatchNorm):
    def __init__(self, num_features):
        super().__init__(num_features)
        del self.momentum


BATCH_NORMS = [
    nn.BatchNorm1d(3),
    nn.BatchNorm3d(3, affine=False, track_running_stats=False),
    nn.SyncBatchNorm(3),
    BatchNorm2d(3),
    NoisyBatchNorm2d(3),
    FusedBatchNorm(3),
    ForeignBatchNorm(3),
]
OTHER_NORMS = [
    nn.LayerNorm(3),
    nn.GroupNorm(1, 3),
    nn.RMSNorm(3),
    nn.InstanceNorm2d(3, affine=True, track_running_stats=True),
    LpNorm1d(3, p=3),
]
NO_NORMS = [
    nn.Linear(3, 3),
    nn.Identity(),
    NoNorm(3, 0),
    nn.Sequential(nn.BatchNorm1d(3)),
    nn.LocalResponseNorm(3),
    FrozenBatchNorm(3),
]


def class_name(module):
    return type(module).__name__


@pytest.mark.parametrize("module", BATCH_NORMS, ids=class_name)
def test_batch_norm_is_recognized(module):
    assert is_batch_norm(module)
    assert is_norm(module)
    assert not is_lp_norm(module)


@pytest.mark.parametrize("module", OTHER_NORMS, ids=class_name)
def test_other_norms_are_norms_but_not_batch_norm(module):
    assert is_norm(module)
    assert not is_batch_norm(module)


@pytest.mark.parametrize("module", NO_NORMS, ids=class_name)
def test_other_modules_are_no_norms(module):
    assert not is_norm(module)


@pytest.mark.parametrize("kind", list(NORMS))
@pytest.mark.parametrize("dimensions", [1, 2])
def test_kind_of_inverts_normalization(kind, dimensions):
    assert kind_of(normalization(kind, 8, dimensions)) == kind


@pytest.mark.parametrize(
    ("module", "kind"),
    [
        (LpNorm1d(3, p=math.inf), "linf"),
        (LpNorm1d(3, p=3), None),
        (nn.InstanceNorm1d(3), "instance"),
        (nn.RMSNorm(3), "rms"),
        (nn.RMSNorm([3, 2]), "rms"),
        (nn.Identity(), None),
        (FusedBatchNorm(3), "batch"),
        (ForeignBatchNorm(3), "batch"),
    ],
    ids=str,
)
def test_kind_of_other_modules(module, kind):
    assert kind_of(module) == kind


def test_norm_layers_are_named_once_in_order():
    shared = nn.BatchNorm1d(3)
    model = nn.ModuleDict(
        {"b": nn.Sequential(nn.Linear(3, 3), shared), "a": shared, "c": nn.LayerNorm(3)}
    )
    assert list(norm_layers(model)) == ["b.1", "c"]
    assert norm_layers(shared) == {"": shared}


@pytest.mark.parametrize("lazy", [nn.LazyBatchNorm1d, nn.LazyInstanceNorm1d], ids=str)
def test_lazy_layer_is_refused_until_it_knows_its_channels(lazy):
    model = nn.Sequential(lazy())
    with pytest.raises(StateError, match="pass one batch"):
        norm_layers(model)
    model(torch.randn(4, 3, 5))
    assert list(norm_layers(model)) == ["0"]


class CentredNorm(nn.Module):
    """Subtracts the mean of each sample; the smallest kind that can be registered."""

    def __init__(self, num_features, eps):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(num_features))

    def forward(self, x):
        return self.weight * (x - x.mean(1, keepdim=True))


@pytest.fixture
def centred_kind():
    @norm_kind("centred_test", CentredNorm)
    def centred_norm(num_features, dimensions, eps=1e-5):
        """Subtract the mean of a sample."""
        return CentredNorm(num_features, eps)

    yield "centred_test"
    del NORMS._items["centred_test"]


def test_one_decorator_registers_a_kind_for_building_detection_and_conversion(centred_kind):
    assert NORMS.summary(centred_kind) == "Subtract the mean of a sample."
    layer = normalization(centred_kind, 3, 0, gamma=2.0, eps=0.1)
    assert (layer.eps, layer.weight.tolist()) == (0.1, [2.0] * 3)
    assert is_norm(layer)
    assert kind_of(layer) == centred_kind
    with pytest.raises(ArgumentTypeError, match="cannot be made with"):
        normalization(centred_kind, 3, 0, momentum=0.1)
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3, eps=0.2), nn.ReLU()).double()
    converted = convert(net, centred_kind)
    assert (type(converted[1]), converted[1].eps) == (CentredNorm, 0.2)
    assert converted(torch.ones(2, 2).double()).dtype is torch.float64
    back = convert(converted, "batch")
    assert (kind_of(back[1]), back[1].num_features, back[1].eps) == ("batch", 3, 0.2)
