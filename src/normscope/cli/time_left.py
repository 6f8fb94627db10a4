"""How long work will go on, by the pace of this run alone."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["TimeLeft", "in_words"]

_LONG = 10.0  # seconds: before them nobody asks what is left
_LEAST = 1.0  # second: what is not done has some time left


class TimeLeft:
    """An estimate from counts of what is done.

    What the first count has already was done by an earlier run: it took no time here and says
    nothing of the pace.

    Args:
        clock: tells the seconds.

    Examples:
        >>> now = [0.0]
        >>> left = TimeLeft(lambda: now[0])
        >>> for done in (60, 70, 80):  # sixty were there
        ...     left.count(done, 100)
        ...     now[0] += 10
        >>> left.seconds  # 20 more at one a second, of which 10 have passed
        10.0
        >>> str(left)
        'about 10 s left'
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._first: tuple[int, float] | None = None
        self._done, self._total, self._last, self._reports = 0, 0, 0.0, 0
        self._how = "about"

    def count(self, done: int, total: int, is_bound: bool = False) -> None:
        """So much is done now, of so much; or, where that is a bound, of so much at most."""
        self._how = "up to" if is_bound else "about"
        now = self._clock()
        if self._first is None:
            self._first = done, now
        elif done != self._done:
            self._reports += 1
        if done != self._done or total != self._total:
            self._done, self._total, self._last = done, total, now

    @property
    def seconds(self) -> float | None:
        """Seconds to the end; None before a tenth of a long run is done.

        It falls while a part is on, and grows again once that takes longer than those before.
        """
        if self._first is None:
            return None
        found, begin = self._first
        own, rest = self._done - found, self._total - self._done
        now = self._clock()
        if own <= 0 or now - begin < _LONG or 10 * own < self._total - found:
            return None
        return max(self._expected(begin, now, rest / own), _LEAST) if rest > 0 else 0.0

    def _expected(self, begin: float, now: float, rest: float) -> float:
        """Seconds to the end, of a rest that is a multiple of what is done.

        Counts come a mean time apart. One that is late is late as long again, and those that
        follow come at the pace up to now.
        """
        apart, since = (self._last - begin) / self._reports, now - self._last
        counts = self._reports * rest  # to come
        late = since - apart * min(counts, 1.0)
        if late <= 0:
            return apart * counts - since
        return late + max(counts - 1, 0.0) * (now - begin) / (self._reports + 1)

    def __str__(self) -> str:
        seconds = self.seconds
        return "" if seconds is None else f"{self._how} {in_words(seconds)} left"


def in_words(seconds: float) -> str:
    """A duration as people say it.

    >>> in_words(41.3), in_words(150), in_words(7000), in_words(5990), in_words(360_000)
    ('41 s', '2.5 min', '1.9 h', '100 min', '100 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    value, unit = (seconds / 60, "min") if seconds < 100 * 60 else (seconds / 3600, "h")
    return f"{value:.2g} {unit}" if value < 99 else f"{value:.0f} {unit}"
