"""``normscope sweep``: many cells into one file, resumable; ``sweep status`` looks on."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from normscope.cli.options import FirstSeed, Json

Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="phase_diagram, an experiment (see list), or status."),
]
File = Annotated[
    Path | None, typer.Argument(metavar="FILE", help="With status: the file of a sweep.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUES",
        help="A value, a list 1,2,3, a range 0.1:3:12 (first:last:count) or 1e-3:1:16:log.",
    ),
]
Seeds = Annotated[int, typer.Option(min=1, help="Repetitions of every cell.")]
Scale = Annotated[str, typer.Option(help="quick, small or paper, for settings not given.")]
Out = Annotated[
    Path,
    typer.Option("--out", "-o", metavar="FILE", help="The store; numbers and figure beside it."),
]
EngineName = Annotated[str, typer.Option("--engine", help="local, ray or dask.")]
Workers = Annotated[int, typer.Option(min=1, help="Cells at the same time.")]
Threads = Annotated[int, typer.Option(min=1, help="Of each worker.")]
Address = Annotated[str | None, typer.Option(help="Of a Ray or Dask cluster that runs already.")]
Attempts = Annotated[int, typer.Option(min=1, help="Times a cell may lose its worker.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only count cells and estimate the time.")]
Boundary = Annotated[
    bool, typer.Option("--boundary", help="Bisect for the critical learning rate, to 5 %.")
]
Follow = Annotated[bool, typer.Option("--follow", help="With status: until the sweep has ended.")]
Figure = Annotated[
    Path | None,
    typer.Option("--figure", metavar="FILE", help="With status: draw the diagram as far as it is."),
]

_SHORT = {"lr": "learning_rate"}


def sweep(
    name: Name,
    file: File = None,
    settings: Settings = None,
    seeds: Seeds = 1,
    seed: FirstSeed = None,
    scale: Scale = "quick",
    out: Out = Path("sweep.sqlite"),
    engine: EngineName = "local",
    workers: Workers = 1,
    threads: Threads = 1,
    address: Address = None,
    max_attempts: Attempts = 3,
    dry_run: DryRun = False,
    boundary: Boundary = False,
    follow: Follow = False,
    figure: Figure = None,
    as_json: Json = False,
) -> None:
    """Sweep settings over ranges; the same command goes on where it was cut off.

    Example: normscope sweep phase_diagram --set gamma=0.1:3:5 --set lr=1e-3:1:7:log --seeds 2
    """
    from normscope.errors import InputError

    if name == "status":
        _show_status(file, follow, figure, as_json)
        return
    if file is not None:
        raise InputError(f"only status takes a file here, got {file}; name the store with --out.")
    if figure is not None:
        raise InputError("--figure belongs to status; a sweep draws its figure beside --out.")
    from normscope.cli.sweep_runs import Request, estimate_cost, find_boundary, run_sweep
    from normscope.cli.values import named_lists
    from normscope.sweeps.phase_diagram import seed_list

    given = {_SHORT.get(key, key): each for key, each in named_lists(settings or ()).items()}
    running = {
        "engine": engine,
        "workers": workers,
        "threads": threads,
        "address": address,
        "max_attempts": max_attempts,
    }
    request = Request(name, given, scale, seed_list(seeds, seed or 0), out, running, as_json)
    if boundary:
        find_boundary(request, dry_run)
    elif dry_run:
        estimate_cost(request)
    else:
        run_sweep(request)


def _show_status(file: Path | None, follow: bool, figure: Path | None, as_json: bool) -> None:
    from normscope.cli.output import print_json
    from normscope.cli.sweep_output import print_status
    from normscope.cli.sweep_picture import draw_status
    from normscope.errors import InputError
    from normscope.sweeps.status import status

    if file is None:
        raise InputError("status needs the file of a sweep: normscope sweep status FILE.")
    while True:
        found = status(file)
        if as_json:
            print_json([each.to_dict() for each in found])
        else:
            print_status(found)
        if figure is not None:
            draw_status(file, figure)
        if not follow or not any(each.open and each.at_work for each in found):
            return
        time.sleep(2)
