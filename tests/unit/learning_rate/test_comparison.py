import json
import math
import pickle
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.unit.learning_rate.problems import labelled, quadratic, small_network
from torch import nn

import normscope as ns
from normscope.curvature import dense, top_eigenvalue
from normscope.errors import ArgumentTypeError, InputError
from normscope.learning_rate import Comparison, is_unstable
from normscope.learning_rate.compare_norms import _compare_norm, _eigenvalue
from normscope.learning_rate.comparison import MODES
from normscope.learning_rate.network_properties import constant_output_loss, gradient_growth
from normscope.learning_rate.setup import TrainingSetup
from normscope.learning_rate.stability import ShortRun
from normscope.learning_rate.verification import Verification
from normscope.problem import Problem
from normscope.progress import Progress
from normscope.training import sgd
from normscope.training.batches import batch_source


@pytest.fixture(scope="module")
def compared():
    model = small_network()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    found = ns.compare(
        model, "cross_entropy", labelled(), norms=["none", "batch"], batch_size=16, steps=40
    )
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    return found


def test_row_holds_the_advice_of_the_converted_net(compared):
    model = ns.layers.convert(small_network(), to="none")
    options = {"batch_size": 16, "effort": "thorough", "objective": "half_limit"}
    alone = ns.max_learning_rate(model, "cross_entropy", labelled(), **options)
    assert compared["none"].advice.curvature_bound == alone.curvature_bound
    assert compared["none"].advice.verified == alone.verified


def test_modes_are_those_of_the_curvature(compared):
    model, data = small_network(), labelled()
    problem = Problem(ns.layers.convert(model, to="batch"), "cross_entropy", data)
    (batch,) = TrainingSetup(problem, sgd(1.0), 16, 0).batches(1)
    for mode, value in compared["batch"].lambda_max.items():
        exact = top_eigenvalue(problem.model, "cross_entropy", batch, kind="ggn", mode=mode).value
        assert value == pytest.approx(exact, rel=0.03)
    values = compared["none"].lambda_max
    assert values["train"] == pytest.approx(values["eval"], rel=0.02)


def test_training_at_half_the_limit_learns(compared):
    for row in compared.rows:
        assert len(row.losses) == 40
        assert row.final_loss < row.losses[0]
        assert not row.diverged


def test_table_dict_and_figure_show_every_norm(compared, tmp_path):
    lines = str(compared).splitlines()
    assert lines[0] == compared.headline
    assert lines[0].startswith("Largest limit: ")
    assert lines[2].split()[:3] == ["norm", "bound", "limit"]
    assert [line.split()[0] for line in lines[4:]] == ["none", "batch"]
    assert max(map(len, lines)) <= 80
    assert [row["norm"] for row in json.loads(json.dumps(compared.to_dict()))["norms"]] == [
        "none",
        "batch",
    ]
    figure = compared.plot()
    assert len(figure.axes) == 3
    figure.savefig(tmp_path / "compared.png")


def row_with(norm, limit, interval, runs=True, predicted=1.0, is_unstable=False):
    """A row that has only what a headline reads."""
    verification = SimpleNamespace(ends=interval) if runs else None
    given = {"limit": limit, "interval": interval, "predicted": predicted}
    advice = SimpleNamespace(**given, verification=verification)
    return SimpleNamespace(norm=norm, advice=advice, is_unstable=is_unstable)


