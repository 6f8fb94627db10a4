"""Public calls that leave no trace when Ctrl-C interrupts them between any two instructions.

A ``with`` statement does not protect against that: an interrupt that arrives inside ``__exit__``
skips the rest of it. So the outermost public call runs in a `_Guard`, which

- records what must be restored: the actions of `Undo`, and the global states of `CAPTURES`;
- restores all of it on exit, while interrupts wait;
- raises an interrupt that waited afterwards.

Signals arrive in the main thread only. In other threads a guard restores, and nothing waits.
"""

from __future__ import annotations

import contextlib
import functools
import signal
import threading
from collections.abc import Callable, Iterator
from traceback import walk_tb
from types import FrameType
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

Handler = Callable[[int, FrameType | None], Any]

CAPTURES: list[Callable[[], Callable[[], None]]] = []
"""Functions that capture a global state and return what restores it; filled at import."""

_ACTIVE = threading.local()


def interrupt_safe(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a public function: after an interrupt, all that it changed for a while is restored.

    Calls from inside such a function run as they are: the outermost restores.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        if _active_guard() is not None:
            return function(*args, **kwargs)
        return _run_guarded(function, args, kwargs)

    return call


def uninterrupted(function: Callable[[], T]) -> T:
    """Call a function that must not stop halfway, such as an import; interrupts wait for it."""
    guard = _active_guard()
    if guard is None:
        return _run_guarded(lambda: uninterrupted(function), (), {})
    with guard.closed():
        return function()


def interrupts_wait(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a short function that must not stop halfway, such as a write to a file."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return uninterrupted(functools.partial(function, *args, **kwargs))

    return call


class Undo:
    """An action that restores state; it runs once, when called or at the end of the public call.

    Create it before the state changes. The action must be repeatable: an interrupt in its middle,
    or one that skipped the undo of a later, inner change, makes it run again.

    Args:
        action: restores the state.
    """

    def __init__(self, action: Callable[[], None]) -> None:
        self.action: Callable[[], None] | None = action
        self.is_done = False
        self._guard = _active_guard()
        if self._guard is not None:
            self._guard.undos.append(self)

    def __call__(self) -> None:
        """Restore the state, unless this was done before."""
        if self.is_done or self.action is None:
            return
        try:
            self.action()
        except KeyboardInterrupt:
            if self._guard is None:  # otherwise the guard repeats it
                self.action()
            raise
        self.is_done = True
        if self._guard is not None:
            self._guard.forget_done()

    def dismiss(self) -> None:
        """Do not restore the state: the change is complete and stays."""
        self.is_done, self.action = True, None
        if self._guard is not None:
            self._guard.forget_done()


@contextlib.contextmanager
def replaced_handler(handler: Handler) -> Iterator[bool]:
    """Handle Ctrl-C by another function inside a public call.

    Args:
        handler: called with the signal's number and the frame.

    Yields:
        Whether it is in use: not outside the main thread, and not if the program has a handler
        other than Python's.
    """
    guard = _active_guard()
    if guard is None or guard.handler is not signal.default_int_handler:
        yield False
        return
    guard.handler = handler
    try:
        yield True
    finally:
        guard.handler = signal.default_int_handler


class _Guard:
    """The state to restore after one public call, and the interrupts that wait meanwhile.

    Attributes:
        undos: actions that were not run yet, the oldest first.
        handler: receives interrupts; the program's own. None: it has none in Python.
    """

    def __init__(self) -> None:
        self.undos: list[Undo] = []
        self.handler: Handler | None = None
        self._original: Any = None
        self._captured: list[Callable[[], None]] = []
        self._is_closed = True  # interrupts wait
        self._waiting: tuple[int, FrameType | None] | None = None
        self._raised: BaseException | None = None  # by the handler

    def enter(self) -> None:
        """Start to receive interrupts; capture the global states."""
        if threading.current_thread() is threading.main_thread():
            self._original = signal.getsignal(signal.SIGINT)
            if callable(self._original):
                self.handler = self._original
                signal.signal(signal.SIGINT, self._receive)
        _ACTIVE.guard = self
        self._captured = [capture() for capture in CAPTURES]
        self._is_closed = False

    def _receive(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal, or let it wait while the guard itself runs."""
        if self._is_closed or (frame is not None and frame.f_code in _OWN_CODE):
            self._waiting = number, frame
        elif self.handler is not None:
            try:
                self.handler(number, frame)
            except BaseException as raised:
                self._raised = raised
                raise

    def raise_waiting(self) -> None:
        """Handle the interrupt that waited."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None and self.handler is not None:
            self.handler(*waiting)

    def forget_done(self) -> None:
        """Forget the undos that ran, up to one that did not: after an error they run again."""
        while self.undos and self.undos[-1].is_done:
            self.undos.pop()

    @contextlib.contextmanager
    def closed(self) -> Iterator[None]:
        """Let interrupts wait inside."""
        was_closed, self._is_closed = self._is_closed, True
        try:
            yield
        finally:
            self._is_closed = was_closed
        if not was_closed:
            self.raise_waiting()

    def leave(self, error: BaseException | None) -> None:
        """Restore everything, then handle the interrupt that waited.

        Args:
            error: what the call raised.
        """
        self._is_closed = True
        undos, self.undos = self.undos, []
        try:
            _end_contexts(error)
            with contextlib.ExitStack() as last_first:
                for restore in self._captured:
                    last_first.callback(restore)
                for undo in undos:
                    if undo.action is not None and (error is not None or not undo.is_done):
                        last_first.callback(undo.action)
                    undo.dismiss()
        finally:
            _ACTIVE.guard = None
            if self.handler is not None:
                self.handler = self._original
                if signal.getsignal(signal.SIGINT) == self._receive:
                    signal.signal(signal.SIGINT, self._original)
        raised, self._raised = self._raised, None  # it holds frames, and they the guard
        if raised is not None and (_is_lost(raised) if error is None else _hides(error, raised)):
            raise raised
        if not isinstance(error, KeyboardInterrupt):
            self.raise_waiting()


def _run_guarded(function: Callable[..., T], args: Any, kwargs: Any) -> T:
    guard = _Guard()
    error: BaseException | None = None
    try:
        guard.enter()
        return _call(guard, function, args, kwargs)
    except BaseException as raised:
        error = raised
        raise
    finally:
        guard.leave(error)
        error = None  # it holds this frame


def _call(guard: _Guard, function: Callable[..., T], args: Any, kwargs: Any) -> T:
    """Call the function; a frame of its own, in which interrupts do not wait any more."""
    guard.raise_waiting()
    return function(*args, **kwargs)


_OWN_CODE = {_run_guarded.__code__, _Guard.leave.__code__}


def _active_guard() -> _Guard | None:
    return getattr(_ACTIVE, "guard", None)


def _hides(error: BaseException, interrupt: BaseException) -> bool:
    """Return whether an error came from contexts that could not exit after an interrupt."""
    context = None if error.__suppress_context__ else error.__context__
    return context is not None and (context is interrupt or _hides(context, interrupt))


def _is_lost(interrupt: BaseException) -> bool:
    """Return whether no code of the program caught an interrupt after which the call went on.

    Python drops an error in ``__del__``, and a library may catch one that it led to.
    """
    traceback = interrupt.__traceback__
    module = traceback.tb_frame.f_globals.get("__name__", "") if traceback is not None else ""
    return module.partition(".")[0] in ("", "contextlib", "normscope", "torch")


def _end_contexts(error: BaseException | None) -> None:
    """Exit the contexts whose ``__enter__`` or ``__exit__`` an error interrupted.

    The traceback keeps them alive. Without this they would exit when it is freed, at any later
    time, and set the state of before over that of the program.
    """
    for frame in reversed(list(_frames_of(error))):
        if frame.f_code.co_filename == contextlib.__file__:
            generator = getattr(frame.f_locals.get("self"), "gen", None)
            with contextlib.suppress(Exception):
                generator.close()  # type: ignore[union-attr]  # not every context has one
        if frame.f_code.co_name in ("__enter__", "__exit__"):
            with contextlib.suppress(RuntimeError):  # it still runs
                frame.clear()


def _frames_of(error: BaseException | None) -> Iterator[FrameType]:
    """Yield the frames of an error and of those that it was raised after, these first."""
    if error is not None:
        yield from _frames_of(error.__context__)
        for frame, _ in walk_tb(error.__traceback__):
            yield frame
