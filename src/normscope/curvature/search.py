"""The search for extreme eigenvalues: start, iterate, stop when the residual is small."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor

from normscope.curvature.basis import GrowingBasis
from normscope.curvature.davidson import Davidson
from normscope.curvature.lanczos import Lanczos
from normscope.curvature.mean_model import MeanModel
from normscope.curvature.ritz import RitzPairs
from normscope.curvature.spaces import SearchSpace
from normscope.errors import InputError, StateError

__all__ = ["ROUGHLY", "ROUNDING", "STOPS", "Found", "Progress", "Request", "search", "started"]

_BASIS_BYTES = 2**28  # memory for basis vectors, beyond which the basis is compressed
_RANDOM_SHARE = 0.05  # of a start that is not random
_SMALL_SHARE = 0.01  # ... and of one whose neighbours a model knows: 1e-4 of the value
# A residual shows that an eigenvalue is near, not that it is the last one: among eigenvalues
# closer together than the tolerance (the outputs of a wide net) the value can be short by a small
# multiple of the residual. The search goes on to this part of the tolerance while it has products.
_MARGIN = 0.5
ROUGHLY = 20.0  # how many tolerances a residual may have where only the value is asked for
_NEAR = 0.8  # of the first value: those between may be of one cluster
_REACHABLE = 4.0  # units of rounding: products leave no smaller residual
ROUNDING = 32.0  # units of it, that hide an eigenvalue beside the largest
_ASYMMETRY = 1e-3  # of the norm; rounding makes about 1e-6 in single precision
STOPS = ("residual", "value")


@dataclass(frozen=True)
class Progress:
    """Where a search stands after a product: for progress bars.

    Args:
        products: done so far.
        value: the present estimate of the first eigenvalue.
        residual: its relative residual; of several eigenvalues the largest.
    """

    products: float
    value: float
    residual: float


ProgressHook: TypeAlias = Callable[[Progress], None]


@dataclass(frozen=True)
class Request:
    """What is searched.

    Args:
        count: how many eigenvalues (of either end for "both").
        which: "largest", "smallest", "both" or "magnitude".
        tolerance: on the relative residual or error.
        stop: "residual", when the vectors are known to the tolerance; "value", when the values are.
        max_products: after how many products to give up.
        seed: of the random part of the start.
        progress: called after each product.
    """

    count: int
    which: str
    tolerance: float
    max_products: int
    seed: int
    stop: str = "residual"
    progress: ProgressHook | None = None

    @property
    def wanted(self) -> int:
        """How many eigenvalues of both ends together, if there are so many."""
        return self.count * (2 if self.which == "both" else 1)

    def with_fewer_products(self, spent: float, each: float = 1.0) -> Request:
        """The same with what is left of the products, of that cost, after some; at least one."""
        left = max(1, math.floor((self.max_products - spent) / each))
        return replace(self, max_products=left)


@dataclass(frozen=True)
class Found:
    """What a search ended with.

    Args:
        values: float64, the most wanted first.
        vectors: eigenvectors in the search space, one column each.
        residuals: relative.
        errors: estimated, relative.
        converged: whether all wanted are there, within the tolerance.
        products: with the operator.
        mixture: the sum of the vectors next in line, whose values are nearly as large; for
            one eigenvalue only, and None if there is no such vector.
    """

    values: Tensor
    vectors: Tensor
    residuals: Tensor
    errors: Tensor
    converged: bool
    products: int
    mixture: Tensor | None = None


def started(
    space: SearchSpace,
    guesses: Tensor | None,
    request: Request,
    model: MeanModel | None = None,
) -> Tensor:
    """The block of vectors to start from, as many as eigenvalues are wanted.

    A guess alone could hide a larger eigenvalue whose vector it happens to miss: a random part is
    mixed into every guess, and vectors without a guess are random.

    Args:
        space: where to search.
        guesses: vectors of the space, of any length, one column each; None for none.
        request: what is searched.
        model: what the search will know of the matrix.

    Returns:
        (size, count).
    """
    random_share = _RANDOM_SHARE if model is None else _SMALL_SHARE
    generator = torch.Generator().manual_seed(request.seed)
    drawn = torch.randn(request.count, space.size, generator=generator)
    block = drawn.to(space.device, space.dtype).div_(space.size**0.5)
    guessed = 0 if guesses is None else min(request.count, guesses.shape[1])
    for column in range(guessed):
        assert guesses is not None
        guess = guesses[:, column]
        if guess.norm() > 0:
            block[column].mul_(random_share).add_(guess / guess.norm())
    return block.T


def search(
    space: SearchSpace, start: Tensor, request: Request, model: MeanModel | None = None
) -> Found:
    """Extreme eigenvalues of the matrix of a space.

    Args:
        space: the space with its matrix.
        start: (size, count).
        request: what is searched.
        model: of the matrix, if there is one: its directions are followed, else Lanczos'.

    Returns:
        The best approximations when all residuals are within the tolerance, or the products are
        used up.
    """
    basis = _basis(space, start, request, model)
    del start  # as large as a basis vector, and copied
    reachable = _REACHABLE * torch.finfo(space.dtype).eps
    while True:
        basis.step()
        pairs = basis.ritz_pairs(request.which, request.count)
        _check_symmetric(basis.asymmetry, pairs.norm, space.dtype)
        residuals, errors = _relative(pairs, space, request.tolerance)
        complete = len(pairs.values) == min(request.wanted, space.size)
        _report(request, basis.products, pairs, residuals)
        at_end = basis.exhausted or basis.products >= request.max_products
        at_end |= complete and bool((residuals <= reachable).all())
        # the gap behind an error of Lanczos' is a guess until the vector is roughly there
        trusted = model is not None or bool((residuals <= ROUGHLY * request.tolerance).all())
        margin = 1.0 if at_end else _MARGIN
        converged = complete and _small(residuals, errors, request, margin, trusted)
        if converged or at_end:
            vectors = basis.vectors(pairs)
            return Found(
                *(pairs.values, vectors.to(space.dtype), residuals, errors, converged),
                basis.products,
                mixture=_mixture(basis, request, space.dtype) if model is None else None,
            )
        if basis.full:
            basis.compress(request.which, max(request.count + 2, basis.done // 3))


def _basis(
    space: SearchSpace, start: Tensor, request: Request, model: MeanModel | None
) -> GrowingBasis:
    """What grows while a matrix is searched."""
    wide = torch.promote_types(space.dtype, torch.float32)  # a basis in half precision is none
    start = start.to(wide)

    def product(vector: Tensor) -> Tensor:
        image = space.times(vector.to(space.dtype)).to(wide)
        _check_range(float(image.abs().max()), wide)
        return image

    generator = torch.Generator().manual_seed(request.seed + 1)
    held = space.size * start.element_size() * (1 if model is None else 2)
    limit = max(4 * request.count + 6, min(128, _BASIS_BYTES // held))
    if model is None:
        return Lanczos(product, start, limit, generator)
    return Davidson(product, start, limit, generator, model, request.which)


def _check_range(largest: float, dtype: torch.dtype) -> None:
    """Squares of an image's entries must not leave the range of numbers: lengths would be wrong."""
    limit = torch.finfo(dtype).max ** 0.5 / 2**20
    if largest > limit:
        raise InputError(
            f"the curvature is of the order of {largest:.0e}, whose square {dtype} cannot hold; "
            "scale the loss or the data, or measure model.double()."
        )


