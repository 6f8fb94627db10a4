"""A cheap first guess of the top eigenvectors, from a part of the data."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch
from torch import Tensor

from normscope.curvature.batch import rows
from normscope.curvature.operator import CurvatureOperator
from normscope.curvature.problem import Problem
from normscope.curvature.search import Request, search, started
from normscope.curvature.spaces import OutputSpace, ParameterSpace, SearchSpace, search_space
from normscope.errors import NormscopeError

__all__ = ["Guess", "coarse_guess"]

_FEWEST_SAMPLES = 32  # in a part; fewer and batch statistics have little to do with the whole's
_LARGEST_STRIDE = 16
_SMALLEST_STRIDE = 4  # a larger part of the data would cost more than it saves
# Below the distance between the part's vectors and the whole's; far below where vectors over the
# outputs make products cheap, so that the part costs little anyway.
_TOLERANCES = {OutputSpace: 0.005, ParameterSpace: 0.03}
# Gauss-Newton vectors, over the outputs too, that are the guess for a Hessian: on all data their
# residual is some tenths, whatever it was on the part.
_FOREIGN_TOLERANCE = 0.02
_PRODUCTS = 14  # on the part, at most
# ... and what these may cost, in products on all data: a part that is a quarter of it saves less
# than many products on it cost (on 13 nets of 128 and 192 samples, three seeds, 7 % in all).
_LARGEST_COST = 2.0
_MIXED = 1.0  # of the vectors next in line, in a guess that must not settle on one of several
_FEWEST_PRODUCTS = 4  # fewer find nothing worth carrying
_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class Guess:
    """Approximate eigenvectors from a part of the data.

    Args:
        space: where they were found.
        vectors: one column each.
        which: what was searched.
        cost: in products with the whole operator.
    """

    space: SearchSpace
    vectors: Tensor
    which: str
    cost: float

    def carried_to(self, space: SearchSpace) -> Tensor:
        """The vectors of another space that stand for them, one column each."""
        columns = [space.carry(column.contiguous(), self.space) for column in self.vectors.T]
        vectors = torch.stack(columns, dim=1)
        if self.which != "both":
            return vectors
        # one start per pair: the two ends do not disturb each other
        largest, *others = torch.split(vectors, -(-len(columns) // 2), dim=1)
        return largest + others[0] if others and others[0].shape == largest.shape else largest


def coarse_guess(operator: CurvatureOperator, request: Request) -> Guess | None:
    """Approximate eigenvectors from every n-th sample of a batch, or from one batch of many.

    Args:
        operator: the curvature on all data.
        request: what is searched.

    Returns:
        The vectors; None where the data is too small for a part of it to help.
    """
    part = _part(operator)
    if part is None:
        return None
    share = part.samples / operator.samples
    # one product on all data, and one to carry each vector there, must be left
    affordable = min(_LARGEST_COST, request.max_products - 1 - request.count)
    allowed = min(_PRODUCTS, int(affordable / share))
    if allowed < _FEWEST_PRODUCTS:
        return None
    try:
        space = _space(part, request)
        foreign = operator.kind == "hessian" and isinstance(space, OutputSpace)
        tolerance = _FOREIGN_TOLERANCE if foreign else _TOLERANCES[type(space)]
        rough = Request(request.count, request.which, tolerance, allowed, request.seed)
        found = search(space, started(space, None, rough), rough)
    except (NormscopeError, RuntimeError) as reason:
        # a model may take only batches of one size; the search on all data needs no guess
        _LOGGER.debug("no guess from a part of the data: %s", reason)
        return None
    cost = share * (found.products + space.embedding_cost * found.vectors.shape[1])
    vectors = found.vectors
    if request.stop == "residual" and operator.kind != "hessian" and found.mixture is not None:
        # The largest eigenvalues of a Fisher matrix are close together, one for each output, and
        # in another order on the part: a start near one of them would hide the others.
        vectors = vectors + _MIXED * found.mixture.unsqueeze(1)
    return Guess(space, vectors, request.which, cost)


def _space(part: CurvatureOperator, request: Request) -> SearchSpace:
    """Where to search on the part.

    The largest eigenvalues of a Hessian are mostly those of its Gauss-Newton part, and on a part
    of the data that one's vectors are as good a guess. They are found among the outputs, at less
    than half the cost and without a basis of parameter vectors.
    """
    if part.kind == "hessian" and request.which == "largest" and part.evaluator.problem.has_outputs:
        space = search_space(CurvatureOperator(part.evaluator, "ggn"), "largest", request.count)
        if isinstance(space, OutputSpace):
            return space
    return search_space(part, request.which, request.count)


def _part(operator: CurvatureOperator) -> CurvatureOperator | None:
    """The same curvature on a part of the data."""
    evaluator = operator.evaluator
    problem = evaluator.problem
    if len(operator.batch_sizes) >= _SMALLEST_STRIDE:
        _, batch = next(evaluator.batches())
    elif len(operator.batch_sizes) == 1 and problem.has_outputs:
        stride = min(_LARGEST_STRIDE, operator.samples // _FEWEST_SAMPLES)
        if stride < _SMALLEST_STRIDE:
            return None
        # every n-th sample, not the first ones: data may be sorted by class
        index = torch.arange(0, operator.samples, stride, device=operator.device)
        _, whole = next(evaluator.batches())
        batch = rows(whole, index)
    else:
        return None
    smaller = Problem(problem.model, problem.loss, [batch])
    return CurvatureOperator(evaluator.on(smaller), operator.kind)
