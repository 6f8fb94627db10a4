"""What ``normscope sweep`` does: a sweep, an estimate of it, or the search for the boundary.

Numbers and figure are written beside the store, also while a sweep runs.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from normscope.cli.batches import note_conversion
from normscope.cli.render import check_figure, print_to_stderr, save_figure
from normscope.cli.sources import device_setting
from normscope.cli.sweep import (
    DIAGRAM,
    describe_earlier,
    find_in_words,
    print_boundary,
    print_estimate,
    print_report,
    print_search_estimate,
)
from normscope.errors import InputError
from normscope.experiments import EXPERIMENTS
from normscope.experiments.recipe import experiment_sweep
from normscope.files import replacing
from normscope.progress import Progress, ProgressCallback
from normscope.progress_bar import show_progress
from normscope.report.narrative import divergence_sentence
from normscope.results import Store
from normscope.results.record import custom_parts
from normscope.sweeps import ENGINES, Unit, Work
from normscope.sweeps.boundary import SEARCH, boundary
from normscope.sweeps.custom import import_paths, outdated_records
from normscope.sweeps.diagram import TRAININGS, Diagram, split_settings
from normscope.sweeps.run import sweep
from normscope.sweeps.settings import Training
from normscope.sweeps.status import TimeEstimate, estimate, open_cells, state_counts

if TYPE_CHECKING:
    import xarray as xr

_UPDATES = 8  # of the files while a sweep runs, at most
_SECONDS = 10.0  # between two of them, at least: drawing must cost little


class DiagramFiles:
    """The numbers and the figure of a diagram, updated as its trainings end.

    Args:
        plan: the diagram.
        store: with the trainings so far.
        out: the path of the store.
        progress: receives the events of the sweep.
    """

    def __init__(self, plan: Diagram, store: Store, out: Path, progress: ProgressCallback) -> None:
        self._plan, self._store, self._out, self._progress = plan, store, out, progress
        self._ended, self._drawn, self._written = 0, 0, time.monotonic()
        self.results: xr.Dataset | None = None  # what was written last

    def update(self, event: Progress) -> None:
        """Pass an event on; write the files after every eighth of the units."""
        self._progress(event)
        self._ended += 1
        due = self._ended - self._drawn >= len(self._plan.units) / _UPDATES
        if due and time.monotonic() - self._written >= _SECONDS:
            with suppress(OSError):  # such as a full disk: the end of the sweep reports it
                self.write()
            self._drawn, self._written = self._ended, time.monotonic()

    def write(self) -> dict[str, str]:
        """Write the files from what is stored; return their paths by content."""
        self.results = self._plan.results(self._store)
        return _write(self.results, self._out, _figure_of(self.results))


def _figure_of(results: xr.Dataset) -> Any:
    """Return one heat map, or one for each loss; None if further settings vary."""
    from normscope.plots.phase_diagram import phase_diagram, phase_diagrams

    dims = {str(name) for name in results["test_loss"].dims} - {"learning_rate", "seed"}
    if len(dims) == 1:
        return phase_diagram(results).figure
    return phase_diagrams(results) if len(dims) == 2 and "loss" in dims else None


def write_boundary(results: xr.Dataset, out: Path) -> dict[str, str]:
    """Write numbers and figure of critical learning rates; return their paths by content."""
    from normscope.plots.phase_diagram import boundary

    return _write(results, out, boundary(results).figure)


def _write(results: xr.Dataset, out: Path, figure: Any) -> dict[str, str]:
    """Write numbers and figure, if there is one, beside the store; return their paths."""
    files = {"numbers": str(out.with_suffix(".nc"))}
    with replacing(files["numbers"]) as unfinished:
        results.to_netcdf(unfinished, engine="scipy")
    if figure is not None:
        files["figure"] = str(save_figure(figure, out.with_suffix(".svg")))
    return files


def draw_status(store: Path, figure: Path) -> None:
    """Draw the phase diagram of a store as far as it is computed.

    Args:
        store: its path.
        figure: path of the figure.

    Raises:
        InputError: if the store does not have exactly one diagram.
    """
    from normscope.plots.phase_diagram import phase_diagram
    from normscope.report.diagrams import SWEPT, diagrams
    from normscope.results import Store

    check_figure(figure)
    with Store(store, read_only=True) as opened:
        found = list(diagrams(opened.select(SWEPT)).values())
    if len(found) != 1:
        raise InputError(
            f"{store} holds {len(found)} diagrams over gamma and learning rate, and --figure draws "
            f"one; normscope report {store} shows all there is."
        )
    drawn: Any = phase_diagram(found[0]).figure
    save_figure(drawn, figure)


_STORES = ("", ".sqlite", ".sqlite3", ".db")  # suffixes of a store
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
        InputError: if the store has the suffix of another file, or the device does not apply.
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
        of_training = self.name == DIAGRAM
        settings = Training.names() if of_training else EXPERIMENTS[self.name].defaults
        moved = device_setting(self.name, settings, self.device)
        self.given.update({name: [value] for name, value in moved.items()})
        if self.out.suffix.lower() not in _STORES:
            stored = self.out.with_suffix(".sqlite")
            raise InputError(
                f"{self.out} is the store, a database, and numbers (.nc) and figure (.svg) go "
                f"beside it; name it otherwise, such as {stored}."
            )

    def plan(self) -> tuple[Work, Sequence[Unit], Diagram | None]:
        """Return the work, its units, and for a phase diagram its plan."""
        if self.name != DIAGRAM:
            return *experiment_sweep(self.name, self.scale, self.given, self.seeds), None
        plan = Diagram(*split_settings(self.given, self.scale), self.seeds)
        return TRAININGS, plan.units, plan

    def search(self) -> tuple[list[float], dict[str, Any]]:
        """Return the gammas of a search for the boundary, and the settings.

        Raises:
            InputError: if another setting than gamma varies.
        """
        if self.name != DIAGRAM:
            raise InputError(f"--boundary belongs to phase_diagram, got {self.name!r}.")
        if "learning_rate" in self.given:
            raise InputError("--boundary searches for the learning rate; leave lr out of --set.")
        axes, fixed = split_settings(self.given, self.scale)
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
        dry_run: only print what it would cost.
    """
    if boundary:
        _find_boundary(request, dry_run)
    elif dry_run:
        _estimate_cost(request)
    else:
        _run_sweep(request)


