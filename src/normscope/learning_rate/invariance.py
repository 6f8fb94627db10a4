"""Which weights are scale-invariant: those whose length does not matter to the output."""

from __future__ import annotations

import torch
from torch import Tensor

from normscope.errors import NormscopeError
from normscope.learning_rate.walk import gradient_on
from normscope.problem.batch import Batch, rows, sample_count
from normscope.problem.evaluate import Evaluator
from normscope.problem.parameters import parameter_layout
from normscope.problem.problem import Problem

__all__ = ["scale_invariant_weights"]

_SAMPLES = 32  # enough for batch statistics
_FACTOR = 2.0
_TOLERANCE = 1e-3  # a norm layer's epsilon leaves a little


def scale_invariant_weights(problem: Problem, batch: Batch, seed: int = 0) -> tuple[str, ...]:
    """Names of the weights that can be doubled without a change of the output, in train mode.

    Found by doing it, one weight after another, so that it holds for any architecture. A weight
    that is zero, or that the output does not depend on to first order, is none: there is no length
    that could matter.

    Args:
        problem: model and loss; nothing of it is changed.
        batch: some of whose samples are used.
        seed: of dropout and noise.

    Returns:
        Qualified names of parameters with at least two dimensions.

    >>> from torch import nn
    >>> net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    >>> data = (torch.randn(16, 3), torch.randn(16, 2))
    >>> scale_invariant_weights(Problem(net, "squared_error", data), data)
    ('0.weight',)
    """
    placed = problem.placed(batch)
    few = rows(placed, torch.arange(min(_SAMPLES, sample_count(placed)), device=problem.device))
    layout = parameter_layout(problem.model)
    evaluator = Evaluator(Problem(problem.model, problem.loss, [few]), layout, "train", seed)
    reference = _response(evaluator, few)
    _, gradient = gradient_on(evaluator, few)
    found = []
    for name, shape in zip(layout.names, layout.shapes, strict=True):
        if len(shape) < 2 or not gradient[layout.slices[name]].any():
            continue
        own = evaluator.point[name]
        if not own.any():
            continue
        evaluator.point[name] = own * _FACTOR
        try:
            change = (_response(evaluator, few) - reference).norm()
        except NormscopeError:  # not finite: anything but invariant
            change = torch.tensor(torch.inf)
        evaluator.point[name] = own
        if change <= _TOLERANCE * reference.norm():
            found.append(name)
    return tuple(found)


def _response(evaluator: Evaluator, batch: Batch) -> Tensor:
    """The output, or the loss where there is none to see."""
    leaves = tuple(evaluator.point[name] for name in evaluator.layout.names)
    with evaluator.scene(leaves), torch.no_grad():
        if evaluator.problem.has_outputs:
            return evaluator.problem.output_on(batch).double()
        return evaluator.problem.loss_on(batch).double()
