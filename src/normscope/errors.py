"""All errors and warnings of normscope, under one root.

Each error is also a subclass of the built-in type a PyTorch user expects, so that both
``except NormscopeError`` and ``except ValueError`` catch it. A message says what was
expected, what came and what to do.
"""


class NormscopeError(Exception):
    """Root of all errors that normscope raises on purpose."""


class InputError(NormscopeError, ValueError):
    """An argument has the right type but a value that cannot be used."""


class ShapeError(InputError):
    """A tensor has the wrong number or size of dimensions."""


class MisfitError(ShapeError, RuntimeError):
    """Data does not fit a model; torch itself raises a RuntimeError there."""


class UnknownNameError(InputError):
    """A name is not registered; the message lists the choices and the closest one."""


class DuplicateNameError(InputError):
    """A name is registered twice."""


class NoClosureError(InputError):
    """The mean-field theory cannot read a model, or has no closure for a part of it.

    Args:
        what: the part and the reason, without a full stop.
        remedy: what to do instead, in full sentences.

    >>> error = NoClosureError("encoder: no closure for attention", "Measure instead.")
    >>> print(error)
    encoder: no closure for attention. Measure instead.
    >>> error.what
    'encoder: no closure for attention'
    """

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(f"{what}. {remedy}" if remedy else what)
        self.what = what


class ArgumentTypeError(NormscopeError, TypeError):
    """An argument has the wrong type."""


class StateError(NormscopeError, RuntimeError):
    """An operation does not fit the current state of a model, file or run."""


class DataError(NormscopeError, RuntimeError):
    """A data file is missing, truncated, corrupt or unsafe."""


class NormscopeWarning(UserWarning):
    """Root of all warnings that normscope issues."""
