"""The page: a report as one HTML file that needs nothing else."""

from __future__ import annotations

import base64
import hashlib
import os
from functools import cache
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from normscope import __version__
from normscope.errors import InputError
from normscope.files import replacing
from normscope.report.cells import cell, numeric_columns, shown
from normscope.report.colours import DARK, LIGHT
from normscope.report.document import Download, Report
from normscope.report.places import shown_first, shown_sections
from normscope.report.words import printable, said_seconds

__all__ = ["render", "write_report"]


def render(report: Report) -> str:
    """The report as HTML.

    One file without outside references: style, script, drawings and data are inside it, and its
    content policy forbids the browser to load anything. All texts are escaped.

    Args:
        report: what to show.
    """
    style, script = _asset("page.css"), _asset("page.js")
    template = _environment().get_template("page.html.j2")
    return printable(
        template.render(
            report=report,
            first=shown_first(report),
            sections=list(shown_sections(report)),
            style=Markup(style),
            script=Markup(script),
            policy=_policy(style, script),
            version=__version__,
        )
    )


def write_report(report: Report, path: str | os.PathLike[str]) -> Path:
    """Write the report as one HTML file, all of it or nothing.

    Args:
        report: what to show.
        path: of the file; one that is there is replaced, unless the report was made of it.

    Returns:
        The path.

    Raises:
        InputError: if the path is a folder or one of the report's sources.
    """
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path} is a folder; name a file in it, such as {path / 'report.html'}.")
    if any(_is_same(path, source) for source in report.sources):
        raise InputError(f"{path} is one of the files that the report is made of; name another.")
    text = render(report)
    with replacing(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")
    return path


def _is_same(path: Path, source: Path) -> bool:
    """Whether two paths are one file, by whichever links."""
    if path.resolve() == source.resolve():
        return True
    return path.exists() and source.exists() and path.samefile(source)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("normscope.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"cell": cell, "shown": shown, "breakable": _breakable}
    environment.filters |= {"href": _href, "size": _size, "said_seconds": said_seconds}
    environment.globals |= {"numeric_columns": numeric_columns, "light": LIGHT, "dark": DARK}
    return environment


@cache
def _asset(name: str) -> str:
    return (files("normscope.report") / "templates" / name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    """What the browser may do: run this script, apply this style, show pictures inside the file."""
    rules = (
        "default-src 'none'",
        "img-src data:",
        f"script-src '{_digest(script)}'",
        f"style-src-elem '{_digest(style)}'",
        "style-src-attr 'unsafe-inline'",  # of the drawings, which were cleaned
        "base-uri 'none'",
        "form-action 'none'",
    )
    return "; ".join(rules)


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _href(download: Download) -> Markup:
    """The file's bytes as an address."""
    content = base64.b64encode(download.content).decode()
    return Markup("data:{};base64,{}").format(download.media_type, content)


def _breakable(name: str) -> Markup:
    """The name of a variable, which may be broken after an underscore so that columns are narrow.

    >>> _breakable("a_<b>")
    Markup('a_<wbr>&lt;b&gt;')
    """
    return Markup("_<wbr>").join(name.split("_"))


def _size(download: Download) -> str:
    """The size of a file in words."""
    size = len(download.content)
    return f"{size} bytes" if size < 1000 else f"{size / 1000:.3g} kB"
