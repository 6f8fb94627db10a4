"""``normscope sweep``: many cells into one file, resumable; ``sweep status`` looks on."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from normscope.cli.destinations import check_file
from normscope.cli.help_texts import Command, print_help
from normscope.cli.names import check_name, completion_of
from normscope.cli.options import ExperimentDevice, FirstSeed, Json, Scale
from normscope.errors import InputError, UnknownNameError

DIAGRAM, STATUS = "phase_diagram", "status"

Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="phase_diagram, an experiment (see normscope list experiments), or status.",
        autocompletion=completion_of(DIAGRAM, STATUS, kind="experiments"),
    ),
]
File = Annotated[
    Path | None, typer.Argument(metavar="FILE", help="With status: the file of a sweep.")
]
StatusFile = Annotated[Path, typer.Argument(metavar="FILE", help="The file of a sweep.")]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUES",
        help="A setting: a value, a list 1,2,3, a range 0.1:3:12 (first:last:count) or "
        "1e-3:1:16:log; may be repeated.",
    ),
]
Seeds = Annotated[
    int,
    typer.Option(min=1, metavar="NUMBER", help="Repetitions of every cell, each with its seed."),
]
Out = Annotated[
    Path,
    typer.Option(
        "--out", "-o", metavar="FILE", help="The store; numbers and figure are written beside it."
    ),
]
EngineName = Annotated[
    str,
    typer.Option(
        "--engine",
        metavar="ENGINE",
        help="local (this machine), ray or dask (a cluster).",
        autocompletion=completion_of(kind="engines"),
    ),
]
Workers = Annotated[int, typer.Option(min=1, metavar="NUMBER", help="Cells at the same time.")]
Threads = Annotated[int, typer.Option(min=1, metavar="NUMBER", help="Threads of each worker.")]
Address = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS", help="Address of a Ray or Dask cluster that runs already."),
]
Attempts = Annotated[
    int,
    typer.Option(
        min=1, metavar="NUMBER", help="Times a cell may lose its worker until it is failed."
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only count cells and estimate the time.")]
Boundary = Annotated[
    bool,
    typer.Option(
        "--boundary",
        help="Of phase_diagram: no grid, but bisect for the learning rate from which training "
        "diverges, to 5 %.",
    ),
]
Follow = Annotated[
    bool,
    typer.Option(
        "--follow", help="With status: again every two seconds, until the sweep has ended."
    ),
]
Figure = Annotated[
    Path | None,
    typer.Option("--figure", metavar="FILE", help="With status: draw the diagram as far as it is."),
]

_SHORT = {"lr": "learning_rate"}


class SweepCommand(Command):
    """The command with the help of its status apart."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read what was typed; asked for the help of status, print that and end."""
        if args[:1] == [STATUS] and {"-h", "--help"} & {*args}:
            print_help(f"{ctx.command_path} {STATUS}", status)
            raise typer.Exit
        return super().parse_args(ctx, args)


def sweep(
    name: Name,
    file: File = None,
    settings: Settings = None,
    seeds: Seeds = 1,
    seed: FirstSeed = None,
    scale: Scale = "quick",
    device: ExperimentDevice = "cpu",
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

    A cell is one combination of settings and seed: of phase_diagram a training over gamma (the
    scale of the norm layers) and learning rate, else the experiment. The default loss of
    phase_diagram is squared_error (half the squared error), as in the diagrams of wei2018, whose
    theory is about it; normscope lr has cross_entropy, and --set loss=cross_entropy sets it here.
    A training counts as diverged when its loss is not finite or beyond 1000 times its first value
    (--set divergence_factor=1000): it is lost; normscope lr calls it unstable beyond 1.5 times its
    first value already (3 times for the squared error).

    Example: normscope sweep phase_diagram --set gamma=0.1:3:5 --set lr=1e-3:1:7:log --seeds 2
    """
    if name == STATUS:
        if file is None:
            raise InputError("status needs the file of a sweep: normscope sweep status FILE.")
        status(file, follow, figure, as_json)
        return
    from normscope.cli.interrupted import resumable

    _refuse_of_status(file, follow, figure)
    check_name("experiments", name, DIAGRAM, STATUS, noun="sweep")
    running = {"engine": engine, "workers": workers, "threads": threads}
    running |= {"address": address, "max_attempts": max_attempts}
    values = _values(settings)
    _check_places(values)
    if not dry_run:  # which writes nothing
        check_file(out, "store", "sweep.sqlite")
    with resumable(out):  # also while torch is loaded, which takes seconds
        from normscope.cli.sweep_runs import Request, carry_out
        from normscope.sweeps.phase_diagram import seed_list

        numbers = seed_list(seeds, seed or 0)
        request = Request(name, values, scale, numbers, device, out, running, as_json)
        try:
            carry_out(request, boundary, dry_run)
        except UnknownNameError as error:
            raise UnknownNameError(_as_typed(str(error))) from error


def _as_typed(choices: str) -> str:
    """A list of settings with the short names that only the command line knows.

    >>> _as_typed("Choices: gamma, learning_rate, loss.")
    'Choices: gamma, learning_rate (or lr), loss.'
    >>> _as_typed("Choices: gamma, learning_rate.")
    'Choices: gamma, learning_rate (or lr).'
    """
    for short, whole in _SHORT.items():
        choices = re.sub(rf" {whole}(?=[,.])", f" {whole} (or {short})", choices)
    return choices


def _values(settings: list[str] | None) -> dict[str, list[Any]]:
    """The values of each setting that is given, by its whole name."""
    from normscope.cli.values import named_lists

    return {_SHORT.get(key, key): each for key, each in named_lists(settings or ()).items()}


def _check_places(values: dict[str, list[Any]]) -> None:
    """Refuse files of the user's that are not there or define no such name."""
    from normscope.cli.own_files import check_place

    for name in ("model", "data", "loss"):
        for value in values.get(name, ()):
            if isinstance(value, str) and ":" in value:
                check_place(value)


def _refuse_of_status(file: Path | None, follow: bool, figure: Path | None) -> None:
    if file is not None:
        raise InputError(f"only status takes a file here, got {file}; name the store with --out.")
    if figure is not None:
        raise InputError("--figure belongs to status; a sweep draws its figure beside --out.")
    if follow:
        raise InputError("--follow belongs to status; a sweep shows how far it is by itself.")


def status(
    file: StatusFile, follow: Follow = False, figure: Figure = None, as_json: Json = False
) -> None:
    """How far a sweep is, read from its file while another process writes it.

    Cells by their state, the time left, and what failed and why.

    Example: normscope sweep status phase.sqlite --follow
    """
    from normscope.cli.output import print_json
    from normscope.cli.sweep_output import print_status
    from normscope.cli.sweep_picture import draw_status
    from normscope.sweeps import status as states

    while True:
        found = states(file)
        if as_json:
            print_json([each.to_dict() for each in found])
        else:
            print_status(found)
        if figure is not None:
            draw_status(file, figure)
            if not as_json:
                print(f"Figure: {figure}")
        if not follow or not any(each.open and each.at_work for each in found):
            return
        time.sleep(2)
