"""Fair timing on a machine that others use too: take turns in changing order, keep the minimum."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping


def interleaved(
    cases: Mapping[str, Callable[[], object]], *, seconds: float, least_rounds: int = 5
) -> dict[str, float]:
    """Shortest time of one call of each case, in seconds.

    The cases take turns, so that a busy moment of the machine meets all of them, and the minimum
    is kept, since other work can only lengthen a call. Every round has another order: what ran just
    before decides what the caches hold, and in a fixed order one case would always follow the
    heaviest. One round before the first is not counted.

    Args:
        cases: what to call, by name.
        seconds: how long to go on in total.
        least_rounds: how many rounds to make even if that takes longer.
    """
    shortest = dict.fromkeys(cases, float("inf"))
    for call in cases.values():
        call()
    order, turns = list(cases), random.Random(0)
    end, rounds = time.perf_counter() + seconds, 0
    while rounds < least_rounds or time.perf_counter() < end:
        turns.shuffle(order)
        for name in order:
            start = time.perf_counter()
            cases[name]()
            shortest[name] = min(shortest[name], time.perf_counter() - start)
        rounds += 1
    return shortest
