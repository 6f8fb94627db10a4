"""Training to its end: `fit` runs the loop, keeps a checkpoint, and says how it ended."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
from torch.optim import Optimizer

from normscope.errors import InputError
from normscope.problem.problem import Problem
from normscope.training import checkpoint as checkpoints
from normscope.training.interruption import deferred_interruption
from normscope.training.loop import Loop, Step, check_steps
from normscope.training.optimizers import OptimizerFactory
from normscope.training.outcome import Outcome, Run
from normscope.training.settings import settings_of

__all__ = ["fit"]


def fit(
    problem: Problem,
    optimizer: OptimizerFactory | Optimizer,
    steps: int,
    batch_size: int | None = None,
    seed: int = 0,
    *,
    drop_last: bool = True,
    divergence_factor: float | None = 1e3,
    callback: Callable[[Step], object] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int = 100,
) -> Run:
    """Train to the end and say how it ended.

    With a ``checkpoint`` a run that was cut off, by any means, goes on when `fit` is called again
    with the same settings, and ends with the same bits as one that was not: parameters, buffers,
    optimizer state and losses. ``steps`` may grow: a finished run is then extended; fewer than the
    checkpoint has are refused. Two limits: a DataLoader must give the same batches under the same
    state of torch's generators, and randomness from outside torch is not kept.

    Ctrl-C with a checkpoint: the step under way is completed and saved, then KeyboardInterrupt
    goes on its way; pressed twice, it does not wait.

    Args:
        problem: model, loss and data; the model is trained in place.
        optimizer: a factory such as ``sgd(0.1)``, or an optimizer of the model's parameters.
        steps: number of updates.
        batch_size: samples per step; None: the batches as the data has them.
        seed: of the order of the samples; the same seed gives the same batches. A shuffled
            DataLoader does not follow it: it draws from torch's global generator or its own.
        drop_last: leave out the samples of an epoch that do not fill a batch.
        divergence_factor: multiple of the first loss that ends the run; None: only a non-finite
            loss does.
        callback: called with every `Step` between its gradient and its update; if it returns
            True, the run stops after that update.
        checkpoint: a file to go on from if it is there, and to save to; its folder is made.
        checkpoint_every: number of steps between two savings; the end is saved too, unless it is
            a divergence.

    Returns:
        The outcome, the losses, the number of steps, the time and an advice.

    Raises:
        ArgumentTypeError: if a number is not a whole one where it must be.
        InputError: if an argument does not fit the problem, or the checkpoint cannot be written.
        DataError: if the checkpoint is damaged or cannot be read.
        StateError: if the checkpoint comes from a run with other settings or has more steps, or
            the model or the optimizer holds what a checkpoint cannot.

    >>> import torch
    >>> from normscope.training import sgd
    >>> line = torch.nn.Linear(1, 1)
    >>> problem = Problem(line, "squared_error", (torch.ones(4, 1), torch.ones(4, 1)))
    >>> fit(problem, sgd(5.0), steps=100).outcome.name
    'DIVERGED'
    """
    start = time.perf_counter()
    loop = Loop(problem, optimizer, batch_size, seed, drop_last, divergence_factor)
    if checkpoint is None:
        _run(loop, steps, callback, after_update=lambda: None)
    else:
        settings = settings_of(
            problem,
            loop.optimizer,
            batch_size=batch_size,
            seed=seed,
            drop_last=drop_last,
            divergence_factor=divergence_factor,
        )
        _run_with_checkpoint(loop, steps, callback, Path(checkpoint), checkpoint_every, settings)
    losses = np.array(loop.losses, dtype=np.float64)
    return Run(loop.outcome, losses, loop.taken, time.perf_counter() - start)


def _run(
    loop: Loop,
    steps: int,
    callback: Callable[[Step], object] | None,
    after_update: Callable[[], None],
) -> None:
    with closing(loop.run(steps, after_update)) as running:
        for step in running:
            answer = None if callback is None else callback(step)
            # whatever else a callback returns, such as a probe's result, is no wish to stop
            loop.stop_requested = isinstance(answer, bool | np.bool_) and bool(answer)


def _run_with_checkpoint(
    loop: Loop,
    steps: int,
    callback: Callable[[Step], object] | None,
    path: Path,
    every: int,
    settings: dict[str, str],
) -> None:
    if every < 1:
        raise InputError(f"checkpoint_every must be at least 1, got {every}.")
    check_steps(steps)
    if path.exists():
        checkpoints.resume(path, loop, settings, steps)
    elif steps:
        checkpoints.check_writable(path)
    saved_at = loop.taken
    with deferred_interruption() as interruption:

        def save_if_due() -> None:
            nonlocal saved_at
            if loop.taken - saved_at >= every or interruption.requested:
                checkpoints.save(path, loop, settings)
                saved_at = loop.taken
            if interruption.requested:
                raise KeyboardInterrupt

        _run(loop, steps, callback, save_if_due)
        if loop.outcome is not Outcome.DIVERGED and loop.taken > saved_at:
            checkpoints.save(path, loop, settings)
    if interruption.requested:
        raise KeyboardInterrupt
