"""Start vectors for an eigenvalue search, from a part of the data.

Two ways, in this order. If the samples agree on their gradients, the mean gradients on a part give
the top eigenvectors and a model that guides Davidson's method. Otherwise a short search on a part
gives the vectors.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from normscope.curvature.davidson import (
    Consensus,
    MeanModel,
    agreement,
    gradient_model,
    output_model,
    top_means,
)
from normscope.curvature.eigensolver import Request, search, start_block
from normscope.curvature.operator import CurvatureOperator
from normscope.curvature.spaces import OutputSpace, ParameterSpace, SearchSpace, search_space
from normscope.errors import NormscopeError
from normscope.problem.batch import Batch, positions_per_sample, rows
from normscope.problem.evaluate import Evaluator
from normscope.problem.modes import is_batch_norm
from normscope.problem.problem import Problem

# Samples in a part, at least, by whether the model has batch statistics: those of fewer samples
# differ too much from the whole's.
_FEWEST_SAMPLES = {False: 16, True: 32}
_FEWEST_SEQUENCES = 4  # ... of several outputs each, such as tokens
_LARGEST_PART = 1 / 4  # of the data; a larger part costs more than it saves
# ... also for vectors searched among outputs, where products are cheap (57 nets of 128 to 192
# samples: 9.8 products to the residual and 7.4 to the value; without, 9.7 and 7.5), and for models
# that use the part's graph in each step, where memory counts.
_SMALLER_PART = 1 / 8
_SEARCHED = 1 / 16  # of the data, on which vectors are searched
_AVERAGED = 1 / 8  # of the data, on which mean gradients are taken, at half the cost
# Share of a product that is the same for every sample, from which mean gradients are used; by
# whether the matrix is a Hessian, whose search among parameters gains more.
_AGREEING = {False: 0.85, True: 0.75}
_SAME = 0.97  # ... from which the mean gradients need no search on the part
# ... below which eigenvectors of few samples are no guess, likewise. From 0.7 to 0.85 a search of a
# Fisher or Gauss-Newton matrix on 16 of 128 samples saved 0.2 products on average (26 cases), and
# cost up to 3.
_ALIKE = {False: 0.85, True: 0.7}
# Relative gaps of the mean gradients' matrix between which a search on the part is better: closer
# eigenvalues need the model, and the vector of one farther away is the mean gradient itself.
_SEPARATE = (0.2, 0.4)
_MANY_SAMPLES = 32  # whose eigenvectors are a guess in any case
# Tolerances of the search on the part: below the distance between the part's vectors and the
# whole's; far below among outputs, where products are cheap.
_TOLERANCES = {OutputSpace: 0.005, ParameterSpace: 0.03}
# ... of Gauss-Newton vectors as the guess for a Hessian, whose residual on all data is some tenths
# anyway.
_FOREIGN_TOLERANCE = 0.02
_PRODUCTS = 14  # on the part, at most
# Most that a warm start may cost, in products on all data (on 13 nets of 128 and 192 samples and
# three seeds, the limit saves 7 % in all).
_LARGEST_COST = 2.0
_FEWEST_PRODUCTS = 4  # a search with fewer finds nothing useful
_GRADIENT_BYTES = 2**28  # memory for mean gradients, one for each output
_LARGEST_VECTOR = 2**22  # bytes of a parameter vector that is kept with its product
_MIXED = 1.0  # weight of the next Ritz vectors in a guess among close eigenvalues
_LOGGER = logging.getLogger(__name__)
_T = TypeVar("_T")


@dataclass(frozen=True)
class WarmStart:
    """Approximate eigenvectors from a part of the data.

    Args:
        space: where they were found.
        vectors: one column each.
        which: which eigenvalues were searched.
        cost: in products with the whole operator.
        mean_model: of the whole operator, or None.
        gap: between the first eigenvalue and the next one on the part, relative to the first; 0 if
            it is not known.
    """

    space: SearchSpace
    vectors: Tensor
    which: str
    cost: float
    mean_model: MeanModel | None = None
    gap: float = 0.0

    def carried_to(self, space: SearchSpace) -> Tensor:
        """Return the corresponding vectors of another space, one column each."""
        columns = [space.carry(column.contiguous(), self.space) for column in self.vectors.T]
        vectors = torch.stack(columns, dim=1)
        if self.which != "both":
            return vectors
        # one start vector per pair: the two ends do not interfere
        largest, *others = torch.split(vectors, -(-len(columns) // 2), dim=1)
        return largest + others[0] if others and others[0].shape == largest.shape else largest

    def mean_model_for(self, space: SearchSpace) -> MeanModel | None:
        """Return the model, if it applies to vectors of that space.

        A sample may have other outputs in the whole than in the part: similarities to the other
        samples, for instance.
        """
        if self.mean_model is None or not isinstance(self.mean_model.frame, Consensus):
            return self.mean_model
        size = self.mean_model.frame.samples * len(self.mean_model.matrix)
        return self.mean_model if isinstance(space, OutputSpace) and space.size == size else None


def warm_start(operator: CurvatureOperator, request: Request) -> WarmStart | None:
    """Return approximate eigenvectors from some samples of a batch, or from one batch of many.

    Args:
        operator: the curvature on all data.
        request: parameters of the search.

    Returns:
        The vectors; None where the data is too small for a part of it to help.
    """
    means = _try(_from_mean_gradients, operator, request) or _Means()
    return _try(_from_search, operator, request, means) if means.start is None else means.start


@dataclass(frozen=True)
class _Means:
    """Result of a trial of mean gradients on a part of the data.

    Args:
        cost: in products with the whole operator.
        agreement: of the samples; None if it was not tried.
        space: of the part; None if mean gradients are not worthwhile.
        vectors: the top mean gradients as vectors of that space, one column each; or None.
        start: from the model of the mean gradients; None if a search on the part is better.
    """

    cost: float = 0.0
    agreement: float | None = None
    space: OutputSpace | None = None
    vectors: Tensor | None = None
    start: WarmStart | None = None


def _try(function: Callable[..., _T], *arguments: object) -> _T | None:
    """Call a function; return None if the model fails on a part of the data.

    A model may take only batches of one size; the search on all data needs no warm start.
    """
    try:
        return function(*arguments)
    except (NormscopeError, RuntimeError) as reason:
        _LOGGER.debug("no start from a part of the data: %s", reason)
        return None


def _from_mean_gradients(operator: CurvatureOperator, request: Request) -> _Means:
    """Return the start from mean gradients if the samples agree on them, else what was learned."""
    if request.which != "largest" or len(operator.batch_sizes) > 1:
        return _Means()
    largest = _SMALLER_PART if operator.kind == "hessian" else _LARGEST_PART
    part = _part(operator, _AVERAGED, largest, request.seed)
    space = None if part is None else _space(part, request)
    if not isinstance(space, OutputSpace) or not _is_worthwhile(space, operator, request):
        return _Means()
    share, outputs = space.samples / operator.samples, space.size // space.samples
    agreed = agreement(space, request.seed)
    if agreed < _AGREEING[operator.kind == "hessian"]:
        return _Means(share, agreed, space)
    mean_model = output_model(space, operator.samples)
    vectors = top_means(mean_model, space, request.count)
    cost = share * (1 + outputs / 2)
    if request.count == 1 and agreed < _SAME and _SEPARATE[0] < mean_model.gap() < _SEPARATE[1]:
        return _Means(cost, agreed, space, vectors)
    cost += share * space.embedding_cost * vectors.shape[1]
    if operator.kind == "hessian":
        mean_model = gradient_model(mean_model, space, share)
    start = WarmStart(space, vectors, request.which, cost, mean_model)
    return _Means(cost, agreed, space, vectors, start)


def _is_worthwhile(space: OutputSpace, operator: CurvatureOperator, request: Request) -> bool:
    """Return whether mean gradients on a part fit into the products and the memory allowed."""
    share, outputs = space.samples / operator.samples, space.size // space.samples
    vector_bytes = operator.shape[0] * space.like.element_size()
    if operator.kind == "hessian":
        fits = vector_bytes <= _LARGEST_VECTOR
    else:  # with more outputs the whole is searched among parameter vectors
        fits = outputs * operator.samples <= operator.shape[0]
    held = outputs * vector_bytes if space.holds_gradients else 0
    return fits and held <= _GRADIENT_BYTES and share * (1 + outputs / 2) <= _affordable(request)


def _from_search(operator: CurvatureOperator, request: Request, means: _Means) -> WarmStart | None:
    """Return the start from a search on a part of the data."""
    largest = _LARGEST_PART if operator.kind == "hessian" else _SMALLER_PART
    part = _part(operator, _SEARCHED, largest, request.seed)
    alike = _ALIKE[operator.kind == "hessian"]
    agreed = 1.0 if means.agreement is None else means.agreement  # assumed if not tried
    if part is None or (part.samples < _MANY_SAMPLES and agreed < alike):
        return None
    share, spent = part.samples / operator.samples, means.cost
    allowed = min(_PRODUCTS, int((_affordable(request) - spent) / share))
    if allowed < _FEWEST_PRODUCTS:
        return None
    same = means.space if means.space is not None and means.space.samples == part.samples else None
    space = _space(part, request) if same is None else same
    foreign = operator.kind == "hessian" and isinstance(space, OutputSpace)
    tolerance = _FOREIGN_TOLERANCE if foreign else _TOLERANCES[type(space)]
    rough = Request(request.count, request.which, tolerance, allowed, request.seed)
    guesses = (
        means.vectors if means.vectors is not None and len(means.vectors) == space.size else None
    )
    found = search(space, start_block(space, guesses, rough), rough)
    cost = spent + share * (found.products + space.embedding_cost * found.vectors.shape[1])
    vectors = found.vectors
    if request.stop == "residual" and operator.kind != "hessian" and found.mixture is not None:
        # The largest eigenvalues of a Fisher matrix are close together, one for each output, and
        # in another order on the part: a start near one of them would hide the others.
        vectors = vectors + _MIXED * found.mixture.unsqueeze(1)
    return WarmStart(space, vectors, request.which, cost, gap=found.gap)


def _affordable(request: Request) -> float:
    """Return the products to spend; one on all data, and one to carry each vector, must remain."""
    return min(_LARGEST_COST, request.max_products - 1 - request.count)


def _space(part: CurvatureOperator, request: Request) -> SearchSpace:
    """Return the space in which to search on the part.

    The largest eigenvalues of a Hessian are mostly those of its Gauss-Newton part, whose vectors
    are as good a guess. They are found among the outputs, at less than half the cost and without a
    basis of parameter vectors.
    """
    if part.kind == "hessian" and request.which == "largest" and part.evaluator.loss_is_of_output:
        space = search_space(CurvatureOperator(part.evaluator, "ggn"), "largest", request.count)
        if isinstance(space, OutputSpace):
            return space
    return search_space(part, request.which, request.count)


def _part(
    operator: CurvatureOperator, share: float, largest: float, seed: int
) -> CurvatureOperator | None:
    """Return the curvature on about that share of the data; None if the part is too large."""
    evaluator = operator.evaluator
    problem = evaluator.problem
    if len(operator.batch_sizes) >= 1 / _LARGEST_PART:
        _, batch = next(evaluator.batches())
    elif len(operator.batch_sizes) == 1 and problem.has_outputs:
        _, whole = next(evaluator.batches())
        samples = max(_fewest_samples(evaluator, whole), round(share * operator.samples))
        if samples > largest * operator.samples:
            return None
        # at random: the data may be sorted by class
        order = torch.randperm(operator.samples, generator=torch.Generator().manual_seed(seed))
        batch = rows(whole, order[:samples].to(operator.device))
    else:
        return None
    smaller = Problem(problem.model, problem.loss, [batch])
    return CurvatureOperator(evaluator.on(smaller), operator.kind)


def _fewest_samples(evaluator: Evaluator, batch: Batch) -> int:
    """Return how many samples a part needs; a sequence counts as several."""
    modules = evaluator.problem.model.named_modules()
    if any(evaluator.flags.get(name) and is_batch_norm(module) for name, module in modules):
        return _FEWEST_SAMPLES[True]
    positions = positions_per_sample(evaluator.problem.target_of(batch))
    return max(_FEWEST_SEQUENCES, math.ceil(_FEWEST_SAMPLES[False] / positions))
