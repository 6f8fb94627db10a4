"""A cheap first guess of the top eigenvectors, from a part of the data."""

from __future__ import annotations

import torch
from torch import Tensor

from normscope.curvature.batch import rows
from normscope.curvature.operator import CurvatureOperator
from normscope.curvature.problem import Problem
from normscope.curvature.search import Request, search, started
from normscope.curvature.spaces import search_space

__all__ = ["coarse_guess"]

_FEWEST_SAMPLES = 32  # in a part; fewer and batch statistics have little to do with the whole's
_LARGEST_STRIDE = 16
_SMALLEST_STRIDE = 4  # a larger part of the data would cost more than it saves
_TOLERANCE = 0.005  # well below the distance between the part's vectors and the whole's
_PRODUCTS = 14


def coarse_guess(operator: CurvatureOperator, request: Request) -> tuple[Tensor | None, float]:
    """Approximate eigenvectors from every n-th sample of a batch, or from one batch of many.

    Args:
        operator: the curvature on all data.
        request: what is searched.

    Returns:
        Parameter vectors, one column each, and their cost in products with the whole operator;
        (None, 0.0) where the data is too small for a part of it to help.
    """
    part = _part(operator)
    if part is None:
        return None, 0.0
    share = part.samples / operator.samples
    rough = Request(request.count, request.which, _TOLERANCE, _PRODUCTS, request.seed)
    space = search_space(part, rough.which, rough.count)
    found = search(space, started(space, None, rough), rough)
    lifted = [space.lift(column.contiguous()) for column in found.vectors.T]
    vectors = torch.stack(lifted, dim=1)
    if request.which == "both":  # one start per pair: the two ends do not disturb each other
        ends = torch.split(vectors, request.count, dim=1)
        vectors = sum(ends[1:], ends[0]) if ends[-1].shape == ends[0].shape else ends[0]
    return vectors, share * (found.products + space.embedding_cost * len(lifted))


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
