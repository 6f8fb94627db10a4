"""`Advice`: how large a learning rate, how certain, and why."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from normscope.errors import StateError
from normscope.learning_rate.bound import MeasuredCurvature
from normscope.learning_rate.choice import Choice
from normscope.learning_rate.explanation import explain
from normscope.learning_rate.learning_check import LearningCheck
from normscope.learning_rate.prediction import LimitPrediction, MeanFieldBound
from normscope.learning_rate.summary import summary_lines, table_rows, table_title
from normscope.learning_rate.thresholds import (
    CAUTIOUS_SHARE,
    CHOICE_DIVISOR,
    LARGEST_SHARE,
    MOMENTUM_SHARE,
    STRONG_MOMENTUM,
    UNHELD_SHARE,
)
from normscope.learning_rate.update_rule import UpdateRule
from normscope.learning_rate.verification import Verification
from normscope.text import WIDTH, Rendered, Table, wrap

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from matplotlib.axes import Axes


@dataclass(frozen=True, eq=False, repr=False)
class Advice(Rendered):
    """The largest learning rate of a model, loss and data.

    Args:
        rule: of the optimizer.
        curvature: at the current weights and after the first steps; None if it is not known, for
            the reason in ``curvature_reason``.
        prediction: of the limit, before any run; None if there is none, for the reason in
            ``prediction_reason``.
        mean_field: the bound of the theory, from the architecture alone.
        verification: short runs; None without ``verify``.
        batch_size: samples per step.
        seconds: wall-clock time.
        invariant: names of the scale-invariant weights; None if they were not looked for, which
            takes ``effort="thorough"`` or ``verify=False``.
        norms: kinds of normalization in the model, without the layers in ``held``.
        growth_limit: multiple of its first value beyond which the loss counts as unstable; None if
            not known.
        scaled_layer: name of the last layer if its inputs are proportional to the gamma of the last
            norm layer, else None.
        mode: how batch statistics and dropout were treated: "train", "frozen", "eval" or "as_is".
        held: names of the norm layers that used their running statistics.
        calibrated: whether the loss is one on which prediction and threshold were calibrated.
        hooked: whether hooks on parameters or modules change or observe gradients.
        curvature_reason: why there is no curvature, in a few words.
        prediction_reason: why there is no prediction, in a few words.
        effort: "quick", "default" or "thorough".
        objective: of the recommended rate: "fastest", "half_limit" or, for few runs, "cautious".
        group_rates: learning rate of every parameter group over that of the fastest one, whose rate
            all rates of the advice are.
        notes: sentences about the groups, the schedule, clipping and accumulation.
        choice: the rate that trains best; None unless the objective is "fastest".
        check: a run at the recommended rate, made if weights shrink much in the shorter ones.
        has_second_moment: whether the optimizer divides its steps by a mean squared gradient, as
            Adam and similar ones do, also if its rule is not known.
        guess: rate from which the runs looked for the limit: the prediction, the curvature bound,
            or that of a first step; None without runs.
    """

    rule: UpdateRule
    curvature: MeasuredCurvature | None
    prediction: LimitPrediction | None
    mean_field: MeanFieldBound
    verification: Verification | None
    batch_size: int
    seconds: float
    invariant: tuple[str, ...] | None = None
    norms: tuple[str, ...] = ()
    growth_limit: float | None = None
    scaled_layer: str | None = None
    mode: str = "train"
    held: tuple[str, ...] = ()
    calibrated: bool = True
    hooked: bool = False
    curvature_reason: str = ""
    prediction_reason: str = ""
    effort: str = "thorough"
    objective: str = "half_limit"
    group_rates: tuple[float, ...] = (1.0,)
    notes: tuple[str, ...] = ()
    choice: Choice | None = None
    check: LearningCheck | None = None
    has_second_moment: bool = False
    guess: float | None = None

    def __post_init__(self) -> None:
        if self.verification is None and self.prediction is None:
            raise StateError(
                "there is no learning rate to advise: the limit cannot be predicted "
                f"({self.prediction_reason or 'no prediction was made'}), and no run has verified "
                "it; use verify=True."
            )

    @property
    def bound(self) -> float | None:
        """2 (1 + momentum) / lambda_max; less if a few steps at that rate were unstable.

        None if the curvature is not known, see ``curvature_reason``.
        """
        return None if self.curvature is None else self.curvature.bound(self.rule)

    @property
    def curvature_bound(self) -> float | None:
        """The bound, lowered if a run failed below it or the prediction contradicts it.

        None if there is none.
        """
        bound = self.bound
        for each in (self.prediction, self.verification):
            if bound is not None and each is not None:
                bound = each.lowered_bound(bound)
        return bound

    @property
    def predicted(self) -> float | None:
        """The predicted limit, from the last layer or from trial runs on a few samples.

        None if there is no prediction, see ``prediction_reason``, and if no trial run was unstable:
        ``prediction.rate`` is then below the limit by an unknown factor.
        """
        if self.prediction is None or self.prediction.is_lower_end:
            return None
        return self.prediction.rate

    @property
    def theory(self) -> float | None:
        """The mean-field bound; None if there is none, see ``mean_field.reason``."""
        return self.mean_field.rate

    @property
    def verified(self) -> tuple[float, float] | None:
        """The largest stable and the smallest unstable learning rate of the short runs.

        By the definition of `is_unstable`: a network that collapsed was stable.
        """
        return (
            None if self.verification is None else (self.verification.low, self.verification.high)
        )

    @property
    def limit(self) -> float:
        """The best estimate of the stability limit: verified, or else predicted.

        A prediction below the curvature bound is raised to it. If runs collapsed at rates below
        the unstable ones, the limit is where they did.
        """
        if self.verification is not None:
            return self.verification.limit
        assert self.prediction is not None  # checked when the advice is made
        return max(self.prediction.rate, self.curvature_bound or 0.0)

    @property
    def recommended(self) -> float:
        """The rate that trains best in short runs, or half the limit, by the objective.

        Half the limit solves a quadratic's top direction in one step. After few runs, or if all
        trials failed: `cautious_share` of the limit, of the prediction if no run was unstable, and
        at most the lower end of the interval; a twentieth of the limit if no rate held, and with a
        second moment a tenth of that. With a second moment the verified limit may be 40 times the
        predicted one: `guess` takes its place if that is lower.
        """
        if self.choice is not None:
            return self.choice.rate
        if self.objective == "half_limit" or self.verification is None:
            return self.limit / 2
        low, high = self.verification.interval
        limit = self.limit
        if self.has_second_moment and self.guess is not None:
            limit = min(limit, self.guess)
        if not low:
            share = 1 / CHOICE_DIVISOR if self.has_second_moment else LARGEST_SHARE
            return limit * share * UNHELD_SHARE
        if math.isinf(high) and self.prediction is not None:
            limit = min(limit, self.prediction.rate)  # a few steps that held do not refute it
        return min(limit * self.cautious_share, low)

    @property
    def cautious_share(self) -> float:
        """Share of the limit to take where no trials have compared rates.

        A third; a tenth with momentum of at least 0.5 or an optimizer whose rule is not known; a
        twentieth with a second moment.
        """
        if self.has_second_moment:
            return 1 / CHOICE_DIVISOR
        is_moving = self.rule.momentum >= STRONG_MOMENTUM or self.rule.unknown is not None
        return MOMENTUM_SHARE if is_moving else CAUTIOUS_SHARE

    def rates(self) -> tuple[float, ...]:
        """Return the recommended learning rate of every parameter group, in the optimizer's order.

        With a schedule these are the rates before it.
        """
        return tuple(self.recommended * relative for relative in self.group_rates)

    @property
    def interval(self) -> tuple[float, float]:
        """Where the limit, the median over data orders, may be on other batches.

        The rates that the runs enclose, or the limit with the factor of its prediction either way;
        widened by how much the batches differ in curvature. No run failed below its lower end. The
        upper end is infinite if some batches, but not all,
        have no positive curvature; for a prediction if no trial run was unstable; and for one with
        a second moment: it is where the loss first exceeds its multiple, from which most losses
        come back.
        """
        below, above = self._batch_spread()
        if self.verification is None:
            assert self.prediction is not None  # checked when the advice is made
            factor = self.prediction.factor
            is_open = self.has_second_moment or self.prediction.is_lower_end
            high = math.inf if is_open else self.limit * above * factor
            return self.limit * below / factor, high
        low, high = self.verification.interval
        return low * below, high * above

    def _batch_spread(self) -> tuple[float, float]:
        """Return the median curvature of the batches over the largest, and over the smallest."""
        values = self.curvature.values if self.curvature is not None else ()
        curved = sorted(value for value in values if value > 0)
        if not curved:
            return 1.0, 1.0
        middle = curved[len(curved) // 2]
        above = middle / curved[0] if len(curved) == len(values) else math.inf
        return middle / curved[-1], above

    @property
    def shares(self) -> dict[str, float]:
        """Squared length of the top eigenvector in each module; empty if it is not known."""
        return {} if self.curvature is None else self.curvature.shares

    @property
    def explanation(self) -> str:
        """The numbers in words, and what would change them."""
        return explain(self)

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers and strings."""
        found, curvature = self.verification, self.curvature
        collapse = math.inf if found is None else found.lowest_collapse
        return {
            "optimizer": self.rule.name,
            "momentum": self.rule.momentum,
            "nesterov": self.rule.nesterov,
            "weight_decay": self.rule.weight_decay,
            "exact": self.rule.is_exact,
            "effort": self.effort,
            "objective": self.objective,
            "batch_size": self.batch_size,
            "mode": self.mode,
            "curvature_bound": self.curvature_bound,
            "bound": self.bound,
            "limit": self.limit,
            "recommended": self.recommended,
            "group_rates": list(self.group_rates),
            "notes": list(self.notes),
            "interval": list(self.interval),
            "predicted": self.predicted,
            "predicted_reason": _reason(self.prediction, self.prediction_reason),
            "theory": self.theory,
            "theory_reason": self.mean_field.reason,
            "theory_frozen": list(self.mean_field.frozen),
            "verified": None if self.verified is None else list(self.verified),
            "died_at": collapse if math.isfinite(collapse) else None,
            "growth_limit": self.growth_limit,
            "verification_steps": None if found is None else found.steps,
            "choice": None if self.choice is None else self.choice.to_dict(),
            "check": None if self.check is None else self.check.to_dict(),
            "trials": [each.summary() for each in (found.all_runs if found else ())],
            "lambda_max": [] if curvature is None else list(curvature.values),
            "lambda_max_later": [] if curvature is None else list(curvature.later),
            "lambda_max_beyond": None if curvature is None else curvature.beyond,
            "curvature": None if curvature is None else curvature.kind,
            "curvature_reason": self.curvature_reason,
            "converged": None if curvature is None else curvature.converged,
            "shares": self.shares,
            "scale_invariant": None if self.invariant is None else list(self.invariant),
            "explanation": self.explanation,
            "seconds": self.seconds,
        }

    def to_dataframe(self) -> pd.DataFrame:
        """Return one row: the numbers and their reasons, without lists."""
        import pandas as pd

        return pd.DataFrame([self.scalars()])

    def scalars(self) -> dict[str, Any]:
        """Return the scalars of `to_dict`, and the two ends of each interval."""
        values = self.to_dict()
        for name in ("interval", "verified"):
            low, high = values[name] or (None, None)
            values |= {f"{name}_low": low, f"{name}_high": high, name: []}
        largest = max(values["lambda_max"], default=None)
        values |= {"lambda_max": largest, "runs": len(values["trials"])}
        return {name: each for name, each in values.items() if not isinstance(each, list | dict)}

    def to_xarray(self) -> xr.Dataset:
        """Return the runs with their rates and outcomes, the rates of the advice as attributes."""
        import xarray as xr

        runs = () if self.verification is None else self.verification.all_runs
        ramps = 0 if self.verification is None else self.verification.ramps
        columns = {
            name: ("run", [getattr(each, name) for each in runs])
            for name in ("rate", "unstable", "died", "steps", "worst", "order")
        }
        columns["is_ramp"] = ("run", [number < ramps for number in range(len(runs))])
        names = ("curvature_bound", "limit", "recommended", "predicted", "theory", "growth_limit")
        low, high = self.interval
        attributes = {name: getattr(self, name) or math.nan for name in names}
        return xr.Dataset(columns, attrs={**attributes, "low": low, "high": high})

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the learning rates on one logarithmic axis, with the runs.

        Args:
            ax: where to draw; None for a new figure.

        Returns:
            The axes drawn on.
        """
        from normscope.plots.learning_rate import learning_rates

        return learning_rates(self.to_xarray(), ax)

    def text(self, width: int = WIDTH) -> str:
        """Return the answer in three lines of up to 80 columns, and the notes if there are any."""
        return "\n".join(_fit(line, width) for line in summary_lines(self))

    def details(self, width: int = WIDTH) -> str:
        """Return all numbers as a table, and the explanation.

        Args:
            width: of the lines, in columns.
        """
        return self._table().text(width)

    def _repr_html_(self) -> str:
        lines = "<br>".join(escape(line) for line in summary_lines(self))
        return (
            f'<div style="white-space:pre-wrap;font-family:monospace">{lines}</div>'
            f"<details><summary>details</summary>{self._table().html()}</details>"
        )

    def _table(self) -> Table:
        return Table(table_rows(self), table_title(self), [self.explanation], numbers=("value",))


def _fit(line: str, width: int) -> str:
    return line if len(line) <= width else wrap(" ".join(line.split()), width)


def _reason(prediction: LimitPrediction | None, without: str) -> str:
    """Return how the prediction was found, or why there is none."""
    return without if prediction is None else prediction.reason
