"""How a training ended, and what it left behind."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Outcome", "Run"]


# no learning rate was at work yet that could have been too high
_NEVER_FINITE = (
    "The loss is not finite before any update: look at the data and the weights for NaN, "
    "infinity and values that overflow."
)


class Outcome(Enum):
    """The end of a training; the value is the advice that goes with it in general."""

    FINISHED = "All steps were taken."
    DIVERGED = (
        "The loss became non-finite or passed the stated multiple of its first value: lower the "
        "learning rate or add normalization; divergence_factor moves the limit."
    )
    STOPPED = "The callback asked for the end: call fit again with the checkpoint to go on."


@dataclass(frozen=True)
class Run:
    """What `fit` returns.

    Args:
        outcome: how it ended.
        losses: the loss of every step, taken before its update; after a divergence the last one
            is the loss that ended the run.
        steps: number of updates taken, those before a resumption included.
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
        """What to make of the outcome, in a sentence."""
        if self.outcome is Outcome.DIVERGED and not np.isfinite(self.losses[:1]).all():
            return _NEVER_FINITE
        return self.outcome.value

    def __str__(self) -> str:
        ended = f"{self.outcome.name.lower()} after {self.steps} steps in {self.seconds:.3g} s"
        if not len(self.losses):
            return ended
        return f"{ended}, loss {self.losses[0]:.4g} to {self.losses[-1]:.4g}"

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and texts."""
        return {
            "outcome": self.outcome.name.lower(),
            "steps": self.steps,
            "seconds": self.seconds,
            "losses": self.losses.tolist(),
        }

    def to_dataframe(self) -> pd.DataFrame:
        """One row per step, with its loss."""
        from normscope.results.frame import frame

        return frame({"step": step, "loss": loss} for step, loss in enumerate(self.losses.tolist()))

    def _repr_html_(self) -> str:
        from normscope.results.notebook import pairs_html

        ends = {"first loss": self.losses[0], "last loss": self.losses[-1]} if self.steps else {}
        values = {"outcome": self.outcome.name.lower(), "steps": self.steps, **ends}
        return pairs_html({**values, "seconds": self.seconds}, "Training", self.advice)
