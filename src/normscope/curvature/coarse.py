"""A cheap first guess of the top eigenvectors, from a part of the data."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from normscope.curvature.mean_model import Consensus, MeanModel
from normscope.curvature.means import agreement, gradient_model, output_model, top_means
from normscope.curvature.operator import CurvatureOperator
from normscope.curvature.search import Request, search, started
from normscope.curvature.spaces import OutputSpace, ParameterSpace, SearchSpace, search_space
from normscope.errors import NormscopeError
from normscope.problem.batch import rows
from normscope.problem.problem import Problem

__all__ = ["Guess", "coarse_guess"]

_FEWEST_SAMPLES = 32  # in a part; fewer and batch statistics have little to do with the whole's
_LARGEST_PART = 1 / 4  # of the data: a larger one would cost more than it saves
# ... also where products are cheap and vectors searched: on 57 nets of 128 to 192 samples that
# saved what it cost (9.8 and 7.4 products to the residual and the value; without, 9.7 and 7.5).
# And where each step meets the part again, the memory of a larger one counts.
_SMALLER_PART = 1 / 8
_SEARCHED = 1 / 16  # of the data, on which vectors are searched
_AVERAGED = 1 / 8  # ... and on which mean gradients are taken, which cost half as much
# Of a product, from which on samples agree well enough to be taken as one; a Hessian, which is
# searched among parameters, has as much from less.
_AGREEING = {False: 0.85, True: 0.75}
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
_GRADIENT_BYTES = 2**28  # memory for mean gradients, one for each output
_LARGEST_VECTOR = 2**22  # bytes of a parameter vector that is kept with its product
_MIXED = 1.0  # of the vectors next in line, in a guess that must not settle on one of several
_FEWEST_PRODUCTS = 4  # fewer find nothing worth carrying
_LOGGER = logging.getLogger(__name__)
_T = TypeVar("_T")


@dataclass(frozen=True)
class Guess:
    """Approximate eigenvectors from a part of the data.

    Args:
        space: where they were found.
        vectors: one column each.
        which: what was searched.
        cost: in products with the whole operator.
        model: what the part says of the whole beside them; None if nothing.
    """

    space: SearchSpace
    vectors: Tensor
    which: str
    cost: float
    model: MeanModel | None = None

    def carried_to(self, space: SearchSpace) -> Tensor:
        """The vectors of another space that stand for them, one column each."""
        columns = [space.carry(column.contiguous(), self.space) for column in self.vectors.T]
        vectors = torch.stack(columns, dim=1)
        if self.which != "both":
            return vectors
        # one start per pair: the two ends do not disturb each other
        largest, *others = torch.split(vectors, -(-len(columns) // 2), dim=1)
        return largest + others[0] if others and others[0].shape == largest.shape else largest

    def model_for(self, space: SearchSpace) -> MeanModel | None:
        """The model, if it is of vectors of that space.

        The whole may have other outputs for a sample than the part has: similarities to the other
        samples, for instance.
        """
        if self.model is None or not isinstance(self.model.frame, Consensus):
            return self.model
        size = self.model.frame.samples * len(self.model.matrix)
        return self.model if isinstance(space, OutputSpace) and space.size == size else None


def coarse_guess(operator: CurvatureOperator, request: Request) -> Guess | None:
    """Approximate eigenvectors from some samples of a batch, or from one batch of many.

    Args:
        operator: the curvature on all data.
        request: what is searched.

    Returns:
        The vectors; None where the data is too small for a part of it to help.
    """
    spent, guess = _tried(_averaged, operator, request) or (0.0, None)
    return _tried(_searched, operator, request, spent) if guess is None else guess


def _tried(way: Callable[..., _T], *arguments: object) -> _T | None:
    """What a way to a guess gives; None if the model fails on a part of the data.

    It may take only batches of one size; the search on all data needs no guess.
    """
    try:
        return way(*arguments)
    except (NormscopeError, RuntimeError) as reason:
        _LOGGER.debug("no guess from a part of the data: %s", reason)
        return None


def _averaged(operator: CurvatureOperator, request: Request) -> tuple[float, Guess | None]:
    """What trying it cost, and the guess from mean gradients, if the samples agree on them."""
    if request.which != "largest" or len(operator.batch_sizes) > 1:
        return 0.0, None
    largest = _SMALLER_PART if operator.kind == "hessian" else _LARGEST_PART
    part = _part(operator, _AVERAGED, largest, request.seed)
    space = None if part is None else _space(part, request)
    if not isinstance(space, OutputSpace) or not _are_worthwhile(space, operator, request):
        return 0.0, None
    share, outputs = space.samples / operator.samples, space.size // space.samples
    if agreement(space, request.seed) < _AGREEING[operator.kind == "hessian"]:
        return share, None
    model = output_model(space, operator.samples)
    vectors = top_means(model, space, request.count)
    cost = share * (1 + outputs / 2 + space.embedding_cost * vectors.shape[1])
    if operator.kind == "hessian":
        model = gradient_model(model, space, share)
    return cost, Guess(space, vectors, request.which, cost, model)


def _are_worthwhile(space: OutputSpace, operator: CurvatureOperator, request: Request) -> bool:
    """Whether mean gradients on a part fit the search on the whole, its products and memory."""
    share, outputs = space.samples / operator.samples, space.size // space.samples
    vector_bytes = operator.shape[0] * space.like.element_size()
    if operator.kind == "hessian":
        fits = vector_bytes <= _LARGEST_VECTOR
    else:  # else the whole is searched among parameter vectors
        fits = outputs * operator.samples <= operator.shape[0]
    held = outputs * vector_bytes if space.holds_gradients else 0
    return fits and held <= _GRADIENT_BYTES and share * (1 + outputs / 2) <= _affordable(request)


def _searched(operator: CurvatureOperator, request: Request, spent: float) -> Guess | None:
    """The guess from a search on a part of the data."""
    largest = _LARGEST_PART if operator.kind == "hessian" else _SMALLER_PART
    part = _part(operator, _SEARCHED, largest, request.seed)
    if part is None:
        return None
    share = part.samples / operator.samples
    allowed = min(_PRODUCTS, int((_affordable(request) - spent) / share))
    if allowed < _FEWEST_PRODUCTS:
        return None
    space = _space(part, request)
    foreign = operator.kind == "hessian" and isinstance(space, OutputSpace)
    tolerance = _FOREIGN_TOLERANCE if foreign else _TOLERANCES[type(space)]
    rough = Request(request.count, request.which, tolerance, allowed, request.seed)
    found = search(space, started(space, None, rough), rough)
    cost = spent + share * (found.products + space.embedding_cost * found.vectors.shape[1])
    vectors = found.vectors
    if request.stop == "residual" and operator.kind != "hessian" and found.mixture is not None:
        # The largest eigenvalues of a Fisher matrix are close together, one for each output, and
        # in another order on the part: a start near one of them would hide the others.
        vectors = vectors + _MIXED * found.mixture.unsqueeze(1)
    return Guess(space, vectors, request.which, cost)


def _affordable(request: Request) -> float:
    """Products: one on all data, and one to carry each vector there, must be left."""
    return min(_LARGEST_COST, request.max_products - 1 - request.count)


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


def _part(
    operator: CurvatureOperator, share: float, largest: float, seed: int
) -> CurvatureOperator | None:
    """The same curvature on about that share of the data; None if too few samples were a part."""
    evaluator = operator.evaluator
    problem = evaluator.problem
    if len(operator.batch_sizes) >= 1 / _LARGEST_PART:
        _, batch = next(evaluator.batches())
    elif len(operator.batch_sizes) == 1 and problem.has_outputs:
        samples = max(_FEWEST_SAMPLES, round(share * operator.samples))
        if samples > largest * operator.samples:
            return None
        _, whole = next(evaluator.batches())
        batch = rows(whole, _drawn(samples, operator.samples, seed).to(operator.device))
    else:
        return None
    smaller = Problem(problem.model, problem.loss, [batch])
    return CurvatureOperator(evaluator.on(smaller), operator.kind)


def _drawn(count: int, samples: int, seed: int) -> Tensor:
    """Some of the samples at random: the first ones may be of one class, every n-th of one kind."""
    return torch.randperm(samples, generator=torch.Generator().manual_seed(seed))[:count]
