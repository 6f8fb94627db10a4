"""Geometry against torch's own convolutions and poolings."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from normscope.errors import ShapeError
from normscope.meanfield.windows import (
    Window,
    adaptive_matrix,
    average_matrix,
    gathered,
    scattered,
    seen_positions,
    shared_places,
)

WINDOWS = [
    Window((3, 3), (1, 1), ((0, 0), (0, 0)), (1, 1)),
    Window((3, 3), (2, 2), ((1, 1), (1, 1)), (1, 1)),
    Window((3, 2), (1, 3), ((2, 2), (0, 0)), (2, 1)),
    Window((1, 1), (2, 2), ((0, 0), (0, 0)), (1, 1)),
]


@pytest.mark.parametrize("window", WINDOWS)
def test_windows_see_what_a_convolution_sees(window):
    x = torch.arange(1.0, 43.0).reshape(1, 1, 6, 7)
    padding = tuple(sides[0] for sides in window.padding)
    unfolded = functional.unfold(
        x, window.kernel, dilation=window.dilation, padding=padding, stride=window.stride
    )[0]
    values = np.append(x.numpy().ravel(), 0.0)  # padding sees zero
    assert np.array_equal(values[seen_positions(window, (6, 7))], unfolded.numpy())


@pytest.mark.parametrize("window", WINDOWS)
def test_gathering_is_the_sum_over_places_and_scattering_its_transpose(window):
    rng = np.random.default_rng(0)
    kernel = rng.standard_normal((1, 2, 42, 42))
    seen = seen_positions(window, (6, 7))
    padded = np.pad(kernel, [(0, 0), (0, 0), (0, 1), (0, 1)])
    expected = sum(padded[..., row[:, None], row[None, :]] for row in seen)
    found = gathered(kernel, window, (6, 7))
    assert found == pytest.approx(expected)
    other = rng.standard_normal(found.shape)
    assert (found * other).sum() == pytest.approx((kernel * scattered(other, window, (6, 7))).sum())


def test_shared_places_count_the_filter_inside_the_map():
    window = WINDOWS[1]
    counts = np.diag(shared_places(window, (6, 6))).reshape(3, 3)
    assert counts.tolist() == [[4, 6, 6], [6, 9, 9], [6, 9, 9]]


@pytest.mark.parametrize("count_padding", [True, False])
def test_average_matrix_is_torchs_average_pooling(count_padding):
    window = Window((3, 2), (2, 2), ((1, 1), (1, 1)), (1, 1))
    x = torch.randn(1, 1, 6, 7, dtype=torch.float64)
    expected = functional.avg_pool2d(x, (3, 2), 2, 1, count_include_pad=count_padding)
    found = average_matrix(window, (6, 7), count_padding) @ x.numpy().ravel()
    assert found == pytest.approx(expected.numpy().ravel())


@pytest.mark.parametrize("outputs", [(1, 1), (2, 3), (6, 7)])
def test_adaptive_matrix_is_torchs_adaptive_pooling(outputs):
    x = torch.randn(1, 1, 6, 7, dtype=torch.float64)
    expected = functional.adaptive_avg_pool2d(x, outputs).numpy().ravel()
    assert adaptive_matrix((6, 7), outputs) @ x.numpy().ravel() == pytest.approx(expected)


@pytest.mark.parametrize("size", [4, 5, 7, 8])
def test_rounding_up_keeps_a_last_window_as_torch_does(size):
    window = Window((3,), (2,), ((0, 0),), (1,), round_up=True)
    expected = functional.max_pool1d(torch.zeros(1, 1, size), 3, 2, ceil_mode=True).shape[-1]
    assert window.outputs((size,)) == (expected,)


def test_window_refuses_maps_it_does_not_fit():
    with pytest.raises(ShapeError, match="does not fit"):
        WINDOWS[0].outputs((2, 5))
    with pytest.raises(ShapeError, match="input_shape"):
        WINDOWS[0].outputs((5,))
