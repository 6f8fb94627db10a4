"""Batch normalization followed by random shifts and factors: "noisy" batch normalization."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from normscope.errors import ArgumentTypeError, InputError
from normscope.layers.batch_norm import (
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    _ClosedFormBatchNorm,
)
from normscope.layers.noise import Noise, draw
from normscope.layers.transforms import transform_active

PAPER_NOISE = Noise()


def _draw_outside_graph(*arguments: Any, **options: Any) -> tuple[Tensor, Tensor]:
    """The draws from a generator of one's own: a compiler leaves its graph for them."""
    return draw(*arguments, **options)


# What torch.compiler.disable sets; calling it here would import the compiler, a second and more.
_draw_outside_graph._torchdynamo_disable = True  # type: ignore[attr-defined]  # a function's flag


def add_noise(
    activations: Tensor, noise: Noise, generator: torch.Generator | None = None
) -> Tensor:
    r"""Every activation times its own random factor plus its own random shift.

    .. math:: a_{ij} \leftarrow s_{ij} a_{ij} + m_{ij}

    Reference: santurkar2018, Algorithm 1. Notation: s and m as drawn by
    :func:`normscope.layers.noise.draw`.

    Args:
        activations: (batch, units, *positions).
        noise: the strength of the noise.
        generator: the source of randomness; None is torch's default.

    Returns:
        Like the activations. The gradient is the output's times s.
    """
    low = activations.dtype in (torch.bfloat16, torch.float16)
    dtype = torch.float32 if low else activations.dtype
    drawn = draw if generator is None else _draw_outside_graph
    factor, shift = drawn(
        noise, activations.shape, dtype=dtype, device=activations.device, generator=generator
    )
    exact = activations.to(dtype)
    if not exact.is_contiguous():
        return (exact * factor + shift).to(activations.dtype)  # keeps the memory format
    if torch.compiler.is_compiling() or transform_active():
        return torch.addcmul(shift, factor, exact).to(activations.dtype)
    return shift.addcmul_(factor, exact).to(activations.dtype)  # the shift's memory is ours


class _NoisyBatchNorm(_ClosedFormBatchNorm):
    """What the three layers share."""

    def __init__(
        self,
        num_features: int,
        *args: Any,
        noise: Noise = PAPER_NOISE,
        generator: torch.Generator | int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(num_features, *args, **options)
        if not isinstance(noise, Noise):
            raise ArgumentTypeError(f"noise expects a Noise, got {noise!r}.")
        self.noise = noise
        self.generator = _own_generator(generator)

    def forward(self, input: Tensor) -> Tensor:
        """Normalize; in training, add noise."""
        normalized = super().forward(input)
        return add_noise(normalized, self.noise, self.generator) if self.training else normalized

    def extra_repr(self) -> str:
        """The options of batch normalization, and the noise."""
        return f"{super().extra_repr()}, noise={self.noise}"


def _own_generator(generator: torch.Generator | int | None) -> torch.Generator | None:
    if isinstance(generator, torch.Generator) or generator is None:
        return generator
    if isinstance(generator, bool) or not isinstance(generator, int):
        raise ArgumentTypeError(
            f"generator expects a torch.Generator, an integer seed or None, got {generator!r}."
        )
    if not -(2**63) <= generator < 2**64:
        raise InputError(f"generator expects a seed from -2**63 to 2**64 - 1, got {generator}.")
    return torch.Generator().manual_seed(generator)


class NoisyBatchNorm1d(_NoisyBatchNorm, BatchNorm1d):
    r"""Batch normalization whose output is disturbed anew at every training step.

    .. math::
        a_{ij} \leftarrow s_{ij} a_{ij} + m_{ij}, \quad
        m_{ij} \sim U(\mu_j - r_\mu, \mu_j + r_\mu), \quad s_{ij} \sim N(\sigma_j, r_\sigma), \quad
        \mu_j \sim U(-n_\mu, n_\mu), \quad \sigma_j \sim U(1, n_\sigma)

    The noise comes after the learned map of each unit, separately for every sample and position;
    eval mode has none. The layer has the parameters, buffers and ``state_dict`` keys of
    batch normalization; the generator's state is not among them, but goes along when the layer
    is copied or pickled. With a ``process_group`` the statistics are shared and the noise is each
    process's own.

    Float32 on a CPU shapes its noise from random bits on all cores, where ``torch.rand`` and
    ``torch.randn`` use one, and gets other numbers than theirs; ``vmap`` (which
    needs ``randomness="different"``), ``torch.compile``, tracers and other types and devices call
    those. ``torch.compile`` breaks the graph at the draws of a layer with its own generator, not
    at those of the default one.

    Reference: santurkar2018, Algorithm 1. Notation: see :class:`normscope.layers.noise.Noise`.

    Args:
        num_features: number of units.
        *args: further arguments of batch normalization, in its order.
        noise: the strength of the noise; the default is the paper's.
        generator: where the noise comes from: a generator, an integer that seeds the layer's own,
            or None for torch's default generator.
        **options: further keyword arguments of batch normalization.

    Raises:
        ArgumentTypeError: if the noise or the generator is something else.
        InputError: if the seed is out of the range that torch takes.

    >>> layer = NoisyBatchNorm1d(3, generator=0)
    >>> x = torch.eye(3)
    >>> bool((layer(x) == layer(x)).any())
    False
    """


class NoisyBatchNorm2d(_NoisyBatchNorm, BatchNorm2d):
    """Noisy batch normalization of images; see :class:`NoisyBatchNorm1d`."""


class NoisyBatchNorm3d(_NoisyBatchNorm, BatchNorm3d):
    """Noisy batch normalization of volumes; see :class:`NoisyBatchNorm1d`."""
