"""An object of the user's by its place, and what happens in the user's own code.

A place is ``package.module:name`` or ``path/to/file.py:name``.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import io
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from normscope.errors import InputError, NormscopeError
from normscope.registry import unknown_name

__all__ = ["blaming", "file_of", "found_at", "home_of", "is_place", "made_at"]

T = TypeVar("T")


def is_place(source: str, example: str) -> bool:
    """Whether a text is a place and no registered name.

    Args:
        source: what was given.
        example: name of a function as there might be one, for the error.

    Returns:
        True if it has a colon.

    Raises:
        InputError: if it names a file and nothing in it.

    >>> is_place("vgg", "build"), is_place("my_model.py:build", "build")
    (False, True)
    """
    if source.endswith(".py"):
        raise InputError(
            f"{source} names a file; say which function in it makes what is wanted, such as "
            f"{source}:{example}."
        )
    return ":" in source


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
        raise unknown_name(f"name in {home}", name, _own_names(module))
    return getattr(module, name)


def _own_names(module: ModuleType) -> list[str]:
    """What a module defines itself: no modules, and nothing that others define."""
    return [
        name
        for name, value in vars(module).items()
        if name[0] != "_"
        and not isinstance(value, ModuleType)
        and (not hasattr(value, "__name__") or getattr(value, "__module__", "") == module.__name__)
    ]


def made_at(place: str, seed: int, options: Mapping[str, Any] | None = None) -> Any:
    """What the factory at a place makes, or the object there if it is no factory.

    Args:
        place: as in `found_at`.
        seed: torch's, set before the factory is called.
        options: the factory's arguments.

    Returns:
        The object.

    Raises:
        InputError: if the factory needs other arguments, or fails; or if options are given for
            what is no factory.
    """
    from torch import nn

    target, given = found_at(place), dict(options or {})
    if isinstance(target, nn.Module) or not callable(target):
        if given:
            raise InputError(f"{place} is no function, and takes no {', '.join(given)}.")
        return target
    needed = [name for name in _needed_arguments(target) if name not in given]
    if needed:
        raise InputError(
            f"{place} must be callable without arguments, and needs {', '.join(needed)}; write a "
            "function that calls it with them."
        )
    with _seeded(seed):
        return blaming(place, lambda: target(**given))


def home_of(place: str) -> Path:
    """The file that holds the object of a place.

    Args:
        place: as in `found_at`.

    Returns:
        Its path.

    Raises:
        InputError: if there is no such file.

    >>> home_of("json.decoder:JSONDecoder").name
    'decoder.py'
    """
    home, _, _ = place.rpartition(":")
    if home.endswith(".py"):
        path = Path(home)
        if not path.is_file():
            raise InputError(f"there is no file {path}.")
    else:
        _search_first(Path.cwd())
        found = blaming(home, lambda: importlib.util.find_spec(home))
        path = Path((found and found.origin) or home)
    if not path.is_file():
        raise InputError(f"there is no file of {home!r}.")
    return path


def file_of(place: str) -> Path | None:
    """The file of a place, found without running anything.

    Args:
        place: as in `found_at`.

    Returns:
        Its path from here; None if no such file is seen. Python's own search for a module runs the
        packages it is in, which may be anybody's.

    >>> file_of("json.decoder:JSONDecoder").name
    'decoder.py'
    """
    home, _, _ = place.rpartition(":")
    if home.endswith(".py"):
        return Path(home) if Path(home).is_file() else None
    inside = Path(*home.split("."))
    names = (inside.with_name(f"{inside.name}.py"), inside / "__init__.py")
    paths = (Path(root) / name for root in ("", *sys.path) for name in names)
    return next((path for path in paths if path.is_file()), None)


def _needed_arguments(function: Callable[..., Any]) -> list[str]:
    """Names of the arguments without which a function cannot be called."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a function of C tells nothing
        return []
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in optional]


# The modules found here with the content of their file: a file that has changed is run anew.
_modules: dict[str, tuple[bytes, ModuleType]] = {}


def _from_path(name: str) -> ModuleType:
    _search_first(Path.cwd())
    importlib.invalidate_caches()
    module = _run(name, lambda: importlib.import_module(name))
    file = getattr(module, "__file__", None)
    content = Path(file).read_bytes() if file and file.endswith(".py") else b""
    before, _ = _modules.setdefault(name, (content, module))
    if before != content:
        module = _run(name, lambda: importlib.reload(module))
        _modules[name] = content, module
    return module


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise InputError(f"there is no file {path}.")
    whole, content = str(path.resolve()), path.read_bytes()
    if whole in _modules and _modules[whole][0] == content:
        return _modules[whole][1]
    name = f"normscope_source_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, whole)
    assert spec is not None  # a file that ends in .py always has one
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where pickle and dataclasses look for it
    _search_first(path.resolve().parent)  # as when Python runs the file
    loader = spec.loader
    _run(str(path), lambda: loader.exec_module(module))
    _modules[whole] = content, module
    return module


def _run(place: str, call: Callable[[], T]) -> T:
    """Import something of the user's, which may draw random numbers: always the same ones."""
    with _seeded(0):
        return blaming(place, call)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Torch's generators at a seed; afterwards as they were."""
    import torch

    with torch.random.fork_rng(range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        yield


def _search_first(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def blaming(place: str, call: Callable[[], T]) -> T:
    """Call something of the user's; its error becomes ours, with the line it came from.

    What it prints goes to stderr.

    Args:
        place: what is called, in the user's words.
        call: calls it.

    Returns:
        What the call returns.

    Raises:
        InputError: if it raises anything that is not an error of normscope already.
    """
    try:
        with redirect_stdout(sys.stderr or io.StringIO()):  # stdout is for the answer alone
            return call()
    except NormscopeError:
        raise
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        raise InputError(
            f"{place} failed with {type(error).__name__}: {error} "
            f"({Path(where.filename).name}, line {where.lineno})."
        ) from error
