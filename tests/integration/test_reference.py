"""The reference leaves no public name out, and each has a docstring."""

import ast
import importlib
import importlib.util
import inspect
import re
import zlib
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def _loaded(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


HOOK = _loaded(ROOT / "docs" / "complete_reference.py")
PUBLIC = HOOK.public_names()
PAGES = sorted((ROOT / "docs" / "reference").glob("*.md"))
DIRECTIVE = re.compile(r"^::: ([\w.]+)", re.MULTILINE)
REFERRED = {name for page in PAGES for name in DIRECTIVE.findall(page.read_text(encoding="utf-8"))}
PATHS = {module: names for module, names in PUBLIC.items() if module != "normscope"}
NAMES = [(module, name) for module, names in PATHS.items() for name in names]


def attribute_docstring(module, name):
    """The text below an assignment, which only the source has."""
    body = ast.parse(Path(module.__file__).read_text(encoding="utf-8")).body
    for node, after in pairwise(body):
        target = getattr(node, "target", None) or next(iter(getattr(node, "targets", [])), None)
        if target is not None and ast.unparse(target) == name and isinstance(after, ast.Expr):
            return ast.literal_eval(after.value)
    return None


def defined_in(module, name):
    """The module in which an imported name is assigned."""
    for node in ast.walk(ast.parse(Path(module.__file__).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and name in {alias.name for alias in node.names}:
            return importlib.import_module(node.module)
    return module


def test_public_packages_are_found():
    assert {"normscope.layers", "normscope.curvature", "normscope.problem"} <= set(PUBLIC)
    assert "convert" in PUBLIC["normscope.layers"]


@pytest.mark.parametrize("module", PATHS)
def test_public_package_has_a_page(module):
    assert module in REFERRED


@pytest.mark.parametrize(("module", "name"), NAMES)
def test_public_name_has_a_docstring(module, name):
    home = importlib.import_module(module)
    value = getattr(home, name)
    if inspect.isclass(value) or inspect.isroutine(value):
        own = value.__dict__.get("__doc__") if inspect.isclass(value) else value.__doc__
    else:
        own = attribute_docstring(defined_in(home, name), name)
    assert own, f"{module}.{name} has no docstring"
    assert not own.startswith(f"{name}("), "a dataclass that only repeats its signature"


def test_every_chart_and_adapter_has_a_page():
    """They are imported from their own modules, so no ``__all__`` lists them."""
    home = ROOT / "src" / "normscope"
    charts = {f"normscope.plots.{file.stem}" for file in (home / "plots").glob("[a-z]*.py")}
    extras = ("lightning", "mlflow", "tensorboard", "transformers", "wandb")
    assert charts | {f"normscope.integrations.{name}" for name in extras} <= REFERRED


def test_directives_name_modules_that_exist():
    for path in REFERRED:
        home, _, name = path.rpartition(".")
        loaded = importlib.import_module(home)
        assert hasattr(loaded, name) or importlib.util.find_spec(path), path


def test_names_of_normscope_itself_are_on_its_page():
    page = (ROOT / "docs" / "reference" / "normscope.md").read_text(encoding="utf-8")
    missing = [name for name in PUBLIC["normscope"] if f"`ns.{name}`" not in page]
    assert missing == ["__version__"]


def test_build_fails_on_a_name_that_is_left_out():
    everything = {path for names in PATHS.values() for path in names.values()}
    assert HOOK.left_out(everything) == []
    missing = HOOK.left_out(everything - {"normscope.layers.surgery.fold.fold"})
    assert missing == ["normscope.layers.fold"]


@pytest.mark.parametrize(("module", "name"), NAMES)
def test_name_that_a_module_hides_is_asked_for_by_its_path(module, name):
    """mkdocstrings takes `layers.fold` for the module and leaves the function out."""
    path = PATHS[module][name]
    if path == f"{module}.{name}.{name}":
        assert {path, f"{module}.{name}"} & REFERRED


def test_inventory_is_read():
    head = b"# Sphinx inventory version 2\n# Project: x\n# Version: 1\n# zlib\n"
    lines = b"a.fold.fold py:function 1 layers/#$ -\na.fold py:module 1 layers/#$ -\n"
    assert HOOK.documented(head + zlib.compress(lines)) == {"a.fold.fold"}
