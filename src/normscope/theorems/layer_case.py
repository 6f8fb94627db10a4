"""Units of a batch-normalized layer: closed forms, and the same derivatives by autograd."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from normscope.errors import InputError, ShapeError

Product: TypeAlias = Callable[[Tensor], Tensor]

ROUNDING = 1e-12  # relative size below which a deviation or a gradient is rounding error
DENSE_LIMIT = 512  # batch size up to which a Hessian given by products is formed as a matrix


def inner(first: Tensor, second: Tensor) -> Tensor:
    """Return the inner product along the batch, for each unit.

    >>> inner(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0]]))
    tensor([11.])
    """
    return (first * second).sum(-1)


def smallest(dtype: torch.dtype) -> float:
    """Return the least number of a type that keeps full precision in a few operations."""
    limits = torch.finfo(dtype)
    return float(limits.tiny / limits.eps)


@dataclass(frozen=True, eq=False)
class Units:
    r"""Batch normalization of some units in closed form, each with its batch.

    .. math:: \hat y = (y - \mu)/s, \qquad s^2 = \mathrm{var}(y) + \epsilon, \qquad
        z = \gamma \hat y + \beta

    Notation: s = scale, r = ratio, m = batch_size; functions treat the units separately.

    Args:
        y: the layer's inputs, (units, batch).
        g: the gradient of the loss by the layer's outputs z, (units, batch).
        gamma: the layer's scales, (units,).
        eps: added to the variance.
    """

    y: Tensor
    g: Tensor
    gamma: Tensor
    eps: float

    @property
    def batch_size(self) -> int:
        """Number of values in one mean."""
        return self.y.shape[-1]

    @cached_property
    def _variance_and_centred(self) -> tuple[Tensor, Tensor]:
        centred = self.y - self.y.mean(-1, keepdim=True)
        centred = centred - centred.mean(-1, keepdim=True)  # the first mean is rounded
        return centred.square().mean(-1), centred

    @property
    def variance(self) -> Tensor:
        """The 1/m variance, (units,)."""
        return self._variance_and_centred[0]

    @cached_property
    def varies(self) -> Tensor:
        """Whether the variance is large enough to divide by without eps, (units,).

        >>> batches = torch.tensor([[0.1, 0.1, 0.1], [1.0, 2.0, 4.0]])
        >>> Units(batches, torch.ones(2, 3), torch.ones(2), 1e-5).varies
        tensor([False,  True])
        """
        least = ROUNDING * self.y.abs().amax(-1)
        usable: Tensor = (self.variance > smallest(self.y.dtype)) & self.variance.isfinite()
        return usable & (self.variance.sqrt() > least)

    @cached_property
    def scale(self) -> Tensor:
        """The root of variance plus eps, by which the layer divides, (units,)."""
        return (self.variance + self.eps).sqrt()

    @cached_property
    def ratio(self) -> Tensor:
        """Variance over variance plus eps, (units,); 1 for eps = 0."""
        return self.variance / (self.variance + self.eps)

    @cached_property
    def y_hat(self) -> Tensor:
        """The normalized outputs, (units, batch)."""
        return self._variance_and_centred[1] / self.scale.unsqueeze(-1)

    @cached_property
    def along(self) -> Tensor:
        """The inner product of gradient and normalized output, (units,)."""
        return inner(self.g, self.y_hat)

    def without_eps(self) -> Units:
        """Return the units with eps = 0, as in the papers."""
        return Units(self.y, self.g, self.gamma, 0.0)

    def select(self, units: Tensor) -> Units:
        """Return some of the units."""
        return Units(self.y[units], self.g[units], self.gamma[units], self.eps)

    def jacobian_times(self, vector: Tensor) -> Tensor:
        r"""Return the Jacobian of the normalized outputs times a vector.

        .. math:: J v = \frac1s \left(v - \tfrac1m 1 1^\top v
            - \tfrac1m \hat y \hat y^\top v\right)

        Reference: santurkar2018, Fact C.2, Eq. (1); true for any eps with s and the normalized
        output as above.

        Args:
            vector: (units, batch).

        Returns:
            The product, (units, batch).

        >>> units = Units(torch.tensor([[-1.0, 1.0]]), torch.ones(1, 2), torch.ones(1), 0.0)
        >>> units.jacobian_times(torch.tensor([[1.0, 0.0]]))  # two samples: always at -1 and 1
        tensor([[0., 0.]])
        """
        share = inner(self.y_hat, vector).unsqueeze(-1) / self.batch_size
        return (vector - vector.mean(-1, keepdim=True) - self.y_hat * share) / _column(self.scale)

    @cached_property
    def gradient(self) -> Tensor:
        """The gradient by the layer's inputs in closed form, (units, batch)."""
        return _column(self.gamma) * self.jacobian_times(self.g)

    def curvature_terms(self, vector: Tensor, hessian: Product) -> tuple[Tensor, Tensor, Tensor]:
        r"""Return the quadratic form of the Hessian by the layer's inputs, as two terms.

        .. math:: v^\top \hat H v = \gamma^2 (Jv)^\top H (Jv) - \frac{\gamma}{s m}
            \left(2 \langle \hat y, v\rangle \langle g, Jv\rangle
            + \langle g, \hat y\rangle \langle v, Jv\rangle\right)

        Args:
            vector: (units, batch).
            hessian: products with the Hessian by the outputs z, over (units, batch).

        Returns:
            The first term, the second with its sign, and the size of both before cancellation in
            Jv, each (units,); if the Hessian couples units, their sums are the terms of the form.
        """
        moved = self.jacobian_times(vector)
        pushed = _column(self.gamma) * moved
        across, curved = inner(self.y_hat, vector), hessian(pushed)
        bent = 2 * across * inner(self.g, moved) + self.along * inner(vector, moved)
        front = self.gamma / (self.scale * self.batch_size)
        long = vector.norm(dim=-1)
        size = 2 * across.abs() * self.g.norm(dim=-1) + self.along.abs() * long
        stretched = self.gamma.abs() * long / self.scale  # size of pushed without cancellation
        size = front.abs() * size * long / self.scale + stretched * curved.norm(dim=-1)
        return inner(pushed, curved), -front * bent, size

    def curvature_matrix(self, hessian: Tensor) -> Tensor:
        """Return the Hessian by the inputs of one unit as a matrix, from that by its outputs.

        Args:
            hessian: (batch, batch).

        Returns:
            The symmetric matrix, (batch, batch).
        """
        ones = torch.ones_like(self.y)
        flat = torch.eye(self.batch_size, dtype=self.y.dtype, device=self.y.device)
        flat = flat - ones.T @ ones / self.batch_size - self.y_hat.T @ self.y_hat / self.batch_size
        jacobian = flat / self.scale
        outer = self.y_hat.T @ (self.g @ jacobian)
        bent = outer + outer.T + self.along * jacobian
        factor = self.gamma / (self.scale * self.batch_size)
        return self.gamma**2 * jacobian @ hessian @ jacobian - factor * bent


