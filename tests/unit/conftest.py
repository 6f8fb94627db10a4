"""What every unit test may need."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    """torch.compile without what earlier tests left: it gives up after a few recompilations."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
