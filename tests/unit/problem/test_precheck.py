"""Wrong data is found before the work, wherever in memory it is."""

import pickle

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from normscope.errors import InputError, StateError
from normscope.learning_rate import max_learning_rate
from normscope.problem import Problem, check_data, try_batches
from normscope.problem.loss import WrongLabelError
from normscope.problem.precheck import _batches_of_outliers

SIZE = 16


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def samples():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(200, 5, generator=generator), torch.arange(200) % 3


def with_bad_label(inputs, labels):
    labels[170] = 3


def with_negative_label(inputs, labels):
    labels[199] = -1


def with_nan(inputs, labels):
    inputs[150:153, 2] = torch.nan


BAD = {
    with_bad_label: (InputError, "expected labels from 0 to 2.* got the label 3; give the model"),
    with_negative_label: (InputError, "from 0 to 2.* got the label -1; number the classes from 0"),
    with_nan: (StateError, "the inputs themselves contain NaN .*, in 3 of the 16 samples"),
}


def in_batches(inputs, labels):
    return list(zip(inputs.split(SIZE), labels.split(SIZE), strict=True))


ROWS = {with_bad_label: (170, 10, 10), with_negative_label: (199, 12, 7), with_nan: (150, 9, 6)}


@pytest.mark.parametrize("spoil", ROWS, ids=lambda each: each.__name__)
@pytest.mark.parametrize("listed", [False, True])
def test_first_wrong_sample_is_named_as_the_data_counts(spoil, listed):
    data = samples()
    spoil(*data)
    row, batch, place = ROWS[spoil]
    told = f"number {place} of batch {batch} of the data" if listed else f"number {row} of the data"
    problem = Problem(network(), "cross_entropy", in_batches(*data) if listed else data)
    with pytest.raises(BAD[spoil][0], match=f"The first such sample is {told}, counted from 0"):
        check_data(problem, [tuple(part[:SIZE] for part in data)], SIZE, seed=0)


def test_label_is_looked_for_among_the_targets_alone():
    words = torch.zeros(48, 4, dtype=torch.long)
    words[0, 0] = 3
    labels = torch.zeros(48, dtype=torch.long)
    labels[40] = 3
    model = nn.Sequential(nn.Embedding(5, 2), nn.Flatten(), nn.Linear(8, 3))
    problem = Problem(model, "cross_entropy", (words, labels))
    with pytest.raises(InputError, match="The first such sample is number 40 of the data"):
        check_data(problem, [(words[:16], labels[:16])], 16, seed=0)


def test_wrong_label_passes_between_processes():
    error = pickle.loads(pickle.dumps(WrongLabelError("expected labels from 0 to 2", 7)))
    assert isinstance(error, InputError)
    assert "got the label 7" in str(error)


@pytest.mark.parametrize("spoil", BAD, ids=lambda each: each.__name__)
@pytest.mark.parametrize("listed", [False, True])
def test_wrong_data_far_behind_is_found(spoil, listed):
    data = samples()
    first = [tuple(part[:SIZE].clone() for part in data)]
    check_data(Problem(network(), "cross_entropy", data), first, SIZE, seed=0)  # nothing is wrong
    spoil(*data)
    error, message = BAD[spoil]
    given = in_batches(*data) if listed else data
    problem = Problem(network(), "cross_entropy", given)
    try_batches(problem, first, "train", 0)  # those are not wrong
    with pytest.raises(error, match=message if not listed else message.partition(", in")[0]):
        check_data(problem, first, None if listed else SIZE, seed=0)


def with_wrong_label_behind_others(inputs, labels):
    labels[:] = torch.arange(200) * 3 // 200  # by class: most are unlike the first batch
    labels[199] = 7


def with_missing_inputs_before_a_wrong_label(inputs, labels):
    inputs[20:120] = torch.nan
    labels[199] = -1


BEHIND_OTHERS = [
    with_wrong_label_behind_others,
    with_missing_inputs_before_a_wrong_label,
]


