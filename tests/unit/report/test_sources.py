import json
import os
import sqlite3
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from matplotlib.figure import Figure
from tests.references.html_outline import outline

from normscope.errors import DataError, InputError, NormscopeError
from normscope.experiments import Result
from normscope.report import Download, Report, Section, Table, render, report_of, write_report
from normscope.results import Claim, Store

DOCS = Path(__file__).parents[3] / "docs" / "results"
HOSTILE = "<script>alert(1)</script>"


def draw(dataset):
    figure = Figure(figsize=(3, 2))
    figure.subplots().plot(dataset["step"], dataset["loss"])
    return figure


def result(name="wei2018/figure1", scale="small", label=None):
    dataset = xr.Dataset({"loss": ("step", [2.0, 1.0])}, {"step": [0, 1]})
    claims = (
        Claim("the loss falls", "wei2018, Figure 1", "2 to 1", True),
        Claim("it rises", "wei2018, Figure 1", "it does not", False),
    )
    settings = {"seeds": 3, "seed": 0, "gammas": (0.5, 1.0)}
    return Result(name, scale, dataset, claims, settings, {"seeds": 3}, 12.5, draw, label)


@pytest.fixture
def folder(tmp_path):
    result().write(tmp_path)
    return tmp_path


@pytest.mark.parametrize("suffix", [".json", ".nc", ".svg", ".md"])
def test_any_file_of_a_result_stands_for_all(folder, suffix):
    report = report_of([folder / "wei2018" / f"figure1{suffix}"])
    assert report.title == "wei2018/figure1"
    (section,) = report.sections
    assert len(section.pictures) == 1
    assert [claim.verdict for claim in section.claims] == ["reproduced", "not reproduced"]
    assert section.settings == {"scale": "small", "seeds": 3, "seed": 0, "gammas": [0.5, 1.0]}
    assert section.command == "normscope run wei2018/figure1 --scale small --set seeds=3"
    assert [each.name for each in section.downloads] == [
        "wei2018_figure1.csv",
        "wei2018_figure1.nc",
    ]
    assert report.findings[0] == "Of 2 claims, 1 is reproduced and 1 is not reproduced."
    assert report.findings[1].startswith("Not reproduced in wei2018/figure1: it rises")


def test_result_makes_the_same_section_as_its_files(folder):
    (read,) = report_of([folder / "wei2018" / "figure1.json"]).sections
    made = result().section()
    same = ("title", "paragraphs", "claims", "settings", "versions", "command", "seconds", "tables")
    for name in same:
        assert getattr(made, name) == getattr(read, name), name
    assert [each.content for each in made.downloads[:1]] == [
        each.content for each in read.downloads[:1]
    ]


def test_time_is_said_to_be_that_of_the_run_alone(folder):
    """A run whose trainings are in its store takes no time; that is not what they cost."""
    (section,) = report_of([folder / "wei2018" / "figure1.json"]).sections
    assert section.seconds == 12.5
    page = render(report_of([folder / "wei2018" / "figure1.json"]))
    assert "It took 12 seconds, without what a store had from earlier runs." in page


def test_result_writes_a_report_of_its_own(tmp_path):
    path = result(label=HOSTILE, scale="quick").report(tmp_path / "own.html")
    found = outline(path.read_text(encoding="utf-8"))
    assert found.named("h1")[0].text == f"{HOSTILE} (wei2018/figure1)"
    assert len(found.named("script")) == 1
    assert "The quick scale shows" in path.read_text(encoding="utf-8")


def test_files_given_twice_are_reported_once(folder):
    path = folder / "wei2018"
    report = report_of([path / "figure1.svg", path / "figure1.json", path])
    assert len(report.sections) == 1


def test_folder_gives_all_its_results_in_the_order_of_their_numbers():
    report = report_of([DOCS / "santurkar2018"])
    titles = [section.title for section in report.sections]
    assert titles.index("santurkar2018/figure8") < titles.index("santurkar2018/figure11")
    assert len(titles) == len(list((DOCS / "santurkar2018").rglob("*.json")))
    assert all(section.pictures for section in report.sections)
    page = outline(render(report))  # no numbers beside them: said, with the command
    assert "gives it." in next(e.text for e in page.named("main"))
    ids = page.values("id")
    assert len(ids) == len(set(ids))


