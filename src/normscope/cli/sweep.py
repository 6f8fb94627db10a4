"""``normscope sweep``: many cells into one store, resumable; ``sweep status`` shows its state."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from normscope.cli import options as opt
from normscope.cli.app import Command, command, print_help
from normscope.cli.names import check_name
from normscope.cli.outputs import check_file, resumable
from normscope.cli.render import warnings_as_notes
from normscope.errors import InputError, UnknownNameError

DIAGRAM, STATUS = "phase_diagram", "status"

_NAME = "phase_diagram, an experiment (see normscope list experiments), or status."
_SETTING = (
    "A setting: a value, a list 1,2,3, a range 0.1:3:12 (first:last:count) or 1e-3:1:16:log; may "
    "be repeated."
)
_OUT = "The store; numbers and figure are written beside it."
_ENGINE = "local (this machine), ray or dask (a cluster)."
_ADDRESS = "Address of a running Ray or Dask cluster."
_ATTEMPTS = "Mark a cell as failed after its worker died this many times."
_BOUNDARY = (
    "For phase_diagram: instead of a grid, bisect for the learning rate at which training "
    "diverges, to 5 %."
)
_FOLLOW = "With status: repeat every two seconds until the sweep has ended."
_FIGURE = "With status: draw the cells that are finished."
Name = Annotated[str, opt.argument("NAME", _NAME, choices=(DIAGRAM, STATUS), kind="experiments")]
File = Annotated[Path | None, opt.argument("FILE", "With status: the file of a sweep.")]
StatusFile = Annotated[Path, opt.argument("FILE", "The file of a sweep.")]
Settings = Annotated[list[str] | None, opt.option("NAME=VALUES", _SETTING, "--set")]
Seeds = Annotated[int, opt.number("Repetitions of every cell, each with its own seed.", min=1)]
Out = Annotated[Path, opt.option("FILE", _OUT, "--out", "-o")]
EngineName = Annotated[str, opt.option("ENGINE", _ENGINE, "--engine", kind="engines")]
Workers = Annotated[int, opt.number("Cells computed in parallel.", min=1)]
Threads = Annotated[int, opt.number("Threads of each worker.", min=1)]
Address = Annotated[str | None, opt.option("ADDRESS", _ADDRESS)]
Attempts = Annotated[int, opt.number(_ATTEMPTS, min=1)]
DryRun = Annotated[bool, opt.flag("--dry-run", "Only count cells and estimate the time.")]
Boundary = Annotated[bool, opt.flag("--boundary", _BOUNDARY)]
Follow = Annotated[bool, opt.flag("--follow", _FOLLOW)]
Figure = Annotated[Path | None, opt.option("FILE", _FIGURE, "--figure")]

_SHORT = {"lr": "learning_rate"}


class SweepCommand(Command):
    """The command, whose ``status`` has a help of its own."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; ``status --help`` prints the help of status."""
        if args[:1] == [STATUS] and {"-h", "--help"} & {*args}:
            print_help(f"{ctx.command_path} {STATUS}", status)
            raise typer.Exit
        return super().parse_args(ctx, args)


@command("sweep", "Phase diagrams and other sweeps: resumable, parallel.", cls=SweepCommand)
def sweep(
    name: Name,
    file: File = None,
    settings: Settings = None,
    seeds: Seeds = 1,
    seed: opt.FirstSeed = None,
    scale: opt.Scale = "quick",
    device: opt.ExperimentDevice = "cpu",
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
    as_json: opt.Json = False,
) -> None:
    """Sweep settings over ranges; if interrupted, rerun the same command to resume.

    A cell is one combination of settings and seed. In a phase_diagram it is a training with one
    gamma (the scale of the norm layers) and one learning rate; otherwise it is a run of the
    experiment. The default loss of phase_diagram is squared_error (half the squared error), as in
    wei2018; --set loss=cross_entropy changes it. A training has diverged when its loss is not
    finite or exceeds 1000 times its first value (--set divergence_factor=1000). normscope lr is
    stricter: unstable beyond 1.5 times (3 times for the squared error).

    Example: normscope sweep phase_diagram --set gamma=0.1:3:5 --set lr=1e-3:1:7:log --seeds 2
    """
    if name == STATUS:
        if file is None:
            raise InputError("status needs the file of a sweep: normscope sweep status FILE.")
        with warnings_as_notes():
            status(file, follow, figure, as_json)
        return
    _reject_status_options(file, follow, figure)
    check_name("experiments", name, DIAGRAM, STATUS, noun="sweep")
    running = {"engine": engine, "workers": workers, "threads": threads}
    running |= {"address": address, "max_attempts": max_attempts}
    values = _values(settings)
    _check_import_paths(values)
    if not dry_run:  # which writes nothing
        check_file(out, "store", "sweep.sqlite")
    with resumable(out):  # loading torch takes seconds
        from normscope.cli.sweep_run import Request, carry_out
        from normscope.sweeps.diagram import seed_list

        numbers = seed_list(seeds, seed or 0)
        request = Request(name, values, scale, numbers, device, out, running, as_json)
        try:
            carry_out(request, boundary, dry_run)
        except UnknownNameError as error:
            raise UnknownNameError(_add_short_names(str(error))) from error


def _add_short_names(choices: str) -> str:
    """Return a list of settings with the short names of the command line.

    >>> _add_short_names("Choices: gamma, learning_rate, loss.")
    'Choices: gamma, learning_rate (or lr), loss.'
    >>> _add_short_names("Choices: gamma, learning_rate.")
    'Choices: gamma, learning_rate (or lr).'
    """
    for short, whole in _SHORT.items():
        choices = re.sub(rf" {whole}(?=[,.])", f" {whole} (or {short})", choices)
    return choices


def _values(settings: list[str] | None) -> dict[str, list[Any]]:
    """Return the values of each setting that is given, by its full name."""
    from normscope.cli.values import named_lists

    return {_SHORT.get(key, key): each for key, each in named_lists(settings or ()).items()}


def _check_import_paths(values: dict[str, list[Any]]) -> None:
    """Raise an error for files that are missing or do not define a name."""
    from normscope.cli.user_files import check_import_path

    for name in ("model", "data", "loss"):
        for value in values.get(name, ()):
            if isinstance(value, str) and ":" in value:
                check_import_path(value)


def _reject_status_options(file: Path | None, follow: bool, figure: Path | None) -> None:
    if file is not None:
        raise InputError(f"only status takes a file here, got {file}; name the store with --out.")
    if figure is not None:
        raise InputError("--figure belongs to status; a sweep draws its figure beside --out.")
    if follow:
        raise InputError("--follow belongs to status; a sweep shows its progress by itself.")


def status(
    file: StatusFile, follow: Follow = False, figure: Figure = None, as_json: opt.Json = False
) -> None:
    """How far a sweep is, read from its file while another process writes it.

    Cells by their state, the time left, and what failed and why.

    Example: normscope sweep status phase.sqlite --follow
    """
    from normscope.cli.render import print_json
    from normscope.cli.sweep_run import draw_status
    from normscope.cli.sweep_table import print_status
    from normscope.sweeps import status as read_status

    while True:
        found = read_status(file)
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
