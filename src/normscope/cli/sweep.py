"""``normscope sweep``: many cells into one store, resumable; ``sweep status`` shows its state."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from normscope.cli import options as opt
from normscope.cli.app import Command, command, print_help
from normscope.cli.names import check_name
from normscope.cli.options import named_lists
from normscope.cli.render import (
    check_file,
    print_json,
    print_note,
    print_table,
    resumable,
    warnings_as_notes,
)
from normscope.cli.sources import check_import_path
from normscope.errors import InputError, UnknownNameError
from normscope.text import format_duration, plural

if TYPE_CHECKING:
    import xarray as xr

    from normscope.results import State
    from normscope.sweeps.status import Status, TimeEstimate
    from normscope.sweeps.work import Report

DIAGRAM, STATUS = "phase_diagram", "status"

_NAME = "phase_diagram, an experiment (see normscope list experiments), or status."
_SETTING = (
    "A setting: a value, a list 1,2,3, a range 0.1:3:12 (first:last:count) or 1e-3:1:16:log; may "
    "be repeated."
)
_OUT = "The store; numbers and figure are written beside it."
_ATTEMPTS = "Mark a cell as failed after its worker died this many times."
_BOUNDARY = (
    "For phase_diagram: instead of a grid, bisect for the learning rate at which training "
    "diverges, to 5 %."
)
_FOLLOW = "Repeat every two seconds until the sweep has ended."
_STATUS_GROUP = "With status"
_FIGURE = "Draw the cells that are finished."
Name = Annotated[str, opt.argument("NAME", _NAME, choices=(DIAGRAM, STATUS), kind="experiments")]
File = Annotated[Path | None, opt.argument("FILE", "With status: the file of a sweep.")]
StatusFile = Annotated[Path, opt.argument("FILE", "The file of a sweep.")]
Settings = Annotated[list[str] | None, opt.option("NAME=VALUES", _SETTING, "--set")]
Seeds = Annotated[int, opt.number("Repetitions of every cell, each with its own seed.", min=1)]
Out = Annotated[Path, opt.option("FILE", _OUT, "--out", "-o", group=opt.OUTPUT)]
Workers = Annotated[int, opt.number("Cells computed in parallel.", min=1, group=opt.COMPUTATION)]
Threads = Annotated[int, opt.number("Threads of each worker.", min=1, group=opt.COMPUTATION)]
Attempts = Annotated[int, opt.number(_ATTEMPTS, min=1, group=opt.COMPUTATION)]
DryRun = Annotated[
    bool, opt.flag("--dry-run", "Only count cells and estimate the time.", group=opt.COMPUTATION)
]
Boundary = Annotated[bool, opt.flag("--boundary", _BOUNDARY)]
Follow = Annotated[bool, opt.flag("--follow", _FOLLOW, group=_STATUS_GROUP)]
Figure = Annotated[Path | None, opt.option("FILE", _FIGURE, "--figure", group=_STATUS_GROUP)]

_SHORT = {"lr": "learning_rate"}


class SweepCommand(Command):
    """The command, whose ``status`` has a help of its own."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; ``status --help`` prints the help of status."""
        if args[:1] == [STATUS] and {"-h", "--help"} & {*args}:
            print_help(f"{ctx.command_path} {STATUS}", status)
            raise typer.Exit
        return super().parse_args(ctx, args)