def test_folder_reads_stores_and_lone_numbers_but_not_strangers(folder):
    (folder / "notes.json").write_text('{"a": 1}', encoding="utf-8")
    (folder / "picture.png").write_bytes(b"x")
    xr.Dataset({"y": ("x", [1.0])}).to_netcdf(folder / "lone.nc", engine="scipy")
    with Store(folder / "runs.sqlite") as store:
        store.compute("demo", {"a": 1}, 0, lambda: xr.Dataset({"z": 1.0}))
    titles = [section.title for section in report_of([folder]).sections]
    assert titles == ["wei2018/figure1", "lone.nc", "demo in runs.sqlite"]


def test_lone_numbers_become_a_table(tmp_path):
    dataset = xr.Dataset(
        {"loss": ("step", [3.0, np.nan, 1.0]), "name": ("step", ["a", "b", "c"])},
        attrs={"settings": json.dumps({"width": 10}), "loss": HOSTILE},
    )
    dataset.to_netcdf(tmp_path / "x.nc", engine="scipy")
    (section,) = report_of([tmp_path / "x.nc"]).sections
    rows = {row[0]: row[1:] for row in section.tables[0].rows}
    assert rows["loss"] == ("step", 3, 1, 1.0, 2.0, 3.0)
    assert rows["name"][2:] == (None, None, None, None)
    assert section.settings == {"width": 10, "loss": HOSTILE}


def test_title_is_the_users_or_that_of_the_only_result(folder):
    assert report_of([folder], title="Mine").title == "Mine"
    result("wei2018/figure2").write(folder)
    report = report_of([folder])
    assert report.title == "normscope report"
    assert [row[:3] for row in report.summary.rows] == [
        ("wei2018/figure1", 1, 1),
        ("wei2018/figure2", 1, 1),
    ]


def write(path, content):
    path.write_bytes(content)
    return path


def record(**changes):
    return json.dumps({**result().to_dict(), **changes}).encode()


@pytest.mark.parametrize(
    ("name", "content", "kind", "message"),
    [
        ("x.png", b"x", InputError, "report cannot read"),
        ("x.svg", b"<svg/>", InputError, "has no x.json beside it"),
        ("x.json", b'{"a": 1}', InputError, "is not a result of normscope run"),
        ("x.json", b"{", DataError, "cannot be read as JSON"),
        ("x.json", b"[" * 100_000, DataError, "cannot be read as JSON"),
        ("x.json", b"\xff\xfe", DataError, "cannot be read as JSON"),
        ("x.json", record(claims=[{"text": 1}]), DataError, "x.json: a claim has text"),
        ("x.nc", b"CDF\x01garbage", DataError, "cannot be read as NetCDF"),
        ("x.nc", b"\x89HDF\r\n", DataError, "cannot be read as NetCDF"),
        ("x.sqlite", b"SQLite format 3\x00" + b"\x00" * 600, NormscopeError, "x.sqlite"),
        ("x.sqlite", b"hello" * 200, DataError, "not a store of normscope"),
        ("x.bin", b"SQLite format 3\x00" + b"x" * 600, NormscopeError, "x.bin"),
    ],
)
def test_wrong_and_broken_files_are_told_in_one_sentence(tmp_path, name, content, kind, message):
    path = write(tmp_path / name, content)
    with pytest.raises(kind, match=message) as raised:
        report_of([path])
    assert "\n" not in str(raised.value)


def test_broken_drawing_beside_a_result_is_named(folder):
    (folder / "wei2018" / "figure1.svg").write_text("<svg", encoding="utf-8")
    with pytest.raises(DataError, match="figure1"):
        render(report_of([folder / "wei2018" / "figure1.json"]))
    with pytest.raises(DataError, match="figure1"):  # there is nothing else
        report_of([folder])
    result("wei2018/figure2").write(folder)
    report = report_of([folder])
    assert [section.title for section in report.sections] == ["wei2018/figure2"]
    assert report.findings[-1].startswith("Not in this report: figure1.json (")


