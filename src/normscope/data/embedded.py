"""Data sets without files: scikit-learn's digits, and generated Gaussian data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from normscope.data.dataset import DATASETS, Dataset, Split
from normscope.data.images import standardize
from normscope.errors import InputError

_MATRIX, _TRAIN, _TEST = range(3)  # one random stream each: their sizes do not affect each other


@DATASETS.register
def digits() -> Dataset:
    """Handwritten digits of 8 x 8 pixels, embedded: 1438 to train on, 359 to test on.

    The split is deterministic, so that no version of a random generator can change it: of the
    samples of each class, in scikit-learn's order, the third of every five is a test sample.

    Returns:
        Images (samples, 1, 8, 8) and labels 0 to 9.
    """
    from sklearn.datasets import load_digits  # takes a second to import

    bunch = load_digits()
    images = bunch.images.astype(np.uint8)[:, None]  # integers from 0 to 16
    labels = torch.from_numpy(bunch.target.astype(np.int64))
    in_test = held_out(bunch.target)
    train, test = standardize(images[~in_test], images[in_test])
    chosen = torch.from_numpy(in_test)
    return Dataset(
        name="digits",
        train=Split(torch.from_numpy(train), labels[~chosen]),
        test=Split(torch.from_numpy(test), labels[chosen]),
        classes=tuple("0123456789"),
    )


def held_out(labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Mask of the test split: the third of every five samples of each class.

    >>> held_out(np.array([7, 7, 1, 7, 1, 1, 7])).tolist()
    [False, False, False, True, False, True, False]
    """
    result = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        result[np.flatnonzero(labels == label)[2::5]] = True
    return result


@DATASETS.register
def gaussian(
    samples: int = 1000,
    features: int = 10,
    outputs: int = 10,
    test_samples: int = 1000,
    seed: int = 0,
) -> Dataset:
    r"""Linear regression on Gaussian inputs: the deep linear network's data.

    .. math:: y = A x, \qquad x \sim N(0, I), \quad A_{ij} \sim N(0, 1)

    Reference: santurkar2018, A.1 (1000 samples, A of 10 x 10). The test split has new inputs
    and the same A. There is no noise, so that zero loss can be reached.

    Args:
        samples: number of training samples.
        features: dimension of x.
        outputs: dimension of y.
        test_samples: number of test samples.
        seed: the same seed gives the same A whatever the number of samples.

    Returns:
        Inputs (samples, features) and targets (samples, outputs) in float32; no classes.
    """
    _check_sizes(samples=samples, features=features, outputs=outputs, test_samples=test_samples)
    matrix = _normal((outputs, features), seed, _MATRIX)

    def split(count: int, stream: int) -> Split:
        x = _normal((count, features), seed, stream)
        return Split(x.float(), (x @ matrix.T).float())

    return Dataset("gaussian", split(samples, _TRAIN), split(test_samples, _TEST))


def gaussian_inputs(shape: Sequence[int], samples: int = 1000, seed: int = 0) -> Tensor:
    """Inputs with iid N(0, 1) components, as mean-field theory assumes.

    Args:
        shape: shape of one sample, such as ``(784,)`` or ``(3, 32, 32)``.
        samples: number of samples.
        seed: of the draw; the global random state is not used.

    Returns:
        A float32 tensor (samples, *shape).

    >>> gaussian_inputs((3, 32, 32), samples=4).shape
    torch.Size([4, 3, 32, 32])
    """
    _check_sizes(samples=samples, **{f"shape[{i}]": size for i, size in enumerate(shape)})
    return _normal((samples, *shape), seed, _TRAIN).float()


def _normal(shape: tuple[int, ...], seed: int, stream: int) -> Tensor:
    generator = torch.Generator().manual_seed(3 * seed + stream)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def _check_sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise InputError(f"{name} must be at least 1, got {size}.")
