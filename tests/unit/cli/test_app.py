"""Adding a command: a module with a decorated function, and its name in the table of `main`."""

from pathlib import Path

import pytest
import typer

import normscope.cli
from normscope.cli.app import app, command
from normscope.cli.main import COMMANDS, main

FOLDER = Path(normscope.cli.__file__).parent


def test_every_module_with_a_command_is_in_the_table():
    found = {path.stem for path in FOLDER.glob("*.py") if "\n@command(" in path.read_text("utf-8")}
    assert found == set(COMMANDS)


def test_decorated_function_is_a_command_with_help_and_example(capsys, monkeypatch):
    monkeypatch.setattr(app, "registered_commands", list(app.registered_commands))

    @command("greet", "Say hello.")
    def greet(name: str) -> None:
        """Say hello to somebody.

        Example: normscope greet you
        """
        typer.echo(f"hello {name}")

    assert main(["greet", "you"]) == 0
    assert capsys.readouterr().out == "hello you\n"
    assert main(["--help"]) == 0
    assert "Say hello." in capsys.readouterr().out
    assert main(["greet", "--help"]) == 0
    out = capsys.readouterr().out
    assert "Say hello to somebody." in out
    assert out.endswith("Example: normscope greet you\n")
    assert main(["greet"]) == 2
    assert "Missing argument 'name'. Example: normscope greet you" in capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_command_file_is_of_one_command(name):
    assert (FOLDER / f"{name}.py").read_text("utf-8").startswith('"""``normscope ')
