"""A user's file is looked at before it is run."""

import subprocess
import sys

import pytest

from normscope.cli.user_files import check_import_path
from normscope.errors import InputError, UnknownNameError

SOURCE = """
raise OSError("it was run")

if WIDE:
    from torch import nn as layers
else:
    import torch.nn

try:
    first, (second, *rest) = 1, (2, 3)
except ValueError as error:
    fallback = 4
for each in range(3):
    last: int = each
with open("x") as file:
    pass
(length := 5)


class Net:
    inner = 1


async def later(): ...


def build():
    local = 1
"""
DEFINED = ["layers", "torch", "first", "second", "rest", "fallback", "each", "last", "file"]
DEFINED += ["length", "Net", "later", "build"]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "net.py"
    path.write_text(SOURCE)
    return path


@pytest.mark.parametrize("name", DEFINED)
def test_names_that_a_file_defines_are_known(file, name):
    check_import_path(f"{file}:{name}")


def test_name_that_stands_nowhere_is_refused(file):
    with pytest.raises(UnknownNameError, match=r"unknown name 'biuld' in .*net.py"):
        check_import_path(f"{file}:biuld")


def test_closest_name_is_suggested_and_no_import_is_a_choice(tmp_path):
    file = tmp_path / "net.py"
    file.write_text("import torch\nfrom torch import nn\n_depth = 2\ndef build(): local = 1\n")
    with pytest.raises(UnknownNameError, match=r"did you mean 'build'\? Choices: build\."):
        check_import_path(f"{file}:biuld")


@pytest.mark.parametrize(
    "line",
    [
        "from math import *",
        "globals()['made'] = 1",
        "locals()['made'] = 1",
        "vars().update(made=1)",
        "exec('made = 1')",
        "import sys\nsetattr(sys.modules[__name__], 'made', 1)",
        "import sys\nsys.modules[__name__] = Lazy()",
        "from sys import modules\nmodules[__name__] = Lazy()",
        "import sys as system\nsystem.modules[__name__].made = 1",
        "me.__dict__['made'] = 1",
        "def __getattr__(name): ...",
        "__getattr__ = {'made': 1}.__getitem__",
        "from lazy import __getattr__",
        "def f(x=(made := 3)): ...",
        "class Net(made := object): ...",
        "match 3:\n    case made: ...",
        "match 3:\n    case int() as made: ...",
        "match [1]:\n    case [*made]: ...",
        "match {}:\n    case {**made}: ...",
        "def f():\n    global made\n    made = 1",
    ],
)
def test_file_that_may_define_anything_is_left_to_its_import(tmp_path, line):
    file = tmp_path / "open.py"
    file.write_text(f"{line}\n")
    check_import_path(f"{file}:made")


@pytest.mark.parametrize(
    "source",
    [
        "if x == 0: ...\n" + "".join(f"elif x == {i}: ...\n" for i in range(900)),
        f"x = {'-' * 100_000}1\n",
        "x = 1\0\n",
    ],
    ids=["many branches", "deep", "null byte"],
)
def test_file_that_cannot_be_looked_at_is_left_to_its_import(tmp_path, source):
    file = tmp_path / "odd.py"
    file.write_text(f"{source}def build(): ...\n")
    check_import_path(f"{file}:build")


def test_methods_of_nets_hide_no_wrong_name(tmp_path):
    file = tmp_path / "net.py"
    file.write_text("def build():\n    net.eval()\n    return list(net.modules())\n")
    with pytest.raises(UnknownNameError, match="did you mean 'build'"):
        check_import_path(f"{file}:biuld")


def test_file_that_is_absent_or_no_python_is_refused(tmp_path):
    with pytest.raises(InputError, match="there is no file"):
        check_import_path(f"{tmp_path / 'absent.py'}:build")
    file = tmp_path / "torn.py"
    file.write_text("x = 1\ndef build(:\n")
    with pytest.raises(InputError, match=r"SyntaxError: invalid syntax \(torn.py, line 2\)"):
        check_import_path(f"{file}:build")


def test_modules_are_left_to_their_import():
    check_import_path("absent.module:build")


def test_wrong_name_is_told_without_torch(file):
    program = f"""
import sys
from normscope.cli.main import main
code = main(["lr", "{file}:biuld", "--data", "digits"])
print(code, "torch" in sys.modules)
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "2 False"
    assert "did you mean 'build'?" in done.stderr
