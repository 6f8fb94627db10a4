"""The same net under several normalizations, side by side: numbers, table and notes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from normscope.errors import InputError
from normscope.learning_rate.advice import Advice
from normscope.learning_rate.comparison_notes import mark_of, notes_of
from normscope.learning_rate.onset import STEPS, is_beyond
from normscope.text import WIDTH, text_table, wrap

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

__all__ = ["LAST", "MODES", "Compared", "Comparison"]

MODES = ("train", "frozen", "eval")
LAST = 10  # losses at the end that are averaged
_NOTHING = 0.95  # of the loss of guessing: a net that stays above has learnt nothing
_TITLE = "The same net under several normalizations"
_COLUMNS = ("norm", "curvature bound", "limit", "predicted", *(f"λ {mode}" for mode in MODES))


@dataclass(frozen=True, eq=False)
class Compared:
    """One normalization.

    Args:
        norm: its kind.
        advice: on the learning rate.
        lambda_max: of the Gauss-Newton matrix by mode; None where a mode does not apply.
        growth: of the squared gradient per layer, backwards; None for a shallow net.
        losses: of a training at half the limit.
        diverged: whether it ended early.
        guessing_loss: of the best output that is the same for every sample; None where the loss is
            none that it is known for.
    """

    norm: str
    advice: Advice
    lambda_max: dict[str, float | None]
    growth: float | None
    losses: NDArray[np.float64]
    diverged: bool
    guessing_loss: float | None = None

    @property
    def final_loss(self) -> float:
        """The mean of the last ten losses (of all, if fewer); not a number after a divergence."""
        return math.nan if self.diverged else float(self.losses[-LAST:].mean())

    @property
    def is_guessing(self) -> bool:
        """Whether the training ended within 5 % of the loss of guessing, or above."""
        guess = self.guessing_loss
        if not guess or self.diverged:  # targets all alike are guessed without a loss
            return False
        return self.final_loss >= _NOTHING * guess

    @property
    def is_unstable(self) -> bool:
        """Whether the training at half the limit was unstable, by the definition of the limit.

        That of `normscope.learning_rate.is_unstable`: within the first 100 steps a loss that is not
        finite, or beyond the advice's ``growth_limit`` times the first.
        """
        limit = self.advice.growth_limit or math.inf  # unknown: only a loss that is not finite
        early = self.losses[:STEPS].tolist()
        return any(is_beyond(loss, early[0], limit) for loss in early)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and texts."""
        return {
            "norm": self.norm,
            "lambda_max": self.lambda_max,
            "gradient_growth": self.growth,
            "final_loss": self.final_loss,
            "guessing_loss": self.guessing_loss,
            "is_guessing": self.is_guessing,
            "is_unstable": self.is_unstable,
            "losses": self.losses.tolist(),
            "diverged": self.diverged,
            "advice": self.advice.to_dict(),
        }

    def scalars(self) -> dict[str, Any]:
        """What there is of one value each, by name."""
        return {
            "norm": self.norm,
            **self.advice.scalars(),
            **{f"lambda_max_{mode}": value for mode, value in self.lambda_max.items()},
            "gradient_growth": self.growth,
            "final_loss": self.final_loss,
            "is_guessing": self.is_guessing,
            "is_unstable": self.is_unstable,
            "diverged": self.diverged,
        }

    def to_dataframe(self) -> pd.DataFrame:
        """One row."""
        from normscope.results.frame import frame

        return frame([self.scalars()])

    def _repr_html_(self) -> str:
        return Comparison((self,), len(self.losses))._repr_html_()


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """The same net under several normalizations.

    The loss in the table is that of `Compared.final_loss`, a mean of the last ten.

    Args:
        rows: one for each normalization.
        steps: of the training at half the limit.
    """

    rows: tuple[Compared, ...]
    steps: int

    def __getitem__(self, norm: str) -> Compared:
        found = {row.norm: row for row in self.rows}
        if norm not in found:
            raise InputError(f"norm {norm!r} was not compared; choose from {', '.join(found)}.")
        return found[norm]

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and texts."""
        norms = [row.to_dict() for row in self.rows]
        return {"steps": self.steps, "norms": norms, "notes": self.notes}

    @property
    def notes(self) -> list[str]:
        """What to know before the numbers are trusted, in sentences; none if there is nothing."""
        return notes_of(self)

    def to_dataframe(self) -> pd.DataFrame:
        """One row per norm, the columns of its advice among them."""
        from normscope.results.frame import frame

        return frame(row.scalars() for row in self.rows)

    def to_xarray(self) -> xr.Dataset:
        """Rates, eigenvalues by mode and losses by step, all by norm."""
        import xarray as xr

        losses = np.full((len(self.rows), self.steps), np.nan)
        for row, line in zip(self.rows, losses, strict=True):
            line[: len(row.losses)] = row.losses
        rates = {
            name: ("norm", [float(getattr(row.advice, name)) for row in self.rows])
            for name in ("curvature_bound", "limit", "recommended", "predicted")
        }
        low, high = zip(*(row.advice.interval for row in self.rows), strict=True)
        values = [[row.lambda_max[mode] or math.nan for mode in MODES] for row in self.rows]
        return xr.Dataset(
            {
                **rates,
                "low": ("norm", list(low)),
                "high": ("norm", list(high)),
                "lambda_max": (("norm", "mode"), values),
                "gradient_growth": ("norm", [row.growth or math.nan for row in self.rows]),
                "loss": (("norm", "step"), losses),
            },
            coords={"norm": [row.norm for row in self.rows], "mode": list(MODES)},
        )

    def plot(self) -> Figure:
        """One figure: learning rates, curvature in three modes, training at half the limit.

        Returns:
            The figure with its three panels; plots of one panel return its Axes, and ``.figure``
            is the figure of either.
        """
        from normscope.plots.comparison import comparison

        return comparison(self.to_xarray())

    def text(self, width: int = WIDTH) -> str:
        """The table and its words.

        Args:
            width: in characters.

        Returns:
            Lines of that width at most.
        """
        table = text_table(self._texts(), _TITLE, numbers=self._head()[1:], width=width)
        return wrap("\n".join([table, *([""] if self.notes else []), *self.notes]), width)

    def __str__(self) -> str:
        return self.text()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from normscope.results.notebook import table_html

        return table_html(self._texts(), _TITLE, "\n".join(self.notes))

    def _texts(self) -> list[dict[str, str]]:
        return [dict(zip(self._head(), self._cells(row), strict=True)) for row in self.rows]

    def _head(self) -> tuple[str, ...]:
        return (*_COLUMNS, "growth", f"loss after {self.steps}")

    @staticmethod
    def _cells(row: Compared) -> tuple[str, ...]:
        numbers = (
            row.advice.curvature_bound,
            row.advice.limit,
            row.advice.predicted,
            *(row.lambda_max[mode] for mode in MODES),
            row.growth,
            None if row.diverged else row.final_loss,
        )
        cells = ["-" if number is None else f"{number:.3g}" for number in numbers]
        cells[1] += mark_of(row)
        return (row.norm, *cells)
