import re

import numpy as np
import pytest
import xarray as xr
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from tests.references.html_outline import svg_tree

from normscope.errors import DataError
from normscope.plots.labels import add_values
from normscope.plots.loss_landscape import norm_landscape
from normscope.report import picture_of
from normscope.report.drawing import inline_svg

HEAD = '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '


def cleaned(inside, head='viewBox="0 0 10 10"'):
    return inline_svg(f"{HEAD}{head}>{inside}</svg>", "a drawing", "p1")


def drawn():
    figure = Figure()
    axes = figure.subplots()
    axes.plot([0, 1, 2], [1, 3, 2], "o-", label="a line")
    axes.imshow([[0.0, 1.0], [2.0, 3.0]])
    axes.set_title("a < 1 & more")
    axes.legend()
    return picture_of(figure, "A line that rises and falls.")


@pytest.mark.parametrize(
    "inside",
    [
        "<script>alert(1)</script>",
        '<g onload="alert(1)" onclick="alert(1)"><path d="M 0 0"/></g>',
        '<a xlink:href="javascript:alert(1)"><path d="M 0 0"/></a>',
        '<a href="https://example.org"><text>away</text></a>',
        '<use xlink:href="https://example.org/x.svg#a"/>',
        '<image href="https://example.org/x.png" width="1" height="1"/>',
        '<image href="data:image/svg+xml;base64,PHN2Zy8+" width="1" height="1"/>',
        '<image href="data:image/png;base64,iVBO&quot; onload=&quot;alert(1)" width="1"/>',
        "<style>* { background: url(https://example.org/x) }</style>",
        '<path style="fill: url(https://example.org/x)"/>',
        '<path fill="url(https://example.org/x#a)" style="stroke:image-set(url(x) 1x)"/>',
        '<path style="background-image: url(//example.org); -moz-binding: url(x)"/>',
        r'<path style="fill: u\72l(https://example.org)"/>',
        '<path style="fill: red/**/;stroke: expression(alert(1))"/>',
        "<foreignObject><body xmlns='http://www.w3.org/1999/xhtml'><img src='x'/></body>"
        "</foreignObject>",
        '<animate attributeName="href" values="javascript:alert(1)"/>',
        '<set attributeName="onload" to="alert(1)"/>',
        '<filter id="f"><feImage href="https://example.org"/></filter><g filter="url(#f)"/>',
        '<iframe xmlns="http://www.w3.org/1999/xhtml" src="https://example.org"/>',
        "<!-- alert(1) example.org --><?xml-stylesheet href='https://example.org'?>",
        "<metadata><x>alert(1)</x></metadata><title>alert(1)</title>",
    ],
)
def test_hostile_drawing_is_harmless(inside):
    found = cleaned(f'{inside}<path d="M 1 2 L 3 4"/>')
    for word in ("alert", "example.org", "javascript", "url(", "onload", "expression", "svg+xml"):
        assert word not in found
    tags = {each.tag for each in svg_tree(found).iter()}
    assert tags <= {"svg", "g", "path", "use", "image", "text"}
    assert "M 1 2 L 3 4" in found  # what was harmless is there


@pytest.mark.parametrize(
    ("svg", "message"),
    [
        ('<!DOCTYPE svg [<!ENTITY a "ha">]><svg>&a;</svg>', "entities"),
        ("<svg", "cannot be read as SVG"),
        ("<html xmlns='http://www.w3.org/1999/xhtml'/>", "root element is"),
        (f"{HEAD}/>", "neither a size nor a view box"),
        ("", "cannot be read as SVG"),
    ],
)
def test_what_is_no_plain_svg_is_refused(svg, message):
    with pytest.raises(DataError, match=message):
        inline_svg(svg, "text", "p")


def test_drawing_is_an_image_with_a_text():
    root = svg_tree(inline_svg(drawn().svg, 'what "it"\n shows <b>', "p1"))
    assert root.get("role") == "img"
    assert root.get("aria-label") == 'what "it" shows <b>'
    assert root.get("width") is None  # the page decides
    assert root.get("viewBox") == "0 0 460.8 345.6"
    assert "--natural:614px" in root.get("style")


def test_same_figure_twice_shares_no_name_and_every_reference_leads_somewhere():
    first, second = (inline_svg(drawn().svg, "text", prefix) for prefix in ("a", "b"))
    names = []
    for markup in (first, second):
        ids = {each.get("id") for each in svg_tree(markup).iter()} - {None}
        used = set(re.findall(r"url\(#([^)]+)\)", markup)) | set(
            re.findall(r'href="#([^"]+)"', markup)
        )
        assert used
        assert used == ids  # names that nothing refers to are gone
        names.append(ids)
    assert not names[0] & names[1]


