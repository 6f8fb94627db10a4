import pytest
import torch
from tests.unit.learning_rate.problems import plateau

from normscope.learning_rate import trial_run
from normscope.learning_rate.trial_run import TrialRun, TrialStart, leave_plateau, may_be_on_plateau
from normscope.learning_rate.update_rule import UpdateRule
from normscope.problem.problem import Problem


def walks(problem):
    return TrialStart(problem, [problem.data])


@pytest.fixture
def walked(monkeypatch):
    """Every walk that is begun."""
    begun = []

    class Remembered(TrialRun):
        def __init__(self, *given, **named):
            super().__init__(*given, **named)
            begun.append(self)

    monkeypatch.setattr(trial_run, "TrialRun", Remembered)
    return begun


def test_walk_ends_where_the_loss_has_begun_to_fall():
    found = walks(plateau(0.15))
    left = leave_plateau(found, 1.0)
    assert left is not None
    loss = found.problem.loss_of(left.outputs(), found.problem.data[1]).item()
    assert 0.5 < loss / found.first_losses[0] <= 0.95  # the first place, not a later one


def test_as_many_steps_without_momentum_stay_on_it():
    found, rate = walks(plateau(0.15)), 0.1 * 2 * 1.9
    carried = TrialRun(found, UpdateRule("SGD", momentum=0.9), rate)
    while not carried.has_decreased():
        carried.take(1)
    left = leave_plateau(found, 1.0)
    assert left is not None
    torch.testing.assert_close(left.leaves, carried.leaves, rtol=0, atol=0)
    plain = TrialRun(found, UpdateRule("SGD"), rate).take(carried.taken)
    assert not plain.has_decreased()
    assert not plain.is_unstable


@pytest.mark.parametrize("factor", [12.0, 40.0])
def test_walk_that_breaks_is_repeated_at_a_lower_rate(factor):
    steep = plateau(0.15)
    first = TrialRun(walks(steep), UpdateRule("SGD", momentum=0.9), 0.38 * factor)
    while not (first.is_unstable or first.has_decreased()):
        first.take(1)
    assert first.is_unstable  # it would not do without
    assert leave_plateau(walks(steep), 1.0 / factor) is not None


def test_caution_and_depth_of_the_fall_can_be_chosen(walked):
    found = walks(plateau(0.15))
    left = leave_plateau(found, 1.0, caution=0.05, decreased=0.5)
    assert left is walked[0]
    assert left.rate == pytest.approx(0.05 * 2 * 1.9)
    assert left.has_decreased(0.5)


def test_loss_that_never_falls_has_no_way_off(walked):
    flat = plateau()
    still = Problem(flat.model, lambda output, target: 1 + 0 * output.sum(), flat.data)
    assert leave_plateau(walks(still), 1.0) is None
    assert [each.taken for each in walked] == [32]  # a lower rate would stand still as well


def test_loss_that_breaks_at_every_rate_has_no_way_off(walked):
    base = plateau()
    start = base.model(base.data[0]).detach()

    def loss(output, target):
        moved = (output - start).abs().sum()
        return 1 + 9.0 * (moved > 0) + 1e-3 * output[1].sum()

    assert leave_plateau(walks(Problem(base.model, loss, base.data)), 1.0) is None
    assert [each.rate for each in walked] == pytest.approx([0.38, 0.38 / 4, 0.38 / 16])
    assert [each.taken for each in walked] == [1, 1, 1]


def test_model_stays_where_it_is():
    problem = plateau(0.15)
    leave_plateau(walks(problem), 1.0)
    assert torch.equal(problem.model[0].weight, torch.full((1, 1), 0.15, dtype=torch.float64))


def outputs(scale, positions=()):
    """Two outputs that are this far from their mean, in one direction each."""
    signs = torch.tensor([[1.0, 1.0], [-1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]])
    found = scale * (signs + 5.0)
    return found.view(*positions, 2) if positions else found


LABELS = torch.tensor([0, 1, 0, 1])
VECTORS = torch.tensor([[8.0, 3.0], [12.0, 3.0], [8.0, 7.0], [12.0, 7.0]])  # spread 2 around a mean


@pytest.mark.parametrize(
    ("loss", "targets", "threshold"),
    [
        ("cross_entropy", LABELS, 0.15),
        (torch.nn.CrossEntropyLoss(weight=torch.ones(2)), LABELS, 0.15),
        ("squared_error", LABELS, 0.03 / 2),  # a one-hot entry is half away from its mean
        ("squared_error", VECTORS, 0.03 * 2),
        (torch.nn.MSELoss(), VECTORS, 0.03 * 2),
    ],
)
def test_net_may_stand_still_if_its_outputs_are_nearly_alike(loss, targets, threshold):
    problem = Problem(torch.nn.Linear(2, 2), loss, (torch.ones(4, 2), targets))
    assert may_be_on_plateau(problem, outputs(0.99 * threshold), targets)
    assert not may_be_on_plateau(problem, outputs(1.01 * threshold), targets)


def test_positions_count_as_samples():
    targets = VECTORS.view(2, 2, 2)
    problem = Problem(torch.nn.Linear(2, 2), torch.nn.MSELoss(), (torch.ones(2, 2, 2), targets))
    assert may_be_on_plateau(problem, outputs(0.059, (2, 2)), targets)
    assert not may_be_on_plateau(problem, outputs(0.061, (2, 2)), targets)


@pytest.mark.parametrize("targets", [torch.tensor([0, 5, 2, 3]), torch.ones(4, 1)])
def test_of_targets_that_are_broadcast_nothing_is_known(targets):
    problem = Problem(torch.nn.Linear(2, 2), torch.nn.MSELoss(), (torch.ones(4, 2), targets))
    assert may_be_on_plateau(problem, outputs(100.0), targets)


def test_integers_in_the_shape_of_the_outputs_are_no_labels():
    targets = VECTORS.long()
    problem = Problem(torch.nn.Linear(2, 2), torch.nn.MSELoss(), (torch.ones(4, 2), targets))
    assert may_be_on_plateau(problem, outputs(0.059), targets)
    assert not may_be_on_plateau(problem, outputs(0.061), targets)


def test_of_other_losses_nothing_is_known():
    problem = Problem(torch.nn.Linear(2, 2), torch.nn.L1Loss(), (torch.ones(4, 2), VECTORS))
    assert may_be_on_plateau(problem, outputs(100.0), VECTORS)


def test_outputs_out_of_the_range_of_numbers_are_not_told_apart():
    problem = Problem(torch.nn.Linear(2, 2), "cross_entropy", (torch.ones(4, 2), LABELS))
    assert may_be_on_plateau(problem, outputs(float("nan")), LABELS)


def test_classes_of_images_are_their_first_axis():
    problem = Problem(torch.nn.Identity(), "cross_entropy", (torch.ones(4, 2), LABELS))
    alike = torch.tensor([5.0, -5.0]).view(1, 2, 1).expand(4, 2, 3)
    labels = LABELS.unsqueeze(1).expand(4, 3)
    assert may_be_on_plateau(problem, alike, labels)
    assert not may_be_on_plateau(problem, torch.randn(4, 2, 3), labels)
