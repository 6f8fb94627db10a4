"""``normscope sweep``: many cells into one file, resumable; ``sweep status`` looks on."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from normscope.cli.options import Json

if TYPE_CHECKING:
    import xarray as xr

Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="phase_diagram, an experiment (see list), or status."),
]
File = Annotated[
    Path | None, typer.Argument(metavar="[FILE]", help="With status: the file of a sweep.")
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
FirstSeed = Annotated[int, typer.Option("--seed", min=0, max=2**62, help="First of the seeds.")]
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

_SHORT = {"lr": "learning_rate"}


def sweep(
    name: Name,
    file: File = None,
    settings: Settings = None,
    seeds: Seeds = 1,
    seed: FirstSeed = 0,
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
    as_json: Json = False,
) -> None:
    """Sweep settings over ranges; the same command goes on where it was cut off.

    Example: normscope sweep phase_diagram --set gamma=0.1:3:5 --set lr=1e-3:1:7:log --seeds 2
    """
    from normscope.errors import InputError

    if name == "status":
        _show_status(file, follow, as_json)
        return
    if file is not None:
        raise InputError(f"only status takes a file here, got {file}; name the store with --out.")
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
    all_seeds = seed_list(seeds, seed)
    if boundary:
        _find_boundary(name, given, scale, all_seeds, out, running, as_json)
    elif dry_run:
        _estimate(name, given, scale, all_seeds, out, running, as_json)
    else:
        _run(name, given, scale, all_seeds, out, running, as_json)


def _planned(name: str, given: dict[str, Any], scale: str, seeds: list[int]) -> tuple[Any, Any]:
    """The work and its units."""
    if name == "phase_diagram":
        from normscope.sweeps.defaults import swept
        from normscope.sweeps.phase_diagram import TRAININGS, training_units

        return TRAININGS, training_units(*swept(given, scale), seeds)
    from normscope.experiments.swept import experiment_sweep

    return experiment_sweep(name, scale, given, seeds)


def _run(
    name: str,
    given: dict[str, Any],
    scale: str,
    seeds: list[int],
    out: Path,
    running: dict[str, Any],
    as_json: bool,
) -> None:
    from normscope.cli.output import resumable, working
    from normscope.cli.sweep_output import print_report
    from normscope.results import Store
    from normscope.sweeps.engines import ENGINES
    from normscope.sweeps.sweep import sweep as run_sweep

    work, units = _planned(name, given, scale, seeds)
    ENGINES[running["engine"]]
    files: dict[str, str] = {"store": str(out)}
    with resumable(out), Store(out) as store, working(name) as progress:
        report = run_sweep(work, units, store, progress=progress, **running)
        if name == "phase_diagram":
            from normscope.sweeps.defaults import swept
            from normscope.sweeps.phase_diagram import diagram

            axes, fixed = swept(given, scale)
            found, _ = diagram(axes, fixed, seeds, store)
            files |= _write_diagram(found, out, list(axes))
    print_report(report, files, as_json)


def _write_diagram(found: xr.Dataset, out: Path, axes: list[str]) -> dict[str, str]:
    """Numbers beside the store, and a heat map if there is one to draw."""
    from normscope.cli.figures import save_figure
    from normscope.files import replacing

    with replacing(out.with_suffix(".nc")) as unfinished:
        found.to_netcdf(unfinished, engine="scipy")
    files = {"numbers": str(out.with_suffix(".nc"))}
    if len(axes) == 2 and "learning_rate" in axes:
        from normscope.plots.phase_diagram import phase_diagram as draw

        figure: Any = draw(found).figure
        save_figure(figure, out.with_suffix(".svg"))
        files["figure"] = str(out.with_suffix(".svg"))
    return files


def _estimate(
    name: str,
    given: dict[str, Any],
    scale: str,
    seeds: list[int],
    out: Path,
    running: dict[str, Any],
    as_json: bool,
) -> None:
    from normscope.cli.sweep_output import print_estimate
    from normscope.results import Store
    from normscope.sweeps.estimate import Estimate, estimate, open_cells

    work, units = _planned(name, given, scale, seeds)
    store = Store(out, read_only=True) if out.is_file() else None
    if name == "phase_diagram":
        found = estimate(work, units, store, running["workers"], running["threads"])
    else:
        found = Estimate(len(units), open_cells(work, units, store), None, None, None)
    if store is not None:
        store.close()
    print_estimate(found, out, as_json)


def _find_boundary(
    name: str,
    given: dict[str, Any],
    scale: str,
    seeds: list[int],
    out: Path,
    running: dict[str, Any],
    as_json: bool,
) -> None:
    from normscope.cli.output import print_json, print_table, working
    from normscope.errors import InputError
    from normscope.sweeps.boundary import boundary
    from normscope.sweeps.defaults import swept

    if name != "phase_diagram":
        raise InputError(f"--boundary belongs to phase_diagram, got {name!r}.")
    axes, fixed = swept(given, scale)
    with working(name) as progress:
        found = boundary(
            axes["gamma"], seeds=seeds, store=out, progress=progress, **running, **fixed
        )
    rows: list[dict[str, object]] = [
        {
            "gamma": float(gamma),
            "critical learning rate": float(each["critical_learning_rate"].median("seed")),
            "theory (train)": float(each["theory"].sel(closure="train")),
            "trainings": int(each["trainings"].sum()),
        }
        for gamma, each in found.groupby("gamma")
        for each in [each.squeeze("gamma")]
    ]
    if as_json:
        print_json({"boundary": rows, "files": {"store": str(out)}})
        return
    print_table("Critical learning rate, to 5 %", rows)


def _show_status(file: Path | None, follow: bool, as_json: bool) -> None:
    from normscope.cli.output import print_json
    from normscope.cli.sweep_output import print_status
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
        if not follow or not any(each.open for each in found):
            return
        time.sleep(2)
