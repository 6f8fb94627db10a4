"""What happens in a worker: one unit is computed, and an answer comes back whatever happens."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from traceback import extract_tb, format_exception_only

import torch
import xarray as xr

from normscope.errors import NormscopeError
from normscope.sweeps.cells import Cell

__all__ = ["Answer", "Function", "answer", "follow_parent"]

Function = Callable[[Sequence[Cell]], list[xr.Dataset]]  # found by its name in a worker

_LOOK_EVERY = 0.5  # seconds between two looks at the parent


@dataclass(frozen=True)
class Answer:
    """What a worker sends back.

    Args:
        number: of the unit.
        datasets: one for each cell; empty after a failure.
        error: the failure's text, if there was one.
        seconds: it took.
    """

    number: int
    datasets: tuple[xr.Dataset, ...]
    error: str | None
    seconds: float


def answer(function: Function, number: int, cells: Sequence[Cell], threads: int) -> Answer:
    """Compute the cells of a unit; an exception is an answer too.

    Args:
        function: gives a dataset for each cell.
        number: of the unit.
        cells: of the unit.
        threads: of torch; set back afterwards.

    Returns:
        The datasets, or the text of the failure.
    """
    begun = time.perf_counter()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        datasets, error = tuple(function(cells)), None
    except Exception as failure:
        datasets, error = (), _described(failure)
    finally:
        torch.set_num_threads(before)
    return Answer(number, datasets, error, time.perf_counter() - begun)


def _described(failure: Exception) -> str:
    """The failure in its own words, and where it happened; ours are sentences that say it all."""
    if isinstance(failure, NormscopeError):
        return str(failure)
    text = "".join(format_exception_only(failure)).strip()
    frames = extract_tb(failure.__traceback__)
    place = f" ({os.path.basename(frames[-1].filename)}, line {frames[-1].lineno})"  # noqa: PTH119
    return text + (place if frames else "")


def follow_parent(parent: int) -> None:
    """Set up a process that must not outlive its parent, and leaves Ctrl-C to it.

    A parent that is killed cannot stop its workers; each looks for itself.

    Args:
        parent: its process number.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_EVERY)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="normscope parent watch").start()
