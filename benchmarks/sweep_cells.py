"""What the workers of the sweep benchmark compute: trainings on noise of the real data's size."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import xarray as xr

from normscope.data import DATASETS, Dataset, Split
from normscope.sweeps import Cell, training_cell
from normscope.sweeps.cell import train_unit

SAMPLES, TEST_SAMPLES = 6400, 512


def _noise(name: str, shape: tuple[int, ...]) -> Dataset:
    def split(count: int, seed: int) -> Split:
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(count, *shape, generator=generator)
        return Split(x, torch.randint(10, (count,), generator=generator))

    return Dataset(name, split(SAMPLES, 0), split(TEST_SAMPLES, 1), tuple("0123456789"))


@DATASETS.register
def noise_digits() -> Dataset:
    """Noise of the size of MNIST's images."""
    return _noise("noise_digits", (1, 28, 28))


@DATASETS.register
def noise_pictures() -> Dataset:
    """Noise of the size of CIFAR-10's images."""
    return _noise("noise_pictures", (3, 32, 32))


def train_separately(cells: Sequence[Cell]) -> list[xr.Dataset]:
    return [training_cell(**cell.parameters, seed=cell.seed) for cell in cells]


def train_grouped(cells: Sequence[Cell]) -> list[xr.Dataset]:
    return train_unit(cells)


def do_nothing(cells: Sequence[Cell]) -> list[xr.Dataset]:
    return [xr.Dataset({"value": 0.0}) for _ in cells]
