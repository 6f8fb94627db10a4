"""The number of CPU threads that suits a network."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.utils.flop_counter import FlopCounterMode

from normscope.problem.batch import Batch, copy_batch
from normscope.problem.problem import Problem

ONE_THREAD = 100e6
"""Floating-point operations of a forward pass below which one thread computes it.

Several threads wait for each other at every operation. On two idle cores two threads take as long
as one at 34 million operations, and 0.8 of that at 120 million; beside other work that takes the
cores they took 3 to 900 times as long (benchmarks/threads.py)."""


def suitable_threads(problem: Problem, batch: Batch) -> int:
    """Return 1 for a small network on the CPU, and torch's present number of threads for others.

    It depends on the network and the batch alone, so that results do not vary with the load of the
    machine. Operations are counted in one forward pass.

    Args:
        problem: model and loss; the caller isolates them.
        batch: one of its batches.
    """
    present = torch.get_num_threads()
    if present == 1 or problem.device.type != "cpu":
        return present
    try:
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            problem.loss_on(copy_batch(problem.prepare(batch)))
    except Exception:  # of the user's code; what follows reports it
        return present
    return 1 if counter.get_total_flops() < ONE_THREAD else present


@contextmanager
def thread_count(threads: int) -> Iterator[None]:
    """Compute with so many threads, and restore torch's number on exit.

    Only the calling thread is concerned, and those that use torch for the first time inside.
    """
    before = torch.get_num_threads()
    if threads == before:
        yield
        return
    try:
        torch.set_num_threads(threads)
        yield
    finally:
        torch.set_num_threads(before)
