"""Derivatives of a backward pass that autograd does not have: how they are found and replaced.

`find_missing_derivative` checks the backward passes of user-defined `torch.autograd.Function`.
The derivative of a backward pass is missing wherever it uses ``detach``, ``.data``, ``no_grad``,
NumPy, ``once_differentiable`` or values that the forward pass computed and stored. PyTorch then
returns zero for it without an error. A function's backward is a map of the gradient it receives and
of what its forward saved; both are known from the graph, so each function is checked by itself.
Stopped gradients elsewhere in the model (``detach``, straight-through estimators) do not matter.

Where a derivative is missing, `forward_mode` pushes a tangent through one forward pass.
`Differences` compares values at two nearby parameters, the last way: it has an error, which is
estimated at every product.
"""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd import forward_ad as _forward_ad
from torch.autograd.function import BackwardCFunction, Function
from torch.autograd.graph import Node
from torch.utils import _pytree as pytree

from normscope.curvature.precision import in_double, length, random_like
from normscope.errors import NormscopeError, StateError
from normscope.problem.batch import Batch, to_double
from normscope.problem.evaluate import Evaluation, Evaluator
from normscope.problem.references import graph_nodes
from normscope.warn import warn

#: returns a scalar with its graph, at parameters multiplied by about one plus the argument
Evaluate: TypeAlias = Callable[[float], Tensor]

_STEPS = (1e-4, 1e-6, 1e-2)  # of differences; one that crosses no kink, or no rounding, suffices
_TOLERANCE = 1e-3  # of the norm of a gradient
_CHANGE = 1e-7  # relative, of the parameters: crosses almost no kink
_CHANGED_SHARE = 0.2  # of a gradient's entries: a kink that is crossed changes few
_ENDS = (1.0, -1.0)
_TINY = torch.finfo(torch.float64).tiny

# torch's words for an operation that has no second derivative, or none in forward mode
_MISSING = (
    *("is not implemented", "double backward", "forward AD", "forward mode AD"),
    "has no second derivative",  # of `Differences`
)
# Steps, relative to the length of the parameters, by dtype: small, so that few kinks are crossed,
# and large beside rounding.
_PARAMETER_STEPS = {torch.float64: 1e-6, torch.float32: 3e-4}
LARGEST_ERROR = 1e-3  # relative, of a product by differences; the default tolerance of a search

forward_ad: Any = _forward_ad  # annotated incompletely


def custom_functions(value: Tensor) -> list[Any]:
    """Return the nodes of user-defined functions in the graph of a value, in a fixed order.

    Those of normscope and PyTorch are left out: they are tested.
    """
    return [node for node in graph_nodes(value) if _is_custom(node)]


def _is_custom(node: Node) -> bool:
    if not isinstance(node, BackwardCFunction):
        return False
    package, _, rest = type(node)._forward_cls.__module__.partition(".")
    return package != "normscope" and (package != "torch" or rest.startswith("_library"))


def find_missing_derivative(evaluate: Evaluate) -> StateError | None:
    """Return the error if the backward pass of a user-defined function loses a derivative.

    Without such a function it costs one evaluation; else three, and up to eight calls of each
    function's backward pass.

    Args:
        evaluate: returns the value whose graph is checked.

    Returns:
        The error to raise; None if nothing is missing, or user code fails in the check.
    """
    nodes = custom_functions(evaluate(0.0))
    suspects = [node for node in nodes if _try(_loses_derivative, node)]
    if nodes and not suspects:
        suspects = _with_hidden_values(nodes, evaluate)
    return missing_derivative_error(suspects) if suspects else None


def missing_derivative_error(nodes: Sequence[Any]) -> StateError:
    """Return the error for functions, if known, whose backward pass is not differentiable."""
    names = ", ".join(sorted({node.name().removesuffix("Backward") for node in nodes}))
    return StateError(
        f"the backward pass of {names or 'an operation'} is not differentiable, and curvature "
        "would miss a part; write it in torch operations on its gradient and on saved inputs or "
        "outputs, without detach, .data, no_grad, NumPy or once_differentiable."
    )


class _Context:
    """A function's ``ctx`` with other saved tensors and attributes."""

    def __init__(self, node: Any, saved: Sequence[Any], attributes: dict[str, Any]) -> None:
        self.__dict__.update(attributes)
        self.saved_tensors = tuple(saved)
        self._node = node

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node, name)


