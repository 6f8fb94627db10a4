"""Networks that people train, for benchmarks: a CIFAR ResNet-18, a ConvNeXt, a ViT and a GPT.

They use torch's own layers in the usual way (residual connections, attention), so none of them is a
plain sequence of layers.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class _ResidualBlock(nn.Module):
    def __init__(self, inputs: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, channels, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(out)) + self.shortcut(x))


class ResNet18(nn.Module):
    """ResNet-18 for 32x32 images (3x3 stem, no max pooling); ``width=64`` is the usual one."""

    def __init__(self, width: int = 64, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        )
        blocks, inputs = [], width
        for stage in range(4):
            channels = width * 2**stage
            blocks += [
                _ResidualBlock(inputs, channels, 1 if stage == 0 else 2),
                _ResidualBlock(channels, channels, 1),
            ]
            inputs = channels
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class _ConvNeXtBlock(nn.Module):
    def __init__(self, width: int, layer_scale: float) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.expand, self.reduce = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), layer_scale))

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norm(self.depthwise(x).permute(0, 2, 3, 1))  # (samples, height, width, units)
        inner = self.scale * self.reduce(functional.gelu(self.expand(inner)))
        return x + inner.permute(0, 3, 1, 2)


class SmallConvNeXt(nn.Module):
    """ConvNeXt for 32x32 images: 4x4 patches, two stages of blocks, mean pooling."""

    def __init__(
        self, width: int = 64, depth: int = 3, layer_scale: float = 0.5, classes: int = 10
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        stages = [
            nn.Sequential(*(_ConvNeXtBlock(units, layer_scale) for _ in range(depth)))
            for units in (width, 2 * width)
        ]
        self.first, self.second = stages
        self.down = nn.Conv2d(width, 2 * width, 2, 2)
        self.norm, self.head = nn.LayerNorm(2 * width), nn.Linear(2 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(self.down(self.first(self.patches(x))))
        return self.head(self.norm(x.mean((-2, -1))))


class _TransformerBlock(nn.Module):
    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.heads, self.causal = heads, causal

    def forward(self, x: Tensor) -> Tensor:
        samples, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(samples, length, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)  # (samples, heads, length, head width) each
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        x = x + self.out(mixed.transpose(1, 2).reshape(samples, length, width))
        return x + self.mlp(self.norm2(x))


class SmallViT(nn.Module):
    """Vision transformer on 4x4 patches of 32x32 images: 64 tokens, mean pooling."""

    def __init__(self, width: int = 128, depth: int = 4, heads: int = 4, classes: int = 10) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.positions = nn.Parameter(0.02 * torch.randn(1, 64, width))
        self.blocks = nn.Sequential(*(_TransformerBlock(width, heads, False) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.positions  # (samples, 64, width)
        return self.head(self.norm(self.blocks(tokens)).mean(1))


class SmallGPT(nn.Module):
    """Decoder-only transformer; logits as (samples, vocabulary, length), as cross-entropy takes."""

    def __init__(
        self,
        vocabulary: int = 256,
        length: int = 64,
        width: int = 128,
        depth: int = 4,
        heads: int = 4,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(0.02 * torch.randn(1, length, width))
        self.blocks = nn.Sequential(*(_TransformerBlock(width, heads, True) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.blocks(self.tokens(x) + self.positions[:, : x.shape[1]])
        return self.head(self.norm(hidden)).transpose(1, 2)