def _mixture(basis: GrowingBasis, request: Request, dtype: torch.dtype) -> Tensor | None:
    """The sum of the Ritz vectors behind the first whose values are near its own."""
    if request.count > 1 or request.which == "both":
        return None
    pairs = basis.ritz_pairs(request.which, basis.done)
    near = pairs.values / pairs.values[0] >= _NEAR
    near[0] = False
    if not bool(near.any()):
        return None
    coefficients = pairs.coefficients[:, near].sum(1, keepdim=True)
    return basis.combination(coefficients)[:, 0].to(dtype)


def _check_symmetric(asymmetry: float, norm: float, dtype: torch.dtype) -> None:
    """A matrix of second derivatives is symmetric, unless one of them is wrong."""
    if asymmetry > max(_ASYMMETRY, 64 * torch.finfo(dtype).eps) * norm:
        raise StateError(
            f"the products are not those of a symmetric matrix (by {asymmetry / norm:.1e} of its "
            "norm): an operation of the model or loss has a wrong second derivative, as torch's "
            "weight_norm has; use kind='ggn' or 'fisher', or write that operation out."
        )


def _small(
    residuals: Tensor, errors: Tensor, request: Request, margin: float, trusted: bool
) -> bool:
    """Whether the pairs are good enough; residuals, within that part of the tolerance."""
    if request.stop == "residual":
        return bool((residuals <= margin * request.tolerance).all())
    return trusted and bool((errors <= request.tolerance).all())


def _relative(pairs: RitzPairs, space: SearchSpace, tolerance: float) -> tuple[Tensor, Tensor]:
    """Residuals and errors relative to the eigenvalues.

    An eigenvalue that is zero up to rounding has no relative accuracy: it is taken as no smaller
    than what rounding lets a residual within the tolerance resolve. The largest one always has.
    """
    wide = torch.promote_types(space.dtype, torch.float32)
    resolvable = min(1.0, ROUNDING * torch.finfo(wide).eps / tolerance) * pairs.norm
    floor = max(resolvable, torch.finfo(torch.float64).tiny)
    sizes = pairs.values.abs().clamp(min=floor)
    lifted = pairs.residuals * space.residual_factor(sizes, pairs.norm)
    return lifted / sizes, pairs.errors / sizes


def _report(request: Request, products: int, pairs: RitzPairs, residuals: Tensor) -> None:
    if request.progress is not None:
        worst = float(residuals.max())
        request.progress(Progress(products, float(pairs.values[0]), worst))
