"""Run a model without side effects: all that a pass can change is restored bit for bit.

``with isolated(model, tensors=..., seed=0):`` lets the model run at other parameters and buffers.
On exit, also after an error or Ctrl-C, every module has its parameters, gradients, buffers, plain
attributes, flags and hooks back, and every random number generator its state.
"""

from __future__ import annotations

import random
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from normscope.interrupts import CAPTURES, Undo
from normscope.problem.attributes import (
    Copies,
    contained,
    plain_attributes,
    state_restorer,
    unregistered_modules,
)
from normscope.problem.global_state import capture_global_state
from normscope.problem.hooks import HOOK_FLAGS, HOOKS
from normscope.problem.wrappers import refuse_scripted, without_reentrant_checkpoints
from normscope.warn import warn

T = TypeVar("T")

MODEL_LOCK = threading.RLock()
"""Held while a model is set up for a measurement: no other thread may see it then."""


def _capture_lock() -> Callable[[], None]:
    lock: Any = MODEL_LOCK

    def release() -> None:
        while lock._is_owned():
            lock.release()

    return (lambda: None) if lock._is_owned() else release


CAPTURES.extend([capture_global_state, _capture_lock])


@contextmanager
def isolated(
    model: nn.Module,
    *others: nn.Module,
    tensors: Mapping[str, Tensor] | None = None,
    seed: int | None = None,
    trainable: bool = False,
) -> Iterator[None]:
    """Restore modules and random number generators on exit, whatever happens inside.

    Parameters, buffers, attributes and hooks come back as the same objects. Inside, the modules
    work with copies of their plain tensors, lists and dictionaries; NumPy arrays, bytearrays and
    generators among the attributes are set back in place.

    Args:
        model: the model.
        *others: modules that run with it, such as a loss with buffers, which are copied too.
        tensors: parameters and buffers by qualified name to use instead of the model's own. A
            tensor that is not replaced is safe only as long as no pass writes to it.
        seed: of every random draw inside; None continues from the present states.
        trainable: whether the model may be trained inside. Its parameters stay the same objects,
            so that whatever holds them sees the training, but they work on copies of their
            values; buffers and objects among the attributes are copies.

    Yields:
        Nothing.
    """
    with MODEL_LOCK, Isolation(model, *others).entered(tensors, seed, trainable=trainable):
        yield


