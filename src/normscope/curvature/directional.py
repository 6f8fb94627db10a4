"""Derivatives along a vector where the graph of a backward pass cannot be differentiated.

`forward_mode` pushes a tangent through one forward pass. `Differences` compares values at two
nearby parameters, the last way: it has an error, which is estimated at every product.
"""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad as _forward_ad

from normscope.curvature.precision import in_double, length
from normscope.errors import NormscopeError, StateError
from normscope.problem.batch import Batch, to_double
from normscope.problem.evaluate import Evaluation, Evaluator
from normscope.warn import warn

forward_ad: Any = _forward_ad  # annotated incompletely

# torch's words for an operation that has no second derivative, or none in forward mode
_MISSING = (
    *("is not implemented", "double backward", "forward AD", "forward mode AD"),
    "has no second derivative",  # of `Differences`
)
# Steps, relative to the length of the parameters, by dtype: small, so that few kinks are crossed,
# and large beside rounding.
_STEPS = {torch.float64: 1e-6, torch.float32: 3e-4}
LARGEST_ERROR = 1e-3  # relative, of a product by differences; the default tolerance of a search


def lacks_derivative(error: BaseException | None) -> bool:
    """Return whether an error says that torch has no derivative of an operation.

    >>> lacks_derivative(RuntimeError("derivative for aten::op is not implemented"))
    True
    >>> lacks_derivative(RuntimeError("size mismatch"))
    False
    """
    while error is not None:
        if isinstance(error, RuntimeError) and any(part in str(error) for part in _MISSING):
            return True
        error = error.__cause__
    return False


def forward_mode(
    evaluator: Evaluator,
    batch: Batch,
    number: int,
    tangents: Sequence[Tensor],
    shape: torch.Size,
) -> Tensor:
    """Return J v, in the shape of the output, by one forward pass with dual numbers.

    Args:
        evaluator: of the model.
        batch: the batch.
        number: its number.
        tangents: v, one tensor for each parameter.
        shape: of the output.

    Raises:
        StateError: if the loss reads other tensors of a structured output in this mode.

    Returns:
        The product; zero if no tangent reaches the output.
    """
    _load_forward_mode()
    points = [evaluator.point[name].detach() for name in evaluator.layout.names]
    with forward_ad.dual_level():
        pairs = zip(points, tangents, strict=True)
        duals = tuple(forward_ad.make_dual(point, v.to(point.dtype)) for point, v in pairs)
        output = evaluator(batch, number, differentiates_loss=False, leaves=duals).output
        if output is None or output.shape != shape:  # chosen by a graph, which duals do not have
            raise StateError("this structured output is not available in forward mode AD.")
        primal, tangent = forward_ad.unpack_dual(output)
        return torch.zeros_like(primal) if tangent is None else tangent.contiguous()


@functools.cache
def _load_forward_mode() -> None:
    """Import what torch imports at the first dual number, and not its warning about itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        importlib.import_module("torch._decomp.decompositions_for_jvp")


class Differences:
    r"""The derivative of a function of the parameters along a vector, by central differences.

    .. math:: D f\, v \approx \frac{f(\theta + h v) - f(\theta - h v)}{2 h}

    In float64 if the model takes it. The two one-sided differences disagree by the curvature of f,
    by kinks between the three points and by rounding. Half their distance is the estimated error,
    which of a smooth function is much larger than that of the central difference.

    Args:
        evaluator: of the model.
        batch: the batch.
        number: its number.
        value: f, from the values of the model.
        what: the name of the products, for messages.

    Attributes:
        error: the largest estimated relative error so far.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        batch: Batch,
        number: int,
        value: Callable[[Evaluation], Tensor],
        what: str,
    ) -> None:
        self._number, self._value, self._what = number, value, what
        self._scale = self.error = 0.0
        self._evaluator, self._batch = evaluator, batch
        try:
            self._evaluator, self._batch = in_double(evaluator), to_double(batch)
            self._center = self._at(None, 0.0)
        except NormscopeError:
            raise
        except Exception:  # user code that does not take float64 may raise anything
            self._evaluator, self._batch = evaluator, batch
            self._center = self._at(None, 0.0)

    def times(self, vector: Tensor) -> Tensor:
        """Return the derivative along a flat vector.

        Raises:
            StateError: if its estimated error is larger than `LARGEST_ERROR`.
        """
        size = length(vector)
        if size == 0:
            return torch.zeros_like(self._center, dtype=vector.dtype)
        dtype = self._evaluator.layout.dtype
        point = self._evaluator.layout.join(self._evaluator.leaves()).detach()
        step = _STEPS.get(dtype, 1e-2) * (length(point) or 1.0)
        unit = vector.to(point.dtype) / size
        after, before = (self._at(unit, sign * step) for sign in (1.0, -1.0))
        central = (after - before) / (2 * step)
        bend = (after + before - 2 * self._center) / (2 * step)
        self._scale = max(self._scale, length(central))  # others may be zero up to rounding
        self._check(length(bend) / self._scale if self._scale else 0.0)
        return (central * size).to(vector.dtype)

    def _at(self, direction: Tensor | None, step: float) -> Tensor:
        evaluator = self._evaluator
        if direction is not None:
            names, pieces = evaluator.layout.names, evaluator.layout.split(direction)
            pairs = zip(names, pieces, strict=True)
            moved = {name: evaluator.point[name] + step * piece for name, piece in pairs}
            evaluator = evaluator.on(evaluator.problem, moved)
        return self._value(evaluator(self._batch, self._number)).detach()

    def _check(self, error: float) -> None:
        if not error <= LARGEST_ERROR:
            raise StateError(
                f"an operation of the model or loss has no second derivative, and {self._what} by "
                f"differences have an estimated relative error of {error:.1e}, more than "
                f"{LARGEST_ERROR:g}; write the operation in other torch operations."
            )
        self.error = max(self.error, error)

    def state_error(self) -> None:
        """Warn about the way the products are computed, with their largest error so far."""
        warn(
            f"an operation of the model or loss has no second derivative: {self._what} are "
            f"computed by differences, with an estimated relative error of {self.error:.0e}."
        )
