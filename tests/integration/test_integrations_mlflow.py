"""MLflow with a store on this machine: what it holds is what was measured."""

import runpy
from pathlib import Path

import pytest
from tests.references.loggers import sent

from normscope.errors import StateError
from normscope.integrations.mlflow import MLflowLogger

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = [
    pytest.mark.extras,
    pytest.mark.filterwarnings("ignore"),  # the package's own
]


def metrics_of(client, run_id):
    names = client.get_run(run_id).data.metrics
    return {
        (name, each.step): each.value
        for name in names
        for each in client.get_metric_history(run_id, name)
    }


def test_example_keeps_every_number(tmp_path, monkeypatch):
    import mlflow

    monkeypatch.chdir(tmp_path)
    names = runpy.run_path(str(EXAMPLES / "scope_mlflow.py"))
    client = mlflow.MlflowClient("sqlite:///mlflow.db")
    (run,) = client.search_runs(["0"])
    expected = sent(names["scope"].results).values
    assert metrics_of(client, run.info.run_id) == expected
    assert {step for _, step in expected} == {0, 5, 10, 15}


def test_names_that_mlflow_refuses_are_changed(tmp_path):
    import mlflow

    uri = f"sqlite:///{tmp_path / 'own.db'}"
    client = mlflow.MlflowClient(uri)
    run_id = client.create_run("0").info.run_id
    logger = MLflowLogger(run_id, uri)
    logger.add_scalar("scope_gradient_norm/a[0]", 2.0, 3)
    for place in range(1200):  # more than it takes at once
        logger.add_scalar(f"many/{place}", float(place), 3)
    logger.flush()
    found = metrics_of(client, run_id)
    assert found["scope_gradient_norm/a_0_", 3] == 2.0
    assert len(found) == 1201


def test_logger_needs_a_run():
    import mlflow

    while mlflow.active_run() is not None:
        mlflow.end_run()
    with pytest.raises(StateError, match=r"call mlflow\.start_run first, or give run_id"):
        MLflowLogger()