class _Backward:
    """The backward pass of a node as a map of what it reads, in float64.

    Attributes:
        values: what the forward pass saved and stored, as a flat list.
        gradients: random ones to receive.
        connected: positions of the values that autograd differentiates by: saved inputs, outputs.
    """

    def __init__(self, node: Any) -> None:
        self._node = node
        stored = list(node.saved_tensors), dict(vars(node))
        values, self.structure = pytree.tree_flatten(stored)
        tensors = [k for k, value in enumerate(values) if isinstance(value, Tensor)]
        self.connected = [k for k in tensors if values[k].requires_grad]
        self.values = [to_double(v.detach()) if isinstance(v, Tensor) else v for v in values]
        self.gradients = [_random_gradient(each) for each in node._input_metadata]

    def __call__(self, values: Sequence[Any], gradients: Sequence[Tensor]) -> list[Tensor]:
        """Return the gradients of the function's inputs."""
        saved, attributes = pytree.tree_unflatten(list(values), self.structure)
        function = type(self._node)._forward_cls
        backward = function.backward if function.vjp is Function.vjp else function.vjp
        result = backward(_Context(self._node, saved, attributes), *gradients)
        results = result if isinstance(result, tuple) else (result,)
        return [each.double() for each in results if isinstance(each, Tensor)]

    def at(self, leaves: Sequence[Tensor]) -> list[Tensor]:
        """Return the gradients of the inputs at other connected values and gradients."""
        values = dict(enumerate(self.values)) | dict(zip(self.connected, leaves, strict=False))
        return self(list(values.values()), leaves[len(self.connected) :])

    @property
    def leaves(self) -> list[Tensor]:
        """The connected values and the gradients."""
        return [*(self.values[k] for k in self.connected), *self.gradients]


def _random_gradient(metadata: Any) -> Tensor:
    drawn = random_like(torch.empty(list(metadata.shape), device=metadata.device), 0)
    return drawn if metadata.dtype.is_floating_point else torch.zeros_like(drawn)


def _try(function: Callable[..., bool], *arguments: object) -> bool:
    """Call a test; False, no verdict, if user code fails on other dtypes or contexts."""
    try:
        with torch.enable_grad():
            return function(*arguments)
    except Exception:
        return False


def _loses_derivative(node: Any) -> bool:
    """Return whether the derivative of a backward pass by autograd disagrees with differences.

    Both are taken along one random direction of the connected values and of the gradients, of the
    inner product of the results with random vectors.
    """
    backward = _Backward(node)
    leaves = [leaf.detach().requires_grad_() for leaf in backward.leaves]
    results = backward.at(leaves)
    weights = [random_like(each, 1) / each.detach().norm().clamp(min=_TINY) for each in results]

    def value(at: Sequence[Tensor]) -> Tensor:
        pairs = zip(weights, backward.at(at), strict=True)
        return torch.stack([(weight * each).sum() for weight, each in pairs]).sum()

    steps = [_random_step(leaf.detach()) for leaf in leaves]
    whole = value(leaves)
    slopes: Sequence[Tensor | None] = [None] * len(leaves)
    if whole.requires_grad:
        slopes = torch.autograd.grad(whole, leaves, allow_unused=True)
    pairs = zip(slopes, steps, strict=True)
    expected = sum(float((slope * step).sum()) for slope, step in pairs if slope is not None)
    points = [leaf.detach() for leaf in leaves]
    for size in _STEPS:
        ends = [[p + sign * size * s for p, s in zip(points, steps, strict=True)] for sign in _ENDS]
        difference = (float(value(ends[0])) - float(value(ends[1]))) / (2 * size)
        if abs(difference - expected) <= _TOLERANCE * max(1.0, abs(expected)):
            return False
    return True


def _random_step(values: Tensor) -> Tensor:
    """Return a random direction in which values that occur several times do not change.

    They are where the forward pass clamps, as the zeros of a ReLU: any step would cross the kink.
    """
    step = random_like(values, 2) * values.square().mean().sqrt()
    _, index, counts = torch.unique(values, return_inverse=True, return_counts=True)
    repeated = counts[index] > 1
    return step if repeated.all() else step.masked_fill(repeated, 0)


def _with_hidden_values(nodes: list[Any], evaluate: Evaluate) -> list[Any]:
    """Return the nodes whose backward pass reads values that autograd does not differentiate by.

    At other parameters these values differ. With them, but with the same connected values and
    gradients, the backward pass must give the same results.
    """
    suspects = nodes
    for change in (_CHANGE, -_CHANGE):
        others = custom_functions(evaluate(change))
        if len(others) != len(nodes):
            return []
        twins = dict(zip(nodes, others, strict=True))
        suspects = [node for node in suspects if _try(_reads_hidden_values, node, twins[node])]
    return suspects


def _reads_hidden_values(node: Any, other: Any) -> bool:
    backward, moved = _Backward(node), _Backward(other)
    if backward.structure != moved.structure or backward.connected != moved.connected:
        return False
    values = list(moved.values)
    for k in backward.connected:
        values[k] = backward.values[k]
    before = backward(backward.values, backward.gradients)
    after = backward(values, backward.gradients)
    return any(_is_changed(*pair) for pair in zip(before, after, strict=True))


def _is_changed(before: Tensor, after: Tensor) -> bool:
    """Return whether not only single entries changed, at kinks that were crossed."""
    nonzero = before != 0
    changed = (before != after) & nonzero
    return bool(changed.sum() > _CHANGED_SHARE * nonzero.sum())


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
        step = _PARAMETER_STEPS.get(dtype, 1e-2) * (length(point) or 1.0)
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
