"""Curvature matrices as linear operators over the trainable parameters."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator
from torch import Tensor, nn

from normscope.curvature.kinds import KINDS, BatchPoint, is_mean_over_samples
from normscope.curvature.precision import (
    evaluate_in_double,
    least_product,
    length,
    without_autocast,
)
from normscope.curvature.products import BatchCurvature, check_symmetric
from normscope.errors import InputError
from normscope.interrupts import interrupt_safe
from normscope.problem.batch import Batch, batch_count, join_batches
from normscope.problem.evaluate import Evaluator
from normscope.problem.isolation import MODEL_LOCK
from normscope.problem.loss import Loss, WholeLoss, model_loss
from normscope.problem.parameters import Parameters, parameter_layout
from normscope.problem.problem import Data, Problem
from normscope.problem.recognition import batch_weight, is_sum
from normscope.problem.sharded import gather_shards
from normscope.validation import as_seed
from normscope.warn import warn

_WIDER = {
    torch.float16: ", or measure model.float()",
    torch.bfloat16: ", or measure model.double()",
    torch.float32: ", or measure model.double()",
}
_SUM_MESSAGE = (
    "the loss of two batches together is the sum of theirs, but batches are averaged by their "
    "samples here, so that the result is not that of all data in one batch; give one batch, or a "
    "loss of torch with reduction='sum'."
)
_LARGEST_DENSE = 20_000  # rows; 1.6 GB in float32


class CurvatureOperator:
    """A curvature matrix of a model, known by its products with vectors.

    Vectors are flat tensors in the order of ``names``. The operator keeps copies of the parameters
    and buffers from when it was made: later training does not change it. It is symmetric, and no
    product has any effect on the model.

    With one batch the computation graph is kept, so that a product costs about one forward and
    backward pass. With several batches each batch's graph is rebuilt for each product (once for all
    columns of `matmat`), so that memory does not grow with their number. The Hessian of one large
    batch is multiplied part by part where it is the mean over them. Matrices of a chain of known
    layers need no graph: they are multiplied layer by layer.

    Args:
        evaluator: model, loss and data at fixed parameters, in a mode.
        kind: "fisher", "ggn", "hessian" or another name of `KINDS`.

    Attributes:
        mode: how batch statistics enter: "train", "frozen", "eval" or "as_is".
        names: qualified names of the parameters, in the order of the flat vector.
        slices: the slice of each parameter in the flat vector.
        shape: rows and columns, both the number of parameter entries.
        dtype: of vectors: that of the parameters.
        device: of vectors: the model's.
        batch_sizes: samples in each batch; its graphs, or 1, if its rows are not samples.
        batch_size: samples in the largest batch; batch statistics are taken over a batch.
        samples: samples in all batches.
    """

    def __init__(self, evaluator: Evaluator, kind: str) -> None:
        self._curvature_at = KINDS[kind]
        layout = evaluator.layout
        self.evaluator, self.kind, self.mode = evaluator, kind, evaluator.mode
        self.names, self.slices = layout.names, layout.slices
        self.shape = (layout.size, layout.size)
        self.dtype, self.device = layout.dtype, layout.device
        has_loss, problem = not is_mean_over_samples(kind), evaluator.problem
        sizes = [
            (count := batch_count(batch), problem.weight_of(batch) if has_loss else count)
            for _, batch in evaluator.batches()
        ]
        self.batch_sizes = tuple(samples for samples, _ in sizes)
        self.batch_size, self.samples = max(self.batch_sizes), sum(self.batch_sizes)
        #: by which the batches' matrices are added
        self._factors = (
            problem.batch_factors([weight for _, weight in sizes])
            if has_loss
            else [count / self.samples for count in self.batch_sizes]
        )
        self._kept: BatchCurvature | None = None
        if has_loss and len(sizes) > 1 and _is_custom_sum(evaluator):
            warn(_SUM_MESSAGE)

    @without_autocast()
    def weighted_mean(self, apply: Callable[[BatchCurvature], Tensor]) -> Tensor:
        """Return the mean over batches of a function of their curvature; the sum if the loss is.

        The weights are those of the batches in the loss over all data: with labels that the loss
        ignores, or with class weights, not the numbers of samples.

        Args:
            apply: called once for each batch that counts; its results must have one shape.

        Returns:
            The mean. Only one batch's graph is in memory at a time.
        """
        if len(self.batch_sizes) == 1:
            return apply(self.first_batch())
        total: Tensor | None = None
        for number, batch in self.evaluator.batches():
            if not self._factors[number]:
                continue  # a mean over nothing
            part = apply(self._curvature(number, batch)) * self._factors[number]
            total = part if total is None else total.add_(part)
        assert total is not None
        return total

    @without_autocast()
    def first_batch(self) -> BatchCurvature:
        """Return the curvature of the first batch that counts; kept if there is no other."""
        if self._kept is not None:
            return self._kept
        counting = ((n, batch) for n, batch in self.evaluator.batches() if self._factors[n])
        number, batch = next(counting)
        curvature = self._curvature(number, batch)
        if len(self.batch_sizes) == 1:
            self._kept = curvature
        return curvature

    @interrupt_safe
    def matvec(self, vector: Tensor) -> Tensor:
        """Return the matrix times one vector.

        Args:
            vector: (size,).

        Returns:
            (size,).
        """
        vector = self.evaluator.layout.checked(vector)
        product = self.weighted_mean(lambda curvature: curvature.times(vector))
        self.check_underflow(product, vector)
        return product

    @interrupt_safe
    def matmat(self, matrix: Tensor) -> Tensor:
        """Return the matrix times several vectors; each batch's graph is built only once.

        Fisher and Gauss-Newton matrices of a batch with no more outputs than vectors are multiplied
        through the batch's Jacobian, computed once; otherwise vector by vector.

        Args:
            matrix: (size, columns).

        Returns:
            (size, columns).
        """
        matrix = self.evaluator.layout.checked(matrix, columns=True)
        product = self.weighted_mean(lambda curvature: curvature.times_block(matrix))
        self.check_underflow(product, matrix)
        return product

    def check_underflow(self, product: Tensor, vector: Tensor) -> None:
        """Raise if a product is small because numbers of its dtype underflow.

        A product that is small for its vector is compared with one of random signs. If that is too
        small as well, the matrix must be zero in float64 too.

        Args:
            product: the matrix, or the equal one over the outputs, times the vector.
            vector: or several.

        Raises:
            InputError: if digits are lost.
        """
        least = least_product(product.dtype)
        if length(product) >= least * length(vector) or "range" in self.evaluator.verified:
            return
        generator = torch.Generator().manual_seed(0)
        # not of signs: those are in the null space of some small matrices
        probe = torch.randn(self.shape[0], generator=generator).to(self.device, self.dtype)
        image = self.weighted_mean(lambda curvature: curvature.times(probe))
        if float(image.abs().max()) < least and (size := self._size_in_double(probe, image)):
            raise InputError(
                f"products of the curvature are of the order of {size:.0e}, which underflows "
                f"{product.dtype}; scale the loss or the data{_WIDER.get(product.dtype, '')}."
            )
        self.evaluator.verified.add("range")

    def _size_in_double(self, vector: Tensor, image: Tensor) -> float:
        """Return the largest entry of a product in float64, on a few samples if possible."""
        number, batch = next(self.evaluator.batches())
        double = evaluate_in_double(self.evaluator, batch, number)
        if double is not None:
            evaluator, samples, _ = double
            curvature = self._curvature_at(BatchPoint(evaluator, samples, number))
            image = curvature.times(vector.double())
        return float(image.abs().max())

    def __matmul__(self, other: Tensor) -> Tensor:
        is_matrix = isinstance(other, Tensor) and other.dim() == 2
        return self.matmat(other) if is_matrix else self.matvec(other)

    def to_scipy(self) -> LinearOperator:
        """Return the same operator for NumPy vectors, as SciPy's solvers take it."""
        half = self.dtype in (torch.bfloat16, torch.float16)
        dtype = torch.float32 if half else self.dtype  # NumPy and LAPACK have no smaller ones

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

    def _curvature(self, number: int, batch: Batch) -> BatchCurvature:
        with torch.inference_mode(False):
            curvature = self._curvature_at(BatchPoint(self.evaluator, batch, number))
        verified, check = self.evaluator.verified, f"symmetry of the kind {self.kind}"
        if not curvature.symmetric and check not in verified:
            check_symmetric(curvature.times, self.evaluator.layout, self.kind)
            verified.add(check)
        return curvature