def test_figure_keeps_its_parts():
    before = svg_tree(drawn().svg)
    after = svg_tree(inline_svg(drawn().svg, "text", "p"))

    def count(root, tag):
        return sum(str(each.tag).endswith(tag) for each in root.iter())

    for tag in ("path", "use", "image", "clipPath"):
        assert count(after, tag) == count(before, tag) > 0


def test_ink_and_paper_follow_the_theme():
    found = inline_svg(drawn().svg, "text", "p")
    assert "fill:var(--paper)" in found
    assert "stroke:var(--ink)" in found
    assert "#ffffff" not in found
    assert "#000000" not in found
    assert "stroke:#1f77b4" in found  # seen on both papers


def test_coordinates_are_kept_to_a_hundredth():
    found = cleaned('<path d="M 1.234567 -0.0004 L 1e-07 12.000001 Q 5.6789e-05 3 7 8.25"/>')
    assert 'd="M 1.23 -0 L 1e-07 12 Q 0 3 7 8.25"' in found


def test_look_of_a_style_wins_over_attributes():
    found = cleaned('<path fill="#000000" stroke="none" style="fill: #ffffff"/>')
    assert "fill:var(--paper)" in found
    assert "var(--ink)" not in found


def test_letters_inside_a_drawing_are_kept_and_escaped():
    found = cleaned('<text x="1">a &lt; b<tspan>c</tspan> d</text>')
    assert '<text x="1">a &lt; b<tspan>c</tspan> d</text>' in found


def test_size_without_view_box_becomes_one():
    root = svg_tree(cleaned("<g/>", head='width="30px" height="20"'))
    assert root.get("viewBox") == "0 0 30 20"


def grown(levels, tens):
    """Parts that each use the one before ten times."""
    parts = "".join(
        f'<g id="a{level}">{tens.format(level - 1) * 10}</g>' for level in range(1, levels + 1)
    )
    return f'<defs><g id="a0"><path d="M 0 0"/></g>{parts}</defs><use href="#a{levels}"/>'


@pytest.mark.parametrize("tens", ['<use href="#a{}"/>', '<path d="M 0 0" fill="url(#a{})"/>'])
def test_drawing_that_grows_without_end_is_refused(tens):
    with pytest.raises(DataError, match="more than 1000000 elements"):
        cleaned(grown(8, tens))
    assert "<use" in cleaned(grown(3, tens))


def test_parts_that_use_themselves_do_not_hang():
    cleaned('<g id="a"><use href="#b"/></g><g id="b"><use href="#a"/></g>')


def test_deep_drawing_is_refused_in_a_sentence():
    with pytest.raises(DataError, match="nested deeper than 200"):
        cleaned("<g>" * 5000 + "</g>" * 5000)


def test_size_that_is_no_number_leaves_the_view_box():
    found = cleaned("", 'width="1.2.3" height="4" viewBox="0 0 30 40"')
    assert "--natural:30px" in found
    with pytest.raises(DataError, match="neither a size nor a view box"):
        cleaned("", 'width="1.2.3" height="4"')
    with pytest.raises(DataError, match="must be finite"):
        cleaned("", 'viewBox="0 0 nan inf"')


def test_wide_figure_has_its_panels_with_their_bars_and_its_legends():
    figure = Figure(figsize=(9.6, 3), layout="constrained")
    left, right = figure.subplots(1, 2)
    figure.colorbar(left.pcolormesh([[1.0, 2.0], [3.0, 4.0]]), ax=left)
    right.plot([1, 2], label="a line")
    figure.legend(loc="outside lower center")
    picture = picture_of(figure, "Two.")
    assert [len(panel.groups) for panel in picture.panels] == [2, 1, 1]
    for panel in picture.panels:
        x, y, width, height = panel.box
        assert min(x, y) >= 0
        assert x + width <= 9.6 * 72
        assert y + height <= 3 * 72
    (first, second, _) = picture.panels
    assert first.box[0] + first.box[2] <= second.box[0] + 6  # side by side, but for the margin
    shown = inline_svg(picture.svg, picture.text, "p1", picture.panels)
    assert shown.count("<use href=") >= 4
    assert all(name not in shown for panel in picture.panels for name in panel.groups)


@pytest.mark.parametrize(("width", "columns"), [(5.0, 2), (9.0, 1)])
def test_narrow_figure_and_single_panel_stay_whole(width, columns):
    figure = Figure(figsize=(width, 3), layout="constrained")
    figure.subplots(1, columns)
    assert not picture_of(figure, "Whole.").panels


@pytest.mark.parametrize(("width", "columns", "narrow"), [(5.0, 2, 4.4), (6.4, 1, 4.4)])
def test_narrow_figure_fills_the_page_and_is_drawn_again_for_a_phone(width, columns, narrow):
    figure = Figure(figsize=(width, 3), layout="constrained")
    figure.subplots(1, columns)
    picture = picture_of(figure, "Whole.")
    assert 'width="691.2pt" height="216pt"' in picture.svg  # 9.6 by 3 inches
    assert f'width="{narrow * 72:g}pt" height="216pt"' in picture.narrow.svg
    assert tuple(figure.get_size_inches()) == (width, 3)


