"""Every network of the zoo: curvature against references, and no state changed. In seconds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.zoo.entry import call
from tests.zoo.features import FEATURES, outcome
from tests.zoo.packages import PACKAGES
from tests.zoo.reference import Reference, trainable
from tests.zoo.registry import ZOO
from tests.zoo.state import changes, snapshot

DOCS = Path(__file__).parents[2] / "docs"
QUICK = ("loss, gradient", "GGN top eigenvalue", "Hessian top eigenvalue", "dense, float64")
OUTCOMES = json.loads((DOCS / "supported_models.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("feature", QUICK)
@pytest.mark.parametrize("name", ZOO)
def test_curvature_agrees_with_the_reference(name, feature):
    found = outcome(ZOO[name], feature)
    refused = OUTCOMES["zoo"][name][feature].startswith("refuses")  # as the table says
    assert found == "works" or (refused and found.startswith("refuses")), found


@pytest.mark.parametrize("name", ZOO)
def test_entries_follow_from_their_seeds(name):
    entry, before = ZOO[name], torch.get_rng_state()
    one, other, third = entry.build(3), entry.build(3), entry.build(4)
    batches = entry.batch(3), entry.batch(3)
    assert torch.equal(before, torch.get_rng_state())
    own = ("identity", "class")
    assert all(name.startswith(own) for name in changes(snapshot(one), snapshot(other)))
    assert changes(snapshot(one), snapshot(third))
    assert repr(batches[0]) == repr(batches[1])


@pytest.mark.parametrize("name", ZOO)
def test_plain_models_compute_the_same(name):
    entry = ZOO[name]
    model, batch = entry.build().double(), Reference(entry).batch
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        tensors = entry.tensors(call(model, batch))
    loss = entry.plain_loss(*tensors, batch)
    assert loss.item() == pytest.approx(Reference(entry, mode="as_is").loss.item(), rel=1e-12)
    assert 100 < sum(each.numel() for each in trainable(model)) < 50_000


def test_the_zoo_holds_the_networks_people_train():
    assert len(ZOO) == 28
    assert all(entry.name == name for name, entry in ZOO.items())


def test_table_of_supported_models_is_up_to_date():
    command = [sys.executable, str(DOCS / "supported_models.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_table_has_every_network_and_every_feature():
    for group, entries in (("zoo", ZOO), ("packages", PACKAGES)):
        assert list(OUTCOMES[group]) == list(entries)
        assert all(list(cells) == list(FEATURES) for cells in OUTCOMES[group].values())
