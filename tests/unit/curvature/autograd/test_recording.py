"""A recorded backward pass differentiates by its cotangent alone, and no more than that."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from normscope.curvature.autograd.recording import detach_if_recording, record_cotangent_only
from normscope.curvature.jacobian import GraphJacobian
from normscope.problem import Evaluator, Problem, parameter_layout


class Calls(TorchDispatchMode):
    """Counts the operations that run inside."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        self.names[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def linearized(mode: str) -> GraphJacobian:
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Tanh()),
        *(nn.Conv2d(3, 4, 2), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten(), nn.Linear(16, 2)),
    ).double()
    data = torch.randn(5, 2, 5, 5, dtype=torch.float64), torch.arange(5) % 2
    problem = Problem(model, "cross_entropy", data)
    evaluator = Evaluator(problem, parameter_layout(model), mode, 0)
    return GraphJacobian(evaluator, evaluator(data), data)


@pytest.mark.parametrize("mode", ["train", "frozen", "eval"])
def test_jacobian_times_a_vector_takes_no_derivative_that_nobody_asks_for(mode: str) -> None:
    linear = linearized(mode)
    vector = torch.randn(len(linear.pull_back(torch.zeros(5, 2, dtype=torch.float64))))
    linear.push_forward(vector.double())  # records the backward pass
    with Calls() as seen:
        linear.push_forward(vector.double())
    assert seen.names["convolution"] == 3  # of the images, and twice in the second layer
    assert seen.names["convolution_backward"] == 0
    # of two norms: the projection of a tangent by the batch's statistics, and nothing by constants
    assert seen.names["native_batch_norm_backward"] == (2 if mode == "train" else 0)


def test_evaluation_mode_normalizes_by_constants() -> None:
    node = linearized("eval").output.grad_fn
    names, waiting = set(), [node]
    while waiting:
        node = waiting.pop()
        if node is not None:
            names.add(node.name())
            waiting += [following for following, _ in node.next_functions]
    assert "_ByConstantsBackward" in names
    assert not any("BatchNorm" in name for name in names)


def test_held_tensors_keep_their_graph_outside() -> None:
    weight: Tensor = torch.ones(2, requires_grad=True)
    with pytest.raises(KeyError), record_cotangent_only():
        raise KeyError
    assert detach_if_recording((weight, None)) == (weight, None)
