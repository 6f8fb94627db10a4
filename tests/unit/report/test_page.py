import base64
import hashlib
import html
import json
import re
from itertools import pairwise

import numpy as np
import pytest
import xarray as xr
from matplotlib.figure import Figure
from tests.references.html_outline import outline

from normscope.errors import DataError, InputError
from normscope.report import (
    Card,
    Download,
    Picture,
    Report,
    Section,
    Table,
    dataset_downloads,
    picture_of,
    render,
    write_report,
)
from normscope.report.document import Series
from normscope.results import Claim
from normscope.results.claim import DECISION

HOSTILE = "<script>alert(1)</script>"
TABLE = Table("Numbers", ("name", "value"), [("b", 2), ("a", None), ("c", 10.5), ("d", np.nan)])


def picture(text="A line."):
    figure = Figure(figsize=(3, 2))
    figure.subplots().plot([0, 1], [0, 1])
    return picture_of(figure, text, "The caption")


def whole_report():
    dataset = xr.Dataset({"loss": ("step", [2.0, 1.0])}, {"step": [0, 1]})
    claims = [Claim("it falls", "a paper", "2 to 1", True), Claim("it rises", "x", "no", False)]
    first = Section(
        "First",
        ["One paragraph."],
        [picture(), picture()],
        [TABLE],
        claims,
        {"steps": 2, "rate": 0.1, "norm": None},
        {"torch": "2.13.0"},
        "normscope run x --scale quick",
        1.5,
        dataset_downloads(dataset, "first"),
    )
    second = Section("Second", tables=[TABLE], claims=[Claim("open", "y", "?", None)])
    third = Section("Third", claims=[Claim("bare", "z", "1", True)])
    return Report("A report", ["It falls.", "It does not rise."], [first, second, third], TABLE)


@pytest.fixture(scope="module")
def page():
    return render(whole_report())


def test_page_has_one_head_and_no_rank_is_left_out(page):
    ranks = outline(page).heading_ranks
    assert ranks.count(1) == 1
    assert ranks[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(ranks))


def test_names_are_unique_and_links_lead_somewhere(page):
    found = outline(page)
    ids = found.values("id")
    assert len(set(ids)) == len(ids)
    for link in found.named("a"):
        target = link.attributes["href"]
        assert target.startswith("data:") or target.removeprefix("#") in ids
    for name in ("aria-labelledby", "data-copies"):
        assert set(found.values(name)) <= set(ids)


def test_page_refers_to_nothing_outside(page):
    for name in ("src", "href", "action", "poster", "srcset"):
        for value in outline(page).values(name):
            assert value.startswith(("#", "data:"))
    assert not re.search(r"url\((?!#)|@import|https?://", page)


def test_policy_allows_this_script_and_style_and_no_network(page):
    found = outline(page)
    (policy,) = (e for e in found.named("meta") if "http-equiv" in e.attributes)
    rules = dict(rule.split(" ", 1) for rule in policy.attributes["content"].split("; "))
    assert rules["default-src"] == "'none'"
    for rule, tag in (("script-src", "script"), ("style-src-elem", "style")):
        (element,) = found.named(tag)
        digest = base64.b64encode(hashlib.sha256(element.text.encode()).digest()).decode()
        assert rules[rule] == f"'sha256-{digest}'"


def test_first_screen_holds_the_findings_and_the_summary(page):
    before = page.partition('id="section-1"')[0]
    assert "It falls." in before
    assert "It does not rise." in before
    assert 'id="summary"' in before


def test_claims_lead_to_their_evidence(page):
    rows = re.findall(r'<tr id="claim-\d+">.*?</tr>', page, re.DOTALL)
    targets = [re.findall(r'href="#([^"]+)"', row) for row in rows]
    first = ["overview"]
    assert targets == [first, first, ["section-2-table-1"], ["section-3"]]
    verdicts = [re.search(r'class="verdict \w+">([a-z ]+)</span>', row)[1] for row in rows]
    assert verdicts == ["reproduced", "not reproduced", "undecided", "reproduced"]


def test_rule_that_claims_share_is_below_their_table_once():
    rules = [f"the median; {DECISION}", DECISION, "at most 2"]
    claims = [Claim(f"claim {n}", "here", "1", True, rule=rule) for n, rule in enumerate(rules)]
    page = render(Report("t", ["f"], [Section("a", claims=claims)]))
    assert re.findall(r"Rule: ([^<]*)<", page) == ["the median", "at most 2"]
    assert page.count(html.escape(DECISION)) == 1
    assert DECISION not in render(Report("t", ["f"], [Section("a", claims=claims[2:])]))


