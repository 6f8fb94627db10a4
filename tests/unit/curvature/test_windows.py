"""The gradient of filters as one product of matrices, against the library's own."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from normscope.curvature import operator, windows
from normscope.curvature.chain import ChainJacobian
from normscope.curvature.layout import parameter_layout
from normscope.curvature.windows import Windows


def images(channels=16, side=9, samples=3):
    generator = torch.Generator().manual_seed(1)
    drawn = torch.randn(samples, channels, side, side + 1, generator=generator)
    return drawn.contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("size", [(3, 3), (2, 4)])
@pytest.mark.parametrize("stride", [(2, 2), (1, 3)])
@pytest.mark.parametrize("padding", [(0, 0), (1, 2)])
@pytest.mark.parametrize("dilation", [(1, 1), (2, 1)])
def test_windows_give_the_gradient_of_the_filters(size, stride, padding, dilation, monkeypatch):
    monkeypatch.setattr(windows, "_MOST_COPIES", 100)
    monkeypatch.setattr(windows, "_SMALLEST_WINDOW", 1)
    x, weight = images().double(), torch.randn(5, 16, *size, dtype=torch.float64)
    x = x.contiguous(memory_format=torch.channels_last)
    weight.requires_grad_()
    output = functional.conv2d(x, weight, None, stride, padding, dilation)
    delta = torch.randn_like(output)
    (expected,) = torch.autograd.grad(output, weight, delta)
    seen = Windows.of(x, weight, stride, padding, dilation, groups=1)
    torch.testing.assert_close(seen.gradient(delta, seen.on(x)), expected)


@pytest.mark.parametrize(
    ("channels", "filters", "groups"),
    [(16, (4, 16, 3, 3), 2), (2, (4, 2, 3, 3), 1)],
)
def test_windows_that_do_not_pay_are_left_to_the_library(channels, filters, groups):
    assert (
        Windows.of(images(channels), torch.zeros(filters), (2, 2), (0, 0), (1, 1), groups) is None
    )


def test_windows_that_overlap_much_are_left_to_the_library():
    weight = torch.zeros(4, 16, 3, 3)
    assert Windows.of(images(), weight, (1, 1), (1, 1), (1, 1), 1) is None
    assert Windows.of(images(), weight, (2, 2), (0, 0), (1, 1), 1) is not None
    assert Windows.of(images().contiguous(), weight, (2, 2), (0, 0), (1, 1), 1) is None


def strided_net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2),
        nn.BatchNorm2d(16),
        nn.Tanh(),
        nn.Conv2d(16, 8, 3, stride=2, padding=1),
        nn.Tanh(),
        nn.Flatten(),
        nn.LazyLinear(2),
    )


@pytest.mark.parametrize("kind", ["fisher", "hessian"])
def test_products_through_windows_are_those_of_the_graph(kind, monkeypatch):
    model, x = strided_net(), torch.randn(6, 3, 17, 17)
    model(x)
    used = []
    gradient = Windows.gradient

    def watched(self, delta, seen):
        used.append(1)
        return gradient(self, delta, seen)

    monkeypatch.setattr(Windows, "gradient", watched)
    data = (x, torch.arange(6) % 2)
    by_layers = operator(model, "cross_entropy", data, kind)
    vector = torch.randn(by_layers.shape[0])
    found = [by_layers @ vector for _ in range(2)]
    assert used
    monkeypatch.setattr(ChainJacobian, "read", lambda *_: None)
    data = (x.double(), data[1])
    expected = operator(model.double(), "cross_entropy", data, kind) @ vector.double()
    for product in found:
        assert (product.double() - expected).norm() <= 1e-5 * expected.norm()


def test_jacobian_meets_another_batch_through_windows():
    model, x = strided_net(), torch.randn(6, 3, 17, 17)
    model(x)
    layout = parameter_layout(model)
    whole, part = (ChainJacobian.read(model, rows, "train", layout) for rows in (x, x[:3]))
    cotangent = torch.randn(part.output_shape)
    expected = whole.push_forward(part.pull_back(cotangent))
    torch.testing.assert_close(whole.gram_with(part, cotangent), expected, rtol=1e-4, atol=1e-4)
