"""``normscope data``: which data sets there are, where they lie, and whether they are sound."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from normscope.cli.destinations import check_folder
from normscope.cli.help_texts import Command
from normscope.cli.names import check_name, completion_of
from normscope.cli.options import Json, with_example

if TYPE_CHECKING:
    from normscope.data import Check
    from normscope.data.inventory import Status

app = typer.Typer(
    name="data",
    help="List, find, download and verify the data sets.",
    epilog=with_example("normscope data list"),
    rich_markup_mode=None,
)

Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="digits, mnist, cifar10 or gaussian.",
        autocompletion=completion_of(kind="data"),
    ),
]
NameOrAll = Annotated[
    str | None,
    typer.Argument(
        metavar="NAME",
        help="digits, mnist, cifar10 or gaussian.",
        show_default="all that are here",
        autocompletion=completion_of(kind="data"),
    ),
]
Root = Annotated[
    Path | None,
    typer.Option(help="Look in this folder and nowhere else.", metavar="FOLDER"),
]
Target = Annotated[
    Path | None,
    typer.Option(
        "--out",
        "-o",
        "--root",
        help="Download into this folder instead of the user cache.",
        metavar="FOLDER",
    ),
]


def _folder(name: str, root: Path | None) -> Path | None:
    check_name("data", name)
    from normscope.data import parts, path
    from normscope.data.inventory import missing_error

    where = path(name, root)
    if where is None and parts(name):
        raise missing_error(name, root)
    return where


@app.command("list", cls=Command, epilog=with_example("normscope data list --json"))
def list_datasets(root: Root = None, as_json: Json = False) -> None:
    """Every data set: what it is, whether it is present, and where."""
    from normscope.cli.output import print_json
    from normscope.cli.tables import print_table
    from normscope.data import inventory

    statuses = inventory(root)
    if as_json:
        print_json(
            [
                {
                    "name": status.name,
                    "what": status.what,
                    "present": status.present,
                    "where": None if status.where is None else str(status.where),
                    "problem": status.problem or None,
                }
                for status in statuses
            ]
        )
        return
    rows: list[dict[str, object]] = [
        {
            "name": status.name,
            "here": status.present,
            "what": status.what,
            "where": _where(status),
        }
        for status in statuses
    ]
    print_table("data sets", rows)


def _where(status: Status) -> str:
    if status.where is not None:
        return str(status.where)
    if status.present:
        return "needs no files"
    return status.problem or f"not here; normscope data fetch {status.name}"


@app.command("path", cls=Command, epilog=with_example("normscope data path mnist"))
def print_path(name: Name, root: Root = None, as_json: Json = False) -> None:
    """The folder that holds the files of a data set."""
    from normscope.cli.output import print_json

    where = _folder(name, root)
    if as_json:
        print_json({"name": name, "path": None if where is None else str(where)})
    else:
        typer.echo(where or f"{name} needs no files")


@app.command("fetch", cls=Command, epilog=with_example("normscope data fetch cifar10"))
def fetch(name: Name, root: Target = None, as_json: Json = False) -> None:
    """Download a data set, if it is not on this machine already."""
    from normscope.cli.output import print_json

    check_name("data", name)
    if root is not None:
        check_folder(root, "files")
    from normscope.data import download

    where = download(name, root)
    if as_json:
        print_json({"name": name, "path": None if where is None else str(where)})
    else:
        typer.echo(where or f"{name} needs no files")


@app.command(
    "verify",
    cls=Command,
    short_help="Compare the files with the official digests.",
    epilog=with_example("normscope data verify mnist --root ~/data"),
)
def verify_files(name: NameOrAll = None, root: Root = None, as_json: Json = False) -> None:
    """Compare the raw content of all files with the official digests; exit 1 if one differs."""
    from normscope.cli.output import print_json

    names = _with_files(root) if name is None else [name]
    found = {each: _checks(each, root) for each in names}
    if as_json:
        print_json([_plain(check) for checks in found.values() for check in checks])
    else:
        for each, checks in found.items():
            _print_checks(each, checks)
        if not found:
            typer.echo("no data set that has files is here; see normscope data list")
    if not all(check.ok for checks in found.values() for check in checks):
        raise typer.Exit(1)


def _with_files(root: Path | None) -> list[str]:
    """The data sets that lie on this machine as files."""
    from normscope.data import inventory
    from normscope.errors import InputError

    found = inventory(root)
    if problem := next((each.problem for each in found if each.problem), ""):
        raise InputError(problem)
    return [each.name for each in found if each.present and each.where is not None]


def _checks(name: str, root: Path | None) -> list[Check]:
    from normscope.cli.output import progress

    _folder(name, root)  # before the progress bar begins: a missing file is one line
    from normscope.data import parts, verify

    with progress(f"verifying {name}", len(parts(name))) as begin:
        return list(verify(name, root, begin))


def _plain(check: Check) -> dict[str, object]:
    return {
        "file": str(check.file),
        "part": check.part,
        "ok": check.ok,
        "message": check.message,
    }


def _print_checks(name: str, checks: list[Check]) -> None:
    for check in checks:
        typer.echo(f"{'ok' if check.ok else 'FAILED':<8}{check.part}  {check.message}")
    if not checks:
        typer.echo(f"{name} needs no files")
