"""The trace of a curvature matrix with its standard error."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from normscope.curvature.hutchinson import (
    FEWEST_PRODUCTS,
    TraceEstimate,
    exact_trace,
    hutch_plus_plus,
)
from normscope.curvature.operator import CurvatureOperator, operator
from normscope.curvature.spaces import ParameterSpace, search_space
from normscope.errors import InputError
from normscope.validation import check_integer

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from torch import nn

    from normscope.problem.loss import Loss, WholeLoss
    from normscope.problem.parameters import Parameters
    from normscope.problem.problem import Data

__all__ = ["Trace", "trace"]


@dataclass(frozen=True, eq=False, repr=False)
class Trace:
    """The trace of a curvature matrix.

    Args:
        estimate: the exact part and the estimates of the rest.
        seconds: wall-clock time of the whole call.
        parameters: rows of the matrix.
        batch_size: samples over which batch statistics were taken.
        samples: samples in all batches.
        kind: "fisher", "ggn" or "hessian".
        mode: "train", "frozen" or "eval".
    """

    estimate: TraceEstimate
    seconds: float
    parameters: int
    batch_size: int
    samples: int
    kind: str
    mode: str

    @property
    def value(self) -> float:
        """The estimate of the trace."""
        return self.estimate.value

    @property
    def standard_error(self) -> float:
        """Of the value; zero if the trace was taken column by column."""
        return self.estimate.standard_error

    @property
    def products(self) -> int:
        """Products with the matrix."""
        return self.estimate.products

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and texts."""
        return {
            "kind": self.kind,
            "mode": self.mode,
            "trace": self.value,
            "standard_error": self.standard_error,
            "products": self.products,
            "seconds": self.seconds,
            "parameters": self.parameters,
            "batch_size": self.batch_size,
            "samples": self.samples,
        }

    def to_dataframe(self) -> pd.DataFrame:
        """One row."""
        import pandas as pd

        return pd.DataFrame([self.to_dict()])

    def plot(self, ax: Axes | None = None) -> Axes:
        """The estimate of the trace by each random vector, their mean and its standard error.

        Args:
            ax: where to draw; None for a new figure.

        Returns:
            The axes drawn on.
        """
        from normscope.plots.style import new_figure

        ax = new_figure().subplots() if ax is None else ax
        single = (self.estimate.captured + self.estimate.remainders).tolist()
        ax.plot(range(1, len(single) + 1), single, "o")
        ax.axhline(self.value)
        low, high = self.value - self.standard_error, self.value + self.standard_error
        ax.axhspan(low, high, alpha=0.2)
        ax.set_xlabel("random vector")
        ax.set_ylabel(f"trace ({self.kind})")
        return ax

    def __str__(self) -> str:
        return (
            f"trace of the {self.kind}, mode {self.mode}, batch size {self.batch_size}\n"
            f"{self.value:.6g} ± {self.standard_error:.2g}\n"
            f"{self.products} products, {self.seconds:.2f} s"
        )

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from normscope.results.notebook import pairs_html

        heading, value, cost = str(self).splitlines()
        return pairs_html({"trace": value}, heading, cost)


def trace(
    model: nn.Module,
    loss: Loss | WholeLoss | str,
    data: Data,
    kind: str = "fisher",
    mode: str = "train",
    products: int = 60,
    params: Parameters = None,
    seed: int = 0,
) -> Trace:
    """Trace of a curvature matrix by Hutch++; the model is left as it is.

    A third of the products finds the directions of large curvature, a third takes the trace on
    them exactly, a third estimates the rest, whose spread is the standard error. If the matrix has
    no more rows than that, or its outputs are no more, the trace is taken column by column.

    Args:
        model: any module whose parameters are on one device.
        loss: as for `operator`.
        data: as for `operator`.
        kind: "fisher", "ggn" or "hessian".
        mode: "train", "frozen" or "eval".
        products: with the matrix, at least 4; a third as many vectors are held in memory twice.
        params: names of parameters or modules, or parameters; None for all that are trainable.
        seed: of dropout, noise, the data's order and the random vectors.

    Returns:
        The value with its standard error.

    Raises:
        InputError: if there are too few products.

    >>> batch = (torch.tensor([[3.0, 0.0], [0.0, 1.0]]), torch.zeros(2, 1))
    >>> found = trace(torch.nn.Linear(2, 1, bias=False), "squared_error", batch)
    >>> round(found.value, 4), found.standard_error  # x x^T / m
    (5.0, 0.0)
    """
    begin = time.perf_counter()
    check_integer("products", products)
    if products < FEWEST_PRODUCTS:
        raise InputError(f"products must be at least {FEWEST_PRODUCTS}, got {products}.")
    curvature = operator(model, loss, data, kind, mode, params, seed)
    return Trace(
        estimate=_estimate(curvature, products, seed),
        seconds=time.perf_counter() - begin,
        parameters=curvature.shape[0],
        batch_size=curvature.batch_size,
        samples=curvature.samples,
        kind=kind,
        mode=mode,
    )


def _estimate(curvature: CurvatureOperator, products: int, seed: int) -> TraceEstimate:
    # the space of the outputs, where there is one, has the same trace and shorter vectors
    space = search_space(curvature, "largest", 1)
    wide = torch.promote_types(space.dtype, torch.float32)  # a basis in half precision is none
    like = torch.empty(space.size, dtype=wide, device=space.device)

    def multiply(block: Tensor) -> Tensor:
        block = block.to(space.dtype)
        if isinstance(space, ParameterSpace):
            return curvature.matmat(block).to(wide)  # each batch's graph once for all columns
        columns = [space.times(column.contiguous()) for column in block.T]
        return torch.stack(columns, dim=1).to(wide)

    if space.size <= products:
        return exact_trace(multiply, like)
    return hutch_plus_plus(multiply, like, products, seed)
