"""Package, citation and changelog speak of the same version."""

import re
import tomllib
from pathlib import Path

import pytest

import normscope

ROOT = Path(__file__).parents[2]


def cited(field):
    """A field of the citation; None if it has none."""
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    found = re.search(rf"^{field}: (\S+)$", text, re.MULTILINE)
    return found[1] if found else None


def sections(text):
    """The sections of a changelog by their heads."""
    _, *parts = re.split(r"^## ", text, flags=re.MULTILINE)
    return dict(part.split("\n", 1) for part in parts)


def misfits(changelog, version, released):
    """What does not fit in a changelog, of a package of this version, cited with this date."""
    heads = sections(changelog)
    ours = [head for head in heads if head.startswith(f"[{version}]")]
    if ours:
        return [head for head in ours if head != f"[{version}] - {released}"]
    told = version in heads.get("[Unreleased]", "").split("###")[0]
    return ([] if told else ["no word of the version"]) + (["a date"] if released else [])


def test_package_and_citation_have_one_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == normscope.__version__ == cited("version")


def test_version_is_released_with_a_date_or_said_to_come_without_one():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert misfits(text, normscope.__version__, cited("date-released")) == []


@pytest.mark.parametrize(
    ("changelog", "released", "fits"),
    [
        ("## [Unreleased]\n\nTowards 1.0.\n", None, True),
        ("## [Unreleased]\n\nTowards 1.0.\n", "2026-01-02", False),
        ("## [Unreleased]\n\n### Added\n\n- what 1.0 has\n", None, False),
        ("## [Unreleased]\n\n## [1.0] - 2026-01-02\n\n- all\n", "2026-01-02", True),
        ("## [Unreleased]\n\n## [1.0] - 2026-01-02\n\n- all\n", None, False),
    ],
)
def test_misfits_of_a_changelog_are_found(changelog, released, fits):
    assert (misfits(changelog, "1.0", released) == []) == fits
