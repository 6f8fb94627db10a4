import importlib

import pytest

from normscope.cli.names import KINDS, check_name, completion_of
from normscope.errors import UnknownNameError


@pytest.mark.parametrize("kind", KINDS)
def test_table_has_the_names_of_the_registry(kind):
    registry = KINDS[kind].registry()
    own = {name for name in registry if _module_of(registry[name]).startswith("normscope.")}
    table = set(KINDS[kind].names)
    assert own <= table, f"add {sorted(own - table)} to the table in normscope/cli/names.py"
    assert table <= own, f"remove {sorted(table - own)} from the table in normscope/cli/names.py"
    assert list(KINDS[kind].names) == sorted(own)
    assert KINDS[kind].noun == registry.kind


def _module_of(item):
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
    known = KINDS["models"].registry()
    with pytest.raises(UnknownNameError, match=r"unknown model 'later'\. .*vgg16; or ask me\.$"):
        check_name("models", "later", hint="or ask me")
    monkeypatch.setitem(known._items, "later", None)
    check_name("models", "later")


def test_completion_takes_words_and_names():
    complete = completion_of("status", kind="experiments")
    assert complete("sta") == ["status"]
    assert "wei2018/figure1" in complete("wei2018/")
    assert complete("no such") == []
