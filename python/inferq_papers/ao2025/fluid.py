"""Fluid equilibria and thresholds of ao2025 compared with simulation."""

from __future__ import annotations

import numpy as np
import polars as pl

from inferq import Interval
from inferq_papers.ao2025 import cases
from inferq_papers.report import Rows, Section, Table, interval

PIECES = 20
"""Equal parts of the iterations; their means give an interval."""
WAVES = 6
"""Parts of an overloaded run: long, because a full cache empties in waves."""
OVERLOAD = 1.3
"""Offered load relative to capacity, to measure the largest rate."""


def instances() -> dict[str, tuple[cases.Kinds, str]]:
    """The feasible instances of section 6 with their assumptions."""
    return {
        "6.1, low demand": (cases.LOW, ""),
        "6.1, high demand ÷ 100": (
            tuple(one.times(0.01) for one in cases.HIGH),
            "as printed, the load is above 1 with any d1 above "
            f"{cases.PER_TOKEN_S / cases.load(cases.HIGH):.2g} s",
        ),
        "6.2, four lengths": (
            cases.at_load(cases.NESTED, 0.55),
            "only the ratio of the rates is printed; at load 0.55",
        ),
        "6.2, chats, 55/s": (cases.CHAT, "lengths clustered in ten bins, prompts of 60"),
    }


