"""``normscope check``: the theorems on random cases, on the built-in nets, or on a user's layer."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from normscope.cli.options import Json, ModelOptions, Norm, Seed

if TYPE_CHECKING:
    from normscope.cli.output import Row
    from normscope.theorems import Unchecked, Verdict, Verdicts

CASES = 200

Form = Annotated[
    str, typer.Option(help="exact: what is true; printed: as the paper has it; article.")
]
Cases = Annotated[
    int | None,
    typer.Option(min=1, help="Random cases for each statement.", show_default=str(CASES)),
]
OwnModel = Annotated[
    str | None,
    typer.Option("--model", "-m", help="A registered model, module:factory or file.py:factory."),
]
OwnData = Annotated[
    str | None, typer.Option("--data", "-d", help="A registered data set, or module:function.")
]
OwnLoss = Annotated[
    str | None,
    typer.Option("--loss", help="Of the model, or module:function.", show_default="cross_entropy"),
]
Layer = Annotated[
    str | None,
    typer.Option(help="Name of a batch normalization of the model.", show_default="all of them"),
]
BatchSize = Annotated[
    int | None, typer.Option(min=2, help="Samples in the batch.", show_default="256")
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


def check(
    model: OwnModel = None,
    layer: Layer = None,
    data: OwnData = None,
    loss: OwnLoss = None,
    form: Form = "exact",
    cases: Cases = None,
    norm: Norm = None,
    option: ModelOptions = None,
    batch_size: BatchSize = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Check the theorems about batch normalization: one side by autograd, one in closed form.

    Without a model on random cases and on the built-in nets. Exits with 1 if a statement is false.

    Example: normscope check --model examples/my_model.py:build --data examples/my_model.py:samples
    """
    from normscope.errors import InputError

    if model is None:
        of_model = {"layer": layer, "data": data, "loss": loss, "norm": norm}
        _refuse_leftovers(**of_model, option=option or None, batch_size=batch_size)
        found = _everywhere(form, CASES if cases is None else cases, seed)
    elif cases is not None:
        raise InputError("--cases says how many random cases, which are tried without --model.")
    else:
        loss = loss or "cross_entropy"
        found = _on_model(model, layer, data, loss, form, norm, option, batch_size, seed)
    if _print(found, form, as_json):
        raise typer.Exit(1)


Found = list[tuple[str, "Verdict | Unchecked"]]


def _everywhere(form: str, cases: int, seed: int) -> Found:
    """Every statement on random cases, then on a layer of each built-in network."""
    from normscope.cli.output import progress_over
    from normscope.theorems import THEOREMS
    from normscope.theorems import check as on_cases

    parts = [
        (name, variant) for name in THEOREMS for own, variant in THEOREMS[name].parts if own == form
    ]
    if not parts:
        from normscope.registry import unknown_name

        raise unknown_name("form", form, ("exact", "printed", "article"))
    found: Found = []
    with progress_over(len(parts) + len(NETWORKS), "checking") as begin:
        for name, variant in parts:
            begin(f"{name} on random cases")
            worst = on_cases(name, form, variant=variant, cases=cases, seed=seed)
            found.append(("random cases", worst))
        for name in NETWORKS:
            begin(name)
            found += _on_network(name, form, seed)
    return found


def _on_network(name: str, form: str, seed: int) -> Found:
    from normscope.cli import sources

    layer, options = NETWORKS[name]
    samples = sources.load_data("digits")
    chosen = sources.chosen_batches(samples, SAMPLES, 1, seed)
    texts = [f"{key}={value!r}" for key, value in options.items()]
    network = sources.load_model(name, samples, "batch", texts, seed)
    from normscope.theorems import check_layer

    verdicts = check_layer(network, "cross_entropy", chosen, layer, form=form, seed=seed)
    return [(f"{name} {layer}", each) for each in _worst_by_statement(verdicts)]


