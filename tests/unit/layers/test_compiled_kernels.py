"""The compiled kernels against the formulas in float64, and against the path without them."""

import itertools
import math

import pytest
import torch

from normscope.layers import Noise, lp_function, noisy
from normscope.layers.compiled import kernels, library
from normscope.layers.lp_function import closed_form_gradient, lp_normalize, plain_lp_norm
from normscope.layers.noisy import draw

pytestmark = pytest.mark.skipif(library() is None, reason="no compiled kernels here")

CASES = list(itertools.product([1.0, 2.0, math.inf], [False, True]))
SHAPES = [(2, 1), (9, 5), (128, 33), (40, 1100), (7, 3, 5), (4, 3, 2, 3), (3, 2, 40, 41)]


def tensors(shape, seed=0, affine=True):
    """Input, weight, bias and output gradient in float32."""
    generator = torch.Generator().manual_seed(seed)
    x, gradient = (torch.randn(shape, generator=generator) for _ in range(2))
    weight, bias = torch.randn(2, shape[1], generator=generator)
    return 1.5 * x + 0.4, *((weight, bias) if affine else (None, None)), gradient


def doubled(*given):
    return (None if t is None else t.double() for t in given)


def without_kernels(monkeypatch):
    monkeypatch.setattr(kernels, "_kernel", lambda _: None)


def close(ours, theirs, terms=None):
    """Relative 1e-5, of the largest of the terms that were summed where these cancel."""
    bound = 1e-5 * float((theirs if terms is None else terms).abs().max())
    torch.testing.assert_close(ours.double(), theirs.double(), rtol=1e-5, atol=bound)


@pytest.mark.parametrize(("order", "centred"), CASES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("affine", [False, True])
def test_kernels_equal_the_formulas_in_float64(order, centred, shape, affine):
    x, weight, bias, gradient = tensors(shape, affine=affine)
    ready = kernels.compiled_output(x, weight, bias, order, centred, 1e-3)
    exact_x, exact_weight, exact_bias, exact_gradient = doubled(x, weight, bias, gradient)
    exact = plain_lp_norm(exact_x, exact_weight, exact_bias, order, centred, 1e-3)
    for ours, theirs in zip(ready[:3], exact, strict=True):
        close(ours, theirs)
    found = kernels.compiled_gradient(gradient, x, weight, ready[1:], order, centred, True)
    options = order, centred, 1e-3
    expected = closed_form_gradient(exact_gradient, exact_x, exact_weight, *options)
    factor = (1 if weight is None else weight.abs().max()) / ready[2].min()
    terms = factor * gradient, gradient, gradient
    for ours, theirs, summed in zip(found, expected, terms, strict=True):
        close(ours, theirs, summed)


@pytest.mark.parametrize(("order", "centred"), CASES)
@pytest.mark.parametrize("shape", [(128, 1000), (64, 7, 100), (300, 3, 10, 9)])
def test_numbers_do_not_depend_on_the_threads(order, centred, shape, monkeypatch):
    x, weight, bias, gradient = tensors(shape)

    def results(threads):
        monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
        ready = kernels.compiled_output(x, weight, bias, order, centred, 1e-5)
        found = kernels.compiled_gradient(gradient, x, weight, ready[1:], order, centred, True)
        return [part for part in (*ready, *found) if part is not None]

    alone = results(1)
    for threads in (2, 3, 5):
        for one, several in zip(alone, results(threads), strict=True):
            assert torch.equal(one, several)


@pytest.mark.parametrize(("order", "centred"), CASES)
def test_channels_last_is_read_as_it_lies(order, centred):
    x, weight, bias, gradient = tensors((5, 4, 3, 7))
    last, last_gradient = (t.to(memory_format=torch.channels_last) for t in (x, gradient))
    expected = kernels.compiled_output(x, weight, bias, order, centred, 1e-5)
    ready = kernels.compiled_output(last, weight, bias, order, centred, 1e-5)
    assert ready[0].is_contiguous(memory_format=torch.channels_last)
    close(ready[0], expected[0])
    ours = kernels.compiled_gradient(last_gradient, last, weight, ready[1:], order, centred, True)
    theirs = kernels.compiled_gradient(gradient, x, weight, expected[1:], order, centred, True)
    for a, b in zip(ours, theirs, strict=True):
        close(a, b)


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(5, 8).t(),
        torch.randn(8, 10)[:, ::2],
        torch.randn(8, 5).double(),
        torch.randn(8, 5).half(),
        torch.empty(0, 5),
        torch.empty(8, 5, device="meta"),
        torch.randn(kernels.LARGEST // 5 + 1, 5),
    ],
    ids=["transposed", "strided", "double", "half", "empty", "meta", "large"],
)
def test_other_tensors_are_left_to_torch(x):
    assert kernels.compiled_output(x, None, None, 1.0, False, 1e-5) is None
    assert kernels.compiled_output(torch.randn(8, 5), None, None, 1.5, False, 1e-5) is None


