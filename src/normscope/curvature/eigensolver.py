"""The eigenvalue search: start vectors, iteration, and the stopping rule."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from normscope.curvature.davidson import Davidson, MeanModel
from normscope.curvature.lanczos import Basis, Lanczos, RitzPairs
from normscope.curvature.precision import length
from normscope.curvature.spaces import SearchSpace
from normscope.errors import InputError
from normscope.progress import Progress, ProgressCallback, ignore_progress

STOPS = ("residual", "value")
ROUNDING = 32.0  # units of rounding that hide an eigenvalue beside the largest
# Residual in tolerances from which error estimates of values are trusted. On 116 matrices (fully
# connected, VGG and ResNets, new weights) 10 takes 2 % more products than 20. With 20 the Fisher
# matrix of a full-width ResNet-18 (ten close eigenvalues) ended 1.1 % short, with 10 0.04 %.
VALUE_RESIDUAL = 10.0
_BASIS_BYTES = 2**28  # memory for basis vectors, beyond which the basis is compressed
_RANDOM_SHARE = 0.05  # random part of a start vector that is a guess
_SMALL_RANDOM_SHARE = 0.01  # ... of one with a model, which changes the value by 1e-4
# A residual shows that an eigenvalue is near, not that it is the last one: among eigenvalues
# closer together than the tolerance (the outputs of a wide net) the value can be short by a small
# multiple of the residual. The search continues to this part of the tolerance if matvecs remain.
_MARGIN = 0.5
# Gaps of two similar matrices differ by about the residual of one's eigenvector with the other.
_GAP_DOUBT = 1.5
_NEAR = 0.8  # of the first value: Ritz values above it may belong to the same cluster
_REACHABLE = 4.0  # units of rounding: products leave no smaller residual


@dataclass(frozen=True)
class SearchProgress(Progress):
    """Progress event of a search after a matvec.

    Args:
        value: current estimate of the first eigenvalue.
        residual: its relative residual; the largest one of several eigenvalues.
    """

    value: float = math.nan
    residual: float = math.nan


@dataclass(frozen=True)
class Request:
    """Parameters of an eigenvalue search.

    Args:
        count: how many eigenvalues (of either end for "both").
        which: "largest", "smallest", "both" or "magnitude".
        tolerance: on the relative residual or error.
        max_products: after how many matvecs to give up.
        seed: of the random part of the start.
        stop: "residual": when the residuals are within the tolerance; "value": when the estimated
            errors of the values are.
        progress: called after each matvec.
    """

    count: int
    which: str
    tolerance: float
    max_products: int
    seed: int
    stop: str = "residual"
    progress: ProgressCallback = ignore_progress

    @property
    def wanted(self) -> int:
        """Number of eigenvalues wanted, of both ends together."""
        return self.count * (2 if self.which == "both" else 1)

    def with_fewer_products(self, spent: float, each: float = 1.0) -> Request:
        """Return the request with the remaining matvecs, at the given cost each; at least one."""
        left = max(1, math.floor((self.max_products - spent) / each))
        return replace(self, max_products=left)


@dataclass(frozen=True)
class Found:
    """Result of a search.

    Args:
        values: float64, the most wanted first.
        vectors: eigenvectors in the search space, one column each.
        residuals: relative.
        errors: estimated, relative.
        converged: whether all wanted values are within the tolerance.
        products: number of matvecs.
        mixture: the sum of the Ritz vectors whose values are close to the first; for a search of
            one eigenvalue only, and None if there is no such vector.
        gap: distance of the first value to the next one, relative to the first, at least; 0 if it
            is not known, or for a search of more than one eigenvalue.
    """

    values: Tensor
    vectors: Tensor
    residuals: Tensor
    errors: Tensor
    converged: bool
    products: int
    mixture: Tensor | None = None
    gap: float = 0.0


def start_block(
    space: SearchSpace,
    guesses: Tensor | None,
    request: Request,
    mean_model: MeanModel | None = None,
) -> Tensor:
    """Return the block of start vectors, as many as eigenvalues are wanted.

    A guess could miss the vector of a larger eigenvalue. Every guess therefore gets a random part,
    and vectors without a guess are random.

    Args:
        space: where to search.
        guesses: vectors of the space, of any length, one column each; or None.
        request: parameters of the search.
        mean_model: that the search will use.

    Returns:
        (size, count).
    """
    random_share = _RANDOM_SHARE if mean_model is None else _SMALL_RANDOM_SHARE
    generator = torch.Generator().manual_seed(request.seed)
    drawn = torch.randn(request.count, space.size, generator=generator)
    block = drawn.to(space.device, space.dtype).div_(space.size**0.5)
    guessed = 0 if guesses is None else min(request.count, guesses.shape[1])
    for column in range(guessed):
        assert guesses is not None
        guess = guesses[:, column]
        if length(guess) > 0:
            block[column].mul_(random_share).add_(guess / length(guess))
    return block.T


def search(
    space: SearchSpace,
    start: Tensor,
    request: Request,
    mean_model: MeanModel | None = None,
    gap: float = 0.0,
) -> Found:
    """Return the extreme eigenvalues of the matrix of a space.

    Args:
        space: the space with its matrix.
        start: (size, count).
        request: parameters of the search.
        mean_model: of the matrix, for Davidson's method; None for Lanczos.
        gap: of a similar matrix, of which the start is an eigenvector.

    Returns:
        The best approximations once all residuals are within the tolerance, or no product is left.
    """
    basis = _basis(space, start, request, mean_model)
    del start  # as large as a basis vector, and copied
    reachable = _REACHABLE * torch.finfo(space.dtype).eps
    while True:
        basis.step()
        pairs = basis.ritz_pairs(request.which, request.count)
        residuals, errors = _relative(pairs, space, request.tolerance)
        if basis.products == 1:  # of the similar matrix's eigenvector: how similar it is
            gap -= _GAP_DOUBT * float(residuals.max())
        if gap > 0:
            errors = errors.minimum(residuals.square() / gap)
        complete = len(pairs.values) == min(request.wanted, space.size)
        _report(request, basis.products, pairs, residuals)
        at_end = basis.exhausted or basis.products >= request.max_products
        at_end |= complete and bool((residuals <= reachable).all())
        # the gap in Lanczos' error estimate is a guess until the vector is roughly known
        trusted = mean_model is not None or bool(
            (residuals <= VALUE_RESIDUAL * request.tolerance).all()
        )
        margin = 1.0 if at_end else _MARGIN
        converged = complete and _within_tolerance(residuals, errors, request, margin, trusted)
        if converged or at_end:
            vectors = basis.vectors(pairs)
            return Found(
                values=pairs.values,
                vectors=vectors.to(space.dtype),
                residuals=residuals,
                errors=errors,
                converged=converged,
                products=basis.products,
                mixture=_mixture(basis, request, space.dtype) if mean_model is None else None,
                gap=_gap(basis, request),
            )
        if basis.full:
            basis.compress(request.which, max(request.count + 2, basis.done // 3))


def _basis(
    space: SearchSpace, start: Tensor, request: Request, mean_model: MeanModel | None
) -> Basis:
    wide = torch.promote_types(space.dtype, torch.float32)  # half precision is not orthogonal
    start = start.to(wide)

    def product(vector: Tensor) -> Tensor:
        image = space.times(vector.to(space.dtype)).to(wide)
        _check_range(float(image.abs().max()), wide)
        return image if wide == space.dtype else _rescaled(space, vector, image)

    generator = torch.Generator().manual_seed(request.seed + 1)
    held = space.size * start.element_size() * (1 if mean_model is None else 2)
    limit = max(4 * request.count + 6, min(128, _BASIS_BYTES // held))
    if mean_model is None:
        return Lanczos(product, start, limit, generator)
    return Davidson(product, start, limit, generator, mean_model, request.which)


def _rescaled(space: SearchSpace, vector: Tensor, image: Tensor) -> Tensor:
    """Return the image of a vector in half precision; of a multiple if its entries underflow."""
    if float(image.abs().max()) >= torch.finfo(space.dtype).tiny:
        return image
    scale = 2.0 ** -math.floor(math.log2(float(vector.abs().max())))
    return space.times((vector * scale).to(space.dtype)).to(image.dtype) / scale


def _check_range(largest: float, dtype: torch.dtype) -> None:
    """Refuse images whose squared entries overflow: their norms would be wrong."""
    limit = torch.finfo(dtype).max ** 0.5 / 2**20
    if largest > limit:
        raise InputError(
            f"the curvature is of the order of {largest:.0e}, whose square overflows {dtype}; "
            "scale the loss or the data, or measure model.double()."
        )


def _mixture(basis: Basis, request: Request, dtype: torch.dtype) -> Tensor | None:
    """Return the sum of the Ritz vectors after the first whose values are close to the first."""
    if request.count > 1 or request.which == "both":
        return None
    pairs = basis.ritz_pairs(request.which, basis.done)
    near = pairs.values / pairs.values[0] >= _NEAR
    near[0] = False
    if not bool(near.any()):
        return None
    coefficients = pairs.coefficients[:, near].sum(1, keepdim=True)
    return basis.combination(coefficients)[:, 0].to(dtype)


def _gap(basis: Basis, request: Request) -> float:
    """Return the distance of the first value to the next one, less the next one's residual."""
    if request.wanted > 1 or request.which == "magnitude":
        return 0.0
    pairs = basis.ritz_pairs(request.which, 2)
    if len(pairs.values) < 2 or pairs.values[0] == 0:
        return 0.0
    distance = float((pairs.values[0] - pairs.values[1]).abs() - pairs.residuals[1])
    return max(0.0, distance / abs(float(pairs.values[0])))