def test_strays_in_a_folder_are_passed_over_and_named(folder):
    with sqlite3.connect(folder / "mlflow.db") as connection:
        connection.execute("CREATE TABLE runs (name TEXT)")
    connection.close()
    (folder / "lost.nc").symlink_to(folder / "nowhere.nc")
    (folder / ".figure1-abc.nc").write_bytes(b"half")
    (folder / ".cache").mkdir()
    (folder / ".cache" / "old.nc").write_bytes(b"half")
    (folder / "torn.nc").write_bytes(b"CDF\x01garbage")
    (folder / "folder.nc").mkdir()
    with Store(folder / "phase.sqlite") as store:
        store.compute("demo", {"a": 1}, 0, lambda: xr.Dataset({"z": 1.0}))
        store.to_netcdf(folder / "phase.nc", "demo")
    report = report_of([folder])
    titles = [section.title for section in report.sections]
    assert titles == ["wei2018/figure1", "demo in phase.sqlite"]
    left = report.findings[-1]
    assert left.startswith("Not in this report: phase.nc (a sweep writes it from phase.sqlite)")
    assert "mlflow.db (" in left
    assert "torn.nc (" in left
    assert "lost" not in left
    named = report_of([folder, folder / "phase.nc"])
    assert "phase.nc" in [section.title for section in named.sections]
    assert "phase.nc (" not in named.findings[-1]


def test_numbers_beside_an_unrelated_json_stand_alone(tmp_path):
    xr.Dataset({"a": ("x", [1.0])}).to_netcdf(tmp_path / "beside.nc", engine="scipy")
    (tmp_path / "beside.json").write_text('{"x": 1}', encoding="utf-8")
    (section,) = report_of([tmp_path / "beside.nc"]).sections
    assert section.title == "beside.nc"
    assert section.paragraphs == ["1 variable over x: 1."]
    assert section.command_note.startswith("There is no command")


