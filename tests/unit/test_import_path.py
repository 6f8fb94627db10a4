"""Objects of a user's by their place."""

import numpy as np
import pytest
import torch

from normscope.errors import ArgumentTypeError, UnknownNameError
from normscope.import_path import import_object, load_object
from normscope.problem import Problem


def test_unknown_name_in_a_file_offers_what_the_file_defines(tmp_path):
    path = tmp_path / "defining.py"
    path.write_text("import torch\nfrom torch import nn\nsize = 3\ndef build(): ...\n")
    with pytest.raises(UnknownNameError, match=r"did you mean 'build'") as error:
        import_object(f"{path}:buidl")
    assert "torch" not in str(error.value)
    assert "nn" not in str(error.value)
    assert "size" in str(error.value)


def test_prints_of_a_users_file_do_not_reach_stdout(tmp_path, capsys):
    path = tmp_path / "loud.py"
    path.write_text("print('imported')\ndef build():\n    print('called')\n    return 1\n")
    assert load_object(f"{path}:build", 0) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == "imported\ncalled\n"


def test_arrays_are_refused_with_the_way_to_tensors():
    with pytest.raises(ArgumentTypeError, match=r"torch\.from_numpy"):
        next(Problem(torch.nn.Linear(2, 2), "squared_error", (np.ones(2), np.ones(2))).batches())
