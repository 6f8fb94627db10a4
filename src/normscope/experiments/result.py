"""The result of an experiment: numbers, verdicts, a figure, and the files of all three."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xarray as xr

from normscope.files import replacing
from normscope.report import Report, Section, picture_of, result_section, write_report
from normscope.report.runs import QUICK, findings_of
from normscope.results import Claim, claims_table
from normscope.results.claim import ORIGINS
from normscope.results.tables import present_versions
from normscope.text import Table

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Result:
    """A run of an experiment.

    Args:
        name: of the experiment.
        scale: quick, small, medium or paper.
        dataset: the labelled numbers.
        claims: the paper's statements with their verdicts.
        settings: all settings of the run.
        overrides: those of them that differ from the scale's.
        seconds: duration of this run, without trainings found in a store.
        draw: makes the figure from the numbers.
        label: a user-defined name for this run.
    """

    name: str
    scale: str
    dataset: xr.Dataset
    claims: tuple[Claim, ...]
    settings: Mapping[str, Any]
    overrides: Mapping[str, Any]
    seconds: float
    draw: Callable[[xr.Dataset], Figure] = field(repr=False)
    label: str | None = None

    def figure(self) -> Figure:
        """Return the figure, in the paper's layout."""
        return self.draw(self.dataset)

    @property
    def command(self) -> str:
        """The command that gives this result."""
        given = [
            f"--set {shlex.quote(f'{key}={_value(value)}')}"
            for key, value in self.overrides.items()
        ]
        return " ".join(["normscope run", self.name, f"--scale {self.scale}", *given])

    @property
    def versions(self) -> dict[str, str]:
        """Versions of normscope, torch, numpy and Python."""
        return present_versions()

    @property
    def missing(self) -> list[str]:
        """Trainings that a read-only store lacks; the claims are judged without them."""
        return [each for each in str(self.dataset.attrs.get("missing", "")).split("; ") if each]

    def to_dict(self) -> dict[str, Any]:
        """Return everything except the dataset, as plain values."""
        return {
            "name": self.name,
            "label": self.label,
            "scale": self.scale,
            "command": self.command,
            "settings": {key: plain_value(value) for key, value in self.settings.items()},
            "seconds": self.seconds,
            "versions": self.versions,
            "claims": [claim.to_dict() for claim in self.claims],
            "missing": self.missing,
        }

    def to_dataframe(self) -> pd.DataFrame:
        """One row per claim; the numbers are labelled arrays, in ``dataset``."""
        import pandas as pd

        return pd.DataFrame([claim.to_dict() for claim in self.claims])

    def write(self, folder: str | Path) -> dict[str, Path]:
        """Write numbers (.nc), figure (.svg), claims as text (.md) and as values (.json).

        Args:
            folder: gets a folder for the paper, with the four files named after the figure.

        Returns:
            Their paths, by what they hold.
        """
        stem = Path(folder) / self.name
        paths = {
            "numbers": stem.with_suffix(".nc"),
            "figure": stem.with_suffix(".svg"),
            "claims": stem.with_suffix(".md"),
            "record": stem.with_suffix(".json"),
        }
        with replacing(paths["numbers"]) as unfinished:
            self.dataset.to_netcdf(unfinished, engine="scipy")
        with replacing(paths["figure"]) as unfinished:
            self.figure().savefig(unfinished, metadata={"Date": None})
        with replacing(paths["claims"]) as unfinished:
            unfinished.write_text(self.to_markdown(), encoding="utf-8")
        with replacing(paths["record"]) as unfinished:
            text = json.dumps(self.to_dict(), indent=2, allow_nan=False)
            unfinished.write_text(text + "\n", encoding="utf-8")
        return paths

    def section(self) -> Section:
        """Return this run as a section of a report."""
        picture = picture_of(self.figure(), text=self.name)
        return result_section(self.to_dict(), picture, self.dataset)

    def report(self, path: str | os.PathLike[str]) -> Path:
        """Write one HTML file with figure, claims, settings and numbers.

        Args:
            path: of the file.

        Returns:
            The path.
        """
        section = self.section()
        return write_report(Report(section.title, findings_of([section]), [section]), path)

    def to_markdown(self) -> str:
        """Return a Markdown page: the command, the figure and the claims with their verdicts."""
        settings = ", ".join(f"{key}={_value(value)}" for key, value in self.settings.items())
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        picture = f"{self.name.rpartition('/')[2]}.svg"
        parts = [
            f"# {self.label or self.name}, {self.scale} scale",
            f"`{self.command}`, {self.seconds:.0f} s.",
            f"![Figure of {self.name}]({picture})",
            claims_table(self.claims) if self.claims else "No claim is judged by this experiment.",
            *([QUICK] if self.scale == "quick" else []),
            *([f"Not in the store yet: {'; '.join(self.missing)}."] if self.missing else []),
            f"Settings: `{settings}`. Versions: {versions}.",
        ]
        return "\n\n".join(parts) + "\n"

    def __str__(self) -> str:
        """Return the verdicts, one line each; a quick run is marked."""
        lines = [f"{self.name} at {self.scale} scale, {self.seconds:.1f} s"]
        quick = self.scale == "quick"
        lines += [QUICK] if quick else []
        of_what = " in this quick run" if quick else ""
        for origin, mark in zip(ORIGINS, ("", f" [{ORIGINS[1]}]"), strict=True):
            lines += [
                f"  {each.verdict}{of_what}: {each.text} ({each.measured}){mark}"
                for each in self.claims
                if each.origin == origin
            ]
        lines += [f"  Not in the store: {each}" for each in self.missing]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        names = ("verdict", "text", "measured")
        rows = [{name: getattr(each, name) for name in names} for each in self.claims]
        heading, *_ = str(self).splitlines()
        return Table(rows, heading, [QUICK] if self.scale == "quick" else []).html()


def plain_value(value: Any) -> Any:
    """Convert a setting to JSON types."""
    if isinstance(value, (tuple, list)):
        return [plain_value(item) for item in value]
    return value.item() if hasattr(value, "item") else value


def _value(value: Any) -> str:
    """Format a setting for the command line: a Python literal without spaces, or a string."""
    return value if isinstance(value, str) else repr(plain_value(value)).replace(", ", ",")
