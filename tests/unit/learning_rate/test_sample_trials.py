"""Rehearsals against problems whose onset is known."""

import copy
import math

import pytest
import torch
from tests.unit.learning_rate.problems import labelled, mortal, plateau, quadratic, small_network
from torch import nn

from normscope.data import load
from normscope.learning_rate import max_learning_rate, sample_trials
from normscope.learning_rate.sample_trials import SampleTrials, run_sample_trials
from normscope.learning_rate.trial_run import TrialRun, TrialStart
from normscope.learning_rate.update_rule import Preconditioner, UpdateRule, rule_of
from normscope.problem import Problem, whole_loss

SGD = UpdateRule("SGD")


def on_all(problem, rule=SGD):
    return run_sample_trials(problem, [problem.data], rule)


def begun(problem):
    """The same from weights at which the outputs differ."""
    with torch.no_grad():
        problem.model.weight.copy_(torch.tensor([[1.0, -1.0]]))
    return problem


@pytest.fixture
def tried(monkeypatch):
    """Every rate that is tried, with the steps that it took."""
    found = []

    class Remembered(TrialRun):
        def take(self, steps, until=-math.inf):
            found.append(self)
            return super().take(steps, until)

    monkeypatch.setattr(sample_trials, "TrialRun", Remembered)
    return found


@pytest.mark.parametrize("curvature", [1e-4, 1.0, 50.0, 1e6])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_onset_of_a_quadratic_is_enclosed(curvature, momentum):
    problem = quadratic(eigenvalues=(curvature, curvature / 400), shares=(1e-2, 1.0))
    rule = UpdateRule("SGD", momentum)
    found = on_all(problem, rule)
    onset = rule.largest_stable_rate(curvature)
    assert found.low < 1.42 * onset  # 15 steps show what grows by a factor of about two
    assert found.high > onset
    assert 0.7 < found.rate / onset < 1.5
    assert found.gradients <= 48 or found.beyond


def test_rates_are_tried_until_what_is_between_them_is_small():
    problem = quadratic(eigenvalues=(1.0,), shares=(1.0,))
    found = on_all(problem)
    assert found.low < found.high <= 1.5 * found.low
    assert found.rate == pytest.approx(math.sqrt(found.low * found.high))


def test_first_rate_is_eight_over_the_curvature_along_the_gradient(tried):
    problem = begun(quadratic(eigenvalues=(3.0, 0.5), shares=(0.4, 1.0)))
    on_all(problem)
    curvatures, weights = torch.tensor([3.0, 0.5]), torch.tensor([1.0, -1.0])
    gradient = curvatures * (weights - (torch.tensor([0.4, 1.0]) / curvatures).sqrt())
    along = float((curvatures * gradient).norm() / gradient.norm())
    assert tried[1].rate == pytest.approx(8 / along, rel=1e-3)  # after the short step itself


def test_gradients_in_all_are_few(tried):
    found = run_sample_trials(
        Problem(small_network(norm=False), "cross_entropy", labelled()), [labelled()], SGD
    )
    assert found.gradients == 1 + sum(walk.taken for walk in tried) <= 48
    assert tried[0].taken == 1  # the short step


@pytest.fixture
def seen(monkeypatch):
    """The batches of every walk."""
    found = []

    class Remembered(TrialStart):
        def __init__(self, problem, batches, *more, **options):
            found.append(list(batches))
            super().__init__(problem, batches, *more, **options)

    monkeypatch.setattr(sample_trials, "TrialStart", Remembered)
    return found


def test_small_batches_are_as_many_as_steps_at_most_drawn_by_the_seed(seen):
    inputs, targets = labelled(800)
    batches = list(zip(inputs.split(80), targets.split(80), strict=True))
    problem = Problem(small_network(norm=False), "cross_entropy", batches)
    found = [run_sample_trials(problem, batches, SGD, seed=seed) for seed in (0, 0, 1)]
    for small in seen:
        assert [len(piece[0]) for piece in small] == [26, 27, 27] * 8 + [26]
        joined = torch.cat([piece[0] for piece in small[:3]])
        assert not torch.equal(joined, inputs[:80])
        assert torch.equal(joined.sort(0).values, inputs[:80].sort(0).values)
    assert torch.equal(seen[0][0][0], seen[1][0][0])
    assert not torch.equal(seen[0][0][0], seen[2][0][0])
    assert found[0] == found[1]
    assert found[0].samples == 27


