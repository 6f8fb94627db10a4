"""Results of ``normscope run`` as sections, from the run itself or from its files."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import xarray as xr

from normscope.errors import DataError, InputError
from normscope.report.datasets import variables_table
from normscope.report.document import Download, Picture, Section
from normscope.report.downloads import dataset_downloads
from normscope.report.narrative import claims_sentence
from normscope.results import Claim
from normscope.results.claim import ORIGINS
from normscope.text import plural

_MOST_FINDINGS = 5
_MOST_FAILED = 3  # claims named on the first screen
_OF_THIS_RUN = "without what a store had from earlier runs"
_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "name": str,
    "scale": str,
    "command": str,
    "settings": dict,
    "seconds": (int, float),
    "versions": dict,
    "claims": list,
}
QUICK = "The quick scale shows that everything runs; the paper is judged at scale small or paper."


def result_section(
    record: Mapping[str, Any],
    picture: Picture | None = None,
    dataset: xr.Dataset | None = None,
    *,
    from_file: bool = False,
) -> Section:
    """Return the result of an experiment as a section.

    Args:
        record: as ``Result.to_dict`` returns it.
        picture: the figure; its texts are replaced by those of the record.
        dataset: the numbers.
        from_file: whether the record was read from a file, which may be anybody's.

    Raises:
        DataError: if the record is not a result.
    """
    if not is_result_record(record):
        raise DataError("the record is not one of normscope run; run the experiment again.")
    claims = tuple(_claim(each) for each in record["claims"])
    name, scale = record["name"], record["scale"]
    label = record.get("label")
    words = claims_sentence(claims) if claims else "No claim is judged by this experiment."
    quick = [QUICK] if scale == "quick" else []
    return Section(
        title=f"{label} ({name})" if label else name,
        paragraphs=[f"{name} at {scale} scale. {words}", *quick],
        pictures=[] if picture is None else [_described(picture, name, scale, claims)],
        tables=[]
        if dataset is None
        else [replace(variables_table(dataset), folded=picture is not None)],
        claims=claims,
        settings={"scale": scale, **record["settings"]},
        versions={key: str(value) for key, value in record["versions"].items()},
        command=record["command"],
        seconds=_seconds(record["seconds"]),
        seconds_note=_OF_THIS_RUN,
        downloads=_downloads(name, dataset),
        foreign_command=from_file,
        asked=f"Does {label or name} come out as the paper says?" if "/" in name else "",
    )


def section_of_files(path: Path) -> Section:
    """Return the files of a run, in one folder, as a section.

    Args:
        path: of the .json among them.

    Raises:
        InputError: if it is not a result.
        DataError: if it cannot be read.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(
            f"{path} cannot be read as JSON ({error}); run the experiment again."
        ) from error
    if not is_result_record(record):
        raise InputError(
            f"{path} is not a result of normscope run, which has {', '.join(_TYPES)}; name another."
        )
    svg, numbers = path.with_suffix(".svg"), path.with_suffix(".nc")
    try:
        drawn = Picture(svg.read_text(encoding="utf-8"), "") if svg.is_file() else None
    except (OSError, ValueError) as error:
        raise DataError(f"{svg} cannot be read ({error}); run the experiment again.") from error
    dataset = read_numbers(numbers) if numbers.is_file() else None
    return result_section(record, drawn, dataset, from_file=True)


def is_result_record(record: object) -> bool:
    """Return whether a value is what ``Result.to_dict`` returns."""
    return isinstance(record, Mapping) and all(
        isinstance(record.get(key), kind) for key, kind in _TYPES.items()
    )


def read_numbers(path: Path) -> xr.Dataset:
    """Return the dataset of a NetCDF file, loaded into memory.

    Args:
        path: of the file.

    Raises:
        DataError: if it cannot be read.
    """
    try:
        with xr.open_dataset(path, engine="scipy") as opened:
            return opened.load()
    except Exception as error:  # the reader may raise anything on a broken file
        raise DataError(
            f"{path} cannot be read as NetCDF 3 ({' '.join(str(error).split())[:160]}); write it "
            "again by normscope, or by xarray with engine='scipy'."
        ) from error


def _seconds(value: float) -> float | None:
    """Return the duration; None if it is not finite."""
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError as error:  # JSON integers are unbounded
        raise DataError("the seconds of the record are too large; run it again.") from error


def _claim(values: object) -> Claim:
    if isinstance(values, Mapping):
        texts = [values.get(key) for key in ("text", "source", "measured")]
        holds = values.get("holds")
        if all(isinstance(text, str) for text in texts) and (
            holds is None or isinstance(holds, bool)
        ):
            return Claim(str(texts[0]), str(texts[1]), str(texts[2]), holds, **_details(values))
    raise DataError(f"a claim has text, source, measured and holds, got {str(values)[:80]!r}.")


def _details(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return statement, rule, origin and remedy of a claim, which older records lack."""
    names = ("statement", "rule", "resolve")
    found: dict[str, Any] = {name: str(values.get(name) or "") for name in names}
    origin = values.get("origin")
    found["origin"] = origin if origin in ORIGINS else ORIGINS[0]
    found["partly"] = values.get("partly") is True and values.get("holds") is None
    return found


def _described(picture: Picture, name: str, scale: str, claims: tuple[Claim, ...]) -> Picture:
    """Return a picture with the text and caption of a result."""
    verdicts = " ".join(f"{each.verdict.capitalize()}: {each.text}." for each in claims)
    text = f"The figure of {name} at {scale} scale. {verdicts}"
    caption = f"{name} at {scale} scale, in the layout of the paper."
    return replace(picture, text=text, caption=caption)


def _downloads(name: str, dataset: xr.Dataset | None) -> tuple[Download, ...]:
    stem = name.replace("/", "_")
    if dataset is not None:
        return dataset_downloads(dataset, stem)
    reason = "not in this page, since it was not beside the result; running it again gives it."
    return (Download(f"{stem}.nc", "application/netcdf", b"", reason),)


def findings_of(sections: Sequence[Section], names: Sequence[str] | None = None) -> list[str]:
    """Return the first screen: claims counted, failed ones named, then the other sections.

    Args:
        sections: the results.
        names: of each section's file, to put before its sentences; "" if that is not needed.
    """
    names = [""] * len(sections) if names is None else names
    claims = [claim for section in sections for claim in section.claims]
    found = [claims_sentence(claims)] if claims else []
    judged = [section for section in sections if section.settings.get("scale") != "quick"]
    if len(judged) < len(sections):
        found.append(QUICK)
    failed = [(each, claim) for each in judged for claim in each.claims if claim.holds is False]
    found += [
        f"Not reproduced in {section.title}: {claim.text} ({claim.measured})."
        for section, claim in failed[:_MOST_FAILED]
    ]
    if len(failed) > _MOST_FAILED:
        more = len(failed) - _MOST_FAILED
        verb = "is" if more == 1 else "are"
        found.append(f"{plural(more, 'further claim')} {verb} not reproduced; see below.")
    others = [each for each in zip(sections, names, strict=True) if not each[0].claims]
    shown = others[: max(_MOST_FINDINGS - len(found), 1)]
    each = max((_MOST_FINDINGS - len(found)) // max(len(shown), 1), 1)
    found += [
        f"{name}: {sentence}" if name else sentence
        for section, name in shown
        for sentence in section.paragraphs[:each]
    ]
    if len(others) > len(shown):
        more = len(others) - len(shown)
        verb = "follows" if more == 1 else "follow"
        found.append(f"{plural(more, 'further section')} {verb} below.")
    return found
