"""The Jacobian of a network's outputs in its parameters, as a linear map."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from normscope.curvature.autograd import record_cotangent_only
from normscope.problem.diagnose import check_finite
from normscope.problem.evaluate import Evaluation, Evaluator


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

    def inner_products(self, cotangents: Sequence[Tensor]) -> Tensor:
        """Return the inner products of all J^T u, float64, (count, count).

        Args:
            cotangents: the u, each in the shape of the output.

        Returns:
            J^T u_i times J^T u_j, for every i and j.
        """
        pulled = torch.stack([self.pull_back(cotangent) for cotangent in cotangents])
        return (pulled @ pulled.T).double().cpu()


class GraphJacobian(Jacobian):
    """The Jacobian of any differentiable model, from a graph that is built once and kept.

    J^T u is a backward pass. It is linear in u, so J v is the derivative in u of its inner product
    with v: a backward pass through the graph of the backward pass, which is kept as well.

    Args:
        evaluator: of the model.
        evaluation: its values on one batch, with their graph; the output must be known.
        number: the batch's number.
    """

    def __init__(self, evaluator: Evaluator, evaluation: Evaluation, number: int = 0) -> None:
        assert evaluation.output is not None
        super().__init__(evaluation.output)
        self._evaluator = evaluator
        self._leaves = evaluation.leaves
        self._number = number
        self._cotangent: Tensor | None = None
        self._pulled_back: tuple[Tensor, ...] = ()

    def pull_back(self, cotangent: Tensor) -> Tensor:
        """Return J^T u, a flat parameter vector."""
        with self._evaluator.isolated(self._leaves, self._number):
            return self._evaluator.layout.join(self._pull_back(cotangent))

    def push_forward(self, vector: Tensor) -> Tensor:
        """Return J v, in the shape of the output."""
        with self._evaluator.isolated(self._leaves, self._number):
            return self._push_forward(self._evaluator.layout.split(vector))

    def gram(self, cotangent: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return J J^T u and J^T u."""
        with self._evaluator.isolated(self._leaves, self._number):
            pulled = self._pull_back(cotangent)
            return self._push_forward(pulled), self._evaluator.layout.join(pulled)

    def _pull_back(self, cotangent: Tensor) -> tuple[Tensor, ...]:
        pulled: tuple[Tensor, ...] = torch.autograd.grad(
            self.output, self._leaves, cotangent, retain_graph=True, materialize_grads=True
        )
        return pulled

    def _push_forward(self, tensors: Sequence[Tensor]) -> Tensor:
        if self._cotangent is None:
            self._record_backward()
        assert self._cotangent is not None
        reached = [
            (pulled, tensor.to(pulled.dtype))
            for pulled, tensor in zip(self._pulled_back, tensors, strict=True)
            if pulled.requires_grad
        ]
        if not reached:
            return torch.zeros_like(self._cotangent)
        (pushed,) = torch.autograd.grad(
            [pulled for pulled, _ in reached],
            self._cotangent,
            [tensor for _, tensor in reached],
            retain_graph=True,
            materialize_grads=True,
        )
        check_finite(pushed, "the derivative of the output")
        return pushed

    def _record_backward(self) -> None:
        self._cotangent = torch.zeros_like(self.output).requires_grad_()
        with record_cotangent_only():
            self._pulled_back = torch.autograd.grad(
                self.output,
                self._leaves,
                self._cotangent,
                create_graph=True,
                materialize_grads=True,
            )
