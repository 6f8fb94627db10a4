"""Generated data: the deep linear net's regression, and iid normal inputs for theory."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from normscope.data.catalogue import DATASETS
from normscope.data.dataset import Dataset, Split
from normscope.errors import InputError

_MATRIX, _TRAIN, _TEST = range(3)  # one random stream each: the sizes of one leave the others alone


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

    Reference: santurkar2018, A.1 (1000 samples, A of 10 x 10). The test split has fresh inputs
    and the same A. Without noise, so that zero loss can be reached.

    Args:
        samples: number of training samples.
        features: dimension of x.
        outputs: dimension of y.
        test_samples: number of test samples.
        seed: the same seed gives the same A whatever the number of samples.

    Returns:
        Inputs (samples, features) and targets (samples, outputs) in float32; no classes.
    """
    _require_positive(
        samples=samples, features=features, outputs=outputs, test_samples=test_samples
    )
    matrix = _normal((outputs, features), seed, _MATRIX)

    def split(count: int, stream: int) -> Split:
        x = _normal((count, features), seed, stream)
        return Split(x.float(), (x @ matrix.T).float())

    return Dataset("gaussian", split(samples, _TRAIN), split(test_samples, _TEST))


def gaussian_inputs(shape: Sequence[int], samples: int = 1000, seed: int = 0) -> Tensor:
    """Inputs whose every component is drawn from N(0, 1) on its own, as mean-field theory assumes.

    Args:
        shape: shape of one sample, such as ``(784,)`` or ``(3, 32, 32)``.
        samples: number of samples.
        seed: seed of the draw; the global random state is left alone.

    Returns:
        A float32 tensor (samples, *shape).

    >>> gaussian_inputs((3, 32, 32), samples=4).shape
    torch.Size([4, 3, 32, 32])
    """
    _require_positive(samples=samples, **{f"shape[{i}]": size for i, size in enumerate(shape)})
    return _normal((samples, *shape), seed, _TRAIN).float()


def _normal(shape: tuple[int, ...], seed: int, stream: int) -> Tensor:
    generator = torch.Generator().manual_seed(3 * seed + stream)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def _require_positive(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise InputError(f"{name} must be at least 1, got {size}.")
