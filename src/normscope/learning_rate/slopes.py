"""Loss and gradient of many outputs for the same samples, side by side."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor
from torch.nn import functional

from normscope.curvature.known_loss import known_loss
from normscope.curvature.problem import Problem

__all__ = ["Slopes", "slopes"]


class Slopes(ABC):
    """The losses of outputs that share their targets, and their gradients."""

    @abstractmethod
    def at(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Losses and gradients.

        Args:
            outputs: (samples, ..., candidates, classes).

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
        return _AutogradSlopes(problem, target)
    if known.kind == "cross_entropy":
        return _EntropySlopes(target, output.shape[1], known.scale, output.dtype)
    if not target.is_floating_point():
        target = functional.one_hot(target.long(), output.shape[1])
    return _SquareSlopes(target.to(output.dtype), known.scale)


class _EntropySlopes(Slopes):
    r"""Cross-entropy: :math:`\partial L / \partial f = c\,(\mathrm{softmax}(f) - e_y)`."""

    def __init__(self, target: Tensor, classes: int, scale: float, dtype: torch.dtype) -> None:
        self._scale = scale
        self._labels = target.long().view(-1, 1, 1)
        self._one_hot = functional.one_hot(target.long(), classes).to(dtype).unsqueeze(1)

    def at(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        logarithms = outputs.log_softmax(-1)
        labels = self._labels.expand(-1, outputs.shape[1], 1)
        losses = logarithms.gather(2, labels).sum((0, 2)).mul_(-self._scale)
        return losses, logarithms.exp_().sub_(self._one_hot).mul_(self._scale)


class _SquareSlopes(Slopes):
    r"""Squared error: :math:`\partial L / \partial f = c\,(f - y)`."""

    def __init__(self, target: Tensor, scale: float) -> None:
        self._scale = scale
        self._target = target.unsqueeze(1)

    def at(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        gradient = (outputs - self._target).mul_(self._scale)
        return gradient.square().sum((0, 2)).mul_(0.5 / self._scale), gradient


class _AutogradSlopes(Slopes):
    """Any loss, candidate by candidate."""

    def __init__(self, problem: Problem, target: Tensor) -> None:
        self._problem, self._target = problem, target

    def at(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        apart = outputs.movedim(-2, 0).contiguous().requires_grad_()
        with torch.enable_grad():
            losses = torch.stack([self._problem.loss_of(each, self._target) for each in apart])
            (gradient,) = torch.autograd.grad(losses.sum(), apart)
        return losses.detach(), gradient.movedim(0, -2)
