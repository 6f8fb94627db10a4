"""The documentation keeps its word: code blocks run, commands parse, links lead somewhere."""

import importlib
import importlib.util
import json
import re
import shlex
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
from tests.references.command_line import parse

from normscope.cli.main import main
from normscope.experiments import EXPERIMENTS
from normscope.results import VERDICTS, combine_verdicts
from normscope.sweeps import ENGINES

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
SHELL = re.compile(r"^```(?:bash|text|console|sh)\n(.*?)^```", re.MULTILINE | re.DOTALL)
REGISTERS = re.compile(r"^@(?:experiment\b|[A-Z]+\.register)", re.MULTILINE)


def text_of(page):
    return page.read_text(encoding="utf-8")


def page_name(page):
    return str(page.relative_to(ROOT))


PAGES_WITH_CODE = [page for page in PAGES if BLOCK.search(text_of(page))]
REGISTERING = [page for page in PAGES_WITH_CODE if REGISTERS.search(text_of(page))]
PLAIN = [
    page for page in PAGES_WITH_CODE if page not in REGISTERING and page.name != "README.md"
]  # the README has a test of its own


@pytest.mark.parametrize("page", PLAIN, ids=page_name)
def test_code_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    for block in BLOCK.findall(text_of(page)):
        exec(compile(block, page.name, "exec"), names)


