"""A store returns the surface of the same model and loss alone."""

import functools

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from normscope.landscape import surface
from normscope.landscape.identity import structure_digest

DIRECTION = torch.linspace(-1, 1, 15)


def zeroed(bias_factor=1.0):
    model = nn.Linear(4, 3)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    model.factor = bias_factor
    return model


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(12, 4, generator=generator), torch.arange(12) % 3


def test_a_loss_with_the_same_value_at_the_centre_has_its_own_surface(tmp_path, batch):
    losses = [nn.CrossEntropyLoss(), nn.CrossEntropyLoss(label_smoothing=0.3)]
    for loss in losses:
        stored, plain = (
            surface(zeroed(), loss, batch, [DIRECTION], points=5, store=store)
            for store in (tmp_path / "s.db", None)
        )
        np.testing.assert_array_equal(stored.loss, plain.loss)


def test_losses_off_the_centre_distinguish_what_has_no_description(tmp_path, batch):
    for smoothing in (0.0, 0.3):

        def loss(output, target, smoothing=smoothing):
            return cross_entropy(output, target, label_smoothing=smoothing)

        stored, plain = (
            surface(zeroed(), loss, batch, [DIRECTION], points=5, store=store)
            for store in (tmp_path / "s.db", None)
        )
        np.testing.assert_array_equal(stored.loss, plain.loss)


def test_structure_has_classes_settings_and_losses_and_no_addresses():
    def digest(model=None, loss="cross_entropy", with_flags=False):
        return structure_digest(model or zeroed(), loss, with_flags)

    assert digest() == digest()
    assert digest(nn.Sequential(nn.ReLU())) != digest(nn.Sequential(nn.Tanh()))
    assert digest(zeroed(2.0)) != digest()
    smooth = functools.partial(cross_entropy, label_smoothing=0.3)
    names = [digest(loss=each) for each in ("cross_entropy", cross_entropy, smooth)]
    assert len(set(names)) == 3
    assert digest(loss=smooth) == digest(loss=functools.partial(cross_entropy, label_smoothing=0.3))
    assert digest(zeroed().eval()) == digest()
    assert digest(zeroed().eval(), with_flags=True) != digest(with_flags=True)
