"""Every result shows itself in a notebook as a table, whatever its texts are."""

import dataclasses
import inspect
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr
from matplotlib.figure import Figure
from tests.references.html_outline import outline
from torch import nn

import normscope as ns
from normscope.data import Check
from normscope.data import Status as DataStatus
from normscope.decoupled import Inequalities, Trained
from normscope.experiments import Result
from normscope.layers import Change
from normscope.learning_rate import Compared
from normscope.learning_rate.comparison import MODES
from normscope.learning_rate.stability import ShortRun
from normscope.learning_rate.verification import Verification
from normscope.probes import Cost
from normscope.probes.probe import ScopeCost
from normscope.results import Claim, Store
from normscope.sweeps import Cell, Failure, Report, status
from normscope.text import Table
from normscope.theorems import Unchecked, Verdict, Verdicts
from normscope.training import Evaluation, Outcome, Run

HOSTILE = "<script>alert(1)</script>"


def problem():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))
    return net, "squared_error", (torch.randn(16, 4), torch.randn(16, 3))


def in_store(tmp_path):
    store = Store(tmp_path / f"{HOSTILE.replace('/', '-')}.sqlite")
    store.compute(HOSTILE, {HOSTILE: HOSTILE}, 0, lambda: xr.Dataset({"a": 1.0}))
    return store


def record(tmp_path):
    with in_store(tmp_path) as store:
        (found,) = store.select()
    return found


def sweep_status(tmp_path):
    with in_store(tmp_path) as store:
        path = store.path
    (found,) = status(path)
    return found


def scope(measured):
    net, loss, (x, y) = problem()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    found = ns.Scope(net, loss, optimizer, "economy", every=1)
    for _ in range(measured):
        found.step(x, y)
        optimizer.step()
    return found


def experiment_result():
    dataset = xr.Dataset({"a": 1.0})
    claims = (Claim(HOSTILE, HOSTILE, HOSTILE, None),)
    return Result(HOSTILE, "quick", dataset, claims, {}, {}, 1.0, lambda d: Figure())


def least_squares():
    points = np.random.default_rng(0).normal(size=(40, 3))
    return ns.decoupled.ordinary_least_squares(points, points @ [1.0, 2.0, 3.0], steps=9)


def rayleigh():
    return ns.decoupled.rayleigh_ascent(np.diag([3.0, 1, 0]), np.eye(3), np.array([1, 0.3, 0.1]), 9)


def advice():
    return ns.max_learning_rate(*problem(), verify=False)


VERIFICATION = Verification(
    0.1, 0.2, (ShortRun(0.2, 0, True, 9, 3.0), ShortRun(0.1, 1, False, 9, 1.0)), 1
)
VERDICT = Verdict(HOSTILE, "bound", "printed", 2.0, 1.0, False, -0.5, layer=HOSTILE)

