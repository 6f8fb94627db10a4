"""Networks trained together against the same networks trained alone."""

import math

import numpy as np
import pytest
import torch

from normscope.errors import InputError
from normscope.models import build
from normscope.sweeps import TRAININGS, Cell, Diagram, training_cell
from normscope.sweeps.ensemble import Member, Stack, is_stackable, train_together

SMALL = {"epochs": 2, "width": 24, "samples": 640, "test_samples": 100}


def cells(**settings):
    pairs = [(0.5, 0.01), (1.0, 0.05), (2.0, 5e4), (1.0, 0.001)]
    return [Cell({**SMALL, **settings, "gamma": g, "learning_rate": r}, 3) for g, r in pairs]


@pytest.mark.parametrize(
    "settings",
    [
        {"loss": "squared_error"},
        {"loss": "cross_entropy"},
        {"loss": "squared_error", "norm": "none"},
        {"loss": "cross_entropy", "weight_decay": 0.01, "momentum": 0.0, "activation": "tanh"},
        {"loss": "squared_error", "bias": False, "depth": 2},
    ],
    ids=str,
)
def test_group_ends_as_separate_trainings_up_to_rounding(settings):
    group = cells(**settings)
    for cell, found in zip(group, TRAININGS.function(group), strict=True):
        alone = training_cell(**cell.parameters, seed=cell.seed)
        assert str(found["outcome"].values) == str(alone["outcome"].values)
        assert int(found["steps_done"]) == int(alone["steps_done"])
        if str(alone["outcome"].values) == "finished":
            for name in ("loss", "train_loss", "test_loss", "test_accuracy"):
                np.testing.assert_allclose(found[name], alone[name], rtol=2e-3, atol=1e-5)


def test_steps_are_exact_in_double_precision():
    """Losses, parameters and running statistics after some steps, in float64, to 1e-12."""
    torch.manual_seed(0)
    x, y = torch.randn(64, 6, dtype=torch.float64), torch.randint(3, (64,))
    options = {"input_shape": (6,), "outputs": 3, "width": 8, "depth": 3}
    together = [build("fully_connected", seed=s, gamma=0.5 + s, **options).double() for s in (0, 1)]
    alone = [build("fully_connected", seed=s, gamma=0.5 + s, **options).double() for s in (0, 1)]
    batches = [(x[i : i + 16], y[i : i + 16]) for i in range(0, 64, 16)]
    members = [Member(network, rate) for network, rate in zip(together, (0.1, 0.02), strict=True)]
    train_together(members, iter(batches), "cross_entropy", 4, 0.9, 1e-3, 1e3)
    for network, member, rate in zip(alone, members, (0.1, 0.02), strict=True):
        optimizer = torch.optim.SGD(network.parameters(), rate, momentum=0.9, weight_decay=1e-3)
        losses = []
        for inputs, targets in batches:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(network(inputs), targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        np.testing.assert_allclose(member.losses, losses, rtol=1e-12)
        for name, tensor in network.state_dict().items():
            if not name.endswith("num_batches_tracked"):
                torch.testing.assert_close(
                    member.network.state_dict()[name], tensor, rtol=1e-10, atol=1e-12
                )


def test_member_that_diverges_leaves_at_once_and_harms_nobody():
    group = cells(loss="squared_error")
    found = TRAININGS.function(group)
    assert [str(each["outcome"].values) for each in found].count("diverged") == 1
    assert int(found[2]["steps_done"]) < 10
    calm = [cell for number, cell in enumerate(group) if number != 2]
    for each, other in zip(TRAININGS.function(calm), found[:2] + found[3:], strict=True):
        np.testing.assert_allclose(each["test_loss"], other["test_loss"], rtol=1e-3)


def test_group_is_the_same_to_the_bit_every_time():
    first, second = TRAININGS.function(cells()), TRAININGS.function(cells())
    assert all(a.identical(b) for a, b in zip(first, second, strict=True))


def test_groups_are_small_nets():
    axes = {"gamma": [0.5, 1.0], "learning_rate": [0.01, 0.1]}
    sizes = {"epochs": 1, "samples": 256}
    (unit,) = Diagram(axes, {**sizes, "width": 24}, [0]).units
    assert len(unit.cells) == 4
    conv_net = {"model": "conv_net", "padding": 1}
    for alone in ({"width": 1000}, conv_net, {"width": 24, "every_epoch": True}):
        assert len(Diagram(axes, {**sizes, **alone}, [0]).units) == 4


def test_other_layers_are_refused():
    network = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.LayerNorm(3))
    assert not is_stackable(network)
    with pytest.raises(InputError, match="can be stacked"):
        Stack([network])


def test_empty_group_of_survivors_ends():
    network = build("fully_connected", input_shape=(4,), outputs=2, width=5)
    member = Member(network, 1e30)
    batch = (torch.randn(8, 4), torch.randint(2, (8,)))
    train_together([member], iter([batch] * 20), "squared_error", 20, 0.9, 0.0, 1e3)
    assert member.diverged
    assert not math.isfinite(member.losses[-1]) or member.losses[-1] > 1e3 * member.losses[0]