def _column(values: Tensor) -> Tensor:
    return values.unsqueeze(-1)


@dataclass(frozen=True, eq=False)
class LayerCase:
    """Some units, with the derivatives through their normalization by autograd.

    Args:
        units: the closed forms.
        gradient: of the loss by the layer's inputs, by autograd, (units, batch).
        jacobian: takes vectors, (units, vectors, batch), to the Jacobian of the normalized outputs
            times them, by autograd; NaN for units where it is unknown.
        probes: vectors to test the Jacobian with, (units, probes, batch); None for a basis.
        hessian: products with the Hessian by the layer's outputs, over (units, batch).
        curvature: products with the Hessian by the layer's inputs, by autograd.
        bound: of the spectral norm of the layer's input matrix.
        dense_limit: batch size up to which ``hessian`` may be formed as a matrix.
    """

    units: Units
    gradient: Tensor
    jacobian: Product
    hessian: Product
    curvature: Product
    bound: float
    probes: Tensor | None = None
    dense_limit: int = DENSE_LIMIT

    def units_in(self, form: str) -> Units:
        """Return the units as a form of a statement takes them: only "exact" with eps."""
        return self.units if form == "exact" else self.units.without_eps()

    @cached_property
    def direction(self) -> Tensor:
        """The gradient, or zero if it is rounding error, as in a batch of two."""
        units = self.units
        largest = (units.gamma / units.scale).abs() * units.g.norm(dim=-1)
        rounded = self.gradient.norm(dim=-1) <= ROUNDING * largest
        return self.gradient.masked_fill(rounded.unsqueeze(-1), 0.0)


