"""Settings of one training of a phase diagram: defaults, checks, and the network and data."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import product
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor, nn

from normscope.data import Dataset, load
from normscope.errors import InputError, NormscopeError
from normscope.import_path import import_object
from normscope.models import build
from normscope.problem import Problem
from normscope.sweeps.custom import (
    MODEL_NORM,
    build_model,
    check_code,
    code_digest,
    describe_held_out,
    file_version,
    import_paths,
    load_custom_data,
    norm_scales,
)
from normscope.training import sgd
from normscope.training.loop import Loop, training_mode

POSITIVE = ("gamma", "learning_rate", "epochs")
NUMBERS = (*POSITIVE, "momentum", "weight_decay", "divergence_factor")
INTEGERS = ("batch_size", "samples", "test_samples")
CUSTOM = ("model", "data", "loss")  # may be import paths
STRINGS = (*CUSTOM, "norm", "device")
SCALED = ("gamma", "learning_rate")  # have no effect on whether a network can be built
_OPTIONAL = ("device", "code", "options")  # in a record's parameters only where they are set


@dataclass(frozen=True)
class Training:
    """The settings of one training.

    Args:
        model: a registered model, or an import path (``my_model.py:build``).
        data: a registered data set, or an import path.
        gamma: initial scale of the normalization.
        learning_rate: of SGD.
        loss: a registered loss, or an import path.
        epochs: passes over the training data; need not be an integer.
        batch_size: samples per step.
        momentum: heavy-ball momentum.
        weight_decay: factor of the parameters in the gradient.
        norm: the normalization; "own" keeps that of a user-defined model.
        samples: number of training samples, the first ones; None: all.
        test_samples: number of test samples; None: all.
        divergence_factor: multiple of the first loss that ends the training.
        every_epoch: evaluate after every epoch, not only at the end.
        device: where it is trained.
        code: digest of the files of user-defined parts; None: not checked.
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
    def names(cls) -> list[str]:
        """Names of the settings, without the options of the model."""
        return [field.name for field in fields(cls) if field.name != "options"]

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> Training:
        """Return a training from parameters by name; unknown names are options of the model."""
        known = cls.names()
        options = {name: value for name, value in parameters.items() if name not in known}
        given = {name: value for name, value in parameters.items() if name in known}
        if "norm" not in given and import_paths([given.get("model", cls.model)]):
            given["norm"] = MODEL_NORM
        return cls(**given, options=options)

    @property
    def import_paths(self) -> list[str]:
        """Import paths of the user-defined parts; empty if all are registered."""
        return import_paths([self.model, self.data, self.loss])

    @property
    def loss_function(self) -> Any:
        """The name of a registered loss, or the user's function."""
        return import_object(self.loss) if import_paths([self.loss]) else self.loss

    @property
    def data_set(self) -> Dataset:
        """The samples that are used; loaded once in each process."""
        return load_split(self.data, self._data_version, self.samples, self.test_samples)

    @property
    def _data_version(self) -> str:
        return file_version(self.data) if import_paths([self.data]) else ""

    @property
    def steps_per_epoch(self) -> int:
        """Full batches in the training data."""
        samples = len(self.data_set.train.x)
        if not 1 <= self.batch_size <= samples:
            held_out = "" if self.samples else describe_held_out(self.data, self._data_version)
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
        """Size of the network's output: the classes, or the components of a target."""
        given = (self.options or {}).get("outputs")
        return int(given or len(self.data_set.classes) or self.data_set.train.y[0].numel())

    def network(self, seed: int) -> nn.Module:
        """Return the network before training."""
        check_code(self.import_paths, self.code)
        options = self.options or {}
        if import_paths([self.model]):
            return build_model(self.model, seed, self.norm, self.gamma, options, self.names())
        shape = tuple(self.data_set.train.x.shape[1:])
        options = {"input_shape": shape, "outputs": self.outputs, **options}
        return build(self.model, norm=self.norm, seed=seed, gamma=self.gamma, **options)

    def problem(self, network: nn.Module) -> Problem:
        """Return the training problem of a network."""
        return Problem(network, self.loss_function, tuple(self.data_set.train))

    def loop(self, problem: Problem, seed: int) -> Loop:
        """Return the training loop of a problem."""
        optimizer = sgd(self.learning_rate, self.momentum, weight_decay=self.weight_decay)
        return Loop(problem, optimizer, self.batch_size, seed, True, self.divergence_factor)


@functools.lru_cache(maxsize=4)
def load_split(data: str, version: str, samples: int | None, test_samples: int | None) -> Dataset:
    """Load the first samples of a data set; large ones are memory-mapped and not copied.

    Args:
        data: a registered data set, or an import path.
        version: of a user's file, which may be edited while this process lives; "" if registered.
        samples: number of training samples; None: all.
        test_samples: number of test samples; None: all.
    """
    whole = load_custom_data(data, version) if version else load(data)
    for name, wanted, split in (
        ("samples", samples, whole.train),
        ("test_samples", test_samples, whole.test),
    ):
        if wanted is not None and not 1 <= wanted <= len(split.x):
            raise InputError(
                f"{name} must be from 1 to {len(split.x)} of {data}, got "
                f"{wanted}{describe_held_out(data, version)}."
            )
    train = type(whole.train)(*(each[:samples] for each in whole.train))
    test = type(whole.test)(*(each[:test_samples] for each in whole.test))
    return Dataset(whole.name, train, test, whole.classes)