@pytest.mark.parametrize(("size", "pieces"), [(4, [4] * 6), (32, [32] * 6), (400, [100] * 24)])
def test_small_batches_are_whole_ones_up_to_32_samples_or_fourths(seen, size, pieces):
    inputs, targets = labelled(6 * size)
    batches = list(zip(inputs.split(size), targets.split(size), strict=True))
    problem = Problem(small_network(norm=False), "cross_entropy", (inputs, targets))
    run_sample_trials(problem, batches, SGD)
    assert [len(piece[0]) for piece in seen[0]] == pieces


def test_batches_that_were_drawn_are_cut_as_they_are(seen):
    inputs, targets = labelled(480)
    problem = Problem(small_network(norm=False), "cross_entropy", (inputs, targets))
    run_sample_trials(problem, [(inputs[:160], targets[:160])], SGD)
    assert torch.equal(torch.cat([piece[0] for piece in seen[0]]), inputs[:160])


def test_data_in_the_order_of_classes_is_mixed(seen):
    inputs, targets = labelled(256)
    order = targets.argsort()
    on_all(Problem(small_network(norm=False), "cross_entropy", (inputs[order], targets[order])))
    assert len(seen[0]) == 4  # of 64, a fourth
    assert all(set(labels.tolist()) == {0, 1, 2} for _, labels in seen[0])


def test_trained_network_is_tried_on_whole_batches():
    torch.manual_seed(0)
    inputs = torch.randn(96, 5)
    batch = (inputs, inputs[:, :3].argmax(1))
    model = small_network(norm=False)
    assert on_all(Problem(model, "cross_entropy", batch)).samples == 32
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    for _ in range(100):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
        optimizer.step()
    assert on_all(Problem(model, "cross_entropy", batch)).samples == 96


def test_losses_far_apart_are_tried_on_whole_batches():
    inputs, _ = labelled(96)
    tails = (inputs, inputs.pow(7).sum(1, keepdim=True))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 1))
    assert on_all(Problem(model, "squared_error", tails)).samples == 96


def test_net_on_a_plateau_is_led_off_it_first():
    problem = plateau(0.15)
    found = on_all(problem)
    assert found.beyond
    onset = next(rate / 100 for rate in range(10, 30) if _fate(problem, rate / 100, 100) != "alive")
    assert onset / 1.3 < found.rate < onset * 1.3
    assert not on_all(begun(quadratic())).beyond


def test_loss_that_never_falls_is_tried_where_it_is():
    model = nn.Linear(2, 2)
    still = Problem(model, lambda f, y: 1 + 0 * f.sum(), (torch.randn(8, 2), torch.zeros(8, 2)))
    found = on_all(still)
    assert found == SampleTrials(0.0, math.inf, 8, 1, False)
    assert found.rate is None


@pytest.mark.parametrize("can_die", [True, False])
def test_net_that_dies_is_no_stable_one(can_die):
    problem = mortal()
    deadly = next(rate / 10 for rate in range(1, 60) if _fate(problem, rate / 10) == "dead")
    search = sample_trials._Search(TrialStart(problem, problem.data), SGD, None, can_die)
    search.run(deadly, 15)
    assert (search.high if can_die else search.low) == deadly
    assert (search.low, search.high) in [(0.0, deadly), (deadly, math.inf)]


def test_outputs_that_are_the_same_from_the_start_are_no_death():
    batch = (torch.ones(8, 2), torch.full((8, 1), 3.0))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 1))
    found = on_all(Problem(model, "squared_error", batch))
    assert found.low > 0
    assert _fate(Problem(model, "squared_error", batch), found.low) != "broken"


def _fate(problem, rate, steps=15):
    """What became of a net after so many steps, by plain torch."""
    batches = [problem.data] if problem.is_one_batch else problem.data
    model = copy.deepcopy(problem.model)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)

    def loss_of(net, step):
        inputs, targets = batches[step % len(batches)]
        return 0.5 * (net(inputs) - targets).square().sum(1).mean()

    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()
        if loss_of(model, step + 1) > 3 * loss_of(problem.model, step + 1):
            return "broken"
    output = model(batches[steps % len(batches)][0])
    return "dead" if (output == output[0]).all() else "alive"


