"""`compare`: the same net under several normalizations, side by side."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from normscope.curvature import top_eigenvalue
from normscope.curvature.batch import Batch
from normscope.curvature.problem import Data, Problem, WholeLoss
from normscope.errors import InputError, NormscopeError, NormscopeWarning
from normscope.layers import convert
from normscope.learning_rate.advice import Advice
from normscope.learning_rate.advisor import max_learning_rate
from normscope.learning_rate.copies import Workbench
from normscope.learning_rate.gradient_growth import gradient_growth
from normscope.learning_rate.steepest import Tell
from normscope.text_table import text_table
from normscope.training import fit, sgd

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from normscope.losses import Loss

__all__ = ["Compared", "Comparison", "compare"]

MODES = ("train", "frozen", "eval")
_LAST = 10  # losses at the end that are averaged
_TITLE = "The same net under several normalizations"
_COLUMNS = ("norm", "safe", "limit", "by curvature", *(f"λ {mode}" for mode in MODES))


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
    """

    norm: str
    advice: Advice
    lambda_max: dict[str, float | None]
    growth: float | None
    losses: NDArray[np.float64]
    diverged: bool

    @property
    def final_loss(self) -> float:
        """The mean of the last ten losses; not a number after a divergence."""
        return math.nan if self.diverged else float(self.losses[-_LAST:].mean())

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and texts."""
        return {
            "norm": self.norm,
            "lambda_max": self.lambda_max,
            "gradient_growth": self.growth,
            "final_loss": self.final_loss,
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
        return {"steps": self.steps, "norms": [row.to_dict() for row in self.rows]}

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
            for name in ("safe", "limit", "recommended", "by_curvature")
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

    def __str__(self) -> str:
        return text_table(self._texts(), _TITLE, numbers=self._head()[1:])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from normscope.results.notebook import table_html

        return table_html(self._texts(), _TITLE)

    def _texts(self) -> list[dict[str, str]]:
        return [dict(zip(self._head(), self._cells(row), strict=True)) for row in self.rows]

    def _head(self) -> tuple[str, ...]:
        return (*_COLUMNS, "growth", f"loss after {self.steps}")

    @staticmethod
    def _cells(row: Compared) -> tuple[str, ...]:
        numbers = (
            row.advice.safe,
            row.advice.limit,
            row.advice.by_curvature,
            *(row.lambda_max[mode] for mode in MODES),
            row.growth,
            None if row.diverged else row.final_loss,
        )
        return (row.norm, *("-" if number is None else f"{number:.3g}" for number in numbers))


def compare(
    model: nn.Module,
    loss: Loss | WholeLoss | str,
    data: Data,
    norms: Sequence[str] = ("none", "batch", "layer"),
    *,
    momentum: float = 0.0,
    verify: bool = True,
    batch_size: int | None = None,
    steps: int = 200,
    seed: int = 0,
    progress: Tell = lambda text: None,
) -> Comparison:
    """Compare learning rates, curvature and training of a net under several normalizations.

    The nets have the weights of the model where they fit. The model itself stays as it is.

    Args:
        model: with norm layers, or places for them; see `normscope.layers.convert`.
        loss: as for `max_learning_rate`.
        data: as for `max_learning_rate`.
        norms: none, batch, noisy, l1, l2, linf, layer or group.
        momentum: of SGD.
        verify: whether short runs find the onset.
        batch_size: samples per step, drawn from data that is one batch.
        steps: of the training at half the limit.
        seed: of the order of the data, dropout and noise.
        progress: called with a text as each part begins.

    Returns:
        The comparison; it prints as a table, and ``plot()`` draws one figure.

    Raises:
        InputError: if there is nothing to compare.
    """
    if isinstance(norms, str) or not norms:
        raise InputError("norms must be a list of at least one kind, such as ['none', 'batch'].")
    if steps < 1:
        raise InputError(f"steps must be at least 1, got {steps}.")
    rows = []
    for norm in norms:
        problem = Problem(convert(model, to=norm), loss, data)
        advice = max_learning_rate(
            problem.model,
            problem.loss,
            data,
            momentum,
            verify,
            batch_size=batch_size,
            seed=seed,
            progress=_prefixed(progress, norm),
        )
        progress(f"{norm}: training at half the limit")
        rows.append(_compared(norm, problem, advice, momentum, batch_size, steps, seed))
    return Comparison(tuple(rows), steps)


def _prefixed(tell: Tell, norm: str) -> Tell:
    return lambda text: tell(f"{norm}: {text}")


def _compared(
    norm: str,
    problem: Problem,
    advice: Advice,
    momentum: float,
    batch_size: int | None,
    steps: int,
    seed: int,
) -> Compared:
    bench = Workbench(problem, sgd(advice.recommended, momentum), batch_size, seed)
    (batch,) = bench.batches(1)
    with bench.rehearsal() as (copied, optimizer):
        run = fit(copied, optimizer, steps, batch_size, seed)
    diverged = run.outcome.name == "DIVERGED"
    values = {mode: _eigenvalue(problem, batch, mode, seed) for mode in MODES}
    growth = gradient_growth(problem, batch, seed)
    return Compared(norm, advice, values, growth, run.losses, diverged)


def _eigenvalue(problem: Problem, batch: Batch, mode: str, seed: int) -> float | None:
    kind = "ggn" if problem.has_outputs else "hessian"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NormscopeWarning)
        try:
            return top_eigenvalue(
                problem.model, problem.loss, [batch], kind, mode, tol=0.01, seed=seed
            ).value
        except NormscopeError:  # a mode that a layer does not have
            return None
