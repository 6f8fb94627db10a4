"""Sanitize an SVG drawing for a page: no scripts or links, unique ids, colours of both themes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from xml.etree import ElementTree

from normscope.errors import DataError
from normscope.report.document import Panel

Colour = tuple[int, int, int]

_HEX = re.compile(r"#([0-9a-f]{6}|[0-9a-f]{3})\Z", re.IGNORECASE)
_NAMED = {"black": "#000000", "white": "#ffffff"}
_GREY_SPREAD = 6  # largest difference between the channels of a grey
_LINE_CONTRAST = 3.0  # least contrast of a line against the background (WCAG 2.2, 1.4.11)
_TEXT_CONTRAST = 4.5  # and of letters (1.4.3)
_BLACK, _WHITE = (0, 0, 0), (255, 255, 255)


@dataclass(frozen=True)
class Theme:
    """Background (paper) and foreground (ink) colour."""

    paper: str
    ink: str


LIGHT = Theme(paper="#ffffff", ink="#1b1f24")
DARK = Theme(paper="#16191d", ink="#e9ebee")


def is_colour(text: str) -> bool:
    """Return whether a text is a colour as "#rgb" or "#rrggbb".

    >>> is_colour("#D55E00"), is_colour("#fff;x")
    (True, False)
    """
    return _HEX.match(text) is not None


def contrast(first: str, second: str) -> float:
    """Return the contrast ratio of two colours as WCAG defines it, from 1 to 21.

    >>> contrast("#000000", "#ffffff")
    21.0
    """
    low, high = sorted((_luminance(_rgb(first)), _luminance(_rgb(second))))
    return (high + 0.05) / (low + 0.05)


@dataclass
class Palette:
    """The colours of one drawing as CSS variables that follow the theme.

    Black becomes the ink and white the paper; greys are mixed from both. A line with too little
    contrast to dark paper is lightened there, and letters are lightened or darkened in both themes.
    Areas keep their colour, which may encode a value.

    >>> palette = Palette()
    >>> palette.value("#000000"), palette.value("#440154", is_line=True)
    ('var(--ink)', 'var(--c0)')
    >>> palette.declarations
    '--c0:light-dark(#440154,#82558c)'
    """

    _names: dict[str, str] = field(default_factory=dict)  # of the variables, by their value

    def value(self, text: str, is_line: bool = False, is_letter: bool = False) -> str:
        """Return the CSS value for a colour; other values are returned unchanged.

        Args:
            text: the value in the drawing.
            is_line: whether it colours a line or a marker.
            is_letter: whether it colours letters.
        """
        text = _NAMED.get(text.lower(), text)
        if not _HEX.match(text):
            return text
        colour = _rgb(text)
        if max(colour) - min(colour) <= _GREY_SPREAD:
            return self._grey(colour)
        if is_letter:
            light = _adjust(colour, _BLACK, LIGHT.paper, _TEXT_CONTRAST)
            return self._variable(light, _adjust(colour, _WHITE, DARK.paper, _TEXT_CONTRAST))
        if is_line and contrast(_to_hex(colour), DARK.paper) < _LINE_CONTRAST:
            lifted = _adjust(colour, _WHITE, DARK.paper, _LINE_CONTRAST)
            return self._variable(_to_hex(colour), lifted)
        return text.lower()

    def _grey(self, colour: Colour) -> str:
        share = 1 - sum(colour) / (3 * 255)  # of ink
        if share in (0.0, 1.0):
            return "var(--ink)" if share else "var(--paper)"
        light, dark = (_mix(_rgb(t.paper), _rgb(t.ink), share) for t in (LIGHT, DARK))
        return self._variable(_to_hex(light), _to_hex(dark))

    def _variable(self, light: str, dark: str) -> str:
        value = f"light-dark({light},{dark})"
        return f"var({self._names.setdefault(value, f'--c{len(self._names)}')})"

    @property
    def declarations(self) -> str:
        """The CSS declarations of the variables."""
        return ";".join(f"{name}:{value}" for value, name in self._names.items())


def _rgb(text: str) -> Colour:
    digits = text.lstrip("#")
    digits = "".join(digit * 2 for digit in digits) if len(digits) == 3 else digits
    return int(digits[:2], 16), int(digits[2:4], 16), int(digits[4:], 16)


def _to_hex(colour: Colour) -> str:
    return "#" + "".join(f"{channel:02x}" for channel in colour)


def _mix(first: Colour, second: Colour, share: float) -> Colour:
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(first, second, strict=True))
    return red, green, blue


def _adjust(colour: Colour, towards: Colour, paper: str, least: float) -> str:
    """Mix in another colour until the contrast to the paper is enough."""
    for percent in range(0, 101, 3):
        found = _to_hex(_mix(colour, towards, percent / 100))
        if contrast(found, paper) >= least:
            break
    return found


def _luminance(colour: Colour) -> float:
    shares = (channel / 255 for channel in colour)
    linear = [s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares]
    red, green, blue = linear
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


_NAMESPACE = "{http://www.w3.org/2000/svg}"
_HREFS = ("href", "{http://www.w3.org/1999/xlink}href")


def _names(words: str) -> frozenset[str]:
    return frozenset(words.split())


# Allow lists: anything else is dropped, such as scripts, style sheets, links and animations.
_ELEMENTS = _names("""
    svg g defs symbol use path rect circle ellipse line polyline polygon text tspan image clipPath
    mask pattern marker linearGradient radialGradient stop
