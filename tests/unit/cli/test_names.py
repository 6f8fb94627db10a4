import importlib

import pytest

from normscope.cli.names import HOMES, SOURCES, completion_of, names_in_source


@pytest.mark.parametrize("kind", HOMES)
def test_names_in_source_are_those_of_the_registry(kind):
    """What a shell completes without torch is what the commands know with it."""
    home, registry = HOMES[kind]
    known = getattr(importlib.import_module(home), registry)
    own = [name for name in known if _home_of(known[name]).startswith("normscope.")]
    assert names_in_source(kind) == sorted(own)
    assert own


def _home_of(item):
    measured = getattr(item, "measure", item)  # a recipe
    return getattr(measured, "__module__", "") or ""


def test_every_kind_has_sources():
    assert set(SOURCES) == set(HOMES)


def test_completion_takes_words_and_names():
    complete = completion_of("status", kind="experiments")
    assert complete("sta") == ["status"]
    assert "wei2018/figure1" in complete("wei2018/")
    assert complete("no such") == []
