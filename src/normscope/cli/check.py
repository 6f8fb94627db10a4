"""``normscope check``: the theorems on random cases, on built-in models, or on a user's layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from normscope.cli import options as opt
from normscope.cli import sources
from normscope.cli.app import command
from normscope.cli.batches import choose_batches, load_problem
from normscope.cli.render import Row, print_json, print_note, print_table
from normscope.cli.sources import Source
from normscope.errors import InputError
from normscope.progress import Progress
from normscope.progress_bar import show_progress
from normscope.registry import unknown_name
from normscope.text import plural

if TYPE_CHECKING:
    from normscope.cli.check_model import Found, SampleCounts
    from normscope.theorems import Unchecked, Verdict

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
EveryRow = Annotated[bool, opt.flag("--all", _ALL, group=opt.OUTPUT)]


@command("check", "Check theorems on random cases, models or your layers.", own="Checks")
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
        source = Source(model, data, loss or "cross_entropy")
        sources.check_names(*source, norm)  # before torch is loaded
        problem, whole = load_problem(source, norm, option, seed, device, 1, batch_size)
        from normscope.cli.check_model import CheckedModel

        network, function, (batch,) = problem
        smaller = "take --batch-size" if isinstance(whole, tuple) else "return batches of size"
        checked = CheckedModel(source, network, function, batch, smaller, seed)
        found, samples = checked.check(layer, form)
    if print_verdicts(found, form, as_json, every_row, samples):
        raise typer.Exit(1)


def _check_everywhere(form: str, cases: int, seed: int) -> Found:
    """Check every statement on random cases, then on a layer of each built-in network."""
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


_NUMBERS = ("cases", "unmet", "fail", "slack")
_FEW = 10  # false rows that a summary shows in full


def print_verdicts(
    found: Found,
    form: str,
    as_json: bool,
    every_row: bool = True,
    samples: SampleCounts | None = None,
) -> int:
    """Print verdicts and return the number of rows that are false.

    Args:
        found: verdicts, and statements without one, with what they were checked on.
        form: of the statements.
        as_json: strict JSON instead of a table.
        every_row: a row for each statement and layer, or unit of a single layer; otherwise one
            for each statement, and up to ten false rows in full.
        samples: that Theorem C.1 was checked on, where not the whole batch.
    """
    from normscope.theorems import Unchecked, Verdict

    verdicts = [(subject, each) for subject, each in found if isinstance(each, Verdict)]
    others = [(subject, each) for subject, each in found if isinstance(each, Unchecked)]
    false: Found = [(subject, each) for subject, each in verdicts if each.refuted]
    if as_json:
        plain, unchecked = (
            [{"subject": subject, **each.to_dict()} for subject, each in part]
            for part in (verdicts, others)
        )
        answer = {"form": form, "verdicts": plain, "refuted": len(false), "unchecked": unchecked}
        print_json({**answer, "samples_of_theorem_c1": samples or {}})
        return len(false)
    rows = _summary(found)
    every_row = every_row or len(rows) == len(found)
    if every_row:
        rows = _rows(found)
    print_table(f"Statements, {form} form", rows, _NUMBERS)
    if not every_row and 0 < len(false) <= _FEW:
        print_table("Those that are false", _rows(false), _NUMBERS)
    _print_notes([each for _, each in verdicts], [each for _, each in others], form, samples)
    if not every_row:
        part = "layer" if len({subject for subject, _ in found}) > 1 else "unit"
        print_note(f"{len(found)} rows in all, one a statement and {part}: --all shows them.")
    held = "All that were checked hold." if others else "All hold."
    print(f"{len(false)} of {len(verdicts)} checked rows are false." if false else held)
    return len(false)


def _print_notes(
    verdicts: Sequence[Verdict],
    others: Sequence[Unchecked],
    form: str,
    samples: SampleCounts | None,
) -> None:
    """Print what the columns are, and what was not checked."""
    tolerance = max((each.tolerance for each in verdicts), default=0.0)
    print_note(
        "kind: = the two sides are equal; <= the left is at most the right.\n"
        "on: what it was checked on; a layer by its name in the model.\n"
        "cases: random ones, or units of the layer and their total; fail: those in which it is "
        "false.\n"
        "slack: right side minus left side, relative to their terms, in the worst case. Rounding "
        f"aside ({tolerance:g}), a statement holds if its slack is not negative, and with = 0."
    )
    if form != "exact":
        print_note("Random cases have eps = 0, as in the sources; real layers keep their own eps.")
    if any(verdict.unmet for verdict in verdicts):
        print_note("unmet: cases outside the statement's premise, which do not count.")
    if samples:
        fewest, most = min(samples.values()), max(samples.values())
        number = str(most) if fewest == most else f"{fewest} to {most}"
        print_note(
            f"theorem_c1: checked on the first {number} samples of the batch, because it needs a "
            "matrix over all values of a unit."
        )
    for reason in dict.fromkeys(each.reason for each in others):
        words, has_command, command = reason.partition(": try ")
        print_note(f"not checked: {words}{':' if has_command else '.'}")
        if has_command:
            print(f"  {command}")  # in one line, to copy


def _rows(found: Found) -> list[Row]:
    """Return a row for each, those of one subject together."""
    from normscope.theorems import Verdict

    subjects: dict[str, Found] = {}
    for subject, each in found:
        subjects.setdefault(subject, []).append((subject, each))
    pairs = [pair for group in subjects.values() for pair in group]
    return [
        _row(
            each.label,
            ", ".join(filter(None, (_location(subject, each.layer), _unit(each)))),
            each if isinstance(each, Verdict) else None,
        )
        for subject, each in pairs
    ]


def _unit(found: Verdict | Unchecked) -> str:
    """Return the unit of a layer that a row is about; empty for all of them."""
    from normscope.theorems import Verdict

    if isinstance(found, Verdict) and (found.cases > 1 or found.layer is None):
        return ""
    if found.unit is not None:
        return f"unit {found.unit}"
    return "total" if isinstance(found, Verdict) else ""


def _summary(found: Found) -> list[Row]:
    """Return a row for each statement on random cases and one on all layers, or units of one."""
    groups: dict[tuple[bool, str], Found] = {}
    for subject, each in found:
        groups.setdefault((each.layer is not None, each.label), []).append((subject, each))
    return [_summary_row(label, group) for (_, label), group in groups.items()]


def _summary_row(label: str, group: Found) -> Row:
    from normscope.theorems import Verdict
    from normscope.theorems.verdict import worst

    verdicts = [each for _, each in group if isinstance(each, Verdict)]
    missing = [subject for subject, each in group if not isinstance(each, Verdict)]
    subjects = list(dict.fromkeys(subject for subject, _ in group))
    is_one = len(subjects) == 1
    on = _location(subjects[0], group[0][1].layer) if is_one else f"{len(subjects)} layers"
    row = _row(label, on, worst(verdicts) if verdicts else None)
    if verdicts and missing:
        count = plural(len(missing), "unit") if is_one else str(len(set(missing)))
        return {**row, "verdict": f"{row['verdict']} ({count} unchecked)"}
    return row


def _location(subject: str, layer: str | None) -> str:
    if subject == layer:
        return f"layer {subject}"
    return "random" if subject == "random cases" else subject


def _row(label: str, on: str, verdict: Verdict | None) -> Row:
    """Return a row of the table; without a verdict it was not checked."""
    if verdict is None:
        dashes = dict.fromkeys(_NUMBERS, "-")
        return {"statement": label, "kind": "-", "on": on, **dashes, "verdict": "not checked"}
    vacuous = verdict.unmet == verdict.cases
    return {
        "statement": label,
        "kind": {"identity": "=", "bound": "<="}[verdict.kind],
        "on": on,
        "cases": str(verdict.cases),
        "unmet": str(verdict.unmet) if verdict.premise else "-",
        "fail": str(verdict.failures),
        "slack": "-" if vacuous else f"{verdict.slack:.1e}",
        "verdict": "false" if verdict.refuted else "premise not met" if vacuous else "holds",
    }