def test_net_without_outputs_to_see_is_tried_by_its_loss():
    loss = whole_loss(lambda net, given: nn.functional.cross_entropy(net(given[0]), given[1]))
    model = small_network(norm=False)
    found = run_sample_trials(Problem(model, loss, [labelled()]), [labelled()], SGD)
    assert 0 < found.low < found.high < math.inf


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.RMSprop])
def test_optimizers_that_divide_are_followed_step_by_step(kind):
    model, batch = small_network(norm=False), labelled(32)
    rule = rule_of(kind(model.parameters()))
    found = run_sample_trials(Problem(model, "cross_entropy", batch), [batch], rule)
    assert 0 < found.low < found.high < math.inf
    for rate, broken in ((found.low, False), (found.high, True)):
        trained = copy.deepcopy(model)
        optimizer = kind(trained.parameters(), lr=rate)
        losses = []
        for _ in range(16):
            loss = nn.functional.cross_entropy(trained(batch[0]), batch[1])
            losses.append(loss.item())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        assert (max(losses) > 1.5 * losses[0]) is broken


def test_half_precision_has_a_curvature_too():
    batch = (labelled(32)[0].bfloat16(), labelled(32)[1])
    model = small_network(norm=False)
    fine = run_sample_trials(Problem(model, "cross_entropy", labelled(32)), [labelled(32)], SGD)
    coarse = run_sample_trials(
        Problem(copy.deepcopy(model).bfloat16(), "cross_entropy", batch), [batch], SGD
    )
    assert coarse.rate == pytest.approx(fine.rate, rel=0.5)


def test_model_stays_as_it_is():
    model, batch = small_network(), labelled()
    model.eval()
    before, draws = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    run_sample_trials(Problem(model, "cross_entropy", batch), [batch], SGD)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])
    assert not model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), draws)


def test_answer_with_one_end_is_below_it():
    assert SampleTrials(0.0, 2.0, 32, 40, False).rate == pytest.approx(math.sqrt(2))


@pytest.mark.parametrize("shape", [(), (1,)])
def test_outputs_without_an_axis_of_their_own_are_seen(shape):
    inputs, _ = labelled(64)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1), nn.Flatten(0))
    model = model if not shape else model[:3]
    targets = inputs[:, 0].sin().view(64, *shape)
    found = on_all(Problem(model, nn.MSELoss(), (inputs, targets)))
    assert 0 < found.low < found.high < math.inf


def test_dropout_is_the_same_for_all_that_is_compared():
    batch = labelled(64)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 3))
    shared = TrialStart(Problem(model, "cross_entropy", batch), [batch, batch], seed=3)
    assert shared.first_losses[0] == shared.first_losses[1] == pytest.approx(shared.initial[1])
    with shared.prepared():
        still = TrialRun(shared, SGD, 0.0).take(3)
    assert still.loss == pytest.approx(shared.first_losses[1])
    other = TrialStart(Problem(model, "cross_entropy", batch), [batch], seed=4)
    assert other.first_losses != shared.first_losses[:1]
    plain = model[:2].append(model[3])
    with_dropout = on_all(Problem(model, "cross_entropy", batch)).rate
    assert 0.2 < with_dropout / on_all(Problem(plain, "cross_entropy", batch)).rate < 2


