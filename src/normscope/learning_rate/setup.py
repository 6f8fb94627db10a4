"""A training setup (problem, optimizer, batch size, seed) from which short runs start."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

from normscope.errors import InputError, StateError
from normscope.learning_rate.stability import ShortRun, has_second_moment, short_run
from normscope.learning_rate.thresholds import STEPS
from normscope.problem.batch import Batch, sample_count
from normscope.problem.isolation import RandomGenerators, isolated
from normscope.problem.loss_state import loss_modules
from normscope.problem.modes import in_mode
from normscope.problem.precheck import warn_of_flags
from normscope.problem.problem import Problem
from normscope.problem.threads import suitable_threads, thread_count
from normscope.problem.wrappers import run_unwrapped
from normscope.training.batches import batch_source
from normscope.training.common_rate import (
    CommonRate,
    SchedulerFactory,
    base_rates,
    relative_rates,
)
from normscope.training.loop import Loop
from normscope.training.optimizers import OptimizerFactory, bind_optimizer, copy_optimizer, sgd
from normscope.validation import check_integer, check_number


@dataclass(frozen=True)
class TrainingSetup:
    """A problem with its optimizer, batch size and seed.

    Args:
        problem: the user's model, loss and data; none of them is changed.
        optimizer: the user's optimizer of that model, whose state every run starts from; or a
            factory.
        batch_size: samples per step; None: the batches of the data.
        seed: of the data order, dropout and noise.
        mode: of everything measured and of the runs: "train", "frozen", "eval" or "as_is".
        scheduler: makes the schedule of the learning rate for an optimizer; None: a constant rate.
        clip_norm: largest norm of the gradient in the runs; None: not clipped.
        accumulate: batches per step.
    """

    problem: Problem
    optimizer: OptimizerFactory | Optimizer
    batch_size: int | None
    seed: int
    mode: str = "train"
    scheduler: SchedulerFactory | None = None
    clip_norm: float | None = None
    accumulate: int = 1

    @property
    def orders_differ(self) -> bool:
        """Whether another data order makes other batches: not if each batch holds all samples."""
        if self.batch_size is None:
            return is_shuffled(self.problem.data)
        return self.batch_size < sample_count(self.problem.data)

    @property
    def may_decay(self) -> bool:
        """Whether the optimizer has a weight decay, or the loss may have a penalty on weights."""
        groups = bind_optimizer(self.optimizer, self.problem.model).param_groups
        return not self.problem.has_outputs or any(each.get("weight_decay") for each in groups)

    @property
    def has_second_moment(self) -> bool:
        """Whether the optimizer divides its steps by a mean squared gradient, as Adam does."""
        return has_second_moment(bind_optimizer(self.optimizer, self.problem.model))

    @contextmanager
    def training(
        self, rate: float, *, order: int = 0, weight_decay: float | None = None
    ) -> Iterator[Optimizer]:
        """Let the problem's model be trained; random numbers follow the seed.

        The model itself is trained, on copies of its values, and restored on exit: a loss, a hook
        or an attribute that refers to the model or to its parameters sees the training. Its modules
        have the flags of the mode: its ``train()`` must not be called.

        Args:
            rate: learning rate of the group whose own rate is the largest, before the schedule; all
                other rates keep their ratio to it.
            order: number of the data order. A DataLoader that shuffles draws it from the random
                numbers, which follow ``seed + order`` then; other data is ordered by the loop.
            weight_decay: in place of the optimizer's own; None: that.

        Yields:
            An optimizer of the model's parameters, with the state of the user's. The learning rate
            of its groups is the one given.
        """
        model = self.problem.model
        own = list(model.parameters())
        seed = self.seed + order if is_shuffled(self.problem.data) else self.seed
        alone = replace(self, seed=seed).isolated(trainable=True)
        with alone, in_mode(model, self.mode, twice=False):
            trained = zip(own, model.parameters(), strict=True)
            optimizer = self._new_optimizer(dict(trained))
            around = self.scheduler, self.clip_norm, self.accumulate
            rates = set(relative_rates(optimizer, self.scheduler is not None))
            if around != (None, None, 1) or rates != {1.0}:
                optimizer = CommonRate(optimizer, *around)
            for group in optimizer.param_groups:
                group["lr"] = rate
            if weight_decay is not None:
                _set_decay(optimizer, weight_decay)
            yield optimizer

    def short_run(
        self,
        rate: float,
        steps: int = STEPS,
        *,
        order: int = 0,
        rate_at: Callable[[int], float] | None = None,
        is_ramp: bool = True,
        weight_decay: float | None = None,
    ) -> ShortRun:
        """Return the outcome of a run from the user's weights and optimizer state.

        The model is restored; see `training`.

        Args:
            rate: the learning rate.
            steps: largest number of gradients to take.
            order: number of the data order.
            rate_at: learning rate by step; None: constant.
            is_ramp: whether ``rate_at`` grows until the run fails.
            weight_decay: in place of the optimizer's own; None: that.
        """
        with self.training(rate, order=order, weight_decay=weight_decay) as optimizer:
            return short_run(
                self.problem,
                optimizer,
                self.batch_size,
                self.seed + order,
                steps,
                rate_at,
                keeps_flags=True,
                is_ramp=is_ramp,
            )

    def loop(self, optimizer: Optimizer) -> Loop:
        """Return the training loop of the model; call it inside `training`.

        Args:
            optimizer: that `training` yields.
        """
        return Loop(
            self.problem,
            optimizer,
            self.batch_size,
            self.seed,
            own_gradients_only=True,
            keeps_flags=True,
        )

    def scheduled(self, optimizer: Optimizer) -> CommonRate:
        """Return a copy of the user's optimizer at the start of its schedule; never stepped."""
        own = (each for group in optimizer.param_groups for each in group["params"])
        clone = copy_optimizer(optimizer, {each: each for each in own}, "pass a factory")
        return CommonRate(clone, self.scheduler)

    def scheduled_rates(self, optimizer: Optimizer, steps: int) -> list[list[float]]:
        """Return the rate of every group at each of the first steps, for a common rate of 1.

        Args:
            optimizer: of the user, or what the factory made; not changed.
            steps: at most so many; a schedule may end before.

        Returns:
            One list for each step; only the first if there is no schedule.
        """
        if self.scheduler is None:
            return [relative_rates(optimizer)]
        scheduled = self.scheduled(optimizer)
        found = [scheduled.relative_rates]
        with warnings.catch_warnings(), suppress(InputError):
            warnings.simplefilter("ignore", UserWarning)  # torch's: no update was taken before
            for _ in range(steps - 1):
                scheduled.step_schedule()
                found.append(scheduled.relative_rates)
        return found

    @contextmanager
    def isolated(self, trainable: bool = False) -> Iterator[None]:
        """Restore the modules of model and loss and all random numbers on exit.

        Args:
            trainable: whether the model may be trained inside.

        Yields:
            Nothing.
        """
        model, loss = self.problem.model, self.problem.loss
        generators = RandomGenerators(model, self.problem.data)
        modules = loss_modules(loss, model)
        with isolated(model, *modules, trainable=trainable), generators.preserved(self.seed):
            run_unwrapped(model)
            yield

    @contextmanager
    def few_threads(self) -> Iterator[None]:
        """Compute a small network with one thread; see `normscope.problem.threads`."""
        with self.isolated(trainable=True):  # a forward pass updates running statistics
            threads = suitable_threads(self.problem, self.batches(1)[0])
        with thread_count(threads):
            yield

    def warn_of_flags(self) -> None:
        """Warn if mode "as_is" may not be what training does."""
        if self.mode == "as_is":
            with torch.inference_mode(False), self.isolated():
                warn_of_flags(self.problem, lambda: self.batches(1)[0], self.seed)

    def batches(self, count: int) -> list[Batch]:
        """Return the first batches of a training run, at most ``count``, none of them twice."""
        problem = self.problem
        if problem.is_one_batch and self.batch_size is None:
            return [problem.prepare(problem.data)]
        with RandomGenerators(problem.device, problem.data).preserved(self.seed):
            # first: it rejects a batch size that does not fit
            source = batch_source(problem, self.batch_size, self.seed, drop_last=True)
            return [source.draw() for _ in range(min(count, self._batch_count()))]

    def check_step_options(self) -> None:
        """Raise `InputError` for a bad ``clip_norm``, or if one step needs more than an epoch."""
        check_integer("accumulate", self.accumulate)
        if self.accumulate < 1:
            raise InputError(f"accumulate must be at least 1, got {self.accumulate}.")
        if self.clip_norm is not None:
            check_number("clip_norm", self.clip_norm)
            if isinstance(self.clip_norm, bool) or not 0 < self.clip_norm < math.inf:
                raise InputError(
                    "clip_norm must be a positive number, or None for no clipping; got "
                    f"{self.clip_norm}."
                )
        if self.accumulate > 1 and (most := self._batch_count()) < self.accumulate:
            raise InputError(
                f"accumulate={self.accumulate} is more than the batches of an epoch, {most}: a "
                f"step would repeat samples; use at most {most}, or more data."
            )

    def _batch_count(self) -> int:
        if self.problem.is_one_batch:
            if self.batch_size is None:
                return 1
            check_integer("batch_size", self.batch_size)
            return max(1, sample_count(self.problem.data) // max(1, self.batch_size))
        try:
            return len(self.problem.data)
        except TypeError:  # an iterable without a length: no limit, batches may repeat
            return sys.maxsize

    def _new_optimizer(self, trained: dict[Tensor, nn.Parameter]) -> Optimizer:
        """Return a copy of the user's optimizer over these parameters, or a factory's."""
        if isinstance(self.optimizer, Optimizer):
            return copy_optimizer(self.optimizer, trained, "use verify=False or a factory")
        return bind_optimizer(self.optimizer, self.problem.model)


def _set_decay(optimizer: Optimizer, decay: float) -> None:
    """Set the weight decay of the groups that have one; of all groups if none has."""
    inner = optimizer.inner if isinstance(optimizer, CommonRate) else optimizer
    decayed = [group for group in inner.param_groups if group["weight_decay"]]
    for group in decayed or inner.param_groups:
        group["weight_decay"] = decay


def is_shuffled(data: object) -> bool:
    """Return whether data is a DataLoader whose batches depend on random numbers.

    Args:
        data: any data of a problem.

    Returns:
        False unless it is a DataLoader, if its samples come in sequence, and if each batch holds
        all of them. A sampler of the user counts as random.
    """
    if not isinstance(data, DataLoader):
        return False
    batches = data.batch_sampler
    if batches is not None and type(batches) is not BatchSampler:
        return True
    sampler = data.sampler if batches is None else batches.sampler
    if type(sampler) is RandomSampler and not sampler.replacement and batches is not None:
        return min(batches.batch_size, sampler.num_samples) < len(sampler.data_source)
    return not isinstance(sampler, SequentialSampler)


def bind_all_parameters(optimizer: OptimizerFactory | Optimizer, model: nn.Module) -> Optimizer:
    """Return the user's optimizer, or what a factory makes for the model.

    Args:
        optimizer: an optimizer of the model's parameters or a factory.
        model: the user's model.

    Returns:
        An optimizer over the model's own parameters, to be read and never stepped.

    Raises:
        InputError: if it leaves a trainable parameter out.
    """
    made = bind_optimizer(optimizer, model)
    held = {id(p) for group in made.param_groups for p in group["params"]}
    left_out = [n for n, p in model.named_parameters() if p.requires_grad and id(p) not in held]
    if left_out:
        raise InputError(
            f"the optimizer leaves out {left_out[0]!r} and {len(left_out) - 1} more trainable "
            "parameters; set requires_grad=False on those that are not trained."
        )
    return made


def refuse_step_hooks(optimizer: OptimizerFactory | Optimizer, model: nn.Module) -> None:
    """Refuse hooks that a short run could neither repeat nor undo.

    Args:
        optimizer: of the user. The one that a factory makes for a run may have hooks.
        model: the user's model.

    Raises:
        StateError: if the optimizer has hooks on its step, or a parameter has hooks that run after
            its gradient is accumulated, which often step another optimizer.
    """
    hooks = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
    if isinstance(optimizer, Optimizer) and any(vars(optimizer).get(each) for each in hooks):
        raise StateError(
            f"the {type(optimizer).__name__} has hooks on its step, which cannot run on a copy of "
            "it; pass a factory that makes the optimizer and registers them."
        )
    for name, parameter in model.named_parameters():
        if parameter._post_accumulate_grad_hooks:
            raise StateError(
                f"the parameter {name!r} has a post-accumulate-grad hook, which may change more "
                "than the model, such as step an optimizer; remove it, and pass the optimizer."
            )


def optimizer_or_sgd(
    optimizer: OptimizerFactory | Optimizer | None,
    momentum: float,
    nesterov: bool,
    weight_decay: float,
) -> OptimizerFactory | Optimizer:
    """Return the given optimizer, or a factory of SGD.

    Args:
        optimizer: of the user; None for SGD.
        momentum: of SGD.
        nesterov: whether it is Nesterov's.
        weight_decay: of SGD.

    Returns:
        An optimizer or a factory of one.

    Raises:
        InputError: if options of SGD are given beside an optimizer.
    """
    if optimizer is None:
        return sgd(1.0, momentum, nesterov, weight_decay)
    if momentum or nesterov or weight_decay:
        raise InputError(
            "momentum, nesterov and weight_decay are options of the default SGD; an optimizer "
            "has its own: leave them out."
        )
    return optimizer


def first_step_rate(setup: TrainingSetup, optimizer: Optimizer, share: float) -> float:
    """Return the rate at which the first step changes the weights by a share of their norm.

    One step is taken at the optimizer's own rate, without the schedule, and assumed to be
    proportional to it.

    Args:
        setup: problem and optimizer; not changed.
        optimizer: of the user, or what the factory made; for its own rate.
        share: of the norm of all trained parameters.

    Returns:
        The rate; the optimizer's own if the step or the weights are zero, or not finite.
    """
    own = max(base_rates(optimizer)) or 1.0
    model = setup.problem.model
    with replace(setup, scheduler=None).training(own) as made:
        trained = [each for each in model.parameters() if each.requires_grad]
        before = torch.cat([each.detach().flatten().clone() for each in trained])
        for _ in setup.loop(made).run(1):
            pass
        after = torch.cat([each.detach().flatten() for each in trained])
    change = float((after - before).norm()) / (share * float(before.norm()) or math.inf)
    return own / change if 0 < change < math.inf else own
