import threading

import pytest
import torch
from torch import nn

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
