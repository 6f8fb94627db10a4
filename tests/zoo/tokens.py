"""Image classifiers without batch norm: ConvNeXt, NFNet, transformers and MLPs over patches."""

from __future__ import annotations

import torch
from tests.zoo.entry import CLASSES
from torch import Tensor, nn
from torch.nn import functional


class ChannelsFirstLayerNorm(nn.LayerNorm):
    """Layer norm over the channels of (batch, channels, height, width)."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNeXtBlock(nn.Module):
    """Depthwise 7x7 convolution, layer norm over channels, MLP, layer scale."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv_dw = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.fc1, self.act = nn.Linear(channels, 4 * channels), nn.GELU()
        self.fc2 = nn.Linear(4 * channels, channels)
        self.gamma = nn.Parameter(torch.full((channels,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        out = self.norm(self.conv_dw(x).permute(0, 2, 3, 1))
        out = self.gamma * self.fc2(self.act(self.fc1(out)))
        return x + out.permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    """Two stages of blocks, with a strided convolution before each."""

    def __init__(self, widths: tuple[int, int] = (12, 24)) -> None:
        super().__init__()
        first, second = widths
        self.stem = nn.Sequential(nn.Conv2d(3, first, 2, 2), ChannelsFirstLayerNorm(first))
        self.stage1 = nn.Sequential(ConvNeXtBlock(first), ConvNeXtBlock(first))
        self.downsample = nn.Sequential(
            ChannelsFirstLayerNorm(first), nn.Conv2d(first, second, 2, 2)
        )
        self.stage2 = nn.Sequential(ConvNeXtBlock(second), ConvNeXtBlock(second))
        self.norm, self.head = nn.LayerNorm(second), nn.Linear(second, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stage2(self.downsample(self.stage1(self.stem(x))))
        return self.head(self.norm(x.mean([-2, -1])))


class ScaledStdConv2d(nn.Conv2d):
    """Convolution with weights standardized over each filter's inputs, and a gain."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1) -> None:
        super().__init__(inputs, outputs, kernel, stride, kernel // 2)
        self.gain = nn.Parameter(torch.ones(outputs, 1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        mean = self.weight.mean(dim=(1, 2, 3), keepdim=True)
        variance = self.weight.var(dim=(1, 2, 3), keepdim=True, unbiased=False)
        fan_in = self.weight[0].numel()
        scale = self.gain * torch.rsqrt((variance * fan_in).clamp_min(1e-4))
        weight = (self.weight - mean) * scale
        return functional.conv2d(x, weight, self.bias, self.stride, self.padding)


class NFBlock(nn.Module):
    """Residual branch scaled to unit variance: x + alpha * branch(x / beta), no normalization."""

    def __init__(self, inputs: int, outputs: int, stride: int, beta: float) -> None:
        super().__init__()
        self.conv1 = ScaledStdConv2d(inputs, outputs, 3, stride)
        self.conv2 = ScaledStdConv2d(outputs, outputs, 3)
        same = stride == 1 and inputs == outputs
        self.shortcut = None if same else ScaledStdConv2d(inputs, outputs, 1, stride)
        self.excite = nn.Sequential(nn.Linear(outputs, 8), nn.ReLU(), nn.Linear(8, outputs))
        self.skip_gain = nn.Parameter(torch.tensor(0.5))
        self.alpha, self.beta = 0.2, beta

    def forward(self, x: Tensor) -> Tensor:
        out = scaled_gelu(x) * self.beta
        shortcut = x if self.shortcut is None else self.shortcut(out)
        out = self.conv2(scaled_gelu(self.conv1(out)))
        gate = torch.sigmoid(self.excite(out.mean([2, 3])))
        return shortcut + self.alpha * self.skip_gain * 2 * gate[:, :, None, None] * out


def scaled_gelu(x: Tensor) -> Tensor:
    """GELU times the factor that keeps the variance of normal inputs."""
    return 1.7015043497085571 * functional.gelu(x)


class NFNet(nn.Module):
    """Residual network without normalization: scaled weight standardization in its place."""

    def __init__(self, widths: tuple[int, ...] = (12, 16, 24)) -> None:
        super().__init__()
        self.stem, blocks, inputs, variance = ScaledStdConv2d(3, widths[0], 3), [], widths[0], 1.0
        for number, width in enumerate(widths):
            blocks.append(NFBlock(inputs, width, 1 if number == 0 else 2, variance**-0.5))
            inputs, variance = width, (variance if number == 0 else 1.0) + 0.2**2
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(inputs, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(scaled_gelu(self.blocks(self.stem(x))).mean([2, 3]))


class Mlp(nn.Sequential):
    """Two linear layers with GELU."""

    def __init__(self, size: int, hidden: int) -> None:
        super().__init__(nn.Linear(size, hidden), nn.GELU(), nn.Linear(hidden, size))


class ViTBlock(nn.Module):
    """Layer norm before attention and before the MLP."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(size), nn.LayerNorm(size)
        self.qkv, self.proj = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.mlp, self.heads = Mlp(size, 3 * size), heads

    def attention(self, x: Tensor) -> Tensor:
        batch, length, size = x.shape
        parts = self.qkv(x).view(batch, length, 3, self.heads, size // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)  # each (batch, heads, length, size)
        mixed = functional.scaled_dot_product_attention(query, key, value)
        return self.proj(mixed.transpose(1, 2).reshape(batch, length, size))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    """Patches and a class token through transformer blocks."""

    def __init__(self, size: int = 24, depth: int = 2, heads: int = 3) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(3, size, 4, 4)
        self.cls_token = nn.Parameter(0.02 * torch.randn(1, 1, size))
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, 17, size))
        self.blocks = nn.Sequential(*[ViTBlock(size, heads) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(size), nn.Linear(size, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patch_embed(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), patches], dim=1) + self.pos_embed
        return self.head(self.norm(self.blocks(x))[:, 0])


class WindowAttention(nn.Module):
    """Attention inside windows of side w, with a bias for each relative position."""

    def __init__(self, size: int, heads: int, window: int) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.heads = heads
        self.bias_table = nn.Parameter(0.02 * torch.randn((2 * window - 1) ** 2, heads))
        rows = torch.arange(window)
        grid = torch.stack(torch.meshgrid(rows, rows, indexing="ij")).flatten(1)
        offsets = grid[:, :, None] - grid[:, None, :] + window - 1
        self.register_buffer("bias_index", offsets[0] * (2 * window - 1) + offsets[1])

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        count, length, size = x.shape  # windows of all images, w * w, size
        parts = self.qkv(x).view(count, length, 3, self.heads, size // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        scores = query @ key.transpose(-2, -1) * (size // self.heads) ** -0.5
        scores = scores + self.bias_table[self.bias_index].permute(2, 0, 1)
        if mask is not None:  # (windows of one image, w * w, w * w)
            scores = scores.view(-1, len(mask), self.heads, length, length) + mask[:, None]
            scores = scores.view(count, self.heads, length, length)
        return self.proj((scores.softmax(-1) @ value).transpose(1, 2).reshape(x.shape))


class SwinBlock(nn.Module):
    """Window attention and MLP; with a shift the windows straddle those of the block before."""

    def __init__(self, size: int, heads: int, side: int, window: int, shift: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(size), nn.LayerNorm(size)
        self.attn, self.mlp = WindowAttention(size, heads, window), Mlp(size, 2 * size)
        self.window, self.shift = window, shift
        self.register_buffer("mask", self._mask(side) if shift else None)

    def _mask(self, side: int) -> Tensor:
        """Minus 100 between positions that the cyclic shift brought together."""
        bounds = torch.tensor([side - self.window, side - self.shift])
        region = torch.bucketize(torch.arange(side), bounds, right=True)
        regions = self.split((3 * region[:, None] + region)[None, :, :, None].float()).squeeze(-1)
        return -100.0 * (regions[:, :, None] != regions[:, None, :]).float()

    def split(self, x: Tensor) -> Tensor:
        """(batch, side, side, size) to (batch * windows, w * w, size)."""
        batch, side, _, size = x.shape
        count = side // self.window
        x = x.view(batch, count, self.window, count, self.window, size).transpose(2, 3)
        return x.reshape(-1, self.window**2, size)

    def join(self, windows: Tensor, side: int) -> Tensor:
        """The inverse of `split`."""
        count, size = side // self.window, windows.shape[-1]
        x = windows.view(-1, count, count, self.window, self.window, size).transpose(2, 3)
        return x.reshape(-1, side, side, size)

    def forward(self, x: Tensor) -> Tensor:
        shifted = torch.roll(self.norm1(x), (-self.shift, -self.shift), (1, 2))
        mixed = self.join(self.attn(self.split(shifted), self.mask), x.shape[1])
        x = x + torch.roll(mixed, (self.shift, self.shift), (1, 2))
        return x + self.mlp(self.norm2(x))


class PatchMerging(nn.Module):
    """Four neighbours to one position of twice the size."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.norm, self.reduction = (
            nn.LayerNorm(4 * size),
            nn.Linear(4 * size, 2 * size, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        parts = [x[:, i::2, j::2] for j in range(2) for i in range(2)]
        return self.reduction(self.norm(torch.cat(parts, dim=-1)))


class Swin(nn.Module):
    """Two stages of a plain and a shifted block, over 8x8 and 4x4 positions."""

    def __init__(self, size: int = 12) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(3, size, 2, 2)
        self.stage1 = nn.Sequential(SwinBlock(size, 2, 8, 4, 0), SwinBlock(size, 2, 8, 4, 2))
        self.merge = PatchMerging(size)
        self.stage2 = nn.Sequential(
            SwinBlock(2 * size, 4, 4, 2, 0), SwinBlock(2 * size, 4, 4, 2, 1)
        )
        self.norm, self.head = nn.LayerNorm(2 * size), nn.Linear(2 * size, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch_embed(x).permute(0, 2, 3, 1)
        x = self.stage2(self.merge(self.stage1(x)))
        return self.head(self.norm(x).mean((1, 2)))


class MixerBlock(nn.Module):
    """An MLP over the positions, then one over the channels."""

    def __init__(self, length: int, size: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(size), nn.LayerNorm(size)
        self.mlp_tokens, self.mlp_channels = Mlp(length, 2 * length), Mlp(size, 3 * size)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mlp_tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.mlp_channels(self.norm2(x))


class Affine(nn.Module):
    """Scale and shift of each channel, in place of a norm."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(size)), nn.Parameter(torch.zeros(size))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x + self.shift


class ResMLPBlock(nn.Module):
    """A linear map over positions, then an MLP over channels; affine maps in place of norms."""

    def __init__(self, length: int, size: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = Affine(size), Affine(size)
        self.linear, self.mlp = nn.Linear(length, length), Mlp(size, 4 * size)
        self.gamma1 = nn.Parameter(torch.full((size,), 0.1))
        self.gamma2 = nn.Parameter(torch.full((size,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.linear(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        x = x + self.gamma1 * mixed
        return x + self.gamma2 * self.mlp(self.norm2(x))


class PatchNetwork(nn.Module):
    """Blocks over the patches of an image, then the mean over positions (Mixer, ResMLP)."""

    def __init__(self, block: type, norm: type, size: int = 24, depth: int = 2) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, size, 4, 4)
        self.blocks = nn.Sequential(*[block(16, size) for _ in range(depth)])
        self.norm, self.head = norm(size), nn.Linear(size, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.blocks(x)).mean(dim=1))