def test_figure_without_a_layout_engine_keeps_its_size():
    figure = Figure(figsize=(3, 2))
    figure.subplots()
    picture = picture_of(figure, "Small.")
    assert picture.narrow is None
    assert 'width="216pt" height="144pt"' in picture.svg


@pytest.mark.parametrize("logarithmic", [False, True])
def test_values_lie_where_their_points_are_drawn(logarithmic):
    """The place of a value is that of its marker in the drawing, whatever the layout."""
    figure = Figure(figsize=(9.6, 3), layout="constrained")
    axes = figure.subplots()
    x, y = [1.0, 10.0, 100.0], [2.0, 30.0, 5.0]
    (line,) = axes.plot(x, y, "o")
    line.set_gid("markers")
    if logarithmic:
        axes.set_xscale("log")
    axes.set_ylabel("a label\nof two lines")
    add_values(axes, x, y, ("rate", "loss"), "a net")
    picture = picture_of(figure, "Three.")
    (group,) = (e for e in svg_tree(picture.svg).iter() if e.get("id") == "markers")
    markers = [e for e in group.iter() if e.tag.endswith("use")]
    drawn = [(float(e.get("x")), float(e.get("y"))) for e in markers]
    (series,) = picture.values
    assert (series.name, series.x, series.y) == ("a net", "rate", "loss")
    assert [texts for *_, texts in [(p[0], p[1], p[2:]) for p in series.points]] == [
        ("1", "2"),
        ("10", "30"),
        ("100", "5"),
    ]
    for (left, top, *_), place in zip(series.points, drawn, strict=True):
        assert (left, top) == pytest.approx(place, abs=0.06)


def test_values_that_are_not_in_view_are_left_out():
    figure = Figure(figsize=(9.6, 3), layout="constrained")
    axes = figure.subplots()
    axes.set(xlim=(0, 1), ylim=(0, 1))
    add_values(axes, [0.5, 0.5, 0.5, 3.0], [0.5, np.nan, 2.0, 0.5], ("", "loss"))
    (series,) = picture_of(figure, "One.").values
    assert len(series.points) == 1


def test_bar_of_bare_colours_stands_with_the_panel_beside_it():
    figure = Figure(figsize=(9, 3), layout="constrained")
    _, right = figure.subplots(1, 2)
    figure.colorbar(ScalarMappable(), ax=right)
    assert [len(panel.groups) for panel in picture_of(figure, "Two.").panels] == [1, 2]


@pytest.mark.parametrize("shared", [{"sharey": True}, {"sharex": True, "nrows": 2}])
def test_panels_that_borrow_their_labels_stay_together(shared):
    figure = Figure(figsize=(9, 3), layout="constrained")
    figure.subplots(ncols=2, **shared)
    assert not picture_of(figure, "Together.").panels


def test_texts_of_the_figure_are_shown_with_its_panels():
    figure = Figure(figsize=(9, 3), layout="constrained")
    figure.subplots(1, 2)
    figure.supxlabel("settings of it all, " * 6, fontsize=8)  # wider than a phone
    assert len(picture_of(figure, "Two and a text.").panels) == 3
    figure.supylabel("density")
    assert not picture_of(figure, "Of one label.").panels


def test_bands_of_five_norms_are_each_read_alone():
    values = (("norm", "seed", "step"), np.linspace(0.1, 1, 20).reshape(5, 1, 4))
    names = ["loss_low", "loss_high", "gradient_distance_low", "gradient_distance_high"]
    norms = ["none", "batch", "noisy", "l1", "layer"]
    results = xr.Dataset(dict.fromkeys(names, values), {"norm": norms})
    figure = norm_landscape(results.assign_coords(seed=[0], step=range(4)))
    assert len(picture_of(figure, "Bands.").panels) == 10
    for axes in figure.axes:
        assert "gradient" in axes.get_title()
        assert any(label.get_text() for label in axes.get_yticklabels())


@pytest.mark.parametrize(
    ("head", "inside"),
    [
        ("", '<path d="' + "1" * 300_000 + '"/>'),
        ("", '<path fill="url(#' + " " * 300_000 + '"/>'),
        ("", '<path fill="rgb(' + "1 " * 300_000 + '"/>'),
        (f'width="{"1" * 300_000}x" height="1"', ""),
        (f'width="{"1" * 300_000}.x" height="1"', ""),
        ("", '<image href="data:image/png;base64,' + "A " * 300_000 + '!"/>'),
    ],
)
def test_patterns_are_linear_in_hostile_text(head, inside):
    """A pattern that tries every way to divide the text would take minutes here."""
    found = cleaned(inside, f'viewBox="0 0 10 10" {head}')
    assert "url" not in found
    assert "href" not in found
