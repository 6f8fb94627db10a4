"""The largest eigenvalues of a network's curvature, with residuals."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from normscope.curvature.eigensolver import (
    ROUNDING,
    STOPS,
    VALUE_RESIDUAL,
    Found,
    Request,
    search,
    start_block,
)
from normscope.curvature.kinds import matrix_name
from normscope.curvature.lanczos import WHICH
from normscope.curvature.operator import CurvatureOperator, unchecked_operator
from normscope.curvature.precision import without_autocast
from normscope.curvature.spaces import ParameterSpace, SearchSpace, search_space
from normscope.curvature.warm_start import warm_start
from normscope.errors import ArgumentTypeError, InputError
from normscope.interrupts import interrupt_safe
from normscope.problem.loss import Loss, WholeLoss
from normscope.problem.parameters import Parameters
from normscope.problem.problem import Data
from normscope.problem.sharded import gather_shards
from normscope.progress import ProgressOption, callback_of
from normscope.progress_bar import shows_progress
from normscope.registry import unknown_name
from normscope.text import Rendered, Table, integer_if_whole
from normscope.validation import as_seed, check_bool, check_integer, check_number
from normscope.warn import warn

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_PRECISIONS = {
    torch.float64: "double",
    torch.float32: "single",
    torch.float16: "half",
    torch.bfloat16: "half",
}
_ENDS = {"both": "outermost", "magnitude": "dominant"}  # in a sentence


@dataclass(frozen=True, eq=False, repr=False)
class TopEigenvalue(Rendered):
    """Extreme eigenvalues of a curvature matrix.

    Args:
        values: float64 on the CPU, the most wanted first; for "both" the largest, descending, then
            the smallest, ascending.
        vectors: (size, values), one eigenvector of length one in each column; (size, 0) if not
            requested.
        residuals: the norm of A v - theta v over the magnitude of theta, for each. The magnitude is
            taken as at least what rounding lets ``tolerance`` resolve, 32 units of rounding times
            the largest eigenvalue over ``tolerance``.
        errors: estimated relative error of each value: the square of the residual over the gap to
            the other eigenvalues found; where the gap is not reliable, twice the residual or, if it
            is less, what the last three products added to the value.
        tolerance: on the residuals (or on the errors, for ``stop="value"``).
        converged: whether they are within it.
        matvecs: with the whole operator; one with a part of the data counts as that part.
            Building the graphs is not counted.
        seconds: wall-clock time of the whole call.
        batch_size: samples over which batch statistics were taken.
        samples: samples in all batches.
        kind: "ggn", "fisher", "hessian" or another name of `KINDS`.
        mode: "train", "frozen", "eval" or "as_is".
        which: "largest", "smallest", "both" or "magnitude".
    """

    values: Tensor
    vectors: Tensor
    residuals: Tensor
    errors: Tensor
    tolerance: float
    converged: bool
    matvecs: float
    seconds: float
    batch_size: int
    samples: int
    kind: str
    mode: str
    which: str

    @property
    def value(self) -> float:
        """The most wanted eigenvalue."""
        return float(self.values[0])

    @property
    def residual(self) -> float:
        """The largest relative residual."""
        return float(self.residuals.max())

    def to_dict(self) -> dict[str, Any]:
        """Return numbers and strings by name, without the vectors."""
        return {
            "kind": self.kind,
            "mode": self.mode,
            "which": self.which,
            "values": self.values.tolist(),
            "residuals": self.residuals.tolist(),
            "errors": self.errors.tolist(),
            "tolerance": self.tolerance,
            "converged": self.converged,
            "matvecs": integer_if_whole(self.matvecs),
            "seconds": self.seconds,
            "batch_size": self.batch_size,
            "samples": self.samples,
        }

    def to_dataframe(self) -> pd.DataFrame:
        """Return one row per eigenvalue."""
        lists = {"values": "value", "residuals": "residual", "errors": "error"}
        frame = super().to_dataframe().explode(list(lists), ignore_index=True)
        return frame.rename(columns=lists).astype(dict.fromkeys(lists.values(), float))

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the eigenvalues against their rank, with the residuals as error bars.

        Args:
            ax: where to draw; None for a new figure.

        Returns:
            The axes drawn on.
        """
        from normscope.plots.style import new_axes

        ax = new_axes(ax)
        ranks = range(1, len(self.values) + 1)
        errors = (self.residuals * self.values.abs()).tolist()
        ax.errorbar(ranks, self.values.tolist(), yerr=errors, fmt="o", capsize=3)
        ax.set_xlabel("rank")
        ax.set_ylabel(f"eigenvalue of the {matrix_name(self.kind)}")
        ax.set_title(self._table().title)
        return ax

    def _table(self) -> Table:
        pairs = zip(self.values.tolist(), self.residuals.tolist(), strict=True)
        rows = [{"eigenvalue": f"{v:.6g}", "rel. residual": f"{r:.1e}"} for v, r in pairs]
        matrix = matrix_name(self.kind)
        title = f"{matrix}, {self.which}, mode {self.mode}, batch size {self.batch_size}"
        state = "converged" if self.converged else "NOT CONVERGED"
        about = "" if float(self.matvecs).is_integer() else "about "  # parts of the data count too
        products = f"{about}{max(1, round(self.matvecs))} matrix-vector products"
        note = f"{state} to {self.tolerance:g}, {products}, {self.seconds:.2f} s"
        return Table(rows, title, [note], numbers=("eigenvalue", "rel. residual"))


