"""Measurements passed on while the training runs."""

import numpy as np
import pytest
import torch

import normscope as ns
from normscope.errors import ArgumentTypeError, InputError
from normscope.integrations import LoggedScope, log_results
from normscope.integrations.logger import RowLogger
from normscope.integrations.tags import scalars
from normscope.problem.loss import cross_entropy


class Kept:
    """A logger that remembers, and refuses to be told anything twice."""

    def __init__(self):
        self.values = {}
        self.flushes = 0

    def add_scalar(self, tag, value, step):
        assert (tag, step) not in self.values
        self.values[tag, step] = value

    def flush(self):
        self.flushes += 1


def trained(scope_of, steps=6):
    torch.manual_seed(0)
    x, y = ns.data.load("digits").train
    model = ns.models.build("fully_connected", input_shape=(1, 8, 8), width=8, depth=3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scope = scope_of(model, optimizer)
    with scope:
        for step in range(steps):
            batch = slice(16 * step, 16 * step + 16)
            optimizer.zero_grad()
            cross_entropy(model(x[batch]), y[batch]).backward()
            scope.step(x[batch], y[batch])
            optimizer.step()
    return scope


def logged(logger, probes="standard", **options):
    return lambda model, optimizer: LoggedScope(
        ns.Scope(model, "cross_entropy", optimizer, probes, every=2), logger, **options
    )


def expected(results, first_step=0, **options):
    return {(each.tag, each.step + first_step): each.value for each in scalars(results, **options)}


@pytest.mark.parametrize("steps", [5, 6])  # the last step is measured, and is not
@pytest.mark.parametrize("details", [False, True])
def test_every_number_is_passed_on_once(steps, details):
    logger = Kept()
    scope = trained(logged(logger, details=details), steps)
    assert logger.values == expected(scope.results, details=details)
    changes = [step for tag, step in logger.values if "mean_change/" in tag]
    assert set(changes) == ({0, 2, 4} if steps == 6 else {0, 2})


def test_numbers_come_when_they_are_known():
    logger = Kept()
    told = []

    class Watched(LoggedScope):
        def step(self, x, y=None):
            measured = super().step(x, y)
            told.append((measured, len(logger.values), logger.flushes))
            return measured

    trained(lambda model, optimizer: Watched(logged(logger)(model, optimizer).scope, logger), 4)
    (first, at_once, _), (second, after, flushed), (_, third, _), _ = told
    assert (first, second) == (True, False)
    assert 0 < at_once < after < third  # the change of the moments is known one step later
    assert flushed == 2


def test_unmeasured_steps_cost_the_logger_nothing():
    logger = Kept()
    probes = "gradient_norms"
    trained(lambda m, o: LoggedScope(ns.Scope(m, "cross_entropy", o, probes, 50), logger), 20)
    assert logger.flushes == 3  # the measured step, the one after it, the end


def test_first_step_moves_all_steps():
    logger = Kept()
    scope = trained(logged(logger, first_step=100))
    assert logger.values == expected(scope.results, 100)
    assert {step for _, step in logger.values} == {100, 102, 104}


def test_logged_training_ends_in_the_same_bits():
    plain = trained(lambda m, o: ns.Scope(m, "cross_entropy", o, "standard", every=2))
    with_logger = trained(logged(Kept()))
    assert plain.results.identical(with_logger.results)


def test_rows_before_an_error_are_passed_on():
    logger = Kept()
    x, y = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    model = torch.nn.Linear(3, 3)
    scope = ns.Scope(model, "cross_entropy", learning_rate=0.1, probes="activation_moments")
    running = LoggedScope(scope, logger)
    running.step(x, y)
    running.__exit__(ZeroDivisionError, ZeroDivisionError("in the training"), None)
    assert logger.values == expected(scope.results)
    assert not np.isnan(list(logger.values.values())).any()


def test_results_are_logged_afterwards():
    scope = trained(lambda m, o: ns.Scope(m, "cross_entropy", o, "economy", every=2))
    logger = Kept()
    log_results(scope.results, logger, prefix="later")
    assert logger.values == expected(scope.results, prefix="later")
    assert logger.flushes == 1


def test_results_without_steps_are_refused():
    given = trained(lambda m, o: ns.Scope(m, "cross_entropy", o, "economy"))
    with pytest.raises(InputError, match="the dimension step"):
        log_results(given.results.isel(step=0), Kept())


def test_other_objects_are_no_loggers():
    scope = ns.Scope(torch.nn.Linear(1, 1), "squared_error", probes="gradient_norms")
    with pytest.raises(ArgumentTypeError, match=r"add_scalar.*got dict"):
        LoggedScope(scope, {})
    with pytest.raises(ArgumentTypeError, match=r"add_scalar.*got list"):
        log_results(scope.results, [])


def test_row_logger_gives_each_step_once():
    rows = []

    class Rows(RowLogger):
        def log_row(self, step, values):
            rows.append((step, values))

    scope = trained(logged(Rows(), "economy"))
    assert [step for step, _ in rows] == [0, 2, 4]
    found = {(tag, step): value for step, values in rows for tag, value in values.items()}
    assert found == expected(scope.results)
