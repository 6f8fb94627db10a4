"""A board in the terminal, for machines without a browser: live, or once as plain text."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from normscope.watch.board import Board
from normscope.watch.records import STATES

_LEVELS = "▁▂▃▄▅▆▇█"
_STYLES = ("dim", "yellow", "cyan", "red", "bold red")  # by the code of a state
_MARKS = ".o■x!"
_NAMES = tuple(map(str, STATES))
_ENDED = ("finished", "diverged", "failed", "running", "pending")
_WIDEST, _HIGHEST = 64, 16  # characters of a diagram
_MOST_PANELS = 12
_WAIT = 0.5
_PIPED = 10.0  # seconds between two states when piped


def read_once(paths: Sequence[Path]) -> dict[str, Any]:
    """Return what the views show of some stores, once they are read to their end.

    Args:
        paths: of the stores.
    """
    with Board(paths, interval=0.05) as board:
        while not board.is_complete:
            time.sleep(0.02)
        message = board.wait(0, seconds=60)
    assert message is not None
    return message


def summary(message: dict[str, Any]) -> str:
    """Return what a view shows as plain text.

    Args:
        message: everything, of `Board.wait`.
    """
    console = Console(width=100, color_system=None, force_terminal=False)
    with console.capture() as captured:
        console.print(render(message, 100))
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def show(board: Board) -> None:
    """Show a board in the terminal until Ctrl-C; piped, print it again every ten seconds.

    Args:
        board: open.
    """
    console = Console()
    try:
        while not console.is_terminal:  # print without news too: only a write detects a closed pipe
            if (present := board.wait(0, _WAIT)) is not None:
                print(f"{summary(present)}\n", flush=True)
                time.sleep(_PIPED)
        with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
            for message in _messages(board):
                live.update(render(message, console.width), refresh=True)
    except KeyboardInterrupt:
        return


def _messages(board: Board) -> Iterator[dict[str, Any]]:
    """Yield everything again whenever something is new."""
    version = 0
    while True:
        if board.wait(version, _WAIT) is not None:
            message = board.wait(0, _WAIT)
            assert message is not None
            version = message["version"]
            yield message


def render(message: dict[str, Any], width: int) -> RenderableType:
    """Return all parts for a terminal; names are text, without markup.

    Args:
        message: everything, of `Board.wait`.
        width: columns of the terminal.
    """
    makers = {
        "store": _store,
        "experiment": _experiment,
        "grid": _grid,
        "curves": _curves,
        "scope": _scope,
    }
    lines: list[Text] = []
    for part in message["parts"]:
        lines += makers[part["kind"]](part, width)
    for line in lines:
        line.no_wrap, line.overflow = True, "ellipsis"
    return Group(*lines)


def _line(text: str, style: str = "") -> Text:
    """Return an indented line; a store's names may hold control characters, which would run."""
    plain = "".join(letter if letter.isprintable() else "?" for letter in text)
    return Text(f"  {plain}", style)


def _store(part: dict[str, Any], width: int) -> list[Text]:
    title = _line(part["title"], "bold")[2:]
    title.append_text(_line(part["words"], "dim"))
    return [title, _line(part["problem"], "red")] if part["problem"] else [title]


def _experiment(part: dict[str, Any], width: int) -> list[Text]:
    bar = Text("  ")
    total, size = max(1, sum(part["counts"].values())), min(60, width - 4)
    begun = 0
    for name in _ENDED:
        end = begun + part["counts"][name]
        letters = round(size * end / total) - round(size * begun / total)
        bar.append(("░" if name == "pending" else "█") * letters, _STYLES[_NAMES.index(name)])
        begun = end
    found = [Text(), _line(part["title"], "bold"), bar, _line(part["words"])]
    found += [_line(f"running: {each}", "dim") for each in part["running"]]
    for each in part["failures"]:
        found.append(_line(f"failed: {each['record']}", "red"))
        found.append(_line(f"  {each['error']}", "red"))
    return found


def _grid(part: dict[str, Any], width: int) -> list[Text]:
    cells = part["cells"]
    axes = cells["axes"]
    columns, rows = len(axes["rates"]), len(axes["values"])
    wide = max(1, math.ceil(columns / min(_WIDEST, width - 14)))  # cells in one character
    high = max(1, math.ceil(rows / _HIGHEST))
    shown: dict[tuple[int, int], int] = {}
    numbers = range(len(cells["states"])) if cells["cells"] is None else cells["cells"]
    for number, state in zip(numbers, cells["states"], strict=True):
        place = number // columns // high, number % columns // wide
        shown[place] = max(state, shown.get(place, 0))
    found = [_line("  ".join(filter(None, (part["title"], part["words"]))), "dim")]
    for row in reversed(range(math.ceil(rows / high))):
        name = "" if axes["setting"] is None else f"{axes['values'][row * high]:.3g}"
        line = _line(f"{name:>8} ")
        for column in range(math.ceil(columns / wide)):
            state = shown.get((row, column))
            line.append(" " if state is None else _MARKS[state], _STYLES[state or 0])
        found.append(line)
    key = "  ".join(f"{mark} {name}" for mark, name in zip(_MARKS, _NAMES, strict=True))
    return [*found, _line(key, "dim")]


def _curves(part: dict[str, Any], width: int) -> list[Text]:
    return [_course(each, each["label"]) for each in part["lines"]]


def _scope(part: dict[str, Any], width: int) -> list[Text]:
    found = [_line(f"{part['title']}: {part['words']}")]
    if part["gauge"]:
        found.append(_line(part["gauge"]["words"], "bold red" if part["gauge"]["over"] else "bold"))
    return found + [_course(each, each["title"]) for each in part["panels"][:_MOST_PANELS]]


def _course(line: dict[str, Any], name: str) -> Text:
    """Return the values over the steps as blocks, the last one, and the name."""
    values = line.get("mean", line.get("high", []))
    last = values[-1] if values else None
    number = "not finite" if last is None else format(last, ".4g")
    return _line(f"{_spark(values, 24)} {number:>10}  {name}")


def _spark(values: Sequence[float | None], width: int) -> str:
    """Return a line of blocks, logarithmic if the values span more than a factor of 20.

    >>> _spark([1, 2, None, 4], 4)
    '▁▃ █'
    """
    every = max(1, math.ceil(len(values) / width))
    chosen = values[::every]
    finite = [value for value in chosen if value is not None]
    if not finite:
        return " " * width
    low, high = min(finite), max(finite)
    scale = math.log if low > 0 and high / low > 20 else float
    span = scale(high) - scale(low)

    def block(value: float | None) -> str:
        if value is None:
            return " "
        share = (scale(value) - scale(low)) / span if span > 0 else 0.0
        return _LEVELS[min(len(_LEVELS) - 1, int(share * len(_LEVELS)))]

    return "".join(map(block, chosen)).ljust(width)