@pytest.mark.parametrize(
    ("rows", "headline"),
    [
        (
            [row_with("none", 0.5, (0.4, 0.6)), row_with("batch", 2.0, (1.0, 4.0))],
            "Largest limit: batch, 2, 4 times that of none (0.5)",
        ),
        (
            [row_with("none", 1.5, (1.2, 1.8)), row_with("batch", 2.0, (1.0, 4.0))],
            "Largest limit: batch, 2; the interval of none overlaps",
        ),
        (
            [row_with("none", 0.5, (0.4, 0.6), runs=False), row_with("batch", 2.0, (1.0, 4.0))],
            "Largest predicted limit: batch, 2, 4 times that of none (0.5*)",
        ),
        ([row_with("batch", 2.0, (1.0, 4.0))], "Limit: batch, 2"),
        (
            [
                row_with("batch", 2.0, (1.0, 4.0), runs=False),
                row_with("layer", 2.9, (1.2, math.inf), runs=False, predicted=None),
            ],
            "Predicted limit: batch, 2*; that of layer is not known",
        ),
        (
            [
                row_with("none", 0.5, (0.4, 0.6)),
                row_with("batch", 2.0, (1.0, 4.0)),
                row_with("layer", 9.0, (9.0, math.inf)),
                row_with("rms", 8.0, (7.0, 9.0), is_unstable=True),
            ],
            "Largest limit: batch, 2, 4 times that of none (0.5); that of layer and rms is not "
            "known",
        ),
        ([row_with("layer", 9.0, (9.0, math.inf))], "The limit of layer is not known"),
    ],
)
def test_headline_claims_a_factor_only_if_intervals_are_apart(rows, headline):
    assert Comparison(tuple(rows), 40).headline == headline


def test_norm_that_was_not_compared_is_named(compared):
    with pytest.raises(InputError, match="choose from none, batch"):
        compared["layer"]


@pytest.mark.parametrize("norms", [[], "batch"])
def test_norms_must_be_a_list(norms):
    with pytest.raises(InputError, match="must be a list"):
        ns.compare(small_network(), "cross_entropy", labelled(), norms=norms)


def test_steps_must_be_at_least_one():
    with pytest.raises(InputError, match="steps must be at least 1, got 0"):
        ns.compare(small_network(), "cross_entropy", labelled(), steps=0)


def deep():
    torch.manual_seed(0)
    layers = [nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)]
    return nn.Sequential(*layers)


@pytest.fixture(scope="module")
def with_options():
    """A comparison with every option set, and what it told."""
    told = []
    options = {"momentum": 0.5, "verify": False, "batch_size": 16, "seed": 3}
    found = ns.compare(
        deep(), "cross_entropy", labelled(), ["none"], steps=12, progress=told.append, **options
    )
    return found, told, options


def test_curvature_that_no_rate_follows_from_is_told(with_options):
    told = "λ is that of the loss alone; the curvature bound follows from the curvature over Adam's"
    assert not any(note.startswith("λ") for note in with_options[0].notes)
    adam = ns.compare(
        deep(),
        "cross_entropy",
        labelled(),
        ["none"],
        steps=2,
        verify=False,
        optimizer=partial(torch.optim.Adam, lr=1e-3),
    )
    assert adam.notes[-1].startswith(told)
    plain = dense(deep(), "cross_entropy", labelled(), kind="ggn", mode="train")
    assert adam["none"].lambda_max["train"] == pytest.approx(
        float(torch.linalg.eigvalsh(plain).amax()), rel=0.02
    )
    assert max(adam["none"].advice.curvature.values) > 2 * adam["none"].lambda_max["train"]


def test_options_reach_the_advice(with_options):
    found, told, options = with_options
    alone_told = []
    alone = ns.max_learning_rate(
        deep(),
        "cross_entropy",
        labelled(),
        progress=alone_told.append,
        effort="thorough",
        objective="half_limit",
        **options,
    )
    kept = found["none"].advice.to_dict()
    assert {**kept, "seconds": 0} == {**alone.to_dict(), "seconds": 0}
    details = [*map(str, alone_told), "training at half the limit"]
    assert told == [Progress("none", each, 0, 1, "normalizations") for each in details]


def test_training_is_that_of_torch_at_half_the_limit(with_options):
    row, model = with_options[0]["none"], deep()
    problem = Problem(model, "cross_entropy", labelled())
    source = batch_source(problem, 16, 3, drop_last=True)
    optimizer = torch.optim.SGD(model.parameters(), row.advice.limit / 2, momentum=0.5)
    losses = []
    for _ in range(12):
        inputs, targets = source.draw()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert row.losses == pytest.approx(losses, rel=1e-4)
    assert row.final_loss == pytest.approx(sum(losses[2:]) / 10, rel=1e-4)


