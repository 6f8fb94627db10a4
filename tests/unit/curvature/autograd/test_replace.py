"""Which modules get fast second derivatives, and that the model has its own back afterwards."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from normscope import whole_loss
from normscope.curvature import operator
from normscope.curvature.autograd.replace import use_fast_layers
from normscope.layers import BatchNorm1d, BatchNorm2d
from normscope.problem import isolated


def graph_nodes(output: Tensor) -> set[str]:
    names, waiting = set(), [output.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node.name() not in names:
            names.add(node.name())
            waiting += [following for following, _ in node.next_functions]
    return names


def replaced(layer: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    expected = layer(x)
    with isolated(layer):
        use_fast_layers(layer, norms=True)
        return layer(x), expected


@pytest.mark.parametrize(
    "layer", [nn.BatchNorm1d(3), BatchNorm1d(3), nn.BatchNorm1d(3, affine=False)], ids=repr
)
def test_batch_norm_layers_are_replaced(layer: nn.Module) -> None:
    output, expected = replaced(layer, torch.randn(6, 3, requires_grad=True))
    torch.testing.assert_close(output, expected)
    assert "_NormalizeBackward" in graph_nodes(output)
    assert not any("NativeBatchNorm" in node for node in graph_nodes(output))


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(3), BatchNorm1d(3)], ids=repr)
def test_batch_norm_layers_are_replaced_in_evaluation_mode_too(layer: nn.Module) -> None:
    x = torch.randn(6, 3, requires_grad=True)
    layer(x)  # moves the running statistics off 0 and 1
    output, expected = replaced(layer.eval(), x)
    torch.testing.assert_close(output, expected)
    assert not any("NativeBatchNorm" in node for node in graph_nodes(output))
    assert "_ByConstantsBackward" in graph_nodes(output)


def test_a_layer_without_running_statistics_uses_its_batch_in_evaluation_mode() -> None:
    layer = nn.BatchNorm1d(3, track_running_stats=False).eval()
    output, expected = replaced(layer, torch.randn(6, 3, requires_grad=True))
    assert torch.equal(output, expected)


def test_running_statistics_far_from_zero_are_left_to_the_layer() -> None:
    layer = nn.BatchNorm1d(3).eval()
    layer.running_mean.fill_(1e4)
    output, expected = replaced(layer, 1e4 + torch.randn(6, 3, requires_grad=True))
    assert torch.equal(output, expected)
    assert "_ByConstantsBackward" not in graph_nodes(output)
    layer.running_mean.fill_(-1e4)
    output, _ = replaced(layer, torch.randn(6, 3, requires_grad=True) - 1e4)
    assert "_ByConstantsBackward" not in graph_nodes(output)


def test_running_statistics_that_are_trained_are_no_constants() -> None:
    layer = nn.BatchNorm1d(3).eval()
    del layer.running_mean
    layer.running_mean = nn.Parameter(torch.zeros(3))
    with pytest.raises(RuntimeError, match="running_mean"):
        replaced(layer, torch.randn(6, 3, requires_grad=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_in_evaluation_mode_is_left_to_the_layer(dtype: torch.dtype) -> None:
    layer = nn.BatchNorm1d(3).to(dtype).eval()
    output, expected = replaced(layer, torch.randn(6, 3).to(dtype).requires_grad_())
    assert torch.equal(output, expected)
    assert "_ByConstantsBackward" not in graph_nodes(output)


class OwnJacobian(nn.Module):
    """Its output is made of gradients that it takes itself, at once or one after the other."""

    def __init__(self, inner: nn.Module, at_once: bool) -> None:
        super().__init__()
        self.inner, self.at_once = inner, at_once

    def forward(self, x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        y = self.inner(x)
        units = torch.eye(2, dtype=y.dtype).unsqueeze(1).expand(2, *y.shape)
        options: dict[str, Any] = {"create_graph": True, "retain_graph": True}
        if self.at_once:
            (slopes,) = torch.autograd.grad(y, x, units, is_grads_batched=True, **options)
        else:
            slopes = torch.stack([torch.autograd.grad(y, x, unit, **options)[0] for unit in units])
        return y + slopes.flatten(2).square().sum(2).T


@pytest.mark.parametrize("mode", ["train", "frozen", "eval"])
@pytest.mark.parametrize("kind", ["ggn", "hessian"])
def test_gradients_that_a_model_takes_in_batches_are_differentiated(kind: str, mode: str) -> None:
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 3, 2), nn.BatchNorm2d(3), nn.Tanh(), nn.Flatten(), nn.Linear(12, 2)
    inner = nn.Sequential(*layers).double()
    data = torch.randn(5, 1, 3, 3, dtype=torch.float64), torch.arange(5) % 2
    found, expected = (
        operator(OwnJacobian(inner, at_once), "cross_entropy", data, kind, mode)
        for at_once in (True, False)
    )
    vector = torch.randn(found.shape[0], dtype=torch.float64)
    torch.testing.assert_close(found @ vector, expected @ vector)


class OwnBatchNorm(nn.BatchNorm1d):
    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


def test_a_layer_with_its_own_forward_keeps_it() -> None:
    output, expected = replaced(OwnBatchNorm(3), torch.randn(6, 3))
    assert torch.equal(output, expected)
    assert "_NormalizeBackward" not in graph_nodes(output)


def test_a_layer_far_from_zero_keeps_its_own_remedy() -> None:
    x = 1e4 + 1e-2 * torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
    output, expected = replaced(BatchNorm1d(3), x)
    assert torch.equal(output, expected)


@pytest.mark.parametrize(
    ("options", "fast"),
    [
        ({}, True),
        ({"padding": 1, "stride": 2}, True),
        ({"padding": "same"}, False),
        ({"padding": 1, "padding_mode": "circular"}, False),
    ],
)
def test_convolutions_are_replaced_where_they_can_be(options: dict[str, Any], fast: bool) -> None:
    layer = nn.Conv2d(2, 3, 3, **options)
    output, expected = replaced(layer, torch.randn(2, 2, 5, 5))
    torch.testing.assert_close(output, expected)
    assert ("_ConvolveBackward" in graph_nodes(output)) == fast


def test_hessian_of_a_convolutional_net_equals_the_double_backward_of_torch() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 3, 3, stride=2),
        BatchNorm2d(3),
        nn.ReLU(),
        nn.Conv2d(3, 4, 2, groups=1, padding=1),
        nn.BatchNorm2d(4),
        nn.Tanh(),
        nn.Flatten(),
        nn.LazyLinear(3),
    ).double()
    x, y = torch.randn(6, 2, 7, 7, dtype=torch.float64), torch.randint(3, (6,))
    loss = nn.functional.cross_entropy
    model(x)  # the lazy layer learns its shape
    parameters = list(model.parameters())
    matrix = operator(model, loss, (x, y), kind="hessian")
    vector = torch.randn(matrix.shape[0], dtype=torch.float64)
    gradients = torch.autograd.grad(loss(model(x), y), parameters, create_graph=True)
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    products = torch.autograd.grad(flat, parameters, vector)
    expected = torch.cat([product.flatten() for product in products])
    torch.testing.assert_close(matrix @ vector, expected, rtol=1e-9, atol=1e-10)
    assert not any("forward" in m.__dict__ or "_conv_forward" in m.__dict__ for m in model)


def relative_error(model: nn.Module, data: tuple[Tensor, Tensor], **options: Any) -> float:
    """Of a Hessian product against central differences of the gradient."""
    loss = nn.functional.cross_entropy
    matrix = operator(model, loss, data, kind="hessian", **options)
    parameters = list(model.parameters())
    start = [parameter.detach().clone() for parameter in parameters]
    generator = torch.Generator().manual_seed(3)
    directions = [
        torch.randn(p.shape, generator=generator, dtype=torch.float64) for p in parameters
    ]
    gradients = []
    for step in (1e-5, -1e-5):
        with torch.no_grad():
            for parameter, first, direction in zip(parameters, start, directions, strict=True):
                parameter.copy_(first + step * direction)
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        found = torch.autograd.grad(loss(model(data[0]), data[1]), parameters)
        gradients.append(torch.cat([part.flatten() for part in found]))
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                buffer.copy_(buffers[name])
    with torch.no_grad():
        for parameter, first in zip(parameters, start, strict=True):
            parameter.copy_(first)
    expected = (gradients[0] - gradients[1]) / 2e-5
    product = matrix @ torch.cat([direction.flatten() for direction in directions])
    return float((product - expected).norm() / expected.norm())


def images() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(6, 2, 5, 5, generator=generator, dtype=torch.float64)
    return x, torch.arange(6) % 3


def small_net(norm: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 3, 3), norm, nn.Tanh(), nn.Flatten(), nn.Linear(27, 3)
    ).double()


class InEval(nn.Module):
    """Batch normalization that its model holds in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.BatchNorm2d(3)

    def forward(self, x: Tensor) -> Tensor:
        self.inner.eval()
        return self.inner(x)


