"""Networks that make or judge images: VAE, diffusion, discriminator, autoencoder."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations, parametrize

import normscope as ns


class VAE(nn.Module):
    """Variational autoencoder; returns reconstruction, mean and log-variance.

    Args:
        size: of the latent variables.
    """

    def __init__(self, size: int = 3) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU())
        self.mu, self.logvar = nn.Linear(32, size), nn.Linear(32, size)
        self.decoder = nn.Sequential(nn.Linear(size, 32), nn.ReLU(), nn.Linear(32, 64))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = self.encoder(x)
        mu, logvar = self.mu(hidden), self.logvar(hidden)
        noise = torch.zeros_like(mu)
        if self.training:  # the same draws in every dtype, so that float64 can be the reference
            noise = torch.randn(mu.shape, dtype=torch.float32, device=mu.device).to(mu.dtype)
        decoded = self.decoder(mu + noise * torch.exp(0.5 * logvar))
        return decoded.view_as(x), mu, logvar


def vae_loss(reconstruction: Tensor, mu: Tensor, logvar: Tensor, x: Tensor) -> Tensor:
    """Cross-entropy of the pixels plus the divergence from the prior, per sample."""
    pixels = functional.binary_cross_entropy_with_logits(reconstruction, x, reduction="sum")
    divergence = -0.5 * (1 + logvar - mu.square() - logvar.exp()).sum()
    return (pixels + divergence) / len(x)


class TimeEmbedding(nn.Module):
    """Sines and cosines of the time, then two linear layers."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(size, size), nn.SiLU(), nn.Linear(size, size))
        frequencies = torch.exp(torch.linspace(0, -4, size // 2))
        self.register_buffer("frequencies", frequencies, persistent=False)

    def forward(self, t: Tensor) -> Tensor:
        angles = t[:, None] * self.frequencies
        return self.mlp(torch.cat([angles.sin(), angles.cos()], dim=1))


class TimeBlock(nn.Module):
    """Two convolutions with group norm and SiLU; the time is added between them."""

    def __init__(self, inputs: int, outputs: int, size: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(2, inputs), nn.Conv2d(inputs, outputs, 3, padding=1)
        self.time = nn.Linear(size, outputs)
        self.norm2, self.conv2 = nn.GroupNorm(4, outputs), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        out = self.conv1(functional.silu(self.norm1(x)))
        out = out + self.time(functional.silu(time))[:, :, None, None]
        return self.skip(x) + self.conv2(functional.silu(self.norm2(out)))


class SpatialAttention(nn.Module):
    """Self-attention over the positions of an image."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(4, channels)
        self.qkv, self.proj = nn.Conv2d(channels, 3 * channels, 1), nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(self.norm(x)).flatten(2).transpose(1, 2).chunk(3, dim=2)
        mixed = functional.scaled_dot_product_attention(*parts)
        return x + self.proj(mixed.transpose(1, 2).view_as(x))


class DiffusionUNet(nn.Module):
    """Predicts the noise in an image from the image and the time."""

    def __init__(self, width: int = 8, size: int = 16) -> None:
        super().__init__()
        self.time = TimeEmbedding(size)
        self.enter = nn.Conv2d(1, width, 3, padding=1)
        self.down = TimeBlock(width, width, size)
        self.shrink = nn.Conv2d(width, 2 * width, 3, 2, 1)
        self.middle = TimeBlock(2 * width, 2 * width, size)
        self.attention = SpatialAttention(2 * width)
        self.grow = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.up = TimeBlock(2 * width, width, size)
        self.norm, self.leave = nn.GroupNorm(2, width), nn.Conv2d(width, 1, 3, padding=1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        time = self.time(t)
        kept = self.down(self.enter(x), time)
        x = self.attention(self.middle(self.shrink(kept), time))
        x = self.up(torch.cat([kept, self.grow(x)], dim=1), time)
        return self.leave(functional.silu(self.norm(x)))


def discriminator() -> nn.Sequential:
    """Return a discriminator whose layers have spectral norm one."""
    sizes = [(3, 8), (8, 16), (16, 16)]
    parts: list[nn.Module] = []
    for inputs, outputs in sizes:
        conv = nn.Conv2d(inputs, outputs, 4, 2, 1)
        parts += [parametrizations.spectral_norm(conv), nn.LeakyReLU(0.1)]
    head = parametrizations.spectral_norm(nn.Linear(16 * 4, 1))
    return nn.Sequential(*parts, nn.Flatten(), head)


class PlainWeightNorm(nn.Module):
    """Length times direction, in operations that torch differentiates twice."""

    def forward(self, length: Tensor, direction: Tensor) -> Tensor:
        axes = tuple(range(1, direction.dim()))
        return length * direction / direction.square().sum(axes, keepdim=True).sqrt()

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        axes = tuple(range(1, weight.dim()))
        return weight.square().sum(axes, keepdim=True).sqrt(), weight


def plain_weight_norm(layer: nn.Module) -> nn.Module:
    """Return the layer with weight norm in plain operations."""
    parametrize.register_parametrization(layer, "weight", PlainWeightNorm())
    return layer


class TemporalBlock(nn.Module):
    """Two causal dilated convolutions with weight norm beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, dilation: int, normed) -> None:
        super().__init__()
        self.conv1 = normed(nn.Conv1d(inputs, outputs, 3, dilation=dilation))
        self.conv2 = normed(nn.Conv1d(outputs, outputs, 3, dilation=dilation))
        self.skip = nn.Conv1d(inputs, outputs, 1) if inputs != outputs else nn.Identity()
        self.past = 2 * dilation

    def forward(self, x: Tensor) -> Tensor:
        out = functional.relu(self.conv1(functional.pad(x, (self.past, 0))))
        out = functional.relu(self.conv2(functional.pad(out, (self.past, 0))))
        return functional.relu(out + self.skip(x))


class TemporalNetwork(nn.Module):
    """Classifier of sequences by convolutions with weight norm (TCN)."""

    def __init__(self, classes: int, normed=parametrizations.weight_norm) -> None:
        super().__init__()
        self.blocks = nn.Sequential(
            TemporalBlock(2, 12, 1, normed), TemporalBlock(12, 12, 2, normed)
        )
        self.fc = nn.Linear(12, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.blocks(x)[:, :, -1])


def l1_autoencoder() -> nn.Sequential:
    """Return a convolutional autoencoder normalized by mean absolute deviations."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, 2, 1),
        ns.layers.LpNorm2d(8, p=1),
        nn.ReLU(),
        nn.Conv2d(8, 12, 3, 2, 1),
        ns.layers.LpNorm2d(12, p=1),
        nn.ReLU(),
        nn.ConvTranspose2d(12, 8, 2, 2),
        ns.layers.LpNorm2d(8, p=1),
        nn.ReLU(),
        nn.ConvTranspose2d(8, 1, 2, 2),
    )
