"""How the gradient grows from the last layer to the first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from normscope.problem.batch import Batch
from normscope.problem.evaluate import Evaluator
from normscope.problem.parameters import parameter_layout
from normscope.problem.problem import Problem

__all__ = ["gradient_growth"]


def gradient_growth(problem: Problem, batch: Batch, seed: int = 0) -> float | None:
    r"""The factor by which the squared gradient grows per layer, backwards, in train mode.

    .. math:: \left( |\partial L / \partial h_1|^2 / |\partial L / \partial h_{L-1}|^2
        \right)^{1/(L-2)}

    over the outputs h of linear and convolution layers in the order they are called, the last
    layer left out: it has another shape. In wide ReLU nets with BatchNorm it nears pi/(pi - 1).

    Reference: yang2019, Section 4.

    Args:
        problem: model and loss; nothing of it is changed.
        batch: to take the gradient on.
        seed: of dropout and noise.

    Returns:
        The factor; None with fewer than three such layers, or where a gradient is zero.
    """
    placed = problem.placed(batch)
    evaluator = Evaluator(problem, parameter_layout(problem.model), "train", seed)
    outputs: list[Tensor] = []
    with evaluator.scene(evaluator.leaves()):
        with _noted(problem.model, outputs):
            loss = problem.loss_on(placed)
        if len(outputs) < 3:
            return None
        gradients = torch.autograd.grad(loss, [outputs[0], outputs[-2]], allow_unused=True)
    first, last = (0.0 if g is None else float(g.double().square().sum()) for g in gradients)
    if not first > 0 or not last > 0:
        return None
    return float((first / last) ** (1 / (len(outputs) - 2)))


@contextmanager
def _noted(model: nn.Module, outputs: list[Tensor]) -> Iterator[None]:
    def note(module: nn.Module, given: Any, made: Tensor) -> None:
        if not made.requires_grad:  # of frozen layers on data: nothing before it has a gradient
            made.requires_grad_()
        outputs.append(made)

    layers = [m for m in model.modules() if isinstance(m, nn.Linear | _ConvNd)]
    handles = [layer.register_forward_hook(note) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
