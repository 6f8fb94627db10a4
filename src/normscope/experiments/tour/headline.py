"""The headline and the cards of the report's first screen."""

from __future__ import annotations

import numpy as np
import xarray as xr

from normscope.experiments.tour.findings import norms_of, reference_of
from normscope.experiments.tour.wording import typical
from normscope.plots.names import name_of, with_norm
from normscope.plots.style import colour_of
from normscope.report.document import Card
from normscope.text import format_number

_MOST_CARDS = 5


def headline(results: xr.Dataset) -> str:
    """Return the largest limit and its ratio to that of the reference, in a sentence.

    If no limit is larger, the smallest is given. There is a ratio only if the seeds agree on
    which of the two is larger.

    Args:
        results: ``limit`` over (norm, seed).
    """
    limit, reference = results["limit"], reference_of(results)
    if limit.sizes["norm"] == 1:
        return f"Training breaks at a learning rate of {typical(limit)} {with_norm(reference)}."
    best = str(limit.median("seed").idxmax("norm").item())
    if best == reference:
        best = str(limit.median("seed").idxmin("norm").item())
    own, base = limit.sel(norm=best), limit.sel(norm=reference)
    found, compared = (float(each.median()) for each in (own, base))
    words = f"Training breaks at a learning rate of {format_number(found)} {with_norm(best)}"
    other = f"{with_norm(reference)} ({format_number(compared)})"
    if bool((own > base).all() or (own < base).all()):
        return f"{words}, {format_number(found / compared)} times the limit {other}."
    return f"{words}. That is not clearly different from the limit {other}: the seeds disagree."


def cards(results: xr.Dataset) -> list[Card]:
    """Return a card for each normalization: its limit, half of it, and the ratio to the reference.

    Of more than five, those with the largest limits and the reference are chosen.

    Args:
        results: ``limit``, ``recommended`` and ``unstable`` over (norm, seed).
    """
    norms, reference = norms_of(results), reference_of(results)
    middle = results["limit"].median("seed")
    largest = sorted(norms, key=lambda norm: (norm != reference, -float(middle.sel(norm=norm))))
    chosen = set(largest[:_MOST_CARDS])
    return [_card(results, norm, reference) for norm in norms if norm in chosen]


def _card(results: xr.Dataset, norm: str, reference: str) -> Card:
    own = results.sel(norm=norm)
    middle, half = (float(own[name].median()) for name in ("limit", "recommended"))
    is_open = bool(np.isinf(own["unstable"]).any())
    value = f"{'≥ ' if is_open else ''}{format_number(middle)}"
    ratio = ""
    if norm != reference and not is_open:
        base = float(results["limit"].sel(norm=reference).median())
        ratio = f" ({format_number(middle / base)}x)"
    note = f"limit{ratio}, recommended {format_number(half)}"
    return Card(name_of(norm), value, note, colour_of(norm))
