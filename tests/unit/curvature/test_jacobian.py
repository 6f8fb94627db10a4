import pytest
import torch
from tests.references.curvature import Reference
from tests.unit.curvature.networks import batch, network
from torch.nn import functional

from normscope.curvature.jacobian import GraphJacobian
from normscope.problem import Evaluator, Problem, parameter_layout


@pytest.mark.parametrize("mode", ["train", "frozen", "eval"])
@pytest.mark.parametrize("name", ["torch_batch", "conv2d", "tied"])
def test_linearization_is_the_jacobian_and_its_transpose(name, mode):
    model, data = network(name), batch(name)
    problem = Problem(model, functional.cross_entropy, data)
    evaluator = Evaluator(problem, parameter_layout(model), mode, 0)
    linear = GraphJacobian(evaluator, evaluator(data), data)
    jacobian = Reference(model, functional.cross_entropy, data, mode).jacobian
    vector = torch.randn(jacobian.shape[1], dtype=torch.float64)
    cotangent = torch.randn(linear.output_shape, dtype=torch.float64)
    flat = cotangent.reshape(-1)
    pushed = linear.push_forward(vector).reshape(-1)
    assert torch.allclose(pushed, jacobian @ vector, rtol=1e-6, atol=1e-8)
    assert torch.allclose(linear.pull_back(cotangent), jacobian.T @ flat, rtol=1e-6, atol=1e-8)
    gram = linear.gram(cotangent)[0].reshape(-1)
    assert torch.allclose(gram, jacobian @ (jacobian.T @ flat), rtol=1e-6, atol=1e-7)
    several = [cotangent, 2 * cotangent, torch.randn_like(cotangent)]
    rows = torch.stack([one.reshape(-1) for one in several]) @ jacobian
    assert torch.allclose(linear.inner_products(several), rows @ rows.T, rtol=1e-6, atol=1e-7)
