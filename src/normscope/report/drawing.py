"""A drawing (SVG) made fit for a page: harmless, of its own names, in the page's two themes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from xml.etree import ElementTree

from normscope.errors import DataError
from normscope.report.colours import Palette
from normscope.report.document import Panel
from normscope.report.svg_parts import ELEMENTS, GEOMETRY, STYLES
from normscope.report.svg_size import refuse_endless

__all__ = ["inline_svg"]

_NAMESPACE = "{http://www.w3.org/2000/svg}"
_HREFS = ("href", "{http://www.w3.org/1999/xlink}href")

_COLOURS = ("fill", "stroke", "stop-color")
_SAFE_VALUE = re.compile(r"[\w\s.,#%+'\"-]*\Z")
_COLOUR_CALL = re.compile(r"rgba?\([\d\s.,%]*\)\Z")
_LOCAL_URL = re.compile(r"url\(\s*['\"]?#([^'\")]+)['\"]?\s*\)\Z")
_PICTURE_DATA = re.compile(r"data:image/(png|jpeg);base64,[A-Za-z0-9+/=\s]*\Z")
_LONG_NUMBER = re.compile(r"-?\d+\.\d{3,}(?:e[+-]?\d+)?")
_SIZE = re.compile(r"(\d+\.?\d*|\.\d+)(pt|px)?\Z")
_PIXELS = {"pt": 4 / 3, "px": 1.0, None: 1.0}
_HALF = 165.0  # points of a panel that is read in half of a phone's width
_NARROWEST = (
    0.62  # of the natural width: letters are read, a phone cuts no three panels between two
)


def inline_svg(svg: str, text: str, prefix: str, panels: Sequence[Panel] = ()) -> str:
    """The drawing as an element for the middle of a page.

    Args:
        svg: the file's text; it may come from anywhere.
        text: what the drawing shows, for those who do not see it.
        prefix: of the names inside it, other than that of any drawing on the page.
        panels: its parts, to be shown one by one where the page is narrow.

    Returns:
        Markup without scripts, links and outside references.

    Raises:
        DataError: if the text is no SVG, declares entities, or is too much for a browser.
    """
    root = _parsed(svg)
    refuse_endless(root, _targets)
    names = {
        name: f"{prefix}-{number}"
        for number, name in enumerate(
            dict.fromkeys(each.get("id", "") for each in root.iter()), start=1
        )
        if name
    }
    used = {name for each in root.iter() for name in _targets(each)}
    used |= {name for panel in panels for name in panel.groups}
    used &= set(names)
    copier = _Copier({name: names[name] for name in used})
    found = copier.copied(root)
    width, height = _size(root)
    found.attrib.setdefault("viewBox", f"0 0 {width:g} {height:g}")
    for name in ("width", "height", "x", "y"):
        found.attrib.pop(name, None)
    sizes = f"--natural:{width:.0f}px;--narrowest:{width * _NARROWEST:.0f}px"
    colours = copier.palette.declarations
    found.set("style", ";".join(filter(None, (sizes, colours))))
    found.attrib |= {"class": "drawing", "role": "img", "aria-label": " ".join(text.split())}
    drawn = [found, *_shown_panels(panels, names, colours)]
    return "".join(ElementTree.tostring(each, encoding="unicode") for each in drawn)


def _shown_panels(
    panels: Sequence[Panel], names: Mapping[str, str], colours: str
) -> list[ElementTree.Element]:
    """A box of windows on the parts of a drawing, which uses them and draws nothing anew."""
    if not panels:
        return []
    box = ElementTree.Element("div", {"class": "panels", "aria-hidden": "true"})
    for panel in panels:
        left, top, width, height = panel.box
        size = f"--natural:{width * _PIXELS['pt']:.0f}px"
        window = {"viewBox": f"{left:.1f} {top:.1f} {width:.1f} {height:.1f}"}
        kind = "panel half" if width <= _HALF else "panel"
        window |= {"class": kind, "style": ";".join(filter(None, (size, colours)))}
        part = ElementTree.SubElement(box, "svg", window)
        for name in panel.groups:
            if name in names:
                ElementTree.SubElement(part, "use", {"href": f"#{names[name]}"})
    return [box]


def _parsed(svg: str) -> ElementTree.Element:
    """The root; entities are refused, so that a small file cannot grow or read others."""
    if "<!ENTITY" in svg:
        raise DataError("the drawing declares XML entities, which none of normscope's does.")
    try:
        root = ElementTree.fromstring(svg)
    except ElementTree.ParseError as error:
        raise DataError(f"the drawing is no SVG that can be read ({error}).") from error
    if root.tag != f"{_NAMESPACE}svg":
        raise DataError(f"the drawing is no SVG: it begins by {root.tag[:80]!r}.")
    return root


class _Copier:
    """Copies what is known to be harmless.

    Args:
        names: the new name of every name that is referred to.
    """

    def __init__(self, names: Mapping[str, str]) -> None:
        self.palette = Palette()
        self._names = names

    def copied(self, element: ElementTree.Element) -> ElementTree.Element:
        """The element with its children."""
        copy = ElementTree.Element(_tag(element), self._attributes(element))
        copy.text = element.text if copy.tag in ("text", "tspan") else None
        for child in element:
            if _tag(child) in ELEMENTS:
                inner = self.copied(child)
                inner.tail = child.tail if copy.tag in ("text", "tspan") else None
                copy.append(inner)
        return copy

    def _attributes(self, element: ElementTree.Element) -> dict[str, str]:
        kept = {name: value for name, value in element.items() if name in GEOMETRY}
        for name in ("d", "points"):
            if name in kept:
                kept[name] = " ".join(_LONG_NUMBER.sub(_shortened, kept[name]).split())
        own = self._names.get(element.get("id", ""))
        if own is not None:
            kept["id"] = own
        target = self._target(element)
        if target is not None:
            kept["href"] = target
        style = self._style(element)
        return {**kept, "style": style} if style else kept

    def _target(self, element: ElementTree.Element) -> str | None:
        """What a use or an image shows: a part of this drawing, or pixels inside it."""
        given = next((element.get(name) for name in _HREFS if element.get(name)), None) or ""
        if _tag(element) == "image":
            return "".join(given.split()) if _PICTURE_DATA.match(given) else None
        name = self._names.get(given[1:]) if given.startswith("#") else None
        return None if name is None else f"#{name}"

    def _style(self, element: ElementTree.Element) -> str:
        given = dict(_declarations(element))
        is_line = given.get("stroke", "none") != "none"
        # matplotlib fills a group for the letters in it, and a path for an area
        is_letter = not is_line and _tag(element) in ("g", "text", "tspan")
        kept = {name: self._value(name, value, is_line, is_letter) for name, value in given.items()}
        return ";".join(f"{name}:{value}" for name, value in kept.items() if value is not None)

    def _value(self, name: str, value: str, is_line: bool, is_letter: bool) -> str | None:
        local = _LOCAL_URL.match(value)
        if local:
            new = self._names.get(local.group(1))
            return None if new is None else f"url(#{new})"
        if not (_SAFE_VALUE.match(value) or _COLOUR_CALL.match(value)):
            return None
        return self.palette.value(value, is_line, is_letter) if name in _COLOURS else value


def _tag(element: ElementTree.Element) -> str:
    """The name of an SVG element; nothing for comments and elements of other kinds."""
    tag = element.tag
    return tag.removeprefix(_NAMESPACE) if isinstance(tag, str) and _NAMESPACE in tag else ""


def _declarations(element: ElementTree.Element) -> Iterator[tuple[str, str]]:
    """Name and value of all that says how the element looks; the style goes last and wins."""
    yield from ((name, value.strip()) for name, value in element.items() if name in STYLES)
    for part in element.get("style", "").split(";"):
        name, _, value = part.partition(":")
        if name.strip() in STYLES:
            yield name.strip(), value.strip()


def _targets(element: ElementTree.Element) -> Iterator[str]:
    """The names that an element refers to."""
    if _tag(element) != "image":
        hrefs = dict.fromkeys(element.get(name, "") for name in _HREFS)
        yield from (each[1:] for each in hrefs if each.startswith("#"))
    for _, value in _declarations(element):
        local = _LOCAL_URL.match(value)
        if local:
            yield local.group(1)


def _size(root: ElementTree.Element) -> tuple[float, float]:
    """Width and height in pixels: as given, else those of the view box."""
    sizes = [_SIZE.match(root.get(name, "").strip()) for name in ("width", "height")]
    if sizes[0] and sizes[1]:
        width, height = (float(each[1]) * _PIXELS[each[2]] for each in sizes if each)
    else:
        box = root.get("viewBox", "").replace(",", " ").split()
        try:
            width, height = float(box[2]), float(box[3])
        except (IndexError, ValueError) as error:
            raise DataError("the drawing says neither its size nor its view box.") from error
    if not (math.isfinite(width) and math.isfinite(height)):
        raise DataError(f"the drawing's size must be finite, got {width:g} by {height:g}.")
    return width, height


def _shortened(number: re.Match[str]) -> str:
    """A coordinate to a hundredth of a point."""
    return f"{float(number[0]):.2f}".rstrip("0").rstrip(".") or "0"
