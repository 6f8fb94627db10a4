import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib import colormaps
from matplotlib.colors import to_hex

from normscope.plots.style import colour_of
from normscope.report.drawing import DARK, LIGHT, Palette, contrast

PAIR = re.compile(r"light-dark\((#[0-9a-f]{6}),(#[0-9a-f]{6})\)")


def both(palette):
    """The colours of the only variable, light and dark."""
    (pair,) = PAIR.findall(palette.declarations)
    return pair


@pytest.mark.parametrize(
    ("first", "second", "ratio"),
    [("#ffffff", "#ffffff", 1.0), ("#777777", "#ffffff", 4.48), ("#0000ff", "#ffffff", 8.59)],
)
def test_contrast_is_the_published_one(first, second, ratio):
    assert contrast(first, second) == pytest.approx(ratio, abs=0.005)
    assert contrast(first, second) == contrast(second, first)


def test_ink_and_paper_can_be_read_in_both_themes():
    for theme in (LIGHT, DARK):
        assert contrast(theme.ink, theme.paper) > 12


def test_black_is_ink_and_white_is_paper():
    palette = Palette()
    assert {palette.value(each) for each in ("#000", "#000000", "black")} == {"var(--ink)"}
    assert {palette.value(each) for each in ("#FFF", "#ffffff", "white")} == {"var(--paper)"}
    assert palette.declarations == ""


def test_grey_text_stays_readable_and_order_is_kept_in_both_themes():
    palette = Palette()
    palette.value("#555555")
    light, dark = both(palette)
    assert contrast(light, LIGHT.paper) > 4.5
    assert contrast(dark, DARK.paper) > 4.5
    paler = Palette()
    paler.value("#bbbbbb")
    assert contrast(both(paler)[1], DARK.paper) < contrast(dark, DARK.paper)


@given(st.integers(0, 0xFFFFFF))
def test_every_line_can_be_seen_on_dark_paper(number):
    palette = Palette()
    written = palette.value(f"#{number:06x}", is_line=True)
    channels = [number >> 16, number >> 8 & 255, number & 255]
    if max(channels) - min(channels) <= 6:
        return  # greys are theirs, between ink and paper
    seen = both(palette)[1] if written.startswith("var") else written
    assert contrast(seen, DARK.paper) >= 3
    assert not written.startswith("var") or both(palette)[0] == f"#{number:06x}"


def test_areas_keep_their_colour_which_may_be_a_value():
    palette = Palette()
    shades = [to_hex(colormaps["viridis"](share / 9)) for share in range(10)]
    assert [palette.value(shade) for shade in shades] == shades


def test_same_colour_is_one_variable():
    palette = Palette()
    assert palette.value("#440154", is_line=True) == palette.value("#440154", is_line=True)
    assert palette.declarations.count("--c") == 1


@pytest.mark.parametrize("text", ["none", "currentColor", "rgb(1,2,3)", "#12345", "url(#a)"])
def test_what_is_no_plain_colour_stays(text):
    assert Palette().value(text) == text


@pytest.mark.parametrize("norm", ["none", "batch", "noisy", "l1", "layer"])
def test_coloured_letters_are_read_in_both_themes(norm):
    palette = Palette()
    if palette.value(colour_of(norm), is_letter=True) == "var(--ink)":
        return
    light, dark = both(palette)
    assert contrast(light, LIGHT.paper) >= 4.5
    assert contrast(dark, DARK.paper) >= 4.5