@interrupt_safe
@gather_shards
def operator(
    model: nn.Module,
    loss: Loss | WholeLoss | str | None,
    data: Data,
    kind: str = "ggn",
    mode: str = "train",
    params: Parameters = None,
    seed: int = 0,
) -> CurvatureOperator:
    r"""Return a curvature matrix of a model as a linear operator; the model is left as it is.

    .. math:: F = \frac1m J^\top J, \qquad G = J^\top (\nabla^2_f L)\, J, \qquad
        H = \nabla^2_\theta L

    with J the Jacobian of all outputs f of the batch's m samples in the parameters. Of a structured
    output (a tuple, a mapping, a dataclass) f is the tensors that the loss depends on; of a loss
    that the model computes itself, the outputs that it is computed from. For several batches it is
    the mean weighted by samples, each batch with its own statistics; batches whose rows are not
    samples, such as graphs, count by their number of graphs, or once. A loss of torch that sums
    over samples is summed over batches, too; its class weights and ignored labels count as in the
    loss over all data. A loss that the model computes, or a custom one, is weighted by samples.

    Reference: wei2018, Eq. (10), for the Fisher matrix F.

    Args:
        model: any module whose parameters are on one device.
        loss: ``loss(output, target)``, the mean over samples; a registered name, such as "model"
            (or None) for the loss that the model itself returns; or a `whole_loss`, of which one
            function alone has the Hessian only.
        data: one batch, a list of batches or a DataLoader; for the forms of a batch see
            `normscope.Problem`.
        kind: "ggn", G: mean over samples of the outer products of the outputs' gradients, with the
            loss's Hessian in the outputs; "fisher", F: without it, summed over outputs; "hessian",
            H; or another name of `KINDS`.
        mode: "train": batch statistics, derivatives through them; "frozen": batch statistics as
            constants; "eval": running statistics; "as_is": each module by its own ``training``
            flag, train or eval.
        params: names of parameters or modules, or parameters; None for all that are trainable.
        seed: of dropout, noise and the order of the data, for the life of the operator.

    Returns:
        The operator: ``op @ v``, ``op.shape``, ``op.to_scipy()``.

    >>> model = torch.nn.Linear(2, 1, bias=False)
    >>> batch = (torch.tensor([[3.0, 0.0], [0.0, 1.0]]), torch.zeros(2, 1))
    >>> operator(model, "squared_error", batch) @ torch.tensor([1.0, 1.0])  # x x^T / m
    tensor([4.5000, 0.5000])
    """
    made = unchecked_operator(model, loss, data, kind, mode, params, seed)
    made.first_batch()  # bad input fails here, not at the first product
    return made