def _within_tolerance(
    residuals: Tensor, errors: Tensor, request: Request, margin: float, trusted: bool
) -> bool:
    """Return whether the pairs are accurate enough; margin is a factor on residual tolerances."""
    if request.stop == "residual":
        return bool((residuals <= margin * request.tolerance).all())
    return trusted and bool((errors <= request.tolerance).all())


def _relative(pairs: RitzPairs, space: SearchSpace, tolerance: float) -> tuple[Tensor, Tensor]:
    """Return the residuals and errors relative to the eigenvalues.

    An eigenvalue that is zero up to rounding has no relative accuracy. Its magnitude is therefore
    replaced by the smallest one that rounding lets a residual within the tolerance resolve. A
    residual below a unit of rounding is that of the projection, not of the products.
    """
    wide = torch.promote_types(space.dtype, torch.float32)
    resolvable = min(1.0, ROUNDING * torch.finfo(wide).eps / tolerance) * pairs.norm
    floor = max(resolvable, torch.finfo(torch.float64).tiny)
    sizes = pairs.values.abs().clamp(min=floor)
    lifted = pairs.residuals * space.residual_factor(sizes, pairs.norm)
    return (lifted / sizes).clamp(min=torch.finfo(wide).eps), pairs.errors / sizes


def _report(request: Request, products: int, pairs: RitzPairs, residuals: Tensor) -> None:
    value, residual = float(pairs.values[0]), float(residuals.max())
    request.progress(
        SearchProgress(
            detail=f"eigenvalue {value:.5g} (residual {residual:.1e})",
            done=products,
            total=request.max_products,
            unit="products",
            total_is="bound",
            value=value,
            residual=residual,
        )
    )
