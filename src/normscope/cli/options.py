"""Options that several commands share, functions that declare one, and parsers of values."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from normscope.cli.app import OUTPUT
from normscope.cli.names import completion_of
from normscope.errors import InputError
from normscope.ranges import RANGE, number_range

SCALES = ("quick", "small", "medium", "paper")
OPTIMIZERS = ("sgd", "adam", "adamw", "rmsprop")
LARGEST_SEED = 2**62
DATA, TRAINING, COMPUTATION = "Model and data", "Training", "Computation"
"""Headings of options in the help of a command."""


def option(metavar: str, text: str, *flags: str, **more: Any) -> Any:
    """Return the declaration of an option with a value.

    Args:
        metavar: what the help has in place of the value.
        text: the help.
        *flags: such as --out and -o; by default the name of the argument.
        **more: as in `_settings`.
    """
    return typer.Option(*flags, metavar=metavar, help=text, **_settings(**more))


def argument(metavar: str, text: str, **more: Any) -> Any:
    """Return the declaration of an argument; see `option`."""
    return typer.Argument(metavar=metavar, help=text, **_settings(**more))


def flag(name: str, text: str, group: str | None = None) -> Any:
    """Return the declaration of an option without a value; its group is as in `_settings`."""
    return typer.Option(name, help=text, rich_help_panel=group)


def _settings(
    choices: tuple[str, ...] = (),
    kind: str | None = None,
    default: str = "",
    group: str | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Return the settings of a declaration.

    Args:
        choices: words that a shell completes.
        kind: of registered names that a shell completes.
        default: what the help shows as the default, if it is not the value.
        group: heading in the help; None for the one of the command's own options.
        **more: passed on to Typer.
    """
    if choices or kind:
        more["autocompletion"] = completion_of(*choices, kind=kind)
    if group is not None:
        more["rich_help_panel"] = group
    return {**more, "show_default": default} if default else more


def number(text: str, *flags: str, **more: Any) -> Any:
    """Return the declaration of an option that takes a number."""
    return option("NUMBER", text, *flags, **more)


def _check_seed(seed: int | None) -> int | None:
    """Raise an error for an invalid seed; a range in the help would be twenty digits long."""
    if seed is not None and not 0 <= seed <= LARGEST_SEED:
        raise typer.BadParameter(f"must be from 0 to {LARGEST_SEED}, got {seed}.")
    return seed


_MODEL = ("MODEL", "A registered model, package.module:factory or file.py:factory.")
_DATA = ("DATA", "A registered data set, package.module:function or file.py:function.")
_INPUT_DATA = (
    "DATA",
    "Data to take the moments of the inputs from: registered, or file.py:function.",
)
_LOSS = ("LOSS", "A registered loss, package.module:function or file.py:function.")
_LOSS_OF_KIND = (
    "LOSS",
    f"{_LOSS[1]} Not used by --kind fisher, which is always the matrix of half the squared error.",
)
_DEVICE = ("DEVICE", "Where to compute, such as cpu, cuda or cuda:1.")
_DEVICES = ("cpu", "cuda", "mps")
_BATCH_DEFAULT = "256, or all samples if there are fewer"