class Reader(nn.Module):
    """A model that reads the running statistics after the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.BatchNorm2d(3, momentum=None)

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        return y * (1 + self.inner.running_var.view(-1, 1, 1)) + self.inner.num_batches_tracked


def test_hessian_is_right_where_a_layer_is_in_eval_mode_on_its_way() -> None:
    assert relative_error(small_net(InEval()), images()) < 1e-6


def test_model_reads_the_running_statistics_that_its_layer_would_have_left() -> None:
    model, (x, y) = small_net(Reader()), images()
    matrix = operator(model, "cross_entropy", (x, y), kind="hessian")
    vector = torch.randn(matrix.shape[0], dtype=torch.float64)
    parameters = list(model.parameters())
    loss = nn.functional.cross_entropy(model(x), y)
    gradients = torch.autograd.grad(loss, parameters, create_graph=True)
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    expected = torch.autograd.grad(flat, parameters, vector)
    torch.testing.assert_close(matrix @ vector, torch.cat([part.flatten() for part in expected]))


@pytest.mark.usefixtures("fresh_compiler")
def test_hessian_of_a_compiled_model_is_that_of_the_model() -> None:
    model = small_net(BatchNorm2d(3))
    plain = operator(model, "cross_entropy", images(), kind="hessian")
    compiled = torch.compile(model, backend="eager")
    measured = operator(compiled, "cross_entropy", images(), kind="hessian")
    vector = torch.randn(plain.shape[0], dtype=torch.float64)
    torch.testing.assert_close(measured @ vector, plain @ vector)


def test_gradient_penalty_has_a_hessian() -> None:
    """The loss takes a gradient itself: third derivatives of convolution and batch norm."""
    model = small_net(nn.BatchNorm2d(3))

    def penalized(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = batch
        x = x.detach().requires_grad_()
        loss = nn.functional.cross_entropy(model(x), y)
        (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
        return loss + gradient.square().sum()

    matrix = operator(model, whole_loss(penalized), images(), kind="hessian")
    vector = torch.randn(matrix.shape[0], dtype=torch.float64)
    # torch's own third derivative of batch_norm is wrong: symmetry and differences judge ours
    other = torch.randn_like(vector)
    torch.testing.assert_close(other @ (matrix @ vector), vector @ (matrix @ other))