def test_growth_and_eigenvalues_are_in_the_dataset(with_options):
    found, _, _ = with_options
    problem = Problem(deep(), "cross_entropy", labelled())
    (batch,) = TrainingSetup(problem, sgd(1.0), 16, 3).batches(1)
    growth = gradient_growth(problem, batch, 3)
    assert growth is not None
    assert found["none"].growth == growth
    data = found.to_xarray().sel(norm="none")
    assert float(data["gradient_growth"]) == growth
    for mode, value in found["none"].lambda_max.items():
        assert float(data["lambda_max"].sel(mode=mode)) == value


def test_training_that_diverges_has_no_final_loss():
    problem = quadratic()
    advice = ns.max_learning_rate(problem.model, problem.loss, problem.data, verify=False)
    beyond = replace(advice, prediction=replace(advice.prediction, rate=1e6))
    row = _compare_norm("none", TrainingSetup(problem, sgd(1.0), None, 0), beyond, 20)
    assert row.diverged
    assert len(row.losses) < 20
    assert math.isnan(row.final_loss)
    found = Comparison((row,), 20)
    table_row = next(line for line in str(found).splitlines() if line.startswith("none "))
    assert table_row.split()[-1] == "-"
    note = "none: at half the limit the training diverged: the limit is too high."
    assert str(found).endswith(note)
    *_, above, last = found.text(40).splitlines()
    assert (above[-12:], last) == ("the training", "diverged: the limit is too high.")
    late = replace(row, losses=np.concatenate([np.ones(100), row.losses]))
    assert not late.is_unstable
    assert str(Comparison((late,), 120)).endswith("none: the training at half the limit diverged.")
    losses = found.to_xarray()["loss"].sel(norm="none").values
    assert np.array_equal(losses[: len(row.losses)], row.losses)
    assert np.isnan(losses[len(row.losses) :]).all()


def at_half_the_limit(limit, steps=20):
    """The row of a quadratic with curvature 4 whose limit is said to be so much."""
    problem = quadratic()
    advice = ns.max_learning_rate(problem.model, problem.loss, problem.data, verify=False)
    told = replace(advice, prediction=replace(advice.prediction, rate=limit))
    row = _compare_norm("none", TrainingSetup(problem, sgd(1.0), None, 0), told, steps)
    return row, is_unstable(problem, sgd(limit / 2)(problem.model.parameters()))


@pytest.mark.parametrize(("limit", "expected"), [(0.98, False), (1.08, True)])
def test_instability_at_half_the_limit_is_that_of_the_onset(limit, expected):
    row, by_definition = at_half_the_limit(limit)
    assert not row.diverged
    assert row.is_unstable is by_definition is expected
    assert row.to_dict()["is_unstable"] is row.scalars()["is_unstable"] is expected


def test_instability_at_half_the_limit_is_told_before_guessing():
    row, _ = at_half_the_limit(1.08)
    guessing = replace(row, guessing_loss=row.final_loss)
    assert guessing.is_guessing
    worst = row.losses.max()
    note = (
        f"* none: at half the limit the training was unstable (its loss rose to "
        f"{worst:.3g}, {worst / row.losses[0]:.2g} times the first): the limit is too high."
    )
    assert Comparison((guessing,), 20).notes[1:] == [note]


def test_verified_limit_that_a_training_refutes_is_marked(compared):
    row = compared["none"]
    found = Comparison((replace(row, losses=np.array([1.0, 1.6, 0.1])),), 3)
    assert found.notes == [
        "* none: at half the limit the training was unstable (its loss rose to 1.6, 1.6 "
        "times the first): the limit is too high for this data order."
    ]
    table_row = next(line for line in str(found).splitlines() if line.startswith("none "))
    assert table_row.split()[2].endswith("*")


def test_losses_after_the_steps_that_count_are_no_instability(compared):
    late = np.ones(102)
    late[100:] = 1.6
    assert not replace(compared["none"], losses=late).is_unstable
    assert replace(compared["none"], losses=late[1:]).is_unstable


