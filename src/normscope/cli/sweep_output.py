"""What ``normscope sweep`` prints: reports, estimates, states, failures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import xarray as xr

    from normscope.results import State
    from normscope.sweeps.estimate import Estimate
    from normscope.sweeps.status import Status
    from normscope.sweeps.work import Report

__all__ = [
    "earlier_words",
    "print_boundary",
    "print_estimate",
    "print_report",
    "print_search_estimate",
    "print_status",
]


def print_report(
    report: Report, files: dict[str, str], trained: str, found: list[str], as_json: bool
) -> None:
    """Print what a sweep did; exits with 1 if cells failed.

    Args:
        report: of the sweep.
        files: what was written, by what it is.
        trained: how the networks were trained, in words; "" for other work.
        found: what came out, in sentences.
        as_json: strict JSON instead of text.
    """
    from normscope.cli.output import print_json
    from normscope.cli.tables import print_note

    failures = report.to_dict()["failures"]
    if as_json:
        print_json({**report.to_dict(), "found_in_words": found, "files": files})
    else:
        if trained:
            print_note(trained)
        print(report)
        for each in failures:
            print(f"failed: {each['error']} {_words(each)}")
        for sentence in found:
            print_note(sentence)
        print(_paths(files))
    if failures:
        raise typer.Exit(1)


def print_estimate(found: Estimate, out: Path, as_json: bool) -> None:
    """Print the number of cells and the time."""
    from normscope.cli.output import print_json

    if as_json:
        print_json(vars(found))
        return
    cells = "1 cell" if found.cells == 1 else f"{found.cells} cells"
    print(f"{cells}, {found.cells - found.open_cells} of them in {out} already")
    if found.seconds is None:
        print("Time: not known before the first cells have ended; see status then.")
        return
    assert found.seconds_per_step is not None
    step = f"up to {found.steps} steps of up to {1e3 * found.seconds_per_step:.3g} ms in a cell"
    print(f"Time: {_duration(found.seconds)} ({step}); cells that diverge take less")


def print_search_estimate(found: Estimate, rounds: int, as_json: bool) -> None:
    """Print what a search for the boundary will cost.

    Args:
        found: of one training of every search.
        rounds: trainings of a search.
        as_json: strict JSON instead of text.
    """
    from normscope.cli.output import print_json

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
    print(f"Time: about {_duration(seconds)}; twice that where the theory is far off")


def print_boundary(found: xr.Dataset, files: dict[str, str], as_json: bool) -> None:
    """Print the critical learning rates.

    Args:
        found: as ``normscope.sweeps.boundary`` returns it.
        files: what was written, by what it is.
        as_json: strict JSON instead of a table.
    """
    from normscope.cli.output import print_json
    from normscope.cli.tables import print_note, print_table
    from normscope.report.narrative import divergence_sentence, factor_of

    rows: list[dict[str, object]] = []
    for gamma in found["gamma"].values:
        each = found.sel(gamma=gamma)
        rows.append(
            {
                "gamma": float(gamma),
                "critical learning rate": float(each["critical_learning_rate"].median("seed")),
                "theory (train)": float(each["theory"].sel(closure="train")),
                "trainings": int(each["trainings"].sum()),
            }
        )
    if as_json:
        print_json({"boundary": rows, "files": files})
        return
    print_table(f"Critical learning rate, to {100 * found.attrs['tolerance']:g} %", rows)
    factor = factor_of([found])
    if factor is not None:
        print_note(divergence_sentence(factor))
    print(_paths(files))


def print_status(found: list[Status]) -> None:
    """Print a table of the states, and the failures."""
    from normscope.cli.tables import print_note, print_table
    from normscope.report.narrative import divergence_sentence

    if not found:
        print("The file holds no cells yet.")
        return
    rows: list[dict[str, object]] = [
        {
            "experiment": each.experiment,
            "cells": each.cells,
            **{str(state): number for state, number in each.counts.items()},
            "per cell": None if each.seconds is None else _duration(each.seconds),
            "left": None if each.seconds_left is None else _duration(each.seconds_left),
        }
        for each in found
    ]
    print_table("Sweeps", rows, numbers=("per cell", "left"))
    for each in found:
        if any(each.earlier.values()):
            print_note(earlier_words(each.earlier, each.experiment))
            print_note(_present_words(each))
    idle = [each for each in found if each.open and not each.at_work]
    if idle:
        alone = any(each.seconds_left is not None for each in idle)
        left = "; left: about so long with one worker" if alone else ""
        print_note(f"No process is at work on it{left}. Run the same command again to go on.")
    factors = {each.divergence_factor for each in found}
    for factor in sorted(each for each in factors if each is not None):
        print_note(divergence_sentence(factor))
    for each in found:
        for parameters, seed, error in each.failures:
            print(f"failed: {error} {_words({'parameters': parameters, 'seed': seed})}")


def earlier_words(counts: Mapping[State, int], where: str) -> str:
    """What becomes of cells that an earlier version of the user's files computed or began.

    Args:
        counts: of the cells in each state.
        where: the name of their records, or of the store.

    Returns:
        One sentence.
    """
    number = sum(counts.values())
    cells = "1 cell" if number == 1 else f"{number} cells"
    verb = "is" if number == 1 else "are"
    states = ", ".join(
        f"{count} {'never computed' if state == 'pending' else state}"
        for state, count in sorted(counts.items(), key=lambda each: each[0] == "pending")
        if count
    )
    return (
        f"{cells} of {where} {verb} of an earlier version of your own files ({states}): kept "
        "there, but neither counted nor drawn by a sweep of the present version, which computes "
        "its own."
    )


def _present_words(found: Status) -> str:
    """How far the cells of the present version are, where there are earlier ones too."""
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


def _words(failure: dict[str, Any]) -> str:
    """The cell of a failure in short."""
    parameters = failure["parameters"]
    named = {key: parameters[key] for key in ("gamma", "learning_rate") if key in parameters}
    chosen = {**(named or parameters), "seed": failure["seed"]}
    return "(" + ", ".join(f"{key}={value}" for key, value in chosen.items()) + ")"


def _duration(seconds: float) -> str:
    """A duration in the unit that suits it.

    >>> _duration(0.0123), _duration(90), _duration(7200)
    ('0.012 s', '1.5 min', '2 h')
    """
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.2g} s"