@interrupt_safe
@shows_progress("curvature")
@gather_shards
def top_eigenvalue(
    model: nn.Module,
    loss: Loss | WholeLoss | str | None,
    data: Data,
    kind: str = "ggn",
    mode: str = "train",
    k: int = 1,
    which: str = "largest",
    tol: float = 1e-3,
    max_products: int | None = None,
    params: Parameters = None,
    seed: int = 0,
    start: Tensor | TopEigenvalue | None = None,
    stop: str = "residual",
    progress: ProgressOption = None,
    vectors: bool = True,
) -> TopEigenvalue:
    """Return the extreme eigenvalues of a curvature matrix; the model is left as it is.

    An orthogonal basis grows until the residual of every value, the norm of A v - theta v, is
    within ``tol`` of the value's magnitude. Some eigenvalue is then that close to each value; the
    value of an isolated one is much closer, by about the residual's square. Where the samples of
    one batch agree on their gradients, mean gradients on a part of them give the start and a model
    that chooses the directions (Davidson's method, `MeanModel`). Otherwise vectors found on a part
    are the start of block Lanczos. For the Fisher and Gauss-Newton matrix of one batch vectors are
    over the outputs, not the parameters.

    Args:
        model: any module whose parameters are on one device.
        loss: as for `operator`.
        data: as for `operator`.
        kind: "ggn", "fisher", "hessian" or another name of `KINDS`.
        mode: "train", "frozen", "eval" or "as_is".
        k: how many eigenvalues; of either end for "both".
        which: "largest" (algebraically), "smallest", "both" or "magnitude".
        tol: on the relative residual; with ``stop="value"`` on the estimated relative error.
        max_products: after how many matvecs to give up; None for 100 + 20 k.
        params: names of parameters or modules, or parameters; None for all that are trainable.
        seed: of dropout, noise, the data's order and the start.
        start: parameter vectors, (size,) or (size, any), or an earlier result: during training
            the vectors move slowly. No part of the data is searched first then; how many matvecs
            follow depends on how far the vectors have moved.
        stop: "residual": when the residual is within ``tol``, so that the vectors are known too;
            "value": when the estimated error of the value is, the square of the residual over the
            gap to the other eigenvalues. That takes about half the matvecs, but the gaps are
            estimates, from a part of the data or from the eigenvalues found. Among close
            eigenvalues one that the start hardly touches may be missed, and the value be short by
            more than ``tol``; by far, if that is the vector of a few samples unlike all others.
            (Gaps between values found are trusted only once the residual is below 10 ``tol``.)
        progress: called with a `SearchProgress` after each product on all data; True shows a bar,
            and so does None in a notebook or console.
        vectors: whether to compute the eigenvectors. If found among outputs, they take up to one
            more backward pass each; without them ``.vectors`` has no column.

    Returns:
        Values, vectors and residuals. If not ``converged``, a `NormscopeWarning` is issued too. An
        eigenvalue that rounding hides, zero above all, has converged when its residual is as small
        as rounding allows, about 32 units of rounding times the largest eigenvalue.

    >>> batch = (torch.tensor([[3.0, 0.0], [0.0, 1.0]]), torch.zeros(2, 1))
    >>> top = top_eigenvalue(torch.nn.Linear(2, 1, bias=False), "squared_error", batch)
    >>> round(top.value, 4), top.converged  # x x^T / m
    (4.5, True)
    """
    begin = time.perf_counter()
    check_bool("vectors", vectors)
    check_number("tol", tol)
    check_integer("k", k)
    seed = as_seed(seed)
    allowed = 100 + 20 * k if max_products is None else max_products
    check_integer("max_products", allowed)
    operator = unchecked_operator(model, loss, data, kind, mode, params, seed)
    request = Request(k, which, tol, allowed, seed, stop, callback_of(progress))
    _check(request, operator)
    guesses = None if start is None else _columns(start, operator)
    return extreme_eigenvalues(operator, request, guesses, begin, vectors)


