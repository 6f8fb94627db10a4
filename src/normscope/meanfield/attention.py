r"""Attention whose weights are nearly uniform, as at initialization.

With logits :math:`l_{ac} = s\, q_a \cdot k_c` of small variance, the weights are
:math:`A_{ac} = W_{ac} (1 + l_{ac} - \sum_d W_{ad} l_{ad})`, where W has the weights of equal
logits: 1 over the number of tokens that a token attends to. Logits are normal with the covariance
:math:`\kappa Q_{ab} K_{cd}`, :math:`\kappa = s^2 d` for heads of d units and kernels Q, K and V of
queries, keys and values. To first order in that covariance, the kernel of the output is

.. math:: O = W V W^\top + \kappa\, Q \circ F(K, V), \qquad
    F(K, V)_{ab} = \sum_{cd} W_{ac} W_{bd} \tilde K_{cd} V_{cd}

with :math:`\tilde K` centred over the tokens that a and b attend to. Its derivatives by V, K and Q
carry the gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from normscope.errors import ShapeError
from normscope.meanfield.field import (
    LARGEST_RESOLVED_MAP,
    SAME,
    Combination,
    Field,
    Setting,
    Signal,
)
from normscope.meanfield.integrals import Array

QUERY, KEY, VALUE = 0, 1, 2


@dataclass(frozen=True, eq=False)
class Attention(Combination):
    """Attention of queries, keys and values with many heads.

    Args:
        weights: of equal logits, (queries, keys); every row adds up to one.
        scale: of the logits.
        width: units of one head.
    """

    weights: Array = field(repr=False)
    scale: float
    width: int

    needs_positions = True  # the mean of tokens depends on their correlation

    def apply(self, fields: Sequence[Field], setting: Setting) -> Field:
        """Return the order parameters of its output."""
        query, key, value = self._resolved(fields)
        w = self.weights
        kernel = w @ value.kernel @ w.T
        kernel = kernel + self._kappa * query.kernel * _contracted(w, key.kernel, value.kernel)
        return value.mixed(positions=query.positions, mean=value.mean @ w.T, kernel=kernel)

    def pull_back(
        self, signal: Signal, fields: Sequence[Field], which: int, output: Field, setting: Setting
    ) -> Signal:
        """Return the gradients at the queries, keys or values."""
        query, key, value = self._resolved(fields)
        w, gradients = self.weights, signal.kernel
        if which == QUERY:
            below = self._kappa * gradients * _contracted(w, key.kernel, value.kernel)
        else:
            other = (key if which == VALUE else value).kernel
            below = _spread(w, self._kappa * query.kernel * gradients, other)
            if which == VALUE:
                below = below + w.T @ gradients @ w
        return Signal(below, signal.path)

    def logit_variance(self, query: Field, key: Field) -> float:
        """Return the largest variance of a token's logits over the tokens that it attends to."""
        w = self.weights
        query, key = query.expanded(), key.expanded()
        means = np.einsum("ac,scd,ad->sa", w, key.kernel[:, SAME], w, optimize=True)
        return float((self._kappa * query.second * (key.second @ w.T - means)).max())

    @property
    def _kappa(self) -> float:
        return self.scale**2 * self.width

    def _resolved(self, fields: Sequence[Field]) -> list[Field]:
        if any(each.count > LARGEST_RESOLVED_MAP for each in fields):
            tokens = max(each.count for each in fields)
            raise ShapeError(
                f"attention over {tokens} tokens, the theory takes at most {LARGEST_RESOLVED_MAP}; "
                "give a smaller input_shape."
            )
        return [each.expanded() for each in fields]


def _contracted(w: Array, centred: Array, other: Array) -> Array:
    """Return F, the sum over two tokens of a centred kernel times another one.

    Args:
        w: weights of equal logits, (queries, keys).
        centred: the kernel that is centred, (..., keys, keys).
        other: the other one.

    Returns:
        (..., queries, queries).
    """
    left, right = (w @ centred) * (w @ other), (centred @ w.T) * (other @ w.T)
    whole = (w @ centred @ w.T) * (w @ other @ w.T)
    return np.asarray(w @ (centred * other) @ w.T - left @ w.T - w @ right + whole)


def _spread(w: Array, above: Array, centred: Array) -> Array:
    """Return the derivative of the sum of F times ``above`` by the kernel that is not centred."""
    left = w.T @ ((w @ centred) * (above @ w))
    right = ((centred @ w.T) * (w.T @ above)) @ w
    whole = w.T @ ((w @ centred @ w.T) * above) @ w
    return np.asarray(centred * (w.T @ above @ w) - left - right + whole)