class OwnBatchNorm(nn.BatchNorm1d):
    """A layer that does not normalize by torch's batch_norm: its statistics cannot be frozen."""

    def forward(self, inputs):
        return (inputs - inputs.mean(0)) / (inputs.var(0, correction=0) + self.eps).sqrt()


def test_mode_that_does_not_apply_has_no_eigenvalue():
    model = small_network()
    model[1] = OwnBatchNorm(8)
    problem = Problem(model, "cross_entropy", labelled())
    found = {mode: _eigenvalue(problem, labelled(), "ggn", mode, 0) for mode in MODES}
    assert found["frozen"] is None
    assert found["train"] > 0


def test_whole_loss_is_measured_by_its_hessian():
    loss = ns.whole_loss(lambda net, batch: nn.functional.cross_entropy(net(batch[0]), batch[1]))
    model = small_network()
    exact = torch.linalg.eigvalsh(dense(model, loss, labelled(), kind="hessian", mode="train"))
    row = ns.compare(model, loss, labelled(), norms=["batch"], verify=False, steps=1)["batch"]
    found = row.lambda_max["train"]
    assert found == pytest.approx(float(exact.amax()), rel=0.03)


@pytest.mark.parametrize("surroundings", [torch.no_grad, torch.inference_mode])
def test_comparison_where_gradients_are_off_is_the_same(with_options, surroundings):
    expected, _, options = with_options
    with surroundings():
        found = ns.compare(deep(), "cross_entropy", labelled(), ["none"], steps=12, **options)
    assert str(found) == str(expected)


def test_gradient_growth_behind_a_frozen_layer_with_an_activation_in_place():
    def build(inplace):
        torch.manual_seed(0)
        frozen = nn.Linear(4, 4).requires_grad_(False)
        layers = [frozen, nn.ReLU(inplace=inplace), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)]
        return nn.Sequential(*layers)

    data = (torch.randn(8, 4), torch.randn(8, 2))
    found = [gradient_growth(Problem(build(each), "squared_error", data), data) for each in (0, 1)]
    assert found[0] == found[1] > 0


def test_gradient_growth_of_linear_layers_is_exact():
    # h_{l+1} = 2 h_l: the gradient with respect to h_l is twice that of the next
    model = nn.Sequential(*(nn.Linear(1, 1, bias=False) for _ in range(4)))
    for layer in model:
        nn.init.constant_(layer.weight, 2.0)
    data = (torch.ones(3, 1), torch.zeros(3, 1))
    assert gradient_growth(Problem(model, "squared_error", data), data) == pytest.approx(4.0)


def test_gradient_growth_of_deep_batch_norm_nets_nears_the_known_rate():
    torch.manual_seed(0)
    data = (torch.randn(256, 100), torch.randn(256, 100))

    def whole_growth(depth):
        sizes = {"width": 300, "input_shape": (100,), "outputs": 100}
        model = ns.models.build("fully_connected", depth=depth, **sizes)
        return gradient_growth(Problem(model, "squared_error", data), data) ** (depth - 2)

    # the layers next to the ends differ: ten more in the middle show the rate
    rate = (whole_growth(22) / whole_growth(12)) ** (1 / 10)
    assert rate == pytest.approx(math.pi / (math.pi - 1), rel=0.05)


def test_shallow_net_has_no_growth():
    assert (
        gradient_growth(Problem(small_network(), "cross_entropy", labelled()), labelled()) is None
    )


def test_other_optimizer_is_that_of_the_advice_and_of_the_training():
    model, data = small_network(), labelled()
    factory = partial(torch.optim.Adam, lr=1.0)
    asked = {"optimizer": factory, "verify": False, "batch_size": 16}
    found = ns.compare(model, "cross_entropy", data, ["batch"], steps=5, **asked)["batch"]
    alone = ns.max_learning_rate(
        ns.layers.convert(model, to="batch"), "cross_entropy", data, **asked
    )
    assert found.advice.rule == alone.rule
    assert found.advice.recommended == alone.recommended
    copied = ns.layers.convert(model, to="batch")
    trained = ns.fit(
        Problem(copied, "cross_entropy", data),
        torch.optim.Adam(copied.parameters(), lr=alone.recommended),
        5,
        16,
        0,
    )
    assert found.losses.tolist() == trained.losses.tolist()


