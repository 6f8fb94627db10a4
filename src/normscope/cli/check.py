"""``normscope check``: the theorems on random cases, on built-in models, or on a user's layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from normscope.cli import options as opt
from normscope.cli.app import command
from normscope.errors import InputError
from normscope.progress import Progress
from normscope.registry import unknown_name

if TYPE_CHECKING:
    from normscope.cli.check_table import Found

CASES = 200

_FORM = (
    "exact (the corrected statement), printed (as in the paper) or article (as in an encyclopaedia "
    "article on it)."
)
_LAYER = "Name of one BatchNorm layer of the model."
_ALL = "Print one row for every statement and layer (or unit), not a summary."
Form = Annotated[str, opt.option("FORM", _FORM, choices=("exact", "printed", "article"))]
Cases = Annotated[
    int | None, opt.number("Random cases for each statement.", min=1, default=str(CASES))
]
Layer = Annotated[str | None, opt.option("NAME", _LAYER, default="all of them")]

# a layer of each built-in architecture, small enough for Theorem C.1 where the batch allows
NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "fully_connected": ("features.1", {"width": 16, "depth": 3}),
    "deep_linear": ("features.1", {"depth": 4}),
    "conv_net": ("features.4", {"channels": (6, 8)}),
    "vgg": ("features.1", {"width": 0.05}),
    "preact_resnet18": ("stages.1.0.norm1", {"width": 0.05}),
}
SAMPLES = 32
EveryRow = Annotated[bool, opt.flag("--all", _ALL)]


@command("check", "Check theorems on random cases, models or your layers.")
def check(
    model: opt.OptionalModel = None,
    model_option: opt.ModelOption = None,
    layer: Layer = None,
    data: opt.DataOption = None,
    loss: opt.LossOption = None,
    form: Form = "exact",
    cases: Cases = None,
    norm: opt.Norm = None,
    option: opt.ModelOptions = None,
    batch_size: opt.BatchSize = None,
    device: opt.Device = None,
    seed: opt.Seed = 0,
    every_row: EveryRow = False,
    as_json: opt.Json = False,
) -> None:
    """Check the theorems about batch normalization: one side by autograd, one in closed form.

    Without MODEL they are checked on random cases and built-in models, with MODEL on its layers and
    one batch of --data. Prints one row per statement, over all layers or over the units of --layer,
    and lists up to ten failures. Exits with 1 if a statement is false.

    Example: normscope check examples/my_model.py:build --data examples/my_model.py:samples
    """
    from normscope.cli.check_table import print_verdicts

    if model is not None and model_option is not None:
        raise InputError(f"the model is given twice, {model} and --model {model_option}.")
    model = model or model_option
    if model is None:
        of_model = {"layer": layer, "data": data, "loss": loss, "norm": norm, "device": device}
        _reject_model_options(**of_model, option=option or None, batch_size=batch_size)
        found, samples = _check_everywhere(form, CASES if cases is None else cases, seed), None
    elif cases is not None:
        raise InputError("--cases is the number of random cases, which are checked without MODEL.")
    elif data is None:
        raise InputError("a model is checked on data; give --data, such as --data digits.")
    else:
        from normscope.cli.sources import check_names

        check_names(model, data, loss, norm)  # before torch is loaded
        from normscope.cli.check_model import load_model

        built: dict[str, Any] = {"norm": norm, "options": option or (), "device": device}
        names = model, loss or "cross_entropy", data
        checked = load_model(*names, **built, batch_size=batch_size, seed=seed)
        found, samples = checked.check(layer, form)
    if print_verdicts(found, form, as_json, every_row, samples):
        raise typer.Exit(1)


def _check_everywhere(form: str, cases: int, seed: int) -> Found:
    """Check every statement on random cases, then on a layer of each built-in network."""
    from normscope.progress_bar import show_progress
    from normscope.theorems import THEOREMS
    from normscope.theorems import check as check_cases

    parts = [
        (name, variant) for name in THEOREMS for own, variant in THEOREMS[name].parts if own == form
    ]
    if not parts:
        raise unknown_name("form", form, ("exact", "printed", "article"))
    found: Found = []
    total = len(parts) + len(NETWORKS)
    with show_progress("check") as show:
        for done, (name, variant) in enumerate(parts):
            show(Progress(name, "random cases", done, total, "parts"))
            worst = check_cases(name, form, variant=variant, cases=cases, seed=seed)
            found.append(("random cases", worst))
        for done, name in enumerate(NETWORKS, len(parts)):
            show(Progress(name, "on digits", done, total, "parts"))
            found += _check_network(name, form, seed)
    return found


def _check_network(name: str, form: str, seed: int) -> Found:
    from normscope.cli import sources
    from normscope.cli.batches import choose_batches
    from normscope.cli.check_model import add_remedy, worst_by_statement
    from normscope.theorems import check_layer

    layer, options = NETWORKS[name]
    samples = sources.load_data("digits")
    chosen = choose_batches(samples, SAMPLES, 1, seed)
    texts = [f"{key}={value!r}" for key, value in options.items()]
    network = sources.load_model(name, samples, "batch", texts, seed)
    verdicts = check_layer(network, "cross_entropy", chosen, layer, form=form, seed=seed)
    chosen_options = " ".join(f"--option {text.replace(' ', '')}" for text in texts)
    command_line = f"normscope check {name} {chosen_options} --data digits --layer {layer}"
    return [
        (f"{name} {layer}", add_remedy(each, SAMPLES, f"try {command_line} --batch-size"))
        for each in worst_by_statement(verdicts)
    ]


def _reject_model_options(**given: object) -> None:
    used = [f"--{name.replace('_', '-')}" for name, value in given.items() if value is not None]
    if used:
        raise InputError(
            f"{', '.join(used)} belongs to a model; name it first: normscope check MODEL."
        )
