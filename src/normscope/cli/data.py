"""``normscope data``: list, locate, download and verify data sets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from normscope.cli import options as opt
from normscope.cli.app import app, command, format_example
from normscope.cli.names import check_name
from normscope.cli.render import check_folder, print_json, print_table
from normscope.errors import InputError
from normscope.progress_bar import show_progress

if TYPE_CHECKING:
    from normscope.data import Check
    from normscope.data.inventory import Status

group = typer.Typer(
    name="data",
    help="List, find, download and verify the data sets.",
    epilog=format_example("normscope data list"),
    rich_markup_mode=None,
)
app.add_typer(group, name="data")

_NAME = ("NAME", "digits, mnist, cifar10 or gaussian.")
Name = Annotated[str, opt.argument(*_NAME, kind="data")]
NameOrAll = Annotated[str | None, opt.argument(*_NAME, kind="data", default="all that are here")]
Root = Annotated[Path | None, opt.option("FOLDER", "Look in this folder and nowhere else.")]
_TARGET = "Download into this folder instead of the user cache."
Target = Annotated[Path | None, opt.option("FOLDER", _TARGET, "--out", "-o", "--root")]


@command("list", to=group)
def list_datasets(root: Root = None, as_json: opt.Json = False) -> None:
    """Every data set: what it is, whether it is present, and where.

    Example: normscope data list --json
    """
    from normscope.data import inventory

    statuses = inventory(root)
    if as_json:
        print_json([{**each.to_dict(), "problem": each.problem or None} for each in statuses])
        return
    rows = [
        {"name": each.name, "here": each.present, "what": each.what, "where": _location(each)}
        for each in statuses
    ]
    print_table("data sets", rows)


def _location(status: Status) -> str:
    if status.where is not None:
        return str(status.where)
    if status.present:
        return "needs no files"
    return status.problem or f"not here; normscope data fetch {status.name}"


@command("path", to=group)
def print_path(name: Name, root: Root = None, as_json: opt.Json = False) -> None:
    """The folder that holds the files of a data set.

    Example: normscope data path mnist
    """
    _print_path(name, _folder(name, root), as_json)


@command("fetch", to=group)
def fetch(name: Name, root: Target = None, as_json: opt.Json = False) -> None:
    """Download a data set, if it is not on this machine already.

    Example: normscope data fetch cifar10
    """
    check_name("data", name)
    if root is not None:
        check_folder(root, "files")
    from normscope.data import download

    _print_path(name, download(name, root), as_json)


def _print_path(name: str, where: Path | None, as_json: bool) -> None:
    if as_json:
        print_json({"name": name, "path": None if where is None else str(where)})
    else:
        typer.echo(where or f"{name} needs no files")


@command("verify", "Compare the files with the official digests.", to=group)
def verify_files(name: NameOrAll = None, root: Root = None, as_json: opt.Json = False) -> None:
    """Compare the raw content of all files with the official digests; exit 1 if one differs.

    Example: normscope data verify mnist --root ~/data
    """
    names = _names_with_files(root) if name is None else [name]
    found = {each: _verify(each, root) for each in names}
    if as_json:
        print_json([check.to_dict() for checks in found.values() for check in checks])
    else:
        for each, checks in found.items():
            for check in checks:
                typer.echo(f"{'ok' if check.ok else 'FAILED':<8}{check.part}  {check.message}")
            if not checks:
                typer.echo(f"{each} needs no files")
        if not found:
            typer.echo("no data set that has files is here; see normscope data list")
    if not all(check.ok for checks in found.values() for check in checks):
        raise typer.Exit(1)


def _names_with_files(root: Path | None) -> list[str]:
    """Return the data sets that are on this machine as files."""
    from normscope.data import inventory

    found = inventory(root)
    if problem := next((each.problem for each in found if each.problem), ""):
        raise InputError(problem)
    return [each.name for each in found if each.present and each.where is not None]


def _verify(name: str, root: Path | None) -> list[Check]:
    _folder(name, root)  # a missing file is an error before the progress bar starts
    from normscope.data import verify

    with show_progress(f"verifying {name}") as show:
        return list(verify(name, root, show))


def _folder(name: str, root: Path | None) -> Path | None:
    check_name("data", name)
    from normscope.data import parts, path
    from normscope.data.inventory import missing_error

    where = path(name, root)
    if where is None and parts(name):
        raise missing_error(name, root)
    return where
