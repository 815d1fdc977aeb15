"""Are the results of 200 scenarios still those that were kept, bit for bit?"""

import json
from pathlib import Path

import pytest

from .kept_results import COUNT, KINDS, results, scenario

KEPT = json.loads((Path(__file__).parent / "kept" / "results.json").read_text(encoding="utf-8"))
TOGETHER = 25


@pytest.mark.parametrize("first", range(0, COUNT, TOGETHER))
def test_results_are_the_kept_ones(first: int):
    different = []
    for number in range(first, first + TOGETHER):
        kept, now = KEPT[str(number)], results(number)
        tables = sorted(name for name in kept.keys() | now.keys() if kept.get(name) != now.get(name))
        if tables:
            different.append(f"scenario {number}: {', '.join(tables)}")
    assert not different, "results other than the kept ones:\n" + "\n".join(different)


def test_the_scenarios_have_everything():
    assert len(KEPT) == COUNT
    assert frozenset().union(*(scenario(number).kinds for number in range(COUNT))) >= KINDS
