import threading

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from normscope.problem.problem import Problem
from normscope.problem.threads import suitable_threads, thread_count


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def problem(width):
    model = nn.Linear(width, width)
    return Problem(model, "squared_error", (torch.ones(64, width), torch.zeros(64, width)))


def chosen(problem):
    return suitable_threads(problem, problem.data)


def test_small_network_has_one_thread():
    assert chosen(problem(10)) == 1  # 2 * 64 * 10 * 10 operations


def test_large_network_keeps_its_threads():
    assert chosen(problem(1000)) == 2  # 2 * 64 * 1000 * 1000 = 128 million operations


class LastState(nn.Module):
    """The last output of an LSTM."""

    def __init__(self, width):
        super().__init__()
        self.lstm = nn.LSTM(width, width, batch_first=True)

    def forward(self, x):
        return self.lstm(x)[0][:, -1]


@pytest.mark.parametrize(("width", "threads"), [(16, 1), (512, 2)])
def test_fused_layers_are_counted(width, threads):
    encoder = nn.TransformerEncoderLayer(width, 2, 4 * width, batch_first=True).eval()
    for model in (LastState(width), nn.Sequential(encoder, nn.Flatten())):
        x = torch.ones(4, 16, width)  # 2 * 64 * 8 * 512 * 512 = 268 million operations
        output = model(x).detach()
        assert chosen(Problem(model, "squared_error", (x, torch.zeros_like(output)))) == threads


class Hooked(nn.Module):
    """Notes the hooks that all modules have while it runs."""

    def __init__(self, seen):
        super().__init__()
        self.weight, self.note = nn.Parameter(torch.ones(1)), seen.append

    def forward(self, x):
        hooks = nn.modules.module
        self.note(len(hooks._global_forward_hooks) + len(hooks._global_forward_pre_hooks))
        return x * self.weight


def test_counting_adds_no_hooks_that_other_threads_run():
    seen = []
    assert chosen(Problem(Hooked(seen), "squared_error", (torch.ones(2, 1), torch.ones(2, 1)))) == 1
    assert seen == [0]


class Passing(TorchDispatchMode):
    """Another dispatch mode, around the count."""

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        return operation(*args, **(kwargs or {}))


def test_counting_works_inside_another_dispatch_mode():
    with Passing():
        assert (chosen(problem(10)), chosen(problem(1000))) == (1, 2)


def test_model_that_fails_keeps_its_threads():
    wrong = Problem(nn.Linear(3, 2), "squared_error", (torch.ones(4, 5), torch.zeros(4, 2)))
    assert chosen(wrong) == 2


def test_number_comes_back_also_after_an_error():
    with thread_count(1):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2
    with pytest.raises(KeyboardInterrupt), thread_count(1):
        raise KeyboardInterrupt
    assert torch.get_num_threads() == 2


def test_other_threads_keep_theirs():
    begun, may_read, found = threading.Event(), threading.Event(), []

    def other():
        assert torch.get_num_threads() == 2  # torch reads it once, at its first use
        begun.set()
        may_read.wait()
        found.append(torch.get_num_threads())

    running = threading.Thread(target=other)
    running.start()
    begun.wait()
    with thread_count(1):
        may_read.set()
        running.join()
    assert found == [2]
