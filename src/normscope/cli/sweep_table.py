"""What ``normscope sweep`` prints: results, estimates, states, failures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from normscope.cli.render import print_json, print_note, print_table
from normscope.text import format_duration, plural

if TYPE_CHECKING:
    from pathlib import Path

    import xarray as xr

    from normscope.results import State
    from normscope.sweeps.status import Status, TimeEstimate
    from normscope.sweeps.work import Report

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
