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

Several threads wait for each other at every operation. On an idle machine of two cores they take
as long as one up to about here; on a busy one they took 70 times as long or more
(benchmarks/threads.py)."""


@contextmanager
def suitable_threads(problem: Problem, batch: Batch) -> Iterator[None]:
    """Compute a small network with one thread, and restore the number of threads on exit.

    Only the calling thread is concerned, and those that use torch for the first time inside. The
    choice depends on the network and the batch alone, so that results do not vary with the load of
    the machine. Networks on other devices than the CPU are left alone.

    Args:
        problem: model and loss; the caller isolates them.
        batch: as `Problem.prepare` returns it.

    Yields:
        Nothing.
    """
    before = torch.get_num_threads()
    if before == 1 or problem.device.type != "cpu" or _operations(problem, batch) >= ONE_THREAD:
        yield
        return
    try:
        torch.set_num_threads(1)
        yield
    finally:
        torch.set_num_threads(before)


def _operations(problem: Problem, batch: Batch) -> float:
    """Return the floating-point operations of a forward pass: of products and convolutions."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        problem.loss_on(copy_batch(batch))
    return float(counter.get_total_flops())
