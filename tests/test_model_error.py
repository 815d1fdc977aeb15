"""Published errors of the model next to finer differences."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import inferq as iq
from inferq.experiments.comparison.model_error import PUBLISHED, of_rows

ACCURACY = Path(__file__).parent.parent / "docs" / "explanation" / "accuracy.md"


def test_the_errors_are_those_of_the_accuracy_page() -> None:
    table = re.findall(
        r"^\| ([a-z0-9 ]+) \| \d+ \| ([\d.]+) \| ([\d.]+) \|", ACCURACY.read_text(), re.MULTILINE
    )
    names = {"req s": "request_throughput", "out tok s": "output_throughput"}
    published = {
        names.get(name, name.replace(" ", "_")): (float(median) / 100, float(p90) / 100)
        for name, median, p90 in table[:17]
    }
    assert {name: pytest.approx(errors) for name, errors in published.items()} == PUBLISHED


@pytest.mark.parametrize(
    ("relative", "verdict", "reported"),
    [
        (0.0195, "worse", True),  # TTFT P50 has a median error of 4.6 %
        (-0.0195, "better", True),
        (0.0195, "not distinguishable", False),
        (0.05, "worse", False),
    ],
)
def test_a_finer_difference_has_the_error_of_its_metric(
    relative: float, verdict: str, reported: bool
) -> None:
    finding = of_rows([{"metric": "ttft_p50", "relative": relative, "verdict": verdict}])
    assert (finding is not None) == reported
    if finding is not None:
        assert finding.data == {"ttft_p50": 0.046} and "median 4.6 %, P90 19.8 %" in finding


def test_a_comparison_of_servers_reports_it() -> None:
    fast = iq.Engine.on("llama-3.1-8b", "h100-80gb", overhead=iq.Overhead())
    slow = iq.Engine.on("llama-3.1-8b", "h100-80gb", overhead=iq.Overhead(base_s=5e-5))
    work = iq.Workload.synthetic(
        requests=300,
        arrivals=iq.dist.Poisson(rate=8),
        prompt=iq.dist.Fixed(500),
        output=iq.dist.Geometric(mean=50),
    )
    compared = iq.compare(work, {"fast": fast, "slow": slow}, metrics=["tpot_mean"], seeds=range(5))
    (finding,) = [finding for finding in compared.findings if finding.kind == "model-error"]
    assert finding.data == {"tpot_mean": 0.039}
