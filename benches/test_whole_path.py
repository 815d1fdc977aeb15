"""What does a run cost from a workload frame to result frames?

The workloads are those of `rust/benches/replica.rs`, so the difference is the price of the border. Timed are
the checks of the frame (`iq.Workload`), `iq.simulate`, and the frames `requests` and `itl`; to free them is
not. The time is that of all requests: 0.1 s for 10⁶ of them is 100 ns a request. W2 is skipped without its
trace.
"""

from __future__ import annotations

from typing import Any

import pytest
import workloads

import inferq as iq

CASES = [("W1", 0.5, 10**6), ("W1", 0.9, 10**6), ("W2", 0.9, 10**6), ("W3", 0.9, 10**5), ("W3", 1.2, 10**5)]
CASES += [("W4", 0.9, 10**5)]


@pytest.mark.parametrize(("name", "load", "requests"), CASES, ids=lambda value: str(value))
def test_frame_to_frames(benchmark: Any, name: str, load: float, requests: int) -> None:
    if name == "W2" and not workloads.AZURE_TRACE.exists():
        pytest.skip("there is no Azure 2023 conversation trace here (AZURE_TRACE=PATH says where it is)")
    rate = load * workloads.saturated_rate(name)
    frame = workloads.synthetic(name, requests, rate).draw(1).frame
    kept: list[iq.Result] = []

    def free() -> None:
        kept.clear()

    def run() -> None:
        result = iq.simulate(iq.Workload(frame), workloads.ENGINE)
        assert result.requests.height == requests and result.itl.height > 0
        kept.append(result)

    benchmark.pedantic(run, setup=free, rounds=10, warmup_rounds=1)
    benchmark.extra_info["ns_per_request"] = round(benchmark.stats.stats.median * 1e9 / requests)


def test_draw_w1(benchmark: Any) -> None:
    workload = workloads.synthetic("W1", 10**6, rate=10.0)
    benchmark.pedantic(lambda: workload.draw(1).frame, rounds=10, warmup_rounds=1)