def unchecked_operator(
    model: nn.Module,
    loss: Loss | WholeLoss | str | None,
    data: Data,
    kind: str,
    mode: str,
    params: Parameters,
    seed: int,
) -> CurvatureOperator:
    """Return the operator before any curvature is computed; arguments as for `operator`."""
    seed = as_seed(seed)
    with MODEL_LOCK:  # another thread may have set up the model for a measurement
        layout = parameter_layout(model, params)
        return CurvatureOperator(Evaluator(Problem(model, loss, data), layout, mode, seed), kind)


@interrupt_safe
@gather_shards
def dense(
    model: nn.Module,
    loss: Loss | WholeLoss | str | None,
    data: Data,
    kind: str = "ggn",
    mode: str = "train",
    params: Parameters = None,
    seed: int = 0,
) -> Tensor:
    """Return the whole curvature matrix, column by column; for small networks.

    Args:
        model: the model.
        loss: as for `operator`.
        data: as for `operator`.
        kind: as for `operator`.
        mode: as for `operator`.
        params: as for `operator`.
        seed: as for `operator`.

    Returns:
        (size, size), symmetric up to rounding.

    Raises:
        InputError: if there are more than 20,000 parameter entries.

    >>> batch = (torch.tensor([[3.0, 0.0], [0.0, 1.0]]), torch.zeros(2, 1))
    >>> dense(torch.nn.Linear(2, 1, bias=False), "squared_error", batch, kind="hessian")
    tensor([[4.5000, 0.0000],
            [0.0000, 0.5000]])
    """
    matrix = operator(model, loss, data, kind, mode, params, seed)
    size = matrix.shape[0]
    if size > _LARGEST_DENSE:
        raise InputError(
            f"dense builds a matrix of {size} x {size} entries, more than {_LARGEST_DENSE} x "
            f"{_LARGEST_DENSE}; use operator, top_eigenvalue or fewer params."
        )
    return matrix @ torch.eye(size, dtype=matrix.dtype, device=matrix.device)


def _is_custom_sum(evaluator: Evaluator) -> bool:
    """Return whether a custom loss of two batches together is the sum of theirs, not the mean."""
    problem = evaluator.problem
    (one, first), (other, second) = islice(evaluator.batches(), 2)
    targets = [problem.target_of(first), problem.target_of(second)]
    is_known = is_sum(problem.loss) or batch_weight(problem.loss, targets[0]) is not None
    if is_known or not problem.has_outputs or problem.loss is model_loss:
        return False
    output, before = _output_and_loss(evaluator, first, one)
    following, after = _output_and_loss(evaluator, second, other)
    try:
        with evaluator.isolated(evaluator.leaves()), torch.no_grad():
            joined = torch.cat([output, following])
            both = problem.loss_of(joined, join_batches(targets)).item()
    except Exception:  # a loss for one number of samples, or other shapes in each batch
        return False
    share = batch_count(second) / (batch_count(first) + batch_count(second))
    mean = before + share * (after - before)
    bound = torch.finfo(evaluator.layout.dtype).eps ** 0.5 * max(abs(both), abs(before), abs(after))
    return bool(abs(both - before - after) <= bound < abs(both - mean))


def _output_and_loss(evaluator: Evaluator, batch: Batch, number: int) -> tuple[Tensor, float]:
    found = evaluator(batch, number)
    assert found.output is not None
    return found.output.detach(), found.loss.item()
