"""Networks with other inputs and outputs than one tensor, and networks inside wrappers."""

from __future__ import annotations

from collections import OrderedDict

import torch
from tests.zoo.convolutional import ResNet18, conv_norm
from tests.zoo.entry import CLASSES
from torch import Tensor, nn
from torch.nn import functional


class GraphLayer(nn.Module):
    """Sum over the neighbours, then an MLP with batch norm over the nodes (GIN)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.eps = nn.Parameter(torch.zeros(()))
        self.mlp = nn.Sequential(
            nn.Linear(inputs, outputs),
            nn.BatchNorm1d(outputs),
            nn.ReLU(),
            nn.Linear(outputs, outputs),
        )

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        source, destination = edge_index
        received = torch.zeros_like(x).index_add(0, destination, x[source])
        return self.mlp((1 + self.eps) * x + received)


class GraphNetwork(nn.Module):
    """Classifier of the nodes of a graph; a row is a node, not an independent sample."""

    def __init__(self, inputs: int = 6, width: int = 16) -> None:
        super().__init__()
        self.conv1, self.conv2 = GraphLayer(inputs, width), GraphLayer(width, width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = functional.relu(self.conv1(x, edge_index))
        return self.head(functional.relu(self.conv2(x, edge_index)))


class TwoInputs(nn.Module):
    """A prediction from an image and a table row."""

    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Sequential(
            *conv_norm(3, 8, 3, 2), nn.ReLU(), *conv_norm(8, 12, 3, 2), nn.ReLU()
        )
        self.table = nn.Sequential(nn.Linear(5, 12), nn.ReLU())
        self.head = nn.Sequential(nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, image: Tensor, table: Tensor) -> Tensor:
        seen = self.image(image).mean((2, 3))
        return self.head(torch.cat([seen, self.table(table)], dim=1))


class Siamese(nn.Module):
    """Two images through one encoder; returns both embeddings."""

    def __init__(self, size: int = 6) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            *conv_norm(3, 8, 3, 2),
            nn.ReLU(),
            *conv_norm(8, 16, 3, 2),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(16, size),
        )

    def forward(self, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        return self.encoder(first), self.encoder(second)


def contrastive_loss(first: Tensor, second: Tensor, same: Tensor) -> Tensor:
    """Pull pairs of one class together, push others apart up to a margin of one."""
    distance = ((first - second).square().sum(1) + 1e-6).sqrt()
    apart = functional.relu(1 - distance)
    return (same * distance.square() + (1 - same) * apart.square()).mean()


class SegmentationNet(nn.Module):
    """Scores of every pixel from the last and from an earlier layer, in a dictionary (FCN)."""

    def __init__(self, classes: int = 2) -> None:
        super().__init__()
        self.early = nn.Sequential(*conv_norm(1, 8, 3, 2), nn.ReLU(inplace=True))
        self.late = nn.Sequential(*conv_norm(8, 16, 3, 2), nn.ReLU(inplace=True))
        self.classifier = nn.Sequential(*conv_norm(16, 8), nn.ReLU(), nn.Conv2d(8, classes, 1))
        self.aux_classifier = nn.Conv2d(8, classes, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        early = self.early(x)
        scores = {"out": self.classifier(self.late(early)), "aux": self.aux_classifier(early)}
        size = x.shape[-2:]
        return OrderedDict(
            (name, functional.interpolate(each, size, mode="bilinear", align_corners=False))
            for name, each in scores.items()
        )


def segmentation_loss(out: Tensor, aux: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of the pixels, that of the auxiliary scores with weight 0.4."""
    return functional.cross_entropy(out, labels) + 0.4 * functional.cross_entropy(aux, labels)


class Transfer(nn.Module):
    """A frozen backbone, its batch norm in eval mode, with a head that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = ResNet18(widths=(6, 8, 10, 12))
        self.backbone.fc = nn.Identity()
        self.head = nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU())
        self.scores = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.scores(self.head(self.backbone(x)))


def frozen_backbone() -> Transfer:
    """Return a network of which only the head learns, with the flags of its training."""
    model = Transfer()
    model.backbone.eval().requires_grad_(False)
    for norm in model.backbone.modules():
        if isinstance(norm, nn.BatchNorm2d):  # as if learned elsewhere
            nn.init.uniform_(norm.running_mean, -0.2, 0.2)
            nn.init.uniform_(norm.running_var, 0.5, 1.5)
    return model


def small_convolutional() -> nn.Sequential:
    """Return a network of two convolutions with batch norm."""
    return nn.Sequential(
        *conv_norm(3, 8, 3, 2),
        nn.ReLU(),
        *conv_norm(8, 16, 3, 2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(64, CLASSES),
    )


def bfloat16_network() -> nn.Module:
    """Return a network whose parameters and buffers are in bfloat16."""
    return small_convolutional().bfloat16()


def compiled_network() -> nn.Module:
    """Return a network inside torch.compile."""
    return torch.compile(small_convolutional(), backend="eager")