""")
_GEOMETRY = _names("""
    d x y x1 y1 x2 y2 dx dy cx cy r rx ry fx fy width height points transform viewBox
    preserveAspectRatio gradientUnits gradientTransform patternUnits patternTransform
    patternContentUnits clipPathUnits maskUnits markerWidth markerHeight markerUnits refX refY
    orient offset textLength lengthAdjust
""")
_STYLES = _names("""
    fill fill-opacity fill-rule stroke stroke-width stroke-opacity stroke-linecap stroke-linejoin
    stroke-miterlimit stroke-dasharray stroke-dashoffset opacity clip-path clip-rule mask font
    font-family font-size font-style font-weight font-stretch font-variant text-anchor stop-color
    stop-opacity visibility image-rendering
""")
_COLOURS = ("fill", "stroke", "stop-color")
_SAFE_VALUE = re.compile(r"[\w\s.,#%+'\"-]*\Z")
_COLOUR_CALL = re.compile(r"rgba?\([\d\s.,%]*\)\Z")
# Every pattern is linear in the length of a hostile text: no two parts match the same letters.
_LOCAL_URL = re.compile(r"url\(\s*['\"]?#([^'\")\s]+)['\"]?\s*\)\Z")
_PICTURE_DATA = re.compile(r"data:image/(png|jpeg);base64,[A-Za-z0-9+/=\s]*\Z")
_LONG_NUMBER = re.compile(r"(?<!\d)-?\d+\.\d{3,}(?:e[+-]?\d+)?")
_SIZE = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(pt|px)?\Z")
_PIXELS = {"pt": 4 / 3, "px": 1.0, None: 1.0}
_HALF = 165.0  # widest panel in points that is legible in half of a phone's width
_NARROWEST = 0.62  # of the natural width, so that letters are legible
_DEEPEST = 200  # nested elements; matplotlib nests about ten
_MOST = 1_000_000  # elements drawn


def inline_svg(svg: str, text: str, prefix: str, panels: Sequence[Panel] = ()) -> str:
    """Return a drawing as an element to embed in a page.

    Args:
        svg: the file's text, which is not trusted.
        text: what the drawing shows, for readers who do not see it.
        prefix: of the ids inside it, unique on the page.
        panels: its parts, shown one by one on a narrow page.

    Returns:
        Markup without scripts, links and outside references.

    Raises:
        DataError: if the text is not SVG, declares entities, or has too many elements.
    """
    root = _parse(svg)
    _check_size(root)
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
    found = copier.copy(root)
    width, height = _size(root)
    found.attrib.setdefault("viewBox", f"0 0 {width:g} {height:g}")
    for name in ("width", "height", "x", "y"):
        found.attrib.pop(name, None)
    sizes = f"--natural:{width:.0f}px;--narrowest:{width * _NARROWEST:.0f}px"
    colours = copier.palette.declarations
    found.set("style", ";".join(filter(None, (sizes, colours))))
    found.attrib |= {"class": "drawing", "role": "img", "aria-label": " ".join(text.split())}
    drawn = [found, *_panel_box(panels, names, colours)]
    return "".join(ElementTree.tostring(each, encoding="unicode") for each in drawn)


def _panel_box(
    panels: Sequence[Panel], names: Mapping[str, str], colours: str
) -> list[ElementTree.Element]:
    """Return an element that shows each panel by reference to the drawing."""
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


def _parse(svg: str) -> ElementTree.Element:
    """Return the root element; entities are rejected, as they can grow or read other files."""
    if "<!ENTITY" in svg:
        raise DataError("the drawing declares XML entities; draw it by matplotlib.")
    try:
        root = ElementTree.fromstring(svg)
    except ElementTree.ParseError as error:
        raise DataError(f"the drawing cannot be read as SVG ({error}).") from error
    if root.tag != f"{_NAMESPACE}svg":
        raise DataError(f"the drawing is not SVG: its root element is {root.tag[:80]!r}.")
    return root


def _check_size(root: ElementTree.Element) -> None:
    """Reject a drawing that would keep a browser busy for very long.

    Raises:
        DataError: if it is nested too deeply, or has too many elements once every reference is
            replaced by its target.
    """
    depth, level = 0, [root]
    while level and depth <= _DEEPEST:
        depth, level = depth + 1, [child for each in level for child in each]
    if depth > _DEEPEST:
        raise DataError(f"the drawing is nested deeper than {_DEEPEST} elements; draw it flatter.")
    if _count_drawn(root) > _MOST:
        raise DataError(
            f"the drawing shows more than {_MOST} elements, by using its own parts again and "
            "again; draw fewer."
        )


def _count_drawn(root: ElementTree.Element) -> int:
    """Count the elements with every reference replaced by its target; cycles count nothing."""
    named = {each.get("id", ""): each for each in reversed(list(root.iter()))}

    def parts(element: ElementTree.Element) -> Iterator[ElementTree.Element]:
        yield from element
        yield from (named[name] for name in _targets(element) if name in named)

    counts = {root: 0}  # 0 until known, which ends cycles
    stack = [(root, parts(root))]
    while stack:
        element, rest = stack[-1]
        following = next((each for each in rest if each not in counts), None)
        if following is not None:
            counts[following] = 0
            stack.append((following, parts(following)))
        else:
            stack.pop()
            total = 1 + sum(counts[each] for each in parts(element))
            counts[element] = min(total, _MOST + 1)
    return counts[root]


class _Copier:
    """Copies allowed elements and attributes.

    Args:
        names: the new id of every id that is referred to.
    """

    def __init__(self, names: Mapping[str, str]) -> None:
        self.palette = Palette()
        self._names = names

    def copy(self, element: ElementTree.Element) -> ElementTree.Element:
        """Return a copy of the element with its children."""
        found = ElementTree.Element(_tag(element), self._attributes(element))
        found.text = element.text if found.tag in ("text", "tspan") else None
        for child in element:
            if _tag(child) in _ELEMENTS:
                inner = self.copy(child)
                inner.tail = child.tail if found.tag in ("text", "tspan") else None
                found.append(inner)
        return found

    def _attributes(self, element: ElementTree.Element) -> dict[str, str]:
        kept = {name: value for name, value in element.items() if name in _GEOMETRY}
        for name in ("d", "points"):
            if name in kept:
                kept[name] = " ".join(_LONG_NUMBER.sub(_shorten, kept[name]).split())
        own = self._names.get(element.get("id", ""))
        if own is not None:
            kept["id"] = own
        target = self._target(element)
        if target is not None:
            kept["href"] = target
        style = self._style(element)
        return {**kept, "style": style} if style else kept

    def _target(self, element: ElementTree.Element) -> str | None:
        """Return what a use or an image shows: a part of this drawing, or embedded pixels."""
        given = next((element.get(name) for name in _HREFS if element.get(name)), None) or ""
        if _tag(element) == "image":
            return "".join(given.split()) if _PICTURE_DATA.match(given) else None
        name = self._names.get(given[1:]) if given.startswith("#") else None
        return None if name is None else f"#{name}"

    def _style(self, element: ElementTree.Element) -> str:
        given = dict(_declarations(element))
        is_line = given.get("stroke", "none") != "none"
        # matplotlib fills a group to colour letters, and a path to colour an area
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
    """Return the name of an SVG element; "" for comments and other namespaces."""
    tag = element.tag
    return tag.removeprefix(_NAMESPACE) if isinstance(tag, str) and _NAMESPACE in tag else ""


def _declarations(element: ElementTree.Element) -> Iterator[tuple[str, str]]:
    """Yield the style properties of an element; those of its style attribute last."""
    yield from ((name, value.strip()) for name, value in element.items() if name in _STYLES)
    for part in element.get("style", "").split(";"):
        name, _, value = part.partition(":")
        if name.strip() in _STYLES:
            yield name.strip(), value.strip()


def _targets(element: ElementTree.Element) -> Iterator[str]:
    """Yield the ids that an element refers to."""
    if _tag(element) != "image":
        hrefs = dict.fromkeys(element.get(name, "") for name in _HREFS)
        yield from (each[1:] for each in hrefs if each.startswith("#"))
    for _, value in _declarations(element):
        local = _LOCAL_URL.match(value)
        if local:
            yield local.group(1)


def _size(root: ElementTree.Element) -> tuple[float, float]:
    """Return width and height in pixels: as given, else those of the view box."""
    sizes = [_SIZE.match(root.get(name, "").strip()) for name in ("width", "height")]
    if sizes[0] and sizes[1]:
        width, height = (float(each[1]) * _PIXELS[each[2]] for each in sizes if each)
    else:
        box = root.get("viewBox", "").replace(",", " ").split()
        try:
            width, height = float(box[2]), float(box[3])
        except (IndexError, ValueError) as error:
            raise DataError("the drawing has neither a size nor a view box.") from error
    if not (math.isfinite(width) and math.isfinite(height)):
        raise DataError(f"the drawing's size must be finite, got {width:g} by {height:g}.")
    return width, height


def _shorten(number: re.Match[str]) -> str:
    """Round a coordinate to a hundredth of a point."""
    return f"{float(number[0]):.2f}".rstrip("0").rstrip(".") or "0"
