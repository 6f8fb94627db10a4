"""A user's own data in a sweep: a function's tensors, checked and split."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from normscope.data import Dataset
from normscope.data.dataset import Split
from normscope.errors import ArgumentTypeError, InputError
from normscope.import_path import load_object

__all__ = ["held_out_words", "own_data"]

_HELD_OUT = 5  # one sample of so many, where a user's data has no test split
_split_here: dict[tuple[str, str], int] = {}  # how many samples there were, by place and version


@functools.lru_cache(maxsize=4)
def own_data(place: str, version: str) -> Dataset:
    """A user's data; loaded once in each process.

    Args:
        place: of a function that returns one pair (inputs, targets), of which every fifth sample
            (of a fixed shuffle) is held out for the test; or a pair of such pairs, training and
            test; or a Dataset.
        version: of its file, as `source_version` tells it; another one is loaded anew.

    Returns:
        The data set.

    Raises:
        ArgumentTypeError: if it returns something else.
    """
    found = load_object(place, seed=0)
    if isinstance(found, Dataset):
        return found
    if _is_pair(found, Tensor):
        train, test = _held_out(place, *found)
        _split_here[place, version] = len(found[0])
    elif _is_pair(found, (tuple, list)) and all(_is_pair(each, Tensor) for each in found):
        train, test = (Split(*each) for each in found)
    else:
        raise ArgumentTypeError(
            f"{place} must return a pair of tensors (inputs, targets) of all samples, or two such "
            f"pairs (training, test), for a sweep; got {type(found).__name__}."
        )
    for split in (train, test):
        _check_split(place, split)
    labels = not train.y.is_floating_point()
    classes = map(str, range(int(train.y.max()) + 1)) if labels else ()
    return Dataset(place, train, test, tuple(classes))


def held_out_words(place: str, version: str) -> str:
    """Why a user's data has fewer samples to train on than the function returned.

    Args:
        place: of the function.
        version: of its file.

    Returns:
        The end of a sentence; "" if nothing was held out of it.
    """
    samples = _split_here.get((place, version))
    if samples is None:
        return ""
    return f"; of the {samples} that {place} returns every fifth is held out for the test"


def _is_pair(found: Any, kind: type | tuple[type, ...]) -> bool:
    return (
        isinstance(found, (tuple, list))
        and len(found) == len(Split._fields)
        and all(isinstance(each, kind) for each in found)
    )


def _check_split(place: str, split: Split) -> None:
    inputs, targets = split
    if not (inputs.dim() and targets.dim() and len(inputs) == len(targets) and len(inputs)):
        raise InputError(
            f"{place} must return as many targets as inputs, and some of each; got shapes "
            f"{tuple(inputs.shape)} and {tuple(targets.shape)}."
        )
    if not targets.is_floating_point() and targets.dim() > 1:
        raise InputError(
            f"{place} must return one whole number for each sample as its class, or real numbers "
            f"to learn; got whole numbers of shape {tuple(targets.shape)}."
        )
    for what, values in (("inputs", inputs), ("targets", targets)):
        bad = ~torch.isfinite(values).reshape(len(values), -1).all(1)
        if bad.any():
            raise InputError(
                f"{place} returns {what} that are infinite or not a number, in {int(bad.sum())} of "
                f"{len(values)} samples, the first of them number {int(bad.nonzero()[0])}, counted "
                "from 0; leave such samples out or fill them in."
            )


def _held_out(place: str, inputs: Tensor, targets: Tensor) -> tuple[Split, Split]:
    _check_split(place, Split(inputs, targets))
    if len(inputs) < _HELD_OUT:
        raise InputError(
            f"{place} must return at least {_HELD_OUT} samples, of which one in {_HELD_OUT} is "
            f"held out for the test; got {len(inputs)}."
        )
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0))
    is_test = torch.arange(len(inputs)) % _HELD_OUT == 0
    train, test = order[~is_test], order[is_test]
    return Split(inputs[train], targets[train]), Split(inputs[test], targets[test])
