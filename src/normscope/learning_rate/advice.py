"""The answer: how large a learning rate, how sure, and why."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from normscope.learning_rate.advice_table import heading_of, rows_of
from normscope.learning_rate.explanation import explained
from normscope.learning_rate.prediction import Prediction
from normscope.learning_rate.rules import UpdateRule
from normscope.learning_rate.steepest import Curvature
from normscope.learning_rate.theory import Theory
from normscope.learning_rate.verified import Verification
from normscope.text import WIDTH, text_table, wrap

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from matplotlib.axes import Axes

__all__ = ["Advice"]

# Without verification: what most cases of benchmarks/learning_rate_accuracy.py are within.
_UNVERIFIED_FACTOR = 2.0


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


@dataclass(frozen=True, eq=False, repr=False)
class Advice:
    """The largest learning rate of a model, loss and data.

    Args:
        rule: of the optimizer.
        curvature: measured at the present weights.
        prediction: of the onset, before any run.
        mean_field: the theory's bound, from the architecture alone.
        verification: short runs; None if they were not asked for.
        invariant: names of the scale-invariant weights.
        batch_size: samples per step.
        seconds: wall-clock time of the whole.
        norms: kinds of normalization in the model.
        growth_limit: beyond this multiple of its first value the loss counts as unstable; None: not
            told.
    """

    rule: UpdateRule
    curvature: Curvature
    prediction: Prediction
    mean_field: Theory
    verification: Verification | None
    invariant: tuple[str, ...]
    batch_size: int
    seconds: float
    norms: tuple[str, ...] = ()
    growth_limit: float | None = None

    @property
    def bound(self) -> float:
        """2 (1 + momentum) / lambda_max: what the curvature says; less if a few steps broke it."""
        return self.curvature.bound(self.rule)

    @property
    def curvature_bound(self) -> float:
        """The bound; or below all rates at which a run failed, if one did below the bound."""
        found = self.verification
        return self.bound if found is None else found.lowered_bound(self.bound)

    @property
    def predicted(self) -> float:
        """The onset predicted, from the last layer or by a rehearsal on a few samples."""
        return self.prediction.rate

    @property
    def theory(self) -> float | None:
        """The theory's bound; None if it has none: ``mean_field.reason`` says why."""
        return self.mean_field.rate

    @property
    def verified(self) -> tuple[float, float] | None:
        """The largest stable and the smallest unstable learning rate of the short runs.

        By the definition of the onset: a net that died was stable.
        """
        return (
            None if self.verification is None else (self.verification.low, self.verification.high)
        )

    @property
    def limit(self) -> float:
        """The best estimate of the onset: verified, or else predicted; not below the bound.

        Below that no quadratic as steep as any met breaks: a lower prediction contradicts it. Where
        short runs died at rates below the onset, it is where they did.
        """
        if self.verification is not None:
            return self.verification.limit
        return max(self.predicted, self.curvature_bound)

    @property
    def recommended(self) -> float:
        """Half the limit, where a quadratic's steepest direction is solved in one step."""
        return self.limit / 2

    @property
    def interval(self) -> tuple[float, float]:
        """Where the limit, the median over orders of the data, may be on other batches.

        What the runs enclose, or else the limit with a factor of two either way, widened by how
        much the batches differ in curvature. A single order may break below it: the lowest rate at
        which one did is ``verification.lowest_failure``. It has no upper end if the curvature of
        some batch, but not of all, bounds nothing.
        """
        below, above = self._spread()
        if self.verification is None:
            return self.limit * below / _UNVERIFIED_FACTOR, self.limit * above * _UNVERIFIED_FACTOR
        low, high = self.verification.ends
        return low * below, high * above

    def _spread(self) -> tuple[float, float]:
        """By how much the bounds of the steepest and the flattest batch differ from the middle."""
        values = self.curvature.values
        curved = sorted(value for value in values if value > 0)
        if not curved:
            return 1.0, 1.0
        middle = curved[len(curved) // 2]
        above = middle / curved[0] if len(curved) == len(values) else math.inf
        return middle / curved[-1], above

    @property
    def shares(self) -> dict[str, float]:
        """How much of the steepest direction lies in each module."""
        return self.curvature.shares

    @property
    def explanation(self) -> str:
        """The number in words, and what would change it."""
        return explained(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and texts."""
        runs = () if self.verification is None else self.verification.trials
        return {
            "optimizer": self.rule.name,
            "momentum": self.rule.momentum,
            "nesterov": self.rule.nesterov,
            "weight_decay": self.rule.weight_decay,
            "exact": self.rule.is_exact,
            "batch_size": self.batch_size,
            "curvature_bound": self.curvature_bound,
            "bound": self.bound,
            "limit": self.limit,
            "recommended": self.recommended,
            "interval": list(self.interval),
            "predicted": self.predicted,
            "predicted_reason": self.prediction.reason,
            "theory": self.theory,
            "theory_reason": self.mean_field.reason,
            "theory_frozen": list(self.mean_field.frozen),
            "verified": None if self.verified is None else list(self.verified),
            "died_at": _finite(self.verification.fatal) if self.verification else None,
            "growth_limit": self.growth_limit,
            "verification_steps": None if self.verification is None else self.verification.steps,
            "trials": [vars(each) for each in runs],
            "lambda_max": list(self.curvature.values),
            "lambda_max_later": list(self.curvature.later),
            "lambda_max_beyond": self.curvature.beyond,
            "curvature": self.curvature.kind,
            "converged": self.curvature.converged,
            "shares": self.shares,
            "scale_invariant": list(self.invariant),
            "explanation": self.explanation,
            "seconds": self.seconds,
        }

    def to_dataframe(self) -> pd.DataFrame:
        """One row: the numbers and their reasons, without what is a list."""
        from normscope.results.frame import frame

        return frame([self.scalars()])

    def scalars(self) -> dict[str, Any]:
        """What `to_dict` has of one value each; of an interval its two ends."""
        values = self.to_dict()
        for name in ("interval", "verified"):
            low, high = values[name] or (None, None)
            values |= {f"{name}_low": low, f"{name}_high": high, name: []}
        values |= {"lambda_max": max(self.curvature.values), "runs": len(values["trials"])}
        return {name: each for name, each in values.items() if not isinstance(each, list | dict)}

    def to_xarray(self) -> xr.Dataset:
        """The runs with their rates and outcomes, the rates of the advice as attributes."""
        import xarray as xr

        runs = () if self.verification is None else self.verification.trials
        ramps = 0 if self.verification is None else self.verification.ramps
        columns = {
            name: ("run", [getattr(each, name) for each in runs])
            for name in ("rate", "unstable", "died", "steps", "worst", "order")
        }
        columns["is_ramp"] = ("run", [place < ramps for place in range(len(runs))])
        rates = {
            "curvature_bound": self.curvature_bound,
            "limit": self.limit,
            "recommended": self.recommended,
        }
        rates |= {"predicted": self.predicted, "theory": self.theory or math.nan}
        low, high = self.interval
        limits = {"low": low, "high": high, "growth_limit": self.growth_limit or math.nan}
        return xr.Dataset(columns, attrs={**rates, **limits})

    def plot(self, ax: Axes | None = None) -> Axes:
        """The learning rates on one logarithmic axis, with the runs that decided.

        Args:
            ax: where to draw; None for a new figure.

        Returns:
            The axes drawn on.
        """
        from normscope.plots.learning_rate import learning_rates

        return learning_rates(self.to_xarray(), ax)

    def text(self, width: int = WIDTH) -> str:
        """The table and its words.

        Args:
            width: in characters.

        Returns:
            Lines of that width at most.
        """
        table = text_table(rows_of(self), heading_of(self), numbers=("value",), width=width)
        return wrap(f"{table}\n\n{self.explanation}", width)

    def __str__(self) -> str:
        return self.text()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from normscope.results.notebook import table_html

        return table_html(rows_of(self), heading_of(self), self.explanation)