def test_options_of_sgd_reach_the_advice():
    sgd_options = {"momentum": 0.5, "nesterov": True, "weight_decay": 0.25}
    found = ns.compare(
        small_network(), "cross_entropy", labelled(), ["none"], verify=False, steps=2, **sgd_options
    )
    rule = found["none"].advice.rule
    assert (rule.momentum, rule.nesterov, rule.weight_decay) == (0.5, True, 0.25)


def test_optimizer_of_one_model_is_refused():
    model = small_network()
    with pytest.raises(ArgumentTypeError, match=r"give a factory, such as functools\.partial"):
        ns.compare(
            model, "cross_entropy", labelled(), optimizer=torch.optim.Adam(model.parameters())
        )


def test_limits_that_no_runs_enclose_are_marked(compared):
    advice = compared["none"].advice
    dead = ShortRun(0.3, 0, False, 60, 1.0, died=True)
    endless = replace(advice, verification=replace(advice.verification, high=math.inf))
    unstable = replace(advice, verification=replace(advice.verification, low=0.0))
    rows = [
        replace(compared["none"], norm=norm, advice=each)
        for norm, each in {
            "none": replace(advice, verification=None),
            "batch": endless,
            "layer": unstable,
            "group": advice,
            "l1": replace(advice, verification=Verification(0.3, math.inf, (dead,), 0)),
        }.items()
    ]
    found = Comparison(tuple(rows), 40)
    assert found.notes == [
        "* predicted: no run has verified the limit of none.",
        "* batch: no rate tried was unstable; the limit is the highest of them.",
        "* layer: no rate tried was stable; the limit is the lowest of them.",
        "* l1: the network collapsed at every rate tried; the limit is the lowest.",
    ]
    lines = {line.split()[0]: line.split()[2] for line in str(found).splitlines()[5:10]}
    assert [limit.endswith("*") for limit in lines.values()] == [True, True, True, False, True]
    assert all(note in found._repr_html_() for note in found.notes)
    assert found.to_dict()["notes"] == found.notes


def test_net_that_only_guesses_is_told(compared):
    row = compared["none"]
    shares = torch.bincount(labelled()[1]).double() / len(labelled()[1])
    entropy = float(-(shares * shares.log()).sum())
    assert row.guessing_loss == pytest.approx(entropy, rel=0.1)  # of ten batches, not of all
    assert not row.is_guessing
    stuck = replace(row, losses=np.full(40, 0.97 * row.guessing_loss))
    assert stuck.is_guessing
    (note,) = Comparison((stuck,), 40).notes
    assert note.startswith("none: after 40 steps the loss, ")
    assert not replace(row, losses=np.full(40, 0.9 * row.guessing_loss)).is_guessing
    assert not replace(stuck, guessing_loss=None).is_guessing
    assert not replace(stuck, guessing_loss=0.0).is_guessing  # targets all alike
    assert "is still not below that of a constant output" in note
    above = replace(row, losses=np.full(40, 1.3 * row.guessing_loss))
    assert "is still above that of a constant output" in Comparison((above,), 40).notes[0]
    diverged = replace(stuck, diverged=True)
    assert Comparison((diverged,), 40).notes == ["none: the training at half the limit diverged."]


SIX = torch.tensor([0, 1, 0, 1, 1, 0])


@pytest.mark.parametrize(
    ("loss", "targets"),
    [
        (nn.CrossEntropyLoss(weight=torch.ones(4)), [SIX]),
        (nn.CrossEntropyLoss(label_smoothing=0.1), [SIX]),
        (nn.CrossEntropyLoss(ignore_index=1), [SIX]),
        (nn.CrossEntropyLoss(reduction="sum"), [SIX]),
        (nn.MSELoss(reduction="sum"), [torch.rand(6, 3)]),
        (nn.MSELoss(), [SIX]),  # numbers, not labels
        (nn.CrossEntropyLoss(), [SIX, SIX.view(2, 3)]),  # sequences of several lengths
        (nn.CrossEntropyLoss(), [-SIX]),
    ],
)
def test_loss_of_guessing_is_not_told_where_it_is_not_known(loss, targets):
    batches = [(torch.zeros(len(target), 1), target) for target in targets]
    assert constant_output_loss(Problem(nn.Linear(1, 3), loss, batches), batches) is None