def test_first_picture_stands_before_every_table_and_is_drawn_once(page):
    places = [page.index(f'id="{name}"') for name in ("top", "overview", "findings", "summary")]
    assert places == sorted(places)
    assert places[-1] < page.index('id="section-1"') < page.index('id="claims"')
    assert page.count("<figure") == 2  # of two pictures
    section = page.partition('id="section-1"')[2].partition('id="section-2"')[0]
    assert 'href="#overview"' in section


def test_picture_of_its_own_leaves_those_of_the_sections_where_they_are():
    own, other = picture("All."), picture("One.")
    sections = [Section("a", pictures=[other]), Section("b", pictures=[own])]
    found = outline(render(Report("t", ["f"], sections, overview=own)))
    assert [e.attributes["aria-label"] for e in found.named("svg")] == ["All.", "One."]


def test_page_of_one_section_asks_its_question_and_says_nothing_twice():
    section = Section("s", ["Seen.", "More."], asked="What is seen?")
    page = render(Report("t", ["Seen."], [section]))
    assert [page.count(text) for text in ("Seen.", "More.", "What is seen?")] == [1, 1, 1]
    both = render(Report("t", ["Seen."], [section, section]))
    assert both.count("Seen.") == 3
    assert "What is seen?" not in both


def test_table_has_its_own_digits_and_note():
    table = Table("c", ("x",), [(0.123456,)], "What x is.", digits=2)
    page = render(Report("t", ["f"], [], table))
    assert '<td class="number" data-value="0.123456">0.12</td>' in page
    assert "What x is." in page


def test_cells_say_what_to_sort_by(page):
    summary = page.partition('id="summary"')[2].partition("</table>")[0]
    assert re.findall(r'data-value="([^"]+)"', summary) == ["2", "10.5"]
    assert summary.count("data-missing") == 2
    assert '<th scope="col" class="number">value</th>' in summary


def test_settings_versions_time_and_command_are_there(page):
    for text in ("normscope run x --scale quick", "2.13.0", "1.5 seconds", "<dt>rate</dt><dd>0.1"):
        assert text in page


def test_downloads_hold_the_bytes(page):
    given = {each.name: each for each in whole_report().sections[0].downloads}
    links = [e.attributes for e in outline(page).named("a") if "download" in e.attributes]
    assert {link["download"] for link in links} == set(given) == {"first.csv", "first.nc"}
    for link in links:
        kind, _, content = link["href"].partition(";base64,")
        assert base64.b64decode(content) == given[link["download"]].content
        assert kind == f"data:{given[link['download']].media_type}"


def test_what_is_left_out_says_so():
    left = Download("big.nc", "application/netcdf", b"", "too large; run it again")
    page = render(Report("t", ["f"], [Section("s", downloads=[left])]))
    assert "big.nc: too large; run it again" in page
    assert "<a download" not in page


def test_every_text_is_escaped():
    claim = Claim(HOSTILE, HOSTILE, HOSTILE, None)
    section = Section(
        HOSTILE,
        [HOSTILE],
        [Picture(picture().svg, HOSTILE, HOSTILE), Picture(picture().svg, f'"{HOSTILE}')],
        [Table(HOSTILE, (HOSTILE,), [(HOSTILE,)])],
        [claim],
        {HOSTILE: HOSTILE, "list": [HOSTILE], "attribute": '" onload="alert(1)'},
        {HOSTILE: HOSTILE},
        HOSTILE,
        1.0,
        [Download(HOSTILE, "text/csv", b"1"), Download(HOSTILE, "x", b"", HOSTILE)],
    )
    found = outline(render(Report(HOSTILE, [HOSTILE, HOSTILE], [section], section.tables[0])))
    assert len(found.named("script")) == 1
    assert "alert" not in found.named("script")[0].text
    assert not any("onload" in element.attributes for element in found.elements)
    (title,) = found.named("h1")
    assert title.text == HOSTILE


def test_hostile_media_type_stays_inside_its_attribute():
    download = Download("x", 'text/csv" onclick="alert(1)', b"1")
    found = outline(render(Report("t", ["f"], [Section("s", downloads=[download])])))
    assert not any("onclick" in element.attributes for element in found.elements)


def test_same_report_gives_the_same_page(page):
    assert render(whole_report()) == page


