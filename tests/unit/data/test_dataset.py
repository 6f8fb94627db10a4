from __future__ import annotations

from pathlib import Path

import pytest

import normscope as ns
from normscope.errors import UnknownNameError


def test_catalogue_names_the_four_data_sets() -> None:
    assert list(ns.data.DATASETS) == ["cifar10", "digits", "gaussian", "mnist"]


def test_load_refuses_an_unknown_name_with_the_closest() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'mnist'"):
        ns.data.load("mnits")


def test_load_refuses_an_unknown_option_with_the_closest() -> None:
    with pytest.raises(
        UnknownNameError, match=r"gaussian option 'sampels'; did you mean 'samples'"
    ):
        ns.data.load("gaussian", sampels=3)
    with pytest.raises(UnknownNameError, match="none are registered"):
        ns.data.load("digits", seed=3)


def test_load_of_embedded_data_needs_no_root(tmp_path: Path) -> None:
    assert len(ns.data.load("digits", root=tmp_path, verify=False).train.x) == 1438


def test_dataset_describes_itself_in_one_line() -> None:
    text = repr(ns.data.load("gaussian", samples=3, test_samples=2))
    assert text == "Dataset(gaussian: train (3, 10), test (2, 10), 0 classes)"


def test_split_unpacks_as_a_tuple() -> None:
    data = ns.data.load("gaussian")
    x, y = data.train
    assert x is data.train.x
    assert y is data.train.y
    assert isinstance(data.train, tuple)
