"""The light and the dark theme of a page, and the colours of drawings in both."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

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


def contrast(first: str, second: str) -> float:
    """Return the contrast ratio of two colours as WCAG defines it, from 1 to 21.

    >>> contrast("#000000", "#ffffff")
    21.0
    """
    low, high = sorted((_luminance(_parse(first)), _luminance(_parse(second))))
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
        colour = _parse(text)
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
        light, dark = (_mix(_parse(t.paper), _parse(t.ink), share) for t in (LIGHT, DARK))
        return self._variable(_to_hex(light), _to_hex(dark))

    def _variable(self, light: str, dark: str) -> str:
        value = f"light-dark({light},{dark})"
        return f"var({self._names.setdefault(value, f'--c{len(self._names)}')})"

    @property
    def declarations(self) -> str:
        """The CSS declarations of the variables."""
        return ";".join(f"{name}:{value}" for value, name in self._names.items())


def _parse(text: str) -> Colour:
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
