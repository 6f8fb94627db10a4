"""Settings of trainings, refused in one sentence before anything is computed or stored."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from normscope.data import Dataset
from normscope.errors import InputError, NormscopeError
from normscope.problem.problem import Problem
from normscope.sweeps.own import own_places, scales
from normscope.sweeps.training_settings import Training
from normscope.training import sgd
from normscope.training.loop import Loop, training_mode

__all__ = ["check_buildable", "check_settings", "checked_axes", "value_list"]

ABOVE_ZERO = ("gamma", "learning_rate", "epochs")
NUMBERS = (*ABOVE_ZERO, "momentum", "weight_decay", "divergence_factor")
COUNTS = ("batch_size", "samples", "test_samples")
PLACES = ("model", "data", "loss")  # may be a user's own
TEXTS = (*PLACES, "norm", "device")
SCALED = ("gamma", "learning_rate")  # do not decide whether a network can be built


def checked_axes(axes: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    """The values of the settings that vary; numbers are floats where the setting is one.

    Args:
        axes: the values by name.

    Returns:
        The same, so that 1 and 1.0 are one value and one cell.
    """
    checked = {name: [_checked(name, each) for each in values] for name, values in axes.items()}
    for name in PLACES:
        if own_places(checked.get(name, [])):
            raise InputError(
                f"a {name} of your own cannot vary within one sweep, got {axes[name]}; run one "
                "sweep for each."
            )
    return checked


def check_settings(settings: Mapping[str, Any]) -> None:
    """Refuse settings that are of the wrong kind, each by itself."""
    for name, value in settings.items():
        _checked(name, value)


def check_buildable(
    axes: Mapping[str, Sequence[Any]], settings: Mapping[str, Any], seed: int
) -> None:
    """Refuse combinations of settings of which no training can be made.

    Args:
        axes: the values of the settings that vary, checked.
        settings: the others.
        seed: of the weights.

    Raises:
        InputError: if something other than an error of normscope stops it.
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
    """Several values as a list.

    Raises:
        InputError: if it is one value, or a text.
    """
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise InputError(f"{name} needs values in a list, got {values!r}.")
    return list(values)


def _build(training: Training, seed: int, gammas: Sequence[float]) -> None:
    """All that a training needs, up to its first step."""
    network, data = training.network(seed).to(training.device), training.data_set
    if own_places([training.model]) and set(gammas) != {1.0} and not scales(network):
        raise InputError(
            f"{training.model} has no norm layer with a scale that gamma could set; ask for "
            "gamma=1 alone, or for a normalization, such as norm=batch."
        )
    problem = Problem(network, training.loss_function, tuple(data.train))
    optimizer = sgd(training.learning_rate, training.momentum, weight_decay=training.weight_decay)
    _ = training.steps
    loop = Loop(problem, optimizer, training.batch_size, seed, True, training.divergence_factor)
    if training.places:  # nobody has tried whether they fit each other, and can be made again
        training.network(seed)
        with torch.no_grad(), training_mode(network):
            batch = loop.batches.draw()
            _check_labels(training, data, problem.output_on(batch))
            problem.loss_on(batch)


def _check_labels(training: Training, data: Dataset, output: Tensor) -> None:
    """Refuse labels that no output stands for; the user's own loss may take or ignore them."""
    labels = torch.cat([data.train.y, data.test.y])
    if own_places([training.loss]) or labels.is_floating_point() or output.dim() != 2:
        return
    wrong = labels[(labels < 0) | (labels >= output.shape[1])]
    if len(wrong):
        raise InputError(
            f"{training.data} returns labels, such as {int(wrong[0])}, that are not from 0 to "
            f"{output.shape[1] - 1}, in {len(wrong)} of {len(labels)} samples; number the classes "
            "from 0, leave out samples without one, and give the model an output for each."
        )


def _checked(name: str, value: Any) -> Any:
    if name == "seed":
        raise InputError("the seeds of a sweep are given by seeds (--seeds), not as a setting.")
    if name in NUMBERS:
        return _number(name, value)
    if name in COUNTS:
        optional = name != "batch_size"
        if not (optional and value is None) and not _is(value, Integral):
            raise InputError(f"{name} must be a whole number, got {value!r}.")
    if name == "every_epoch" and not isinstance(value, bool):
        raise InputError(f"every_epoch must be True or False, got {value!r}.")
    if name in TEXTS:
        _check_text(name, value)
    return value


def _number(name: str, value: Any) -> float:
    if not _is(value, Real) or not math.isfinite(value):
        raise InputError(f"{name} must be a finite number, got {value!r}.")
    if name in ABOVE_ZERO and not value > 0:
        raise InputError(f"{name} must be above 0, got {value!r}.")
    return float(value)


def _is(value: Any, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _check_text(name: str, value: Any) -> None:
    if not isinstance(value, str):
        raise InputError(f"{name} must be a name, got {value!r}.")
