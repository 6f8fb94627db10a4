"""Ctrl-C at a random instant of a public call leaves no trace."""

from __future__ import annotations

import gc
import random
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator

import pytest
from tests.adversarial.calls import CALLS, Case
from tests.adversarial.interrupts import (
    differences,
    duration,
    global_state,
    interrupt_after,
    model_state,
)

LONGEST = 4.0  # seconds for the interrupts of one item: fewer of slow calls


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Ctrl-C raises; an interrupt that Python drops in a finalizer is not an error.

    pytest's own hook for those is left out: it is Python code, which an interrupt stops halfway.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    hook, sys.unraisablehook = sys.unraisablehook, sys.__unraisablehook__
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    sys.unraisablehook = hook
    signal.signal(signal.SIGINT, before)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.cases(sample=10 * len(CALLS), chunk=10)
def test_an_interrupt_leaves_everything_as_it_was(
    case_seeds: list[int], count: Callable[..., None]
) -> None:
    draw = random.Random(case_seeds[0])
    name = list(CALLS)[case_seeds[0] // 10 % len(CALLS)]
    case = CALLS[name]()
    seconds = duration(case.run)
    start, hits = time.perf_counter(), 0
    while hits < len(case_seeds) and time.perf_counter() - start < LONGEST:
        case = CALLS[name]() if hits % 10 == 0 else case
        hits += _interrupt_once(name, case, draw, seconds)
    count("interrupts", name, hits)


def _interrupt_once(name: str, case: Case, draw: random.Random, seconds: float) -> bool:
    """Interrupt the call; return whether it was running then."""
    before, model = global_state(), model_state(case.model)
    again = draw.random() * 1e-3 if draw.random() < 0.3 else None
    hit = interrupt_after(draw.random() * seconds, case.run, again)
    gc.collect(0)  # what the traceback held is freed
    wrong = differences(before, global_state()) + differences(model, model_state(case.model))
    wrong = [each for each in wrong if not (case.draws and each.endswith("RNG"))]
    if hit:
        wrong += case.check()
    assert not wrong, f"{name}: {wrong}"
    return hit
