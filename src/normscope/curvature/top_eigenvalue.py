"""The largest eigenvalues of a network's curvature, with a residual that says how far to trust."""

from __future__ import annotations

import time
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from normscope.curvature.coarse import coarse_guess
from normscope.curvature.operator import CurvatureOperator
from normscope.curvature.result import TopEigenvalue
from normscope.curvature.ritz import WHICH
from normscope.curvature.search import (
    ROUGHLY,
    ROUNDING,
    STOPS,
    Found,
    Request,
    search,
    started,
)
from normscope.curvature.spaces import ParameterSpace, SearchSpace, search_space
from normscope.errors import ArgumentTypeError, InputError, NormscopeWarning
from normscope.problem.evaluate import Evaluator
from normscope.problem.parameters import parameter_layout
from normscope.problem.problem import Problem
from normscope.registry import unknown_name
from normscope.validation import check_bool, check_callback, check_integer, check_number

if TYPE_CHECKING:
    from torch import nn

    from normscope.curvature.search import ProgressHook
    from normscope.problem.loss import Loss, WholeLoss
    from normscope.problem.parameters import Parameters
    from normscope.problem.problem import Data

__all__ = ["extreme_eigenvalues", "top_eigenvalue"]

_PRECISIONS = {
    torch.float64: "double",
    torch.float32: "single",
    torch.float16: "half",
    torch.bfloat16: "half",
}
_ENDS = {"both": "outermost", "magnitude": "dominant"}  # in a sentence


def top_eigenvalue(
    model: nn.Module,
    loss: Loss | WholeLoss | str,
    data: Data,
    kind: str = "fisher",
    mode: str = "train",
    k: int = 1,
    which: str = "largest",
    tol: float = 1e-3,
    max_products: int | None = None,
    params: Parameters = None,
    seed: int = 0,
    start: Tensor | TopEigenvalue | None = None,
    stop: str = "residual",
    progress: ProgressHook | None = None,
    vectors: bool = True,
) -> TopEigenvalue:
    """Extreme eigenvalues of a curvature matrix; the model is left as it is.

    A basis grows, kept orthogonal, until the residual of every value, the norm of A v - theta v, is
    within ``tol`` of the value's magnitude. Some eigenvalue is then that close to each value; the
    value of an isolated one is closer by far, about the residual's square. Where the samples of one
    batch agree on their gradients, mean gradients on a part of them give the start and a model that
    chooses the directions (Davidson's method, `MeanModel`); else vectors found on a part are the
    start of block Lanczos. For the Fisher and Gauss-Newton matrix of one batch vectors are over the
    outputs, not the parameters.

    Args:
        model: any module whose parameters are on one device.
        loss: as for `operator`.
        data: as for `operator`.
        kind: "fisher", "ggn" or "hessian".
        mode: "train", "frozen" or "eval".
        k: how many eigenvalues; of either end for "both".
        which: "largest" (algebraically), "smallest", "both" or "magnitude".
        tol: on the relative residual.
        max_products: after how many products to give up; None for 100 + 20 k.
        params: names of parameters or modules, or parameters; None for all that are trainable.
        seed: of dropout, noise, the data's order and the start.
        start: parameter vectors, (size,) or (size, any), or an earlier result: during training
            the vectors move slowly. The part of the data that a search else begins with is left
            out; how many products follow depends on how far the vectors have moved.
        stop: "residual": when the residual is within ``tol``, so that the vectors are known too;
            "value": when the estimated error of the value is, the square of the residual over the
            gap to the other eigenvalues. That takes about half the products, but the gaps are
            estimates, from a part of the data or from the eigenvalues found: among eigenvalues
            close together one that the start hardly touches may go unseen, and the value be short
            by more than ``tol``; by far, if that is the vector of a few samples unlike all others.
            (Gaps between values found are believed only once the residual is below 20 ``tol``.)
        progress: called with a `Progress` after each product on all data.
        vectors: whether the eigenvectors are wanted. Found among outputs, they take up to one
            more backward pass each; without them ``.vectors`` has no column.

    Returns:
        Values, vectors and residuals. If not ``converged``, a `NormscopeWarning` says so too. An
        eigenvalue that rounding hides, zero above all, has converged when its residual is as small
        as rounding lets it be, about 32 units of it times the largest eigenvalue.

    >>> batch = (torch.tensor([[3.0, 0.0], [0.0, 1.0]]), torch.zeros(2, 1))
    >>> top = top_eigenvalue(torch.nn.Linear(2, 1, bias=False), "squared_error", batch)
    >>> round(top.value, 4), top.converged  # x x^T / m
    (4.5, True)
    """
    begin = time.perf_counter()
    check_bool("vectors", vectors)
    check_callback("progress", progress)
    check_number("tol", tol)
    for name, value in {"k": k, "seed": seed, "max_products": max_products}.items():
        if value is not None or name != "max_products":
            check_integer(name, value)
    layout = parameter_layout(model, params)
    evaluator = Evaluator(Problem(model, loss, data), layout, mode, seed)
    operator = CurvatureOperator(evaluator, kind)
    allowed = 100 + 20 * k if max_products is None else max_products
    request = Request(k, which, tol, allowed, seed, stop, progress)
    _check(request, operator)
    guesses = None if start is None else _given(start, operator)
    return extreme_eigenvalues(operator, request, guesses, begin, vectors)


