"""The content of the live view: parts with versions, so that a client gets only what changed."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from normscope import __version__
from normscope.results.record import CODE
from normscope.text import format_duration, format_number, plural
from normscope.watch.gauge import gauge_of
from normscope.watch.grids import Grid, describe, grids_of
from normscope.watch.reader import Reader, seconds_left
from normscope.watch.records import DIVERGED, FAILED, FINISHED, RUNNING, STATES, Records
from normscope.watch.series import Series

INTERVAL = 0.5  # seconds between two readings
_MOST_RUNNING = 4  # running records that are named
_MOST_FAILURES = 5
_LONGEST = 200  # characters of an error or a name


@dataclass(frozen=True, eq=False)
class Part:
    """One piece of a view.

    Args:
        name: identifies it; parts of an experiment begin with the experiment's.
        kind: store, experiment, grid, curves or scope.
        version: at which it changed last.
        content: values of `strict_json`; of a grid, its title and sentence.
        grid: with its own versions, for the kind grid.
    """

    name: str
    kind: str
    version: int
    content: dict[str, Any]
    grid: Grid | None = None

    def payload(self, since: int) -> dict[str, Any] | None:
        """Return the part for a view that has seen a version; None if nothing is new."""
        cells = None if self.grid is None else self.grid.payload(since)
        if self.version <= since and cells is None:
            return None
        more = {} if cells is None else {"cells": strict_json(cells)}
        return {"name": self.name, "kind": self.kind, **self.content, **more}


def strict_json(value: Any) -> Any:
    """Convert a value to strict JSON; numbers that are not finite become None.

    >>> strict_json({"steps": (0, float("nan")), "share": np.float64(0.5)})
    {'steps': [0, None], 'share': 0.5}

    Raises:
        TypeError: if JSON has no such value.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(name): strict_json(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [strict_json(each) for each in value]
    if isinstance(value, np.generic):
        return strict_json(value.item())
    raise TypeError(f"a {type(value).__name__} in its content")


class Board:
    """Reads stores twice a second in the background, one thread for each.

    Readers never block a writer, and change nothing in the file.

    Args:
        paths: of the stores.
        interval: seconds between two readings.

    Examples:
        >>> with Board(["no-such-store.db"]) as board:
        ...     message = board.wait(0, seconds=60)
        >>> message["parts"][0]["words"]
        'waiting for the store to be created'
    """

    def __init__(self, paths: Sequence[str | Path], interval: float = INTERVAL) -> None:
        self._readers = [Reader(Path(path)) for path in paths]
        self._parts: list[list[Part]] = [[] for _ in paths]
        self._interval = interval
        self._version = 0
        self._changed = threading.Condition()
        self._publishing = threading.Lock()  # one version at a time
        self._closing = threading.Event()
        self._threads = [
            threading.Thread(target=self._follow, args=(number,), daemon=True)
            for number in range(len(self._readers))
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Board:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """End the threads and close the stores."""
        self._closing.set()
        with self._changed:
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._closing.is_set()

    @property
    def is_complete(self) -> bool:
        """Whether every store was read to its end."""
        with self._changed:
            return all(self._parts) and not any(each.is_behind for each in self._readers)

    def wait(self, since: int, seconds: float) -> dict[str, Any] | None:
        """Return what is new, waiting for it; None if there is nothing.

        Args:
            since: version that the caller has seen; 0 for all.
            seconds: to wait at most.

        Returns:
            ``version``, the names of all parts in their ``order``, and the new ``parts``.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._version > since or self.is_closed, seconds)
            if self._version <= since:
                return None
            version = self._version
            parts = [part for each in self._parts for part in each]
        # built outside the lock; parts are immutable
        payloads = (part.payload(since) for part in parts)
        return {
            "version": version,
            "order": [part.name for part in parts],
            "parts": [each for each in payloads if each is not None],
        }

    def _follow(self, number: int) -> None:
        reader = self._readers[number]
        while not self._closing.is_set():
            try:
                changed = reader.read()
                if changed or not self._parts[number] or reader.at_work:
                    self._publish(number)
            except Exception as error:  # a file may hold anything: show the error, continue
                reader.close()
                reason = f"{type(error).__name__}: {error}"[:_LONGEST]
                reader.problem = f"its content cannot be shown ({reason})"
                reader.experiments.clear()
                self._publish(number)
            self._closing.wait(0.01 if reader.is_behind else self._interval)
        reader.close()

    def _publish(self, number: int) -> None:
        """Replace the parts of a store; unchanged ones keep their version."""
        before = {part.name: part for part in self._parts[number]}
        with self._publishing:
            version = self._version + 1
            made = _parts(f"s{number}", self._readers[number])
            parts = [_versioned(each, before.get(each[0]), version) for each in made]
            with self._changed:
                self._parts[number] = parts
                self._version = version
                self._changed.notify_all()


_Made = tuple[str, str, dict[str, Any], Grid | None]


def _versioned(made: _Made, before: Part | None, version: int) -> Part:
    """Return a part with the version at which it changed.

    Args:
        made: name, kind, content and grid.
        before: the part of this name at the last reading.
        version: of this reading.
    """
    name, kind, content, grid = made
    content = strict_json(content)
    same = before is not None and before.content == content
    whole = None if grid is None else grid.after(None if before is None else before.grid, version)
    kept = before.version if before is not None and same else version
    return Part(name, kind, kept, content, whole)


def _parts(prefix: str, reader: Reader) -> Iterator[_Made]:
    yield prefix, "store", _store(reader), None
    for number, (experiment, records) in enumerate(reader.experiments.items()):
        name = f"{prefix}.e{number}"
        grids, more = grids_of(records, reader.at_work)
        yield name, "experiment", _experiment(reader, records, more), None
        for index, grid in enumerate(grids):
            content = {"title": grid.title, "words": describe(grid)}
            yield f"{name}.g{index}", "grid", content, grid
        scopes = reader.shown(experiment, is_scope=True)
        for position, series in scopes:
            content = _scope(reader, records, position, series)
            yield f"{name}.r{records.numbers[position]}", "scope", content, None
        curves = reader.shown(experiment, is_scope=False)
        lines = [_curve(reader, records, *each) for each in curves if "loss" in each[1].lines]
        if lines:
            yield f"{name}.c", "curves", {"lines": lines}, None


def _store(reader: Reader) -> dict[str, Any]:
    words = "a process is writing it" if reader.at_work else "no process is writing it"
    if reader.problem:
        words = "cannot be read at the moment; trying again"
    elif reader.is_waiting:
        words = "waiting for the store to be created"
    elif reader.known < reader.total:
        words = f"reading, {reader.known} of {plural(reader.total, 'record')}"
    elif not reader.total:
        words = f"no records yet; {words}"
    return {
        "title": reader.path.name,
        "path": str(reader.path),
        "words": words,
        "problem": reader.problem,
        "at_work": reader.at_work,
        "normscope": __version__,
    }


def _experiment(reader: Reader, records: Records, more_grids: int) -> dict[str, Any]:
    counts, now = records.counts(reader.at_work), time.time()
    left = seconds_left(records, now) if reader.at_work else None
    seconds = np.array(records.seconds)[np.isin(records.state_codes(), (FINISHED, DIVERGED))]
    mean = float(np.nanmean(seconds)) if np.isfinite(seconds).any() else None
    running = records.newest(RUNNING, most=_MOST_RUNNING) if reader.at_work else []
    failures = [
        {"record": records.describe(position), "error": error}
        for position, error in reversed(records.errors.items())
        if records.states[position] == FAILED
    ]
    return {
        "title": records.experiment[:200],
        "counts": counts,
        "words": _progress_words(counts, left, mean),
        "seconds_left": left,
        "seconds_per_record": mean,
        "running": [_running_words(records, position, now) for position in running],
        "failures": failures[:_MOST_FAILURES],
        "note": " ".join(_notes(records, more_grids)),
    }


def _notes(records: Records, more_grids: int) -> Iterator[str]:
    if more_grids:
        yield f"{plural(more_grids, 'more diagram')} not shown."
    if len(records.editions) > 1:
        yield "Records of earlier versions of normscope or the experiment are counted, not drawn."
    code = records.columns.get(CODE)
    if code is not None and code.varies:
        files = f"Cells of {len(code.values)} versions of your files"
        yield f"{files}; a sweep completes those of the present one."


def _progress_words(counts: dict[str, int], left: float | None, mean: float | None) -> str:
    total = sum(counts.values())
    ended = counts["finished"] + counts["diverged"] + counts["failed"]
    words = [f"{ended} of {plural(total, 'record')} done"]
    words += [
        f"{counts[name]} {name}" for name in ("diverged", "failed", "running") if counts[name]
    ]
    if left is not None:
        words.append(f"about {format_duration(left)} left")
    elif ended < total and not counts["running"]:
        words.append(f"{total - ended} waiting")
    if mean is not None:
        words.append(f"{format_duration(mean)} each")
    return ", ".join(words)


def _running_words(records: Records, position: int, now: float) -> str:
    started = records.started[position]
    since = "" if np.isnan(started) else f", for {format_duration(max(0.0, now - started))}"
    return f"{records.describe(position)}{since}"


def _state(reader: Reader, records: Records, position: int) -> str:
    state = STATES[records.states[position]]
    idle = records.states[position] == RUNNING and not reader.at_work
    return "interrupted" if idle else str(state)


def _curve(reader: Reader, records: Records, position: int, series: Series) -> dict[str, Any]:
    return {
        "label": records.describe(position),
        "state": _state(reader, records, position),
        **series.lines["loss"].payload(),
    }


def _scope(reader: Reader, records: Records, position: int, series: Series) -> dict[str, Any]:
    step, loss = series.last_step, series.loss
    words = [_state(reader, records, position)]
    words += [] if step is None else [f"step {step:.0f}"]
    words += [] if loss is None else [f"loss {format_number(loss, 3)}"]
    return {
        "title": records.describe(position),
        "words": ", ".join(words),
        "gauge": gauge_of(series.recent),
        "panels": series.panels(),
        "diverged": records.states[position] == DIVERGED,
    }
