"""Convolutional image classifiers, narrow: the blocks of the published networks, few of each."""

from __future__ import annotations

from typing import NamedTuple

import torch
from tests.zoo.entry import CLASSES
from torch import Tensor, nn
from torch.nn import functional


def conv_norm(inputs: int, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1):
    """Convolution and batch norm."""
    padding = kernel // 2
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
    )


def classifier(channels: int) -> nn.Sequential:
    """Mean over positions, then the scores."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES))


class BasicBlock(nn.Module):
    """Two convolutions beside a shortcut (ResNet-18)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        same = stride == 1 and inputs == outputs
        self.downsample = None if same else conv_norm(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += shortcut
        return self.relu(out)


class ResNet18(nn.Module):
    """Four stages of two basic blocks."""

    def __init__(self, widths: tuple[int, ...] = (8, 12, 16, 20)) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, widths[0], 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0])
        self.relu = nn.ReLU(inplace=True)
        stages, inputs = [], widths[0]
        for number, width in enumerate(widths):
            first = BasicBlock(inputs, width, stride=1 if number == 0 else 2)
            stages.append(nn.Sequential(first, BasicBlock(width, width, stride=1)))
            inputs = width
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(inputs, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


class Inception(nn.Module):
    """Four parallel branches, concatenated."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.branch1 = self._basic(inputs, width, 1)
        self.branch2 = nn.Sequential(self._basic(inputs, width, 1), self._basic(width, width, 3))
        self.branch3 = nn.Sequential(self._basic(inputs, width, 1), self._basic(width, width, 3))
        self.branch4 = nn.Sequential(nn.MaxPool2d(3, 1, 1), self._basic(inputs, width, 1))

    @staticmethod
    def _basic(inputs: int, outputs: int, kernel: int) -> nn.Sequential:
        return nn.Sequential(*conv_norm(inputs, outputs, kernel), nn.ReLU(inplace=True))

    def forward(self, x: Tensor) -> Tensor:
        branches = (self.branch1, self.branch2, self.branch3, self.branch4)
        return torch.cat([branch(x) for branch in branches], dim=1)


class GoogLeNetOutputs(NamedTuple):
    """Scores of the network and of its auxiliary heads."""

    logits: Tensor
    aux_logits2: Tensor
    aux_logits1: Tensor


class GoogLeNet(nn.Module):
    """Inception blocks; in train mode two auxiliary heads, so that the output is a tuple."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.stem = nn.Sequential(*conv_norm(3, 12), nn.ReLU(inplace=True))
        self.inception3 = Inception(12, width)
        self.pool = nn.MaxPool2d(3, 2, ceil_mode=True)
        self.inception4 = Inception(4 * width, width)
        self.inception5 = Inception(4 * width, width)
        self.aux1, self.aux2 = classifier(4 * width), classifier(4 * width)
        self.head = classifier(4 * width)

    def forward(self, x: Tensor) -> Tensor | GoogLeNetOutputs:
        x = self.pool(self.inception3(self.pool(self.stem(x))))
        x = self.inception4(x)
        aux1 = self.aux1(x) if self.training else None
        x = self.inception5(x)
        aux2 = self.aux2(x) if self.training else None
        logits = self.head(x)
        return GoogLeNetOutputs(logits, aux2, aux1) if self.training else logits


class PlainHardswish(nn.Module):
    """Hardswish in operations that torch differentiates twice."""

    def forward(self, x: Tensor) -> Tensor:
        return x * functional.relu6(x + 3) / 6


class PlainHardsigmoid(nn.Module):
    """Hardsigmoid in operations that torch differentiates twice."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu6(x + 3) / 6


class SqueezeExcite(nn.Module):
    """Scale each channel by a gate of the channels' means."""

    def __init__(self, channels: int, hidden: int, activation: nn.Module, gate: nn.Module) -> None:
        super().__init__()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1, self.fc2 = nn.Conv2d(channels, hidden, 1), nn.Conv2d(hidden, channels, 1)
        self.activation, self.gate = activation, gate

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(self.fc2(self.activation(self.fc1(self.avgpool(x)))))


class InvertedResidual(nn.Module):
    """Expand, filter each channel, squeeze-and-excite, project (MobileNet, EfficientNet)."""

    def __init__(
        self, inputs: int, outputs: int, stride: int, activation: type, excite: nn.Module | None
    ) -> None:
        super().__init__()
        hidden = 3 * inputs
        parts = [*conv_norm(inputs, hidden, 1), activation()]
        parts += [*conv_norm(hidden, hidden, 3, stride, groups=hidden), activation()]
        if excite is not None:
            parts.append(excite)
        self.block = nn.Sequential(*parts, *conv_norm(hidden, outputs, 1))
        self.use_shortcut = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        return x + self.block(x) if self.use_shortcut else self.block(x)


class MobileNetV3(nn.Module):
    """Inverted residuals with hardswish, and squeeze-and-excite with hardsigmoid."""

    def __init__(self, activation: type = nn.Hardswish, gate: type = nn.Hardsigmoid) -> None:
        super().__init__()

        def excite(channels: int) -> SqueezeExcite:
            return SqueezeExcite(channels, 8, nn.ReLU(), gate())

        self.features = nn.Sequential(
            *conv_norm(3, 8, 3, 2),
            activation(),
            InvertedResidual(8, 8, 1, nn.ReLU, excite(24)),
            InvertedResidual(8, 12, 2, activation, None),
            InvertedResidual(12, 12, 1, activation, excite(36)),
            *conv_norm(12, 36, 1),
            activation(),
        )
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(nn.Linear(36, 48), activation(), nn.Linear(48, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))


class EfficientNet(nn.Module):
    """Inverted residuals with SiLU, and squeeze-and-excite with a sigmoid."""

    def __init__(self) -> None:
        super().__init__()

        def excite(channels: int) -> SqueezeExcite:
            return SqueezeExcite(channels, 4, nn.SiLU(), nn.Sigmoid())

        self.features = nn.Sequential(
            *conv_norm(3, 8, 3, 2),
            nn.SiLU(inplace=True),
            InvertedResidual(8, 8, 1, nn.SiLU, excite(24)),
            InvertedResidual(8, 16, 2, nn.SiLU, excite(24)),
            InvertedResidual(16, 16, 1, nn.SiLU, excite(48)),
            *conv_norm(16, 48, 1),
            nn.SiLU(inplace=True),
        )
        self.classifier = classifier(48)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x))