def extreme_eigenvalues(
    operator: CurvatureOperator,
    request: Request,
    guesses: Tensor | None,
    begin: float,
    vectors: bool = True,
) -> TopEigenvalue:
    """Return the extreme eigenvalues of an existing operator.

    Args:
        operator: the curvature.
        request: parameters of the search.
        guesses: parameter vectors to start from, one column each; None for a start from a part of
            the data.
        begin: ``time.perf_counter()`` at the beginning of the work.
        vectors: whether to compute the eigenvectors.

    Returns:
        The result; a warning was issued if it is not converged.
    """
    with without_autocast():
        space, found, spent = _search(operator, request, guesses)
        lifted = _lifted(space, found) if vectors else found.vectors.new_empty(operator.shape[0], 0)
    return _result(operator, request, replace(found, vectors=lifted), spent, begin, space.dtype)


def _search(
    operator: CurvatureOperator, request: Request, guesses: Tensor | None
) -> tuple[SearchSpace, Found, float]:
    """Return the space searched, what was found in it, and the products it took."""
    warm = warm_start(operator, request) if guesses is None else None
    space = search_space(operator, request.which, request.count)
    spent, gap, mean_model = 0.0, 0.0, None
    if warm is not None:
        spent, gap, guesses = warm.cost, warm.gap, warm.carried_to(space)
        mean_model = warm.mean_model_for(space)
    elif guesses is not None:
        guesses = torch.stack([space.embed(column.contiguous()) for column in guesses.T], 1)
    spent += space.embedding_cost * (0 if guesses is None else guesses.shape[1])
    blocks = [start_block(space, guesses, request, mean_model)]
    del warm, guesses  # free vectors and a graph before the search
    # popped, so that only the search's copy of the block stays in memory
    each = 1.0 if mean_model is None else 1 + mean_model.frame.cost
    remaining = request.with_fewer_products(spent, each)
    found = search(space, blocks.pop(), remaining, mean_model, gap)
    spent += each * found.products
    if not isinstance(space, ParameterSpace) and bool((found.values <= 0).any()):
        # the output space does not have the eigenvectors of the eigenvalue zero
        space = ParameterSpace(operator)
        remaining = request.with_fewer_products(spent)
        found = search(space, start_block(space, None, request), remaining)
        spent += found.products
    return space, found, spent


def _lifted(space: SearchSpace, found: Found) -> Tensor:
    columns = [space.lift(column.contiguous()) for column in found.vectors.T]
    return torch.stack(columns, 1)


