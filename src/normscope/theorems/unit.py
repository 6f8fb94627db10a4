"""Units of a batch-normalized layer in closed form: statistics, Jacobian, gradient, curvature."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import torch
from torch import Tensor

__all__ = ["Product", "Units", "inner", "smallest"]

Product: TypeAlias = Callable[[Tensor], Tensor]
_ROUNDING = 1e-12  # of a deviation beside the values: below it they are all the same


def inner(first: Tensor, second: Tensor) -> Tensor:
    """Inner product along the batch, for each unit.

    >>> inner(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0]]))
    tensor([11.])
    """
    return (first * second).sum(-1)


def smallest(dtype: torch.dtype) -> float:
    """The least number of a type that still has all its digits, also after a few operations."""
    limits = torch.finfo(dtype)
    return float(limits.tiny / limits.eps)


@dataclass(frozen=True, eq=False)
class Units:
    r"""What batch normalization does to some units, each with a batch of its own.

    .. math:: \hat y = (y - \mu)/s, \qquad s^2 = \mathrm{var}(y) + \epsilon, \qquad
        z = \gamma \hat y + \beta

    Notation: s = scale, r = ratio, m = batch_size; every function keeps the units apart.

    Args:
        y: the layer's inputs, (units, batch).
        g: the gradient of the loss by the layer's outputs z, (units, batch).
        gamma: the layer's scales, (units,).
        eps: what is added to the variance.
    """

    y: Tensor
    g: Tensor
    gamma: Tensor
    eps: float

    @property
    def batch_size(self) -> int:
        """Values that enter one mean."""
        return self.y.shape[-1]

    @cached_property
    def _variance_and_centred(self) -> tuple[Tensor, Tensor]:
        centred = self.y - self.y.mean(-1, keepdim=True)
        centred = centred - centred.mean(-1, keepdim=True)  # the first mean was rounded
        return centred.square().mean(-1), centred

    @property
    def variance(self) -> Tensor:
        """The 1/m variance, (units,)."""
        return self._variance_and_centred[0]

    @cached_property
    def varies(self) -> Tensor:
        """Whether there is a variance to divide by without eps, (units,).

        >>> batches = torch.tensor([[0.1, 0.1, 0.1], [1.0, 2.0, 4.0]])
        >>> Units(batches, torch.ones(2, 3), torch.ones(2), 1e-5).varies
        tensor([False,  True])
        """
        least = _ROUNDING * self.y.abs().amax(-1)
        usable: Tensor = (self.variance > smallest(self.y.dtype)) & self.variance.isfinite()
        return usable & (self.variance.sqrt() > least)

    @cached_property
    def scale(self) -> Tensor:
        """What the layer divides by, the root of variance plus eps, (units,)."""
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
        """The same units as the papers see them: eps = 0."""
        return Units(self.y, self.g, self.gamma, 0.0)

    def select(self, units: Tensor) -> Units:
        """Some of the units."""
        return Units(self.y[units], self.g[units], self.gamma[units], self.eps)

    def jacobian_times(self, vector: Tensor) -> Tensor:
        r"""The Jacobian of the normalized outputs times a vector.

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
        r"""The quadratic form of the Hessian by the layer's inputs, in closed form, in two terms.

        .. math:: v^\top \hat H v = \gamma^2 (Jv)^\top H (Jv) - \frac{\gamma}{s m}
            \left(2 \langle \hat y, v\rangle \langle g, Jv\rangle
            + \langle g, \hat y\rangle \langle v, Jv\rangle\right)

        Args:
            vector: (units, batch).
            hessian: products with the Hessian by the outputs z, over (units, batch).

        Returns:
            The first term, the second with its sign, and the size of both before anything cancels
            in Jv, each (units,); over several units that the Hessian couples, their sums are the
            terms of the whole form.
        """
        moved = self.jacobian_times(vector)
        pushed = _column(self.gamma) * moved
        across, curved = inner(self.y_hat, vector), hessian(pushed)
        bent = 2 * across * inner(self.g, moved) + self.along * inner(vector, moved)
        front = self.gamma / (self.scale * self.batch_size)
        long = vector.norm(dim=-1)
        size = 2 * across.abs() * self.g.norm(dim=-1) + self.along.abs() * long
        stretched = self.gamma.abs() * long / self.scale  # pushed, had nothing cancelled in it
        size = front.abs() * size * long / self.scale + stretched * curved.norm(dim=-1)
        return inner(pushed, curved), -front * bent, size

    def curvature_matrix(self, hessian: Tensor) -> Tensor:
        """The Hessian by the inputs of one unit as a matrix, from that by its outputs.

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