@command(
    "sweep",
    "Phase diagrams and other sweeps: resumable, parallel.",
    cls=SweepCommand,
    own="Experiment and grid",
)
def sweep(
    name: Name,
    file: File = None,
    settings: Settings = None,
    seeds: Seeds = 1,
    seed: opt.FirstSeed = None,
    scale: opt.Scale = "quick",
    device: opt.ExperimentDevice = "cpu",
    out: Out = Path("sweep.sqlite"),
    engine: opt.EngineName = "local",
    workers: Workers = 1,
    threads: Threads = 1,
    address: opt.Address = None,
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
    values = {_SHORT.get(key, key): each for key, each in named_lists(settings or ()).items()}
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


def _check_import_paths(values: dict[str, list[Any]]) -> None:
    """Raise an error for files that are missing or do not define a name."""
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
    from normscope.cli.sweep_run import draw_status
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


_MAX_DIAGRAMS = 6  # that are described, as many as a report shows


def print_report(
    report: Report, files: dict[str, str], trained: str, found: list[str], as_json: bool
) -> None:
    """Print what a sweep did.

    Args:
        report: of the sweep.
        files: that were written, by content.
        trained: how the networks were trained; "" for other work.
        found: the findings, in sentences.
        as_json: strict JSON instead of text.
    """
    if as_json:
        print_json({**report.to_dict(), "found_in_words": found, "files": files})
        return
    if trained:
        print_note(trained)
    print(report)
    for each in report.failures:
        print(_failure(each.cell.parameters, each.cell.seed, each.error))
    for sentence in found:
        print_note(sentence)
    print(_paths(files))


def find_in_words(results: xr.Dataset) -> list[str]:
    """Return the best cell and the boundary of every diagram of a sweep, in sentences.

    Args:
        results: as ``normscope.sweeps.phase_diagram`` returns them, over any settings.
    """
    from normscope.report.diagrams import dataset_diagrams
    from normscope.report.narrative import diagram_findings

    diagrams = dataset_diagrams(results)
    sentences = []
    for name, diagram in list(diagrams.items())[:_MAX_DIAGRAMS]:
        found = diagram_findings(diagram)
        sentences.append(f"{name}: {found}" if name else found)
    if len(diagrams) > _MAX_DIAGRAMS:
        sentences.append(f"{len(diagrams) - _MAX_DIAGRAMS} more diagrams are in the numbers.")
    return sentences


def print_estimate(found: TimeEstimate, out: Path, as_json: bool) -> None:
    """Print the number of cells and the time."""
    if as_json:
        print_json(vars(found))
        return
    done = found.cells - found.open_cells
    print(f"{plural(found.cells, 'cell')}, {done} of them in {out} already")
    if found.seconds is None:
        print("Time: not known before the first cells have ended; see status then.")
        return
    assert found.seconds_per_step is not None
    step = f"up to {found.steps} steps of up to {1e3 * found.seconds_per_step:.3g} ms in a cell"
    print(f"Time: {format_duration(found.seconds)} ({step}); cells that diverge take less")


def print_search_estimate(found: TimeEstimate, rounds: int, as_json: bool) -> None:
    """Print what a search for the boundary will cost.

    Args:
        found: of one training of every search.
        rounds: trainings of a search.
        as_json: strict JSON instead of text.
    """
    assert found.seconds is not None
    seconds = rounds * found.seconds
    if as_json:
        print_json(
            {
                "searches": found.cells,
                "trainings": rounds * found.cells,
                "steps": found.steps,
                "seconds_per_step": found.seconds_per_step,
                "seconds": seconds,
            }
        )
        return
    print(f"{found.cells} searches of about {rounds} trainings, {found.steps} steps each")
    print(f"Time: about {format_duration(seconds)}; twice that where the theory is far off")


def print_boundary(found: xr.Dataset, files: dict[str, str], as_json: bool) -> None:
    """Print the critical learning rates.

    Args:
        found: as ``normscope.sweeps.boundary`` returns it.
        files: that were written, by content.
        as_json: strict JSON instead of a table.
    """
    from normscope.report.narrative import divergence_sentence, factor_of

    by_gamma = ((float(gamma), found.sel(gamma=gamma)) for gamma in found["gamma"].values)
    rows = [
        {
            "gamma": gamma,
            "critical learning rate": float(each["critical_learning_rate"].median("seed")),
            "theory (train)": float(each["theory"].sel(closure="train")),
            "trainings": int(each["trainings"].sum()),
        }
        for gamma, each in by_gamma
    ]
    if as_json:
        print_json({"boundary": rows, "files": files})
        return
    print_table(f"Critical learning rate, to {100 * found.attrs['tolerance']:g} %", rows)
    factor = factor_of([found])
    if factor is not None:
        print_note(divergence_sentence(factor))
    print(_paths(files))


def print_status(found: Sequence[Status]) -> None:
    """Print a table of the states, and the failures."""
    from normscope.report.narrative import divergence_sentence

    if not found:
        print("The file holds no cells yet.")
        return
    print_table("Sweeps", [_status_row(each) for each in found], numbers=("per cell", "left"))
    for each in found:
        if any(each.earlier.values()):
            print_note(describe_earlier(each.earlier, each.experiment))
            print_note(_describe_present(each))
    idle = [each for each in found if each.open and not each.at_work]
    if idle:
        alone = any(each.seconds_left is not None for each in idle)
        left = "; left: about so long with one worker" if alone else ""
        print_note(f"No process is at work on it{left}. Run the same command again to resume.")
    factors = {each.divergence_factor for each in found}
    for factor in sorted(each for each in factors if each is not None):
        print_note(divergence_sentence(factor))
    for each in found:
        for failure in each.failures:
            print(_failure(*failure))


def _status_row(found: Status) -> dict[str, object]:
    left = found.seconds_left
    return {
        "experiment": found.experiment,
        "cells": found.cells,
        **{str(state): number for state, number in found.counts.items()},
        "per cell": None if found.seconds is None else format_duration(found.seconds),
        "left": None if left is None else format_duration(left),
    }


def describe_earlier(counts: Mapping[State, int], where: str) -> str:
    """Return what happens to cells that an earlier version of the user's files computed.

    Args:
        counts: of the cells in each state.
        where: the name of their records, or of the store.
    """
    number = sum(counts.values())
    states = ", ".join(
        f"{count} {'never computed' if state == 'pending' else state}"
        for state, count in sorted(counts.items(), key=lambda each: each[0] == "pending")
        if count
    )
    return (
        f"{plural(number, 'cell')} of {where} {'is' if number == 1 else 'are'} of an earlier "
        f"version of your own files ({states}): kept there, but neither counted nor drawn by a "
        "sweep of the present version, which computes its own."
    )


def _describe_present(found: Status) -> str:
    """Return how far the cells of the present version are, where there are earlier ones too."""
    from normscope.results import State

    failed = found.counts[State.FAILED]
    if not found.cells:
        return "No cell is of the present version yet."
    if found.open:
        return f"Of the present version, {found.open} of {found.cells} cells are still to compute."
    rest = f", but {failed} of its {found.cells} cells failed" if failed else ""
    return f"The sweep of the present version is complete{rest}."


def _paths(files: dict[str, str]) -> str:
    return "   ".join(f"{what.capitalize()}: {path}" for what, path in files.items())


def _failure(parameters: Mapping[str, Any], seed: int, error: str) -> str:
    """Return one line with the error and the cell; only gamma and learning rate if it has them."""
    named = {key: parameters[key] for key in ("gamma", "learning_rate") if key in parameters}
    chosen = {**(named or parameters), "seed": seed}
    return f"failed: {error} ({', '.join(f'{key}={value}' for key, value in chosen.items())})"
