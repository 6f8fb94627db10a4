"""``normscope check``: the theorems on random cases, on the built-in nets, or on a user's layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from normscope.cli.names import completion_of
from normscope.cli.options import (
    BatchSize,
    DataOption,
    Device,
    Json,
    LossOption,
    ModelOption,
    ModelOptions,
    Norm,
    OptionalModel,
    Seed,
)

if TYPE_CHECKING:
    from normscope.cli.check_output import Found, Parts

CASES = 200

Form = Annotated[
    str,
    typer.Option(
        metavar="FORM",
        help="exact (what is true), printed (as the paper has it) or article (as the encyclopaedia "
        "article on it has it).",
        autocompletion=completion_of("exact", "printed", "article"),
    ),
]
Cases = Annotated[
    int | None,
    typer.Option(
        min=1, metavar="NUMBER", help="Random cases for each statement.", show_default=str(CASES)
    ),
]
Layer = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="A batch normalization of the model, by its name.",
        show_default="all of them",
    ),
]

# a layer of each built-in architecture, small enough for Theorem C.1 where the batch allows
NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "fully_connected": ("features.1", {"width": 16, "depth": 3}),
    "deep_linear": ("features.1", {"depth": 4}),
    "conv_net": ("features.4", {"channels": (6, 8)}),
    "vgg": ("features.1", {"width": 0.05}),
    "preact_resnet18": ("stages.1.0.norm1", {"width": 0.05}),
}
SAMPLES = 32
EveryRow = Annotated[
    bool,
    typer.Option("--all", help="A row for every statement and layer or unit, not only in sum."),
]


def check(
    model: OptionalModel = None,
    model_option: ModelOption = None,
    layer: Layer = None,
    data: DataOption = None,
    loss: LossOption = None,
    form: Form = "exact",
    cases: Cases = None,
    norm: Norm = None,
    option: ModelOptions = None,
    batch_size: BatchSize = None,
    device: Device = None,
    seed: Seed = 0,
    every_row: EveryRow = False,
    as_json: Json = False,
) -> None:
    """Check the theorems about batch normalization: one side by autograd, one in closed form.

    Without MODEL on random cases and on the built-in nets; with it on the layers of a model and the
    batch that --data gives. One row a statement over all layers, or units of the one that --layer
    names, and up to ten that are false one by one. Exits with 1 if a statement is false.

    Example: normscope check examples/my_model.py:build --data examples/my_model.py:samples
    """
    from normscope.cli.check_output import print_verdicts
    from normscope.errors import InputError

    if model is not None and model_option is not None:
        raise InputError(f"the model is given twice, {model} and --model {model_option}.")
    model = model or model_option
    if model is None:
        of_model = {"layer": layer, "data": data, "loss": loss, "norm": norm, "device": device}
        _refuse_leftovers(**of_model, option=option or None, batch_size=batch_size)
        found = _everywhere(form, CASES if cases is None else cases, seed)
        parts: Parts = {}
    elif cases is not None:
        raise InputError("--cases says how many random cases, which are tried without a model.")
    else:
        loss = loss or "cross_entropy"
        found, parts = _on_model(
            model, layer, data, loss, form, norm, option, batch_size, device, seed
        )
    if print_verdicts(found, form, as_json, every_row, parts):
        raise typer.Exit(1)


def _everywhere(form: str, cases: int, seed: int) -> Found:
    """Every statement on random cases, then on a layer of each built-in network."""
    from normscope.cli.output import progress
    from normscope.theorems import THEOREMS
    from normscope.theorems import check as on_cases

    parts = [
        (name, variant) for name in THEOREMS for own, variant in THEOREMS[name].parts if own == form
    ]
    if not parts:
        from normscope.registry import unknown_name

        raise unknown_name("form", form, ("exact", "printed", "article"))
    found: Found = []
    with progress("check", len(parts) + len(NETWORKS)) as begin:
        for name, variant in parts:
            begin(f"{name}, random cases")
            worst = on_cases(name, form, variant=variant, cases=cases, seed=seed)
            found.append(("random cases", worst))
        for name in NETWORKS:
            begin(f"{name}, on digits")
            found += _on_network(name, form, seed)
    return found


def _on_network(name: str, form: str, seed: int) -> Found:
    from normscope.cli import sources
    from normscope.cli.batches import chosen_batches
    from normscope.cli.check_model import worst_by_statement
    from normscope.cli.check_output import with_remedy

    layer, options = NETWORKS[name]
    samples = sources.load_data("digits")
    chosen = chosen_batches(samples, SAMPLES, 1, seed)
    texts = [f"{key}={value!r}" for key, value in options.items()]
    network = sources.load_model(name, samples, "batch", texts, seed)
    from normscope.theorems import check_layer

    verdicts = check_layer(network, "cross_entropy", chosen, layer, form=form, seed=seed)
    chosen_options = " ".join(f"--option {text.replace(' ', '')}" for text in texts)
    asked = f"normscope check {name} {chosen_options} --data digits --layer {layer}"
    return [
        (f"{name} {layer}", with_remedy(each, SAMPLES, f"try {asked} --batch-size"))
        for each in worst_by_statement(verdicts)
    ]


def _on_model(
    model: str,
    layer: str | None,
    data: str | None,
    loss: str,
    form: str,
    norm: str | None,
    option: list[str] | None,
    batch_size: int | None,
    device: str | None,
    seed: int,
) -> tuple[Found, Parts]:
    """Every statement on the layers of a model, and the samples that Theorem C.1 had of each."""
    from normscope.cli import sources
    from normscope.errors import InputError

    if data is None:
        raise InputError("a model is checked on data; give --data, such as --data digits.")
    sources.check_names(model, data, loss, norm)  # before torch is loaded
    from normscope.cli.check_model import load_subject

    subject = load_subject(
        model,
        loss,
        data,
        norm=norm,
        options=option or (),
        batch_size=batch_size,
        device=device,
        seed=seed,
    )
    return subject.found(layer, form)


def _refuse_leftovers(**given: object) -> None:
    from normscope.errors import InputError

    used = [f"--{name.replace('_', '-')}" for name, value in given.items() if value is not None]
    if used:
        raise InputError(
            f"{', '.join(used)} says something of a model; name it first: normscope check MODEL."
        )
