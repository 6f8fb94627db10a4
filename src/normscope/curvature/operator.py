"""Curvature matrices as linear operators over the trainable parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from normscope.curvature.products import (
    BatchProduct,
    batch_product,
    chain_product,
    check_kind,
)
from normscope.problem.batch import Batch, sample_count
from normscope.problem.evaluate import Evaluator
from normscope.problem.loss import WholeLoss
from normscope.problem.modes import MODES
from normscope.problem.parameters import Parameters, parameter_layout
from normscope.problem.problem import Data, Problem
from normscope.registry import unknown_name

if TYPE_CHECKING:
    from scipy.sparse.linalg import LinearOperator
    from torch import nn

    from normscope.problem.loss import Loss

__all__ = ["CurvatureOperator", "operator"]


class CurvatureOperator:
    """A curvature matrix of a model, known by its products with vectors.

    Vectors are flat tensors in the order of ``names``. The matrix is that of the parameters and
    buffers at the moment of making: it keeps copies, and training the model further does not
    change it. It is symmetric, and no product has any effect on the model.

    With one batch the computation graph is kept, so that a product costs about one forward and
    backward pass; with several each batch's graph is built anew for each product (once for all
    columns of `matmat`), so that memory does not grow with their number. The matrices of a chain of
    known layers need no graph: they are multiplied layer by layer.

    Args:
        evaluator: model, loss and data at a point, in a mode.
        kind: "fisher", "ggn" or "hessian".
    """

    def __init__(self, evaluator: Evaluator, kind: str) -> None:
        check_kind(kind)
        if evaluator.mode not in MODES:
            raise unknown_name("mode", evaluator.mode, MODES)
        self.evaluator = evaluator
        self.kind = kind
        self.batch_sizes = tuple(sample_count(batch) for _, batch in evaluator.batches())
        self._kept: BatchProduct | None = None

    @property
    def mode(self) -> str:
        """How batch statistics enter: "train", "frozen" or "eval"."""
        return self.evaluator.mode

    @property
    def names(self) -> tuple[str, ...]:
        """Qualified names of the parameters, in the order of the flat vector."""
        return self.evaluator.layout.names

    @property
    def slices(self) -> dict[str, slice]:
        """Where each parameter lies in the flat vector."""
        return self.evaluator.layout.slices

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns: both the number of parameter entries."""
        return self.evaluator.layout.size, self.evaluator.layout.size

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of vectors: that of the parameters."""
        return self.evaluator.layout.dtype

    @property
    def device(self) -> torch.device:
        """The device of vectors: the model's."""
        return self.evaluator.layout.device

    @property
    def samples(self) -> int:
        """Number of samples in all batches."""
        return sum(self.batch_sizes)

    @property
    def batch_size(self) -> int:
        """Samples in a batch, over which batch statistics are taken; of unequal ones the most."""
        return max(self.batch_sizes)

    def weighted_mean(self, apply: Callable[[BatchProduct], Tensor]) -> Tensor:
        """The mean over batches, weighted by samples, of something made of each one's curvature.

        Args:
            apply: called once for each batch; its results must have one shape.

        Returns:
            The mean. No two batches' graphs are in memory at once.
        """
        if len(self.batch_sizes) == 1:
            return apply(self.one_product())
        total: Tensor | None = None
        for number, batch in self.evaluator.batches():
            weight = self.batch_sizes[number] / self.samples
            part = apply(self._product(number, batch)) * weight
            total = part if total is None else total.add_(part)
        assert total is not None
        return total

    def one_product(self) -> BatchProduct:
        """The curvature of the first batch; if there is no other, it is the whole, and kept."""
        if self._kept is not None:
            return self._kept
        number, batch = next(self.evaluator.batches())
        product = self._product(number, batch)
        if len(self.batch_sizes) == 1:
            self._kept = product
        return product

    def matvec(self, vector: Tensor) -> Tensor:
        """The matrix times one vector.

        Args:
            vector: (size,).

        Returns:
            (size,).
        """
        vector = self.evaluator.layout.checked(vector)
        return self.weighted_mean(lambda product: product.times(vector))

    def matmat(self, matrix: Tensor) -> Tensor:
        """The matrix times several vectors; each batch's graph is built once for all of them.

        Fisher and Gauss-Newton matrices of a batch with no more outputs than vectors go through
        its Jacobian, made once; otherwise one vector is multiplied after the other.

        Args:
            matrix: (size, columns).

        Returns:
            (size, columns).
        """
        matrix = self.evaluator.layout.checked(matrix, columns=True)
        return self.weighted_mean(lambda product: product.times_block(matrix))

    def __matmul__(self, other: Tensor) -> Tensor:
        is_matrix = isinstance(other, Tensor) and other.dim() == 2
        return self.matmat(other) if is_matrix else self.matvec(other)

    def to_scipy(self) -> LinearOperator:
        """The same operator for NumPy vectors, as SciPy's solvers take it."""
        from scipy.sparse.linalg import LinearOperator

        half = self.dtype in (torch.bfloat16, torch.float16)
        dtype = torch.float32 if half else self.dtype  # NumPy and LAPACK know no smaller ones

        def times(values: np.ndarray) -> np.ndarray:
            given = torch.as_tensor(np.ascontiguousarray(values), device=self.device)
            flat = given.reshape(-1) if given.dim() == 1 or given.shape[1] == 1 else given
            return (self @ flat).to("cpu", dtype).numpy().reshape(values.shape)

        numpy_dtype = torch.empty((), dtype=dtype).numpy().dtype
        return LinearOperator(
            self.shape, matvec=times, rmatvec=times, matmat=times, rmatmat=times, dtype=numpy_dtype
        )

    def __repr__(self) -> str:
        batches = len(self.batch_sizes)
        return (
            f"CurvatureOperator({self.kind}, mode={self.mode!r}, shape={self.shape}, "
            f"{batches} batch{'es' if batches > 1 else ''} of {self.batch_size} samples)"
        )

    def _product(self, number: int, batch: Batch) -> BatchProduct:
        target = None if isinstance(self.evaluator.problem.loss, WholeLoss) else batch[1]
        with torch.inference_mode(False):
            chain = chain_product(self.kind, self.evaluator, batch, number)
            if chain is not None:
                return chain
            evaluation = self.evaluator(batch, number)
            return batch_product(self.kind, self.evaluator, evaluation, target, number)


