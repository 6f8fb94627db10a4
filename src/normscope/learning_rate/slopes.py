"""Loss and gradient of many outputs for the same samples, side by side."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor
from torch.nn import functional

from normscope.problem.loss import known_loss, modules_of_loss, steady_loss
from normscope.problem.problem import Problem

__all__ = ["Slopes", "slopes"]


class Slopes(ABC):
    """The losses of outputs that share their targets, and their gradients."""

    @abstractmethod
    def at(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Losses and gradients.

        Args:
            outputs: (candidates, classes, samples * positions): the products of many small
                matrices come out fastest that way.

        Returns:
            The loss of each candidate, (candidates,), and its gradient in the shape of
            ``outputs``.
        """


def slopes(problem: Problem, output: Tensor, target: Tensor) -> Slopes:
    """Losses and gradients for the targets of one batch.

    Args:
        problem: for its loss.
        output: one candidate's, (samples, ..., classes).
        target: of the batch.

    Returns:
        The closed form for cross-entropy and squared errors of vectors; else autograd.
    """
    known = known_loss(problem.loss, output, target)
    if known is None or output.dim() != 2 or known.smoothing:
        return _AutogradSlopes(problem, target, output.shape)
    if known.kind == "cross_entropy":
        return _EntropySlopes(target, output.shape[1], known.scale, output.dtype)
    if target.dim() == 1 and not target.is_floating_point():  # labels, not squares of integers
        target = functional.one_hot(target.long(), output.shape[1])
    return _SquareSlopes(target.to(output.dtype), known.scale)


class _EntropySlopes(Slopes):
    r"""Cross-entropy: :math:`\partial L / \partial f = c\,(\mathrm{softmax}(f) - e_y)`."""

    def __init__(self, target: Tensor, classes: int, scale: float, dtype: torch.dtype) -> None:
        self._scale = scale
        self._labels = target.long().view(1, 1, -1)
        self._one_hot = functional.one_hot(target.long(), classes).to(dtype).T.contiguous()

    def at(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        logarithms = outputs.log_softmax(1)
        labels = self._labels.expand(len(outputs), 1, -1)
        losses = _total(logarithms.gather(1, labels)).mul_(-self._scale)
        return losses, logarithms.exp_().sub_(self._one_hot).mul_(self._scale)


class _SquareSlopes(Slopes):
    r"""Squared error: :math:`\partial L / \partial f = c\,(f - y)`."""

    def __init__(self, target: Tensor, scale: float) -> None:
        self._scale = scale
        self._target = target.T.contiguous()

    def at(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        difference = outputs - self._target
        losses = _total(_wide(difference).square()).mul_(0.5 * self._scale)
        return losses, difference.mul_(self._scale)


def _wide(values: Tensor) -> Tensor:
    """In float32 at least: squares and sums of half precision leave its range."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _total(values: Tensor) -> Tensor:
    return _wide(values).sum((1, 2))


class _AutogradSlopes(Slopes):
    """Any loss, candidate by candidate."""

    def __init__(self, problem: Problem, target: Tensor, shape: torch.Size) -> None:
        loss = steady_loss(problem.loss, modules_of_loss(problem.loss, problem.model))
        self._problem = Problem(problem.model, loss, problem.data)
        self._target, self._shape = target, shape

    def at(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        apart = outputs.transpose(1, 2).reshape(-1, *self._shape).requires_grad_()
        with torch.enable_grad():
            losses = torch.stack([self._problem.loss_of(each, self._target) for each in apart])
            (gradient,) = torch.autograd.grad(losses.sum(), apart)
        return losses.detach(), gradient.flatten(1, -2).transpose(1, 2)
