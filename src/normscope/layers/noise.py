"""The draws of noisy batch normalization: what is random in Algorithm 1, and how it is drawn fast.

Torch's generator is the only source of randomness: the fast path takes one 63-bit seed from it
and stretches that seed into the noise of one step. ``torch.manual_seed``, a saved generator state
and ``torch.utils.checkpoint`` therefore work as they do for ``torch.rand``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from normscope.errors import ArgumentTypeError, InputError
from normscope.layers.compiled.binding import compiled_noise
from normscope.layers.transforms import tracing_active

# Elements drawn at a time: the working set of one chunk stays in the processor's cache.
CHUNK = 1 << 17


@dataclass(frozen=True)
class Noise:
    r"""How strong the noise of a noisy batch normalization is.

    Each step, every unit draws a shift and a factor; every activation then draws its own around
    them.

    .. math::
        \mu_j \sim U(-n_\mu, n_\mu), \quad \sigma_j \sim U(1, n_\sigma), \quad
        m_{ij} \sim U(\mu_j - r_\mu, \mu_j + r_\mu), \quad s_{ij} \sim N(\sigma_j, r_\sigma)

    Reference: santurkar2018, Algorithm 1. Notation: n_mu = mean, n_sigma = std,
    r_mu = mean_jitter, r_sigma = std_jitter, read as a standard deviation.

    Args:
        mean: largest size of a unit's shift.
        std: largest factor of a unit; the smallest is 1.
        mean_jitter: how far one activation's shift may lie from its unit's.
        std_jitter: standard deviation of one activation's factor around its unit's.

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
    """Factor s and shift m of every activation for one step of Algorithm 1.

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
        factor, shift = _stretched_draw(noise, shape, unit_factor, unit_shift, seed)
    else:
        normal = torch.randn(shape, dtype=dtype, device=source, generator=generator)
        uniform = torch.rand(shape, dtype=dtype, device=source, generator=generator) - 0.5
        factor = unit_factor + noise.std_jitter * normal
        shift = unit_shift + (2 * noise.mean_jitter) * uniform
    return factor.to(device), shift.to(device)


def _seed(
    dtype: torch.dtype, device: torch.device, generator: torch.Generator | None
) -> int | None:
    """A number that seeds the fast path, or None where that path does not serve."""
    if dtype != torch.float32 or device.type != "cpu":
        return None
    if torch.compiler.is_compiling() or tracing_active():
        return None  # a seed that is looked at would be frozen into the program
    drawn = torch.randint(2**63 - 1, (), generator=generator)
    try:
        return int(drawn)
    except RuntimeError:  # vmap with randomness="different": a number for every example
        return None


def _chunks(tensor: Tensor) -> Iterator[Tensor]:
    """The tensor in pieces of whole samples, about CHUNK elements each."""
    rows = max(1, CHUNK * len(tensor) // max(1, tensor.numel()))
    return (tensor[start : start + rows] for start in range(0, len(tensor), rows))


def _stretched_draw(
    noise: Noise,
    shape: torch.Size,
    unit_factor: Tensor,
    unit_shift: Tensor,
    seed: int,
) -> tuple[Tensor, Tensor]:
    """Factor and shift from the bits of a generator seeded by one number of torch's."""
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
    """Whether compiled code made the same of the same bits, up to rounding."""
    words = source.state["state"]["state"]  # moved on by the kernel
    one_sample = factor.shape[1:]
    unit_factor = unit_factor.expand(one_sample).contiguous()
    unit_shift = unit_shift.expand(one_sample).contiguous()
    jitters = noise.std_jitter, noise.mean_jitter * 2.0**-31
    return all(
        compiled_noise(words, unit_factor, unit_shift, jitters, factors, shifts)
        for factors, shifts in zip(_chunks(factor), _chunks(shift), strict=True)
    )


def _bits(source: np.random.SFC64, count: int) -> Tensor:
    """Random int32 numbers, uniform over all values."""
    return torch.from_numpy(source.random_raw((count + 1) // 2).view(np.int32))[:count]


def box_muller(radius_bits: Tensor, angle_bits: Tensor, *, out: Tensor, scratch: Tensor) -> None:
    r"""Independent standard normal numbers from random bits.

    .. math::
        \sqrt{-2 \log u} \, (\cos \theta, \sin \theta), \quad
        u = \max(|k_1|, 1/2) / 2^{31}, \quad \theta = \pi k_2 / 2^{31}

    The size of k_1, not k_1 + 2^31, makes u: a float32 resolves small integers exactly, so the
    tails are as fine as the 31 bits allow and reach 6.66 standard deviations.

    Notation: k_1 = radius_bits, k_2 = angle_bits.

    Args:
        radius_bits: (n,) int32, uniform over all values.
        angle_bits: (n,) int32, uniform over all values, independent of the others.
        out: (2n,) or (2n - 1,) float32, where the numbers go.
        scratch: float32 of at least n numbers, overwritten; fresh memory would cost more than
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
