"""Noisy batch normalization: batch normalization followed by random factors and shifts.

Torch's generator is the only source of randomness: the fast path draws one 63-bit seed from it
and expands that seed into the noise of one step. ``torch.manual_seed``, a saved generator state
and ``torch.utils.checkpoint`` therefore work as they do for ``torch.rand``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from normscope.errors import ArgumentTypeError, InputError
from normscope.layers.batch_norm import BatchNorm1d, BatchNorm2d, BatchNorm3d, _ClosedFormBatchNorm
from normscope.layers.compiled import compiled_noise
from normscope.layers.transforms import tracing_active, transform_active

# Elements drawn at a time: the working set of one chunk fits into the cache.
CHUNK = 1 << 17


@dataclass(frozen=True)
class Noise:
    r"""Strength of the noise of a noisy batch normalization.

    At each step every unit draws a shift and a factor; every activation then draws its shift and
    factor around them.

    .. math::
        \mu_j \sim U(-n_\mu, n_\mu), \quad \sigma_j \sim U(1, n_\sigma), \quad
        m_{ij} \sim U(\mu_j - r_\mu, \mu_j + r_\mu), \quad s_{ij} \sim N(\sigma_j, r_\sigma)

    Reference: santurkar2018, Algorithm 1. Notation: n_mu = mean, n_sigma = std,
    r_mu = mean_jitter, r_sigma = std_jitter, read as a standard deviation.

    Args:
        mean: largest size of a unit's shift.
        std: largest factor of a unit; the smallest is 1.
        mean_jitter: largest distance of an activation's shift from that of its unit.
        std_jitter: standard deviation of an activation's factor around that of its unit.

    Raises:
        ArgumentTypeError: if a value is not a number.
        InputError: if a value is negative or not finite, or ``std`` is below 1.

    >>> Noise(mean=0.25)
    Noise(mean=0.25, std=1.25, mean_jitter=0.1, std_jitter=0.1)
    """

    mean: float = 0.5
    std: float = 1.25
    mean_jitter: float = 0.1
    std_jitter: float = 0.1

    def __post_init__(self) -> None:
        for name, least in zip((f.name for f in fields(self)), (0, 1, 0, 0), strict=True):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ArgumentTypeError(f"Noise({name}=...) expects a number, got {value!r}.")
            if not (math.isfinite(value) and value >= least):
                raise InputError(
                    f"Noise({name}=...) expects a finite number of at least {least}, got {value}."
                )


def draw(
    noise: Noise,
    shape: torch.Size,
    *,
    dtype: torch.dtype,
    device: torch.device,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the factor s and shift m of every activation for one step of Algorithm 1.

    Reference: santurkar2018, Algorithm 1.

    Args:
        noise: the strength of the noise.
        shape: (batch, units, *positions).
        dtype: floating-point type of the result.
        device: device of the result.
        generator: the source of randomness; None is torch's default generator of the device. A
            generator of another device draws there, and the result is moved.

    Returns:
        The factors and the shifts, each of the given shape. Within one path the same generator
        state gives the same values bit for bit. Float32 on a CPU outside compilers, tracers and
        ``vmap`` takes the fast path, whose compiled kernel, where there is one, differs in the
        last digit; everything else calls ``torch.rand`` and ``torch.randn``.

    >>> none = Noise(mean=0.0, std=1.0, mean_jitter=0.0, std_jitter=0.0)
    >>> factor, shift = draw(
    ...     none, torch.Size([2, 3]), dtype=torch.float32, device=torch.device("cpu")
    ... )
    >>> bool((factor == 1).all()), bool((shift == 0).all())
    (True, True)
    """
    source = device if generator is None else generator.device
    units = torch.rand(
        (2, shape[1], *([1] * (len(shape) - 2))), dtype=dtype, device=source, generator=generator
    )
    unit_factor = units[0] * (noise.std - 1) + 1
    unit_shift = (units[1] - 0.5) * (2 * noise.mean)
    seed = _seed(dtype, source, generator)
    if seed is not None:
        factor, shift = _expand_seed(noise, shape, unit_factor, unit_shift, seed)
    else:
        normal = torch.randn(shape, dtype=dtype, device=source, generator=generator)
        uniform = torch.rand(shape, dtype=dtype, device=source, generator=generator) - 0.5
        factor = unit_factor + noise.std_jitter * normal
        shift = unit_shift + (2 * noise.mean_jitter) * uniform
    return factor.to(device), shift.to(device)


