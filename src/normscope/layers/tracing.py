"""Following a forward pass by ``torch.fx``, in a way that takes the branches a tensor would."""

from __future__ import annotations

import builtins
import copy
import inspect
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from normscope.layers.detect import is_batch_norm, is_lp_norm

PLAIN_LAYERS = (
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)
# What says nothing of a tensor's values: shape, dtype, device, number of dimensions, flags.
_NO_VALUES = (torch.Size, torch.dtype, torch.device, torch.layout, int)


def is_plain_layer(module: nn.Module) -> bool:
    """Whether the module computes what torch's linear or convolution layer of its kind does.

    Args:
        module: any module.

    Returns:
        False also for a subclass whose forward pass is its own.

    >>> is_plain_layer(nn.Conv2d(1, 1, 1)), is_plain_layer(nn.ReLU())
    (True, False)
    """
    if not isinstance(module, PLAIN_LAYERS) or "forward" in vars(module):
        return False
    methods = [getattr(type(module), name, None) for name in ("forward", "_conv_forward")]
    return all(method is None or method.__module__.startswith("torch.nn.") for method in methods)


def chain_of_calls(module: nn.Module) -> list[str] | None:
    """Names of the modules inside that a forward pass calls, if each takes what the last gave.

    Args:
        module: a module that takes one input; it is copied, and left alone.

    Returns:
        The names in order; None if the forward pass branches, or cannot be followed.

    >>> chain_of_calls(nn.Sequential(nn.Linear(2, 3), nn.ReLU()))
    ['0', '1']
    """
    result = traced(copy.deepcopy(module).eval(), open_modules=False)
    if result is None:
        return None
    _, *rest = result[0].nodes
    if any(node.all_input_nodes != [node.prev] for node in rest):
        return None
    return [str(node.target) for node in rest if node.op == "call_module"]


def traced(module: nn.Module, open_modules: bool = True) -> tuple[fx.Graph, set[int]] | None:
    """The calls of a forward pass, and what it uses itself.

    Optional arguments are held at their defaults, never left open: ``if mask is None`` would take
    the wrong branch.

    Args:
        module: the module to follow, in eval mode; torch.fx may add attributes to it.
        open_modules: whether to follow the modules it calls, too.

    Returns:
        The graph, and ids of the tensors that are used outside of the calls in it; None if the
        forward pass cannot be followed.
    """
    tracer, reads = Tracer(open_modules), _Reads()
    try:
        parameters = inspect.signature(module.forward).parameters.values()
        defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
        with (
            warnings.catch_warnings(),
            torch.random.fork_rng(devices=[]),
            _taken_for_tensors(),
            reads,
        ):
            warnings.simplefilter("ignore")  # torch.fx cannot assert a default of every type
            return tracer.trace(module, defaults), reads.found | tracer.reads
    except Exception:  # user code meets proxies instead of tensors: it may fail in any way
        return None


class _Reads(TorchFunctionMode):
    """Collects the tensors whose values are used while a forward pass is followed.

    Modules that are not opened are not run then, so this is what happens outside of their calls,
    also where it leaves no trace in the graph, as a penalty on ``self.parameters()`` does.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: set[int] = set()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if not isinstance(result, _NO_VALUES):
            self.found |= {id(leaf) for leaf in pytree.tree_leaves((args, kwargs))}
        return result


class _StandIn(fx.Proxy):
    """A proxy that passes for a tensor where Python code asks ``isinstance(x, Tensor)``.

    Not by its ``__class__``: torch's compiled code would believe it too, and read the memory of a
    tensor where there is none (``torch.zeros(len_of_batch, 3)``, ``torch.as_tensor(x)``, ``apply``
    of an own autograd function), which ends the process.
    """

    _is_param = False
    _is_buffer = False


_BUILTINS = threading.RLock()  # there is one isinstance for all threads


@contextmanager
def _taken_for_tensors() -> Iterator[None]:
    """Python's ``isinstance`` says that a stand-in is a tensor."""

    def answer(value: object, kinds: Any) -> bool:
        if type(value) is not _StandIn:
            return genuine(value, kinds)
        return genuine(value, kinds) or any(
            kind is Tensor for kind in (kinds if genuine(kinds, tuple) else (kinds,))
        )

    with _BUILTINS:
        genuine = builtins.isinstance
        builtins.isinstance = answer
        try:
            yield
        finally:
            builtins.isinstance = genuine


class Tracer(fx.Tracer):
    """Follows a forward pass down to the calls of plain, norm and torch's own layers.

    Args:
        open_modules: whether to follow the other modules.
    """

    def __init__(self, open_modules: bool) -> None:
        super().__init__()
        self._open_modules = open_modules
        self.reads: set[int] = set()

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        """A module's attribute as it is, parameters too: their use is seen, not their mention."""
        return attr_val

    def proxy(self, node: fx.Node) -> fx.Proxy:
        """What stands for a node's result."""
        return _StandIn(node, self)

    def create_arg(self, a: Any) -> Any:
        """What stands in the graph for an argument of a call."""
        if isinstance(a, fx.Proxy):  # asked first: to fx, a stand-in would be a constant tensor
            return a.node
        if isinstance(a, Tensor):
            self.reads.add(id(a))
        return super().create_arg(a)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Whether a module's call is a node of its own, not followed inside."""
        known = is_plain_layer(m) or is_batch_norm(m) or is_lp_norm(m)
        return known or not self._open_modules or super().is_leaf_module(m, module_qualified_name)
