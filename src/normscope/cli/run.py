"""``normscope run``: one experiment, its figure and its verdicts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from normscope.cli.destinations import check_folder, printing_first
from normscope.cli.names import check_name, completion_of
from normscope.cli.options import ExperimentDevice, FirstSeed, Folder, Json, Scale, Settings

if TYPE_CHECKING:
    from normscope.experiments import Recipe

Name = Annotated[
    str,
    typer.Argument(
        metavar="EXPERIMENT",
        help="Such as santurkar2018/figure4; see normscope list experiments.",
        autocompletion=completion_of(kind="experiments"),
    ),
]
Label = Annotated[
    str | None, typer.Option("--name", metavar="TEXT", help="Your own name for this result.")
]
Strict = Annotated[bool, typer.Option("--strict", help="Exit with 1 if a claim does not hold.")]


def run(
    experiment: Name,
    scale: Scale = "quick",
    out: Folder = Path("normscope-out"),
    settings: Settings = None,
    seed: FirstSeed = None,
    device: ExperimentDevice = "cpu",
    name: Label = None,
    strict: Strict = False,
    as_json: Json = False,
) -> None:
    """Reproduce a figure of a paper: measure, judge the paper's claims, draw.

    Finished trainings are kept in FOLDER/runs.sqlite: the same command goes on where it was cut
    off, and figures that need the same trainings share them.

    Example: normscope run wei2018/figure1 --scale quick --set seeds=2
    """
    from normscope.cli.interrupted import resumable
    from normscope.cli.output import print_json, progress

    check_name("experiments", experiment)
    check_folder(out, "files")
    kept = out / "runs.sqlite"
    with resumable(kept):  # also while torch is loaded, which takes seconds
        from normscope.experiments import EXPERIMENTS
        from normscope.experiments import run as run_experiment
        from normscope.results import Store

        recipe = EXPERIMENTS[experiment]
        overrides = _overrides(recipe, settings, seed, device)
        recipe.settings(scale, overrides)  # refuse before anything is written
        out.mkdir(parents=True, exist_ok=True)
        with Store(kept) as store, progress(experiment) as begin:
            result = run_experiment(experiment, scale, store=store, progress=begin, **overrides)
    result = replace(result, label=name)
    with printing_first(lambda: result.write(out)) as written:
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
    """The settings that are given, also by options of their own."""
    from normscope.cli.devices import device_setting
    from normscope.cli.values import named_values
    from normscope.errors import InputError

    found = named_values(settings or ())
    if seed is not None:
        if "seed" in found:
            raise InputError("the seed is given twice; leave out --seed or --set seed=.")
        found["seed"] = seed
    return found | device_setting(recipe.name, recipe.defaults, device)