@pytest.mark.parametrize("page", REGISTERING, ids=page_name)
def test_code_blocks_that_register_something_run_in_a_process_of_their_own(page, tmp_path):
    """So that the registries of this process stay as they are."""
    program = "\n".join(BLOCK.findall(text_of(page)))
    (tmp_path / "page.py").write_text(program, encoding="utf-8")
    command = [sys.executable, "-W", "error", "page.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_pages_that_must_have_code_have_it():
    named = {page_name(page) for page in PAGES_WITH_CODE}
    how_to = {page_name(page) for page in (DOCS / "how_to").glob("*.md")}
    assert how_to | {"README.md", "docs/tutorial.md", "CONTRIBUTING.md"} <= named
    assert len(how_to) >= 6


@pytest.mark.parametrize("page", sorted((DOCS / "how_to").glob("*.md")), ids=page_name)
def test_how_to_pages_are_at_most_two_screens(page):
    prose = re.sub(r"^```.*?^```", "", text_of(page), flags=re.MULTILINE | re.DOTALL)
    assert len(prose.split()) <= 450


def test_thresholds_of_instability_are_on_one_page():
    """The other pages link there, so that a change has one place."""
    threshold = re.compile(r"\b(1\.5|3|1000) times\W+(\(.*?\) )?(its|their|the) first", re.DOTALL)
    pages = [ROOT / "README.md", *DOCS.glob("*.md"), *DOCS.glob("[chr]*/*.md")]
    stated = [page_name(page) for page in pages if threshold.search(text_of(page))]
    assert [name for name in stated if "/results/" not in name] == [
        "docs/concepts/stability_limit.md"
    ]
    page = text_of(DOCS / "concepts" / "stability_limit.md")
    assert all(f"**{number} times**" in page for number in ("1.5", "3", "1000"))


def test_python_and_command_of_the_readme_give_the_same_numbers(tmp_path, monkeypatch, capsys):
    """The same question with the same defaults; the printed answer is that of the page."""
    page = text_of(ROOT / "README.md")
    names: dict[str, object] = {}
    exec(compile(BLOCK.findall(page)[0], "README.md", "exec"), names)
    advice, printed = names["advice"], capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in printed] == ["recommended", "limit", "found"]
    for name in ("recommended", "limit"):  # the page's output, up to rounding of other machines
        (shown,) = re.findall(rf"^{name} +([\d.]+)", page, re.MULTILINE)
        assert float(shown) == pytest.approx(getattr(advice, name), rel=0.2)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (command,) = (each for each in commands_of(ROOT / "README.md") if " lr " in each)
    assert main([*shlex.split(command)[1:], "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    for name in ("recommended", "limit", "curvature_bound", "predicted", "verified", "interval"):
        assert answer[name] == pytest.approx(getattr(advice, name), rel=1e-12), name


def commands_of(page):
    """Every command line of a page's shell blocks, whole, without comments and placeholders."""
    for block in SHELL.findall(text_of(page)):
        for line in re.sub(r"\s*\\\n\s*", " ", block).splitlines():
            bare = re.sub(r"\s(#|\s\s).*", "", line)  # a remark, or a column of descriptions
            command = bare.removeprefix("$ ").removeprefix("srun ").strip()
            if command.startswith("normscope ") and " ... " not in command:
                yield command


COMMANDS = sorted({command for page in PAGES for command in commands_of(page)})
CHEAP = re.compile(r"normscope (list|data list|data path digits|.*--help|--version)")


@pytest.mark.parametrize("command", [each for each in COMMANDS if not CHEAP.match(each)])
def test_commands_parse(command):
    context = parse(shlex.split(command)[1:])
    if context.info_name == "run":
        recipe = EXPERIMENTS[context.params["experiment"]]
        assert context.params["scale"] in recipe.scales
    if context.info_name == "sweep":
        assert context.params["engine"] in ENGINES
        assert context.params["name"] in {"phase_diagram", "status", *EXPERIMENTS}


@pytest.mark.parametrize("command", [each for each in COMMANDS if CHEAP.match(each)])
def test_cheap_commands_run(command, capsys):
    assert main(shlex.split(command)[1:]) == 0
    assert capsys.readouterr().out


EXAMPLE = "examples/my_model.py:build --data examples/my_model.py:samples"
EXECUTED = [  # seconds each, on embedded data, in an order in which each finds its files
    f"normscope theory {EXAMPLE} --json",
    "normscope theory fully_connected --gamma 0.1:3:30 --closure all --plot",
    f"normscope curvature {EXAMPLE} --kind hessian",
    f"normscope check {EXAMPLE} --layer blocks.0.0",
    f"normscope landscape {EXAMPLE} --points 9 -o surface.svg -o surface.html",
    "normscope landscape fully_connected --data digits --option width=20 --points 9 "
    "--directions hessian,random --mode eval --json",
    "normscope doctor examples/faulty_model.py:build --data examples/faulty_model.py:samples",
    "normscope lr my_net.py:build --data my_net.py:samples --momentum 0.9 --batch-size 64 "
    "-o rates.svg",
    "normscope compare examples/small_net.py:build --data digits --momentum 0.9 --batch-size 128 "
    "--norms none,batch,layer --steps 100",
    "normscope run wei2018/figure1 --out normscope-out",
    "normscope run wei2018/figure1 --scale quick",
    "normscope report normscope-out -o report.html",
    "normscope sweep phase_diagram --scale quick --out phase.sqlite",
    "normscope sweep status phase.sqlite",
    "normscope watch phase.sqlite --once",
    "normscope report normscope-out phase.sqlite -o report.html",
]


SLOW = [  # on embedded data, too long for every run of the tests
    "normscope check",
    "normscope check --form printed",
    "normscope compare fully_connected --data digits --norms none,batch,layer --steps 50 "
    "--no-verify -o compared.svg",
    "normscope curvature fully_connected --data digits --option width=30 --batch-size 128 "
    "--kind hessian --spectrum --probes 3 --lanczos-steps 20 -o spectrum.svg",
    f"normscope lr {EXAMPLE} --batch-size 128",
]
REAL = [  # on MNIST and CIFAR-10
    "normscope compare fully_connected --data mnist --norms none,batch,layer -o compared.svg",
    "normscope curvature vgg --data cifar10 --option width=0.25 --batch-size 128 --spectrum "
    "-o vgg.svg",
    "normscope lr vgg --data cifar10 --option width=0.25 --momentum 0.9 --json",
    "normscope sweep phase_diagram --set gamma=0.1:3:12 --set lr=1e-3:1:16:log --seeds 5 "
    "--scale paper --dry-run",
]
RUNS = sorted({each.split()[2] for each in COMMANDS if each.startswith("normscope run ")})


def write_own_net(folder):
    """The file that the pages for a user's own model call my_net.py."""
    page = DOCS / "how_to" / "own_model.md"
    (folder / "my_net.py").write_text(BLOCK.findall(text_of(page))[0], encoding="utf-8")


def test_quick_commands_run(tmp_path, monkeypatch, capsys):
    assert {*EXECUTED, *SLOW, *REAL} <= set(COMMANDS)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    write_own_net(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for command in EXECUTED:
        assert main(shlex.split(command)[1:]) == 0, command
        assert capsys.readouterr().out


def run_in(folder, command, monkeypatch, capsys):
    """A command in a folder from which the examples are seen."""
    assert command in COMMANDS
    (folder / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    code = main(shlex.split(command)[1:])
    assert code == (1 if "--form printed" in command else 0)  # a printed form is false
    assert capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("command", SLOW)
def test_slow_commands_run(command, tmp_path, monkeypatch, capsys):
    run_in(tmp_path, command, monkeypatch, capsys)


@pytest.mark.real_data
@pytest.mark.parametrize("command", REAL)
def test_commands_on_real_data_run(command, tmp_path, monkeypatch, capsys):
    run_in(tmp_path, command, monkeypatch, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("experiment", RUNS)
def test_experiments_of_the_pages_run_at_their_smallest_scale(experiment, tmp_path, capsys):
    command = ["run", experiment, "--scale", "quick", "--out", str(tmp_path)]
    assert main(command) == 0
    assert capsys.readouterr().out


def test_only_large_sweeps_and_own_folders_are_not_executed():
    pages = (DOCS / "how_to" / name for name in ("own_model.md", "other_models.md"))
    own = {command for page in pages for command in commands_of(page)}  # the latter with extras
    own |= set(commands_of(ROOT / "README.md"))
    executed = own | {*EXECUTED, *SLOW, *REAL} | {each for each in COMMANDS if CHEAP.match(each)}
    left = [each for each in COMMANDS if each not in executed and each.split()[1] != "run"]
    assert {tuple(each.split()[1:3]) for each in left} == {
        ("data", "verify"),
        ("sweep", "phase_diagram"),
        ("sweep", "wei2018/figure1"),
        ("watch", "phase.sqlite"),  # until Ctrl-C
    }


def test_functions_in_the_walks_of_calls_exist():
    """CONTRIBUTING.md lists the functions a call runs through as ``folder/file.py:name``."""
    named = re.findall(r"`(\w+/[\w/]+)\.py:(\w+)`", text_of(ROOT / "CONTRIBUTING.md"))
    assert len(named) > 25
    for file, name in named:
        module = importlib.import_module(
            "normscope." + file.removesuffix("/__init__").replace("/", ".")
        )
        assert hasattr(module, name), f"{file}.py has no {name}"


def test_many_commands_were_found():
    assert len(COMMANDS) > 30


def test_commands_of_the_page_on_own_models_run(tmp_path, monkeypatch, capsys):
    write_own_net(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    commands = list(commands_of(DOCS / "how_to" / "own_model.md"))
    assert len(commands) == 6
    for command in commands:
        assert main(shlex.split(command)[1:]) == 0, command
        assert capsys.readouterr().out


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_links_lead_somewhere(page):
    text = re.sub(r"\$[^$]+\$|`[^`\n]+`", "", text_of(page))  # formulas and code have brackets too
    targets = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", text)
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert not missing


def test_every_page_is_in_the_navigation_or_linked():
    """A page that nobody can reach is as good as none."""
    navigation = text_of(ROOT / "mkdocs.yml")
    linked = {
        (page.parent / target).resolve()
        for page in PAGES
        for target in re.findall(r"\]\((?!https?:|#)([^)#\s]+\.md)", text_of(page))
    }
    lost = [
        page_name(page)
        for page in PAGES[1:]
        if str(page.relative_to(ROOT)).removeprefix("docs/") not in navigation
        and page.resolve() not in linked
    ]
    assert not lost


def test_gallery_of_results_is_up_to_date():
    command = [sys.executable, str(DOCS / "gallery.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_gallery_links_every_record_to_its_page_with_claims_and_command():
    gallery = text_of(DOCS / "results" / "index.md")
    records = sorted((DOCS / "results").glob("*/**/*.json"))
    assert len(records) >= 18
    for record in records:
        where = record.relative_to(DOCS / "results").with_suffix("").as_posix()
        name, page = f"{where.split('/')[0]}/{record.stem}", record.with_suffix(".md")
        assert f"]({where}.svg)]({where}.md)" in gallery
        assert record.with_suffix(".svg").is_file()
        assert f"normscope run {name} " in text_of(page)
        claims = json.loads(text_of(record))["claims"]
        listed = re.findall(rf"\| ({'|'.join(VERDICTS)})(?:: [^|]*)? \|", text_of(page))
        assert sorted(listed) == sorted(claim["verdict"] for claim in claims)


def gallery_module():
    found = importlib.util.spec_from_file_location("gallery", DOCS / "gallery.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_gallery_opens_with_the_verdict_on_every_statement_of_the_papers():
    gallery = text_of(DOCS / "results" / "index.md")
    tables = gallery[: gallery.index("## Figures")]
    for record in sorted((DOCS / "results").glob("*/**/*.json")):
        for claim in json.loads(text_of(record))["claims"]:
            statement = claim.get("statement") or claim["text"]
            is_papers = claim.get("origin", "paper") == "paper"
            assert not is_papers or statement.replace("|", "\\|") in tables
    for verdicts in product(VERDICTS, repeat=3):
        assert gallery_module().combined(list(verdicts)) == combine_verdicts(verdicts)


def test_every_claim_is_on_its_page_and_the_gallery_is_short():
    page = text_of(DOCS / "results" / "claims.md")
    row = rf"^\| \[\w+\]\(\S+\), \w+ \|.*\| ({'|'.join(VERDICTS)}) \|$"
    listed = re.findall(row, page, re.MULTILINE)
    records = sorted((DOCS / "results").glob("*/**/*.json"))
    claims = [claim for record in records for claim in json.loads(text_of(record))["claims"]]
    assert sorted(listed) == sorted(claim["verdict"] for claim in claims)
    gallery = text_of(DOCS / "results" / "index.md")
    assert len(gallery[: gallery.index("## Figures")].split()) < 2500


def test_explanations_of_the_gallery_are_those_of_its_verdicts():
    gallery = text_of(DOCS / "results" / "index.md")
    rows = gallery[: gallery.index("## Figures")].splitlines()
    explained = json.loads(text_of(DOCS / "results" / "why.json"))
    assert len(explained) > 20
    for begin, entry in explained.items():
        (row,) = [row for row in rows if row.startswith(f"| {begin}")]
        assert f"**{entry['verdict']}**" in row
        assert row.endswith(f"| {entry['why']} |")
    assert [row for row in rows if row.startswith("| ") and row.endswith("|  |")] == []
    assert gallery_module().cell("1.13e+03, 2.77e-07, a | b") == r"1,130, 2.77e-7, a \| b"


def test_gallery_has_every_figure_that_can_be_run():
    gallery = text_of(DOCS / "results" / "index.md")
    figures = [name for name in EXPERIMENTS if "/" in name]  # the tour is of no paper
    assert len(figures) > 20
    assert [name for name in figures if f"**[{name}]" not in gallery] == []


ERRATUM = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def test_each_erratum_names_a_test_that_exists():
    rows = [
        line
        for line in text_of(DOCS / "research" / "errata.md").splitlines()
        if line.startswith("| ")
    ][2:]
    assert len(rows) > 30
    for row in rows:
        file, name = ERRATUM.search(row).groups()
        assert f"def {name}(" in text_of(ROOT / file), row