def test_vectors_that_do_not_fit_are_left_to_torch():
    x = torch.randn(8, 5)
    for weight in (torch.ones(4), torch.ones(10)[::2], torch.ones(5).double()):
        assert kernels.compiled_output(x, weight, None, 1.0, False, 1e-5) is None


def test_gradient_of_another_layout_is_left_to_torch():
    x, weight, bias, gradient = tensors((8, 5))
    ready = kernels.compiled_output(x, weight, bias, 1.0, False, 1e-5)
    turned = gradient.t().contiguous().t()
    assert kernels.compiled_gradient(turned, x, weight, ready[1:], 1.0, False, True) is None
    ours = lp_function.fused_gradient(turned, x, weight, ready[1:], 1.0, False)
    theirs = lp_function.fused_gradient(gradient, x, weight, ready[1:], 1.0, False)
    for a, b in zip(ours, theirs, strict=True):
        close(a, b)


def passes(x, weight, bias, gradient, order, centred, eps=1e-5):
    """Output, mean, scale and the three gradients, by the public function."""
    sources = [t.clone().requires_grad_() for t in (x, weight, bias)]
    results = lp_normalize(*sources, order, centred, eps)
    return *(t.detach() for t in results), *torch.autograd.grad(results[0], sources, gradient)


@pytest.mark.parametrize(("order", "centred"), CASES)
def test_layer_calls_the_kernels_and_agrees_without_them(order, centred, monkeypatch):
    given = tensors((64, 50))
    called, kernel = [], kernels._kernel
    monkeypatch.setattr(kernels, "_kernel", lambda name: called.append(name) or kernel(name))
    ours = passes(*given, order, centred)
    assert {"forward", "backward"} <= set(called)
    without_kernels(monkeypatch)
    for a, b in zip(ours, passes(*given, order, centred), strict=True):
        close(a, b)


@pytest.mark.parametrize(("order", "centred"), CASES)
def test_ties_and_zero_channels_as_without_kernels(order, centred, monkeypatch):
    x = torch.tensor([[2.0, 0.0], [-2.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])  # means 0
    gradient = torch.randn(4, 2, generator=torch.Generator().manual_seed(0))
    given = x, torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]), gradient
    ours = passes(*given, order, centred)
    assert kernels.compiled_output(*given[:3], order, centred, 1e-5) is not None
    assert all(t.isfinite().all() for t in ours)
    without_kernels(monkeypatch)
    theirs = passes(*given, order, centred)
    # a channel of zeros is divided by eps: its own terms are large, and may cancel
    bounds = 1e-5 * given[1] / theirs[2] * gradient.abs().max()
    assert ((ours[3] - theirs[3]).abs() <= bounds).all()
    for one, other in zip(ours[:3] + ours[4:], theirs[:3] + theirs[4:], strict=True):
        close(one, other)


@pytest.mark.parametrize(("order", "centred"), CASES)
def test_small_spread_about_a_large_mean_keeps_its_digits(order, centred):
    x, weight, bias, gradient = tensors((64, 6))
    x, bias = 1e4 + 1e-2 * x, torch.zeros(6)  # a bias would swallow the digits looked at
    assert kernels.compiled_output(x, weight, bias, order, centred, 0.0) is None
    ours = passes(x, weight, bias, gradient, order, centred, 0.0)[0]
    close(ours, plain_lp_norm(*doubled(x, weight, bias), order, centred, 0.0)[0])


@pytest.mark.parametrize(("order", "centred"), CASES)
@pytest.mark.parametrize("size", [1e-30, 1e-18, 1e18, 1e30])
def test_powers_that_vanish_or_overflow_are_still_right(order, centred, size):
    x, weight, bias, gradient = tensors((32, 3))
    ours = passes(size * x, weight, bias, gradient, order, centred, 0.0)[0]
    exact = plain_lp_norm(*doubled(size * x, weight, bias), order, centred, 0.0)[0]
    close(ours, exact)


@pytest.mark.parametrize(("order", "centred"), CASES)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", ["input", "weight", "gradient"])
def test_what_is_not_finite_spreads_as_without_kernels(order, centred, value, place, monkeypatch):
    x, weight, bias, gradient = tensors((6, 3))
    {"input": x, "weight": weight[None], "gradient": gradient}[place][0, 1] = value
    ours = passes(x, weight, bias, gradient, order, centred)
    without_kernels(monkeypatch)
    theirs = passes(x, weight, bias, gradient, order, centred)
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a.isfinite(), b.isfinite())
        if place != "gradient":  # there a rounding error's sign decides between inf and NaN
            assert torch.equal(a.isnan(), b.isnan())


def test_default_dtype_does_not_matter():
    x, weight, bias, gradient = tensors((8, 5))
    place = {"dtype": torch.float32, "device": torch.device("cpu")}

    def everything():
        generator = torch.Generator().manual_seed(0)
        noises = draw(Noise(), x.shape, **place, generator=generator)
        return *passes(x, weight, bias, gradient, math.inf, True), *noises

    expected = everything()
    torch.set_default_dtype(torch.float64)
    try:
        found = everything()
    finally:
        torch.set_default_dtype(torch.float32)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == torch.float32
        assert torch.equal(ours, theirs)


