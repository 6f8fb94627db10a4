"""``normscope landscape`` from its arguments to its files and exit code."""

import json
import sys

import numpy as np
import pytest
import torch
import xarray as xr

from normscope.cli import landscape as module
from normscope.cli.main import main
from normscope.data import load
from normscope.landscape import DIRECTIONS, MODES, SCALINGS, surface
from normscope.models import build
from normscope.plots.surface import KINDS

SMALL = ["fully_connected", "--data", "digits", "--option", "width=6", "--batch-size", "32"]
FILE = """
from normscope.data import load
def few(): return tuple(each[:32] for each in load("digits").train)
"""


@pytest.fixture(autouse=True)
def _own_path(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))


def test_json_holds_the_values_of_the_python_function(capsys, tmp_path):
    (tmp_path / "few.py").write_text(FILE, encoding="utf-8")
    given = ["fully_connected", "--data", f"{tmp_path / 'few.py'}:few", "--option", "width=6"]
    options = ["--points", "3", "--extent", "-1,2", "--directions", "gradient,random"]
    assert main(["landscape", *given, *options, "--mode", "eval", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    model = build("fully_connected", input_shape=(1, 8, 8), width=6)
    batch = tuple(each[:32] for each in load("digits").train)
    wanted = surface(
        model, "cross_entropy", batch, ["gradient", "random"], "eval", points=3, extent=(-1, 2)
    )
    np.testing.assert_allclose(found["loss_values"], wanted.loss.values, rtol=1e-6)
    assert found["alpha"] == [-1.0, 0.5, 2.0]
    assert found["model"] == "fully_connected"


def test_files_are_written_by_their_suffix_and_a_store_resumes(capsys, tmp_path):
    names = ["s.svg", "s.html", "s.nc", "s.csv", "s.vtk"]
    outs = [part for name in names for part in ("-o", str(tmp_path / name))]
    store = ["--store", str(tmp_path / "parts.sqlite")]
    assert main(["landscape", *SMALL, "--points", "5", *outs, *store]) == 0
    assert "roughness" in capsys.readouterr().out
    assert all((tmp_path / name).stat().st_size > 500 for name in names)
    assert main(["landscape", *SMALL, "--points", "5", *store, "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    with xr.open_dataset(tmp_path / "s.nc", engine="scipy") as read:
        assert again["loss_values"] == read["loss"].values.tolist()
    assert main(["report", str(tmp_path / "s.nc"), "-o", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert 'class="surface"' in page
    assert "the batch's statistics at every point" in page.replace("&#39;", "'")


def test_weights_and_checkpoints_are_read_from_files(capsys, tmp_path):
    nets = [build("fully_connected", input_shape=(1, 8, 8), width=6, seed=n) for n in (1, 2, 3)]
    files = [tmp_path / f"{n}.pt" for n in range(3)]
    for net, file in zip(nets, files, strict=True):
        torch.save(net.state_dict(), file)
    options = ["--weights", str(files[0]), "--points", "3", "--directions", "checkpoints", "--json"]
    given = [part for file in files[1:] for part in ("--checkpoint", str(file))]
    assert main(["landscape", *SMALL, *options, *given]) == 0
    found = json.loads(capsys.readouterr().out)
    assert max(found["trajectory_distance"]) < 1e-4


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--mode", "trian"], "train"),
        (["--directions", "hesian"], "hessian"),
        (["--scaling", "filtr"], "filter"),
        (["--extent", "wide"], "LOW,HIGH"),
        (["--points", "2"], "at least 3"),
        (["-o", "s.xyz"], ".csv, .htm, .html, .nc, .pdf, .png, .svg, .vtk"),
        (["--checkpoint", __file__], "not a file that torch.save wrote"),
        (["--weights", "nowhere.pt"], "nowhere.pt"),
        (["--directions", "checkpoints"], "checkpoints="),
    ],
)
def test_bad_options_are_one_line_with_the_closest_name(options, words, capsys):
    assert main(["landscape", *SMALL, *options]) == 2
    error = capsys.readouterr().err.strip().splitlines()
    assert len(error) == 1
    assert words in error[0]


def test_choices_are_those_of_the_library():
    assert sorted(module._NAMES) == sorted(DIRECTIONS)
    assert (module._MODES, module._SCALINGS, module._KINDS) == (MODES, SCALINGS, KINDS)