def test_loss_of_guessing_labels_in_double_precision():
    batches = [(torch.zeros(6, 1, dtype=torch.float64), SIX)]
    problem = Problem(nn.Linear(1, 3, dtype=torch.float64), "squared_error", batches)
    assert constant_output_loss(problem, batches) == pytest.approx(0.25)  # half of two quarters


@pytest.mark.parametrize("loss", ["squared_error", nn.MSELoss(), "cross_entropy", nn.L1Loss()])
def test_loss_of_guessing_is_the_least_of_constant_outputs(loss):
    torch.manual_seed(0)
    target = torch.rand(12, 3)
    target /= target.sum(1, keepdim=True)
    batches = [(torch.zeros(8, 1), target[:8]), (torch.zeros(4, 1), target[8:])]
    problem = Problem(nn.Linear(1, 3), loss, batches)
    found = constant_output_loss(problem, batches)
    if isinstance(loss, nn.L1Loss):
        assert found is None
        return
    constant = torch.zeros(3, requires_grad=True)
    descent = torch.optim.LBFGS([constant], max_iter=200, tolerance_grad=1e-9)

    def closure():
        descent.zero_grad()
        value = problem.loss(constant.expand(12, 3), target)
        value.backward()
        return value

    descent.step(closure)
    assert found == pytest.approx(closure().item(), rel=1e-5)


def test_gradient_grows_as_much_behind_a_frozen_first_layer():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    batch = labelled()
    free = gradient_growth(Problem(model, "cross_entropy", batch), batch)
    model[0].requires_grad_(requires_grad=False)
    held = gradient_growth(Problem(model, "cross_entropy", batch), batch)
    assert free is not None
    assert held == pytest.approx(free)


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 4), nn.LayerNorm(4), nn.ReLU())
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.body(x).mean(1))


@pytest.mark.parametrize(
    ("norms", "said"),
    [
        (
            ["none", "batch", "layer"],
            r"^the norm batch does not fit the model: layer '1' \(BatchNorm1d\) expects 4 "
            r"channels, got an input of shape \(16, 6, 4\), .*; leave it out: "
            r"norms=\['none', 'layer'\]\.$",
        ),
        (["none", "batch", "group"], r"^the norms batch and group do not .*; leave them out: "),
        (["batch"], r"^the norm batch does not fit the model: .*; choose others\.$"),
    ],
)
def test_norm_that_does_not_fit_is_refused_before_anything_is_measured(norms, said):
    told, (_, labels) = [], labelled()
    tokens = torch.randn(64, 6, 5, generator=torch.Generator().manual_seed(0))
    # a layer inserted between linear layers is one for vectors
    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Flatten(), nn.Linear(24, 3))
    with pytest.raises(InputError, match=said) as refused:
        ns.compare(
            model,
            "cross_entropy",
            (tokens, labels),
            norms,
            batch_size=16,
            progress=told.append,
        )
    assert told == []
    assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)


def test_remedy_that_a_reason_has_is_joined_by_another():
    class Alone(Tokens):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(5, 4)

    with pytest.raises(InputError, match=r"^the norms batch and layer .* itself \(Alone\) has .*"):
        ns.compare(Alone(), "cross_entropy", (torch.ones(4, 6, 5), torch.arange(4) % 3))
    with pytest.raises(InputError, match=r"\.\.\.\), or leave them out: norms=\['none'\]\.$"):
        ns.compare(Alone(), "cross_entropy", (torch.ones(4, 6, 5), torch.arange(4) % 3))


def test_gradient_growth_is_missing_where_no_gradient_arrives():
    model = nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1))
    nn.init.zeros_(model[1].weight)  # the first layer's output has no effect
    data = torch.ones(3, 2), torch.ones(3, 1)
    assert gradient_growth(Problem(model, "squared_error", data), data) is None
