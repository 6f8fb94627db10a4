"""What a page is made of, read by a parser that knows nothing of how the page was written."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = frozenset(
    [
        "area",
        "base",
        "br",
        "col",
        "embed",
        "hr",
        "img",
        "input",
        "link",
        "meta",
        "source",
        "track",
        "wbr",
    ]
)


@dataclass
class Element:
    """One element: its name, its attributes, the text directly inside it or below."""

    tag: str
    attributes: dict[str, str | None]
    text: str = ""


@dataclass
class Outline:
    """All elements of a page in their order."""

    elements: list[Element] = field(default_factory=list)

    def named(self, tag: str) -> list[Element]:
        return [each for each in self.elements if each.tag == tag]

    def values(self, attribute: str) -> list[str]:
        found = (each.attributes.get(attribute) for each in self.elements)
        return [value for value in found if value is not None]

    @property
    def heading_ranks(self) -> list[int]:
        ranks = {f"h{rank}": rank for rank in range(1, 7)}
        return [ranks[each.tag] for each in self.elements if each.tag in ranks]


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.outline = Outline()
        self.open: list[Element] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(set(names)) == len(names), f"<{tag}> has an attribute twice: {names}"
        element = Element(tag, dict(attrs))
        self.outline.elements.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.outline.elements.append(Element(tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open[-1].tag == tag, f"</{tag}> closes <{self.open[-1].tag}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        for element in self.open:
            element.text += data


def outline(page: str) -> Outline:
    """The elements of a page; every one must be closed, in the order of its opening."""
    reader = _Reader()
    reader.feed(page)
    reader.close()
    assert not reader.open, f"<{reader.open[-1].tag}> is never closed"
    return reader.outline


def svg_tree(markup: str) -> ElementTree.Element:
    """An inline drawing as XML."""
    return ElementTree.fromstring(markup)
