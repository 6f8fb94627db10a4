"""Trainings of santurkar2018 that are interrupted resume from their checkpoint, bit for bit."""

import signal
import subprocess
import sys

import pytest
import xarray as xr

from normscope.errors import StateError
from normscope.experiments import EXPERIMENTS, run
from normscope.experiments.santurkar2018 import run_training, trainings
from normscope.probes import Scope
from normscope.progress import Progress
from normscope.results import State, Store
from normscope.training.checkpoint import steps_taken

RECORDS = "santurkar2018 training"
FIGURE = {"name": "santurkar2018/figure7", "steps": 8, "every": 2, "evaluated": 20}
CHILD = f"""
import os, signal, sys
from normscope.experiments import run
from normscope.experiments.santurkar2018 import run_training, trainings
from normscope.probes import Scope
from normscope.results import Store

run_training.CHECKPOINT_EVERY = trainings.CHECKPOINT_EVERY = 3
original, is_killed, started = Scope.step, sys.argv[2] == "killed", set()

def step(self, *batch):
    if self._step == 0:
        started.add(id(self))
    if is_killed and id(self) in started and self._step == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(self, *batch)

Scope.step = step
with Store(sys.argv[1]) as store:
    run(**{FIGURE}, store=store)
"""


def in_a_process(path, how):
    command = [sys.executable, "-c", CHILD, str(path), how]
    return subprocess.run(command, check=False, timeout=120).returncode


def finished(path):
    """The records by normalization, without the time they took."""
    with Store(path, read_only=True) as store:
        found = store.select(RECORDS, state="finished")
        return {
            each.parameters["norm"]: each.dataset.drop_vars("processor_seconds") for each in found
        }


@pytest.mark.slow
def test_killed_trainings_resume_and_end_in_the_same_numbers(tmp_path):
    whole, killed = (tmp_path / name / "runs.sqlite" for name in ("whole", "killed"))
    whole.parent.mkdir()
    killed.parent.mkdir()
    assert in_a_process(whole, "whole") == 0
    # every training once, at step 4; the checkpoint after step 2 lacks what step 3 completes
    for count in range(3):
        assert in_a_process(killed, "killed") == -signal.SIGKILL
        assert len(list((killed.parent / "checkpoints").glob("*.pt"))) == 1
        assert len(finished(killed)) == count
    assert in_a_process(killed, "killed") == 0
    expected, resumed = finished(whole), finished(killed)
    assert set(expected) == set(resumed) == {"none", "batch", "noisy"}
    for norm, record in expected.items():
        xr.testing.assert_identical(record, resumed[norm])
    assert not list((killed.parent / "checkpoints").iterdir())


def test_interrupted_training_resumes_from_its_checkpoint(tmp_path, monkeypatch):
    for module in (run_training, trainings):
        monkeypatch.setattr(module, "CHECKPOINT_EVERY", 3)
    whole = run(**FIGURE)
    original, seen = Scope.step, []

    def step(self, *batch):
        seen.append(self._step)
        if len(seen) == 6:
            raise KeyboardInterrupt
        return original(self, *batch)

    monkeypatch.setattr(Scope, "step", step)
    with Store(tmp_path / "runs.sqlite") as store, pytest.raises(KeyboardInterrupt):
        run(**FIGURE, store=store)
    (checkpoint,) = (tmp_path / "checkpoints").glob("*.pt")
    assert steps_taken(checkpoint) == 3
    assert steps_taken(tmp_path / "none.pt") == 0
    with Store(tmp_path / "runs.sqlite") as store:
        resumed = run(**FIGURE, store=store)
    assert seen[6:11] == [3, 4, 5, 6, 7]  # after the checkpoint, not from the beginning
    xr.testing.assert_identical(whole.dataset, resumed.dataset)


def test_read_only_store_leaves_out_what_it_lacks(tmp_path):
    path = tmp_path / "runs.sqlite"
    with Store(path) as store:
        run("santurkar2018/figure4", store=store)
    with Store(path, read_only=True) as store:
        found = run("santurkar2018/figure11", store=store, seeds=2)
        with pytest.raises(StateError, match="has none of the 2 trainings"):
            run("santurkar2018/figure9", store=store)
    assert found.dataset["training_loss"].notnull().any("step").sel(seed=0).values.tolist() == [
        *(True, True, False, False, False)
    ]
    missing = found.dataset.attrs["missing"].split("; ")
    assert len(missing) == 8
    assert "vgg l1, learning rate 0.1, seed 0" in missing
    assert all(claim.holds is None for claim in found.claims)


def test_trainings_under_way_count_up_to_their_checkpoint(tmp_path, monkeypatch):
    for module in (run_training, trainings):
        monkeypatch.setattr(module, "CHECKPOINT_EVERY", 3)
    whole = run(**FIGURE)
    original, seen = Scope.step, []

    def step(self, *batch):
        seen.append(self._step)
        if len(seen) == 8 + 6:  # in the second training, after its checkpoint of three steps
            raise KeyboardInterrupt
        return original(self, *batch)

    monkeypatch.setattr(Scope, "step", step)
    with Store(tmp_path / "runs.sqlite") as store, pytest.raises(KeyboardInterrupt):
        run(**FIGURE, store=store)
    with Store(tmp_path / "runs.sqlite", read_only=True) as store:
        found = run(**FIGURE, store=store, unfinished=True)
        assert run(**FIGURE, store=store).dataset["training_loss"].sizes["step"] == 4
    assert found.dataset.attrs["unfinished"].endswith(
        "batch, learning rate 0.1, seed 0: 3 of 8 steps"
    )
    for name in ("training_loss", "activation_mean_change"):
        shown = found.dataset[name].sel(norm=["none", "batch"])
        expected = whole.dataset[name].sel(norm=["none", "batch"], step=[0, 2])
        if name == "activation_mean_change":  # the step after completes it
            shown, expected = (each.sel(step=0) for each in (shown, expected))
        xr.testing.assert_equal(shown, expected)
    assert {claim.verdict for claim in found.claims} == {"undecided"}
    assert all("3 of 8 steps" in claim.resolve for claim in found.claims)


def test_medium_scale_has_the_papers_steps_and_fewer_seeds_of_the_other_norms():
    settings = EXPERIMENTS["santurkar2018/figure11"].settings("medium", {})
    paper = EXPERIMENTS["santurkar2018/figure11"].settings("paper", {})
    assert (settings.pop("width"), settings.pop("other_seeds")) == (0.25, 1)
    assert (paper.pop("width"), paper.pop("other_seeds")) == (1.0, 3)
    assert (settings.pop("evaluated"), paper.pop("evaluated")) == (2_000, 10_000)
    assert settings == paper
    assert "other_seeds" not in EXPERIMENTS["santurkar2018/figure4"].defaults
    with Store(":memory:") as store:
        run("santurkar2018/figure7", store=store, seeds=2, other_seeds=1)
        assert store.counts(RECORDS)[State.FINISHED] == 5


def test_time_of_long_trainings_is_announced(monkeypatch):
    monkeypatch.setattr(trainings, "_LONG", 2)
    events: list[Progress] = []
    with Store(":memory:") as store:
        run("santurkar2018/figure4", store=store, progress=events.append)
        assert events[0].stage.startswith("2 trainings to run: about ")
        assert "ms a step of none" in events[0].stage
        events.clear()
        run("santurkar2018/figure4", store=store, progress=events.append)
    assert events[0].stage == "vgg none, learning rate 0.1, seed 0"
