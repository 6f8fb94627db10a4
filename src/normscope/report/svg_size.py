"""How much a browser must draw for a drawing (SVG), whose parts may use each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from xml.etree.ElementTree import Element

from normscope.errors import DataError

__all__ = ["refuse_endless"]

_DEEPEST = 200  # elements inside each other; matplotlib's are within ten
_MOST = 1_000_000  # elements drawn


def refuse_endless(root: Element, targets: Callable[[Element], Iterable[str]]) -> None:
    """Refuse a drawing that would keep a browser busy for ever.

    Args:
        root: of the drawing.
        targets: the names that an element refers to.

    Raises:
        DataError: if it is nested too deeply, or draws too many elements once every reference is
            replaced by what it refers to.
    """
    if _depth(root) > _DEEPEST:
        raise DataError(f"the drawing is nested deeper than {_DEEPEST} elements; draw it flatter.")
    if _drawn(root, targets) > _MOST:
        raise DataError(
            f"the drawing shows more than {_MOST} elements, by using its own parts again and "
            "again; draw fewer."
        )


def _depth(root: Element) -> int:
    deepest, level = 0, [root]
    while level and deepest <= _DEEPEST:
        deepest, level = deepest + 1, [child for each in level for child in each]
    return deepest


def _drawn(root: Element, targets: Callable[[Element], Iterable[str]]) -> int:
    """The elements with every reference replaced by its target; one to itself counts nothing."""
    named = {each.get("id", ""): each for each in reversed(list(root.iter()))}

    def parts(element: Element) -> Iterator[Element]:
        yield from element
        yield from (named[name] for name in targets(element) if name in named)

    counts: dict[Element, int] = {}  # 0 until known, so that circles end
    waiting: list[tuple[Element, Iterator[Element]]] = [(root, parts(root))]
    counts[root] = 0
    while waiting:
        element, rest = waiting[-1]
        following = next((each for each in rest if each not in counts), None)
        if following is not None:
            counts[following] = 0
            waiting.append((following, parts(following)))
        else:
            waiting.pop()
            total = 1 + sum(counts[each] for each in parts(element))
            counts[element] = min(total, _MOST + 1)
    return counts[root]