def _seed(
    dtype: torch.dtype, device: torch.device, generator: torch.Generator | None
) -> int | None:
    """Return a seed for the fast path, or None where that path cannot be used."""
    if dtype != torch.float32 or device.type != "cpu":
        return None
    if torch.compiler.is_compiling() or tracing_active():
        return None  # the seed would become a constant of the compiled program
    drawn = torch.randint(2**63 - 1, (), generator=generator)
    try:
        return int(drawn)
    except RuntimeError:  # vmap with randomness="different": a number for every example
        return None


def _chunks(tensor: Tensor) -> Iterator[Tensor]:
    """Split the tensor into whole samples, about CHUNK elements at a time."""
    rows = max(1, CHUNK * len(tensor) // max(1, tensor.numel()))
    return (tensor[start : start + rows] for start in range(0, len(tensor), rows))


def _expand_seed(
    noise: Noise, shape: torch.Size, unit_factor: Tensor, unit_shift: Tensor, seed: int
) -> tuple[Tensor, Tensor]:
    """Return the factor and shift from the bits of a generator with the given seed."""
    source = np.random.SFC64(seed)
    factor, shift = unit_factor.new_empty(shape), unit_factor.new_empty(shape)
    if _filled_by_kernel(noise, source, unit_factor, unit_shift, factor, shift):
        return factor, shift
    for factors, shifts in zip(_chunks(factor), _chunks(shift), strict=True):
        flat, scratch = factors.view(-1), shifts.view(-1)
        pairs = (len(flat) + 1) // 2
        box_muller(_bits(source, pairs), _bits(source, pairs), out=flat, scratch=scratch)
        torch.add(unit_factor, factors, alpha=noise.std_jitter, out=factors)
        scratch.copy_(_bits(source, len(scratch)))
        torch.add(unit_shift, shifts, alpha=noise.mean_jitter * 2.0**-31, out=shifts)
    return factor, shift


def _filled_by_kernel(
    noise: Noise,
    source: np.random.SFC64,
    unit_factor: Tensor,
    unit_shift: Tensor,
    factor: Tensor,
    shift: Tensor,
) -> bool:
    """Fill factor and shift by compiled code; return whether there is any.

    It computes the same from the same bits, up to rounding.
    """
    words = source.state["state"]["state"]  # advanced by the kernel
    one_sample = factor.shape[1:]
    unit_factor = unit_factor.expand(one_sample).contiguous()
    unit_shift = unit_shift.expand(one_sample).contiguous()
    jitters = noise.std_jitter, noise.mean_jitter * 2.0**-31
    return all(
        compiled_noise(words, unit_factor, unit_shift, jitters, factors, shifts)
        for factors, shifts in zip(_chunks(factor), _chunks(shift), strict=True)
    )


def _bits(source: np.random.SFC64, count: int) -> Tensor:
    """Return random int32 numbers, uniform over all values of the type."""
    return torch.from_numpy(source.random_raw((count + 1) // 2).view(np.int32))[:count]


def box_muller(radius_bits: Tensor, angle_bits: Tensor, *, out: Tensor, scratch: Tensor) -> None:
    r"""Return independent standard normal numbers from random bits.

    .. math::
        \sqrt{-2 \log u} \, (\cos \theta, \sin \theta), \quad
        u = \max(|k_1|, 1/2) / 2^{31}, \quad \theta = \pi k_2 / 2^{31}

    u is made of |k_1|, not of k_1 + 2^31: a float32 represents small integers exactly, so the
    tails are as fine as the 31 bits allow and reach 6.66 standard deviations.

    Notation: k_1 = radius_bits, k_2 = angle_bits.

    Args:
        radius_bits: (n,) int32, uniform over all values.
        angle_bits: (n,) int32, uniform over all values, independent of the others.
        out: (2n,) or (2n - 1,) float32, for the result.
        scratch: float32 of at least n numbers, overwritten; allocating it would cost more than
            the arithmetic.

    >>> smallest = torch.tensor([0], dtype=torch.int32)
    >>> normal = torch.empty(2)
    >>> box_muller(smallest, smallest, out=normal, scratch=torch.empty(1))
    >>> normal  # u = 2^-32: the longest radius, at the angle 0
    tensor([6.6604, 0.0000])
    """
    pairs = len(radius_bits)
    along, across = out[:pairs], out[pairs:]
    angle = radius = scratch[:pairs]
    angle.copy_(angle_bits).mul_(math.pi * 2.0**-31)
    torch.cos(angle, out=along)
    torch.sin(angle[: len(across)], out=across)
    radius.copy_(radius_bits).abs_().clamp_(min=0.5).mul_(2.0**-31).log_().mul_(-2.0).sqrt_()
    along.mul_(radius)
    across.mul_(radius[: len(across)])


PAPER_NOISE = Noise()


def _draw_outside_graph(*arguments: Any, **options: Any) -> tuple[Tensor, Tensor]:
    """Draw from a user's generator; torch.compile breaks its graph here."""
    return draw(*arguments, **options)


# What torch.compiler.disable sets; calling it would import the compiler, which takes a second.
_draw_outside_graph._torchdynamo_disable = True  # type: ignore[attr-defined]  # a function's flag


def add_noise(
    activations: Tensor, noise: Noise, generator: torch.Generator | None = None
) -> Tensor:
    r"""Return every activation times its random factor plus its random shift.

    .. math:: a_{ij} \leftarrow s_{ij} a_{ij} + m_{ij}

    Reference: santurkar2018, Algorithm 1. Notation: s and m as drawn by :func:`draw`.

    Args:
        activations: (batch, units, *positions).
        noise: the strength of the noise.
        generator: the source of randomness; None is torch's default.

    Returns:
        Like the activations. The gradient is that of the output times s.
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
    return shift.addcmul_(factor, exact).to(activations.dtype)  # reuses the memory of shift


class _NoisyBatchNorm(_ClosedFormBatchNorm):
    """Base of the three layers."""

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
        self.generator = _checked_generator(generator)

    def forward(self, input: Tensor) -> Tensor:
        """Normalize; in training, add noise."""
        normalized = super().forward(input)
        return add_noise(normalized, self.noise, self.generator) if self.training else normalized

    def extra_repr(self) -> str:
        """Return the options of batch normalization, and the noise."""
        return f"{super().extra_repr()}, noise={self.noise}"


def _checked_generator(generator: torch.Generator | int | None) -> torch.Generator | None:
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
    r"""Batch normalization with random noise on its output at every training step.

    .. math::
        a_{ij} \leftarrow s_{ij} a_{ij} + m_{ij}, \quad
        m_{ij} \sim U(\mu_j - r_\mu, \mu_j + r_\mu), \quad s_{ij} \sim N(\sigma_j, r_\sigma), \quad
        \mu_j \sim U(-n_\mu, n_\mu), \quad \sigma_j \sim U(1, n_\sigma)

    The noise follows the learned scale and shift, separately for every sample and position; eval
    mode has none. The layer has the parameters, buffers and ``state_dict`` keys of batch
    normalization. The state of the generator is not among them, but is kept when the layer is
    copied or pickled. With a ``process_group`` the statistics are shared, the noise is not.

    Float32 on a CPU makes its noise from random bits on all cores, where ``torch.rand`` and
    ``torch.randn`` use one core and give other numbers. ``vmap`` (which needs
    ``randomness="different"``), ``torch.compile``, tracers and other types and devices call those.
    ``torch.compile`` breaks the graph at the draws of a layer with a user's generator, not at those
    of the default one.

    Reference: santurkar2018, Algorithm 1. Notation: see :class:`normscope.layers.Noise`.

    Args:
        num_features: number of units.
        *args: further arguments of batch normalization, in its order.
        noise: the strength of the noise; the default is the paper's.
        generator: the source of the noise: a generator, an integer seed for a new one, or None
            for torch's default generator.
        **options: further keyword arguments of batch normalization.

    Raises:
        ArgumentTypeError: if the noise or the generator has another type.
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
