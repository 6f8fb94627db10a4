"""Reading a command line as normscope does, without running it."""

import typer

from normscope.cli.main import app


def parse(arguments):
    """Read arguments down to the last command, checking names, types and what is required.

    Returns:
        The context of that command.
    """
    command, context, name, rest = typer.main.get_command(app), None, "normscope", list(arguments)
    while True:
        context = command.make_context(name, rest, parent=context)
        if not hasattr(command, "commands"):
            return context
        name, *rest = [*context._protected_args, *context.args]
        command = command.commands[name]
