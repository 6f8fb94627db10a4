"""A store returns the surface of the same model and loss alone."""

import functools
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from normscope import whole_loss
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


@pytest.mark.filterwarnings("ignore:the .* along alpha is NaN")
def test_the_same_direction_for_other_parameters_has_its_own_surface(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)).double()
    data = torch.randn(8, 4).double(), torch.arange(8) % 4
    direction = torch.linspace(-1, 1, 16)
    for params in ("0.weight", "2.weight"):
        stored, plain = (
            surface(
                model, "cross_entropy", data, [direction], params=params, extent=1e-7, points=5,
                hessian=False, store=store,
            )
            for store in (tmp_path / "s.db", None)
        )  # fmt: skip
        np.testing.assert_array_equal(stored.loss, plain.loss)


def clamped(most):
    """A loss whose limit is reached at the ends of a surface only."""
    return lambda output, target: cross_entropy(output, target).clamp(max=most)


LIMIT = 0.0


def limited(output, target):
    return cross_entropy(output, target).clamp(max=LIMIT)


def whole(most):
    return whole_loss(lambda model, batch: clamped(most)(model(batch[0]), batch[1]))


class Clamped:
    def __init__(self, most):
        self.most = most

    def __call__(self, output, target):
        return clamped(self.most)(output, target)


@pytest.mark.parametrize("kind", ["closure", "global", "partial", "whole", "object", "method"])
def test_losses_that_differ_far_from_the_centre_have_their_own_surfaces(
    tmp_path, batch, kind, monkeypatch
):
    ends = []
    for most in (3.0, 4.0):
        monkeypatch.setitem(globals(), "LIMIT", most)
        loss = {
            "closure": clamped(most),
            "global": limited,
            "partial": functools.partial(clamped(most)),
            "whole": whole(most),
            "object": Clamped(most),
            "method": Clamped(most).__call__,
        }[kind]
        found = surface(
            zeroed(), loss, batch, [DIRECTION], points=5, extent=8, store=tmp_path / "s.db"
        )
        ends.append(float(found.loss.max()))
    assert ends == [3.0, 4.0]


def test_a_changed_forward_pass_has_its_own_digest():
    def network(limit):
        class Network(nn.Linear):
            def forward(self, x):
                return super().forward(x).clamp(max=limit)

        return Network(4, 3)

    found = [structure_digest(network(limit), "cross_entropy", False) for limit in (2.0, 2.0, 5.0)]
    assert found[0] == found[1] != found[2]


def test_digests_are_the_same_in_another_process():
    code = (
        "from torch.nn import Linear; from normscope.landscape.identity import structure_digest;"
        "print(structure_digest(Linear(4, 3), lambda o, t: o if t in {'a', 'b', 'c'} else t, True))"
    )
    found = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert found[0] == found[1]


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
