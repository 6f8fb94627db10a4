"""The answer: how large a learning rate, how sure, and why."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from normscope.learning_rate.by_curvature import Prediction
from normscope.learning_rate.explanation import explained
from normscope.learning_rate.rules import UpdateRule
from normscope.learning_rate.steepest import Curvature
from normscope.learning_rate.theory import Theory
from normscope.learning_rate.verification import Verification
from normscope.text_table import text_table

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes

__all__ = ["Advice"]

# Without verification: nine of ten cases of benchmarks/learning_rate_accuracy.py are within.
_UNVERIFIED_FACTOR = 2.0
_SHOWN_LAYERS = 5


@dataclass(frozen=True, eq=False, repr=False)
class Advice:
    """The largest learning rate of a model, loss and data.

    Args:
        rule: of the optimizer.
        curvature: measured at the present weights.
        prediction: of the onset, without training.
        theory: from the architecture alone.
        verification: short runs; None if they were not asked for.
        invariant: names of the scale-invariant weights.
        batch_size: samples per step.
        seconds: wall-clock time of the whole.
        norms: kinds of normalization in the model.
    """

    rule: UpdateRule
    curvature: Curvature
    prediction: Prediction
    theory: Theory
    verification: Verification | None
    invariant: tuple[str, ...]
    batch_size: int
    seconds: float
    norms: tuple[str, ...] = ()

    @property
    def bound(self) -> float:
        """2 (1 + momentum) / lambda_max: what the measured curvature alone says."""
        return self.rule.largest_stable_rate(self.curvature.binding)

    @property
    def safe(self) -> float:
        """The bound; if a run was unstable below it, the largest stable rate below that run."""
        found = self.verification
        if found is None or found.high >= self.bound:
            return self.bound
        return found.low or found.high / 2

    @property
    def by_curvature(self) -> float:
        """The predicted onset, without training."""
        return self.prediction.rate

    @property
    def by_theory(self) -> float | None:
        """The theory's bound; None if it has none: ``theory.reason`` says why."""
        return self.theory.rate

    @property
    def verified(self) -> tuple[float, float] | None:
        """The largest stable and the smallest unstable learning rate of the short runs."""
        return (
            None if self.verification is None else (self.verification.low, self.verification.high)
        )

    @property
    def limit(self) -> float:
        """The best estimate of the onset: verified, or else by curvature."""
        return self.by_curvature if self.verification is None else self.verification.onset

    @property
    def recommended(self) -> float:
        """Half the limit, where a quadratic's steepest direction is solved in one step."""
        return self.limit / 2

    @property
    def interval(self) -> tuple[float, float]:
        """Where the onset may be, over batches and orders of the data."""
        values = self.curvature.values
        middle = sorted(values)[len(values) // 2]
        below, above = middle / max(values), middle / min(values)
        if self.verification is None:
            return self.limit * below / _UNVERIFIED_FACTOR, self.limit * above * _UNVERIFIED_FACTOR
        return self.verification.low * below, self.verification.high * above

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
            "safe": self.safe,
            "bound": self.bound,
            "limit": self.limit,
            "recommended": self.recommended,
            "interval": list(self.interval),
            "by_curvature": self.by_curvature,
            "by_curvature_reason": self.prediction.reason,
            "by_theory": self.by_theory,
            "by_theory_reason": self.theory.reason,
            "verified": None if self.verified is None else list(self.verified),
            "verification_steps": None if self.verification is None else self.verification.steps,
            "trials": [vars(each) for each in runs],
            "lambda_max": list(self.curvature.values),
            "lambda_max_later": list(self.curvature.later),
            "curvature": self.curvature.kind,
            "converged": self.curvature.converged,
            "shares": self.shares,
            "scale_invariant": list(self.invariant),
            "explanation": self.explanation,
            "seconds": self.seconds,
        }

    def to_xarray(self) -> xr.Dataset:
        """The runs with their rates and outcomes, the rates of the advice as attributes."""
        import xarray as xr

        runs = () if self.verification is None else self.verification.trials
        ramps = 0 if self.verification is None else self.verification.ramps
        columns = {
            name: ("run", [getattr(each, name) for each in runs])
            for name in ("rate", "unstable", "steps", "worst", "order")
        }
        columns["is_ramp"] = ("run", [place < ramps for place in range(len(runs))])
        rates = {"safe": self.safe, "limit": self.limit, "recommended": self.recommended}
        rates |= {"by_curvature": self.by_curvature, "by_theory": self.by_theory or math.nan}
        low, high = self.interval
        return xr.Dataset(columns, attrs={**rates, "low": low, "high": high})

    def plot(self, ax: Axes | None = None) -> Axes:
        """The learning rates on one logarithmic axis, with the runs that decided.

        Args:
            ax: where to draw; None for a new figure.

        Returns:
            The axes drawn on.
        """
        from normscope.plots.learning_rate import learning_rates

        return learning_rates(self.to_xarray(), ax)

    def __str__(self) -> str:
        table = text_table(self._rows(), self._heading(), numbers=("value",))
        return f"{table}\n\n{self.explanation}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from normscope.results.notebook import table_html

        return table_html(self._rows(), self._heading(), self.explanation)

    def _heading(self) -> str:
        momentum = f", momentum {self.rule.momentum:g}" if self.rule.momentum else ""
        nesterov = " (Nesterov)" if self.rule.nesterov else ""
        kind = "" if self.rule.is_exact else ", an estimate"
        return (
            f"Learning rate for {self.rule.name}{momentum}{nesterov}, batch size "
            f"{self.batch_size}{kind}"
        )

    def _rows(self) -> list[dict[str, str | None]]:
        """Quantity, value and remark."""
        low, high = self.interval
        above = f"{high:.3g}" if math.isfinite(high) else "no end found"
        found = self.verification
        rows: list[tuple[str, str | None, str]] = [
            ("recommended", f"{self.recommended:.3g}", "half the limit"),
            ("limit", f"{self.limit:.3g}", f"{low:.3g} to {above}"),
            ("safe", f"{self.safe:.3g}", self._safe_remark()),
            ("by curvature", f"{self.by_curvature:.3g}", self.prediction.reason),
            ("by theory", _rate(self.by_theory), self._theory_remark()),
            ("verified", _rate(None if found is None else found.low), self._verified_remark()),
            ("lambda_max", f"{max(self.curvature.values):.4g}", self._curvature_remark()),
        ]
        largest = list(self.shares.items())[:_SHOWN_LAYERS]
        parts = [f"{name or 'model'} {share:.0%}" for name, share in largest if share >= 0.005]
        rows.append(("steepest in", "", ", ".join(parts)))
        return [dict(zip(("quantity", "value", "remark"), row, strict=True)) for row in rows]

    def _safe_remark(self) -> str:
        if self.safe < self.bound:
            return "lowered to a stable run: the curvature alone allows more"
        return "the steepest curvature met is trained stably below it"

    def _theory_remark(self) -> str:
        found = self.theory
        if found.rate is None:
            return f"none: {found.reason}"
        if found.fisher is None or found.factor is None:
            return ""
        return (
            f"lambda_max predicted {found.fisher * found.factor:.4g}: {found.fisher:.4g} of the "
            f"Fisher matrix times {found.factor:.3g} for this loss, weights alone"
        )

    def _curvature_remark(self) -> str:
        values = ", ".join(f"{value:.4g}" for value in self.curvature.values)
        matrix = {"ggn": "Gauss-Newton matrix"}.get(self.curvature.kind, "Hessian")
        scaled = "" if self.rule.is_exact else f" over {self.rule.name}'s scale"
        return f"measured: {matrix} of the loss{scaled}, all parameters; by batch {values}"

    def _verified_remark(self) -> str:
        found = self.verification
        if found is None:
            return "not asked for"
        above = "no instability found" if math.isinf(found.high) else f"{found.high:.3g} unstable"
        return f"stable, {above}; {len(found.trials)} runs, {found.steps} steps"


def _rate(value: float | None) -> str | None:
    return None if value is None else f"{value:.3g}"
