"""What a command works on: registered names, or a user's own functions by their place.

A place is ``package.module:function`` or ``path/to/file.py:function``. Nothing heavy is imported
until something is loaded.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from normscope.cli.values import named_values
from normscope.errors import ArgumentTypeError, InputError, NormscopeError
from normscope.registry import unknown_name

if TYPE_CHECKING:
    from torch import nn

DEFAULT_BATCH_SIZE = 256

T = TypeVar("T")


def found_at(place: str) -> Any:
    """The object at a place, which is imported.

    Args:
        place: ``package.module:name`` or ``path/to/file.py:name``; the working folder is searched
            too.

    Returns:
        The object.

    Raises:
        InputError: if there is no such module or file, or its import fails.
        UnknownNameError: if it has no such name.

    >>> found_at("math:floor")(2.5)
    2
    """
    home, _, name = place.rpartition(":")
    if not home or not name:
        raise InputError(f"expected package.module:name or path/to/file.py:name, got {place!r}.")
    module = _from_file(Path(home)) if home.endswith(".py") else _from_path(home)
    if not hasattr(module, name):
        raise unknown_name(f"name in {home}", name, [n for n in vars(module) if n[0] != "_"])
    return getattr(module, name)


def _refuse_bare_file(source: str, example: str) -> None:
    if source.endswith(".py"):
        raise InputError(
            f"{source} names a file; say which function in it makes what is wanted, such as "
            f"{source}:{example}."
        )


def load_data(source: str, seed: int = 0) -> Any:
    """Data by the name of a registered set (its training split) or by the place of a function.

    Args:
        source: such as ``digits`` or ``my_data.py:batches``.
        seed: set before the user's function is called.

    Returns:
        A pair (inputs, targets), a list of batches or a DataLoader; whatever the function returns.
    """
    _refuse_bare_file(source, "samples")
    if ":" not in source:
        from normscope.data import load

        return load(source).train
    return _made(source, seed)


def load_model(
    source: str,
    data: Any = None,
    norm: str | None = None,
    options: Sequence[str] = (),
    seed: int = 0,
) -> nn.Module:
    """A model by the name of a registered one or by the place of a factory or of a module.

    Args:
        source: such as ``vgg`` or ``my_model.py:build``.
        data: the pair (inputs, targets) that a registered model is to fit.
        norm: normalization of a registered model.
        options: further options of a registered model, each ``name=value``.
        seed: of a registered model's weights; torch's seed before a user's factory is called.

    Returns:
        The model.

    Raises:
        InputError: if options are given that a user's factory cannot take.
        ArgumentTypeError: if the factory makes something else.
    """
    from torch import nn

    _refuse_bare_file(source, "build")
    if ":" not in source:
        return _registered_model(source, data, norm, options, seed)
    if norm is not None or options:
        raise InputError(f"norm and options are for registered models, and {source!r} is a place.")
    model = _made(source, seed)
    if not isinstance(model, nn.Module):
        raise ArgumentTypeError(
            f"{source} must be or return a torch.nn.Module, got {type(model).__name__}."
        )
    return model


def load_loss(source: str) -> Any:
    """A loss by its registered name or by the place of a function ``loss(output, target)``."""
    from normscope.losses import LOSSES

    return found_at(source) if ":" in source else LOSSES[source]


def chosen_batches(data: Any, batch_size: int | None, batches: int, seed: int = 0) -> list[Any]:
    """Some batches of the data, the same for the same seed.

    Args:
        data: a pair (inputs, targets), of which samples are drawn without replacement; or an
            iterable of batches, of which the first are taken as they are.
        batch_size: samples in a batch; None for 256, or all if there are fewer.
        batches: how many batches.
        seed: of the draw.

    Returns:
        A list of batches.

    Raises:
        InputError: if there are too few samples or batches, or ``batch_size`` does not apply.
        ArgumentTypeError: if the data is neither.
    """
    import torch

    from normscope.curvature.batch import check_pair, pieces, rows

    if not (isinstance(data, tuple) and len(data) == 2):
        return _first_batches(data, batch_size, batches)
    check_pair(data)
    samples = len(data[0])
    size = min(DEFAULT_BATCH_SIZE, samples // batches) if batch_size is None else batch_size
    if size < 1 or size * batches > samples:
        raise InputError(
            f"{batches} batches of {max(size, 1)} need more than the {samples} samples there are; "
            "ask for fewer or smaller ones."
        )
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(samples, generator=generator)[: size * batches]
    return pieces(rows(data, order), size)


def step_batch_size(samples: Any, batch_size: int | None) -> int | None:
    """The batch size to train a source of data with.

    Args:
        samples: as `load_data` returns it.
        batch_size: what the user asked for.

    Returns:
        That; or 256 for one pair of more samples; None for batches of their own.

    Raises:
        InputError: if the data has batches of its own and a size is asked for.
    """
    if isinstance(samples, tuple):
        return min(DEFAULT_BATCH_SIZE, len(samples[0])) if batch_size is None else batch_size
    if batch_size is not None:
        raise InputError(
            "the data comes in batches of its own; leave the batch size out, or return one pair "
            "(inputs, targets) of all samples."
        )
    return None


def _first_batches(data: Any, batch_size: int | None, batches: int) -> list[Any]:
    if not isinstance(data, Iterable) or isinstance(data, str):
        raise ArgumentTypeError(
            "the data must be a pair (inputs, targets), a list of batches or a DataLoader, got "
            f"{type(data).__name__}."
        )
    if batch_size is not None:
        raise InputError(
            "the data comes in batches of its own; leave the batch size out, or return one pair "
            "(inputs, targets) of all samples."
        )
    taken = list(islice(data, batches))
    if len(taken) < batches:
        raise InputError(f"the data has {len(taken)} batches, fewer than the {batches} asked for.")
    return taken


def _registered_model(
    name: str, data: Any, norm: str | None, options: Sequence[str], seed: int
) -> nn.Module:
    from normscope.models import MODELS, build

    fitting: dict[str, Any] = {}
    if isinstance(data, tuple) and len(data) == 2:
        inputs, targets = data
        known = MODELS[name].__signature__.parameters
        labels = not targets.is_floating_point()
        outputs = int(targets.max()) + 1 if labels else targets[0].numel()
        sizes = {"input_shape": tuple(inputs.shape[1:]), "outputs": outputs}
        fitting = {key: value for key, value in sizes.items() if key in known}
    given = _model_options(options)
    return build(name, norm="batch" if norm is None else norm, seed=seed, **{**fitting, **given})


def _model_options(texts: Sequence[str]) -> dict[str, Any]:
    """Options of a registered model, without those that the command has itself."""
    given = named_values(texts)
    for name in ("norm", "seed"):
        if name in given:
            raise InputError(
                f"{name} is an option of the command itself: use --{name} {given[name]}."
            )
    return given


def _made(place: str, seed: int) -> Any:
    """What the factory at a place makes, or the object there if it is no factory."""
    import torch
    from torch import nn

    target = found_at(place)
    if isinstance(target, nn.Module) or not callable(target):
        return target
    needed = _needed_arguments(target)
    if needed:
        raise InputError(
            f"{place} must be callable without arguments, and needs {', '.join(needed)}; write a "
            "function that calls it with them."
        )
    torch.manual_seed(seed)
    return blaming(place, target)


def _needed_arguments(function: Callable[..., Any]) -> list[str]:
    """Names of the arguments without which a function cannot be called."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a function of C tells nothing
        return []
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in optional]


def _from_path(name: str) -> ModuleType:
    _search_first(Path.cwd())
    return blaming(name, lambda: importlib.import_module(name))


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise InputError(f"there is no file {path}.")
    name = f"normscope_source_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    assert spec is not None  # a file that ends in .py always has one
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where pickle and dataclasses look for it
    _search_first(path.resolve().parent)  # as when Python runs the file
    loader = spec.loader
    blaming(str(path), lambda: loader.exec_module(module))
    return module


def _search_first(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def blaming(place: str, call: Callable[[], T]) -> T:
    """Call something of the user's; its error becomes ours, with the line it came from.

    Args:
        place: what is called, in the user's words.
        call: calls it.

    Returns:
        What the call returns.

    Raises:
        InputError: if it raises anything that is not an error of normscope already.
    """
    try:
        return call()
    except NormscopeError:
        raise
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        raise InputError(
            f"{place} failed with {type(error).__name__}: {error} "
            f"({Path(where.filename).name}, line {where.lineno})."
        ) from error
