"""The Jacobian of a network's outputs in its parameters, as a linear map."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor

from normscope.curvature.autograd.recording import record_cotangent_only
from normscope.curvature.missing_derivatives import (
    Differences,
    custom_functions,
    forward_mode,
    lacks_derivative,
    missing_derivative_error,
)
from normscope.curvature.precision import (
    OTHER_SCALE,
    evaluate_in_double,
    inner_products,
    length,
)
from normscope.errors import NormscopeError
from normscope.problem.batch import Batch
from normscope.problem.error_messages import check_finite, is_finite
from normscope.problem.evaluate import Evaluation, Evaluator

_VERIFIED = "jacobian"
# ways to compute J v, in the order they are tried; the chosen one is in `Evaluator.verified`
_BY_GRAPH, _BY_FORWARD_MODE, _BY_DIFFERENCES = (
    f"jacobian {way}" for way in ("through the graph", "in forward mode", "by differences")
)
# for a backward pass that torch does not write as a linear function, such as matrix_exp's
_WHOLE_GRAPH = "jacobian through the whole graph"
_ADJOINT_TOLERANCE = 1e-3  # a tensor without derivatives has a part of one over their number
_LEAST_GRADIENT = 1e-3  # of the longest; a gradient of zero up to rounding must not count


def derivative_along(
    directions: Iterable[Tensor], values: Sequence[Tensor], inputs: Sequence[Tensor]
) -> tuple[Tensor, ...] | None:
    """Return the derivative in the inputs of the inner product of values and directions.

    Args:
        directions: one for each value.
        values: with their graphs, which are kept.
        inputs: leaves of these graphs.

    Returns:
        A tensor for each input; None if no value has a graph, as the gradient of a linear function.
    """
    pairs = zip(values, directions, strict=True)
    curved = [(value, each.to(value.dtype)) for value, each in pairs if value.requires_grad]
    if not curved:
        return None
    graphs, along = zip(*curved, strict=True)
    found: tuple[Tensor, ...] = torch.autograd.grad(
        graphs, inputs, along, retain_graph=True, materialize_grads=True
    )
    return found


class Jacobian(ABC):
    """The Jacobian J of all outputs of one batch in the parameters.

    Cotangents u have the shape of the output; parameter vectors v are flat, in the layout's order.
    With train-mode batch statistics each output depends on the whole batch, and J includes that.

    Args:
        output: the network's output, samples first.
    """

    #: whether `inner_products` has every J^T u in memory at once
    holds_gradients = True

    def __init__(self, output: Tensor) -> None:
        self.output = output
        self.output_shape = output.shape
        self.dtype = output.dtype

    @abstractmethod
    def pull_back(self, cotangent: Tensor) -> Tensor:
        """Return J^T u, a flat parameter vector."""

    @abstractmethod
    def push_forward(self, vector: Tensor) -> Tensor:
        """Return J v, in the shape of the output."""

    def gram(self, cotangent: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return J J^T u, in the shape of the output, and J^T u if it is computed on the way."""
        pulled = self.pull_back(cotangent)
        return self.push_forward(pulled), pulled

    def gram_with(self, other: Jacobian, cotangent: Tensor) -> Tensor:
        """Return J K^T u, in the shape of this output, for the Jacobian K on other data.

        Args:
            other: K, on other data, in the same parameters.
            cotangent: u, in the shape of the other's output.

        Returns:
            The product; for an eigenvector u of K K^T it approximates one of J J^T.
        """
        return self.push_forward(other.pull_back(cotangent))

    @abstractmethod
    def inner_products(self, cotangents: Sequence[Tensor]) -> Tensor:
        """Return the inner products of all J^T u, float64, (count, count).

        Args:
            cotangents: the u, each in the shape of the output.

        Returns:
            J^T u_i times J^T u_j, for every i and j.
        """


