from __future__ import annotations

import hashlib

import numpy as np
import torch
from sklearn.datasets import load_digits

import normscope as ns
from normscope.data.digits import held_out


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
    in_test = held_out(load_digits().target)
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
    indices = np.flatnonzero(held_out(load_digits().target))
    assert indices[:10].tolist() == [20, 21, 22, 23, 24, 25, 26, 27, 28, 29]
    digest = hashlib.sha256(indices.astype("<i8").tobytes()).hexdigest()
    assert digest == "d309f27a677103a4f435db0aa4abad9d0f199615d7f2a0cd54f9449cca1a42ff"


def test_digits_splits_share_no_sample() -> None:
    in_test = held_out(load_digits().target)
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
