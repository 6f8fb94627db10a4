import subprocess
import sys

import pytest
import torch
from torch import nn

from normscope.cli.sources import check_import_path, load_data, load_loss, load_model
from normscope.errors import ArgumentTypeError, DataError, InputError, UnknownNameError
from normscope.import_path import import_object
from normscope.problem import cross_entropy

SOURCE = """
import torch
from torch import nn
from beside import WIDTH

module = nn.Linear(2, 3)
number = 7

def build():
    return nn.Linear(4, WIDTH)

def samples():
    return torch.randn(6, 4), torch.zeros(6, dtype=torch.long)

def broken():
    return nn.Linear(2)

def loss(output, target):
    return output.square().mean()
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("own_source", "beside", "faulty"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "own_source.py").write_text(SOURCE)
    (tmp_path / "beside.py").write_text("WIDTH = 5\n")
    (tmp_path / "faulty.py").write_text("x = 1\nraise OSError('no such disk')\n")
    return tmp_path


def test_model_comes_from_a_file_with_its_neighbours(folder):
    model = load_model(f"{folder / 'own_source.py'}:build")
    assert isinstance(model, nn.Linear)
    assert model.out_features == 5


def test_model_comes_from_a_module_of_the_working_folder(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert load_model("own_source:build").out_features == 5
    assert load_model("own_source.py:build").out_features == 5


def test_factory_is_seeded(folder):
    place = f"{folder / 'own_source.py'}:build"
    weights = [load_model(place, seed=seed).weight for seed in (1, 1, 2)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_ready_module_is_taken_as_it_is(folder):
    assert load_model(f"{folder / 'own_source.py'}:module").in_features == 2


def test_data_and_loss_come_from_functions(folder):
    x, y = load_data(f"{folder / 'own_source.py'}:samples")
    assert (x.shape, y.shape) == ((6, 4), (6,))
    loss = load_loss(f"{folder / 'own_source.py'}:loss")
    assert loss(torch.tensor([2.0]), y).item() == 4.0


def test_registered_names_are_looked_up():
    x, _ = load_data("digits")
    assert x.shape == (1438, 1, 8, 8)
    assert load_loss("cross_entropy") is cross_entropy


def test_registered_model_fits_the_data():
    model = load_model(
        "fully_connected", load_data("digits"), options=["width=7", "activation=tanh"]
    )
    assert model.features[0].in_features == 64
    assert model.head.out_features == 10
    assert model.head.in_features == 7
    assert isinstance(model.features[2], nn.Tanh)
    regression = (torch.randn(5, 3), torch.randn(5, 2))
    model = load_model("fully_connected", regression, norm="none", options=["width=7"], seed=3)
    assert (model.features[0].in_features, model.head.out_features) == (3, 2)
    assert not any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in model.modules())


@pytest.mark.parametrize(
    ("place", "error", "message"),
    [
        ("own_source.py:biuld", UnknownNameError, "did you mean 'build'"),
        ("own_source.py:broken", InputError, r"TypeError.*\(own_source.py, line 16\)"),
        ("faulty.py:build", InputError, r"OSError: no such disk \(faulty.py, line 2\)"),
        ("absent.py:build", InputError, "there is no file absent.py"),
        ("absent_module:build", InputError, "ModuleNotFoundError"),
        ("own_source.py:", InputError, "expected package.module:name"),
        ("own_source.py:number", ArgumentTypeError, "torch.nn.Module, got int"),
        ("vg", UnknownNameError, "did you mean 'vgg'"),
    ],
)
def test_bad_model_is_explained(folder, monkeypatch, place, error, message):
    monkeypatch.chdir(folder)
    with pytest.raises(error, match=message):
        load_model(place)


def test_options_are_for_registered_models(folder):
    place = f"{folder / 'own_source.py'}:build"
    with pytest.raises(InputError, match="registered models"):
        load_model(place, norm="batch")
    with pytest.raises(InputError, match="name=value, got 'width'"):
        load_model("fully_connected", options=["width"])
    with pytest.raises(UnknownNameError, match="did you mean 'width'"):
        load_model("fully_connected", options=["widht=3"])


@pytest.mark.parametrize(("load", "function"), [(load_model, "build"), (load_data, "samples")])
def test_bare_file_is_answered_with_what_to_write(load, function):
    with pytest.raises(InputError, match=rf"such as net\.py:{function}"):
        load("net.py")


def test_factory_that_needs_arguments_is_named_with_them(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def build(depth, width=3): ...\n")
    with pytest.raises(InputError, match=r"without arguments, and needs depth; write"):
        load_model(f"{file}:build")


def test_place_needs_a_colon():
    with pytest.raises(InputError, match=r"got 'math'"):
        import_object("math")


@pytest.mark.parametrize("module", ["sources", "curvature"])
def test_module_loads_nothing_heavy(module):
    heavy = ("torch", "numpy", "scipy", "matplotlib", "xarray", "sklearn")
    program = (
        f"import sys, normscope.cli.{module}\n"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


def test_model_is_moved_to_the_device_of_choice():
    model = load_model("fully_connected", options=["width=4"], device="cpu")
    assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}


@pytest.mark.parametrize("device", ["cup", "cuda:999", "meta"])
def test_device_that_is_not_here_is_refused_with_the_ones_that_are(device):
    with pytest.raises(UnknownNameError, match=r"unknown device of this machine .* cpu"):
        load_model("fully_connected", options=["width=4"], device=device)


def test_arrays_are_refused_before_a_model_is_made_for_them():
    pair = torch.zeros(20, 4).numpy(), torch.zeros(20).numpy()
    with pytest.raises(ArgumentTypeError, match="of tensors, got a tuple of ndarray, ndarray"):
        load_model("fully_connected", pair)


def test_download_that_nobody_asked_for_is_announced(monkeypatch, capsys):
    def refused(name):
        raise DataError("no network")

    monkeypatch.setattr("normscope.data.load", refused)
    monkeypatch.setattr("normscope.data.path", lambda name: None)
    for name, announced in (("mnist", True), ("digits", False)):
        with pytest.raises(DataError):
            load_data(name)
        assert ("mnist is not here: downloading it to " in capsys.readouterr().err) == announced


@pytest.mark.parametrize(
    ("norm", "options", "said"),
    [
        (
            "layer",
            (),
            r"^--norm is for registered models, and .*:build is your own; let it return the model "
            r"with that normalization, or give normscope compare --norms layer\.$",
        ),
        (None, ["width=3"], r"^--option is for .* your own; let it return the model with them\.$"),
        ("layer", ["width=3"], r"^--norm is for registered models, "),
    ],
)
def test_refusal_of_options_for_an_own_model_says_what_to_do(folder, norm, options, said):
    with pytest.raises(InputError, match=said):
        load_model(f"{folder / 'own_source.py'}:build", norm=norm, options=options)


NOT_RUN = """
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
    path.write_text(NOT_RUN)
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
