"""The settings of one training of a phase diagram, and the samples and network they stand for."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from torch import nn

from normscope.data import Dataset, load
from normscope.errors import InputError
from normscope.import_path import import_object
from normscope.models import build
from normscope.sweeps.own import (
    OWN_NORM,
    check_source,
    own_network,
    own_places,
    source_version,
)
from normscope.sweeps.own_data import held_out_words, own_data

__all__ = ["Training", "split_of"]


@dataclass(frozen=True)
class Training:
    """The settings of one training.

    Args:
        model: a registered model, or the place of a user's own (``my_model.py:build``).
        data: a registered data set, or the place of a user's own.
        gamma: initial scale of the normalization.
        learning_rate: of SGD.
        loss: a registered loss, or the place of a user's own.
        epochs: passes over the training data; need not be whole.
        batch_size: samples per step.
        momentum: heavy-ball momentum.
        weight_decay: factor of the parameters in the gradient.
        norm: the normalization; "own" for that of a user's own model.
        samples: how many of the training samples are used, the first ones; None: all.
        test_samples: how many of the test samples; None: all.
        divergence_factor: multiple of the first loss that ends the training at once.
        every_epoch: evaluate after every epoch, not only at the end.
        device: where it is trained.
        code: digest of the files that a user's own parts stand in; None: not checked.
        options: of the model, such as its width.
    """

    model: str = "fully_connected"
    data: str = "digits"
    gamma: float = 1.0
    learning_rate: float = 0.1
    loss: str = "squared_error"
    epochs: float = 5
    batch_size: int = 128
    momentum: float = 0.9
    weight_decay: float = 0.0
    norm: str = "batch"
    samples: int | None = None
    test_samples: int | None = None
    divergence_factor: float = 1e3
    every_epoch: bool = False
    device: str = "cpu"
    code: str | None = None
    options: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> Training:
        """From parameters by name; those that are none of the settings are the model's options."""
        own = {field.name for field in fields(cls)} - {"options"}
        options = {name: value for name, value in parameters.items() if name not in own}
        given = {name: value for name, value in parameters.items() if name in own}
        if "norm" not in given and own_places([given.get("model", cls.model)]):
            given["norm"] = OWN_NORM
        return cls(**given, options=options)

    @property
    def places(self) -> list[str]:
        """Where the user's own parts are; empty if all are registered."""
        return own_places([self.model, self.data, self.loss])

    @property
    def loss_function(self) -> Any:
        """The loss, by its name or as the user's function."""
        return import_object(self.loss) if own_places([self.loss]) else self.loss

    @property
    def data_set(self) -> Dataset:
        """The samples that are used; loaded once in each process."""
        return split_of(self.data, self._data_version, self.samples, self.test_samples)

    @property
    def _data_version(self) -> str:
        return source_version(self.data) if own_places([self.data]) else ""

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches in the training data."""
        samples = len(self.data_set.train.x)
        if not 1 <= self.batch_size <= samples:
            held_out = "" if self.samples else held_out_words(self.data, self._data_version)
            raise InputError(
                f"batch_size must be from 1 to the {samples} samples, got "
                f"{self.batch_size}{held_out}."
            )
        return samples // self.batch_size

    @property
    def steps(self) -> int:
        """Updates of the whole training."""
        if not 0 < self.epochs < math.inf:
            raise InputError(f"epochs must be above 0, got {self.epochs}.")
        return max(1, round(self.epochs * self.steps_per_epoch))

    @property
    def outputs(self) -> int:
        """Of the network: the classes, or the numbers that it is to learn."""
        own = (self.options or {}).get("outputs")
        return int(own or len(self.data_set.classes) or self.data_set.train.y[0].numel())

    def network(self, seed: int) -> nn.Module:
        """The network before training."""
        check_source(self.places, self.code)
        if own_places([self.model]):
            known = [field.name for field in fields(self) if field.name != "options"]
            return own_network(self.model, seed, self.norm, self.gamma, self.options or {}, known)
        shape = tuple(self.data_set.train.x.shape[1:])
        sizes = {"input_shape": shape, "outputs": self.outputs}
        options = {**sizes, **(self.options or {})}
        return build(self.model, norm=self.norm, seed=seed, gamma=self.gamma, **options)


@functools.lru_cache(maxsize=4)
def split_of(data: str, version: str, samples: int | None, test_samples: int | None) -> Dataset:
    """The first samples of a data set; large ones are mapped into memory and not copied.

    Args:
        data: a registered data set, or the place of a user's own.
        version: of a user's own, which may be edited while this process lives.
        samples: how many of the training samples; None: all.
        test_samples: how many of the test samples; None: all.
    """
    whole = own_data(data, version) if version else load(data)
    for name, wanted, split in (
        ("samples", samples, whole.train),
        ("test_samples", test_samples, whole.test),
    ):
        if wanted is not None and not 1 <= wanted <= len(split.x):
            raise InputError(
                f"{name} must be from 1 to {len(split.x)} of {data}, got "
                f"{wanted}{held_out_words(data, version)}."
            )
    train = type(whole.train)(*(each[:samples] for each in whole.train))
    test = type(whole.test)(*(each[:test_samples] for each in whole.test))
    return Dataset(whole.name, train, test, whole.classes)
