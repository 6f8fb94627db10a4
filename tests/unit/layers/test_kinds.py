import math

import pytest
import torch
from torch import nn

from normscope.errors import ArgumentTypeError, InputError, UnknownNameError
from normscope.layers.batch_norm import BatchNorm1d, BatchNorm2d, BatchNorm3d
from normscope.layers.kinds import NORMS, NoNorm, normalization
from normscope.layers.lp_norm import LpNorm1d, LpNorm2d, LpNorm3d
from normscope.layers.noisy import NoisyBatchNorm1d, NoisyBatchNorm2d, NoisyBatchNorm3d

CLASSES = {
    "none": (NoNorm, NoNorm, NoNorm, NoNorm),
    "batch": (BatchNorm1d, BatchNorm1d, BatchNorm2d, BatchNorm3d),
    "noisy": (NoisyBatchNorm1d, NoisyBatchNorm1d, NoisyBatchNorm2d, NoisyBatchNorm3d),
    "l1": (LpNorm1d, LpNorm1d, LpNorm2d, LpNorm3d),
    "l2": (LpNorm1d, LpNorm1d, LpNorm2d, LpNorm3d),
    "linf": (LpNorm1d, LpNorm1d, LpNorm2d, LpNorm3d),
    "layer": (nn.LayerNorm, nn.GroupNorm, nn.GroupNorm, nn.GroupNorm),
    "group": (nn.GroupNorm, nn.GroupNorm, nn.GroupNorm, nn.GroupNorm),
}
CASES = [(kind, dimensions) for kind in CLASSES for dimensions in range(4)]


def test_registry_holds_the_eight_kinds():
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
        assert layer.bias.tolist() == [0.0] * 6
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
def test_affine_false_has_no_parameters_and_refuses_gamma(kind):
    assert list(normalization(kind, 6, 0, affine=False).parameters()) == []
    with pytest.raises(InputError, match="no scale"):
        normalization(kind, 6, 0, gamma=2.0, affine=False)


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
