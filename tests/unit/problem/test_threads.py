import threading

import pytest
import torch
from torch import nn

from normscope.problem.problem import Problem
from normscope.problem.threads import suitable_threads


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def problem(width):
    model = nn.Linear(width, width)
    return Problem(model, "squared_error", (torch.ones(64, width), torch.zeros(64, width)))


def test_small_network_has_one_thread_and_the_number_comes_back():
    small = problem(10)  # 2 * 64 * 10 * 10 operations
    with suitable_threads(small, small.prepare(small.data)):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2


def test_large_network_keeps_its_threads():
    large = problem(1000)  # 2 * 64 * 1000 * 1000 = 128 million operations
    with suitable_threads(large, large.prepare(large.data)):
        assert torch.get_num_threads() == 2


def test_threads_come_back_after_an_error():
    small = problem(10)
    with pytest.raises(KeyboardInterrupt), suitable_threads(small, small.prepare(small.data)):
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
    small = problem(10)
    with suitable_threads(small, small.prepare(small.data)):
        may_read.set()
        running.join()
    assert found == [2]