def test_report_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "deep" / "report.html"
    assert write_report(Report("t", ["old"], []), path) == path
    broken = Report("t", ["new"], [Section("s", pictures=[Picture("<svg", "text")])])
    with pytest.raises(DataError):
        write_report(broken, path)
    assert "old" in path.read_text(encoding="utf-8")
    assert [each.name for each in path.parent.iterdir()] == ["report.html"]


def test_folder_in_place_of_a_file_is_refused(tmp_path):
    with pytest.raises(InputError, match="is a folder"):
        write_report(Report("t", ["f"], []), tmp_path)


def test_what_scrolls_and_what_copies_has_a_name_of_its_own(page):
    found = outline(page)
    ids = set(found.values("id"))
    scrolling = [e for e in found.elements if e.attributes.get("class") == "scroll"]
    assert {e.attributes["role"] for e in scrolling} == {"group", "region"}
    assert {e.attributes["aria-labelledby"] for e in scrolling} <= ids
    (copy,) = (e for e in found.named("button") if e.attributes.get("class") == "copy")
    assert copy.attributes["aria-label"] == "Copy the command of First"


def test_note_stands_in_place_of_a_command():
    page = render(Report("A report", [], [Section("x", command_note="There is none, because.")]))
    found = outline(page)
    assert "Reproduce this result" in [each.text for each in found.named("h3")]
    assert "There is none, because." in [each.text for each in found.named("p")]
    assert not found.named("pre")


def texts(found, kind):
    return [e.text for e in found.elements if e.attributes.get("class") == kind]


def test_first_finding_is_the_headline_unless_another_is_given():
    given = Report("t", ["One.", "Two."], [])
    found = outline(render(given))
    assert (texts(found, "headline"), texts(found, "finding")) == (["One."], ["Two."])
    found = outline(render(Report("t", ["One.", "Two."], [], headline="All.")))
    assert (texts(found, "headline"), texts(found, "finding")) == (["All."], ["One.", "Two."])
    assert not texts(outline(render(Report("t", [], []))), "headline")


def test_cards_are_given_or_of_the_only_section_or_count_the_claims():
    claims = [Claim("a", "x", "1", True), Claim("b", "x", "2", False), Claim("c", "x", "3", True)]
    section = Section("s", claims=claims, cards=[Card("loss", "0.5")])
    counted = Report("t", ["f"], [section, section])
    assert [(card.label, card.value) for card in counted.first_cards] == [
        ("reproduced", "4"),
        ("not reproduced", "2"),
    ]
    assert [card.label for card in Report("t", ["f"], [section]).first_cards] == ["loss"]
    given = Report("t", ["f"], [section], cards=[Card("limit", "2.2", "verified", "#D55E00")])
    page = render(given)
    assert texts(outline(page), "card") == ["limit 2.2 verified"]
    assert 'style="--mark:#d55e00"' in page


def test_texts_of_cards_and_values_are_escaped_and_a_colour_is_a_colour():
    bad = Card(HOSTILE, HOSTILE, HOSTILE, '#fff"onload="alert(1)')
    shown = Picture(
        picture().svg, "t", values=[Series(HOSTILE, HOSTILE, HOSTILE, [(1, 2, "3", "4")])]
    )
    report = Report("t", ["f"], [Section("s", pictures=[shown])], headline=HOSTILE, cards=[bad])
    found = outline(render(report))
    assert len(found.named("script")) == 1
    (card,) = (e for e in found.elements if e.attributes.get("class") == "card")
    assert set(card.attributes) == {"class"}
    (values,) = texts(found, "values")
    assert json.loads(values) == [[HOSTILE, HOSTILE, HOSTILE, [[1, 2, "3", "4"]]]]


def test_folded_parts_are_closed_and_others_open():
    folded = Table("By seed", ("x",), [(1,)], folded=True)
    sections = [Section("a", tables=[TABLE, folded]), Section("b", folded=True)]
    found = outline(render(Report("t", ["f"], sections)))
    kinds = [(e.attributes["class"], "open" in e.attributes) for e in found.named("details")]
    assert kinds == [("menu", False), ("part", True), ("fold", False), ("part", False)]
    assert "Table: By seed" in [e.text for e in found.named("summary")]


def test_contents_name_every_section(page):
    menus = outline(page).named("nav")
    assert len(menus) == 2  # beside the page, and a menu on a phone
    for menu in menus:
        names = [line for line in menu.text.splitlines() if line]
        assert names == ["Summary", "First", "Second", "Third", "All claims"]
