"""Small chains in float64 with every kind of layer, and their dense Jacobian by autograd."""

import copy

import torch
from tests.unit.curvature.networks import randomized
from torch import nn
from torch.nn import functional

from normscope.layers import BatchNorm1d, BatchNorm2d, BatchNorm3d, NoNorm

ACTIVATIONS = {
    "leaky_relu": nn.LeakyReLU(0.2),
    "tanh": nn.Tanh(),
    "sigmoid": nn.Sigmoid(),
    "gelu": nn.GELU(),
    "gelu_tanh": nn.GELU(approximate="tanh"),
    "silu": nn.SiLU(),
    "elu": nn.ELU(0.7),
    "softplus": nn.Softplus(beta=2),
    "celu": nn.CELU(0.7),
    "selu": nn.SELU(),
    "mish": nn.Mish(),
    "relu6": nn.ReLU6(),
    "hardtanh": nn.Hardtanh(-0.5, 0.7),
    "hardswish": nn.Hardswish(),
    "hardsigmoid": nn.Hardsigmoid(),
    "logsigmoid": nn.LogSigmoid(),
    "softsign": nn.Softsign(),
    "tanhshrink": nn.Tanhshrink(),
    "softshrink": nn.Softshrink(0.1),
    "hardshrink": nn.Hardshrink(0.1),
    "relu": nn.ReLU(),
    "relu_in_place": nn.ReLU(inplace=True),
    "leaky_relu_in_place": nn.LeakyReLU(0.2, inplace=True),
}


class Straight(nn.Module):
    """A forward written out, in functions and methods as well as modules."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.second = nn.Conv2d(4, 3, 2)
        self.head = nn.Linear(3, 2)
        self.seen = []

    def forward(self, x):
        x = functional.relu(self.norm(self.first(x)))
        x = functional.max_pool2d(x, 2, stride=1)
        x = functional.dropout(torch.tanh(self.second(x)), 0.0, self.training)
        x = functional.avg_pool2d(x, 2, 1)
        x = x.mean((2, 3), keepdim=True)
        self.last = x
        self.seen.append(1)
        return self.head(x.view(x.size(0), -1))


class Reshaped(nn.Module):
    """Flattened by its shape, in two more of the usual ways."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, x):
        x = self.first(x.reshape(x.shape[0], -1)).sigmoid()
        return self.head(torch.flatten(x.view(-1, 2, 3), 1))


class Named(nn.Sequential):
    """A sequence with a constructor of its own."""

    def __init__(self):
        super().__init__(nn.Linear(3, 4), BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2))


def image_net(convolution, norm=None, *after):
    between = nn.Identity() if norm is None else norm
    return nn.Sequential(convolution, between, nn.Tanh(), *after, nn.Flatten(), nn.LazyLinear(2))