def test_input_gradient_is_left_out_when_not_wanted():
    x, weight, bias, gradient = tensors((8, 5))
    ready = kernels.compiled_output(x, weight, bias, 2.0, True, 1e-5)
    with_input = kernels.compiled_gradient(gradient, x, weight, ready[1:], 2.0, True, True)
    without = kernels.compiled_gradient(gradient, x, weight, ready[1:], 2.0, True, False)
    assert without[0] is None
    assert torch.equal(without[1], with_input[1])
    assert torch.equal(without[2], with_input[2])


SHAPES_OF_NOISE = [(128, 1000), (300, 1001), (7, 5), (3, 4, 5), (5, 3, 7, 9), (1, 1), (0, 3)]


@pytest.mark.parametrize("shape", SHAPES_OF_NOISE)
def test_noise_is_made_of_the_same_bits_as_without_kernels(shape, monkeypatch):
    def drawn():
        generator = torch.Generator().manual_seed(3)
        place = {"dtype": torch.float32, "device": torch.device("cpu")}
        return draw(Noise(), torch.Size(shape), **place, generator=generator)

    called = []
    kernel = kernels.compiled_noise
    monkeypatch.setattr(noisy, "compiled_noise", lambda *a: called.append(kernel(*a)) or called[-1])
    ours = drawn()
    assert all(called)
    assert called or 0 in shape
    monkeypatch.setattr(noisy, "compiled_noise", lambda *_: False)
    torch.testing.assert_close(ours, drawn(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("channels", [1, 3, 30, 511, 512, 513, 1100])
@pytest.mark.parametrize("samples", [1, 7, 300])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_sums_equal_those_in_float64(channels, samples, threads, monkeypatch):
    monkeypatch.setattr(kernels, "_threads_for", lambda _: threads)
    generator = torch.Generator().manual_seed(channels)
    one, other = torch.randn(2, samples, channels, generator=generator) + 0.3
    products, totals = kernels.compiled_sums(one, other)
    exact, there = one.double(), other.double()
    for ours, terms in ((products, exact * there), (totals, exact)):
        close(ours, terms.sum(0), terms.abs().sum(0))


@pytest.mark.parametrize("shape", [(4, 5, 3, 2), (2, 3, 4, 2, 3), (9, 30, 7, 7)])
def test_sums_of_images_are_taken_over_their_positions(shape):
    generator = torch.Generator().manual_seed(0)
    last = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
    one, other = (
        torch.randn(shape, generator=generator).contiguous(memory_format=last) for _ in range(2)
    )
    axes = [axis for axis in range(len(shape)) if axis != 1]
    products, totals = kernels.compiled_sums(one, other)
    close(products, (one.double() * other.double()).sum(axes))
    close(totals, one.double().sum(axes))


def test_sums_are_the_same_for_the_same_number_of_threads():
    one, other = torch.randn(2, 5000, 30, generator=torch.Generator().manual_seed(0))
    first = torch.stack(kernels.compiled_sums(one, other))
    again = [torch.stack(kernels.compiled_sums(one, other)) for _ in range(5)]
    assert all(torch.equal(sums, first) for sums in again)


def test_sums_keep_numbers_that_are_none_in_their_channel():
    one, other = torch.ones(2, 70, 3)
    one[69, 1] = math.nan
    products, totals = kernels.compiled_sums(one, other)
    assert products.isnan().tolist() == totals.isnan().tolist() == [False, True, False]


def test_sums_leave_what_they_cannot_read():
    plain = torch.ones(4, 3)
    images = torch.ones(2, 3, 4, 5)
    assert kernels.compiled_sums(plain, plain) is not None
    assert kernels.compiled_sums(images, images) is None  # channels are not neighbours
    strange = [plain.double(), torch.ones(4, 6)[:, ::2], torch.ones(3, 4).T, torch.ones(5, 3)]
    for other in [*strange, plain.to("meta"), plain[:0], torch.ones(4)]:
        assert kernels.compiled_sums(plain, other) is None
        assert kernels.compiled_sums(other, plain) is None
    for strange in (torch.ones(2, 3, 4), plain[:0], torch._efficientzerotensor((4, 3))):
        assert kernels.compiled_sums(strange, strange) is None
    seen = []
    torch.func.vmap(lambda x: seen.append(kernels.compiled_sums(x, x)) or x)(torch.ones(2, 4, 3))
    assert seen == [None]


def test_sums_lie_on_the_cpu_whatever_the_default_device_is():
    one = torch.ones(70, 3)
    with torch.device("meta"):
        products, _ = kernels.compiled_sums(one, one)
    assert products.tolist() == [70.0] * 3


@pytest.mark.parametrize(
    ("shape", "pays"), [((4, 30, 3, 3), True), ((4, 32, 3, 3), False), ((4, 30), False)]
)
def test_sums_are_left_to_torch_where_it_is_as_fast(shape, pays):
    images = torch.ones(shape)
    if len(shape) == 4:
        images = images.contiguous(memory_format=torch.channels_last)
    assert (kernels.faster_sums(images, images) is not None) == pays
