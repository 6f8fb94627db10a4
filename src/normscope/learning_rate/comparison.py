"""The result of `compare`: limits, curvature and training of each normalization."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from normscope.errors import InputError
from normscope.learning_rate.advice import Advice
from normscope.learning_rate.thresholds import STEPS
from normscope.text import Rendered, Table, join_words
from normscope.training.loop import has_diverged

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

MODES = ("train", "frozen", "eval")
"""In which the curvature is compared."""
AVERAGED = 10
"""Losses at the end of a training whose mean is the final loss."""
_MARK = "*"  # beside a limit that no runs enclose, or that a training has refuted


@dataclass(frozen=True, eq=False)
class Compared(Rendered):
    """One normalization.

    Args:
        norm: its kind.
        advice: on the learning rate.
        lambda_max: of the Gauss-Newton matrix by mode; None where a mode does not apply.
        growth: of the squared gradient per layer, backwards; None for a shallow network.
        losses: of a training at half the limit.
        diverged: whether it ended early.
        guessing_loss: of the best output that is the same for every sample; None if it is not
            known for the loss.
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
        """The mean of the last ten losses (of all, if fewer); NaN after a divergence."""
        return math.nan if self.diverged else float(self.losses[-AVERAGED:].mean())

    @property
    def is_guessing(self) -> bool:
        """Whether the final loss is at least 95 % of the best constant output's."""
        guess = self.guessing_loss
        if not guess or self.diverged:  # zero if all targets are the same
            return False
        return self.final_loss >= 0.95 * guess

    @property
    def is_unstable(self) -> bool:
        """Whether the training at half the limit was unstable, by the definition of the limit.

        See `normscope.learning_rate.is_unstable`.
        """
        limit = self.advice.growth_limit or math.inf
        early = self.losses[:STEPS].tolist()
        return any(has_diverged(loss, early[0], limit) for loss in early)

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers and strings."""
        return {
            "norm": self.norm,
            "lambda_max": self.lambda_max,
            **self._training(),
            "guessing_loss": self.guessing_loss,
            "losses": self.losses.tolist(),
            "advice": self.advice.to_dict(),
        }

    def scalars(self) -> dict[str, Any]:
        """Return all scalars by name."""
        return {
            "norm": self.norm,
            **self.advice.scalars(),
            **{f"lambda_max_{mode}": value for mode, value in self.lambda_max.items()},
            **self._training(),
        }

    def _training(self) -> dict[str, Any]:
        return {
            "gradient_growth": self.growth,
            "final_loss": self.final_loss,
            "is_guessing": self.is_guessing,
            "is_unstable": self.is_unstable,
            "diverged": self.diverged,
        }

    def to_dataframe(self) -> pd.DataFrame:
        """Return one row of scalars."""
        return Comparison((self,), len(self.losses)).to_dataframe()

    def _table(self) -> Table:
        return Comparison((self,), len(self.losses))._table()


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Rendered):
    """The same net under several normalizations.

    The loss in the table is `Compared.final_loss`, a mean of the last ten.

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
        """Return plain numbers and strings."""
        norms = [row.to_dict() for row in self.rows]
        return {
            "headline": self.headline,
            "steps": self.steps,
            "norms": norms,
            "notes": self.notes,
        }

    @property
    def headline(self) -> str:
        """The largest limit, and how far the next is below it if their intervals are apart.

        Limits of which only one end is known, and those that a training has refuted, do not count.
        """
        known = [row for row in self.rows if _is_known(row)]
        unknown = [row.norm for row in self.rows if row not in known]
        without = f"; that of {join_words(unknown)} is not known" if unknown else ""
        if not known:
            return f"The limit of {join_words(unknown)} is not known"
        first, *others = sorted(known, key=lambda row: row.advice.limit, reverse=True)
        predicted = any(row.advice.verification is None for row in known)
        limit = f"{'predicted ' if predicted else ''}limit"
        largest = f"{first.norm}, {first.advice.limit:.3g}{_mark(first)}"
        if not others:
            return f"{limit.capitalize()}: {largest}{without}"
        low = first.advice.interval[0]
        close = [row.norm for row in others if row.advice.interval[1] >= low]
        if close:
            which = " and ".join(close) if len(close) < 3 else f"{len(close)} others"
            return f"Largest {limit}: {largest}; the interval of {which} overlaps{without}"
        ratio = first.advice.limit / others[0].advice.limit
        return (
            f"Largest {limit}: {largest}, {ratio:.2g} times that of {others[0].norm} "
            f"({others[0].advice.limit:.3g}{_mark(others[0])}){without}"
        )

    @property
    def notes(self) -> list[str]:
        """Caveats in full sentences; those on limits begin with the mark beside them."""
        unverified = [row.norm for row in self.rows if row.advice.verification is None]
        notes = []
        if unverified:
            whose = "" if len(unverified) == len(self.rows) else f" of {', '.join(unverified)}"
            notes.append(f"{_MARK} predicted: no run has verified the limit{whose}.")
        notes += [f"{_MARK} {_limit_note(row)}" for row in self.rows]
        notes += [_training_note(row, self.steps) for row in self.rows]
        notes += [_matrix_note(self.rows)]
        return [note for note in notes if note.strip(f" {_MARK}")]

    def to_dataframe(self) -> pd.DataFrame:
        """Return one row per norm, with the columns of its advice."""
        import pandas as pd

        return pd.DataFrame([row.scalars() for row in self.rows])

    def to_xarray(self) -> xr.Dataset:
        """Return rates, eigenvalues by mode and losses by step, all by norm."""
        import xarray as xr

        losses = np.full((len(self.rows), self.steps), np.nan)
        for row, line in zip(self.rows, losses, strict=True):
            line[: len(row.losses)] = row.losses
        rates = {
            name: ("norm", [_or_nan(getattr(row.advice, name)) for row in self.rows])
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
        """Draw one figure: learning rates, curvature in three modes, training at half the limit.

        Returns:
            The figure with its three panels; plots of one panel return its Axes, and ``.figure``
            is the figure of either.
        """
        from normscope.plots.learning_rate import comparison

        return comparison(self.to_xarray())

    def _table(self) -> Table:
        found = []
        for row in self.rows:
            numbers: dict[str, float | None] = {
                "curvature bound": row.advice.curvature_bound,
                "limit": row.advice.limit,
                "predicted": row.advice.predicted,
                **{f"λ {mode}": row.lambda_max[mode] for mode in MODES},
                "growth": row.growth,
                f"loss after {self.steps}": None if row.diverged else row.final_loss,
            }
            cells = {name: "-" if n is None else f"{n:.3g}" for name, n in numbers.items()}
            cells["limit"] += _mark(row)
            found.append({"norm": row.norm, **cells})
        return Table(found, self.headline, self.notes, numbers=[*found[0]][1:])


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _mark(row: Compared) -> str:
    """Return the mark of a limit that should not be trusted, or nothing."""
    return _MARK if row.is_unstable or not _is_enclosed(row.advice) else ""


def _is_known(row: Compared) -> bool:
    """Return whether the limit has two ends and the training at half of it was stable."""
    if row.is_unstable:
        return False
    is_predicted = row.advice.verification is None and row.advice.predicted is not None
    return is_predicted or _is_enclosed(row.advice)


def _is_enclosed(advice: Advice) -> bool:
    """Return whether the limit is between a rate that held and one that failed in short runs."""
    found = advice.verification
    return found is not None and found.ends[0] > 0 and math.isfinite(found.ends[1])


def _limit_note(row: Compared) -> str:
    found = row.advice.verification
    if found is None and row.advice.predicted is None:
        return f"{row.norm}: the limit is above this; no trial on a few samples was unstable."
    if found is None or _is_enclosed(row.advice):
        return ""
    if found.collapsed_first:
        return f"{row.norm}: the network collapsed at every rate tried; the limit is the lowest."
    if found.low == 0:
        return f"{row.norm}: no rate tried was stable; the limit is the lowest of them."
    if found.known_failure <= found.low:
        return f"{row.norm}: a run failed at {found.known_failure:.3g}, but most held up to this."
    return f"{row.norm}: no rate tried was unstable; the limit is the highest of them."


def _training_note(row: Compared, steps: int) -> str:
    if row.is_unstable:
        first, worst = row.losses[0], row.losses[:STEPS].max()
        rise = f"its loss rose to {worst:.3g}, {worst / first:.2g} times the first"
        done = "diverged" if row.diverged else f"was unstable ({rise})"
        # a verified limit is the median of several data orders
        whose = "" if row.advice.verification is None else " for this data order"
        return (
            f"{_MARK} {row.norm}: at half the limit the training {done}: the limit is too "
            f"high{whose}."
        )
    if row.diverged:  # after the steps in which an instability counts
        return f"{row.norm}: the training at half the limit diverged."
    if not row.is_guessing:
        return ""
    guess = row.guessing_loss or 0.0
    relation = "not below" if row.final_loss <= 1.05 * guess else "above"
    return (
        f"{row.norm}: after {steps} steps the loss, {row.final_loss:.3g}, is still {relation} that "
        f"of a constant output, {guess:.3g}."
    )


def _matrix_note(rows: Sequence[Compared]) -> str:
    """Return which matrix λ belongs to, if the rates do not follow from it."""
    rules = [row.advice.rule for row in rows if row.advice.curvature is not None]
    name = next((rule.name for rule in rules if not rule.is_exact), None)
    if name is None:
        return ""
    return (
        "λ is that of the loss alone; the curvature bound follows from the curvature over "
        f"{name}'s scale, the lambda_max of each advice, and not from λ."
    )
