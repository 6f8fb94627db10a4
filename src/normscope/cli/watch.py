"""``normscope watch``: a live page of stores, or the same in the terminal."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated

from normscope.cli import options as opt
from normscope.cli.app import command
from normscope.cli.render import print_json, warnings_as_notes
from normscope.errors import InputError, StateError
from normscope.text import printable

_STORES = "Files that a sweep, a scope or an experiment writes; they may not exist yet."
Stores = Annotated[list[Path], opt.argument("STORE", _STORES)]
Port = Annotated[
    int, opt.number("Port of the page, on 127.0.0.1.", min=0, max=65535, default="any free one")
]
Terminal = Annotated[bool, opt.flag("--terminal", "Show it here, without a page.")]
Once = Annotated[bool, opt.flag("--once", "Print the present state and end.")]


@command("watch", "A live page of what is running: progress, diagrams, curves.")
def watch(
    stores: Stores,
    port: Port = 0,
    terminal: Terminal = False,
    once: Once = False,
    as_json: opt.Json = False,
) -> None:
    """Show running sweeps, scopes and experiments as a web page on this machine.

    Prints the address of the page, which holds a secret token, and serves it until Ctrl-C. The
    stores are only read. From another machine: ssh -L 8000:127.0.0.1:8000 with --port 8000.

    Example: normscope watch phase.sqlite --port 8000
    """
    from normscope.watch import Board, serve
    from normscope.watch.terminal import read_once, show, summary

    _check(stores)
    if once or as_json:
        _check_present(stores)
    with warnings_as_notes():
        if as_json:
            print_json(read_once(stores))
        elif once:
            print(printable(summary(read_once(stores))))
        elif terminal:
            with _ended_by_sigterm(), Board(stores) as board:
                show(board)
        else:
            with _ended_by_sigterm(), Board(stores) as board:
                serve(board, port, _announce)


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end the command as Ctrl-C does: the stores are closed, the exit code is 0."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _announce(url: str) -> None:
    print(f"Open {url}\nCtrl-C ends it; the stores are only read.", flush=True)


def _check_present(stores: list[Path]) -> None:
    """Raise for a store that does not exist, if nothing waits for it."""
    for path in stores:
        if not path.exists():
            raise InputError(
                f"there is no store at {path}; check the path, or leave out --once and --json to "
                "wait for it."
            )


def _check(stores: list[Path]) -> None:
    """Raise for a path that cannot become a store, before anything is served."""
    for path in stores:
        if path.is_dir():
            raise InputError(f"{path} is a folder; name the store in it, such as a file *.sqlite.")
        if not path.parent.is_dir():
            raise InputError(f"there is no folder {path.parent}; check the path of the store.")
        if path.exists():
            from normscope.results.following import Following

            with suppress(StateError):  # such as a lock, which may end
                Following(path).close()
