"""What every data set is once loaded: two splits of tensors, the class names, its own name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor


class Split(NamedTuple):
    """Samples and their targets; unpacks as ``x, y``."""

    x: Tensor
    y: Tensor


@dataclass(frozen=True, repr=False, eq=False)
class Dataset:
    """A loaded data set.

    Args:
        name: the name it is loaded by.
        train: training samples; images are float32 (samples, channels, height, width), labels
            int64 (samples,).
        test: test samples, in the same form.
        classes: the names of the classes by label; empty for a regression.
    """

    name: str
    train: Split
    test: Split
    classes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        train, test = tuple(self.train.x.shape), tuple(self.test.x.shape)
        return f"Dataset({self.name}: train {train}, test {test}, {len(self.classes)} classes)"
