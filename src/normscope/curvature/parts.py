"""The Hessian of a large batch as a mean over parts of it, which takes less memory.

A product with a kept graph needs temporary tensors of about the size of the activations. Part by
part, only those of one part are in memory at a time, and the arithmetic is the same.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from normscope.curvature.precision import evaluate_in_double, random_like
from normscope.curvature.products import BatchCurvature, HessianProduct
from normscope.problem.batch import Batch, first_rows, has_samples, sample_count, split_batch
from normscope.problem.evaluate import Evaluator
from normscope.problem.recognition import batch_weight

_PARTS = 4
_LEAST_SAMPLES = 8  # in a part: operations on fewer are slower
_LEAST_BYTES = 1 << 25  # of a batch's activations; less is not worth the check
_FEW_SAMPLES = 2  # on which activations are counted and products compared
_DIFFERENCE = 1e-9  # of a product in float64: rounding
_LOSS_DIFFERENCE = 1e-4  # of the loss of the whole batch, in float32
_LOGGER = logging.getLogger(__name__)


class SplitHessian(BatchCurvature):
    """The weighted mean of the Hessians of parts of a batch.

    Args:
        evaluator: of the model.
        parts: of the batch.
        number: the batch's number.
    """

    symmetric = True  # checked by `check_hessian`

    def __init__(self, evaluator: Evaluator, parts: Sequence[Batch], number: int) -> None:
        problem = evaluator.problem
        self._factors = problem.batch_factors([problem.weight_of(part) for part in parts])
        self._products: list[HessianProduct] = []
        self._loss = 0.0
        for factor, part in zip(self._factors, parts, strict=True):
            if factor == 0:
                continue  # a mean over nothing
            # its own evaluator: another loss for the same batch number would be refused
            own = evaluator.on(problem)
            evaluation = own(part, number)
            self._loss += factor * evaluation.loss.item()
            self._products.append(HessianProduct(own, evaluation, number))
        self._factors = [factor for factor in self._factors if factor]

    def has_loss(self, loss: float) -> bool:
        """Return whether the mean over the parts is the loss of the whole batch."""
        return abs(self._loss - loss) <= _LOSS_DIFFERENCE * max(1.0, abs(loss))

    def times(self, vector: Tensor) -> Tensor:
        """Return the Hessian times a flat vector."""
        total = torch.zeros_like(vector)
        for factor, product in zip(self._factors, self._products, strict=True):
            total.add_(product.times(vector), alpha=factor)
        return total


def independent_parts(evaluator: Evaluator, batch: Batch, number: int) -> list[Batch]:
    """Return parts of a batch of which its Hessian is the weighted mean; none if it is small.

    It is that if the loss is a mean over samples that `batch_weight` knows, and no output depends
    on other samples. This is checked by a product in float64 on two samples; `has_loss` checks it
    on the whole batch.

    Args:
        evaluator: of the model.
        batch: all data.
        number: its number.
    """
    problem = evaluator.problem
    if not (problem.is_one_batch and problem.has_outputs and has_samples(batch)):
        return []
    samples, weight = sample_count(batch), batch_weight(problem.loss, problem.target_of(batch))
    if samples < _PARTS * _LEAST_SAMPLES or not weight:
        return []
    try:
        few = first_rows(batch, _FEW_SAMPLES)
        needed = _activation_bytes(evaluator, few, number) * samples / _FEW_SAMPLES
        if needed >= _LEAST_BYTES and _is_mean_of_parts(evaluator, batch, number):
            return split_batch(batch, -(-samples // _PARTS))
    except Exception as reason:  # a model that does not take parts may raise anything
        _LOGGER.debug("the batch is not split: %s", reason)
    return []


def _activation_bytes(evaluator: Evaluator, few: Batch, number: int) -> int:
    """Return the size of what a forward pass keeps for the backward pass, but for parameters."""
    leaves = evaluator.leaves()
    seen = {leaf.data_ptr(): 0 for leaf in leaves}

    def count(saved: Tensor) -> Tensor:
        seen.setdefault(saved.data_ptr(), saved.numel() * saved.element_size())
        return saved

    with saved_tensors_hooks(count, lambda saved: saved):
        kept = evaluator.on(evaluator.problem)(few, number, leaves=leaves)  # else freed early
    return sum(seen.values()) if kept.loss.requires_grad else 0


def _is_mean_of_parts(evaluator: Evaluator, batch: Batch, number: int) -> bool:
    """Return whether a product with the Hessian of two samples is the mean over them."""
    double = evaluate_in_double(evaluator, batch, number)
    if double is None:
        return False
    wide, few = double[0].on(evaluator.problem), first_rows(double[1], _FEW_SAMPLES)
    del double  # and a graph
    whole = HessianProduct(wide, wide(few, number), number)
    halves = SplitHessian(wide, split_batch(few, _FEW_SAMPLES // 2), number)
    vector = random_like(torch.empty(wide.layout.size, device=wide.layout.device), seed=0)
    one, other = whole.times(vector), halves.times(vector)
    return float((one - other).norm()) <= _DIFFERENCE * float(one.norm())
