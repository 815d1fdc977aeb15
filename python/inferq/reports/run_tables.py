"""The tables of a run: requests and tokens, latencies by class, and how its replicas or stages fared."""

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
    "itl: gaps between tokens; tpot: mean gap of a request; queue: wait for admission",
)
"""What the latencies are, in two lines."""
NAMES = {"ttft": "TTFT", "itl": "ITL", "tpot": "TPOT", "e2e": "E2E"}
"""What latencies are called on a page."""
MEANING = (
    "TTFT: arrival to first token. ITL: gaps between tokens. TPOT: mean gap of a request. "
    "E2E: arrival to last token. Queue: wait for admission."
)
"""The same for a page."""
_MOST_REPLICAS = 32
"""Up to so many replicas are shown one by one."""

Rows = Sequence[tuple[str, Mapping[str, Any]]]
"""Rows of `Result.summary` with the names of their classes."""


def rows(result: Result) -> Rows:
    """The summary of each class where there is more than one, then of all requests together."""
    whole = ("all", result.summary().row(0, named=True))
    by_class = [(str(row["class"]), row) for row in result.summary(by="class").rows(named=True)]
    return [*by_class, whole] if len(by_class) > 1 else [whole]


def counts(rows: Rows) -> Grid:
    """How many requests and tokens, and how fast."""
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
    names = (*ended, "req/s", "good/s", "output tok/s", "total tok/s")
    return Grid(title="", header=("class", *names) if several else names, lines=lines, texts=int(several))


def latencies(rows: Rows, title: str = "", note: str = "", names: Mapping[str, str] | None = None) -> Grid:
    """Mean, percentiles and maximum of each latency, which have other `names` on a page."""
    several = len(rows) > 1
    lines = [
        [
            (names or {}).get(latency, latency) if place == 0 else "",
            *([name] if several else []),
            *(seconds(row[f"{latency}_{statistic}"]) for statistic in STATISTICS),
        ]
        for latency in QUANTITIES
        for place, (name, row) in enumerate(rows)
    ]
    header = ("", *(["class"] if several else []), *STATISTICS)
    return Grid(title=title, header=header, lines=lines, texts=1 + several, note=note)


_PER: dict[str, tuple[str, str, str | None]] = {
    "an hour": ("cost_per_hour", "watts", "revenue_per_hour"),
    "a request": ("cost_per_request", "joules_per_request", None),
    "10⁶ output tokens": ("cost_per_million_output_tokens", "joules_per_million_output_tokens", None),
}
"""For what a cost is told: its columns of money, of energy and of what is earned."""


def costs(whole: Mapping[str, Any], prices: Prices) -> Grid:
    """What the fleet of a run costs and takes, from a row of `Result.summary` with prices."""
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
    """What of each time to first and last token is the API's, in words; nothing where no server is named."""
    found = sorted({*_api_of(json.loads(result.scenario))} - {0})
    if not found:
        return ""
    return " to ".join(seconds(one) for one in dict.fromkeys((found[0], found[-1])))


def _api_of(described: object) -> Iterator[float]:
    """The times of the API of all engines in a recorded scenario."""
    if isinstance(described, Mapping):
        for name, value in described.items():
            if name == "api_s":
                yield float(value)
            else:
                yield from _api_of(value)
    elif isinstance(described, list):
        for one in described:
            yield from _api_of(one)


def shares(result: Result) -> Grid | None:
    """How the replicas, or the stages of a network, fared; None where there is one, or too many to read."""
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
