"""Models, data, losses and devices by the names given on the command line.

A source is a registered name or an import path (``package.module:function`` or
``path/to/file.py:function``). Names are checked before torch is loaded.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from normscope.cli.names import KINDS, check_name
from normscope.cli.options import named_values
from normscope.cli.render import print_to_stderr, warnings_as_notes
from normscope.errors import ArgumentTypeError, InputError, UnknownNameError
from normscope.import_path import call_user_code, import_object, is_import_path, load_object
from normscope.progress_bar import show_progress
from normscope.registry import check_choice, unknown_name

if TYPE_CHECKING:
    from torch import nn

T = TypeVar("T")

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_IMPORTS = (ast.Import, ast.ImportFrom)
# may define names that are not in the source
_OPEN = {"globals", "locals", "vars", "setattr", "exec", "eval", "modules", "__getattr__", "*"}


class Source(NamedTuple):
    """Model, data and loss by the names that the user gave: registered, or import paths."""

    model: str
    data: str
    loss: str

    def __str__(self) -> str:
        return f"{self.model} with {self.loss} on {self.data}"


def check_import_path(path: str) -> None:
    """Raise an error if a file is missing, is not Python, or does not define a name.

    Whatever cannot be decided from the source is left to the import.

    Args:
        path: ``path/to/file.py:name``; modules by name are left to their import.

    Raises:
        InputError: if there is no such file, or it cannot be parsed.
        UnknownNameError: if it does not define the name.
    """
    home, _, name = path.rpartition(":")
    if not home.endswith(".py") or not name:
        return
    file = Path(home)
    if not file.is_file():
        raise InputError(f"there is no file {file}.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the import shows them
            tree = ast.parse(file.read_bytes())
    except SyntaxError as error:
        if error.lineno is None:  # null bytes
            return
        raise InputError(
            f"{file} failed with {type(error).__name__}: {error.msg} ({file.name}, line "
            f"{error.lineno})."
        ) from error
    except (ValueError, RecursionError, MemoryError):  # null bytes; deep nesting
        return
    bound = set(_bound_names(tree))
    if name in bound or not _OPEN.isdisjoint(bound) or any(map(_is_open, ast.walk(tree))):
        return
    raise unknown_name("name", name, dict.fromkeys(_public_names(tree.body)), f"in {home}")


def _bound_names(tree: ast.AST) -> Iterator[str]:
    """Yield names that are bound anywhere in the file, inside functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr  # perhaps of a module
        elif isinstance(node, _DEFINITIONS):
            yield node.name
        elif isinstance(node, _IMPORTS):
            yield from (each.asname or each.name.partition(".")[0] for each in node.names)
        elif isinstance(node, (ast.MatchAs, ast.MatchStar)) and node.name:
            yield node.name
        elif isinstance(node, ast.MatchMapping) and node.rest:
            yield node.rest


def _is_open(node: ast.AST) -> bool:
    """Return whether a node may define names that are not in the source."""
    if isinstance(node, ast.Name):
        return node.id in _OPEN
    if not isinstance(node, ast.Attribute):
        return False
    of_sys = isinstance(node.value, ast.Name) and node.value.id == "sys"
    return node.attr == "__dict__" or (node.attr == "modules" and of_sys)  # a model has modules too


def _public_names(body: list[ast.stmt]) -> Iterator[str]:
    """Yield the public names that are defined at the top level."""
    for statement in body:
        if isinstance(statement, _DEFINITIONS):
            found = [statement.name]
        elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
            found = list(_bound_names(statement))
        else:
            continue
        yield from (each for each in found if not each.startswith("_"))


_EXAMPLES = {"models": "build", "data": "samples", "losses": "loss"}


def check_names(
    model: str, data: str | None = None, loss: str | None = None, *norms: str | None
) -> None:
    """Raise an error for names that are not registered or defined, before torch is loaded.

    Args:
        model: a registered name, or an import path; its file is parsed, not run.
        data: likewise.
        loss: likewise.
        *norms: kinds of normalization.
    """
    for kind, source in {"models": model, "data": data, "losses": loss}.items():
        example = _EXAMPLES[kind]
        if source is None:
            continue
        if is_import_path(source, example):
            check_import_path(source)
        else:
            custom = f"for your own give file.py:{example} or package.module:{example}"
            check_name(kind, source, hint=custom)
    for norm in norms:
        if norm is not None:
            check_name("norms", norm)


def check_kind(kind: str, *sources: str) -> None:
    """Raise an error for an unknown kind of curvature, before data is loaded.

    Args:
        kind: what was given.
        *sources: of model, data and loss; files of the user among them may register the kind, so
            they are imported if it is not one of normscope's.

    Raises:
        UnknownNameError: if no such kind is registered.
    """
    if kind not in KINDS["kinds"].names:
        for source in sources:
            if ":" in source:
                import_object(source)
    check_name("kinds", kind)


def load_data(source: str, seed: int = 0) -> Any:
    """Return the training split of a registered data set, or what a user's function returns.

    Args:
        source: such as ``digits`` or ``my_data.py:batches``.
        seed: set before the user's function is called.
    """
    if is_import_path(source, "samples"):
        return load_object(source, seed)
    from normscope.data import load

    _note_download(source)
    return load(source).train


def _note_download(name: str) -> None:
    """Print a note if a data set will be downloaded."""
    from normscope.data import DATASETS, parts, path
    from normscope.data.collection import download_root

    if name in DATASETS and parts(name) and path(name) is None:
        print_to_stderr(
            f"{name} is not here: downloading it to {download_root() / name}; see normscope data "
            "fetch."
        )