Model = Annotated[str, argument(*_MODEL, kind="models")]
OptionalModel = Annotated[
    str | None, argument(*_MODEL, kind="models", default="random cases and built-in models")
]
ModelOption = Annotated[str | None, option(*_MODEL, "--model", "-m", kind="models", hidden=True)]
Data = Annotated[str, option(*_DATA, "--data", "-d", kind="data", group=DATA)]
DataOption = Annotated[str | None, option(*_DATA, "--data", "-d", kind="data", group=DATA)]
InputData = Annotated[
    str | None,
    option(*_INPUT_DATA, "--data", "-d", kind="data", default="iid normal inputs", group=DATA),
]
Loss = Annotated[str, option(*_LOSS, kind="losses", group=DATA)]
LossOfKind = Annotated[str, option(*_LOSS_OF_KIND, kind="losses", group=DATA)]
LossOption = Annotated[
    str | None, option(*_LOSS, kind="losses", default="cross_entropy", group=DATA)
]
_NORM = "Normalization of a registered model; see normscope list norms."
Norm = Annotated[str | None, option("NORM", _NORM, kind="norms", default="batch", group=DATA)]
_OPTION = "An option of a registered model, such as width=100; may be repeated."
ModelOptions = Annotated[list[str] | None, option("NAME=VALUE", _OPTION, "--option", group=DATA)]
Momentum = Annotated[float, number("Heavy-ball momentum of SGD, below 1.", min=0, group=TRAINING)]
Nesterov = Annotated[bool, flag("--nesterov", "Nesterov's momentum, with SGD.", group=TRAINING)]
DECAY = "Weight decay of the optimizer."
_DECAY_DEFAULT = "0, or 0.01 with adamw"
WeightDecay = Annotated[float | None, number(DECAY, min=0, default=_DECAY_DEFAULT, group=TRAINING)]
_OPTIMIZER = "sgd, adam, adamw or rmsprop."
OptimizerName = Annotated[str, option("NAME", _OPTIMIZER, choices=OPTIMIZERS, group=TRAINING)]
BatchSize = Annotated[
    int | None, number("Samples in a batch.", min=1, default=_BATCH_DEFAULT, group=DATA)
]
Batches = Annotated[int, number("Batches to average over.", min=1, group=DATA)]
ClipNorm = Annotated[
    float | None,
    number("Clip gradients to this norm in the short runs.", default="not clipped", group=TRAINING),
]
Accumulate = Annotated[
    int, number("Accumulate this many batches for one step.", min=1, group=TRAINING)
]
EFFORTS = ("quick", "default", "thorough")
OBJECTIVES = ("fastest", "half_limit")
_EFFORT = "Cost: quick (about 1 range test of 100 steps), default (about 4) or thorough."
EffortName = Annotated[str, option("NAME", _EFFORT, choices=EFFORTS)]
_OBJECTIVE = "What is recommended: fastest (near the lowest loss after 50 steps) or half_limit."
_OBJECTIVE_DEFAULT = (
    "fastest; half_limit with --no-verify; with --effort quick a third of the limit or less (a "
    "tenth with momentum)"
)
Objective = Annotated[
    str | None, option("NAME", _OBJECTIVE, choices=OBJECTIVES, default=_OBJECTIVE_DEFAULT)
]
Explain = Annotated[bool, flag("--explain", "Print every number and its source.", group=OUTPUT)]
NoVerify = Annotated[
    bool, flag("--no-verify", "Predict the limit only, without the short runs that verify it.")
]
Device = Annotated[
    str | None, option(*_DEVICE, choices=_DEVICES, default="where the model is", group=DATA)
]
ExperimentDevice = Annotated[str, option(*_DEVICE, "--device", choices=_DEVICES)]
MODES = ("train", "frozen", "eval", "as_is")
_MODE = (
    "Statistics of the norm layers: train (the batch's, differentiated through, as training does), "
    "frozen (the batch's, as constants), eval (the running ones) or as_is (each layer by its own "
    "training flag)."
)
Mode = Annotated[str, option("MODE", _MODE, choices=MODES, group=DATA)]
_SEED = "Seed of weights, choice of samples, dropout and start vectors."
Seed = Annotated[int, number(_SEED, callback=_check_seed, group=DATA)]
FirstSeed = Annotated[int | None, number("First seed.", default="0", callback=_check_seed)]
_SCALE = (
    "quick (seconds), small (minutes, real data), medium (hours: the paper's steps on narrower "
    "networks) or paper (the paper's settings)."
)
Scale = Annotated[str, option("SCALE", _SCALE, choices=SCALES)]
_EMBEDDED_SCALE = "quick (seconds), small or medium (minutes) or paper (wider nets, more seeds)."
EmbeddedScale = Annotated[str, option("SCALE", _EMBEDDED_SCALE, "--scale", choices=SCALES)]
_SETTING = "Change a setting of the scale; may be repeated."
Settings = Annotated[list[str] | None, option("NAME=VALUE", _SETTING, "--set")]
_ENGINE = "local (this machine), ray or dask (a cluster)."
EngineName = Annotated[
    str, option("ENGINE", _ENGINE, "--engine", kind="engines", group=COMPUTATION)
]
Address = Annotated[
    str | None, option("ADDRESS", "Address of a running Ray or Dask cluster.", group=COMPUTATION)
]
Figure = Annotated[
    Path | None, option("FIGURE", "Draw a figure into this file.", "--out", "-o", group=OUTPUT)
]
Folder = Annotated[
    Path, option("FOLDER", "Write the files into this folder.", "--out", "-o", group=OUTPUT)
]
Json = Annotated[bool, flag("--json", "Print strict JSON on stdout.", group=OUTPUT)]


def named_values(texts: Iterable[str]) -> dict[str, Any]:
    """Return values by name, each a Python literal or else a string; of a name the last one.

    >>> named_values(["width=100", "data=mnist"])
    {'width': 100, 'data': 'mnist'}

    Raises:
        InputError: if there is no name or no equals sign.
    """
    return {name: _literal(value) for name, value in map(_halves, texts)}


def named_lists(texts: Iterable[str]) -> dict[str, list[Any]]:
    """Return names, each with one value or several.

    >>> named_lists(["gamma=0.5:1.5:3", "data=mnist", "norm=batch,none"])
    {'gamma': [0.5, 1.0, 1.5], 'data': ['mnist'], 'norm': ['batch', 'none']}

    Args:
        texts: each ``name=values``; the last of a name that is given twice counts.
    """
    return {name: value_list(values) for name, values in map(_halves, texts)}


def value_list(text: str) -> list[Any]:
    """Return one value, several with commas, or a range; brackets enclose one value.

    >>> value_list("1e-2:1:3:log"), value_list("batch,none"), value_list("(1, 8, 8)")
    ([0.01, 0.1, 1.0], ['batch', 'none'], [(1, 8, 8)])
    """
    if text[:1] in ("(", "[", "{"):
        parsed = _literal(text)
        # "(1,2),(3,4)" evaluates to a tuple of its parts, "(1, 2)" to itself
        several = isinstance(parsed, tuple) and _literal(f"[{text}]") == list(parsed)
        return list(parsed) if several else [parsed]
    if "," in text:
        return [_literal(part) for part in text.split(",") if part]
    if ":" in text and all(_is_number(part) for part in text.split(":")[:2]):
        return number_range(text)
    return [_literal(text)]


def numbers(text: str, name: str) -> float | list[float]:
    """Return a number, or a list of them: with commas, or as a range.

    >>> numbers("2", "gamma"), numbers("1,2", "gamma")
    (2.0, [1.0, 2.0])

    Args:
        text: what was given.
        name: of the option, for the error.

    Raises:
        InputError: if it is none of these.
    """
    if ":" in text:
        return number_range(text)
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError as error:
        raise InputError(
            f"{name} must be a number, numbers with commas, {RANGE}, got {text!r}."
        ) from error
    return found[0] if len(found) == 1 else found


def _halves(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not (name and sign):
        raise InputError(f"an option is name=value, got {text!r}.")
    return name, value


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