class _Symmetric(torch.autograd.Function):
    """A symmetric linear map given by its products, differentiable any number of times."""

    @staticmethod
    def forward(ctx: Any, vector: Tensor, product: Product) -> Tensor:
        ctx.product = product
        return product(vector)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _Symmetric.apply(gradients[0], ctx.product), None  # type: ignore[no-untyped-call]  # torch's apply is not typed


def as_vector(values: Any, name: str) -> Tensor:
    """Return values as a float64 vector.

    Args:
        values: a tensor, array or list with one dimension.
        name: for messages.

    Returns:
        The vector.

    Raises:
        ShapeError: if there is not exactly one dimension with at least one value.
        InputError: if a value is not a number, or not finite.
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


def layer_case(
    y: Any,
    g: Any,
    H: Any = None,  # noqa: N803 - the papers' letter, part of the public surface
    gamma: float = 1.0,
    beta: float = 0.0,
    eps: float = 0.0,
    bound: float = 1.0,
) -> LayerCase:
    """Return one unit from plain tensors, with the quadratic loss of this gradient and Hessian.

    Autograd differentiates torch's batch normalization in float64.

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
        The case of one unit.
    """
    y, g = as_vector(y, "y"), as_vector(g, "g")
    given = {"gamma": gamma, "beta": beta, "eps": eps, "bound": bound}
    gamma, beta, eps, bound = (_number(value, name) for name, value in given.items())
    _check_unit(y, g, gamma, beta, eps, bound)
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

    return LayerCase(
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
    # not by torch.nn.functional, which rejects eps = 0
    return torch.batch_norm(x, scale, shift, None, None, True, 0.0, eps, False)


def _jacobian_products(y: Tensor, eps: float, vectors: Tensor) -> Tensor:
    """Return the Jacobian of the normalized outputs times vectors, (1, vectors, batch)."""
    # one channel for each vector, so that one backward pass serves all
    copies = y.unsqueeze(1).repeat(1, vectors.shape[1]).requires_grad_()
    found: Tensor = torch.autograd.grad(_normalized(copies, eps), copies, vectors[0].T)[0]
    return found.T.unsqueeze(0)


def as_bound(value: Any) -> float:
    """Return a bound of a spectral norm as a float.

    Args:
        value: to convert.

    Returns:
        The bound.

    Raises:
        InputError: if it is not a number, negative or not finite.
    """
    bound = _number(value, "bound")
    if not 0 <= bound < float("inf"):
        raise InputError(f"bound must be finite and not negative, got {bound:g}.")
    return bound


def _number(value: Any, name: str) -> float:
    """Return a float, also of a parameter that requires grad."""
    try:
        return float(value.detach()) if isinstance(value, Tensor) else float(value)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"{name} must be a number, got {value!r}.") from None


def _check_unit(y: Tensor, g: Tensor, gamma: float, beta: float, eps: float, bound: float) -> None:
    if len(y) != len(g):
        raise ShapeError(f"y and g must have the same length, got {len(y)} and {len(g)} values.")
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
