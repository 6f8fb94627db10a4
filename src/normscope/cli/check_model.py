"""``normscope check`` on a model: the statements on its layers and one batch of the data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from normscope.cli import sources
from normscope.cli.batches import chosen_batches, note_conversion
from normscope.cli.check_length import note_length
from normscope.cli.check_output import Found, Parts, nothing_to_check, with_remedy
from normscope.cli.check_part import checked_in_parts
from normscope.cli.output import progress
from normscope.curvature.norm_fit import unfit_norms
from normscope.import_path import call_user_code
from normscope.layers import is_batch_norm
from normscope.problem.batch import sample_count
from normscope.problem.problem import Problem
from normscope.theorems import Unchecked, Verdict, Verdicts, check_layer
from normscope.theorems.verdict import worst

__all__ = ["Subject", "load_subject", "worst_by_statement"]

_USUAL_NORMS = ("none", "batch", "layer")


@dataclass(frozen=True, eq=False)
class Subject:
    """A model with the batch that the statements are put to.

    Args:
        names: of model, loss and data, as the user gave them.
        network: the model.
        loss: as the library takes it.
        batch: all of it.
        smaller: how a smaller batch is asked for; its size follows.
        seed: of dropout and noise.
    """

    names: tuple[str, str, str]
    network: Any
    loss: Any
    batch: Any
    smaller: str
    seed: int

    def found(self, layer: str | None, form: str) -> tuple[Found, Parts]:
        """The statements of a form on one layer, unit by unit, or on all of them, each in sum.

        Args:
            layer: its name; None for every batch normalization.
            form: of the statements.

        Returns:
            What was found, and the samples that Theorem C.1 had where not the whole batch.

        Raises:
            InputError: if the model has no batch normalization.
        """
        parts: Parts = {}
        names = self._batch_norms() if layer is None else [layer]
        note_length(self.network, self.batch, names, self.smaller)
        if layer is None:
            found = list(self._on_every_layer(names, form, parts))
        else:
            verdicts = self._checked(layer, form, parts)
            found = [(layer, each) for each in (*verdicts, *verdicts.unchecked)]
        if not found:
            raise nothing_to_check(self.names[0], self.network, self._fitting_norms())
        size = sample_count(self.batch)
        return [(name, with_remedy(each, size, self.smaller)) for name, each in found], parts

    def _fitting_norms(self) -> list[str]:
        """The usual kinds to compare, as far as the model takes the batch with them."""
        problem = Problem(self.network, self.loss, [self.batch])
        tried = partial(unfit_norms, problem, _USUAL_NORMS, self.batch, self.seed)
        unfit = call_user_code(self._place, tried)
        return [norm for norm in _USUAL_NORMS if norm not in unfit]

    @property
    def _place(self) -> str:
        model, loss, data = self.names
        return f"{model} with {loss} on {data}"

    def _batch_norms(self) -> list[str]:
        return [name for name, module in self.network.named_modules() if is_batch_norm(module)]

    def _on_every_layer(
        self, names: list[str], form: str, parts: Parts
    ) -> Iterator[tuple[str, Verdict | Unchecked]]:
        with progress("check", len(names)) as begin:
            for name in names:
                begin(f"layer {name}")
                for each in worst_by_statement(self._checked(name, form, parts)):
                    yield name, each

    def _checked(self, layer: str, form: str, parts: Parts) -> Verdicts:
        """The verdicts on a layer; the size of a part of the batch is noted in the parts."""
        verdicts, part = checked_in_parts(partial(self._on_batch, layer, form), self.batch)
        if part is not None:
            parts[layer] = part
        return verdicts

    def _on_batch(self, layer: str, form: str, batch: Any) -> Verdicts:
        run = partial(
            check_layer, self.network, self.loss, [batch], layer, form=form, seed=self.seed
        )
        return call_user_code(self._place, run)


def load_subject(
    model: str,
    loss: str,
    data: str,
    *,
    norm: str | None,
    options: Iterable[str],
    batch_size: int | None,
    device: str | None,
    seed: int,
) -> Subject:
    """What the user named, loaded; a note says if the data is converted.

    Args:
        model: name or place.
        loss: name or place.
        data: name or place.
        norm: that a built-in model is made with.
        options: of a built-in model, each as key=value.
        batch_size: of the batch; None for the usual one.
        device: of the model; None for its own.
        seed: of the weights, and of the samples that are drawn.

    Returns:
        The subject.
    """
    samples = sources.load_data(data, seed)
    chosen = chosen_batches(samples, batch_size, 1, seed)
    network = sources.load_model(model, samples, norm, list(options), seed, device)
    note_conversion(chosen, network)
    smaller = "take --batch-size" if isinstance(samples, tuple) else "return batches of size"
    names = (model, loss, data)
    return Subject(names, network, sources.load_loss(loss), chosen[0], smaller, seed)


def worst_by_statement(verdicts: Verdicts) -> Iterator[Verdict | Unchecked]:
    """The worst verdict of each statement over the units of one layer, and what has none.

    Args:
        verdicts: of one layer.

    Yields:
        A verdict for each statement, then the unchecked.
    """
    groups: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        groups.setdefault(verdict.label, []).append(verdict)
    yield from (worst(group) for group in groups.values())
    yield from verdicts.unchecked
