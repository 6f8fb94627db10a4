"""The draws of Algorithm 1: right distributions, reproducible, independent.

Every test of a distribution has a fixed seed and a level of 1e-4 per test.
"""

import math

import pytest
import torch
from scipy import stats

from normscope.errors import ArgumentTypeError, InputError
from normscope.layers import Noise, noisy
from normscope.layers.noisy import CHUNK, draw

CPU = torch.device("cpu")
LEVEL = 1e-4
STANDARD = Noise(mean=0.0, std=1.0, mean_jitter=1.0, std_jitter=1.0)  # s - 1 ~ N(0,1), m ~ U(-1,1)


def drawn(shape, seed, noise=STANDARD, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return draw(noise, torch.Size(shape), dtype=dtype, device=CPU, generator=generator)


def box_muller(radius_bits, angle_bits):
    normal = torch.empty(2 * len(radius_bits))
    noisy.box_muller(radius_bits, angle_bits, out=normal, scratch=torch.empty_like(normal))
    return normal


def random_words(count, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-(2**31), 2**31, (count,), generator=generator).to(torch.int32)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_factors_are_normal_and_shifts_uniform(seed, dtype):
    factor, shift = drawn((1000, 1000), seed, dtype=dtype)
    normal, uniform = (factor - 1).flatten().double(), shift.flatten().double()
    assert stats.kstest(normal.numpy(), "norm").pvalue > LEVEL
    assert stats.kstest(uniform.numpy(), "uniform", args=(-1, 2)).pvalue > LEVEL
    assert uniform.abs().max() <= 1


@pytest.mark.parametrize("seed", [3, 4])
def test_normal_moments_match(seed):
    count = 1_000_000
    normal = (drawn((1000, 1000), seed)[0] - 1).flatten().double()
    # Standard errors of the mean, variance, third and fourth moment of N(0, 1).
    bound = stats.norm.isf(LEVEL / 2) / math.sqrt(count)
    assert abs(normal.mean()) < bound
    assert abs(normal.square().mean() - 1) < bound * math.sqrt(2)
    assert abs(normal.pow(3).mean()) < bound * math.sqrt(15)
    assert abs(normal.pow(4).mean() - 3) < bound * math.sqrt(96)


def test_normal_tails_have_the_right_frequency():
    normal = drawn((4000, 1000), 5)[0] - 1
    for threshold in (3.0, 4.0, 4.5):
        law = stats.binom(normal.numel(), stats.norm.sf(threshold))
        low, high = law.ppf(LEVEL / 2), law.isf(LEVEL / 2)
        assert low > 0  # the test would notice a missing tail
        assert low <= (normal > threshold).sum() <= high
        assert low <= (normal < -threshold).sum() <= high


def test_box_muller_tails_are_resolved_beyond_five_deviations():
    """The conditional law of a radius made from few-bit integers is still that of a normal pair."""
    small = torch.arange(1, 4097, dtype=torch.int32)  # |k| <= 2^12: radii beyond 5.13
    radius = box_muller(small, torch.zeros_like(small))[: len(small)].double()
    exact = torch.sqrt(-2 * torch.log(small.double() / 2**31))
    torch.testing.assert_close(radius, exact, rtol=3e-7, atol=0)
    assert len(radius.unique()) > 4000


def test_box_muller_is_finite_at_the_extreme_words():
    extreme = torch.tensor([0, 1, -1, 2**31 - 1, -(2**31)], dtype=torch.int32)
    radius, angle = (grid.flatten() for grid in torch.meshgrid(extreme, extreme, indexing="ij"))
    normal = box_muller(radius, angle)
    assert normal.isfinite().all()
    assert normal.abs().max() == pytest.approx(math.sqrt(2 * 32 * math.log(2)), rel=1e-6)


def test_box_muller_pairs_lie_at_their_radius_and_angle():
    radius_words, angle_words = random_words(1000, 6), random_words(1000, 7)
    first, second = box_muller(radius_words, angle_words).double().view(2, -1)
    exact = -2 * torch.log(radius_words.double().abs() / 2**31)
    torch.testing.assert_close(first**2 + second**2, exact, rtol=1e-5, atol=1e-6)
    angle = angle_words.double() * (math.pi / 2**31)
    torch.testing.assert_close(torch.atan2(second, first), angle, rtol=0, atol=2e-6)


@pytest.mark.parametrize("seed", [8, 9])
def test_factor_shift_and_neighbours_are_uncorrelated(seed):
    factor, shift = drawn((1000, 1000), seed)
    normal, uniform = (factor - 1).double(), shift.double() * math.sqrt(3)
    half = normal.numel() // 2
    flat = normal.flatten()
    pairs = {
        "factor and shift": (normal, uniform),
        "sizes of factor and shift": (normal**2 - 1, uniform**2 - 1),
        "neighbouring units": (normal[:, 1:], normal[:, :-1]),
        "neighbouring samples": (normal[1:], normal[:-1]),
        "neighbouring shifts": (uniform[:, 1:], uniform[:, :-1]),
        "the two halves of Box-Muller": (flat[:half], flat[half:]),
        "their squares": (flat[:half] ** 2 - 1, flat[half:] ** 2 - 1),
        "both halves within a chunk": (
            flat[: CHUNK // 2 - 500],
            flat[CHUNK // 2 - 500 : CHUNK - 1000],
        ),
    }
    for name, (a, b) in pairs.items():
        spread = (a * b).std() / math.sqrt(a.numel())
        assert abs((a * b).mean()) < stats.norm.isf(LEVEL / 2) * spread, name


def test_unit_parameters_are_uniform_over_their_ranges():
    noise = Noise(mean=0.5, std=1.25, mean_jitter=0.0, std_jitter=0.0)
    factor, shift = drawn((2, 20_000), 10, noise)
    assert torch.equal(factor[0], factor[1])
    assert torch.equal(shift[0], shift[1])
    assert stats.kstest(shift[0].numpy(), "uniform", args=(-0.5, 1.0)).pvalue > LEVEL
    assert stats.kstest(factor[0].numpy(), "uniform", args=(1.0, 0.25)).pvalue > LEVEL


def test_jitters_spread_around_each_unit():
    factor, shift = drawn((20_000, 3), 11, Noise(mean=5.0, std=9.0, mean_jitter=0.1, std_jitter=2))
    assert ((shift.amax(0) - shift.amin(0)) <= 0.2 + 1e-5).all()
    torch.testing.assert_close(factor.std(0), torch.full((3,), 2.0), rtol=0.03, atol=0)
    assert shift.mean(0).std() > 0.1


@pytest.mark.parametrize(
    "shape", [(7, 5), (3, 4, 5), (5, 3, 7, 9), (2, 3, 4, 5, 6), (1, 1), (0, 3)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_same_seed_gives_the_same_noise_and_another_seed_another(shape, dtype):
    first, again, other = (drawn(shape, seed, Noise(), dtype) for seed in (0, 0, 1))
    for a, b, c in zip(first, again, other, strict=True):
        assert a.shape == torch.Size(shape)
        assert a.dtype == dtype
        assert torch.equal(a, b)
        assert a.numel() == 0 or not torch.equal(a, c)


def test_noise_does_not_depend_on_the_number_of_threads():
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = drawn((300, 1001), 12)
    finally:
        torch.set_num_threads(threads)
    together = drawn((300, 1001), 12)
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))


def test_default_generator_is_torchs_own():
    torch.manual_seed(13)
    first = draw(Noise(), torch.Size([9, 4]), dtype=torch.float32, device=CPU)
    after = torch.rand(3)
    torch.manual_seed(13)
    again = draw(Noise(), torch.Size([9, 4]), dtype=torch.float32, device=CPU)
    assert torch.equal(first[0], again[0])
    assert torch.equal(after, torch.rand(3))


def test_other_device_draws_where_the_generator_is():
    factor, shift = draw(
        Noise(),
        torch.Size([4, 3]),
        dtype=torch.float32,
        device=torch.device("meta"),
        generator=torch.Generator().manual_seed(0),
    )
    assert factor.device.type == shift.device.type == "meta"
    factor, _ = draw(Noise(), torch.Size([4, 3]), dtype=torch.float32, device=torch.device("meta"))
    assert factor.device.type == "meta"


@pytest.mark.parametrize("name", ["mean", "std", "mean_jitter", "std_jitter"])
def test_noise_refuses_what_is_no_strength(name):
    for value in (-0.1, math.nan, math.inf):
        with pytest.raises(InputError, match=name):
            Noise(**{name: value})
    for value in ("1", None, True):
        with pytest.raises(ArgumentTypeError, match=name):
            Noise(**{name: value})


def test_noise_refuses_a_factor_range_below_one():
    with pytest.raises(InputError, match="at least 1"):
        Noise(std=0.9)
