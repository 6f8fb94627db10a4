import importlib
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from normscope.errors import DuplicateNameError, NormscopeError, UnknownNameError
from normscope.registry import Registry, unknown_name


@pytest.fixture
def shapes():
    shapes = Registry("shape")

    @shapes.register
    def square():
        """Four equal sides.

        And more.
        """
        return 4

    @shapes.register(name="tri-angle")
    def triangle():
        return 3

    return shapes


def test_registry_finds_an_item_by_its_own_or_given_name(shapes):
    assert shapes["square"]() == 4
    assert shapes["tri-angle"]() == 3
    assert list(shapes) == ["square", "tri-angle"]
    assert len(shapes) == 2
    assert "square" in shapes
    assert "triangle" not in shapes


def test_registry_summary_is_the_first_docstring_line(shapes):
    assert shapes.summary("square") == "Four equal sides."
    assert shapes.summary("tri-angle") == ""


def test_unknown_name_lists_the_choices_and_the_closest(shapes):
    with pytest.raises(UnknownNameError, match=r"did you mean 'square'\?.*square, tri-angle"):
        shapes["sqare"]


def test_unknown_name_without_a_close_one_lists_the_choices(shapes):
    with pytest.raises(ValueError, match=r"unknown shape 'zzz'\. Choices: square, tri-angle"):
        shapes["zzz"]


def test_short_name_names_all_that_end_so():
    figures = Registry("figure")
    for name in ("one/figure1", "two/figure1", "two/figure11"):
        figures.register(name=name)(lambda: None)
    with pytest.raises(UnknownNameError, match=r"did you mean 'one/figure1' or 'two/figure1'\?"):
        figures["figure1"]


def test_beginning_and_capitals_are_understood(shapes):
    with pytest.raises(UnknownNameError, match=r"did you mean 'square'\?"):
        shapes["SQUARE"]
    with pytest.raises(UnknownNameError, match=r"did you mean 'tri-angle'\?"):
        shapes["tri"]


@pytest.mark.parametrize("common", ["mse", "MSE", "mse_loss", "ce", "crossentropy"])
def test_common_name_is_understood_where_the_thing_is_a_choice(common):
    meant = "squared_error" if common.lower().startswith("mse") else "cross_entropy"
    error = unknown_name("loss", common, ["squared_error", "cross_entropy"])
    assert f"did you mean '{meant}'?" in str(error)
    assert "squared_error" not in str(unknown_name("loss", common, ["hinge"]))


def test_name_that_is_like_no_choice_is_no_misspelling():
    norms = ["none", "batch", "noisy", "l1", "l2", "linf", "layer", "group"]
    assert "did you mean" not in str(unknown_name("normalization", "instance", norms))
    assert "did you mean 'layer'?" in str(unknown_name("normalization", "leyer", norms))


def test_many_names_are_not_all_printed():
    names = [f"paper/figure{number}" for number in range(13)]
    assert str(unknown_name("experiment", "paper/figur7", names)) == (
        "unknown experiment 'paper/figur7'; did you mean 'paper/figure7'? All 13 are in: "
        "normscope list experiments."
    )
    assert str(unknown_name("experiment", "?", names)) == (
        "unknown experiment '?'. All 13 are in: normscope list experiments."
    )
    assert "Choices: paper/figure0, " in str(unknown_name("experiment", "?", names[:12]))
    assert "Choices: paper/figure0, " in str(unknown_name("layer", "?", names))


def test_duplicate_name_raises(shapes):
    with pytest.raises(DuplicateNameError, match="'square' is registered already"):

        @shapes.register(name="square")
        def other():
            return 5

    assert shapes["square"]() == 4


def test_modules_load_at_the_first_look_up(tmp_path, monkeypatch):
    (tmp_path / "late_shapes.py").write_text("import builtins\nbuiltins.loaded_shapes = True\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    late = Registry("shape", modules=["late_shapes"])
    assert "late_shapes" not in sys.modules
    assert list(late) == []
    assert "late_shapes" in sys.modules


def test_modules_load_once_for_all_threads(tmp_path, monkeypatch):
    for number in range(20):
        (tmp_path / f"threaded_{number}.py").write_text("import time\ntime.sleep(0.002)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    late = Registry("shape", modules=[f"threaded_{number}" for number in range(20)])
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda _: len(late), range(8))) == [0] * 8
    assert all(f"threaded_{number}" in sys.modules for number in range(20))


def test_failed_import_is_tried_again(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    late = Registry("shape", modules=["appears_later"])
    for _ in range(2):
        with pytest.raises(ModuleNotFoundError):
            len(late)


def test_every_error_has_the_common_root():
    assert issubclass(UnknownNameError, NormscopeError)
    assert issubclass(DuplicateNameError, NormscopeError)


def test_registry_imports_every_module_of_its_package(tmp_path, monkeypatch):
    folder = tmp_path / "shapes_package"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "from normscope.registry import Registry\nSHAPES = Registry('shape', package=__name__)\n"
    )
    for name in ("circle", "square"):
        (folder / f"{name}.py").write_text(
            "from shapes_package import SHAPES\n\n"
            f"@SHAPES.register(name={name!r})\ndef make():\n    return {name!r}\n"
        )
    monkeypatch.syspath_prepend(tmp_path)
    shapes = importlib.import_module("shapes_package").SHAPES
    assert "shapes_package.circle" not in sys.modules  # until the first look-up
    assert list(shapes) == ["circle", "square"]
    assert shapes["circle"]() == "circle"