def test_relative_and_absolute_path_are_one_input(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    xr.Dataset({"a": ("x", [1.0])}).to_netcdf("a.nc", engine="scipy")
    (tmp_path / "link.nc").symlink_to("a.nc")
    assert len(report_of(["a.nc", tmp_path / "a.nc", "link.nc"]).sections) == 1


@pytest.mark.parametrize("suffix", [".json", ".nc", ".svg", ".md"])
def test_page_never_replaces_what_it_was_made_of(folder, suffix):
    report = report_of([folder])
    path = folder / "wei2018" / f"figure1{suffix}"
    before = path.read_bytes()
    (folder / "link.html").hardlink_to(path)
    for out in (path, folder / "link.html"):
        with pytest.raises(InputError, match="is one of the files that the report is made of"):
            write_report(report, out)
    assert path.read_bytes() == before


def test_half_characters_do_not_stop_a_page(tmp_path):
    path = tmp_path / "label.json"
    path.write_bytes(record(label="half \ud800 a character"))
    strange = tmp_path / os.fsdecode(b"\xff.nc")
    xr.Dataset({"a": ("x", [1.0])}).to_netcdf(strange, engine="scipy")
    page = write_report(report_of([path, strange]), tmp_path / "page.html")
    assert "half ? a character" in page.read_text(encoding="utf-8")


def test_seconds_beyond_any_number_are_refused(tmp_path):
    path = write(tmp_path / "x.json", record(seconds=10**400))
    with pytest.raises(DataError, match=r"x\.json: the seconds of the record are too large"):
        report_of([path])
    (section,) = report_of([write(tmp_path / "y.json", record(seconds=float("nan")))]).sections
    assert section.seconds is None
    settings = write(tmp_path / "z.json", record(settings={"n": 10**400}))
    assert "1000000" in render(report_of([settings]))


def test_quick_result_withholds_its_verdicts_in_both_reports(tmp_path):
    quick = result(scale="quick")
    paths = quick.write(tmp_path)
    quick.report(tmp_path / "own.html")
    findings = report_of([paths["record"]]).findings
    assert not [each for each in findings if each.startswith("Not reproduced")]
    found = outline((tmp_path / "own.html").read_text(encoding="utf-8"))
    own = [e.text for e in found.elements if e.attributes.get("class") in ("headline", "finding")]
    assert own == list(findings)
    notes = [e.text for e in found.elements if e.attributes.get("class") == "small"]
    assert notes
    assert all(note.endswith("quick scale") for note in notes)


def page_of(numbers):
    """A page of its own kind, for numbers that are called so."""
    if "known" not in numbers:
        return None
    section = Section("Its part", ["Found in it."])
    return Report("A known kind", ["Found."], [section], asked="What?")


def test_numbers_of_a_known_kind_keep_their_own_page(tmp_path):
    xr.Dataset({"known": ("x", [1.0])}).to_netcdf(tmp_path / "a.nc", engine="scipy")
    (tmp_path / "report.html").write_text("<p>", encoding="utf-8")
    for given in (tmp_path, tmp_path / "a.nc"):
        report = report_of([given], page_of=page_of)
        assert (report.title, report.question) == ("A known kind", "What?")
        assert list(report.findings) == ["Found."]
        assert list(report.sources) == [tmp_path / "a.nc"]
    assert report_of([tmp_path], title="Mine", page_of=page_of).title == "Mine"


def test_known_kind_leads_a_page_of_several_files(folder):
    xr.Dataset({"known": ("x", [1.0])}).to_netcdf(folder / "a.nc", engine="scipy")
    (folder / "torn.nc").write_bytes(b"CDF\x01garbage")
    report = report_of([folder], page_of=page_of)
    assert report.title == "A known kind"
    assert [each.title for each in report.sections] == ["Its part", "wei2018/figure1"]
    assert report.findings[:2] == [
        "Found.",
        "Of 2 claims, 1 is reproduced and 1 is not reproduced.",
    ]
    assert report.findings[-1].startswith("Not in this report: torn.nc (")
    render(report)


def page_with_files(numbers):
    """A page that says the same of all numbers, but for one."""
    section = Section("Limits", downloads=[Download("demo.csv", "text/csv", b"1")])
    table = Table("Limits of nets", ["limit"], [[1.0]])
    found = f"The limit is {float(numbers['known'][0]):g}."
    return Report("A known kind", [found], [section], summary=table)


def test_pages_of_several_files_are_told_apart(tmp_path):
    for number, name in enumerate(["first", "second"]):
        (tmp_path / name).mkdir()
        numbers = xr.Dataset({"known": ("x", [float(number)])})
        numbers.to_netcdf(tmp_path / name / "demo.nc", engine="scipy")
    report = report_of([tmp_path / "first", tmp_path / "second"], page_of=page_with_files)
    assert list(report.findings) == [
        "first/demo: The limit is 0.",
        "second/demo: The limit is 1.",
    ]
    assert [each.title for each in report.sections] == ["first/demo: Limits", "second/demo: Limits"]
    files = [each.name for section in report.sections for each in section.downloads]
    assert files == ["first_demo_demo.csv", "second_demo_demo.csv"]
    assert report.summary.caption == "first/demo: Limits of nets"
    alone = report_of([tmp_path / "first"], page_of=page_with_files)
    assert list(alone.findings) == ["The limit is 0."]
    assert alone.sections[0].downloads[0].name == "demo.csv"


def test_files_of_one_name_are_told_apart_by_their_folders(tmp_path):
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        numbers = xr.Dataset({"y": ("x", [1.0])})
        numbers.to_netcdf(tmp_path / name / "same.nc", engine="scipy")
        numbers.to_netcdf(tmp_path / name / f"{name}.nc", engine="scipy")
    report = report_of([tmp_path / "first", tmp_path / "second"])
    heads = ["first.nc", "first/same.nc", "second/same.nc", "second.nc"]
    assert sorted(each.title for each in report.sections) == sorted(heads)
    files = [each.name for section in report.sections for each in section.downloads]
    assert len(set(files)) == len(files)


def store_at(path, experiment="demo"):
    path.parent.mkdir(exist_ok=True)
    with Store(path) as store:
        store.compute(experiment, {"a": 1}, 0, lambda: xr.Dataset({"z": 1.0}))
    return path


def test_findings_of_files_of_one_name_say_whose_they_are(tmp_path):
    paths = [store_at(tmp_path / name / "phase.sqlite") for name in ("a", "b")]
    report = report_of(paths)
    holds = "phase.sqlite holds 1 record: 1 finished."
    assert [each for each in report.findings if "holds" in each] == [
        f"a/phase: {holds}",
        f"b/phase: {holds}",
    ]
    other = store_at(tmp_path / "c" / "phase.sqlite", "another")  # under a head of its own
    assert report_of([paths[0], other]).findings[-1].startswith("c/phase: phase.sqlite holds")
    alone = report_of(paths[:1])
    assert alone.findings[0] == holds
    assert alone.sections[0].downloads[0].name == "demo_records.csv"


def test_findings_that_two_files_share_say_whose_they_are(tmp_path):
    for name in ("a.nc", "b.nc"):
        xr.Dataset({"y": ("x", [1.0])}).to_netcdf(tmp_path / name, engine="scipy")
    found = report_of([tmp_path]).findings
    assert list(found) == ["a: 1 variable over x: 1.", "b: 1 variable over x: 1."]


def test_downloads_are_told_apart_under_heads_that_differ(tmp_path):
    paths = [store_at(tmp_path / "c" / f"phase.{ending}") for ending in ("db", "sqlite")]
    sections = report_of(paths).sections
    assert [each.title for each in sections] == ["demo in phase.db", "demo in phase.sqlite"]
    files = [each.name for section in sections for each in section.downloads]
    assert files[0] == "phase.db_demo_records.csv"
    assert len(set(files)) == len(files) > 2


def test_downloads_of_a_page_and_of_a_store_are_told_apart(tmp_path):
    xr.Dataset({"known": ("x", [1.0])}).to_netcdf(tmp_path / "a.nc", engine="scipy")
    report = report_of(
        [tmp_path / "a.nc", store_at(tmp_path / "b.sqlite")], page_of=page_with_files
    )
    files = [each.name for section in report.sections for each in section.downloads]
    assert len(set(files)) == len(files)


def test_missing_file_suggests_the_closest(folder):
    (folder / "runs.sqlite").touch()
    with pytest.raises(InputError, match=r"does not exist; did you mean '.*runs\.sqlite'\?"):
        report_of([folder / "runs.sqlit"])
    with pytest.raises(InputError, match="nor does the folder"):
        report_of([folder / "nowhere" / "runs.sqlite"])


def test_empty_folder_and_empty_store_are_told(tmp_path):
    with pytest.raises(InputError, match="holds no result and no store"):
        report_of([tmp_path])
    Store(tmp_path / "runs.sqlite").close()
    with pytest.raises(InputError, match="holds no records yet"):
        report_of([tmp_path / "runs.sqlite"])


def test_nothing_at_all_is_refused():
    with pytest.raises(InputError, match="name at least one"):
        report_of([])


def test_command_of_a_file_is_text_from_outside(folder):
    """Somebody else's file may name any command: it is shown, and not copied by a click."""
    path = folder / "wei2018" / "figure1.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**record, "command": "curl x | sh"}), encoding="utf-8")
    path.with_suffix(".nc").unlink()
    page = outline(render(report_of([path])))
    assert "curl x | sh" in [each.text for each in page.named("code")]
    assert any("normscope has not checked" in each.text for each in page.named("p"))
    assert not [each for each in page.named("button") if each.attributes.get("class") == "copy"]


def test_command_of_the_run_itself_can_be_copied():
    page = outline(render(Report("t", [], [result().section()])))
    assert [each for each in page.named("button") if each.attributes.get("class") == "copy"]


def test_command_in_the_numbers_of_a_page_is_text_from_outside(tmp_path):
    xr.Dataset({"y": ("x", [1.0])}).to_netcdf(tmp_path / "lone.nc", engine="scipy")
    made = Report("t", [], [Section("s", command="curl x | sh"), Section("without")])
    report = report_of([tmp_path / "lone.nc"], page_of=lambda numbers: made)
    assert [each.foreign_command for each in report.sections] == [True, False]


@pytest.mark.parametrize("name", ["\u00b21", "\u0663.nc", "1\u00b2", "\u0661"])
def test_names_with_other_digits_are_sorted(tmp_path, name):
    for each in (name, "2"):
        path = tmp_path / each
        path.mkdir()
        xr.Dataset({"y": ("x", [1.0])}).to_netcdf(path / "lone.nc", engine="scipy")
    assert len(report_of([tmp_path]).sections) == 2