def extreme_eigenvalues(
    operator: CurvatureOperator,
    request: Request,
    guesses: Tensor | None,
    begin: float,
    vectors: bool = True,
) -> TopEigenvalue:
    """Extreme eigenvalues of an operator that is made already.

    Args:
        operator: the curvature.
        request: what is searched.
        guesses: parameter vectors to start from, one column each; None: they come from a part of
            the data.
        begin: ``time.perf_counter()`` at the beginning of the work.
        vectors: whether the eigenvectors are wanted.

    Returns:
        The result; a warning was given if it is not converged.
    """
    coarse = coarse_guess(operator, request) if guesses is None else None
    space = search_space(operator, request.which, request.count)
    spent, model = 0.0, None
    if coarse is not None:
        spent, guesses, model = coarse.cost, coarse.carried_to(space), coarse.model_for(space)
    elif guesses is not None:
        guesses = torch.stack([space.embed(column.contiguous()) for column in guesses.T], 1)
    spent += space.embedding_cost * (0 if guesses is None else guesses.shape[1])
    blocks = [started(space, guesses, request, model)]
    del coarse, guesses  # vectors and a graph that the search may need the room of
    # handed over, not kept: the search has its own copy, in its basis
    each = 1.0 if model is None else 1 + model.frame.cost
    found = search(space, blocks.pop(), request.with_fewer_products(spent, each), model)
    spent += each * found.products
    if not isinstance(space, ParameterSpace) and bool((found.values <= 0).any()):
        # outputs alone do not show which parameter vectors have the eigenvalue zero
        space = ParameterSpace(operator)
        found = search(space, started(space, None, request), request.with_fewer_products(spent))
        spent += found.products
    lifted = _lifted(space, found) if vectors else found.vectors.new_empty(operator.shape[0], 0)
    return _result(operator, request, replace(found, vectors=lifted), spent, begin)


def _lifted(space: SearchSpace, found: Found) -> Tensor:
    columns = [space.lift(column.contiguous()) for column in found.vectors.T]
    return torch.stack(columns, 1)


def _result(
    operator: CurvatureOperator, request: Request, found: Found, matvecs: float, begin: float
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
        missing = _missing(result, request, operator.shape[0])
        warnings.warn(f"{missing}.", NormscopeWarning, stacklevel=4)
    return result


def _missing(result: TopEigenvalue, request: Request, size: int) -> str:
    """What a search that ran out of products lacks, in a sentence."""
    after, there = f"after {result.matvecs:.0f} products", len(result.values)
    wanted = min(request.wanted, size)
    name = f"{_ENDS.get(request.which, request.which)} eigenvalue"
    if there < wanted:
        many = f"only {there} of the {wanted} {name}s of the {result.kind}"
        return f"{many} are there {after}; raise max_products"
    one = f"the {name}" if wanted == 1 else f"the worst of the {wanted} {name}s"
    error, limit = float(result.errors.max()), f"the tolerance {request.tolerance:g}"
    what = f"a relative residual of {result.residual:.1e}"
    if request.stop == "value" and error > request.tolerance:
        what = f"an estimated relative error of {error:.1e}"
    elif request.stop == "value":
        limit = f"{ROUGHLY:g} times {limit}"
    zero = " and not told from zero" if result.residual >= 1 else ""
    remedy, dtype = "raise max_products or tol", result.vectors.dtype
    if max(request.tolerance, result.residual) < ROUNDING * torch.finfo(dtype).eps:
        wider = "double" if dtype == torch.float32 else "float"
        remedy = f"in {_PRECISIONS[dtype]} precision rounding hides the rest: raise tol"
        remedy += "" if dtype == torch.float64 else f", or measure model.{wider}()"
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


def _given(start: Tensor | TopEigenvalue, operator: CurvatureOperator) -> Tensor:
    """A caller's start as columns of parameter vectors."""
    vectors = start.vectors if isinstance(start, TopEigenvalue) else start
    if not isinstance(vectors, Tensor):
        raise ArgumentTypeError(
            f"start must be a tensor or an earlier result, got {type(start).__name__}."
        )
    columns = vectors.unsqueeze(1) if vectors.dim() == 1 else vectors
    if columns.dim() == 2 and columns.shape[1] == 0:
        raise InputError("start has no vector to start from; ask the earlier search for vectors.")
    if not bool(columns.isfinite().all()):
        raise InputError("start must be finite, got vectors with NaN or infinity; leave it out.")
    return operator.evaluator.layout.checked(columns, columns=True)
