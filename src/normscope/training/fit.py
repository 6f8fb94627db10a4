"""`fit`: run the training loop to its end, with checkpoints, and return the outcome."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch.optim import Optimizer

from normscope.errors import InputError
from normscope.interrupts import interrupt_safe, replaced_handler
from normscope.problem.problem import Problem
from normscope.text import Rendered, Table
from normscope.training import checkpoint as checkpoints
from normscope.training.loop import Loop, Outcome, Step, check_steps
from normscope.training.optimizers import OptimizerFactory

if TYPE_CHECKING:
    import pandas as pd

Callback = Callable[[Step], object]

# The advice when no learning rate was applied yet that could have been too high.
_NEVER_FINITE = (
    "The loss is not finite before any update: look at the data and the weights for NaN, "
    "infinity and values that overflow."
)


@dataclass(frozen=True)
class Run(Rendered):
    """The result of `fit`.

    Args:
        outcome: how it ended.
        losses: the loss of every step, before its update; after a divergence the last one is the
            loss that ended the run.
        steps: number of updates taken, including those before a resumption.
        seconds: wall-clock time of this call.

    >>> run = Run(Outcome.FINISHED, np.array([2.3, 0.4]), steps=2, seconds=0.5)
    >>> print(run)
    finished after 2 steps in 0.5 s, loss 2.3 to 0.4
    """

    outcome: Outcome
    losses: NDArray[np.float64]
    steps: int
    seconds: float

    @property
    def advice(self) -> str:
        """What the outcome means, in one sentence."""
        if self.outcome is Outcome.DIVERGED and not np.isfinite(self.losses[:1]).all():
            return _NEVER_FINITE
        return self.outcome.value

    def __str__(self) -> str:
        ended = f"{self.outcome.name.lower()} after {self.steps} steps in {self.seconds:.3g} s"
        if not len(self.losses):
            return ended
        return f"{ended}, loss {self.losses[0]:.4g} to {self.losses[-1]:.4g}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers and strings."""
        return {
            "outcome": self.outcome.name.lower(),
            "steps": self.steps,
            "seconds": self.seconds,
            "losses": self.losses.tolist(),
        }

    def to_dataframe(self) -> pd.DataFrame:
        """Return one row per step, with its loss."""
        import pandas as pd

        return pd.DataFrame({"step": range(len(self.losses)), "loss": self.losses})

    def _table(self) -> Table:
        ends = {"first loss": self.losses[0], "last loss": self.losses[-1]} if self.steps else {}
        values = {"outcome": self.outcome.name.lower(), "steps": self.steps, **ends}
        return Table({**values, "seconds": self.seconds}, "Training", [self.advice])


@interrupt_safe
def fit(
    problem: Problem,
    optimizer: OptimizerFactory | Optimizer,
    steps: int,
    batch_size: int | None = None,
    seed: int = 0,
    *,
    drop_last: bool = True,
    divergence_factor: float | None = 1e3,
    callback: Callback | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int = 100,
) -> Run:
    """Train to the end and return the outcome.

    With a ``checkpoint``, an interrupted run resumes when `fit` is called again with the same
    settings, and is bit-identical to an uninterrupted one: parameters, buffers (of the loss too),
    optimizer state and losses. ``steps`` may grow, which extends a finished run; it may not be
    less than the checkpoint has. Three limits: a DataLoader must give the same batches under the
    same state of torch's generators; randomness from outside torch is not saved; and neither are
    attributes of modules that are not tensors, such as a number that counts steps.

    Ctrl-C with a checkpoint completes and saves the current step, then raises KeyboardInterrupt;
    pressed twice, it does not wait.

    Args:
        problem: model, loss and data; the model is trained in place.
        optimizer: a factory such as ``sgd(0.1)``, or an optimizer of the model's parameters.
        steps: number of updates.
        batch_size: samples per step; None: the batches as the data has them.
        seed: of the order of the samples; the same seed gives the same batches. A shuffled
            DataLoader ignores it: it draws from torch's global generator or its own.
        drop_last: drop the samples of an epoch that do not fill a batch.
        divergence_factor: multiple of the first loss that ends the run; None: only a non-finite
            loss does.
        callback: called with every `Step` between its gradient and its update; if it returns
            True, the run stops after that update. If it has ``state_dict`` and
            ``load_state_dict``, the checkpoint holds its state too.
        checkpoint: a file to resume from if it exists, and to save to; its folder is created.
        checkpoint_every: number of steps between two saves; the end is saved too, unless it is a
            divergence.

    Returns:
        The outcome, the losses, the number of steps, the time and advice.

    Raises:
        ArgumentTypeError: if a number is not an integer where it must be.
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
        settings = checkpoints.settings_of(
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
    loop: Loop, steps: int, callback: Callback | None, after_update: Callable[[], None]
) -> None:
    with closing(loop.run(steps, after_update)) as running:
        for step in running:
            answer = None if callback is None else callback(step)
            # Other return values, such as a probe's result, do not stop the run.
            loop.stop_requested = isinstance(answer, bool | np.bool_) and bool(answer)


def _run_with_checkpoint(
    loop: Loop,
    steps: int,
    callback: Callback | None,
    path: Path,
    every: int,
    settings: dict[str, str],
) -> None:
    if every < 1:
        raise InputError(f"checkpoint_every must be at least 1, got {every}.")
    check_steps(steps)
    if path.exists():
        checkpoints.resume(path, loop, settings, steps, callback)
    elif steps:
        checkpoints.check_writable(path)
    saved_at = loop.taken
    interrupt = _Interrupt()
    with replaced_handler(interrupt.handle):

        def save_if_due() -> None:
            nonlocal saved_at
            if loop.taken - saved_at >= every or interrupt.requested:
                checkpoints.save(path, loop, settings, callback)
                saved_at = loop.taken
            if interrupt.requested:
                raise KeyboardInterrupt

        _run(loop, steps, callback, save_if_due)
        if loop.outcome is not Outcome.DIVERGED and loop.taken > saved_at:
            checkpoints.save(path, loop, settings, callback)
    if interrupt.requested:
        raise KeyboardInterrupt


@dataclass
class _Interrupt:
    """Whether Ctrl-C was pressed and not yet handled."""

    requested: bool = False

    def handle(self, signal_number: int, frame: FrameType | None) -> None:
        """Record the first signal; raise KeyboardInterrupt at the second."""
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
