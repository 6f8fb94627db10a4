"""Random networks written out with matrix products: what mean-field theory must agree with.

Independent of normscope's models, layers and curvature: plain tensors, plain autograd.
"""

import math
from itertools import pairwise

import torch
from torch.nn.functional import conv2d


def normalized(z, gamma, frozen):
    """Batch normalization over all but the channels, its statistics as constants if frozen."""
    dims = [d for d in range(z.dim()) if d != 1]
    mean, variance = z.mean(dims, keepdim=True), z.var(dims, unbiased=False, keepdim=True)
    if frozen:
        mean, variance = mean.detach(), variance.detach()
    return gamma * (z - mean) / variance.sqrt()


class RandomNetwork:
    """Convolutions (if any), then linear layers; weights of the theory's variances.

    Args:
        sizes: widths of the linear layers, input first; after convolutions the first is implied.
        channels: of the convolutions, input first; () for none.
        norm: whether a normalization follows every hidden layer.
    """

    def __init__(
        self,
        sizes,
        channels=(),
        norm=True,
        gamma=1.0,
        weight_variance=2.0,
        bias_variance=0.5,
        stride=2,
        padding=0,
        activation=torch.relu,
        seed=0,
    ):
        self.generator = torch.Generator().manual_seed(seed)
        self.norm, self.gamma, self.activation = norm, gamma, activation
        self.stride, self.padding = stride, padding
        self.variances = (weight_variance, bias_variance)
        shapes = [(o, i, 3, 3) for i, o in pairwise(channels)]
        shapes += [(o, i) for i, o in pairwise(sizes)]
        self.weights = [self._drawn(shape) for shape in shapes]
        self.biases = [self._normal((s[0],), bias_variance) for s in shapes]

    def _normal(self, shape, variance):
        return torch.randn(shape, generator=self.generator) * math.sqrt(variance)

    def _drawn(self, shape):
        fan_in = math.prod(shape[1:])
        return self._normal(shape, self.variances[0] / fan_in).requires_grad_()

    def __call__(self, x, frozen=False):
        last = len(self.weights) - 1
        for index, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            if weight.dim() == 4:
                x = conv2d(x, weight, bias, self.stride, self.padding)
            else:
                x = x.flatten(1) @ weight.T + bias
            if index < last:
                x = self.activation(normalized(x, self.gamma, frozen) if self.norm else x)
        return x


def layer_terms(network, x, frozen=False):
    """Claim 3.1 by definition: squared norm of the mean gradient, per layer, mean over outputs."""
    outputs = network(x, frozen).mean(0)
    terms = torch.zeros(len(network.weights), dtype=torch.float64)
    for output in outputs:
        gradients = torch.autograd.grad(output, network.weights, retain_graph=True)
        terms += torch.tensor([float(g.double().square().sum()) for g in gradients])
    return (terms / len(outputs)).tolist()


def largest_eigenvalue(network, x, frozen=False, steps=60):
    """Power iteration on J J' / m in the space of outputs, by double backward."""
    outputs = network(x, frozen)
    probe = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(1)) + 1.0
    dummy = torch.zeros_like(outputs, requires_grad=True)
    gradients = torch.autograd.grad(outputs, network.weights, dummy, create_graph=True)
    value = 0.0
    for _ in range(steps):
        probe = probe / probe.norm()
        pulled = torch.autograd.grad(outputs, network.weights, probe, retain_graph=True)
        (pushed,) = torch.autograd.grad(gradients, dummy, pulled, retain_graph=True)
        previous, value = value, float((probe * pushed).sum()) / len(x)
        if abs(value - previous) < 3e-4 * value:
            break
        probe = pushed
    return value


def squared_gradients(network, x):
    """Mean squared gradient at the output of every linear layer, train mode."""
    kept = []
    last = len(network.weights) - 1
    h = x
    for index, (weight, bias) in enumerate(zip(network.weights, network.biases, strict=True)):
        z = h @ weight.T + bias
        kept.append(z)
        h = network.activation(normalized(z, network.gamma, False)) if index < last else z
    noise = torch.randn(h.shape, generator=torch.Generator().manual_seed(2))
    gradients = torch.autograd.grad((h * noise).sum(), kept)
    return [float(g.double().square().sum() / len(x)) for g in gradients]


def module_terms(model, first, second):
    """Products of the mean gradients of two batches, per weight, mean over the outputs.

    With two batches no sample meets itself, so there is no bias of one over the batch size.
    """
    weights = [p for name, p in model.named_parameters() if p.dim() > 1]
    outputs = [model(batch).mean(0) for batch in (first, second)]
    terms = torch.zeros(len(weights), dtype=torch.float64)
    for a, b in zip(*outputs, strict=True):
        gradients = [torch.autograd.grad(value, weights, retain_graph=True) for value in (a, b)]
        pairs = zip(*gradients, strict=True)
        terms += torch.tensor([float((g.double() * h.double()).sum()) for g, h in pairs])
    return (terms / len(outputs[0])).tolist()
