"""A layer's units with what autograd says of them: the two sides that a theorem compares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from normscope.errors import InputError, ShapeError
from normscope.theorems.unit import Product, Units, smallest

__all__ = ["DENSE_LIMIT", "Situation", "as_bound", "as_vector", "situation_of"]

ROUNDING = 1e-12  # of a gradient beside its terms: below it there is none
DENSE_LIMIT = 512  # values of a batch up to which a Hessian given by products is made a matrix


@dataclass(frozen=True, eq=False)
class Situation:
    """Some units, and the derivatives through their normalization as autograd takes them.

    Args:
        units: the closed forms.
        gradient: of the loss by the layer's inputs, by autograd, (units, batch).
        jacobian: takes vectors, (units, vectors, batch), to the Jacobian of the normalized outputs
            times them, by autograd; not a number for a unit where it cannot be told.
        probes: vectors to test the Jacobian with, (units, probes, batch); None for a whole basis.
        hessian: products with the Hessian by the layer's outputs, over (units, batch).
        curvature: products with the Hessian by the layer's inputs, by autograd.
        bound: of the spectral norm of the layer's input matrix.
        dense_limit: batch size up to which a matrix may be made of ``hessian``.
    """

    units: Units
    gradient: Tensor
    jacobian: Product
    hessian: Product
    curvature: Product
    bound: float
    probes: Tensor | None = None
    dense_limit: int = DENSE_LIMIT

    @cached_property
    def direction(self) -> Tensor:
        """The gradient, and zero where it is nothing but rounding, as in a batch of two."""
        units = self.units
        largest = (units.gamma / units.scale).abs() * units.g.norm(dim=-1)
        rounded = self.gradient.norm(dim=-1) <= ROUNDING * largest
        return self.gradient.masked_fill(rounded.unsqueeze(-1), 0.0)


class _Symmetric(torch.autograd.Function):
    """A symmetric linear map known by its products, differentiable as often as one likes."""

    @staticmethod
    def forward(ctx: Any, vector: Tensor, product: Product) -> Tensor:
        ctx.product = product
        return product(vector)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _Symmetric.apply(gradients[0], ctx.product), None  # type: ignore[no-untyped-call]  # torch's apply is not typed


def as_vector(values: Any, name: str) -> Tensor:
    """Values as a float64 vector.

    Args:
        values: a tensor, array or list with one dimension.
        name: theirs, for messages.

    Returns:
        The vector.

    Raises:
        ShapeError: if there is not exactly one dimension with at least one value.
        InputError: if a value is no number, or not finite.
    """
    try:
        vector = torch.as_tensor(values, dtype=torch.float64).detach()
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"{name} must be a vector of numbers, got {values!r}.") from None
    if vector.dim() != 1 or len(vector) == 0:
        raise ShapeError(f"{name} must be a vector, got the shape {tuple(vector.shape)}.")
    if not torch.isfinite(vector).all():
        raise InputError(f"{name} holds values that are infinite or not a number.")
    return vector


def situation_of(
    y: Any,
    g: Any,
    H: Any = None,  # noqa: N803 - the papers' letter, part of the public surface
    gamma: float = 1.0,
    beta: float = 0.0,
    eps: float = 0.0,
    bound: float = 1.0,
) -> Situation:
    """One unit from plain tensors; its loss is the quadratic with this gradient and Hessian.

    Autograd goes through torch's own batch normalization in float64.

    Args:
        y: the batch before normalization.
        g: the gradient by the layer's output.
        H: the Hessian by the layer's output, a symmetric matrix or a function vector -> product;
            None for zero.
        gamma: the layer's scale.
        beta: the layer's shift.
        eps: added to the variance.
        bound: of the spectral norm of the layer's input matrix.

    Returns:
        The situation of one unit.
    """
    y, g = as_vector(y, "y"), as_vector(g, "g")
    given = {"gamma": gamma, "beta": beta, "eps": eps, "bound": bound}
    gamma, beta, eps, bound = (_number(value, name) for name, value in given.items())
    _check(y, g, gamma, beta, eps, bound)
    product = _product(H, len(y))
    weight, shift = (torch.tensor([value], dtype=torch.float64) for value in (gamma, beta))
    inputs = y.unsqueeze(1).clone().requires_grad_()
    z = _normalized(inputs, eps, weight, shift).squeeze(1)
    moved = z - z.detach()
    loss = g @ moved + moved @ _Symmetric.apply(moved, product) / 2  # type: ignore[no-untyped-call]  # see above
    (gradient,) = torch.autograd.grad(loss, inputs, create_graph=True)

    def curvature(vector: Tensor) -> Tensor:
        found: Tensor = torch.autograd.grad(gradient, inputs, vector.T, retain_graph=True)[0]
        return found.T

    return Situation(
        Units(y.unsqueeze(0), g.unsqueeze(0), weight, eps),
        gradient.detach().T,
        partial(_jacobian_products, y, eps),
        lambda vector: product(vector[0]).unsqueeze(0),
        curvature,
        bound,
        dense_limit=DENSE_LIMIT if callable(H) else max(DENSE_LIMIT, len(y)),
    )


def _normalized(
    x: Tensor, eps: float, scale: Tensor | None = None, shift: Tensor | None = None
) -> Tensor:
    # beneath torch.nn.functional, which refuses eps = 0
    return torch.batch_norm(x, scale, shift, None, None, True, 0.0, eps, False)


def _jacobian_products(y: Tensor, eps: float, vectors: Tensor) -> Tensor:
    """The Jacobian of the normalized outputs times vectors, (1, vectors, batch), by autograd."""
    # one channel for each vector: all of them in one backward pass
    copies = y.unsqueeze(1).repeat(1, vectors.shape[1]).requires_grad_()
    found: Tensor = torch.autograd.grad(_normalized(copies, eps), copies, vectors[0].T)[0]
    return found.T.unsqueeze(0)


def as_bound(value: Any) -> float:
    """A bound of a spectral norm as a number.

    Args:
        value: given.

    Returns:
        The number.

    Raises:
        InputError: if it is no number, negative or not finite.
    """
    bound = _number(value, "bound")
    if not 0 <= bound < float("inf"):
        raise InputError(f"bound must be finite and not negative, got {bound:g}.")
    return bound


def _number(value: Any, name: str) -> float:
    """A number, also of a parameter with its gradient."""
    try:
        return float(value.detach()) if isinstance(value, Tensor) else float(value)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"{name} must be a number, got {value!r}.") from None


def _check(y: Tensor, g: Tensor, gamma: float, beta: float, eps: float, bound: float) -> None:
    if len(y) != len(g):
        raise ShapeError(f"y and g are of one batch, got {len(y)} and {len(g)} values.")
    if len(y) < 2:
        raise InputError("batch statistics need at least two values in y.")
    if not torch.isfinite(torch.tensor([gamma, beta, eps, bound])).all() or eps < 0 or bound < 0:
        raise InputError(
            "gamma, beta, eps and bound must be finite, eps and bound not negative, got "
            f"{gamma:g}, {beta:g}, {eps:g}, {bound:g}."
        )
    if eps == 0 and bool((y == y[0]).all()):
        raise InputError("y does not vary, and eps is 0: there is nothing to divide by.")
    divisor = float(y.var(correction=0)) + eps
    if not smallest(y.dtype) < divisor < float("inf"):
        raise InputError(
            f"the variance of y is {divisor:g}, beyond what float64 holds with all its digits; "
            "measure y in another unit."
        )


def _product(given: Any, size: int) -> Callable[[Tensor], Tensor]:
    if given is None:
        return torch.zeros_like
    if callable(given) and not isinstance(given, Tensor):
        return lambda vector: torch.as_tensor(given(vector.detach()), dtype=torch.float64)
    matrix = torch.as_tensor(given, dtype=torch.float64).detach()
    if matrix.shape != (size, size):
        raise ShapeError(f"H must be ({size}, {size}) as y has {size} values, got {matrix.shape}.")
    if not torch.isfinite(matrix).all():
        raise InputError("H holds values that are infinite or not a number.")
    if not torch.allclose(matrix, matrix.T, rtol=1e-9, atol=1e-12 * float(matrix.abs().max())):
        raise InputError("H is a Hessian and must be symmetric; give (H + H.T) / 2.")
    return lambda vector: matrix @ vector