def channel_shuffle(x: Tensor, groups: int) -> Tensor:
    """Interleave the channels of the groups."""
    batch, channels, height, width = x.shape
    x = x.view(batch, groups, channels // groups, height, width)
    return x.transpose(1, 2).reshape(batch, channels, height, width)


class ShuffleUnit(nn.Module):
    """One half of the channels passes, the other is filtered, then both are shuffled."""

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        inputs = channels if stride == 2 else channels // 2
        half = channels if stride == 2 else channels // 2
        self.branch1 = nn.Identity()
        if stride == 2:
            filtered = conv_norm(inputs, inputs, 3, 2, groups=inputs)
            self.branch1 = nn.Sequential(*filtered, *conv_norm(inputs, half, 1), nn.ReLU())
        self.branch2 = nn.Sequential(
            *conv_norm(inputs, half, 1),
            nn.ReLU(inplace=True),
            *conv_norm(half, half, 3, stride, groups=half),
            *conv_norm(half, half, 1),
            nn.ReLU(inplace=True),
        )

    def forward(self, x: Tensor) -> Tensor:
        first, second = (x, x) if self.stride == 2 else x.chunk(2, dim=1)
        return channel_shuffle(torch.cat([self.branch1(first), self.branch2(second)], dim=1), 2)


class ShuffleNet(nn.Module):
    """Shuffle units, each stage with twice the channels (ShuffleNet V2)."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.conv1 = nn.Sequential(*conv_norm(3, width), nn.ReLU(inplace=True))
        self.stage2 = nn.Sequential(ShuffleUnit(width, 2), ShuffleUnit(2 * width, 1))
        self.stage3 = nn.Sequential(ShuffleUnit(2 * width, 2), ShuffleUnit(4 * width, 1))
        self.fc = nn.Linear(4 * width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stage3(self.stage2(self.conv1(x)))
        return self.fc(x.mean([2, 3]))


class DenseLayer(nn.Module):
    """Batch norm before each convolution; the new channels join those that came."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = (
            nn.BatchNorm2d(inputs),
            nn.Conv2d(inputs, 2 * growth, 1, bias=False),
        )
        self.norm2 = nn.BatchNorm2d(2 * growth)
        self.conv2 = nn.Conv2d(2 * growth, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        new = self.conv2(functional.relu(self.norm2(self.conv1(functional.relu(self.norm1(x))))))
        return torch.cat([x, new], dim=1)


class DenseNet(nn.Module):
    """Dense blocks with transitions between them."""

    def __init__(self, growth: int = 8, layers: tuple[int, ...] = (2, 2, 2)) -> None:
        super().__init__()
        channels, parts = 12, [nn.Conv2d(3, 12, 3, padding=1, bias=False)]
        for number, count in enumerate(layers):
            if number:
                shrunk = [nn.BatchNorm2d(channels), nn.ReLU(inplace=True)]
                shrunk += [nn.Conv2d(channels, channels // 2, 1, bias=False), nn.AvgPool2d(2)]
                parts, channels = parts + shrunk, channels // 2
            for _ in range(count):
                parts.append(DenseLayer(channels, growth))
                channels += growth
        self.features = nn.Sequential(*parts, nn.BatchNorm2d(channels))
        self.classifier = nn.Linear(channels, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out = functional.relu(self.features(x), inplace=True)
        return self.classifier(functional.adaptive_avg_pool2d(out, (1, 1)).flatten(1))
