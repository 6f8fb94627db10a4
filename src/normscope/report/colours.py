"""The two themes of a page, and what a colour of a drawing becomes in each."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

__all__ = ["DARK", "LIGHT", "Palette", "Theme", "contrast"]

Colour = tuple[int, int, int]

_HEX = re.compile(r"#([0-9a-f]{6}|[0-9a-f]{3})\Z", re.IGNORECASE)
_NAMED = {"black": "#000000", "white": "#ffffff"}
_GREY_SPREAD = 6  # of the channels of a colour that counts as grey
_LINE_CONTRAST = 3.0  # of a line against the paper (WCAG 2.2, 1.4.11)
_TEXT_CONTRAST = 4.5  # of letters (1.4.3)
_BLACK, _WHITE = (0, 0, 0), (255, 255, 255)


@dataclass(frozen=True)
class Theme:
    """Paper and ink."""

    paper: str
    ink: str


LIGHT = Theme(paper="#ffffff", ink="#1b1f24")
DARK = Theme(paper="#16191d", ink="#e9ebee")


def contrast(first: str, second: str) -> float:
    """The contrast ratio of two colours as WCAG defines it, from 1 to 21.

    >>> contrast("#000000", "#ffffff")
    21.0
    """
    low, high = sorted((_luminance(_parsed(first)), _luminance(_parsed(second))))
    return (high + 0.05) / (low + 0.05)


@dataclass
class Palette:
    """The colours of one drawing as CSS variables that follow the theme.

    Black becomes the ink and white the paper; greys keep their place between the two. A line that
    would not be seen on dark paper is lighter there, and letters are lighter or darker until they
    are read on either. Areas keep their colour: it may be a value.

    >>> palette = Palette()
    >>> palette.value("#000000"), palette.value("#440154", is_line=True)
    ('var(--ink)', 'var(--c0)')
    >>> palette.declarations
    '--c0:light-dark(#440154,#82558c)'
    """

    _names: dict[str, str] = field(default_factory=dict)  # of the variables, by their value

    def value(self, text: str, is_line: bool = False, is_letter: bool = False) -> str:
        """What to write for a colour; what is no colour stays as it is.

        Args:
            text: as the drawing has it.
            is_line: whether it is of a line or a marker.
            is_letter: whether it is of letters.
        """
        text = _NAMED.get(text.lower(), text)
        if not _HEX.match(text):
            return text
        colour = _parsed(text)
        if max(colour) - min(colour) <= _GREY_SPREAD:
            return self._grey(colour)
        if is_letter:
            light = _moved(colour, _BLACK, LIGHT.paper, _TEXT_CONTRAST)
            return self._variable(light, _moved(colour, _WHITE, DARK.paper, _TEXT_CONTRAST))
        if is_line and contrast(_written(colour), DARK.paper) < _LINE_CONTRAST:
            lifted = _moved(colour, _WHITE, DARK.paper, _LINE_CONTRAST)
            return self._variable(_written(colour), lifted)
        return text.lower()

    def _grey(self, colour: Colour) -> str:
        share = 1 - sum(colour) / (3 * 255)  # of ink
        if share in (0.0, 1.0):
            return "var(--ink)" if share else "var(--paper)"
        light, dark = (_mixed(_parsed(t.paper), _parsed(t.ink), share) for t in (LIGHT, DARK))
        return self._variable(_written(light), _written(dark))

    def _variable(self, light: str, dark: str) -> str:
        value = f"light-dark({light},{dark})"
        return f"var({self._names.setdefault(value, f'--c{len(self._names)}')})"

    @property
    def declarations(self) -> str:
        """The variables, for the style of the drawing."""
        return ";".join(f"{name}:{value}" for value, name in self._names.items())


def _parsed(text: str) -> Colour:
    digits = text.lstrip("#")
    digits = "".join(digit * 2 for digit in digits) if len(digits) == 3 else digits
    return int(digits[:2], 16), int(digits[2:4], 16), int(digits[4:], 16)


def _written(colour: Colour) -> str:
    return "#" + "".join(f"{channel:02x}" for channel in colour)


def _mixed(first: Colour, second: Colour, share: float) -> Colour:
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(first, second, strict=True))
    return red, green, blue


def _moved(colour: Colour, towards: Colour, paper: str, least: float) -> str:
    """The colour with as much of another as it needs to be seen on the paper."""
    for percent in range(0, 101, 3):
        found = _written(_mixed(colour, towards, percent / 100))
        if contrast(found, paper) >= least:
            break
    return found


def _luminance(colour: Colour) -> float:
    shares = (channel / 255 for channel in colour)
    linear = [s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares]
    red, green, blue = linear
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
