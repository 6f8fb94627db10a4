import contextlib
import gc
import itertools
import signal
import threading
import warnings

import numpy as np
import pytest
import torch
import xarray as xr
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode, is_in_torch_dispatch_mode

import normscope as ns
from normscope.interrupts import Undo, interrupt_safe, replaced_handler, uninterrupted
from normscope.problem import isolated
from normscope.problem.isolation import MODEL_LOCK
from normscope.results import Store


def press_ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


def stop_before(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, call: int = 0) -> None:
    """Interrupt one call of a method before its first instruction, as a signal may.

    The replacement has the name and the file of the method: the interrupt is raised in its frame.
    """
    numbers = itertools.count()
    method = getattr(owner, name)
    code = f"def {name}(self, *args):\n    stop()\n    return method(self, *args)"
    scope = {"stop": lambda: next(numbers) == call and press_ctrl_c(), "method": method}
    exec(compile(code, method.__code__.co_filename, "exec"), scope)
    monkeypatch.setattr(owner, name, scope[name])


def state_of(model: nn.Module) -> list:
    tensors = [*model.parameters(), *model.buffers()]
    return [(id(t), t.detach().clone(), t.grad) for t in tensors]


def assert_same(before: list, after: list) -> None:
    for (one, values, gradient), (other, now, present) in zip(before, after, strict=True):
        assert one == other
        assert torch.equal(values, now)
        assert gradient is present


def test_an_interrupt_inside_the_exit_of_no_grad_leaves_grad_mode_on(monkeypatch):
    @interrupt_safe
    def call():
        with torch.no_grad():
            pass

    stop_before(monkeypatch, torch.no_grad, "__exit__")
    with pytest.raises(KeyboardInterrupt):
        call()
    assert torch.is_grad_enabled()


def test_an_interrupt_inside_the_exit_of_a_mode_removes_the_mode(monkeypatch):
    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    @interrupt_safe
    def call():
        with Mode():
            pass

    stop_before(monkeypatch, Mode, "__exit__")
    with pytest.raises(KeyboardInterrupt):
        call()
    assert torch._C._len_torch_function_stack() == 0


def test_an_interrupt_inside_the_exit_of_a_dispatch_mode_removes_the_mode(monkeypatch):
    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    @interrupt_safe
    def call():
        with Mode():
            pass

    before = is_in_torch_dispatch_mode()  # a flag of the whole process
    stop_before(monkeypatch, TorchDispatchMode, "__exit__")
    with pytest.raises(KeyboardInterrupt):
        call()
    assert torch._C._len_torch_dispatch_stack() == 0
    assert is_in_torch_dispatch_mode() == before


def test_autocast_that_could_not_exit_is_restored(monkeypatch):
    @interrupt_safe
    def call():
        with torch.autocast("cpu", torch.bfloat16):
            pass

    stop_before(monkeypatch, torch.autocast, "__exit__")
    with pytest.raises(KeyboardInterrupt):
        call()
    assert not torch.is_autocast_enabled("cpu")
    assert torch.autocast_increment_nesting() == 1
    torch.autocast_decrement_nesting()


def test_inference_mode_that_could_not_exit_is_restored(monkeypatch):
    @interrupt_safe
    def call():
        with torch.inference_mode():
            pass

    stop_before(monkeypatch, torch.inference_mode, "__exit__")
    with pytest.raises(KeyboardInterrupt):
        call()
    assert not torch.is_inference_mode_enabled()
    assert torch.is_grad_enabled()


def test_saved_tensor_hooks_that_could_not_exit_are_removed(monkeypatch):
    @interrupt_safe
    def call():
        with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
            pass

    stop_before(monkeypatch, torch.autograd.graph.saved_tensors_hooks, "__exit__")
    with pytest.raises(KeyboardInterrupt):
        call()
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None


def test_filters_of_warnings_that_could_not_exit_are_restored(monkeypatch):
    @interrupt_safe
    def call():
        with warnings.catch_warnings():
            pass

    filters = warnings.filters
    stop_before(monkeypatch, warnings.catch_warnings, "__exit__")
    with pytest.raises(KeyboardInterrupt):
        call()
    assert warnings.filters is filters


