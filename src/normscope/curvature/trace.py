"""The trace of a curvature matrix with its standard error."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from normscope.curvature.operator import CurvatureOperator, operator
from normscope.curvature.precision import without_autocast
from normscope.curvature.spaces import ParameterSpace, search_space
from normscope.errors import InputError
from normscope.interrupts import interrupt_safe
from normscope.problem.loss import Loss, WholeLoss
from normscope.problem.parameters import Parameters
from normscope.problem.problem import Data
from normscope.problem.sharded import gather_shards
from normscope.text import Rendered, Table
from normscope.validation import as_seed, check_integer

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FEWEST_PRODUCTS = 4


@dataclass(frozen=True, eq=False, repr=False)
class TraceEstimate(Rendered):
    """A trace in two parts.

    Args:
        captured: the trace on the sketched subspace, exact.
        remainders: independent estimates of the rest; empty if there is no rest.
        products: number of matvecs.
    """

    captured: float
    remainders: Tensor
    products: int

    @property
    def value(self) -> float:
        """The estimate of the trace."""
        return self.captured + (float(self.remainders.mean()) if len(self.remainders) else 0.0)

    @property
    def standard_error(self) -> float:
        """Of the value: the remainders' spread over the root of their number."""
        count = len(self.remainders)
        return float(self.remainders.std()) / count**0.5 if count else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return numbers by name."""
        names = ("value", "standard_error", "captured", "products")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, eq=False, repr=False)
class Trace(Rendered):
    """The trace of a curvature matrix.

    Args:
        estimate: the exact part and the estimates of the rest.
        seconds: wall-clock time of the whole call.
        parameters: rows of the matrix.
        batch_size: samples over which batch statistics were taken.
        samples: samples in all batches.
        kind: "ggn", "fisher", "hessian" or another name of `KINDS`.
        mode: "train", "frozen", "eval" or "as_is".
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
        """Return numbers and strings by name."""
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

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the estimate by each random vector, their mean and its standard error.

        Args:
            ax: where to draw; None for a new figure.

        Returns:
            The axes drawn on.
        """
        from normscope.plots.style import new_axes

        ax = new_axes(ax)
        single = (self.estimate.captured + self.estimate.remainders).tolist()
        ax.plot(range(1, len(single) + 1), single, "o")
        ax.axhline(self.value)
        low, high = self.value - self.standard_error, self.value + self.standard_error
        ax.axhspan(low, high, alpha=0.2)
        ax.set_xlabel("random vector")
        ax.set_ylabel(f"trace ({self.kind})")
        return ax

    def _table(self) -> Table:
        return Table(
            {"trace": f"{self.value:.6g} ± {self.standard_error:.2g}"},
            f"trace of the {self.kind}, mode {self.mode}, batch size {self.batch_size}",
            [f"{self.products} products, {self.seconds:.2f} s"],
        )


@interrupt_safe
@gather_shards
def trace(
    model: nn.Module,
    loss: Loss | WholeLoss | str | None,
    data: Data,
    kind: str = "ggn",
    mode: str = "train",
    products: int = 60,
    params: Parameters = None,
    seed: int = 0,
) -> Trace:
    """Estimate the trace of a curvature matrix by Hutch++; the model is left as it is.

    A third of the matvecs finds the directions of large curvature, a third takes the trace on
    them exactly, and a third estimates the rest, whose spread gives the standard error. If the
    matrix has no more rows (or the batch no more outputs) than there are matvecs, the trace is
    taken column by column.

    Args:
        model: any module whose parameters are on one device.
        loss: as for `operator`.
        data: as for `operator`.
        kind: "ggn", "fisher", "hessian" or another name of `KINDS`.
        mode: "train", "frozen", "eval" or "as_is".
        products: number of matvecs, at least 4; a third as many vectors are held in memory twice.
        params: names of parameters or modules, or parameters; None for all that are trainable.
        seed: of dropout, noise, the data's order and the random vectors.

    Returns:
        The value with its standard error.

    Raises:
        InputError: if there are too few matvecs.

    >>> batch = (torch.tensor([[3.0, 0.0], [0.0, 1.0]]), torch.zeros(2, 1))
    >>> found = trace(torch.nn.Linear(2, 1, bias=False), "squared_error", batch)
    >>> round(found.value, 4), found.standard_error  # x x^T / m
    (5.0, 0.0)
    """
    begin = time.perf_counter()
    check_integer("products", products)
    seed = as_seed(seed)
    if products < _FEWEST_PRODUCTS:
        raise InputError(f"products must be at least {_FEWEST_PRODUCTS}, got {products}.")
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


@without_autocast()
def _estimate(curvature: CurvatureOperator, products: int, seed: int) -> TraceEstimate:
    # the output space, if available, has the same trace and shorter vectors
    space = search_space(curvature, "largest", 1)
    wide = torch.promote_types(space.dtype, torch.float32)  # half precision is not orthogonal
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


def exact_trace(multiply: Callable[[Tensor], Tensor], like: Tensor) -> TraceEstimate:
    """Return the trace, column by column.

    Args:
        multiply: the matrix times a block of columns.
        like: a vector of the right size, dtype and device.

    Returns:
        The trace, without error.
    """
    size = len(like)
    image = multiply(torch.eye(size, dtype=like.dtype, device=like.device))
    return TraceEstimate(float(image.diagonal().double().sum()), torch.empty(0), size)


def hutch_plus_plus(
    multiply: Callable[[Tensor], Tensor], like: Tensor, products: int, seed: int
) -> TraceEstimate:
    r"""Return the trace: exact on a sketch of the range, estimated by random vectors elsewhere.

    .. math:: \operatorname{tr} A = \operatorname{tr}(Q^\top A Q)
        + \operatorname{E}\, z^\top A z, \qquad z = (I - Q Q^\top) g

    with Q an orthonormal basis of A S, and S and g random signs. A third of the matvecs is spent
    on Q, another third on the first term. With few large eigenvalues, as networks have, these are
    in the exact part, and the error falls like one over the matvecs rather than their root.
    (Meyer, Musco, Musco and Woodruff, 2021.)

    Notation: A = the matrix, Q = basis.

    Args:
        multiply: the matrix times a block of columns.
        like: a vector of the right size, dtype and device.
        products: number of matvecs, at least 4.
        seed: of the random signs.

    Returns:
        The estimate.
    """
    sketched = products // 3
    generator = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(multiply(_signs(like, sketched, generator))).Q
    captured = float((basis * multiply(basis)).sum(dtype=torch.float64))
    probes = _signs(like, products - 2 * sketched, generator)
    probes -= basis @ (basis.T @ probes)
    del basis
    remainders = (probes * multiply(probes)).sum(0, dtype=torch.float64)
    return TraceEstimate(captured, remainders.cpu(), products)


def _signs(like: Tensor, columns: int, generator: torch.Generator) -> Tensor:
    """Return columns of random signs; drawn on the CPU, so that all devices use the same."""
    drawn = torch.randint(2, (columns, len(like)), generator=generator, dtype=torch.int8)
    return (2 * drawn - 1).T.to(like.device, like.dtype)
