"""The notebooks of the examples run, and hold the outputs of a run."""

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


def load_runner():
    spec = importlib.util.spec_from_file_location("notebooks", ROOT / "docs" / "notebooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def kinds_of_outputs(notebook):
    """For every code cell the kinds of its outputs: printed text, picture, table."""
    return [
        [
            output["output_type"] + " ".join(sorted(output.get("data", {})))
            for output in cell["outputs"]
        ]
        for cell in notebook["cells"]
        if cell["cell_type"] == "code"
    ]


def test_both_notebooks_are_there():
    assert [path.stem for path in NOTEBOOKS] == ["choose_a_learning_rate", "watch_a_training"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_and_holds_the_outputs_of_a_run(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    stored = json.loads(path.read_text(encoding="utf-8"))
    executed = load_runner().execute(json.loads(path.read_text(encoding="utf-8")))
    assert kinds_of_outputs(executed) == kinds_of_outputs(stored)
    assert any("image/png" in kind for cell in kinds_of_outputs(stored) for kind in cell)
    assert str(ROOT) not in json.dumps(stored)
