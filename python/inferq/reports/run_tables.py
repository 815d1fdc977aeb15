"""Tables of a run: requests and tokens, latencies by class, replicas or stages, and costs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from inferq._lazy import np
from inferq.display.document import Grid
from inferq.display.text import NONE, counted, number, percent, seconds
from inferq.results.metric import QUANTITIES, STATISTICS
from inferq.results.result import Result
from inferq.systems.prices import Prices

LEGEND = (
    "ttft: arrival to first token; e2e: arrival to last token;",
    "itl: gap between two tokens; tpot: mean gap of a request; queue: wait for admission",
)
"""Definitions of the latencies, for a terminal."""
MEANING = (
    "TTFT: arrival to first token. ITL: gap between two tokens. TPOT: mean gap of a request. "
    "E2E: arrival to last token. Queue: wait for admission."
)
"""The same for a page."""
CLIENT = "client: wait at the client before sending (max_in_flight), in no other latency"
"""The definition of the client's wait, which only runs with `max_in_flight` have."""
_MOST_REPLICAS = 32
"""A table of more replicas is not shown."""

Rows = Sequence[tuple[str, Mapping[str, Any]]]
"""Rows of `Result.summary` with the names of their classes."""


def rows(result: Result) -> Rows:
    """The summary of each class if there are several, then of all requests."""
    whole = ("all", result.summary().row(0, named=True))
    by_class = [(str(row["class"]), row) for row in result.summary(by="class").rows(named=True)]
    return [*by_class, whole] if len(by_class) > 1 else [whole]


def counts(rows: Rows) -> Grid:
    """Counts of requests, throughput and goodput."""
    columns = ("request_throughput", "request_goodput", "output_throughput", "total_token_throughput")
    several = len(rows) > 1
    ended = (
        ("completed", "failed", "lost") if any(row["lost"] for _, row in rows) else ("completed", "failed")
    )
    lines = [
        [
            *([name] if several else []),
            *(f"{row[count]:,}" for count in ended),
            *(number(row[column]) for column in columns),
        ]
        for name, row in rows
    ]
    names = (*ended, "req/s", "goodput", "output tok/s", "total tok/s")
    return Grid(title="", header=("class", *names) if several else names, lines=lines, texts=int(several))


def latencies(rows: Rows, title: str = "", note: str = "", names: Mapping[str, str] | None = None) -> Grid:
    """Mean, percentiles and maximum of each latency; `names` replaces the names of the latencies."""
    several = len(rows) > 1
    lines = [
        [
            (names or {}).get(latency, latency) if place == 0 else "",
            *([name] if several else []),
            *(seconds(row[f"{latency}_{statistic}"]) for statistic in STATISTICS),
        ]
        for latency in (*QUANTITIES, *(["client"] if "client_mean" in rows[0][1] else []))
        for place, (name, row) in enumerate(rows)
    ]
    header = ("", *(["class"] if several else []), *STATISTICS)
    return Grid(title=title, header=header, lines=lines, texts=1 + several, note=note)


_PER: dict[str, tuple[str, str, str | None]] = {
    "per hour": ("cost_per_hour", "watts", "revenue_per_hour"),
    "per request": ("cost_per_request", "joules_per_request", None),
    "per 10⁶ output tokens": ("cost_per_million_output_tokens", "joules_per_million_output_tokens", None),
}
"""The columns of cost, energy and revenue, by what they refer to."""


def costs(whole: Mapping[str, Any], prices: Prices) -> Grid:
    """Cost, energy and revenue of a fleet, from a row of `Result.summary` with prices."""
    sells = whole["revenue_per_hour"] is not None
    lines = []
    for name, (money, energy, earned) in _PER.items():
        joules = whole[energy] if energy != "watts" or whole[energy] is None else whole[energy] * 3600
        cells = [number(whole[money], 3), number(joules)]
        lines.append([name, *cells, *([number(whole[earned] if earned else None, 3)] if sells else [])])
    header = ("", f"cost {prices.currency}".strip(), "energy J", *(["revenue"] if sells else []))
    power = "" if whole["watts"] is None else f", {number(whole['watts'])} W on average"
    return Grid(
        title="",
        header=header,
        lines=lines,
        texts=1,
        note=f"{counted(whole['gpus'], 'GPU')} in {counted(whole['nodes'], 'node')}{power}.",
    )


def at_the_api(result: Result) -> str:
    """API overhead in TTFT and E2E as text. Empty if no engine has one."""
    overheads = sorted({*_api_of(json.loads(result.scenario))} - {0})
    if not overheads:
        return ""
    return " to ".join(map(seconds, dict.fromkeys((overheads[0], overheads[-1]))))


def _api_of(described: object) -> Iterator[float]:
    """API overhead of every engine in a recorded scenario."""
    if isinstance(described, Mapping):
        for name, value in described.items():
            if name == "api_s":
                yield float(value)
            else:
                yield from _api_of(value)
    elif isinstance(described, list):
        for value in described:
            yield from _api_of(value)


def shares(result: Result) -> Grid | None:
    """Replicas, or stages of a network. None for a single one, or for too many to show."""
    by = "stage" if result.has_jobs else "replica"
    if not 1 < np.unique(result._tables.requests[by]).size <= _MOST_REPLICAS:
        return None
    cached = result.has_prefix_cache
    lines = [
        [
            NONE if row[by] is None else str(row[by]),
            *(f"{row['completed']:,}", f"{row['failed']:,}", number(row["output_throughput"])),
            *(seconds(row[name]) for name in ("ttft_p50", "ttft_p99", "e2e_p99")),
            *([percent(row["hit_rate"])] if cached else []),
        ]
        for row in result.summary(by=by).rows(named=True)
    ]
    names = ("completed", "failed", "tok/s", "ttft p50", "ttft p99", "e2e p99")
    return Grid(title="", header=(by, *names, *(["hit rate"] if cached else [])), lines=lines)
