"""What ``normscope sweep`` does: a sweep, an estimate of it, or the search for the boundary."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normscope.cli.devices import device_setting
from normscope.cli.sweep import DIAGRAM, STATUS
from normscope.cli.sweep_notes import note_conversions, note_earlier
from normscope.errors import InputError
from normscope.registry import unknown_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from normscope.sweeps import Unit, Work
    from normscope.sweeps.diagram import Diagram

__all__ = ["Request", "carry_out", "estimate_cost", "find_boundary", "run_sweep"]

_STORES = ("", ".sqlite", ".sqlite3", ".db")  # how a store's name may end
_ROUNDS = 7  # trainings of a search, where the theory is within a factor of two


@dataclass(frozen=True)
class Request:
    """What was asked for.

    Args:
        name: phase_diagram or an experiment.
        given: values of settings, each a list.
        scale: for the settings that are not given.
        seeds: of every cell.
        device: where the cells are computed.
        out: the store.
        running: engine, workers, threads, address and max_attempts.
        as_json: print strict JSON.

    Raises:
        UnknownNameError: if the name is neither.
        InputError: if the store's name is that of a file beside it, or the work does not move.
    """

    name: str
    given: dict[str, list[Any]]
    scale: str
    seeds: list[int]
    device: str
    out: Path
    running: dict[str, Any]
    as_json: bool

    def __post_init__(self) -> None:
        from normscope.experiments import EXPERIMENTS

        if self.name != DIAGRAM and self.name not in EXPERIMENTS:
            raise unknown_name("sweep", self.name, [DIAGRAM, STATUS, *EXPERIMENTS])
        moved = device_setting(self.name, self._settings(), self.device)
        self.given.update({name: [value] for name, value in moved.items()})
        if self.out.suffix.lower() not in _STORES:
            stored = self.out.with_suffix(".sqlite")
            raise InputError(
                f"{self.out} is the store, a database, and numbers (.nc) and figure (.svg) go "
                f"beside it; name it otherwise, such as {stored}."
            )

    def _settings(self) -> set[str]:
        """Names of the settings that there are."""
        if self.name == DIAGRAM:
            from normscope.sweeps.training_settings import Training

            return {field.name for field in fields(Training)}
        from normscope.experiments import EXPERIMENTS

        return set(EXPERIMENTS[self.name].defaults)

    def planned(self) -> tuple[Work, Sequence[Unit], Diagram | None]:
        """The work, its units, and for a phase diagram the plan that they come from."""
        if self.name == DIAGRAM:
            from normscope.sweeps.defaults import swept
            from normscope.sweeps.diagram import TRAININGS, Diagram

            plan = Diagram(*swept(self.given, self.scale), self.seeds)
            return TRAININGS, plan.units, plan
        from normscope.experiments.swept import experiment_sweep

        return *experiment_sweep(self.name, self.scale, self.given, self.seeds), None

    def searched(self) -> tuple[list[float], dict[str, Any]]:
        """The gammas of a search for the boundary, and the settings.

        Raises:
            InputError: if something else than gamma is to vary.
        """
        from normscope.sweeps.defaults import swept

        if self.name != DIAGRAM:
            raise InputError(f"--boundary belongs to phase_diagram, got {self.name!r}.")
        if "learning_rate" in self.given:
            raise InputError("--boundary searches for the learning rate; leave lr out of --set.")
        axes, fixed = swept(self.given, self.scale)
        for name in axes:
            if name not in ("gamma", "learning_rate"):
                raise InputError(
                    f"--boundary varies gamma alone, got {len(axes[name])} values of {name}; run "
                    "it once for each."
                )
        return axes["gamma"], fixed


def carry_out(request: Request, boundary: bool, dry_run: bool) -> None:
    """Do what was asked for.

    Args:
        request: the sweep.
        boundary: search for the critical learning rate instead.
        dry_run: only say what it would cost.
    """
    if boundary:
        find_boundary(request, dry_run)
    elif dry_run:
        estimate_cost(request)
    else:
        run_sweep(request)


def run_sweep(request: Request) -> None:
    """Compute the cells; numbers and figure of a diagram are renewed on the way."""
    from normscope.cli.output import progress
    from normscope.cli.sweep_findings import findings
    from normscope.cli.sweep_output import print_report
    from normscope.cli.sweep_picture import Picture
    from normscope.results import Store
    from normscope.sweeps.engines import ENGINES
    from normscope.sweeps.estimate import open_cells
    from normscope.sweeps.sweep import sweep

    work, units, plan = request.planned()
    ENGINES[request.running["engine"]]
    if plan is not None:
        note_earlier(plan, work.experiment, request.out)
        note_conversions(plan)
    files = {"store": str(request.out)}
    out = request.out
    with Store(out) as store, progress(request.name) as begin:
        picture = None if plan is None else Picture(plan, store, out, begin)
        tell = begin if picture is None else picture.tell
        cells = sum(len(unit.cells) for unit in units)
        begin(f"{cells - len(open_cells(work, units, store))} of {cells} cells")
        report = sweep(work, units, store, progress=tell, **request.running)
        if picture is not None:
            files |= picture.write()
    trained = "" if plan is None else _trained(plan)
    words = [] if picture is None or picture.found is None else findings(picture.found)
    print_report(report, files, trained, words, request.as_json)


def _trained(plan: Diagram) -> str:
    """How the networks are trained and what counts as diverged.

    Where the loss is not that of the other commands, that too.
    """
    from normscope.report.narrative import divergence_sentence

    words = plan.words
    if plan.settings["loss"] == "squared_error" and "loss" not in plan.axes:
        words += " The loss is the theory's; --set loss=cross_entropy has normscope lr's."
    if "divergence_factor" in plan.axes:
        return words
    return f"{words} {divergence_sentence(plan.settings['divergence_factor'])}"


def estimate_cost(request: Request) -> None:
    """Count the cells and estimate the time, nothing written."""
    from normscope.cli.sweep_output import print_estimate
    from normscope.results import Store
    from normscope.sweeps.estimate import Estimate, estimate, open_cells

    work, units, plan = request.planned()
    running, out = request.running, request.out
    if plan is not None:
        note_earlier(plan, work.experiment, out)
    store = Store(out, read_only=True) if out.is_file() else None
    try:
        if plan is not None:
            found = estimate(work, units, store, running["workers"], running["threads"])
        else:
            left = len(open_cells(work, units, store))
            found = Estimate(len(units), left, None, None, None)
    finally:
        if store is not None:
            store.close()
    print_estimate(found, out, request.as_json)


def find_boundary(request: Request, dry_run: bool) -> None:
    """Bisect for the critical learning rate, or only say what it would cost."""
    from normscope.cli.output import progress
    from normscope.cli.sweep_output import print_boundary
    from normscope.cli.sweep_picture import write_boundary
    from normscope.sweeps.boundary import SEARCH, boundary
    from normscope.sweeps.engines import ENGINES

    gammas, settings = request.searched()
    ENGINES[request.running["engine"]]
    if dry_run:
        _estimate_search(request, gammas, settings)
        return
    once = _searched(request, gammas, settings)
    note_earlier(once, SEARCH.experiment, request.out)
    note_conversions(once)
    with progress("boundary") as tell:
        found = boundary(
            gammas,
            seeds=request.seeds,
            store=request.out,
            progress=tell,
            **request.running,
            **settings,
        )
    files = {"store": str(request.out), **write_boundary(found, request.out)}
    print_boundary(found, files, request.as_json)


def _estimate_search(request: Request, gammas: list[float], settings: dict[str, Any]) -> None:
    from normscope.cli.sweep_output import print_search_estimate
    from normscope.sweeps.boundary import SEARCH
    from normscope.sweeps.estimate import estimate

    once, running = _searched(request, gammas, settings), request.running
    found = estimate(SEARCH, once.units, None, running["workers"], running["threads"])
    print_search_estimate(found, _ROUNDS, request.as_json)


def _searched(request: Request, gammas: list[float], settings: dict[str, Any]) -> Diagram:
    """One training for each gamma of a search."""
    from normscope.sweeps.diagram import Diagram

    return Diagram({"gamma": gammas, "learning_rate": [0.1]}, settings, request.seeds)