@pytest.mark.parametrize("spoil", BEHIND_OTHERS, ids=lambda each: each.__name__)
@pytest.mark.parametrize("size", [None, 1, SIZE])  # None: a list of batches
def test_wrong_label_is_found_behind_many_unusual_samples(spoil, size):
    data = samples()
    spoil(*data)
    given = in_batches(*data) if size is None else data
    problem = Problem(Filling(), "cross_entropy", given)
    first = [tuple(part[:SIZE].clone() for part in data)]
    with pytest.raises(InputError, match="expected labels from 0 to 2"):
        check_data(problem, first, size, seed=0)


def test_advice_without_verification_refuses_labels_sorted_by_class():
    data = samples()
    with_wrong_label_behind_others(*data)
    with pytest.raises(InputError, match="expected labels from 0 to 2"):
        max_learning_rate(network(), "cross_entropy", in_batches(*data), verify=False)


def test_few_of_many_unusual_batches_are_tried():
    data = samples()
    first = tuple(part[:SIZE].clone() for part in data)
    first[1][:] = 0
    model = network()
    seen = []
    model[0].register_forward_hook(lambda module, given, output: seen.append(len(output)))
    check_data(Problem(model, "cross_entropy", in_batches(*data)), [first], None, seed=0)
    assert seen == [SIZE, SIZE]  # the greatest label is in many


def test_truths_and_empty_tensors_are_looked_over():
    inputs, labels = torch.ones(6, 2), torch.arange(6) > 3
    batch = {"inputs": inputs, "labels": labels, "none": torch.zeros(6, 0, dtype=torch.long)}
    known = [None, (0, 0), None]
    (chosen,) = _batches_of_outliers(batch, known, 3)
    assert chosen["labels"].tolist() == [True, True, False]


def test_advice_refuses_before_it_measures(monkeypatch):
    def measured(*given):
        pytest.fail("too late")

    monkeypatch.setattr("normscope.learning_rate.advisor.measure_curvature", measured)
    data = samples()
    with_bad_label(*data)
    with pytest.raises(InputError, match="expected labels from 0 to 2"):
        max_learning_rate(network(), "cross_entropy", data, batch_size=SIZE)
    loader = DataLoader(TensorDataset(*(part[165:] for part in data)), batch_size=SIZE)
    with pytest.raises(InputError, match="expected labels from 0 to 2"):
        max_learning_rate(network(), "cross_entropy", loader)


class Filling(nn.Module):
    """Has a use for what is missing."""

    def __init__(self):
        super().__init__()
        self.line = nn.Linear(5, 3)

    def forward(self, inputs):
        return self.line(inputs.nan_to_num(0.0))


def test_model_that_takes_missing_values_is_not_refused():
    data = samples()
    with_nan(*data)
    problem = Problem(Filling(), "cross_entropy", data)
    check_data(problem, [tuple(part[:SIZE] for part in data)], SIZE, seed=0)


def test_unusual_samples_are_tried_once_and_leave_the_model_alone():
    inputs, labels = samples()
    labels[:SIZE] = 0  # all others are unlike these
    model = network()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    seen = []
    model[0].register_forward_hook(lambda module, given, output: seen.append(len(output)))
    problem = Problem(model, "cross_entropy", (inputs, labels))
    check_data(problem, [(inputs[:SIZE], labels[:SIZE])], SIZE, seed=0)
    assert seen == [SIZE, SIZE]
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_targets_that_are_not_finite_are_blamed_too():
    inputs = torch.ones(4, 5)
    targets = torch.tensor([[1.0], [torch.inf], [0.0], [0.0]])
    problem = Problem(nn.Linear(5, 1), "squared_error", (inputs, targets))
    message = "the loss is not finite .*; the targets themselves contain infinity, in 1 of the 4"
    with pytest.raises(StateError, match=message):
        try_batches(problem, [(inputs, targets)], "train", 0)


def test_finite_data_is_not_blamed():
    model = nn.Linear(5, 1)
    nn.init.constant_(model.weight, torch.nan)
    batch = torch.ones(4, 5), torch.ones(4, 1)
    with pytest.raises(StateError, match="check the data, the weights and the loss before"):
        try_batches(Problem(model, "squared_error", batch), [batch], "train", 0)
