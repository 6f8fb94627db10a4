"""Registries of named objects: an item is registered where it is defined.

Registering a name twice raises; an unknown name raises with the choices and the closest one.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import Any, Generic, TypeVar, overload

from normscope.errors import DuplicateNameError, UnknownNameError
from normscope.interrupts import uninterrupted

T = TypeVar("T", bound=Callable[..., Any])

_MANY = 12  # more choices than this do not fit into one line
_COMMON = {  # other names of the same thing, for suggestions only
    "mse": "squared_error",
    "mse_loss": "squared_error",
    "mseloss": "squared_error",
    "ce": "cross_entropy",
    "crossentropy": "cross_entropy",
    "crossentropyloss": "cross_entropy",
    "gauss_newton": "ggn",
    "gauss-newton": "ggn",
    "gaussnewton": "ggn",
    "generalized_gauss_newton": "ggn",
}
_CUTOFF = 0.55  # similarity from which on a name may be a misspelling
_LISTS = {  # the argument of ``normscope list``
    "experiment": "experiments",
    "sweep": "experiments",
    "probe": "probes",
    "probe or preset": "probes",
    "model": "models",
    "normalization": "norms",
    "theorem": "theorems",
    "kind of curvature": "kinds",
    "check": "checks",
}


def unknown_name(
    kind: str, name: object, choices: Iterable[str], where: str = ""
) -> UnknownNameError:
    """Return the error for a name that is not among the choices.

    Args:
        kind: what the name is of.
        name: as given.
        choices: the known names.
        where: what has these choices, such as "in net.py".

    >>> print(unknown_name("model", "vg", ["vgg", "conv_net"]))
    unknown model 'vg'; did you mean 'vgg'? Choices: conv_net, vgg.
    >>> print(unknown_name("figure", "two", ["a/two", "b/two", "b/one"]))
    unknown figure 'two'; did you mean 'a/two' or 'b/two'? Choices: a/two, b/one, b/two.
    >>> print(unknown_name("name", "x", ["build"], "in net.py"))
    unknown name 'x' in net.py. Choices: build.
    """
    choices = sorted(choices)
    closest = _closest(str(name), choices)
    hint = f"; did you mean {' or '.join(map(repr, closest))}?" if closest else "."
    unknown = f"unknown {kind} {name!r}{where and ' '}{where}{hint}"
    if len(choices) > _MANY and kind in _LISTS:
        return UnknownNameError(
            f"{unknown} All {len(choices)} are in: normscope list {_LISTS[kind]}."
        )
    listed = ", ".join(choices) if choices else "none are registered"
    return UnknownNameError(f"{unknown} Choices: {listed}.")


def check_choice(kind: str, name: object, choices: Collection[str]) -> None:
    """Raise `UnknownNameError` unless the name is one of the choices.

    Args:
        kind: what the name is of.
        name: as given.
        choices: the known names.
    """
    if name not in choices:
        raise unknown_name(kind, name, choices)


def _closest(name: str, choices: list[str]) -> list[str]:
    """Return the choices that end with the name after a slash, else the most similar one."""
    ending = [each for each in choices if each.rpartition("/")[2] == name]
    if ending:
        return ending
    if (meant := _COMMON.get(name.lower())) in choices:
        return [str(meant)]
    folded = {each.lower(): each for each in choices}
    close = difflib.get_close_matches(name.lower(), list(folded), n=1, cutoff=_CUTOFF)
    if not close:  # one that starts with it, such as "fully_connected" for "fully"
        close = [each for each in folded if len(name) > 1 and each.startswith(name.lower())][:1]
    return [folded[each] for each in close]


class Registry(Generic[T]):
    """Callables of one kind by name.

    Args:
        kind: what the items are, in the singular; used in messages.
        modules: their import registers the items; they are imported at the first lookup, so that
            a registry can be imported without loading its items.
        package: likewise all modules of this package; a new file there needs no other entry.

    Examples:
        >>> SHAPES = Registry("shape")
        >>> @SHAPES.register
        ... def square(side: float) -> float:
        ...     return side * side
        >>> SHAPES["square"](3.0)
        9.0
    """

    def __init__(self, kind: str, modules: Iterable[str] = (), package: str | None = None) -> None:
        self.kind = kind
        self._pending = list(modules)
        self._package = package
        self._lock = threading.RLock()  # modules may look names up while they load
        self._items: dict[str, T] = {}

    @overload
    def register(self, item: T) -> T: ...

    @overload
    def register(self, *, name: str) -> Callable[[T], T]: ...

    def register(self, item: T | None = None, *, name: str | None = None) -> Any:
        """Add an item under its own or the given name; a decorator, with or without ``name=``.

        Raises:
            DuplicateNameError: if another item has that name.
        """
        if item is None:
            return lambda decorated: self._add(decorated, name or decorated.__name__)
        return self._add(item, item.__name__)

    def _add(self, item: T, name: str) -> T:
        if name in self._items:
            owner = self._items[name].__module__
            raise DuplicateNameError(
                f"{self.kind} {name!r} is registered already by {owner}; choose another name."
            )
        self._items[name] = item
        return item

    def _load(self) -> None:
        with self._lock:
            if self._package is not None:
                found = pkgutil.iter_modules(importlib.import_module(self._package).__path__)
                self._pending += [f"{self._package}.{module.name}" for module in found]
                self._package = None
            while self._pending:
                module = self._pending.pop(0)
                try:
                    uninterrupted(partial(importlib.import_module, module))
                except BaseException:
                    self._pending.insert(0, module)  # tried again at the next lookup
                    raise

    def __getitem__(self, name: str) -> T:
        self._load()
        if name not in self._items:
            raise unknown_name(self.kind, name, self._items)
        return self._items[name]

    def __contains__(self, name: object) -> bool:
        self._load()
        return name in self._items

    def __iter__(self) -> Iterator[str]:
        self._load()
        return iter(sorted(self._items))

    def __len__(self) -> int:
        self._load()
        return len(self._items)

    def summary(self, name: str) -> str:
        """Return the item's ``summary``, or else the first line of its docstring."""
        item = self[name]
        text: str = getattr(item, "summary", None) or item.__doc__ or ""
        return text.strip().partition("\n")[0]