class Counting(nn.Module):
    """Divides by a buffer that grows with every pass."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = small_network(norm=False)
        self.register_buffer("passes", torch.ones(()))

    def forward(self, inputs):
        self.passes += 1
        return self.layers(inputs) / self.passes.clone()


def test_buffers_begin_anew_with_every_walk():
    batch = labelled(32)
    shared = TrialStart(Problem(Counting(), "cross_entropy", batch), [batch])
    with shared.prepared():
        found = [TrialRun(shared, SGD, 0.1).take(3).leaves[0] for _ in range(2)]
    assert torch.equal(found[0], found[1])
    assert shared.problem.model.passes == 1


def test_state_of_an_optimizer_divides():
    model, batch = small_network(norm=False), labelled(32)
    rule = UpdateRule("RMSprop", second_moment=0.9)
    size = sum(parameter.numel() for parameter in model.parameters())
    problem = Problem(model, "cross_entropy", batch)
    rates = [
        run_sample_trials(
            problem, [batch], rule, Preconditioner(torch.full((size,), scale), True)
        ).rate
        for scale in (0.05, 0.2)
    ]
    assert rates[1] == pytest.approx(4 * rates[0], rel=0.5)  # each is known to 1.5


def test_walk_that_begins_broken_ends_the_search():
    batch = labelled(32)
    shared = TrialStart(Problem(small_network(norm=False), "cross_entropy", batch), [batch])
    shared.first_losses[0] = 1e-9
    search = sample_trials._Search(shared, SGD, None, can_collapse=False)
    search.run(1.0, 36)
    assert (search.low, search.high) == (0.0, math.inf)


def digits_network(norm):
    torch.manual_seed(0)
    layer = nn.BatchNorm1d(24) if norm else nn.Identity()
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 24), layer, nn.ReLU(), nn.Linear(24, 10))


def _slow_onset(model, data, momentum, size):
    """The smallest unstable rate of a grid, the median over three orders, by plain torch."""

    def breaks(rate, order):
        trained = copy.deepcopy(model)
        optimizer = torch.optim.SGD(trained.parameters(), lr=rate, momentum=momentum)
        chosen = torch.randperm(len(data[0]), generator=torch.Generator().manual_seed(order))
        first = None
        for rows in chosen[: 100 * size].split(size):
            loss = nn.functional.cross_entropy(trained(data[0][rows]), data[1][rows])
            first = loss.item() if first is None else first
            if not loss.item() <= 1.5 * first:
                return True
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return False

    rates = [0.05 * (1 - momentum) * 1.5**step for step in range(20)]
    return sorted(next(r for r in rates if breaks(r, order)) for order in range(3))[1]


@pytest.mark.parametrize(("momentum", "norm"), [(0.9, False), (0.9, True), (0.99, False)])
def test_limit_of_batches_of_four_with_momentum_is_predicted(momentum, norm):
    model, data = digits_network(norm), load("digits").train
    advice = max_learning_rate(
        model, "cross_entropy", data, momentum=momentum, batch_size=4, verify=False
    )
    onset = _slow_onset(model, data, momentum, 4)
    assert onset / 3 < advice.predicted < 3 * onset
    assert advice.curvature_bound < onset
    assert advice.interval[0] < onset < advice.interval[1]


def test_trials_take_at_most_48_gradients_of_batches_of_four(tried):
    data = load("digits").train
    batches = list(zip(data[0][:100].split(4), data[1][:100].split(4), strict=True))
    problem = Problem(digits_network(True), "cross_entropy", data)
    found = run_sample_trials(problem, batches, UpdateRule("SGD", 0.9))
    assert found.samples == 4
    assert found.gradients == 1 + sum(walk.taken for walk in tried) <= 48
    assert max(walk.taken for walk in tried) <= 25


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (UpdateRule("SGD"), 1.0),
        (UpdateRule("SGD", 0.99), (1 - 0.99**25) / (1 - 0.99**100)),
        (UpdateRule("Adam", 0.9, dampening=0.9, second_moment=0.999, corrected=True), 1.0),
    ],
)
def test_limit_of_late_failures_is_lowered_by_the_velocity_reached(rule, expected):
    problem = quadratic(eigenvalues=(1.0,), shares=(1.0,))
    search = sample_trials._Search(TrialStart(problem, [problem.data]), rule, None, False)
    search.low, search.high, search._failed_after = 1.0, 4.0, 7
    assert search.reached == 1.0
    search._failed_after = 8
    assert search.reached == pytest.approx(expected)


@pytest.mark.parametrize(("momentum", "steps"), [(0.9, 25), (0.99, 12)])
def test_velocity_reached_is_that_of_a_constant_gradient(momentum, steps):
    velocities = [1.0]
    for _ in range(99):
        velocities.append(momentum * velocities[-1] + 1)
    problem = quadratic(eigenvalues=(1.0,), shares=(1.0,))
    rule = UpdateRule("SGD", momentum)
    search = sample_trials._Search(TrialStart(problem, [problem.data]), rule, None, False)
    search.low, search._failed_after = 1.0 if steps == 25 else 0.0, 12
    assert search.reached == pytest.approx(velocities[steps - 1] / velocities[-1])
