"""The machinery of experiments: settings, registration, files, and the run itself."""

import json
import shlex
import sys
from dataclasses import replace

import numpy as np
import pytest
import xarray as xr

from normscope import __version__
from normscope.cli.main import main
from normscope.errors import ArgumentTypeError, DuplicateNameError, InputError, UnknownNameError
from normscope.experiments import EXPERIMENTS, SCALES, experiment, run
from normscope.plots.style import new_figure
from normscope.progress import Progress
from normscope.results import Claim, Store

NAME = "nobody2000/doubling"
CALLS = []


def _claims(results):
    last = float(results["value"][-1])
    return [
        Claim("it grows", "nobody2000, Figure 1", f"{last:g} at the end", last > 1),
        Claim("it is | odd", "nobody2000, Figure 2", "even", False),
    ]


def _figure(results):
    figure = new_figure()
    figure.subplots().plot(results["step"], results["value"])
    return figure


@pytest.fixture(autouse=True)
def doubling():
    @experiment(
        NAME,
        claims=_claims,
        figure=_figure,
        scales={"quick": {"steps": 3}, "small": {"steps": 5}, "paper": {}},
    )
    def measure(
        *, steps: int = 10, rates=(1.0, 2.0), kind: str = "plain", seed: int = 0, store, progress
    ):
        """Doubles a number."""

        def compute():
            CALLS.append(steps)
            return xr.Dataset({"value": ("step", 2.0 ** np.arange(steps))}, {"step": range(steps)})

        progress(Progress("all of it"))
        return store.compute(NAME, {"steps": steps}, seed, compute)

    CALLS.clear()
    yield
    del EXPERIMENTS._items[NAME]


def test_scale_gives_the_settings():
    assert run(NAME).dataset.sizes["step"] == 3
    assert run(NAME, "small").settings == {
        "steps": 5,
        "rates": (1.0, 2.0),
        "kind": "plain",
        "seed": 0,
    }
    assert run(NAME, "paper").dataset.sizes["step"] == 10


def test_override_goes_before_the_scale():
    result = run(NAME, steps=4)
    assert result.dataset.sizes["step"] == 4
    assert result.command == f"normscope run {NAME} --scale quick --set steps=4"


@pytest.mark.parametrize(
    "overrides",
    [
        {"steps": "many"},
        {"steps": 2.5},
        {"steps": True},
        {"rates": 3.0},
        {"rates": "12"},
        {"kind": 3},
        {"rates": []},
        {"rates": ["a", "b"]},
    ],
    ids=str,
)
def test_setting_of_another_kind_is_refused(overrides):
    with pytest.raises(ArgumentTypeError, match=f"setting {next(iter(overrides))} of {NAME}"):
        run(NAME, **overrides)
    assert CALLS == []


@pytest.mark.parametrize("overrides", [{"steps": 0}, {"seed": -1}, {"seed": 2**40}], ids=str)
def test_number_out_of_range_is_refused_before_the_work(overrides):
    with pytest.raises(InputError, match=r"must be (at least 1|from 0 to)"):
        run(NAME, **overrides)
    assert CALLS == []


def test_revision_makes_a_new_record():
    with Store(":memory:") as store:
        run(NAME, store=store)
        recipe = EXPERIMENTS._items[NAME]
        EXPERIMENTS._items[NAME] = replace(recipe, revision=2)
        run(NAME, store=store)
        assert [record.revision for record in store.select(NAME)] == [1, 2]
    assert CALLS == [3, 3]


def test_command_can_be_pasted_into_a_shell(tmp_path, capsys):
    result = run(NAME, rates=[1.5, 2.0], kind="it's")
    words = shlex.split(result.command)
    assert words[:3] == ["normscope", "run", NAME]
    assert main([*words[1:], "--out", str(tmp_path), "--json"]) == 0
    settings = json.loads(capsys.readouterr().out)["settings"]
    assert (settings["rates"], settings["kind"]) == ([1.5, 2.0], "it's")


def test_whole_number_serves_as_a_fraction_and_list_as_tuple():
    settings = EXPERIMENTS[NAME].settings("quick", {"rates": [1, 2]})
    assert settings["rates"] == [1, 2]


def test_unknown_names_get_the_closest():
    with pytest.raises(UnknownNameError, match="did you mean 'steps'"):
        run(NAME, step=4)
    with pytest.raises(UnknownNameError, match="did you mean 'small'"):
        run(NAME, "smal")
    with pytest.raises(UnknownNameError, match=f"did you mean '{NAME}'"):
        run("nobody2000/doubl")


def test_missing_scale_is_refused():
    with pytest.raises(InputError, match="no settings for paper"):
        experiment(NAME, claims=_claims, figure=_figure, scales={"quick": {}, "small": {}})


def test_second_experiment_of_a_name_is_refused():
    scales = {scale: {} for scale in SCALES}
    with pytest.raises(DuplicateNameError):
        experiment(NAME, claims=_claims, figure=_figure, scales=scales)(lambda **given: None)


def test_store_spares_what_is_done(tmp_path):
    with Store(tmp_path / "runs.sqlite") as store:
        first = run(NAME, store=store)
        again = run(NAME, store=store)
    assert CALLS == [3]
    xr.testing.assert_identical(first.dataset, again.dataset)


def test_files_hold_numbers_figure_and_verdicts(tmp_path):
    result = run(NAME)
    paths = result.write(tmp_path)
    assert {path.parent for path in paths.values()} == {tmp_path / "nobody2000"}
    xr.testing.assert_equal(xr.load_dataset(paths["numbers"], engine="scipy"), result.dataset)
    assert "<svg" in paths["figure"].read_text(encoding="utf-8")
    page = paths["claims"].read_text(encoding="utf-8")
    assert "| it grows | nobody2000, Figure 1 | 4 at the end | reproduced |" in page
    assert "it is \\| odd" in page
    assert "not reproduced" in page
    record = json.loads(paths["record"].read_text(encoding="utf-8"))
    assert record["versions"]["normscope"] == __version__
    assert record["settings"]["rates"] == [1.0, 2.0]
    assert [claim["holds"] for claim in record["claims"]] == [True, False]


def test_summary_is_the_first_line_of_the_measurement():
    assert EXPERIMENTS.summary(NAME) == "Doubles a number."


def test_every_module_of_a_paper_is_looked_into():
    assert "wei2018/figure1" in EXPERIMENTS
    assert "normscope.experiments.wei2018.figure1" in sys.modules