# what makes each result, and a text that must be in its table
RESULTS = {
    "top eigenvalue": (lambda _: ns.curvature.top_eigenvalue(*problem()), "rel. residual"),
    "trace": (lambda _: ns.curvature.trace(*problem()), "trace of the ggn"),
    "batch sizes": (lambda _: ns.curvature.batch_size_effect(*problem(), [8, 16]), "eigenvalue"),
    "prediction": (lambda _: ns.meanfield.predict(problem()[0], (4,)), "regime"),
    "prediction over gamma": (
        lambda _: ns.meanfield.predict(problem()[0], (4,), gamma=np.array([0.5, 1.0])),
        "lower bound",
    ),
    "trace estimate": (lambda _: ns.curvature.trace(*problem()).estimate, "captured"),
    "predicted onset": (lambda _: advice().prediction, "reason"),
    "theory of the advice": (lambda _: advice().mean_field, "rate"),
    "curvature of the advice": (lambda _: advice().curvature, "shares"),
    "verification": (lambda _: VERIFICATION, "Stable up to 0.1, no longer at 0.2"),
    "trial": (lambda _: VERIFICATION.all_runs[1], "unstable"),
    "compared": (
        lambda _: Compared(HOSTILE, advice(), dict.fromkeys(MODES), None, np.ones(3), False),
        "loss after 3",
    ),
    "advice": (lambda _: ns.max_learning_rate(*problem(), verify=False), "recommended"),
    "comparison": (
        lambda _: ns.compare(*problem(), norms=["none", "batch"], verify=False, steps=3),
        "loss after 3",
    ),
    "verdict": (lambda _: VERDICT, "FAILS"),
    "verdicts": (lambda _: Verdicts([VERDICT], [Unchecked(HOSTILE, HOSTILE)]), "not checked"),
    "least squares": (lambda _: least_squares(), "condition"),
    "rayleigh": (lambda _: rayleigh(), "ratio"),
    "experiment": (lambda _: experiment_result(), "undecided"),
    "run": (lambda _: Run(Outcome.DIVERGED, np.array([1.0, 9.0]), 2, 0.5), "diverged"),
    "run without steps": (lambda _: Run(Outcome.FINISHED, np.array([]), 0, 0.5), "finished"),
    "evaluation": (lambda _: Evaluation(0.5, None), "accuracy"),
    "claim": (lambda _: Claim(HOSTILE, HOSTILE, HOSTILE, True), "reproduced"),
    "record": (record, "attempts"),
    "store": (in_store, "finished"),
    "status": (sweep_status, "cells"),
    "sweep": (lambda _: Report(3, 1, 1, (Failure(Cell({}, 0), HOSTILE),), 1.0), "failures"),
    "scope": (lambda _: scope(2), "ray_loss"),
    "scope before its first step": (lambda _: scope(0), "No step was measured"),
    "scope's cost": (lambda _: ScopeCost(1.0, 8.0, {HOSTILE: Cost(1.0, HOSTILE)}, 50), "passes"),
    "inequalities": (lambda _: Inequalities(*np.ones((6, 9))), "whole right"),
    "units": (lambda _: Trained(None, [], [None], 3, True), "sweeps"),
    "data set": (lambda _: DataStatus(HOSTILE, HOSTILE, False, None, HOSTILE), "present"),
    "data file": (lambda _: Check(Path(HOSTILE), HOSTILE, False, HOSTILE), "official"),
    "conversion": (lambda _: Change(HOSTILE, "batch", "layer", (HOSTILE,)), "layer"),
}


@pytest.mark.parametrize("name", RESULTS)
def test_result_shows_itself_as_an_escaped_table(name, tmp_path):
    make, text = RESULTS[name]
    result = make(tmp_path)
    found = outline(f"<div>{result._repr_html_()}</div>")
    if isinstance(result, Store):
        result.close()
    assert len(found.named("table")) == 1
    assert not found.named("script")
    assert text in found.elements[0].text
    widths = [len(row) for row in table_rows(result)]
    assert len(set(widths)) <= 1


# what public functions return that is no result to look at, by why it is none
NO_TABLE = {
    "an input of other functions": {"WholeLoss", "Dataset", "Graph", "Cell"},
    "a part of a problem": {"KnownLoss", "ParameterLayout"},
    "an error": {"MisfitError"},
    "a function": {"CurvatureOperator", "MarginLoss", "ModelBuilder"},
    "a part of a page": {"Section", "Report", "Picture", "Download"},
    "one of thousands in a loop": {"Step", "Iterate"},
    "two tensors": {"Population"},
}


def returned_classes():
    """The library's classes in the return annotations of its public functions, by function."""
    packages = [getattr(ns, name) for name in ns.__all__]
    public = [
        *packages,
        *(getattr(each, name) for each in packages for name in getattr(each, "__all__", ())),
    ]
    return {
        kind: function.__name__
        for function in public
        if inspect.isfunction(function)
        for word in re.findall(r"\w+", str(function.__annotations__.get("return")))
        if inspect.isclass(kind := inspect.unwrap(function).__globals__.get(word))
        and kind.__module__.startswith("normscope.")
    }


def test_whatever_a_public_function_returns_shows_itself():
    found = returned_classes()
    known = {name for names in NO_TABLE.values() for name in names}
    bare = {kind for kind in found if not hasattr(kind, "_repr_html_")}
    assert {kind.__name__: found[kind] for kind in bare if kind.__name__ not in known} == {}
    assert {kind.__name__ for kind in bare} == known  # none is excused without need


@pytest.mark.parametrize("method", ["to_dict", "to_dataframe"])
def test_whatever_a_public_function_returns_is_plain_values_and_a_table(method):
    found = returned_classes()
    excused = {name for names in NO_TABLE.values() for name in names}
    bare = {kind for kind in found if not hasattr(kind, method)}
    assert {kind.__name__: found[kind] for kind in bare if kind.__name__ not in excused} == {}
    assert {kind.__name__ for kind in bare} == excused  # none is excused without need


