"""Public calls that run out of memory: an error in one line, and the model as it was."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# The allocator must return what is freed to the system, or no limit would have an effect.
ALLOCATOR = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "MALLOC_TRIM_THRESHOLD_": "65536",
}


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux")
@pytest.mark.timeout(600)
@pytest.mark.cases(sample=40, chunk=200)
def test_calls_with_little_memory_leave_the_model_as_it_was(
    case_seeds: list[int], count: Callable[..., None]
) -> None:
    program = [sys.executable, "-m", "tests.adversarial.little_memory"]
    done = subprocess.run(
        [*program, str(case_seeds[0]), str(len(case_seeds))],
        cwd=ROOT,
        env={**os.environ, **ALLOCATOR, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == len(case_seeds)
    for line in lines:
        assert line["outcome"] in ("finished", "refused", "out of memory"), line
        assert not line["changed"], line
        count("calls with little memory", line["outcome"])
    assert any(line["outcome"] == "out of memory" for line in lines)