def copy_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return detached copies of all parameters and buffers by name, a tied one once."""
    with torch.inference_mode(False):
        named = chain(model.named_parameters(), model.named_buffers())
        return {name: tensor.detach().clone() for name, tensor in named}


class Isolation:
    """The state of a model, captured once and restored after every `entered` block.

    Use it instead of `isolated` for many blocks in a row between which the model does not change.

    Args:
        model: the model.
        *others: as in `isolated`.

    Attributes:
        random: the generators that the modules draw from.

    Raises:
        ArgumentTypeError: if a module is compiled by torch.jit.
    """

    def __init__(self, model: nn.Module, *others: nn.Module) -> None:
        self._model = model
        own = {id(module): module for module in model.modules()}
        more = {id(module): module for other in others for module in other.modules()}
        self._kept = [*own.values(), *(module for key, module in more.items() if key not in own)]
        plain = [plain_attributes(module) for module in self._kept]
        hidden = unregistered_modules(contained(plain), self._kept)
        self._modules = [*self._kept, *hidden]
        self._added = self._modules[len(own) :]
        for module in (model, *others):
            refuse_scripted(module)
        self._slots = [slot for module in self._modules for slot in _slots(module)]
        self._contents = [dict(slot) if slot else {} for slot in self._slots]
        owned = (p for module in self._modules for p in module._parameters.values())
        self._gradients = [(p, p.grad) for p in owned if isinstance(p, nn.Parameter)]
        self._values: list[_ParameterValue] = []
        self._plain = [*plain, *map(plain_attributes, hidden)]
        attributes = list(contained(self._plain))
        self._restorers = list(filter(None, map(state_restorer, attributes)))
        self.random = RandomGenerators(_device(model), *filter(_is_generator, attributes))

    @contextmanager
    def entered(
        self,
        tensors: Mapping[str, Tensor] | None = None,
        seed: int | None = None,
        restore_random: bool = True,
        trainable: bool = False,
    ) -> Iterator[None]:
        """Isolate one block; see `isolated`.

        Args:
            tensors: parameters and buffers to use.
            seed: of every random draw.
            restore_random: False if a block around this one restores the generators.
            trainable: whether the model may be trained.

        Yields:
            Nothing.
        """
        preserved = self.random.preserved(seed) if restore_random else nullcontext()
        self._values = list(self._parameter_values()) if trainable else []
        with MODEL_LOCK, preserved, without_reentrant_checkpoints():
            if seed is not None and not restore_random:
                self.random.seed(seed)
            restore = Undo(self._restore)
            try:
                for parameter, _ in self._gradients:
                    parameter.grad = None  # a backward pass adds to it in place
                self._work_on_copies(trainable)
                if tensors is not None:
                    substitute(self._model, tensors)
                yield
            finally:
                restore()

    def _work_on_copies(self, trainable: bool) -> None:
        copies = Copies(self._kept if trainable else ())
        with torch.inference_mode(False), torch.no_grad():
            if trainable:
                self._train_on_copies(copies)
            for module, attributes in zip(self._modules, self._plain, strict=True):
                # set in __dict__: a module's own __setattr__ may have effects
                own = module.__dict__
                own.update({name: copies.of(value) for name, value in attributes.items()})
            for module in self._modules if trainable else self._added:
                buffers: dict[str, Any] = module._buffers
                buffers.update({name: copies.of(tensor) for name, tensor in buffers.items()})

    def _parameter_values(self) -> Iterator[_ParameterValue]:
        own = self._model.parameters()
        return (_ParameterValue(each) for each in own if not each.is_inference())

    def _train_on_copies(self, copies: Copies) -> None:
        """Give the parameters copies of their values; replace those that cannot be trained."""
        for value in self._values:
            value.parameter.data = copies.of(value.data)
        new = {
            id(each): nn.Parameter(each.detach().clone(), each.requires_grad)
            for each in self._model.parameters()
            if each.is_inference()
        }
        for module in self._model.modules() if new else ():
            slot: dict[str, Any] = module._parameters
            slot.update({name: new[id(each)] for name, each in slot.items() if id(each) in new})

    def _restore(self) -> None:
        for value in self._values:
            value.restore()
        torch.clear_autocast_cache()  # an autocast around this keeps casts of other values
        for parameter, gradient in self._gradients:
            parameter.grad = gradient
        for slot, content in zip(self._slots, self._contents, strict=True):
            if slot or content:
                slot.clear()
                slot.update(content)
        failed = [restorer for restorer in self._restorers if not _succeeds(restorer)]
        if failed:
            warn(
                f"{len(failed)} NumPy arrays or bytearrays of the model's modules could not be "
                "restored: a forward pass resized or locked them."
            )


class _ParameterValue:
    """The value of a parameter, which is restored in the same memory.

    The count of its in-place changes is restored too: a graph that the caller has built before
    can still be differentiated.
    """

    def __init__(self, parameter: nn.Parameter) -> None:
        self.parameter, self.data = parameter, parameter.data
        self._requires_grad = parameter.requires_grad
        self._version = torch.autograd.grad_mode._unsafe_preserve_version_counter(parameter)

    def restore(self) -> None:
        self.parameter.data = self.data
        self.parameter.requires_grad_(self._requires_grad)
        self._version.__exit__()


class RandomGenerators:
    """The random number generators of torch (CPU and device), NumPy, Python, modules and loaders.

    Args:
        *owners: modules (their device's generator and those among their attributes), DataLoaders
            (those they shuffle by), devices and generators; other data owns none.
    """

    def __init__(self, *owners: object) -> None:
        found = chain([torch.default_generator], *map(_generators, owners))
        self._torch = list({id(generator): generator for generator in found}.values())

    def seed(self, seed: int) -> None:
        """Let every draw follow from a seed from now on."""
        for generator in self._torch:
            generator.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002 - models may draw from it

    def torch_states(self) -> list[Tensor]:
        """Return the states of the generators of torch, in a fixed order."""
        return [generator.get_state() for generator in self._torch]

    def set_torch_states(self, states: Sequence[Tensor]) -> None:
        """Set the generators of torch to states that `torch_states` returned."""
        for generator, state in zip(self._torch, states, strict=True):
            generator.set_state(state)

    @contextmanager
    def preserved(self, seed: int | None = None) -> Iterator[None]:
        """Restore all states on exit.

        Args:
            seed: to begin with; None continues from the present states.

        Yields:
            Nothing.
        """
        restore = Undo(self._restorer())
        try:
            if seed is not None:
                self.seed(seed)
            yield
        finally:
            restore()

    def drawn(self, values: Iterable[T], seed: int) -> Iterator[T]:
        """Yield values whose draws follow from a seed; between them all states are as before.

        Args:
            values: such as the batches of a shuffling DataLoader.
            seed: to begin with.

        Yields:
            The values.
        """
        resume: Callable[[], None] = partial(self.seed, seed)
        iterator: Iterator[T] | None = None
        while True:
            with self.preserved():
                resume()
                iterator = iter(values) if iterator is None else iterator
                try:
                    value = next(iterator)
                except StopIteration:
                    return
                resume = self._restorer()
            yield value

    def _restorer(self) -> Callable[[], None]:
        """Return what sets all generators to their present states."""
        states = self.torch_states()
        others = random.getstate(), np.random.get_state()  # noqa: NPY002 - see above

        def set_back() -> None:
            self.set_torch_states(states)
            random.setstate(others[0])
            np.random.set_state(others[1])  # noqa: NPY002 - see above

        return set_back


def _generators(owner: object) -> Iterable[torch.Generator]:
    if isinstance(owner, nn.Module):
        attributes = contained(map(plain_attributes, owner.modules()))
        return [*_generators(_device(owner)), *filter(_is_generator, attributes)]
    if isinstance(owner, torch.Generator):
        return [owner]
    if isinstance(owner, torch.device):
        return _device_generators(owner)
    batch_sampler = getattr(owner, "batch_sampler", None)
    samplers = (getattr(holder, "sampler", None) for holder in (owner, batch_sampler))
    found = (getattr(each, "generator", None) for each in (owner, batch_sampler, *samplers))
    return [generator for generator in found if isinstance(generator, torch.Generator)]


def _device_generators(device: torch.device) -> list[torch.Generator]:
    if device.type in ("cpu", "meta"):
        return []
    if device.type == "mps":
        return [torch.mps._get_default_mps_generator()]
    module: Any = torch.get_device_module(device)
    index = module.current_device() if device.index is None else device.index
    return [module.default_generators[index]]


def _is_generator(value: object) -> bool:
    """``isinstance(value, torch.Generator)`` without its metaclass in Python: ten times as fast."""
    return torch.Generator in type(value).__mro__


def _device(model: nn.Module) -> torch.device:
    tensors = chain(model.parameters(), model.buffers())
    return next((tensor.device for tensor in tensors), torch.device("cpu"))


def _slots(module: nn.Module) -> list[dict[Any, Any]]:
    """The dictionaries that hold a module's state."""
    own = module.__dict__
    tensors: list[dict[Any, Any]] = [module._parameters, module._buffers]
    return [
        own,
        *tensors,
        module._modules,
        *(own[name] for name in (*HOOKS, *HOOK_FLAGS) if name in own),
    ]


def substitute(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Replace parameters and buffers until the `isolated` block around this call restores them.

    The modules' backward hooks are removed: they belong to training, and would see (and could
    change) the derivatives taken here.

    Args:
        model: the model.
        tensors: by qualified name, a tied one by its first name; others stay.
    """
    slots: list[tuple[str, dict[str, Any]]] = []
    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        slots += [(prefix, module._parameters), (prefix, module._buffers)]
        for name in ("_backward_hooks", "_backward_pre_hooks"):
            if module.__dict__.get(name):
                module.__dict__[name] = OrderedDict()
    new: dict[int, Tensor] = {}
    for prefix, slot in slots:
        for name, tensor in slot.items():
            if prefix + name in tensors:
                new.setdefault(id(tensor), tensors[prefix + name])
    for _, slot in slots:
        slot.update({name: new[id(t)] for name, t in slot.items() if id(t) in new})


def _succeeds(restorer: Callable[[], Any]) -> bool:
    try:
        restorer()
    except (ValueError, BufferError):
        return False
    return True