def _run_sweep(request: Request) -> None:
    """Compute the cells; numbers and figure of a diagram are updated on the way."""
    work, units, plan = request.plan()
    ENGINES[request.running["engine"]]
    if plan is not None:
        _note_earlier(plan, work.experiment, request.out)
        _note_conversions(plan)
    written = {"store": str(request.out)}
    found: list[str] = []
    with Store(request.out) as store, show_progress(request.name) as show:
        files = None if plan is None else DiagramFiles(plan, store, request.out, show)
        progress = show if files is None else files.update
        cells = sum(len(unit.cells) for unit in units)
        kept = cells - len(open_cells(work, units, store))
        show(Progress(done=kept, total=cells, unit="cells", kept=kept))
        report = sweep(work, units, store, progress=progress, **request.running)
        if files is not None:
            written |= files.write()
            assert files.results is not None  # what `write` has written
            found = find_in_words(files.results)
    trained = "" if plan is None else _describe_training(plan)
    print_report(report, written, trained, found, request.as_json)
    if report.failures:
        raise typer.Exit(1)


def _describe_training(plan: Diagram) -> str:
    """Return how the networks are trained and what counts as diverged."""
    text = plan.description
    if plan.settings["loss"] == "squared_error" and "loss" not in plan.axes:
        text += " The loss is the theory's; --set loss=cross_entropy has normscope lr's."
    if "divergence_factor" in plan.axes:
        return text
    return f"{text} {divergence_sentence(plan.settings['divergence_factor'])}"


def _estimate_cost(request: Request) -> None:
    """Print the number of cells and the estimated time; nothing is written."""
    work, units, plan = request.plan()
    running, out = request.running, request.out
    if plan is not None:
        _note_earlier(plan, work.experiment, out)
    with Store(out, read_only=True) if out.is_file() else nullcontext() as store:
        if plan is not None:
            found = estimate(work, units, store, running["workers"], running["threads"])
        else:
            left = len(open_cells(work, units, store))
            found = TimeEstimate(len(units), left, None, None, None)
    print_estimate(found, out, request.as_json)


def _find_boundary(request: Request, dry_run: bool) -> None:
    """Bisect for the critical learning rate, or only print what it would cost."""
    gammas, settings = request.search()
    running = request.running
    ENGINES[running["engine"]]
    # one training for each gamma
    once = Diagram({"gamma": gammas, "learning_rate": [0.1]}, settings, request.seeds)
    if dry_run:
        found = estimate(SEARCH, once.units, None, running["workers"], running["threads"])
        print_search_estimate(found, _ROUNDS, request.as_json)
        return
    _note_earlier(once, SEARCH.experiment, request.out)
    _note_conversions(once)
    where: dict[str, Any] = {"seeds": request.seeds, "store": request.out}
    with show_progress("boundary") as show:
        results = boundary(gammas, progress=show, **where, **running, **settings)
    files = {"store": str(request.out), **write_boundary(results, request.out)}
    print_boundary(results, files, request.as_json)


def _note_conversions(plan: Diagram) -> None:
    """Print a note if user data is converted to the dtype of the model."""
    for cell in {cell.parameters["data"]: cell for cell in plan.cells}.values():
        training = Training.of(cell.parameters)
        if import_paths([training.data]):
            note_conversion(tuple(training.data_set.train), training.network(cell.seed))


def _note_earlier(plan: Diagram, experiment: str, path: Path) -> None:
    """Print a note if the store has cells that an earlier version of the user's files computed.

    Args:
        plan: what will be trained.
        experiment: the name of its records.
        path: of the store, which may be missing.
    """
    own = {custom_parts(cell.parameters) for cell in plan.cells} - {()}
    if not own or not path.is_file():
        return
    with Store(path, read_only=True) as store:
        records = store.select(experiment)
    earlier = outdated_records(each for each in records if custom_parts(each.parameters) in own)
    if earlier:
        # the store is not open for writing yet, so no process computes them
        counts = state_counts(earlier, at_work=False)
        print_to_stderr(describe_earlier(counts, str(path)))
