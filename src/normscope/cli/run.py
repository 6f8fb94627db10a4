"""``normscope run``: one experiment, its figure and its verdicts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from normscope.cli import options as opt
from normscope.cli.app import command
from normscope.cli.names import check_name
from normscope.cli.options import named_values
from normscope.cli.render import check_folder, print_json, resumable, write_then_print
from normscope.cli.sources import device_setting
from normscope.errors import InputError
from normscope.progress_bar import show_progress

if TYPE_CHECKING:
    from normscope.experiments import Recipe

_NAME = "Such as santurkar2018/figure4; see normscope list experiments."
Name = Annotated[str, opt.argument("EXPERIMENT", _NAME, kind="experiments")]
Label = Annotated[
    str | None,
    opt.option("TEXT", "Name of this result in its files and reports.", "--name", group=opt.OUTPUT),
]
_STORED = (
    "Run no training; judge by those that FOLDER/runs.sqlite has, also while another run adds."
)
Stored = Annotated[bool, opt.flag("--stored", _STORED)]
Strict = Annotated[
    bool, opt.flag("--strict", "Exit with 1 if a claim does not hold.", group=opt.OUTPUT)
]


@command("run", "Reproduce a figure of a paper and judge its claims.", own="Experiment")
def run(
    experiment: Name,
    scale: opt.Scale = "quick",
    out: opt.Folder = Path("normscope-out"),
    settings: opt.Settings = None,
    seed: opt.FirstSeed = None,
    device: opt.ExperimentDevice = "cpu",
    name: Label = None,
    stored: Stored = False,
    strict: Strict = False,
    as_json: opt.Json = False,
) -> None:
    """Reproduce a figure of a paper: measure, judge the paper's claims, draw.

    Finished trainings are kept in FOLDER/runs.sqlite: if interrupted, rerun the same command
    to resume; long trainings resume from the checkpoints beside it. Figures that need the same
    trainings share them.

    Example: normscope run wei2018/figure1 --scale quick --set seeds=2
    """
    check_name("experiments", experiment)
    check_folder(out, "files")
    kept = out / "runs.sqlite"
    with resumable(kept):  # loading torch takes seconds
        from normscope.experiments import EXPERIMENTS
        from normscope.experiments import run as run_experiment
        from normscope.results import Store

        recipe = EXPERIMENTS[experiment]
        overrides = _overrides(recipe, settings, seed, device)
        recipe.settings(scale, overrides)  # an error comes before anything is written
        out.mkdir(parents=True, exist_ok=True)
        with Store(kept, read_only=stored) as store, show_progress(experiment) as show:
            result = run_experiment(experiment, scale, store=store, progress=show, **overrides)
    result = replace(result, label=name)
    with write_then_print(lambda: result.write(out)) as written:
        paths = {what: str(path) for what, path in (written or {}).items()}
        if as_json:
            print_json({**result.to_dict(), "files": paths})
        else:
            print(result)
            if paths:
                print(f"Figure: {paths['figure']}   Numbers: {paths['numbers']}")
    if strict and any(claim.holds is False for claim in result.claims):
        raise typer.Exit(1)


def _overrides(
    recipe: Recipe, settings: list[str] | None, seed: int | None, device: str
) -> dict[str, Any]:
    """Return the settings that are given by --set, --seed and --device."""
    found = named_values(settings or ())
    if seed is not None:
        if "seed" in found:
            raise InputError("the seed is given twice; leave out --seed or --set seed=.")
        found["seed"] = seed
    return found | device_setting(recipe.name, recipe.defaults, device)
