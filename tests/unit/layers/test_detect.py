import math

import pytest
import torch
from torch import nn

from normscope.errors import StateError
from normscope.layers.batch_norm import BatchNorm2d
from normscope.layers.kinds import (
    NORMS,
    NoNorm,
    is_batch_norm,
    is_lp_norm,
    is_norm,
    kind_of,
    norm_layers,
    normalization,
)
from normscope.layers.lp_norm import LpNorm1d
from normscope.layers.noisy import NoisyBatchNorm2d


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
@pytest.mark.parametrize("dimensions", [0, 2])
def test_kind_of_inverts_normalization(kind, dimensions):
    assert kind_of(normalization(kind, 8, dimensions)) == kind


@pytest.mark.parametrize(
    ("module", "kind"),
    [
        (LpNorm1d(3, p=math.inf), "linf"),
        (LpNorm1d(3, p=3), None),
        (nn.InstanceNorm1d(3), None),
        (nn.RMSNorm(3), None),
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