def _result(
    operator: CurvatureOperator,
    request: Request,
    found: Found,
    matvecs: float,
    begin: float,
    dtype: torch.dtype,
) -> TopEigenvalue:
    result = TopEigenvalue(
        values=found.values,
        vectors=found.vectors,
        residuals=found.residuals,
        errors=found.errors,
        tolerance=request.tolerance,
        converged=found.converged,
        matvecs=matvecs,
        seconds=time.perf_counter() - begin,
        batch_size=operator.batch_size,
        samples=operator.samples,
        kind=operator.kind,
        mode=operator.mode,
        which=request.which,
    )
    if not result.converged:
        reason = _why_not_converged(result, request, operator.shape[0], dtype)
        warn(f"{reason}.")
    return result


def _why_not_converged(
    result: TopEigenvalue, request: Request, size: int, searched: torch.dtype
) -> str:
    """Return what a search in vectors of a dtype has not reached, and the remedy, as a sentence."""
    after, there = f"after {result.matvecs:.0f} products", len(result.values)
    wanted = min(request.wanted, size)
    name = f"{_ENDS.get(request.which, request.which)} eigenvalue"
    if there < wanted:
        return (
            f"only {there} of the {wanted} {name}s of the {result.kind} were found {after}; "
            "raise max_products"
        )
    one = f"the {name}" if wanted == 1 else f"the worst of the {wanted} {name}s"
    error, limit = float(result.errors.max()), f"the tolerance {request.tolerance:g}"
    what = f"a relative residual of {result.residual:.1e}"
    if request.stop == "value" and error > request.tolerance:
        what = f"an estimated relative error of {error:.1e}"
    elif request.stop == "value":
        limit = f"{VALUE_RESIDUAL:g} times {limit}"
    zero = " and cannot be distinguished from zero" if result.residual >= 1 else ""
    remedy, dtype = "raise max_products or tol", result.vectors.dtype
    if max(request.tolerance, result.residual) < ROUNDING * torch.finfo(dtype).eps:
        wider = "double" if dtype == torch.float32 else "float"
        remedy = f"in {_PRECISIONS[dtype]} precision rounding hides the rest: raise tol"
        remedy += "" if dtype == torch.float64 else f", or measure model.{wider}()"
    elif searched != dtype and result.residual < ROUNDING * torch.finfo(searched).eps:
        names = [str(each).removeprefix("torch.") for each in (searched, dtype)]
        remedy = (
            f"the model's outputs are {names[0]} with {names[1]} parameters, as by an autocast in "
            "its forward pass, and their rounding hides the rest: raise tol, or measure without "
            "that autocast"
        )
    return f"{one} of the {result.kind} has {what} {after}, above {limit}{zero}; {remedy}"


def _check(request: Request, operator: CurvatureOperator) -> None:
    if request.which not in WHICH:
        raise unknown_name("choice of eigenvalues", request.which, WHICH)
    if request.stop not in STOPS:
        raise unknown_name("stopping rule", request.stop, STOPS)
    size = operator.shape[0]
    if not 1 <= request.count <= size:
        raise InputError(f"k must be from 1 to the {size} parameter entries, got {request.count}.")
    if not 0 < request.tolerance < 1:
        raise InputError(f"tol must be between 0 and 1, got {request.tolerance}.")
    if request.max_products < 1:
        raise InputError(f"max_products must be at least 1, got {request.max_products}.")


def _columns(start: Tensor | TopEigenvalue, operator: CurvatureOperator) -> Tensor:
    """Return a user's start as columns of parameter vectors."""
    vectors = start.vectors if isinstance(start, TopEigenvalue) else start
    if not isinstance(vectors, Tensor):
        raise ArgumentTypeError(
            f"start must be a tensor or an earlier result, got {type(start).__name__}."
        )
    columns = vectors.unsqueeze(1) if vectors.dim() == 1 else vectors
    if columns.dim() == 2 and columns.shape[1] == 0:
        raise InputError("start has no vectors; run the earlier search with vectors=True.")
    if not bool(columns.isfinite().all()):
        raise InputError("start must be finite, got vectors with NaN or infinity; leave it out.")
    return operator.evaluator.layout.checked(columns, columns=True)