def observed(kinds: cases.Kinds, requests: int) -> dict[str, Interval]:
    """Means over iterations with every request in each: duration, the cache, the requests of each class.

    With A arrivals in an iteration of M tokens, E[A] = λ(d0 + d1·E[M]): the balance of the fluid holds
    exactly for means over iterations, as long as the replica does not idle.
    """
    result = cases.run(cases.workload(kinds, requests), cases.unbounded(), None, iterations=True)
    end_s = result.requests.group_by("class").agg(pl.col("arrival_s").max())["arrival_s"].min()
    frame = result.iterations.filter(pl.col("start_s") < end_s)
    frame = frame.slice(frame.height // 10)
    size = frame.height // PIECES
    pieces = [frame.slice(place * size, size) for place in range(PIECES)]
    found: dict[str, list[float]] = {name: [] for name in ("s", "tokens", *(one.name for one in kinds))}
    admitted = result.requests.select("class", "admitted_s")
    for piece in pieces:
        count = piece["count"].to_numpy()
        spent_s = piece["first_s"].to_numpy() * count + piece["growth_s"].to_numpy() * count * (count - 1) / 2
        mean_s = float(spent_s.sum() / count.sum())
        found["s"].append(mean_s)
        found["tokens"].append((mean_s - cases.BASE_S) / cases.PER_TOKEN_S)
        begun = admitted.filter(pl.col("admitted_s").is_between(piece["start_s"][0], piece["start_s"][-1]))
        for one in kinds:
            number = begun.filter(pl.col("class") == one.name).height
            found[one.name].append(number * (one.output_tokens + 1) / float(count.sum()))
    return {name: interval(values) for name, values in found.items()}


def most_served(kinds: cases.Kinds, times: int) -> Interval:
    """Completed requests per second, with its interval, if more arrive than the cache allows.

    The number of requests is `times` that of a full cache.
    """
    settled = cases.settled(kinds)
    assert settled.capacity_per_s is not None and settled.rate is not None
    full_s = cases.BASE_S + cases.PER_TOKEN_S * cases.KV_TOKENS
    held = settled.capacity_per_s * full_s * sum(one.share * one.iterations for one in settled.classes)
    offered = tuple(one.times(OVERLOAD * settled.capacity_per_s / settled.rate) for one in kinds)
    result = cases.run(cases.workload(offered, round(times * held)), cases.unbounded())
    finish_s = np.sort(result.requests["finish_s"].to_numpy())
    end_s = float(result.requests["arrival_s"][-1])
    edges = np.linspace(0.3 * end_s, end_s, WAVES + 1)
    counts = np.diff(np.searchsorted(finish_s, edges))
    return interval((counts / np.diff(edges)).tolist())


def settles(quick: bool) -> Section:
    """M*, n*, iteration time, throughput and the largest rate of each instance."""
    rows = Rows()
    for where, (kinds, note) in instances().items():
        settled = cases.settled(kinds)
        seen = observed(kinds, 40_000 if quick else 300_000)
        quantities = {
            "iteration time ΔT": ("s", settled.iteration_s, seen["s"], note),
            "memory M*": ("tokens", settled.kv_tokens_needed, seen["tokens"], ""),
        }
        for one in settled.classes:
            quantities[f"n* of {one.name}"] = ("requests", one.requests, seen[one.name], "")
        for what, (unit, theory, simulated, remark) in quantities.items():
            rows.add(where, what, unit, simulated, theory=theory, note=remark)
        most = most_served(kinds, 40 if quick else 150)
        rows.add(
            where,
            "largest rate, M* = C",
            "requests/s",
            most,
            theory=settled.capacity_per_s,
            note=f"VllmV1, offered {OVERLOAD:g} times as much; the theory is a bound for any policy",
        )
    for where, kinds in (
        ("6.1, high demand", cases.HIGH),
        ("6.2, chats, 550/s", tuple(one.times(10) for one in cases.CHAT)),
    ):
        settled = cases.settled(kinds)
        rows.add(
            where,
            "load d1·Σ λ(l' + 1)(l + l'/2)",
            "",
            theory=settled.cache_load,
            note="above 1: no equilibrium under any policy; the paper prints neither d0 nor d1",
        )
    return Section(
        title="Equilibria of the fluid",
        text=(
            "In equilibrium the arrivals of an iteration equal the departures at its end: "
            "`n*_j` = λ_j·ΔT·(l'_j + 1) requests of each type and `M*` tokens are in each iteration, which "
            "lasts ΔT = d0/(1 − load). The paper prints no M* or n*. In the simulation every request is in "
            "each iteration from its arrival on, the cache is unlimited, and the means are over iterations."
        ),
        rows=tuple(rows),
        remarks=(
            "**The equilibrium is exact for means over iterations**: M ↦ λ(d0 + d1·M) is a line, so its "
            "fixed point is the mean of the random process too, as long as the replica does not idle.",
            "**No policy serves more than `C/(E[W](d0 + d1·C))`**, W = (l' + 1)(l + l'/2): a batch of M ≤ C "
            "tokens completes M of this work in d0 + d1·M seconds. VllmV1 is close to it: recomputation "
            "after preemption costs little here.",
        ),
    )


def thresholds() -> Section:
    """Thresholds by (9) and by the rule of 6.1 for each instance."""
    rows = []
    for name, kinds in (("low demand", cases.LOW), ("high demand", cases.HIGH)):
        for share in cases.LOADS:
            here = cases.at_load(kinds, share)
            found = cases.wait_thresholds(here)
            limit = found.batch_limit or 1
            rule = cases.printed_thresholds(here, limit)
            judged = cases.wait_thresholds(here, rule)
            rows.append(
                {
                    "instance": name,
                    "load": share,
                    "requests/s": sum(one.rate for one in here),
                    "least n by (9)": ":".join(map(str, found.thresholds.values())),
                    "ΔT, s": found.iteration_s,
                    "M*": cases.settled(here).kv_tokens_needed,
                    "M^π of (9)": found.kv_tokens_needed,
                    "B": limit,
                    "rule of 6.1 with this B": ":".join(map(str, rule)),
                    "meets (9)": "yes" if judged.feasible else "no",
                    "least B with which it does": least_limit(here),
                }
            )
    return Section(
        title="Thresholds of WAIT",
        text=(
            "Condition (9): an iteration with n_j requests at every stage of every type lasts less than n_j "
            "requests of any type take to arrive. A least vector of integers exists; "
            "at most B = Σ n_j(l'_j + 1) requests are then in memory. Section 6.1 uses n_j = B·ρ_j/(l'_j + "
            "1) instead, in integers of at least 1."
        ),
        tables=(
            Table(
                title="Thresholds of the instances of 6.1",
                frame=pl.DataFrame(rows),
                decimals={"load": 2, "requests/s": 0, "ΔT, s": 4, "M*": 0, "M^π of (9)": 0},
            ),
        ),
        remarks=(
            "**The rule of 6.1 is not proportional to λ_j**, so the type with the longest output binds: with "
            "the B of (9) it violates (9), unless integers of at least 1 exceed B.",
        ),
    )


def least_limit(kinds: cases.Kinds) -> int:
    """The smallest B, in steps of a hundredth, with which the rule of 6.1 meets (9); 0 if none up to 10⁶."""
    limit = 10
    while limit < 10**6:
        if cases.wait_thresholds(kinds, cases.printed_thresholds(kinds, limit)).feasible:
            return limit
        limit += max(1, limit // 100)
    return 0
