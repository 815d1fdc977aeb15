"""Is the reference of SGLang itself right? Against everything that was recorded of the real engine."""

import gzip
import json
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from .reference_sglang import simulate


@cache
def recorded() -> list[dict[str, Any]]:
    read = gzip.decompress((Path(__file__).parent / "conformance" / "sglang.json.gz").read_bytes())
    cases: list[dict[str, Any]] = json.loads(read)["cases"]
    return cases


def test_recording_is_complete() -> None:
    cases = recorded()
    assert len(cases) == 101
    assert sum(sum(case["expected"]["retractions"]) > 0 for case in cases) > 20
    kinds = Counter(kind for case in cases for _, kind, _ in case["expected"]["iterations"])
    assert set(kinds) == {"extend", "decode", "mixed"}


@pytest.mark.parametrize("at", range(101))
def test_every_step_is_the_engines_own(at: int) -> None:
    assert simulate(recorded()[at]["scenario"]) == recorded()[at]["expected"]