def complete_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return all settings of a training by name, with defaults and options of the model."""
    training = Training.of(settings)
    code = training.code or code_digest(training.import_paths)
    named = {name: value for name, value in vars(training).items() if name not in _OPTIONAL}
    if training.device != Training.device:
        named["device"] = training.device
    if code is not None:
        named["code"] = code
    return {**named, **(training.options or {})}


# Checks, made before anything is computed or stored


def check_axes(axes: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Check the values of the settings that vary; convert numbers to float where they are real.

    Args:
        axes: the values by name.

    Returns:
        The values, in which 1 and 1.0 are the same.

    Raises:
        InputError: if values are not a list, are invalid, or are import paths.
    """
    checked = {
        name: [_check_value(name, each) for each in value_list(name, values)]
        for name, values in axes.items()
    }
    for name in CUSTOM:
        if import_paths(checked.get(name, [])):
            raise InputError(
                f"a user-defined {name} cannot vary within one sweep, got {axes[name]}; run one "
                "sweep for each."
            )
    return checked


def check_settings(settings: Mapping[str, Any]) -> None:
    """Raise for settings of the wrong type or out of range, each by itself."""
    for name, value in settings.items():
        _check_value(name, value)


def check_buildable(
    axes: Mapping[str, Sequence[Any]], settings: Mapping[str, Any], seed: int
) -> None:
    """Raise if a combination of settings cannot be trained.

    Args:
        axes: the values of the settings that vary, checked.
        settings: the others.
        seed: of the weights.

    Raises:
        InputError: if building the network or the training fails.
    """
    others = {name: values for name, values in axes.items() if name not in SCALED}
    first = {name: values[0] for name, values in axes.items()}
    for values in product(*others.values()):
        training = Training.of({**settings, **first, **dict(zip(others, values, strict=True))})
        try:
            _build(training, seed, axes.get("gamma", [training.gamma]))
        except NormscopeError:
            raise
        except (TypeError, ValueError, RuntimeError, AttributeError) as error:
            text = str(error).partition("\n")[0]
            raise InputError(
                f"no {training.model} can be made of these settings "
                f"({type(error).__name__}: {text}); check the model's options."
            ) from error


def value_list(name: str, values: Any) -> list[Any]:
    """Return several values as a list.

    Raises:
        InputError: if it is one value, or a string.
    """
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise InputError(f"{name} needs values in a list, got {values!r}.")
    return list(values)


def _build(training: Training, seed: int, gammas: Sequence[float]) -> None:
    """Build everything that a training needs, up to its first step."""
    network = training.network(seed).to(training.device)
    if import_paths([training.model]) and set(gammas) != {1.0} and not norm_scales(network):
        raise InputError(
            f"{training.model} has no norm layer with a scale that gamma could set; ask for "
            "gamma=1 alone, or for a normalization, such as norm=batch."
        )
    problem = training.problem(network)
    _ = training.steps
    loop = training.loop(problem, seed)
    if training.import_paths:  # check that user-defined parts fit, and can be built again
        training.network(seed)
        with torch.no_grad(), training_mode(network):
            batch = loop.batches.draw()
            _check_labels(training, problem.output_on(batch))
            problem.loss_on(batch)


def _check_labels(training: Training, output: Tensor) -> None:
    """Raise for labels without an output; a user-defined loss may accept or ignore them."""
    labels = torch.cat([training.data_set.train.y, training.data_set.test.y])
    if import_paths([training.loss]) or labels.is_floating_point() or output.dim() != 2:
        return
    wrong = labels[(labels < 0) | (labels >= output.shape[1])]
    if len(wrong):
        raise InputError(
            f"{training.data} returns labels, such as {int(wrong[0])}, that are not from 0 to "
            f"{output.shape[1] - 1}, in {len(wrong)} of {len(labels)} samples; number the classes "
            "from 0, leave out samples without one, and give the model an output for each."
        )


def _check_value(name: str, value: Any) -> Any:
    if name == "seed":
        raise InputError("the seeds of a sweep are given by seeds (--seeds), not as a setting.")
    if name in NUMBERS:
        return _check_number(name, value)
    if (
        name in INTEGERS
        and not _is(value, Integral)
        and (value is not None or name == "batch_size")
    ):
        raise InputError(f"{name} must be an integer, got {value!r}.")
    if name == "every_epoch" and not isinstance(value, bool):
        raise InputError(f"every_epoch must be True or False, got {value!r}.")
    if name in STRINGS and not isinstance(value, str):
        raise InputError(f"{name} must be a name, got {value!r}.")
    return value


def _check_number(name: str, value: Any) -> float:
    if not _is(value, Real) or not math.isfinite(value):
        raise InputError(f"{name} must be a finite number, got {value!r}.")
    if name in POSITIVE and not value > 0:
        raise InputError(f"{name} must be above 0, got {value!r}.")
    return float(value)


def _is(value: Any, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)
