"""How the top eigenvalue depends on the batch size, on the same samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

from normscope.curvature.top_eigenvalue import TopEigenvalue, top_eigenvalue
from normscope.errors import InputError
from normscope.interrupts import interrupt_safe
from normscope.problem.batch import join_batches, sample_count, split_batch
from normscope.problem.isolation import RandomGenerators
from normscope.problem.loss import Loss, WholeLoss
from normscope.problem.parameters import Parameters
from normscope.problem.problem import Data, Problem
from normscope.problem.sharded import gather_shards
from normscope.text import Rendered, Table, integer_if_whole
from normscope.validation import as_seed

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_SMALLEST_DEFAULT = 4
_LONGEST_DEFAULT = 5


@dataclass(frozen=True, eq=False, repr=False)
class BatchSizeEffect(Rendered):
    """The top eigenvalue of the same samples in batches of several sizes.

    Args:
        results: one for each batch size, in the requested order; ``batch_size`` of each is the
            number of samples in its largest batch.
    """

    results: tuple[TopEigenvalue, ...]

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """The batch size of each result."""
        return tuple(result.batch_size for result in self.results)

    @property
    def values(self) -> tuple[float, ...]:
        """The top eigenvalue at each batch size."""
        return tuple(result.value for result in self.results)

    @property
    def converged(self) -> bool:
        """Whether every value is within its tolerance."""
        return all(result.converged for result in self.results)

    def to_dict(self) -> dict[str, Any]:
        """Return numbers and strings by name."""
        first = self.results[0]
        return {
            "kind": first.kind,
            "mode": first.mode,
            "samples": first.samples,
            "rows": [
                {
                    "batch_size": result.batch_size,
                    "batches": -(-result.samples // result.batch_size),
                    "eigenvalue": result.value,
                    "residual": result.residual,
                    "converged": result.converged,
                    "matvecs": integer_if_whole(result.matvecs),
                    "seconds": result.seconds,
                }
                for result in self.results
            ],
        }

    def to_dataframe(self) -> pd.DataFrame:
        """Return one row per batch size."""
        import pandas as pd

        columns = self.to_dict()
        return pd.DataFrame(columns.pop("rows")).assign(**columns)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the top eigenvalue against the batch size.

        Args:
            ax: where to draw; None for a new figure.

        Returns:
            The axes drawn on.
        """
        from normscope.plots.axes import logarithmic_axis
        from normscope.plots.style import new_axes

        ax = new_axes(ax)
        errors = [result.residual * abs(result.value) for result in self.results]
        ax.errorbar(self.batch_sizes, self.values, yerr=errors, fmt="o-", capsize=3)
        logarithmic_axis(ax, "x", base=2)
        ax.set_xlabel("batch size")
        ax.set_ylabel(f"top eigenvalue ({self.results[0].kind})")
        ax.set_title(self._table().title)
        return ax

    def _table(self) -> Table:
        rows = [
            {
                "batch size": row["batch_size"],
                "batches": row["batches"],
                "eigenvalue": f"{row['eigenvalue']:.6g}",
                "rel. residual": f"{row['residual']:.1e}",
                **({} if self.converged else {"": "" if row["converged"] else "NOT CONVERGED"}),
            }
            for row in self.to_dict()["rows"]
        ]
        first = self.results[0]
        title = f"{first.kind}, mode {first.mode}, the same {first.samples} samples in batches"
        return Table(rows, title, numbers=("eigenvalue", "rel. residual"))


@interrupt_safe
@gather_shards
def batch_size_effect(
    model: nn.Module,
    loss: Loss | WholeLoss | str | None,
    data: Data,
    batch_sizes: Sequence[int] | None = None,
    kind: str = "ggn",
    mode: str = "train",
    tol: float = 1e-3,
    max_products: int | None = None,
    params: Parameters = None,
    seed: int = 0,
) -> BatchSizeEffect:
    """Measure the top eigenvalue of the mean curvature for batches of several sizes.

    With batch statistics the function depends on the batch size, and so does its curvature.
    Without such layers, or in eval mode, all values are the same.

    Args:
        model: any module whose parameters are on one device.
        loss: as for `operator`.
        data: as for `operator`. Several batches are joined in memory, and the samples then split
            in order: shuffle data that is sorted by class.
        batch_sizes: most samples in a batch. The samples are divided evenly, with none left over:
            10 samples in batches of at most 4 make 3, 3 and 4. None: all samples, half of them,
            and so on for up to four halvings, not below 4.
        kind: "ggn", "fisher", "hessian" or another name of `KINDS`.
        mode: "train", "frozen", "eval" or "as_is".
        tol: as for `top_eigenvalue`.
        max_products: as for `top_eigenvalue`, for each batch size.
        params: names of parameters or modules, or parameters; None for all that are trainable.
        seed: of dropout, noise and the start.

    Returns:
        One result for each batch size.

    >>> import torch
    >>> layer = torch.nn.BatchNorm1d(1, eps=1.0)
    >>> batch = (torch.tensor([[0.0], [1.0], [2.0], [9.0]]), torch.zeros(4, 1))
    >>> effect = batch_size_effect(layer, "squared_error", batch, [4, 2], params="weight")
    >>> effect.batch_sizes, [round(value, 3) for value in effect.values]  # mean of var / (var + 1)
    ((4, 2), [0.926, 0.562])
    """
    seed = as_seed(seed)
    problem = Problem(model, loss, data)
    with RandomGenerators(problem.device, problem.data).preserved(seed):
        batches = list(problem.batches())
    for batch in batches:
        sample_count(batch)  # raises for rows that are not samples
    whole = join_batches(batches)
    sizes = _halvings(sample_count(whole)) if batch_sizes is None else list(batch_sizes)
    _check(sizes, sample_count(whole))
    return BatchSizeEffect(
        tuple(
            top_eigenvalue(
                model,
                loss,
                split_batch(whole, size),
                kind=kind,
                mode=mode,
                tol=tol,
                max_products=max_products,
                params=params,
                seed=seed,
            )
            for size in sizes
        )
    )


def _halvings(samples: int) -> list[int]:
    sizes = [samples >> times for times in range(_LONGEST_DEFAULT)]
    return [size for size in sizes if size >= _SMALLEST_DEFAULT] or [samples]


def _check(sizes: list[int], samples: int) -> None:
    if not sizes:
        raise InputError("batch_sizes is empty; give at least one size.")
    for size in sizes:
        if not 1 <= size <= samples:
            raise InputError(f"a batch size must be from 1 to the {samples} samples, got {size}.")
