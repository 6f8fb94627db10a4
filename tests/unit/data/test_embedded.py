from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

import normscope as ns
from normscope.errors import InputError


def held_out() -> np.ndarray:
    """Whether each of scikit-learn's digits is in the test split; both splits keep their order."""
    data, digits = ns.data.load("digits"), load_digits()
    low, high = data.train.x.min(), data.train.x.max()
    left = []
    for x, y in (data.train, data.test):
        pixels = (16 * (x - low) / (high - low)).round().flatten(1)  # 0 to 16, as they came
        left.append(torch.cat([pixels, y[:, None]], dim=1).tolist())
    found = []
    for row in np.column_stack([digits.data, digits.target]).tolist():
        (place,) = [place for place, rows in enumerate(left) if rows and rows[0] == row]
        left[place].pop(0)
        found.append(place == 1)
    assert left == [[], []]
    return np.array(found)


def test_digits_have_the_documented_form() -> None:
    data = ns.data.load("digits")
    assert data.name == "digits"
    assert data.classes == tuple("0123456789")
    for split, size in ((data.train, 1438), (data.test, 359)):
        assert split.x.shape == (size, 1, 8, 8)
        assert split.x.dtype == torch.float32
        assert split.y.shape == (size,)
        assert split.y.dtype == torch.int64


def test_digits_training_split_is_standardised_and_test_split_by_its_constants() -> None:
    data = ns.data.load("digits")
    train = data.train.x.double()
    assert abs(train.mean()) < 1e-4
    assert abs(train.var(unbiased=False) - 1) < 1e-4
    pixels = load_digits().images
    in_test = held_out()
    mean, deviation = pixels[~in_test].mean(), pixels[~in_test].std()
    expected = (pixels[in_test] - mean) / deviation
    np.testing.assert_allclose(data.test.x[:, 0].numpy(), expected, rtol=1e-6, atol=1e-6)


def test_digits_split_is_stratified() -> None:
    data = ns.data.load("digits")
    whole = np.bincount(load_digits().target)
    test = data.test.y.bincount().numpy()
    assert test.tolist() == [36, 36, 35, 37, 36, 36, 36, 36, 35, 36]
    assert (test + data.train.y.bincount().numpy()).tolist() == whole.tolist()
    assert np.abs(test - whole / 5).max() <= 0.5


def test_digits_split_has_the_same_indices_always() -> None:
    indices = np.flatnonzero(held_out())
    assert indices[:10].tolist() == [20, 21, 22, 23, 24, 25, 26, 27, 28, 29]
    digest = hashlib.sha256(indices.astype("<i8").tobytes()).hexdigest()
    assert digest == "d309f27a677103a4f435db0aa4abad9d0f199615d7f2a0cd54f9449cca1a42ff"


def test_digits_splits_share_no_sample() -> None:
    in_test = held_out()
    assert in_test.sum() + (~in_test).sum() == 1797
    data = ns.data.load("digits")
    assert torch.equal(data.test.y, torch.from_numpy(load_digits().target[in_test]))
    assert torch.equal(data.train.y, torch.from_numpy(load_digits().target[~in_test]))


def test_digits_loads_are_independent_and_leave_random_state_alone() -> None:
    before, before_numpy = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    first = ns.data.load("digits")
    first.train.x.zero_()
    assert ns.data.load("digits").train.x.abs().sum() > 0
    assert torch.equal(before, torch.get_rng_state())
    assert (before_numpy == np.random.get_state()[1]).all()  # noqa: NPY002


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