def load_model(
    source: str,
    data: Any = None,
    norm: str | None = None,
    options: Sequence[str] = (),
    seed: int = 0,
    device: str | None = None,
) -> nn.Module:
    """Return a registered model, or the module at an import path (or what a factory there makes).

    Args:
        source: such as ``vgg`` or ``my_model.py:build``.
        data: the pair (inputs, targets) that a registered model must fit.
        norm: normalization of a registered model.
        options: further options of a registered model, each ``name=value``.
        seed: of a registered model's weights; torch's seed before a user's factory is called.
        device: to move it to; None leaves it where it was made.

    Raises:
        InputError: if options are given that a user's factory cannot take.
        ArgumentTypeError: if the factory makes something else.
    """
    if is_import_path(source, "build"):
        _reject_options(source, norm, options)
        model = _user_model(source, seed)
    else:
        model = _registered_model(source, data, norm, options, seed)
    if device is None:
        return model
    check_device(device)
    return model.to(device)


def load_loss(source: str) -> Any:
    """Return a registered loss, or the function ``loss(output, target)`` at an import path."""
    from normscope.problem.loss import LOSSES

    return import_object(source) if is_import_path(source, "loss") else LOSSES[source]


def _reject_options(source: str, norm: str | None, options: Sequence[str]) -> None:
    """Raise an error for options of registered models, given with a user's model."""
    own = f"is for registered models, and {source} is your own; let it return the model"
    if norm is not None:
        remedy = f"with that normalization, or give normscope compare --norms {norm}."
        raise InputError(f"--norm {own} {remedy}")
    if options:
        raise InputError(f"--option {own} with them.")


def _user_model(source: str, seed: int) -> nn.Module:
    from torch import nn

    model = load_object(source, seed)
    if not isinstance(model, nn.Module):
        raise ArgumentTypeError(
            f"{source} must be or return a torch.nn.Module, got {type(model).__name__}."
        )
    return model


def _registered_model(
    name: str, data: Any, norm: str | None, options: Sequence[str], seed: int
) -> nn.Module:
    from normscope.models import MODELS, build
    from normscope.problem.model_call import check_pair

    fitting: dict[str, Any] = {}
    is_pair = isinstance(data, tuple) and len(data) == 2
    if is_pair and not any(isinstance(part, (tuple, list, Mapping)) for part in data):
        check_pair(data)
        inputs, targets = data
        known = MODELS[name].__signature__.parameters
        labels = not targets.is_floating_point()
        outputs = int(targets.max()) + 1 if labels else targets[0].numel()
        sizes = {"input_shape": tuple(inputs.shape[1:]), "outputs": outputs}
        fitting = {key: value for key, value in sizes.items() if key in known}
    given = named_values(options)
    for option in given.keys() & {"norm", "seed"}:
        raise InputError(
            f"{option} is an option of the command itself: use --{option} {given[option]}."
        )
    return build(name, norm="batch" if norm is None else norm, seed=seed, **{**fitting, **given})


def check_device(device: str) -> None:
    """Raise an error for a device that this machine does not have.

    Args:
        device: such as cpu or cuda:1.

    Raises:
        UnknownNameError: if it is missing.
    """
    if device == "cpu":
        return
    import torch

    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or not torch.accelerator.is_available():
        raise UnknownNameError(
            f"unknown device of this machine {device!r}: this machine has only cpu."
        )
    name, count = accelerator.type, torch.accelerator.device_count()
    known = ["cpu", name, *(f"{name}:{i}" for i in range(count))]
    check_choice("device of this machine", device, known)


def optimizer_factory(
    name: str | None,
    lr: float | None,
    momentum: float = 0.0,
    weight_decay: float | None = None,
) -> Any:
    """Return a factory of a torch optimizer; None without a name.

    Args:
        name: one of `normscope.cli.options.OPTIMIZERS`.
        lr: learning rate; None for the optimizer's default.
        momentum: of SGD.
        weight_decay: None for the optimizer's default.
    """
    if name is None:
        return None
    from torch.optim import SGD, Adam, AdamW, RMSprop

    known: dict[str, Any] = {"sgd": SGD, "adam": Adam, "adamw": AdamW, "rmsprop": RMSprop}
    options = {"lr": lr, "weight_decay": weight_decay, "momentum": momentum or None}
    given = {option: value for option, value in options.items() if value is not None}
    return partial(known[name], **given)


def call_with_progress(
    title: str, source: Source, function: Callable[..., T], *arguments: Any, **options: Any
) -> T:
    """Call a function of the library that runs user code; show its progress and its warnings.

    Args:
        title: of the progress bar.
        source: what the user named, for the errors of user code.
        function: takes ``progress``.
        *arguments: of the function.
        **options: of the function.
    """
    with show_progress(title) as show, warnings_as_notes():
        return call_user_code(str(source), partial(function, *arguments, progress=show, **options))


def device_setting(work: str, settings: Container[str], device: str) -> dict[str, str]:
    """Return the setting that moves an experiment to a device; none for the CPU, the default.

    Args:
        work: name of the experiment.
        settings: names of its settings.
        device: where to compute.

    Raises:
        InputError: if the experiment runs on the CPU only.

    >>> device_setting("tour", ["seed", "width"], "cpu")
    {}
    """
    check_device(device)
    if device == "cpu":
        return {}
    if "device" not in settings:
        raise InputError(
            f"{work} computes on the cpu alone and cannot be moved to {device}; leave --device out."
        )
    return {"device": device}
