import pickle
import random
import subprocess
import sys
import zipfile
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from normscope.errors import ArgumentTypeError, DataError, InputError, StateError
from normscope.layers import NoisyBatchNorm1d
from normscope.problem import Problem, whole_loss
from normscope.training import Outcome, fit, sgd

GENERATOR = torch.Generator().manual_seed(1)
X = torch.randn(40, 5, generator=GENERATOR)
Y = torch.randint(3, (40,), generator=GENERATOR)


class Counter(nn.Module):
    """A buffer that is in no state_dict and takes part in the output."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()), persistent=False)

    def forward(self, x):
        self.calls += 1
        return x * (1 + 0.01 * self.calls)


def problem_of(data: object = (X, Y)) -> Problem:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(5, 8),
        NoisyBatchNorm1d(8, generator=7),
        nn.ReLU(),
        nn.Dropout(0.3),
        Counter(),
        nn.Linear(8, 3),
    )
    return Problem(model, "cross_entropy", data)


def shuffled_loader() -> DataLoader:
    return DataLoader(TensorDataset(X, Y), batch_size=8, shuffle=True)


def loader_with_generator() -> DataLoader:
    generator = torch.Generator().manual_seed(3)
    return DataLoader(TensorDataset(X, Y), batch_size=8, shuffle=True, generator=generator)


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.01)


def groups(first_rate: float, rate: float):
    def made(parameters):
        first, *rest = parameters
        return torch.optim.SGD([{"params": [first], "lr": first_rate}, {"params": rest}], lr=rate)

    return made


def state_of(problem: Problem) -> list[torch.Tensor]:
    named = [*problem.model.named_parameters(), *problem.model.named_buffers()]
    return [tensor.detach().clone() for _, tensor in named]


@pytest.mark.parametrize("optimizer", [sgd(0.2), sgd(0.2, momentum=0.9), adam])
@pytest.mark.parametrize("cut", [1, 5, 7])  # within the first epoch, at its end, in the second
@pytest.mark.parametrize(
    ("data", "batch_size"),
    [
        (lambda: (X, Y), 8),
        (lambda: (X, Y), None),
        (lambda: [(X[i : i + 8], Y[i : i + 8]) for i in range(0, 40, 8)], None),
        (shuffled_loader, None),
        (loader_with_generator, None),
    ],
    ids=["rows", "whole", "list", "loader", "loader with generator"],
)
def test_resumed_run_equals_the_uninterrupted_one_bit_for_bit(
    tmp_path, optimizer, cut, data, batch_size
):
    path = tmp_path / "run.pt"
    whole = problem_of(data())
    expected = fit(whole, optimizer, steps=13, batch_size=batch_size)
    fit(problem_of(data()), optimizer, steps=cut, batch_size=batch_size, checkpoint=path)
    resumed = problem_of(data())
    torch.manual_seed(random.randrange(1000))  # whatever the process did before
    run = fit(resumed, optimizer, steps=13, batch_size=batch_size, checkpoint=path)
    assert run.losses.tolist() == expected.losses.tolist()
    assert run.steps == 13
    for a, b in zip(state_of(resumed), state_of(whole), strict=True):
        assert torch.equal(a, b)


class RunningLoss(nn.Module):
    """Divided by its running mean, which is a buffer."""

    def __init__(self, size=1):
        super().__init__()
        self.register_buffer("mean", torch.ones(size), persistent=False)

    def forward(self, output, target):
        loss = nn.functional.cross_entropy(output, target)
        self.mean.lerp_(loss.detach(), 0.1)
        return loss / self.mean.mean()


@pytest.mark.parametrize("called", [False, True])
def test_buffers_of_the_loss_are_resumed(tmp_path, called):
    def problem(size=1):
        torch.manual_seed(0)
        loss = RunningLoss(size)
        return Problem(nn.Linear(5, 3), (lambda o, t: loss(o, t)) if called else loss, (X, Y))

    path = tmp_path / "run.pt"
    expected = fit(problem(), sgd(0.2), steps=9)
    fit(problem(), sgd(0.2), steps=4, checkpoint=path)
    assert fit(problem(), sgd(0.2), 9, checkpoint=path).losses.tolist() == expected.losses.tolist()
    with pytest.raises(StateError, match="a model or a loss with other buffers"):
        fit(problem(2), sgd(0.2), 9, checkpoint=path)


def test_finished_run_is_read_back_without_a_step(tmp_path):
    path = tmp_path / "run.pt"
    first = fit(problem_of(), sgd(0.2), steps=5, checkpoint=path)
    again = problem_of()
    run = fit(again, sgd(0.2), steps=5, checkpoint=path, callback=lambda step: 1 / 0)
    assert run.outcome is Outcome.FINISHED
    assert run.losses.tolist() == first.losses.tolist()


def test_checkpoint_with_more_steps_than_asked_for_is_refused_and_changes_nothing(tmp_path):
    path = tmp_path / "run.pt"
    fit(problem_of(), sgd(0.2), steps=5, checkpoint=path)
    again = problem_of()
    before, saved = state_of(again), path.read_bytes()
    with pytest.raises(
        StateError, match=r"run\.pt has 5 steps, more than the 4 asked for"
    ) as caught:
        fit(again, sgd(0.2), steps=4, checkpoint=path)
    assert "at least 5" in str(caught.value)
    assert path.read_bytes() == saved
    for a, b in zip(before, state_of(again), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("steps", [-1, 2.5, "4"])
def test_wrong_number_of_steps_is_refused_before_a_checkpoint_is_read(tmp_path, steps):
    path = tmp_path / "run.pt"
    fit(problem_of(), sgd(0.2), steps=5, checkpoint=path)
    with pytest.raises((InputError, ArgumentTypeError), match="steps must"):
        fit(problem_of(), sgd(0.2), steps=steps, checkpoint=path)


def test_diverged_run_diverges_again_at_the_same_step(tmp_path):
    path = tmp_path / "run.pt"
    options = {"steps": 200, "divergence_factor": 3.0, "checkpoint": path, "checkpoint_every": 1}
    first = fit(problem_of(), sgd(50.0), **options)
    assert first.outcome is Outcome.DIVERGED
    assert first.steps >= 1
    again = fit(problem_of(), sgd(50.0), **options)
    assert again.outcome is Outcome.DIVERGED
    assert again.losses.tolist() == first.losses.tolist()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"batch_size": 10}, "batch_size 8 there and 10 here"),
        ({"seed": 1}, "seed 0 there and 1 here"),
        ({"optimizer": sgd(0.3)}, r"run \(optimizer's learning rate 0\.2 there and 0\.3 here\);"),
        (
            {"optimizer": sgd(0.3, momentum=0.9)},
            r"\(optimizer's learning rate 0\.2 there and 0\.3 here; "
            r"optimizer's momentum 0\.0 there and 0\.9 here\)",
        ),
        ({"optimizer": adam}, r"\(optimizer SGD there and Adam here\)"),
        ({"optimizer": groups(0.2, 0.2)}, r"\(optimizer SGD there and SGD of 2 groups here\)"),
        ({"problem": Problem(nn.Linear(5, 3), "cross_entropy", (X, Y))}, "model"),
        ({"problem": Problem(problem_of().model, "squared_error", (X, Y))}, "loss cross_entropy"),
        ({"problem": problem_of((X + 1, Y))}, "data"),
        ({"problem": problem_of((X.double(), Y))}, "data"),
        ({"divergence_factor": None}, "divergence_factor"),
        ({"drop_last": False}, "drop_last"),
    ],
)
def test_resuming_with_other_settings_is_refused_and_changes_nothing(tmp_path, change, words):
    path = tmp_path / "run.pt"
    settings = {"problem": problem_of(), "optimizer": sgd(0.2), "batch_size": 8}
    fit(**settings, steps=2, checkpoint=path)
    changed = settings | {"problem": problem_of()} | change
    before = state_of(changed["problem"])
    with pytest.raises(StateError, match=words) as caught:
        fit(**changed, steps=4, checkpoint=path)
    assert "\n" not in str(caught.value)
    for a, b in zip(before, state_of(changed["problem"]), strict=True):
        assert torch.equal(a, b)


def test_resuming_ignores_how_the_optimizer_computes(tmp_path):
    path = tmp_path / "run.pt"
    fit(problem_of(), sgd(0.2), steps=2, checkpoint=path)
    slow = fit(problem_of(), lambda p: torch.optim.SGD(p, lr=0.2), steps=4, checkpoint=path)
    assert slow.steps == 4


@pytest.mark.parametrize(
    "spoil",
    [
        lambda content: content[: len(content) // 2],
        lambda content: b"",
        lambda content: b"not a checkpoint",
        lambda content: pickle.dumps({"format": 1}),
    ],
    ids=["truncated", "empty", "text", "pickle"],
)
def test_damaged_checkpoint_is_one_clear_error(tmp_path, spoil):
    path = tmp_path / "run.pt"
    fit(problem_of(), sgd(0.2), steps=2, checkpoint=path)
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(DataError, match="delete it to restart") as caught:
        fit(problem_of(), sgd(0.2), steps=4, checkpoint=path)
    assert "\n" not in str(caught.value)


def test_checkpoint_with_one_bit_turned_in_a_tensor_is_refused(tmp_path):
    path = tmp_path / "run.pt"
    fit(problem_of(), sgd(0.2), steps=2, checkpoint=path)
    with zipfile.ZipFile(path) as archive:
        largest = max(archive.infolist(), key=lambda member: member.file_size)
        start = largest.header_offset + 300
    content = bytearray(path.read_bytes())
    content[start] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match="delete it to restart"):
        fit(problem_of(), sgd(0.2), steps=4, checkpoint=path)


def test_hostile_checkpoint_runs_no_code(tmp_path):
    class Hostile:
        def __reduce__(self):
            return (exec, (f"open({str(tmp_path / 'ran')!r}, 'w')",))

    path = tmp_path / "run.pt"
    torch.save({"format": Hostile()}, path)
    with pytest.raises(DataError, match="delete it to restart"):
        fit(problem_of(), sgd(0.2), steps=4, checkpoint=path)
    assert not (tmp_path / "ran").exists()


def test_another_torch_file_is_not_taken_for_a_checkpoint(tmp_path):
    path = tmp_path / "run.pt"
    torch.save(nn.Linear(2, 2).state_dict(), path)
    with pytest.raises(DataError, match="not a whole checkpoint"):
        fit(problem_of(), sgd(0.2), steps=4, checkpoint=path)


def test_checkpoint_is_written_every_so_many_steps(tmp_path):
    path = tmp_path / "run.pt"
    written = []

    def look(step):
        written.append(path.stat().st_mtime_ns if path.exists() else None)

    fit(problem_of(), sgd(0.2), steps=9, checkpoint=path, checkpoint_every=3, callback=look)
    first_seen = [i for i in range(1, 9) if written[i] != written[i - 1]]
    assert written[:3] == [None] * 3
    assert first_seen == [3, 6]


def test_loop_keeps_the_optimizer_state_to_the_bit(tmp_path):
    path = tmp_path / "run.pt"
    states = []
    for steps in (4, 9):
        problem = problem_of()
        optimizer = adam(problem.model.parameters())
        fit(problem, optimizer, steps=steps, checkpoint=path)
        states.append(optimizer.state_dict())
    whole = problem_of()
    optimizer = adam(whole.model.parameters())
    fit(whole, optimizer, steps=9)
    for name, expected in optimizer.state_dict()["state"].items():
        for key, value in expected.items():
            assert torch.equal(states[1]["state"][name][key], value)


def smooth(output, target, amount=0.0):
    return nn.functional.cross_entropy(output, target, label_smoothing=amount)


def mean_output(model, batch):
    return model(batch[0]).mean()


def line(*layers: nn.Module, loss: object = "cross_entropy") -> Problem:
    return Problem(nn.Sequential(nn.Linear(5, 3), *layers), loss, (X, Y))


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (line(nn.ReLU()), line(nn.Tanh()), "model"),
        (line(nn.Dropout(0.1)), line(nn.Dropout(0.2)), "model"),
        (
            line(loss=nn.CrossEntropyLoss()),
            line(loss=nn.CrossEntropyLoss(label_smoothing=0.9)),
            "label_smoothing=0.0.*label_smoothing=0.9",
        ),
        (
            line(loss=nn.CrossEntropyLoss(weight=torch.tensor([1.0, 1.0, 2.0]))),
            line(loss=nn.CrossEntropyLoss(weight=torch.tensor([1.0, 1.0, 3.0]))),
            "loss",
        ),
        (line(loss=partial(smooth, amount=0.1)), line(loss=partial(smooth, amount=0.2)), "loss"),
        (
            line(loss=whole_loss(mean_output)),
            line(loss=whole_loss(lambda m, b: m(b[0]).mean())),
            "loss whole_loss mean_output",
        ),
    ],
    ids=["activation", "dropout", "smoothing", "class weights", "partial", "whole loss"],
)
def test_resuming_another_model_or_loss_of_the_same_class_is_refused(
    tmp_path, before, after, words
):
    path = tmp_path / "run.pt"
    fit(before, sgd(0.2), steps=2, checkpoint=path)
    assert fit(before, sgd(0.2), steps=3, checkpoint=path).steps == 3
    with pytest.raises(StateError, match=words) as caught:
        fit(after, sgd(0.2), steps=4, checkpoint=path)
    assert "\n" not in str(caught.value)


def test_resuming_with_another_rate_of_one_group_is_refused(tmp_path):
    path = tmp_path / "run.pt"
    fit(problem_of(), groups(0.5, 0.1), steps=2, checkpoint=path)
    with pytest.raises(StateError, match=r"\(.*rate in group 0 0\.5 there and 0\.4 here\)"):
        fit(problem_of(), groups(0.4, 0.1), steps=4, checkpoint=path)
    assert fit(problem_of(), groups(0.5, 0.1), steps=4, checkpoint=path).steps == 4


def test_resuming_an_optimizer_whose_scheduler_has_lowered_the_rate_goes_on(tmp_path):
    path = tmp_path / "run.pt"
    problem = problem_of()
    optimizer = torch.optim.SGD(problem.model.parameters(), lr=0.2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    fit(problem, optimizer, steps=2, checkpoint=path)
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert fit(problem, optimizer, steps=4, checkpoint=path).steps == 4


def test_settings_do_not_depend_on_addresses(tmp_path):
    class Holder(nn.Module):
        def __init__(self):
            super().__init__()
            self.thing = object()

        def extra_repr(self):
            return repr(self.thing)

        def forward(self, x):
            return x

    path = tmp_path / "run.pt"
    first, second = line(Holder()), line(Holder())
    fit(first, sgd(0.2), steps=2, checkpoint=path)
    assert fit(second, sgd(0.2), steps=3, checkpoint=path).steps == 3


@pytest.mark.parametrize(
    "optimizer",
    [
        sgd(np.float64(0.03)),
        lambda p: torch.optim.SGD(p, lr=np.float64(0.03), momentum=np.float32(0.5)),
        lambda p: torch.optim.Adam(p, lr=np.float64(0.03), betas=(np.float64(0.9), 0.99)),
    ],
    ids=["sgd", "torch", "nested"],
)
def test_checkpoint_of_numbers_of_numpy_can_be_read_back(tmp_path, optimizer):
    path = tmp_path / "run.pt"
    expected = fit(problem_of(), optimizer, steps=5).losses.tolist()
    fit(problem_of(), optimizer, steps=2, checkpoint=path)
    assert fit(problem_of(), optimizer, steps=5, checkpoint=path).losses.tolist() == expected


def test_checkpoint_that_could_not_be_read_back_is_not_written(tmp_path):
    problem = problem_of()
    optimizer = torch.optim.SGD(problem.model.parameters(), lr=0.1)
    optimizer.param_groups[0]["note"] = random.Random(0)
    with pytest.raises(StateError, match=r"random\.Random.*only tensors and plain types") as caught:
        fit(problem, optimizer, steps=2, checkpoint=tmp_path / "run.pt")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_checkpoint_that_cannot_be_opened_says_why(tmp_path):
    with pytest.raises(DataError, match=r"cannot be read \(Is a directory\)") as caught:
        fit(problem_of(), sgd(0.2), steps=2, checkpoint=tmp_path)
    assert "delete" not in str(caught.value)


def never(step):
    raise AssertionError("a step was taken")


@pytest.mark.parametrize("folder", ["a_file", "a_file/below"])
def test_checkpoint_that_cannot_be_written_is_refused_before_the_first_step(tmp_path, folder):
    (tmp_path / "a_file").touch()
    path = tmp_path / folder / "run.pt"
    with pytest.raises(InputError, match=r"run\.pt cannot be written \(.+\); name") as caught:
        fit(problem_of(), sgd(0.2), steps=2, checkpoint=path, callback=never)
    assert "\n" not in str(caught.value)


def test_folder_of_a_checkpoint_is_made(tmp_path):
    path = tmp_path / "new" / "folder" / "run.pt"
    fit(problem_of(), sgd(0.2), steps=2, checkpoint=path)
    assert list(path.parent.iterdir()) == [path]


def test_run_to_be_extended_must_be_writable_and_one_only_read_back_need_not(tmp_path, monkeypatch):
    path = tmp_path / "run.pt"
    fit(problem_of(), sgd(0.2), steps=2, checkpoint=path)

    def read_only(*arguments, **options):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("normscope.training.checkpoint.try_write", read_only)
    assert fit(problem_of(), sgd(0.2), steps=2, checkpoint=path).steps == 2
    again = problem_of()
    before = state_of(again)
    with pytest.raises(InputError, match=r"cannot be written \(Read-only file system\)"):
        fit(again, sgd(0.2), steps=3, checkpoint=path, callback=never)
    for a, b in zip(before, state_of(again), strict=True):
        assert torch.equal(a, b)


FULL = """
import resource, sys
import torch
import normscope as ns
from normscope.errors import StateError

model = torch.nn.Linear(100, 100)
x = torch.ones(8, 100)
problem = ns.Problem(model, "squared_error", (x, x))
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    ns.fit(problem, ns.sgd(0.01), steps=2, batch_size=4, checkpoint=sys.argv[1])
except StateError as error:
    print(error)
"""


def test_full_disk_is_one_sentence_and_leaves_nothing(tmp_path):
    path = tmp_path / "training.pt"
    command = [sys.executable, "-c", FULL, path]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"the checkpoint {path} cannot be written: a full disk")
    assert done.stdout.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