@pytest.mark.parametrize("name", RESULTS)
def test_plain_values_are_json_and_the_table_has_their_scalars(name, tmp_path):
    result = RESULTS[name][0](tmp_path)
    if not hasattr(result, "to_dict"):  # a part of another result: the test above knows the others
        return
    values = json.loads(json.dumps(result.to_dict()))
    assert values
    if not hasattr(result, "to_dataframe"):
        return
    table = result.to_dataframe()
    shared = set(values) & set(table.columns)
    for key in shared if len(table) == 1 else ():
        if isinstance(values[key], str | bool | int):
            assert table[key].item() == values[key]


def test_counts_are_whole_numbers_where_they_are():
    assert type(ns.meanfield.predict(problem()[0], (4,)).to_dict()["batch_size"]) is int
    top = ns.curvature.top_eigenvalue(*problem())
    assert type(dataclasses.replace(top, matvecs=6.0).to_dict()["matvecs"]) is int
    assert dataclasses.replace(top, matvecs=6.5).to_dict()["matvecs"] == 6.5


def test_tables_have_the_rows_they_are_said_to_have():
    sweep = ns.meanfield.predict(problem()[0], (4,), gamma=np.array([0.5, 1.0, 2.0]))
    table = sweep.to_dataframe()
    assert len(table) == 3 * len(sweep.layers)
    chosen = table[(table["layer"] == sweep.layers[1].name) & (table["gamma"] == 1.0)]
    assert chosen["term"].item() == sweep.layers[1].term[1]
    assert chosen["lambda_max"].item() == sweep.lambda_max[1]
    compared = ns.compare(*problem(), norms=["none", "batch"], verify=False, steps=3)
    table = compared.to_dataframe().set_index("norm")
    assert list(table.index) == ["none", "batch"]
    batch = compared["batch"]
    assert table.loc["batch", "interval_high"] == batch.advice.interval[1]
    assert table.loc["batch", "lambda_max_frozen"] == batch.lambda_max["frozen"]
    assert table.loc["batch", "final_loss"] == batch.final_loss
    run = Run(Outcome.FINISHED, np.array([1.0, 0.5]), 2, 0.5)
    assert run.to_dataframe()["loss"].tolist() == [1.0, 0.5]


def table_rows(result):
    """The cells of each row of the table."""
    page = result._repr_html_() if not isinstance(result, Store) else "<table></table>"
    body = page.partition("<tbody>")[2].partition("</tbody>")[0]
    return [row.split("</td>")[:-1] for row in body.split("</tr>")[:-1]]


def test_hostile_text_is_shown_as_text():
    for html in (
        Table([{HOSTILE: HOSTILE}], HOSTILE, [HOSTILE]).html(),
        Table({HOSTILE: HOSTILE}).html(),
    ):
        found = outline(f"<div>{html}</div>")
        assert not found.named("script")
        assert HOSTILE in found.elements[0].text


def test_missing_values_are_dashes_and_rows_may_lack_columns():
    html = Table([{"a": None, "b": float("nan")}, {"a": True}]).html()
    cells = [each.text for each in outline(f"<div>{html}</div>").named("td")]
    assert cells == ["-", "-", "yes", "-"]


def alignments(html):
    """Of the heads and of the cells, by their text."""
    found = outline(html).elements
    return {
        each.text: each.attributes["style"].partition(";")[0].removeprefix("text-align:")
        for each in found
        if each.tag in ("th", "td")
    }


def test_numbers_are_aligned_to_the_right_and_texts_to_the_left():
    rows = [{"name": "0", "value": 1.5, "written": "5.0e-04", "good": True}]
    found = alignments(Table([*rows, {"name": "a", "value": "nan", "written": None}]).html())
    assert {found[key] for key in ("value", "1.5", "nan", "written", "5.0e-04")} == {"right"}
    assert {found[key] for key in ("name", "0", "a", "good", "yes")} == {"left"}
    pairs = alignments(Table({"rate": 0.25, "reason": "none"}).html())
    assert (pairs["rate"], pairs["0.25"], pairs["none"]) == ("left", "right", "left")


@pytest.mark.parametrize(
    "html", [Table([{"a": 1}], "above", ["below"]).html(), Table({"a": 1}).html()]
)
def test_wide_table_scrolls_in_a_box_of_its_own(html):
    box, table = outline(f"<body>{html}</body>").elements[1:3]
    assert (box.tag, table.tag) == ("div", "table")
    assert "overflow-x:auto" in box.attributes["style"]
    assert "below" not in box.text
