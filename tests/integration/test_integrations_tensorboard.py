"""TensorBoard reads back what a scope has measured."""

import runpy
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tests.references.loggers import sent

EXAMPLES = Path(__file__).parents[2] / "examples"


def events_in(folder):
    found = EventAccumulator(str(folder), {"scalars": 0, "histograms": 0})
    found.Reload()
    return found


def test_example_is_read_back_by_tensorboard(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = runpy.run_path(str(EXAMPLES / "scope_tensorboard.py"))
    results = names["scope"].results
    assert results["step"].values.tolist() == [0, 5, 10, 15]
    events = events_in(tmp_path / "runs" / "batch")

    expected = sent(results).values
    found = {
        (tag, event.step): event.value
        for tag in events.Tags()["scalars"]
        for event in events.Scalars(tag)
    }
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert found[key] == pytest.approx(value, rel=1e-6)  # kept in single precision

    counted = sent(results).histograms
    shown = {
        (tag, event.step): event.histogram_value
        for tag in events.Tags()["histograms"]
        for event in events.Histograms(tag)
    }
    assert shown.keys() == counted.keys()
    for key, each in counted.items():
        assert np.allclose(shown[key].bucket_limit, each["bucket_limits"])
        assert shown[key].bucket == each["bucket_counts"]
        assert shown[key].num == 64
