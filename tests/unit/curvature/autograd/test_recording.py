"""A recorded backward pass differentiates by its cotangent alone, and no more than that."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from normscope.curvature.autograd.recording import detach_if_recording, record_cotangent_only
from normscope.curvature.jacobian import GraphJacobian
from normscope.errors import StateError
from normscope.problem import Evaluator, Problem, parameter_layout
from normscope.problem.references import graph_nodes


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
    with pytest.raises(KeyError), record_cotangent_only(weight):
        raise KeyError
    assert detach_if_recording((weight, None)) == (weight, None)


def recorded() -> tuple[Tensor, list[Tensor], Tensor, tuple[Tensor, ...]]:
    """Return weights, a cotangent and the gradients of a small network as functions of it."""
    torch.manual_seed(0)
    x = torch.randn(5, 4, dtype=torch.float64)
    weights = [torch.randn(4, 4, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    hidden = functional.layer_norm(functional.gelu(x @ weights[0]), (4,))
    output = torch.softmax(hidden @ weights[1], dim=1)
    cotangent = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    with record_cotangent_only(cotangent):
        pulled = torch.autograd.grad(output, weights, cotangent, create_graph=True)
    return x, weights, cotangent, pulled


def test_recorded_backward_pass_has_its_derivative_in_the_cotangent() -> None:
    x, weights, cotangent, pulled = recorded()
    tangents = [torch.randn_like(each) for each in weights]
    (found,) = torch.autograd.grad(pulled, cotangent, tangents, retain_graph=True)

    def forward(first: Tensor, second: Tensor) -> Tensor:
        hidden = functional.layer_norm(functional.gelu(x @ first), (4,))
        return torch.softmax(hidden @ second, dim=1)

    _, expected = torch.autograd.functional.jvp(forward, tuple(weights), tuple(tangents))
    torch.testing.assert_close(found, expected)


def test_tensors_that_depend_on_the_cotangent_are_not_kept() -> None:
    *_, pulled = recorded()
    saved = [
        getattr(node, name)
        for value in pulled
        for node in graph_nodes(value)
        for name in dir(node)
        if name.startswith("_saved_")
    ]
    tensors = [each for each in saved if isinstance(each, Tensor) and each.is_floating_point()]
    dropped = [each for each in tensors if each.isnan().any()]
    assert len(dropped) == 4  # at the inputs of softmax, second product, norm and GELU
    assert all(each.untyped_storage().nbytes() == each.element_size() for each in dropped)


def test_derivative_in_a_weight_is_not_a_number_instead_of_wrong() -> None:
    _, weights, _, pulled = recorded()
    (wrong,) = torch.autograd.grad(pulled[1].sum(), weights[0])
    assert wrong.isnan().any()


def test_saved_tensor_that_is_overwritten_is_refused() -> None:
    x, weights, cotangent, pulled = recorded()
    x.mul_(2)
    with pytest.raises(StateError, match="overwrites a tensor in place"):
        torch.autograd.grad(pulled, cotangent, [torch.ones_like(each) for each in weights])
