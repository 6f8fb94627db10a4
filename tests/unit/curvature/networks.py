"""Small networks in float64 with every kind of layer, their parameters and buffers random."""

import math

import torch
from torch import nn

from normscope.layers import BatchNorm1d, BatchNorm2d, BatchNorm3d, LpNorm1d, NoisyBatchNorm1d


def randomized(model, seed=0):
    generator = torch.Generator().manual_seed(seed)
    model = model.double()
    with torch.no_grad():
        for parameter in model.parameters():
            drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(drawn * 0.6)
        for module in model.modules():
            for name, buffer in module.named_buffers(recurse=False):
                if buffer.is_floating_point():
                    drawn = torch.rand(buffer.shape, generator=generator, dtype=torch.float64)
                    buffer.copy_(drawn + (0.5 if name != "running_mean" else -0.5))
    return model


class FusedActivation(nn.BatchNorm1d):
    """A subclass that does more than normalize."""

    def forward(self, input):
        return self.activation(super().forward(input))

    def activation(self, normalized):
        return torch.tanh(normalized)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(3, 4)
        self.block = nn.Sequential(nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 4))
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        x = self.stem(x)
        return self.head(x + self.block(x))


class Tied(nn.Module):
    """One weight under two names, one norm layer called twice with different inputs."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(3)
        self.head = nn.Linear(3, 2)

    def forward(self, x):
        x = torch.tanh(self.norm(self.first(x)))
        return self.head(self.norm(self.second(x)))


class Functional(nn.Module):
    """Batch normalization without a module."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        x = nn.functional.batch_norm(self.first(x), None, None, training=True)
        return self.head(torch.tanh(x))


def dense_net(norm):
    return nn.Sequential(nn.Linear(3, 4), norm, nn.Tanh(), nn.Linear(4, 2))


NORMS = {
    "none": nn.Identity,
    "torch_batch": lambda: nn.BatchNorm1d(4),
    "torch_batch_no_running": lambda: nn.BatchNorm1d(4, track_running_stats=False),
    "torch_batch_not_affine": lambda: nn.BatchNorm1d(4, affine=False, momentum=None),
    "sync_batch": lambda: nn.SyncBatchNorm(4),
    "fused_subclass": lambda: FusedActivation(4),
    "our_batch": lambda: BatchNorm1d(4),
    "noisy": lambda: NoisyBatchNorm1d(4, generator=3),
    "noisy_default_generator": lambda: NoisyBatchNorm1d(4),
    "l1": lambda: LpNorm1d(4, p=1),
    "l2_centred": lambda: LpNorm1d(4, p=2, centred=True),
    "linf": lambda: LpNorm1d(4, p=math.inf),
    "l3_no_running": lambda: LpNorm1d(4, p=3, track_running_stats=False),
    "layer": lambda: nn.LayerNorm(4),
    "group": lambda: nn.GroupNorm(2, 4),
}

NETWORKS = {name: (lambda make=make: dense_net(make())) for name, make in NORMS.items()} | {
    "conv1d": lambda: nn.Sequential(
        nn.Conv1d(1, 2, 2), nn.BatchNorm1d(2), nn.Tanh(), nn.Flatten(), nn.Linear(8, 2)
    ),
    "conv2d": lambda: nn.Sequential(
        nn.Conv2d(1, 2, 2), nn.BatchNorm2d(2), nn.Softplus(), nn.Flatten(), nn.Linear(8, 2)
    ),
    "conv3d": lambda: nn.Sequential(
        nn.Conv3d(1, 2, 2), nn.BatchNorm3d(2), nn.Tanh(), nn.Flatten(), nn.Linear(4, 2)
    ),
    "our_conv2d": lambda: nn.Sequential(
        nn.Conv2d(1, 2, 2), BatchNorm2d(2), nn.Tanh(), nn.Flatten(), nn.Linear(8, 2)
    ),
    "our_conv3d": lambda: nn.Sequential(
        nn.Conv3d(1, 2, 2), BatchNorm3d(2), nn.Tanh(), nn.Flatten(), nn.Linear(4, 2)
    ),
    "instance": lambda: nn.Sequential(
        nn.Conv1d(1, 2, 2),
        nn.InstanceNorm1d(2, affine=True),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(8, 2),
    ),
    "embedding": lambda: nn.Sequential(
        nn.Embedding(5, 2), nn.Flatten(), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 2)
    ),
    "dropout": lambda: nn.Sequential(
        nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.4), nn.Tanh(), nn.Linear(4, 2)
    ),
    "tied": Tied,
    "residual": Residual,
}

INPUT_SHAPES = {
    "conv1d": (1, 5),
    "instance": (1, 5),
    "conv2d": (1, 3, 3),
    "our_conv2d": (1, 3, 3),
    "conv3d": (1, 3, 2, 2),
    "our_conv3d": (1, 3, 2, 2),
}


def network(name, seed=0):
    return randomized(NETWORKS[name](), seed)


def batch(name, samples=7, seed=1):
    """Inputs and two-class labels for a network."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(2, (samples,), generator=generator)
    if name == "embedding":
        return torch.randint(5, (samples, 3), generator=generator), labels
    shape = INPUT_SHAPES.get(name, (3,))
    return torch.randn(samples, *shape, generator=generator, dtype=torch.float64), labels