class GraphJacobian(Jacobian):
    """The Jacobian of any differentiable model, from a graph that is built once and kept.

    J^T u is a backward pass. It is linear in u, so J v is the derivative in u of its inner product
    with v: a backward pass through the graph of the backward pass, which is kept as well.

    PyTorch takes that derivative as zero where a user-defined backward pass is not differentiable.
    Therefore the first product of an evaluator is preceded by one that `adjoint_error` compares
    with J^T u. Where the backward pass has no derivative, J v is taken in forward mode, or by
    differences of outputs, if these agree with J^T u.

    Args:
        evaluator: of the model.
        evaluation: its values on one batch, with their graph; the output must be known.
        batch: the batch, to repeat a failed comparison in float64.
        number: its number.
    """

    def __init__(
        self, evaluator: Evaluator, evaluation: Evaluation, batch: Batch, number: int = 0
    ) -> None:
        assert evaluation.output is not None
        super().__init__(evaluation.output)
        self._evaluator = evaluator
        self._leaves = evaluation.leaves
        self._batch = batch
        self._number = number
        self._cotangent: Tensor | None = None
        self._pulled_back: tuple[Tensor, ...] = ()
        self._differences: Differences | None = None

    def pull_back(self, cotangent: Tensor) -> Tensor:
        """Return J^T u, a flat parameter vector."""
        with self._evaluator.isolated(self._leaves, self._number):
            return self._evaluator.layout.join(self._pull_back(cotangent))

    def push_forward(self, vector: Tensor) -> Tensor:
        """Return J v, in the shape of the output."""
        with self._evaluator.isolated(self._leaves, self._number):
            self._verify()
            return self._push_forward(self._evaluator.layout.split(vector))

    def gram(self, cotangent: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return J J^T u and J^T u."""
        with self._evaluator.isolated(self._leaves, self._number):
            self._verify()
            pulled = self._pull_back(cotangent)
            return self._push_forward(pulled), self._evaluator.layout.join(pulled)

    def inner_products(self, cotangents: Sequence[Tensor]) -> Tensor:
        """Return the inner products of all J^T u, summed over parameter tensors."""
        with self._evaluator.isolated(self._leaves, self._number):
            pulled = [self._pull_back(cotangent) for cotangent in cotangents]
        by_tensor = ([each.reshape(-1) for each in group] for group in zip(*pulled, strict=True))
        return torch.stack([inner_products(rows) for rows in by_tensor if len(rows[0])]).sum(0)

    def _pull_back(self, cotangent: Tensor) -> tuple[Tensor, ...]:
        pulled: tuple[Tensor, ...] = torch.autograd.grad(
            self.output, self._leaves, cotangent, retain_graph=True, materialize_grads=True
        )
        return pulled

    def _push_forward(self, tensors: Sequence[Tensor]) -> Tensor:
        if _BY_DIFFERENCES in self._evaluator.verified:
            pushed = self._by_differences(self._evaluator.layout.join(tensors))
        elif _BY_FORWARD_MODE in self._evaluator.verified:
            pushed = forward_mode(
                self._evaluator, self._batch, self._number, tensors, self.output_shape
            )
        else:
            pushed = self._through_graph(tensors)
        check_finite(pushed, "the derivative of the output")
        return pushed

    def _through_graph(self, tensors: Sequence[Tensor]) -> Tensor:
        if self._cotangent is None:
            self._cotangent = self._record_backward()
        found = derivative_along(tensors, self._pulled_back, [self._cotangent])
        pushed = torch.zeros_like(self.output) if found is None else found[0]
        if _WHOLE_GRAPH in self._evaluator.verified or is_finite(pushed):
            return pushed
        self._evaluator.verified.add(_WHOLE_GRAPH)
        self._cotangent = None
        return self._through_graph(tensors)

    def _by_differences(self, vector: Tensor) -> Tensor:
        if self._differences is None:
            self._differences = Differences(
                *(self._evaluator, self._batch, self._number, _output), "products with the Jacobian"
            )
        return self._differences.times(vector).view(self.output_shape).to(self.dtype)

    def _record_backward(self) -> Tensor:
        """Record the graph of J^T u; return u, a random vector of length one."""
        generator = torch.Generator().manual_seed(0)
        drawn = torch.randn(self.output_shape, generator=generator).div_(self.output.numel() ** 0.5)
        cotangent = drawn.to(self.output.device, self.dtype).requires_grad_()
        whole = _WHOLE_GRAPH in self._evaluator.verified
        with nullcontext() if whole else record_cotangent_only(cotangent):
            self._pulled_back = torch.autograd.grad(
                self.output, self._leaves, cotangent, create_graph=True, materialize_grads=True
            )
        return cotangent

    def _verify(self) -> None:
        """Choose a way to J v that agrees with J^T u, once for all evaluators of a model."""
        verified = self._evaluator.verified
        if _VERIFIED in verified:
            return
        reason: NormscopeError | None = None
        for way in (_BY_GRAPH, _BY_FORWARD_MODE, _BY_DIFFERENCES):
            verified.add(way)
            try:
                if self._is_adjoint():
                    self._accept(way)
                    return
            except RuntimeError as error:
                if not lacks_derivative(error):
                    raise
                reason = error if isinstance(error, NormscopeError) else None
            verified.discard(way)
        functions = custom_functions(self.output)
        raise missing_derivative_error(functions) if functions or reason is None else reason

    def _accept(self, way: str) -> None:
        self._evaluator.verified.add(_VERIFIED)
        if way != _BY_GRAPH:
            self._pulled_back = ()  # a graph that is not used
        if self._differences is not None:
            self._differences.state_error()

    def _is_adjoint(self) -> bool:
        """Return whether J v is that of J^T u: no derivative is missing."""
        if self.adjoint_error() <= _ADJOINT_TOLERANCE:
            return True
        # of rounding, or of a missing derivative
        double = evaluate_in_double(self._evaluator, self._batch, self._number)
        evaluator, batch, evaluation = double or (self._evaluator, self._batch, None)
        same = self
        if evaluation is not None:
            same = GraphJacobian(evaluator, evaluation, batch, self._number)
        with evaluator.isolated(same._leaves, self._number):
            return same.adjoint_error() <= max(_ADJOINT_TOLERANCE, 2 * same.rounding())

    def adjoint_error(self) -> float:
        """Return the difference between <u, J v> and <J^T u, v>, relative to the sum of its parts.

        u is random. v is a multiple of J^T u in every parameter tensor, so that all of them have
        about the same part in the sum, except those that are zero up to rounding. It costs one
        product J v. Call it inside the isolation.
        """
        if self._cotangent is None:
            self._cotangent = self._record_backward()
        lengths, least = self._lengths()
        if least == 0:
            return 0.0
        scales = [1 / max(size, least) ** 2 for size in lengths]
        expected = sum(scale * size**2 for scale, size in zip(scales, lengths, strict=True))
        pairs = zip(self._pulled_back, scales, strict=True)
        unit = max(lengths)  # so that no entry overflows
        pushed = self._push_forward([pulled.detach() * (scale * unit) for pulled, scale in pairs])
        product = float((pushed.double() * self._cotangent.detach().double()).sum()) / unit
        return abs(product - expected) / expected

    def rounding(self) -> float:
        """Return the relative rounding of J^T u, by another multiple of u; a mean over tensors."""
        assert self._cotangent is not None
        again = self._pull_back(self._cotangent.detach() * OTHER_SCALE)
        lengths, least = self._lengths()
        errors = [
            length(one.detach() - other / OTHER_SCALE)
            for one, other in zip(self._pulled_back, again, strict=True)
        ]
        pairs = zip(errors, lengths, strict=True)
        return sum(error / max(size, least) for error, size in pairs) / len(errors)

    def _lengths(self) -> tuple[list[float], float]:
        """Return the length of J^T u in every parameter tensor, and the least that counts."""
        pulled = [each.detach() for each in self._pulled_back]
        lengths = [length(each) for each in pulled]
        return lengths, _LEAST_GRADIENT * max(lengths)


def _output(evaluation: Evaluation) -> Tensor:
    assert evaluation.output is not None
    return evaluation.output
