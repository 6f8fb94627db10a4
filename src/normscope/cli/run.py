"""``normscope run``: one experiment, its figure and its verdicts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from normscope.cli.names import completion_of
from normscope.cli.options import FirstSeed, Folder, Json, Scale, Settings

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
    name: Label = None,
    strict: Strict = False,
    as_json: Json = False,
) -> None:
    """Reproduce a figure of a paper: measure, judge the paper's claims, draw.

    Finished trainings are kept in FOLDER/runs.sqlite: the same command goes on where it was cut
    off, and figures that need the same trainings share them.

    Example: normscope run wei2018/figure1 --scale quick --set seeds=2
    """
    from normscope.cli.output import print_json, resumable, working
    from normscope.cli.values import named_values
    from normscope.errors import InputError
    from normscope.experiments import EXPERIMENTS
    from normscope.experiments import run as run_experiment
    from normscope.results import Store

    overrides = named_values(settings or ())
    if seed is not None:
        if "seed" in overrides:
            raise InputError("the seed is given twice; leave out --seed or --set seed=.")
        overrides["seed"] = seed
    EXPERIMENTS[experiment].settings(scale, overrides)  # refuse before anything is written
    out.mkdir(parents=True, exist_ok=True)
    kept = out / "runs.sqlite"
    with resumable(kept), Store(kept) as store, working(experiment) as progress:
        result = run_experiment(experiment, scale, store=store, progress=progress, **overrides)
    result = replace(result, label=name)
    paths = {what: str(path) for what, path in result.write(out).items()}
    if as_json:
        print_json({**result.to_dict(), "files": paths})
    else:
        print(result)
        print(f"Figure: {paths['figure']}   Numbers: {paths['numbers']}")
    if strict and any(claim.holds is False for claim in result.claims):
        raise typer.Exit(1)