@pytest.mark.parametrize("name", ["__enter__", "__exit__"])
@pytest.mark.parametrize("number", range(0, 60, 4))
def test_an_interrupt_inside_any_context_leaves_the_model_as_it_was(monkeypatch, name, number):
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 2))
    model[0].weight.grad = torch.ones(4, 3)
    batch = torch.randn(8, 3), torch.randn(8, 2)
    top_eigenvalue = ns.curvature.top_eigenvalue
    before, flags, random = state_of(model), model.training, torch.get_rng_state()
    stop_before(monkeypatch, contextlib._GeneratorContextManager, name, number)
    with contextlib.suppress(KeyboardInterrupt):  # some calls need fewer contexts
        top_eigenvalue(model, "squared_error", batch, kind="hessian", mode="frozen")
    assert_same(before, state_of(model))
    assert model.training == flags
    assert torch.equal(random, torch.get_rng_state())
    assert torch.is_grad_enabled()
    assert torch._C._len_torch_function_stack() == 0
    assert lock_is_free()


def lock_is_free() -> bool:
    def try_it() -> None:
        found.append(MODEL_LOCK.acquire(blocking=False))
        if found[0]:
            MODEL_LOCK.release()

    found: list[bool] = []
    thread = threading.Thread(target=try_it)
    thread.start()
    thread.join()
    return found[0]


def test_a_context_kept_alive_by_the_traceback_does_not_restore_later(monkeypatch):
    model = nn.Linear(2, 1)

    @interrupt_safe
    def call():
        with isolated(model, tensors={"weight": torch.zeros(1, 2)}, seed=3):
            pass

    stop_before(monkeypatch, contextlib._GeneratorContextManager, "__exit__")
    with pytest.raises(KeyboardInterrupt) as caught:
        call()
    model.weight = nn.Parameter(torch.full((1, 2), 7.0))
    torch.manual_seed(11)
    state = torch.get_rng_state()
    del caught
    gc.collect()
    assert model.weight.tolist() == [[7.0, 7.0]]
    assert torch.equal(state, torch.get_rng_state())


def test_inference_mode_kept_alive_by_the_traceback_does_not_set_grad_mode_later(monkeypatch):
    @interrupt_safe
    def call():
        with torch.no_grad(), torch.inference_mode(False):
            pass

    stop_before(monkeypatch, torch.inference_mode, "__exit__")
    with pytest.raises(KeyboardInterrupt) as caught:
        call()
    assert torch.is_grad_enabled()
    del caught
    gc.collect()
    assert torch.is_grad_enabled()