def _on_model(
    model: str,
    layer: str | None,
    data: str | None,
    loss: str,
    form: str,
    norm: str | None,
    option: list[str] | None,
    batch_size: int | None,
    seed: int,
) -> Found:
    from normscope.cli import sources
    from normscope.errors import InputError
    from normscope.layers import is_batch_norm
    from normscope.theorems import check_layer

    if data is None:
        raise InputError("a model is checked on data; give --data, such as --data digits.")
    samples = sources.load_data(data, seed)
    chosen = sources.chosen_batches(samples, batch_size, 1, seed)
    network = sources.load_model(model, samples, norm, option or (), seed)
    function = sources.load_loss(loss)

    def checked(name: str) -> Verdicts:
        run = partial(check_layer, network, function, chosen, name, form=form, seed=seed)
        return sources.blaming(f"{model} with {loss} on {data}", run)

    if layer is not None:
        verdicts = checked(layer)
        return [(layer, each) for each in (*verdicts, *verdicts.unchecked)]
    names = [name for name, module in network.named_modules() if is_batch_norm(module)]
    if not names:
        raise InputError(f"{model} has no batch normalization to check.")
    return [(name, each) for name in names for each in _worst_by_statement(checked(name))]


def _worst_by_statement(verdicts: Verdicts) -> Iterator[Verdict | Unchecked]:
    """The worst verdict of each statement over the units of one layer, and what has none."""
    from normscope.theorems.verdict import worst

    groups: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        groups.setdefault(verdict.label, []).append(verdict)
    yield from (worst(group) for group in groups.values())
    yield from verdicts.unchecked


def _refuse_leftovers(**given: object) -> None:
    from normscope.errors import InputError

    used = [f"--{name.replace('_', '-')}" for name, value in given.items() if value is not None]
    if used:
        raise InputError(f"{', '.join(used)} says something of a model; give it by --model.")


def _print(found: Found, form: str, as_json: bool) -> int:
    """Print what was found; the number of rows that are false."""
    from normscope.cli.output import print_json, print_table
    from normscope.theorems import Verdict

    verdicts = [(subject, each) for subject, each in found if isinstance(each, Verdict)]
    others = [(subject, each) for subject, each in found if not isinstance(each, Verdict)]
    refuted = sum(verdict.refuted for _, verdict in verdicts)
    if as_json:
        rows = [{"subject": subject, **each.to_dict()} for subject, each in verdicts]
        unchecked = [{"subject": subject, **each.to_dict()} for subject, each in others]
        print_json({"form": form, "verdicts": rows, "refuted": refuted, "unchecked": unchecked})
        return refuted
    rows_of_others = [_unchecked_row(*each) for each in others]
    print_table(f"Statements, {form} form", [_row(*each) for each in verdicts] + rows_of_others)
    if form != "exact":
        print("Random cases have eps = 0, as the sources suppose; real layers have theirs.")
    if any(verdict.unmet for _, verdict in verdicts):
        print("unmet: cases outside the statement's premise, which do not count.")
    for reason in dict.fromkeys(each.reason for _, each in others):
        print(f"not checked: {reason}.")
    held = "All that were checked hold." if others else "All hold."
    print(f"{refuted} of {len(verdicts)} checked rows are false." if refuted else held)
    return refuted


def _unchecked_row(subject: str, unchecked: Unchecked) -> Row:
    unit = "" if unchecked.unit is None else f", unit {unchecked.unit}"
    row: Row = dict.fromkeys(("statement", "kind", "on", "cases", "unmet", "fail", "slack"), "-")
    return {**row, "statement": unchecked.label, "on": subject + unit, "verdict": "not checked"}


def _row(subject: str, verdict: Verdict) -> Row:
    single = verdict.cases == 1 and verdict.layer is not None
    unit = ("total" if verdict.unit is None else f"unit {verdict.unit}") if single else None
    vacuous = verdict.unmet == verdict.cases
    answer = "false" if verdict.refuted else "not met" if vacuous else "holds"
    return {
        "statement": verdict.label,
        "kind": {"identity": "=", "bound": "<="}[verdict.kind],
        "on": subject if unit is None else f"{subject}, {unit}",
        "cases": str(verdict.cases),
        "unmet": str(verdict.unmet) if verdict.premise else "-",
        "fail": str(verdict.failures),
        "slack": "-" if vacuous else f"{verdict.slack:.1e}",
        "verdict": answer,
    }
