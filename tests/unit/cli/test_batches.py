"""Which batches a command takes of its data."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from normscope.cli.batches import choose_batches, note_conversion, step_batch_size
from normscope.errors import ArgumentTypeError, InputError


def test_batches_of_a_pair_are_drawn_without_replacement():
    data = (torch.arange(20.0).unsqueeze(1), torch.arange(20))
    chosen = choose_batches(data, 4, 3, seed=1)
    assert [len(x) for x, _ in chosen] == [4, 4, 4]
    drawn = torch.cat([y for _, y in chosen])
    assert len(drawn.unique()) == 12
    assert not torch.equal(drawn, drawn.sort().values)
    assert all(torch.equal(x.squeeze(1), y.float()) for x, y in chosen)
    again = torch.cat([y for _, y in choose_batches(data, 4, 3, seed=1)])
    other = torch.cat([y for _, y in choose_batches(data, 4, 3, seed=2)])
    assert torch.equal(drawn, again)
    assert not torch.equal(drawn, other)


def test_default_batch_is_256_or_what_there_is(capsys):
    data = (torch.zeros(600, 1), torch.zeros(600))
    assert [len(x) for x, _ in choose_batches(data, None, 1)] == [256]
    assert [len(x) for x, _ in choose_batches(data, 100, 3)] == [100, 100, 100]
    assert capsys.readouterr().err == ""
    assert [len(x) for x, _ in choose_batches(data, None, 3)] == [200, 200, 200]
    assert capsys.readouterr().err == (
        "normscope: note: the data has 600 samples, too few for 3 batches of the default size "
        "256; the batch size is 200 instead.\n"
    )


def test_batches_of_a_list_or_loader_are_the_first():
    data = TensorDataset(torch.arange(10.0).unsqueeze(1), torch.arange(10))
    chosen = choose_batches(DataLoader(data, batch_size=3), None, 2)
    assert [y.tolist() for _, y in chosen] == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize(
    ("data", "size", "count", "error", "message"),
    [
        ((torch.zeros(5, 1), torch.zeros(5)), 4, 2, InputError, "5 samples"),
        ((torch.zeros(1, 1), torch.zeros(1)), None, 2, InputError, "has 1 sample, too few"),
        ([(torch.zeros(5, 1), torch.zeros(5))], 4, 1, InputError, "batches of its own"),
        ([(torch.zeros(5, 1), torch.zeros(5))], None, 2, InputError, "has 1 batch, 2 are asked"),
        (7, None, 1, ArgumentTypeError, "got int"),
    ],
)
def test_batches_that_cannot_be_had_are_refused(data, size, count, error, message):
    with pytest.raises(error, match=message):
        choose_batches(data, size, count)


def test_batch_larger_than_the_data_is_refused_with_what_comes_without(capsys):
    pair = torch.zeros(20, 1), torch.zeros(20)
    with pytest.raises(InputError, match=r"20 samples, .* 128; leave .* for batches of 20"):
        step_batch_size(pair, 128)
    assert step_batch_size(pair, None) == 20
    note = "20 samples, too few for 1 batch of the default size 256; the batch size is 20 instead."
    assert note in capsys.readouterr().err


@pytest.mark.parametrize("size", [None, 4])
def test_empty_data_is_refused_in_a_sentence(size):
    with pytest.raises(InputError, match=r"^the data is empty; give at least one sample\.$"):
        step_batch_size((torch.zeros(0, 4), torch.zeros(0)), size)


def test_size_of_batches_that_the_data_comes_in_is_not_asked_for():
    batches = [(torch.zeros(5, 1), torch.zeros(5))]
    assert step_batch_size(batches, None) is None
    with pytest.raises(InputError, match="batches of its own"):
        step_batch_size(batches, 5)


def test_one_sample_is_one(capsys):
    assert step_batch_size((torch.zeros(1, 1), torch.zeros(1)), None) == 1
    assert "the data has 1 sample, too few" in capsys.readouterr().err


def test_data_of_another_precision_is_noted_once(capsys):
    model, wide = torch.nn.Linear(2, 1), torch.ones(4, 2, dtype=torch.float64)
    note = "normscope: note: the {} are float64, the model float32: they are converted.\n"
    tensors = TensorDataset(wide, wide.long())
    for what, data in (
        ("inputs and targets", (wide, wide)),
        ("inputs and targets", [(wide, wide)] * 2),
        ("inputs", (wide, wide.long())),
        ("inputs", DataLoader(tensors)),
        ("targets", (wide.float(), wide)),
        ("targets", (wide.long(), wide)),
    ):
        note_conversion(data, model)
        assert capsys.readouterr().err == note.format(what)


def test_data_of_the_models_precision_or_that_is_not_looked_into_has_no_note(capsys):
    model, wide = torch.nn.Linear(2, 1), torch.ones(4, 2, dtype=torch.float64)
    loader = DataLoader([(wide, wide)])  # to look were to draw
    for data in ((wide.float(), wide.float()), (wide.long(), wide.long()), loader, iter([]), []):
        note_conversion(data, model)
    note_conversion((wide, wide), model.double())
    note_conversion((wide, wide), torch.nn.ReLU())
    assert capsys.readouterr().err == ""


READ_AGAIN = (
    r"^the data must be a batch \(inputs, targets\), a list of batches or a DataLoader, which can "
    r"be read again, got {}\.$"
)


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (None, ArgumentTypeError, READ_AGAIN.format("NoneType")),
        ("digits", ArgumentTypeError, READ_AGAIN.format("str")),
        (iter([]), ArgumentTypeError, READ_AGAIN.format("list_iterator")),
        ([], InputError, r"^the data is empty; give at least one batch\.$"),
        ((), InputError, r"^the data is empty; give at least one batch\.$"),
    ],
)
def test_data_that_is_none_is_not_said_to_come_in_batches(data, error, message):
    with pytest.raises(error, match=message):
        step_batch_size(data, 64)


@pytest.mark.parametrize("size", [None, 64])
@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (None, ArgumentTypeError, "or a DataLoader, got NoneType"),
        ([], InputError, r"^the data is empty; give at least one batch\.$"),
        ({"x": 3}, ArgumentTypeError, "a batch holds tensors, got a dict"),
    ],
)
def test_batches_of_data_that_is_none_are_refused_whatever_their_size(data, error, message, size):
    with pytest.raises(error, match=message):
        choose_batches(data, size, 1)


def test_dictionary_is_one_batch_whose_rows_are_drawn():
    x = torch.arange(20.0).unsqueeze(1)
    (batch,) = choose_batches({"x": x, "y": x + 1}, 4, 1, seed=1)
    pair = choose_batches((x, x + 1), 4, 1, seed=1)[0]
    assert torch.equal(batch["x"], pair[0])
    assert torch.equal(batch["y"], pair[1])
    assert step_batch_size({"x": x}, 4) == 4
    assert step_batch_size({"x": torch.zeros(300, 1)}, None) == 256
    with pytest.raises(InputError, match="20 samples, too few for a batch of 64"):
        step_batch_size({"x": x}, 64)


def test_pair_that_cannot_be_counted_is_left_to_the_library():
    for pair in ((None, None), (torch.zeros(3, 1), torch.zeros(2))):
        assert step_batch_size(pair, 2) == 2


@pytest.mark.parametrize("own", [False, True])
def test_the_first_batches_of_a_shuffling_loader_follow_the_seed(own):
    generator = torch.Generator() if own else None
    samples = TensorDataset(torch.arange(32.0), torch.arange(32))
    data = DataLoader(samples, 8, shuffle=True, generator=generator)

    def drawn(state, seed):
        torch.manual_seed(state)
        before = torch.get_rng_state()
        found = [batch[0].tolist() for batch in choose_batches(data, None, 2, seed)]
        assert torch.equal(torch.get_rng_state(), before)
        return found

    assert drawn(1, 0) == drawn(2, 0)
    assert drawn(1, 0) != drawn(1, 3)
