"""Weights & Biases, offline: what is in its file is what was measured."""

import json
import runpy
from pathlib import Path

import pytest
from tests.references.loggers import sent

from normscope.errors import StateError
from normscope.integrations.wandb import WandbLogger

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = [
    pytest.mark.extras,
    pytest.mark.filterwarnings("ignore"),  # the package's own
]


HEADER, BLOCK, RECORD_HEAD = 7, 32_768, 7  # bytes, of the log format of LevelDB
WHOLE, AVERAGED = 1, 4  # kinds of pieces that end a record


def records(data):
    """The records of a run's file; the package no longer comes with a reader."""
    place, whole = HEADER, b""
    while place + RECORD_HEAD <= len(data):
        room = BLOCK - place % BLOCK
        if room < RECORD_HEAD:
            place += room
            continue
        size, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        place += RECORD_HEAD
        whole += data[place : place + size]
        place += size
        if kind in (WHOLE, AVERAGED):
            yield whole
            whole = b""


def history(folder):
    """The rows of the one run in a folder, as Weights & Biases would send them."""
    import wandb
    from wandb.proto.wandb_internal_pb2 import Record

    wandb.teardown()  # only then its service has surely written everything
    (path,) = folder.glob("wandb/offline-run-*/*.wandb")
    for data in records(path.read_bytes()):
        record = Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            yield {
                item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items
            }


@pytest.fixture
def offline(tmp_path, monkeypatch):
    import wandb

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    yield tmp_path
    wandb.teardown()  # it would go on writing to this folder


def test_example_keeps_every_number_beside_the_trainings_own(offline):
    names = runpy.run_path(str(EXAMPLES / "scope_wandb.py"))
    rows = list(history(offline))
    own = {row["_step"]: row["loss"] for row in rows if "loss" in row}
    assert sorted(own) == list(range(20))
    expected = sent(names["scope"].results).values
    found = {
        (tag, row["scope/step"]): value
        for row in rows
        if "scope/step" in row
        for tag, value in row.items()
        if tag.startswith("scope") and tag != "scope/step"
    }
    assert found == expected


def test_rows_are_kept_where_nothing_else_is_logged(offline):
    import wandb

    with wandb.init(project="normscope") as run:
        logger = WandbLogger(run)
        for step in (0, 10, 20):
            logger.add_scalar("scope/loss", step / 10, step)
            logger.add_histogram_raw("h", 0.0, 2.0, 3, 0.0, 0.0, [1.0, 2.0], [1.0, 2.0], step)
            logger.flush()
    rows = [row for row in history(offline) if "scope/step" in row]
    assert [(row["scope/step"], row["scope/loss"]) for row in rows] == [(0, 0), (10, 1), (20, 2)]
    assert rows[0]["h.bins"] == [0.0, 1.0, 2.0]
    assert rows[0]["h.values"] == [1, 2]


def test_logger_needs_a_run(offline):
    with pytest.raises(StateError, match=r"call wandb\.init first"):
        WandbLogger()
