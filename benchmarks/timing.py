"""Fair timing on a machine that others use too: take turns in changing order, keep the minimum."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping


def interleaved(
    cases: Mapping[str, Callable[[], object]],
    *,
    seconds: float,
    least_rounds: int = 5,
    patience: float = float("inf"),
) -> dict[str, float]:
    """Shortest time of one call of each case, in seconds.

    The cases take turns, so that a busy moment of the machine meets all of them, and the minimum
    is kept, since other work can only lengthen a call. Every round has another order: what ran just
    before decides what the caches hold, and in a fixed order one case would always follow the
    heaviest. One round before the first is not counted, but for the cases that took longer than the
    patience: they are not called again.

    Args:
        cases: what to call, by name.
        seconds: how long to go on in total.
        least_rounds: how many rounds to make even if that takes longer.
        patience: seconds after which one call is enough.
    """
    shortest: dict[str, float] = {}
    for name, call in cases.items():
        took = _timed(call)
        shortest[name] = took if took > patience else float("inf")
    order = [name for name, took in shortest.items() if took == float("inf")]
    turns = random.Random(0)
    end, rounds = time.perf_counter() + seconds, 0
    while rounds < least_rounds or time.perf_counter() < end:
        turns.shuffle(order)
        for name in order:
            shortest[name] = min(shortest[name], _timed(cases[name]))
        rounds += 1
    return shortest


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
