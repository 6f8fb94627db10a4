"""Memory that torch asks for during a call, by its own profiler."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch.profiler import ProfilerActivity, profile


def peak_allocation(call: Callable[[], object]) -> int:
    """How far the memory of tensors on the CPU rises above its start during a call, in bytes."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        call()
    tree = profiled.profiler.kineto_results.experimental_event_tree()
    sizes = sorted(
        (event.start_time_ns, event.extra_fields.alloc_size)
        for event in _all_events(tree)
        if hasattr(event.extra_fields, "alloc_size")
    )
    held = peak = 0
    for _, size in sizes:
        held += size
        peak = max(peak, held)
    return peak


def _all_events(events: Iterable[Any]) -> Iterator[Any]:
    for event in events:
        yield event
        yield from _all_events(event.children)