def test_an_interrupt_waits_until_everything_is_restored():
    done = []

    @interrupt_safe
    def call():
        Undo(lambda: done.append("first"))
        Undo(lambda: (press_ctrl_c(), done.append("second")))
        return "result"

    with pytest.raises(KeyboardInterrupt):
        call()
    assert done == ["second", "first"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_undo_runs_once_and_a_dismissed_one_never():
    done = []

    @interrupt_safe
    def call():
        Undo(lambda: done.append("called"))()
        Undo(lambda: done.append("dismissed")).dismiss()
        Undo(lambda: done.append("left"))

    call()
    assert done == ["called", "left"]


def test_the_outer_state_wins_if_an_inner_undo_was_skipped():
    done = []

    @interrupt_safe
    def call():
        outer = Undo(lambda: done.append("outer"))
        Undo(lambda: done.append("inner"))
        outer()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        call()
    assert done == ["outer", "inner", "outer"]


def test_a_late_undo_does_not_run_the_inner_ones():
    """A generator that is freed late must not restore a model that is in use."""
    done = []

    @interrupt_safe
    def call():
        late = Undo(lambda: done.append("late"))
        inner = Undo(lambda: done.append("inner"))
        late()
        assert done == ["late"]
        inner()

    call()
    assert done == ["late", "inner"]


def test_all_undos_run_although_one_fails():
    done = []

    def fail():
        raise ZeroDivisionError

    @interrupt_safe
    def call():
        Undo(lambda: done.append("first"))
        Undo(fail)

    with pytest.raises(ZeroDivisionError):
        call()
    assert done == ["first"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_handler_of_the_program_is_called():
    seen = []
    before = signal.signal(signal.SIGINT, lambda *_: seen.append("pressed"))
    try:
        interrupt_safe(press_ctrl_c)()
        assert seen == ["pressed"]
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_program_that_ignores_interrupts_goes_on_ignoring_them():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        interrupt_safe(press_ctrl_c)()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_replaced_handler_is_used_inside_only():
    seen = []

    @interrupt_safe
    def call():
        with replaced_handler(lambda *_: seen.append("replaced")) as used:
            press_ctrl_c()
        assert used
        press_ctrl_c()

    with pytest.raises(KeyboardInterrupt):
        call()
    assert seen == ["replaced"]


def test_a_call_in_another_thread_restores():
    found = []

    @interrupt_safe
    def call():
        Undo(lambda: found.append("restored"))
        raise ZeroDivisionError

    def run():
        with pytest.raises(ZeroDivisionError):
            call()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == ["restored"]


def test_the_outermost_call_restores():
    done = []

    @interrupt_safe
    def inner():
        Undo(lambda: done.append("restored"))

    @interrupt_safe
    def outer():
        inner()
        assert not done

    outer()
    assert done == ["restored"]


def test_an_interrupt_waits_for_an_import():
    done = []

    def load():
        press_ctrl_c()
        done.append("loaded")

    for call in (lambda: uninterrupted(load), interrupt_safe(lambda: uninterrupted(load))):
        with pytest.raises(KeyboardInterrupt):
            call()
    assert done == ["loaded", "loaded"]


def test_public_calls_are_protected():
    for function in (
        ns.curvature.operator,
        ns.curvature.top_eigenvalue,
        ns.curvature.spectrum,
        ns.curvature.trace,
        ns.curvature.dense,
        ns.curvature.batch_size_effect,
        ns.meanfield.predict,
        ns.layers.convert,
        ns.layers.fold,
        ns.layers.population_statistics,
        ns.training.evaluate,
        ns.fit,
        ns.max_learning_rate,
        ns.compare,
        ns.theorems.check,
        ns.theorems.check_layer,
        ns.Scope.__init__,
    ):
        assert function.__closure__[0].cell_contents is function.__wrapped__, function.__name__


def test_an_interrupt_that_was_dropped_is_raised_at_the_end():
    @interrupt_safe
    def call():
        try:
            press_ctrl_c()
        except KeyboardInterrupt as interrupt:
            interrupt.__traceback__ = None  # as of one that Python dropped in a finalizer
        return "result"

    with pytest.raises(KeyboardInterrupt):
        call()


def test_an_interrupt_that_the_program_caught_is_not_raised_again():
    @interrupt_safe
    def call():
        with contextlib.suppress(KeyboardInterrupt):
            press_ctrl_c()
        return "result"

    assert call() == "result"


@pytest.mark.parametrize("number", range(10, 26))
def test_a_store_is_usable_while_the_interrupt_of_a_computation_is_handled(
    monkeypatch, tmp_path, number
):
    data = xr.Dataset({"loss": ("step", np.arange(3.0))})
    with Store(tmp_path / "runs.sqlite") as store:
        with monkeypatch.context() as patched:
            stop_before(patched, contextlib._GeneratorContextManager, "__exit__", number)
            try:
                store.compute("first", {}, 0, lambda: data)
            except KeyboardInterrupt as interrupt:
                kept = interrupt  # and with it every frame
        store.compute("second", {}, 0, lambda: data)
        kept = None
    assert kept is None
    gc.collect()
    with Store(tmp_path / "runs.sqlite", read_only=True) as again:
        assert [record.state for record in again.select("second")] == ["finished"]