def operator(
    model: nn.Module,
    loss: Loss | WholeLoss | str,
    data: Data,
    kind: str = "fisher",
    mode: str = "train",
    params: Parameters = None,
    seed: int = 0,
) -> CurvatureOperator:
    r"""A curvature matrix of a model as a linear operator; the model is left as it is.

    .. math:: F = \frac1m J^\top J, \qquad G = J^\top (\nabla^2_f L)\, J, \qquad
        H = \nabla^2_\theta L

    with J the Jacobian of all outputs f of the batch's m samples in the parameters. Of several
    batches the mean is taken, weighted by samples, each batch with its own statistics.

    Reference: wei2018, Eq. (10), for the Fisher matrix F.

    Args:
        model: any module whose parameters are on one device.
        loss: ``loss(output, target)``, the mean over samples; a registered name; or, for the
            Hessian, a `whole_loss`.
        data: one batch ``(inputs, targets)``, a list of batches or a DataLoader.
        kind: "fisher", F: mean over samples of the outer products of the outputs' gradients,
            summed over outputs; "ggn", G: the loss's own Hessian in the outputs; "hessian", H.
        mode: "train": batch statistics, derivatives through them; "frozen": batch statistics as
            constants; "eval": running statistics.
        params: names of parameters or modules, or parameters; None for all that are trainable.
        seed: of dropout, noise and the order of the data, for the life of the operator.

    Returns:
        The operator: ``op @ v``, ``op.shape``, ``op.to_scipy()``.

    >>> model = torch.nn.Linear(2, 1, bias=False)
    >>> batch = (torch.tensor([[3.0, 0.0], [0.0, 1.0]]), torch.zeros(2, 1))
    >>> operator(model, "squared_error", batch) @ torch.tensor([1.0, 1.0])  # x x^T / m
    tensor([4.5000, 0.5000])
    """
    problem = Problem(model, loss, data)
    layout = parameter_layout(model, params)
    made = CurvatureOperator(Evaluator(problem, layout, mode, seed), kind)
    made.one_product()  # bad input shows here, not at the first product
    return made
