from __future__ import annotations

import numpy as np
import pytest
import torch

import normscope as ns
from normscope.errors import InputError


def test_gaussian_regression_is_linear_without_noise() -> None:
    data = ns.data.load("gaussian")
    x, y = (tensor.double().numpy() for tensor in data.train)
    assert x.shape == (1000, 10)
    assert y.shape == (1000, 10)
    matrix = np.linalg.lstsq(x, y, rcond=None)[0]
    np.testing.assert_allclose(x @ matrix, y, atol=2e-5)
    test_x, test_y = (tensor.double().numpy() for tensor in data.test)
    np.testing.assert_allclose(test_x @ matrix, test_y, atol=2e-5)  # the same matrix


def test_gaussian_regression_has_the_stated_distribution() -> None:
    data = ns.data.load("gaussian", samples=4000, features=100, outputs=100)
    x, y = (tensor.double() for tensor in data.train)
    matrix = torch.linalg.lstsq(x, y).solution
    for values in (x, matrix):
        count = values.numel()
        assert abs(values.mean()) < 5 / count**0.5
        assert abs(values.var() - 1) < 5 * (2 / count) ** 0.5
        assert abs((values**4).mean() - 3) < 5 * (96 / count) ** 0.5  # Var(z^4) = 96


def test_gaussian_options_set_the_shapes() -> None:
    data = ns.data.load("gaussian", samples=7, features=5, outputs=3, test_samples=2, seed=4)
    assert [tuple(t.shape) for t in (*data.train, *data.test)] == [(7, 5), (7, 3), (2, 5), (2, 3)]
    assert data.classes == ()
    assert data.train.x.dtype == data.train.y.dtype == torch.float32


def test_gaussian_seed_determines_the_draw() -> None:
    first, same = ns.data.load("gaussian", seed=3), ns.data.load("gaussian", seed=3)
    other = ns.data.load("gaussian", seed=4)
    assert torch.equal(first.train.y, same.train.y)
    assert not torch.equal(first.train.x, other.train.x)
    assert not torch.equal(first.train.x, first.test.x)


def test_gaussian_matrix_and_test_split_do_not_depend_on_the_number_of_samples() -> None:
    few, many = ns.data.load("gaussian", samples=20), ns.data.load("gaussian", samples=50)
    assert torch.equal(few.test.x, many.test.x)
    assert torch.equal(few.test.y, many.test.y)


@pytest.mark.parametrize("option", ["samples", "features", "outputs", "test_samples"])
def test_gaussian_refuses_an_empty_size(option: str) -> None:
    with pytest.raises(InputError, match=f"{option} must be at least 1, got 0"):
        ns.data.load("gaussian", **{option: 0})


def test_gaussian_inputs_are_standard_normal_and_leave_random_state_alone() -> None:
    before = torch.get_rng_state()
    x = ns.data.gaussian_inputs((3, 16, 16), samples=200, seed=1)
    assert x.shape == (200, 3, 16, 16)
    assert x.dtype == torch.float32
    assert abs(x.mean()) < 5 / x.numel() ** 0.5
    assert abs(x.var() - 1) < 5 * (2 / x.numel()) ** 0.5
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(x, ns.data.gaussian_inputs((3, 16, 16), samples=200, seed=1))


def test_gaussian_inputs_refuse_an_empty_shape() -> None:
    with pytest.raises(InputError, match=r"shape\[1\] must be at least 1"):
        ns.data.gaussian_inputs((3, 0))
