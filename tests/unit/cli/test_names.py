import importlib

import pytest

from normscope.cli.names import (
    KINDS,
    check_name,
    completion_of,
    names_in_source,
    summaries_in_source,
)
from normscope.errors import UnknownNameError


def registry_of(kind):
    home = importlib.import_module(KINDS[kind].home)
    return getattr(home, KINDS[kind].registry)


@pytest.mark.parametrize("kind", KINDS)
def test_names_and_lines_in_source_are_those_of_the_registry(kind):
    """What is told without torch is what the commands know with it."""
    known = registry_of(kind)
    own = [name for name in known if _home_of(known[name]).startswith("normscope.")]
    assert own
    assert names_in_source(kind) == sorted(own)
    assert summaries_in_source(kind) == {name: known.summary(name) for name in sorted(own)}
    assert KINDS[kind].noun == known.kind


def _home_of(item):
    measured = getattr(item, "measure", item)  # a recipe
    return getattr(measured, "__module__", "") or ""


def test_unknown_name_is_refused_and_one_that_the_registry_learned_later_is_not(monkeypatch):
    monkeypatch.delitem(importlib.import_module("sys").modules, "normscope.models", raising=False)
    check_name("models", "vgg")
    check_name("models", "status", "status")
    with pytest.raises(UnknownNameError, match="unknown model 'vg'; did you mean 'vgg'"):
        check_name("models", "vg")
    with pytest.raises(UnknownNameError, match="unknown sweep 'vg'"):
        check_name("models", "vg", noun="sweep")
    monkeypatch.undo()
    known = registry_of("models")
    with pytest.raises(UnknownNameError, match=r"unknown model 'later'; .*vgg16; or ask me\.$"):
        check_name("models", "later", hint="or ask me")
    monkeypatch.setitem(known._items, "later", None)
    check_name("models", "later")


def test_completion_takes_words_and_names():
    complete = completion_of("status", kind="experiments")
    assert complete("sta") == ["status"]
    assert "wei2018/figure1" in complete("wei2018/")
    assert complete("no such") == []
