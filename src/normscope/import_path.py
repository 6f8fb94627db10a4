"""Objects by import path (``package.module:name`` or ``path/to/file.py:name``), and user code."""

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

__all__ = [
    "call_user_code",
    "find_source_file",
    "import_object",
    "is_import_path",
    "load_object",
    "source_file",
]

T = TypeVar("T")


def is_import_path(source: str, example: str) -> bool:
    """Return whether a string is an import path rather than a registered name.

    Args:
        source: what was given.
        example: name of a function for the error.

    Raises:
        InputError: if it names a file without a name in it.

    >>> is_import_path("vgg", "build"), is_import_path("my_model.py:build", "build")
    (False, True)
    """
    if source.endswith(".py"):
        raise InputError(
            f"{source} is a file; name the function in it as well, such as {source}:{example}."
        )
    return ":" in source


def import_object(path: str) -> Any:
    """Import the object at an import path.

    Args:
        path: ``package.module:name`` or ``path/to/file.py:name``; modules are searched for in the
            working directory too.

    Raises:
        InputError: if there is no such module or file, or its import fails.
        UnknownNameError: if it does not define the name.

    >>> import_object("math:floor")(2.5)
    2
    """
    home, _, name = path.rpartition(":")
    if not home or not name:
        raise InputError(f"expected package.module:name or path/to/file.py:name, got {path!r}.")
    module = _run_file(Path(home)) if home.endswith(".py") else _import_module(home)
    if not hasattr(module, name):
        raise unknown_name(f"name in {home}", name, _defined_names(module))
    return getattr(module, name)


def _defined_names(module: ModuleType) -> list[str]:
    """Return the public names that a module defines itself."""
    return [
        name
        for name, value in vars(module).items()
        if name[0] != "_"
        and not isinstance(value, ModuleType)
        and (not hasattr(value, "__name__") or getattr(value, "__module__", "") == module.__name__)
    ]


def load_object(path: str, seed: int, options: Mapping[str, Any] | None = None) -> Any:
    """Call the factory at an import path, or return the object there if it is not a factory.

    Args:
        path: as in `import_object`.
        seed: torch's, set before the factory is called; the generators are restored afterwards.
        options: arguments of the factory.

    Raises:
        InputError: if the factory needs other arguments or fails, or if options are given for an
            object that is not a factory.
    """
    from torch import nn

    target, given = import_object(path), dict(options or {})
    if isinstance(target, nn.Module) or not callable(target):
        if given:
            raise InputError(
                f"{path} is not callable, so it takes no options (got {', '.join(given)})."
            )
        return target
    needed = [name for name in _required_arguments(target) if name not in given]
    if needed:
        raise InputError(
            f"{path} must be callable without arguments, and needs {', '.join(needed)}; write a "
            "function that calls it with them."
        )
    with _torch_seed(seed):
        return call_user_code(path, lambda: target(**given))


def source_file(path: str) -> Path:
    """Return the file that defines the object at an import path.

    Args:
        path: as in `import_object`; packages around a module are imported.

    Raises:
        InputError: if there is no such file.

    >>> source_file("json.decoder:JSONDecoder").name
    'decoder.py'
    """
    home, _, _ = path.rpartition(":")
    if home.endswith(".py"):
        file = Path(home)
        if not file.is_file():
            raise InputError(f"there is no file {file}.")
    else:
        _prepend_to_search_path(Path.cwd())
        found = call_user_code(home, lambda: importlib.util.find_spec(home))
        file = Path((found and found.origin) or home)
    if not file.is_file():
        raise InputError(f"there is no file of {home!r}.")
    return file


def find_source_file(path: str) -> Path | None:
    """Return the file of an import path without importing anything; None if it is not found.

    `importlib.util.find_spec` imports the packages around a module; this function does not.

    >>> find_source_file("json.decoder:JSONDecoder").name
    'decoder.py'
    """
    home, _, _ = path.rpartition(":")
    if home.endswith(".py"):
        return Path(home) if Path(home).is_file() else None
    inside = Path(*home.split("."))
    names = (inside.with_name(f"{inside.name}.py"), inside / "__init__.py")
    paths = (Path(root) / name for root in ("", *sys.path) for name in names)
    return next((each for each in paths if each.is_file()), None)


def _required_arguments(function: Callable[..., Any]) -> list[str]:
    """Return the names of arguments without a default."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a function written in C
        return []
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in optional]


# Imported modules with the content of their file: a file that has changed is run again.
_modules: dict[str, tuple[bytes, ModuleType]] = {}


def _import_module(name: str) -> ModuleType:
    _prepend_to_search_path(Path.cwd())
    importlib.invalidate_caches()
    module = _run_import(name, lambda: importlib.import_module(name))
    file = getattr(module, "__file__", None)
    content = Path(file).read_bytes() if file and file.endswith(".py") else b""
    before, _ = _modules.setdefault(name, (content, module))
    if before != content:
        module = _run_import(name, lambda: importlib.reload(module))
        _modules[name] = content, module
    return module


def _run_file(path: Path) -> ModuleType:
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
    sys.modules[name] = module  # pickle and dataclasses look it up there
    _prepend_to_search_path(path.resolve().parent)  # as when Python runs the file
    loader = spec.loader
    _run_import(str(path), lambda: loader.exec_module(module))
    _modules[whole] = content, module
    return module


def _run_import(name: str, call: Callable[[], T]) -> T:
    """Import user code with a fixed seed: it may draw random numbers."""
    with _torch_seed(0):
        return call_user_code(name, call)


@contextmanager
def _torch_seed(seed: int) -> Iterator[None]:
    """Seed torch's generators; restore them on exit."""
    import torch

    with torch.random.fork_rng(range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        yield


def _prepend_to_search_path(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def call_user_code(name: str, call: Callable[[], T]) -> T:
    """Call user code; its error becomes an `InputError` with the line it came from.

    What it prints goes to stderr: stdout is for the answer alone.

    Args:
        name: what is called, for the error.
        call: calls it.

    Raises:
        InputError: if it raises anything that is not an error of normscope already.
    """
    try:
        with redirect_stdout(sys.stderr or io.StringIO()):
            return call()
    except NormscopeError:
        raise
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        raise InputError(
            f"{name} failed with {type(error).__name__}: {error} "
            f"({Path(where.filename).name}, line {where.lineno})."
        ) from error