#: name -> network and the shape of one sample
CHAINS = {
    "linear": (lambda: nn.Linear(3, 2), (3,)),
    "no_bias": (
        lambda: nn.Sequential(nn.Linear(3, 4, bias=False), nn.Tanh(), nn.Linear(4, 2, bias=False)),
        (3,),
    ),
    "two_linear": (lambda: nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), (3,)),
    "wide": (lambda: nn.Sequential(nn.Linear(20, 9), nn.Tanh(), nn.Linear(9, 12)), (20,)),
    "sequence": (lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), (5, 3)),
    "batch_norm": (lambda: Named(), (3,)),
    "norm_first": (
        lambda: nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)),
        (3,),
    ),
    "norm_last": (lambda: nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)), (3,)),
    "norm_after_activation": (
        lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.BatchNorm1d(4), nn.Linear(4, 2)),
        (3,),
    ),
    "norm_not_affine": (
        lambda: nn.Sequential(
            nn.Linear(3, 4), nn.BatchNorm1d(4, affine=False), nn.Tanh(), nn.Linear(4, 2)
        ),
        (3,),
    ),
    "norm_no_running": (
        lambda: nn.Sequential(
            nn.Linear(3, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 2)
        ),
        (3,),
    ),
    "nested": (
        lambda: nn.Sequential(
            nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.Tanh(), NoNorm(4, 0))),
            nn.Dropout(0.0),
            nn.Sequential(nn.Linear(4, 2)),
        ),
        (3,),
    ),
    "conv1d": (lambda: image_net(nn.Conv1d(2, 3, 2), nn.BatchNorm1d(3)), (2, 5)),
    "conv2d": (lambda: image_net(nn.Conv2d(2, 3, 2), BatchNorm2d(3)), (2, 4, 3)),
    "conv3d": (lambda: image_net(nn.Conv3d(1, 2, 2), BatchNorm3d(2)), (1, 3, 2, 3)),
    "strided_padded_dilated": (
        lambda: image_net(nn.Conv2d(2, 3, (3, 2), (2, 1), (2, 1), (1, 2), bias=False)),
        (2, 5, 6),
    ),
    "grouped": (lambda: image_net(nn.Conv2d(4, 6, 2, groups=2), nn.BatchNorm2d(6)), (4, 3, 3)),
    "depthwise": (lambda: image_net(nn.Conv1d(3, 3, 2, groups=3)), (3, 4)),
    "same": (lambda: image_net(nn.Conv2d(2, 3, 3, padding="same", dilation=2)), (2, 4, 4)),
    "valid": (lambda: image_net(nn.Conv2d(2, 3, 3, padding="valid")), (2, 4, 4)),
    "two_convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 3, 2), nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 2, 2, stride=2)
        ),
        (2, 5, 5),
    ),
    "average_pool": (
        lambda: image_net(nn.Conv2d(2, 3, 2), None, nn.AvgPool2d(2, 1, padding=1)),
        (2, 4, 4),
    ),
    "adaptive_pool": (
        lambda: image_net(nn.Conv2d(2, 3, 2), nn.BatchNorm2d(3), nn.AdaptiveAvgPool2d(1)),
        (2, 4, 4),
    ),
    "average_pool_1d": (lambda: image_net(nn.Conv1d(2, 3, 2), None, nn.AvgPool1d(2)), (2, 6)),
    "average_pool_3d": (
        lambda: image_net(nn.Conv3d(1, 2, 2), None, nn.AvgPool3d(2, 1)),
        (1, 4, 3, 3),
    ),
    "max_pool": (lambda: image_net(nn.Conv2d(2, 3, 2), None, nn.MaxPool2d(2)), (2, 5, 5)),
    "max_pool_overlapping": (
        lambda: image_net(nn.Conv2d(2, 3, 2), None, nn.MaxPool2d(3, 1, padding=1)),
        (2, 4, 4),
    ),
    "max_pool_1d": (lambda: image_net(nn.Conv1d(2, 3, 2), None, nn.MaxPool1d(2, 1)), (2, 6)),
    "max_pool_3d": (lambda: image_net(nn.Conv3d(1, 2, 2), None, nn.MaxPool3d(2)), (1, 4, 3, 3)),
    "unflatten": (
        lambda: nn.Sequential(nn.Linear(3, 8), nn.Unflatten(1, (2, 4)), nn.Conv1d(2, 2, 2)),
        (3,),
    ),
    "straight": (lambda: Straight(), (2, 5, 5)),
    "reshaped": (lambda: Reshaped(), (2, 2)),
}


def chain(name, samples=6, seed=0):
    """A chain with random parameters and buffers, and a batch of inputs."""
    make, shape = CHAINS[name]
    model = make()
    generator = torch.Generator().manual_seed(seed + 1)
    inputs = torch.randn(samples, *shape, generator=generator, dtype=torch.float64)
    if any(isinstance(module, nn.LazyLinear) for module in model.modules()):
        model.double()(inputs)  # gives the head its shape
    return randomized(model, seed), inputs


class Constant(nn.Module):
    """Batch normalization whose statistics are constants of the batch."""

    def __init__(self, layer):
        super().__init__()
        self.weight, self.bias, self.eps = layer.weight, layer.bias, layer.eps

    def forward(self, x):
        dims = [dim for dim in range(x.dim()) if dim != 1]
        mean = x.detach().mean(dims, keepdim=True)
        variance = (x.detach() - mean).square().mean(dims, keepdim=True)
        y = (x - mean) / (variance + self.eps).sqrt()
        if self.weight is None:
            return y
        shape = [-1 if dim == 1 else 1 for dim in range(x.dim())]
        return y * self.weight.view(shape) + self.bias.view(shape)


def dense_jacobian(model, inputs, mode, names=None):
    """Outputs by parameters, one backward pass for each output; and the output."""
    model = copy.deepcopy(model).train(mode != "eval")
    if mode == "frozen":
        for module in list(model.modules()):
            for name, child in list(module.named_children()):
                if isinstance(child, nn.modules.batchnorm._BatchNorm):
                    setattr(module, name, Constant(child))
    parameters = [p for name, p in model.named_parameters() if names is None or name in names]
    output = model(inputs.clone())
    rows = [
        torch.cat([gradient.reshape(-1) for gradient in gradients])
        for gradients in (
            torch.autograd.grad(value, parameters, retain_graph=True, materialize_grads=True)
            for value in output.reshape(-1)
        )
    ]
    return torch.stack(rows), output.detach()
