"""WAIT and nested WAIT compared with deployed policies, as in section 6 of ao2025."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import altair as alt
import polars as pl

import inferq as iq
from inferq import Interval
from inferq.display import BLUE, ORANGE, VERMILION, colored
from inferq_papers.ao2025 import cases
from inferq_papers.report import Chart, Row, Rows, Section, Table, interval

INSTANCES: dict[str, tuple[cases.Kinds, int]] = {
    "low demand": (cases.LOW, 400_000),
    "high demand": (cases.HIGH, 100_000),
    "nested": (cases.NESTED, 100_000),
}
"""Number of requests of each instance."""
FIGURES = {"low demand": "Figure 7", "high demand": "Figure 8", "nested": "Figure 11"}
PRINTED = (15, 14, 12, 8)
"""The ratio of section 6.2."""
KEEPS_UP = 0.98
PIECES = 20
"""Parts of a run, in order of arrival, with means that give an interval."""
COMPARED = (0.15, 0.45)
"""Loads of the rows."""


def in_print(kinds: cases.Kinds) -> tuple[int, ...]:
    """The printed ratio in the least integers that satisfy the first line of (10)."""
    for first in range(1, 10_000):
        n = tuple(max(1, round(first * part / PRINTED[0])) for part in PRINTED)
        evaluated = cases.nested_thresholds(kinds, n)
        if evaluated.arrivals is not None and evaluated.arrivals < n[0]:
            return n
    raise ValueError("no thresholds keep up with the arrivals")


Policies = dict[str, tuple[tuple[int, ...] | None, iq.Scheduler]]
"""Each with its thresholds or None."""


def chosen(instance: str, kinds: cases.Kinds) -> tuple[int, Policies]:
    """The batch limit that the thresholds require, and every policy with its thresholds."""
    policies: Policies
    if instance == "nested":
        found = cases.nested_thresholds(kinds)
        n, limit, printed = found.thresholds, found.batch_limit, in_print(kinds)
        policies = {
            "NestedWait, (10)": (n, cases.nested(kinds, n)),
            "NestedWait, 15:14:12:8": (printed, cases.nested(kinds, printed)),
        }
    else:
        known = cases.wait_thresholds(kinds)
        n, limit = tuple(known.thresholds.values()), known.batch_limit
        printed = tuple(cases.printed_thresholds(kinds, limit or 1))
        policies = {
            "Wait, (9)": (n, cases.wait(kinds, n)),
            "Wait, rule of 6.1": (printed, cases.wait(kinds, printed)),
        }
    assert limit is not None
    return limit, policies | {name: (None, one) for name, one in cases.deployed(limit).items()}


def compared(scale: float, tell: Callable[[str], None]) -> pl.DataFrame:
    """Every policy on every instance at every load."""
    rows = []
    for instance, (base, number) in INSTANCES.items():
        tell(f"{instance}: {len(cases.LOADS)} loads, four policies")
        for share in cases.LOADS:
            kinds = cases.at_load(base, share)
            requests = cases.workload(kinds, round(number * scale))
            limit, policies = chosen(instance, kinds)
            for name, (n, scheduler) in policies.items():
                row: dict[str, object] = {
                    "instance": instance,
                    "load": share,
                    "requests/s": sum(kind.rate for kind in kinds),
                    "policy": name,
                    "thresholds": None if n is None else ":".join(map(str, n)),
                    "limit": limit,
                }
                result = cases.run(requests, scheduler)
                measured = cases.measures(result)
                if share in COMPARED:
                    served_s = in_service_s(result.requests)
                    measured |= {"in service, s": served_s.mean, "±": served_s.half_width}
                rows.append(row | measured)
    return pl.DataFrame(rows, infer_schema_length=None)


def paced_s(kinds: cases.Kinds) -> float:
    """Mean time from admission to the end under WAIT with (9).

    Iterations of type j are n_j/λ_j apart on average, one for every n_j arrivals: l'_j such gaps and the
    last iteration.
    """
    found = cases.wait_thresholds(kinds)
    total = sum(kind.rate for kind in kinds)
    assert found.iteration_s is not None
    gaps = (one.rate / total * (one.iterations - 1) * one.threshold / one.rate for one in found.classes)
    return sum(gaps) + found.iteration_s


def in_service_s(requests: pl.DataFrame) -> Interval:
    """Mean time from admission to the end of measured requests, with its interval."""
    spent_s = requests.filter("measured").select("finish_s", "admitted_s")
    values = (spent_s["finish_s"] - spent_s["admitted_s"]).to_numpy()
    size = len(values) // PIECES
    return interval([float(values[place * size : (place + 1) * size].mean()) for place in range(PIECES)])


def against(quick: bool, tell: Callable[[str], None]) -> Section:
    """Throughput and latency compared with VllmV1 and Sarathi."""
    found = compared(0.4 if quick else 1.0, tell)
    lookup = {(row["instance"], row["load"], row["policy"]): row for row in found.iter_rows(named=True)}
    rows = Rows()
    for instance, (base, _) in INSTANCES.items():
        waits = "NestedWait, (10)" if instance == "nested" else "Wait, (9)"
        for share in COMPARED:
            where = f"{FIGURES[instance]}: {instance}, load {share}"
            kinds = cases.at_load(base, share)
            for policy in (waits, "VllmV1"):
                rows.add(
                    where,
                    f"throughput of {policy}, of the arrivals",
                    "",
                    lookup[instance, share, policy]["served"],
                    theory=1.0,
                    note="the figures print no d0, d1 or C, and no readable axis",
                )
            for policy in (waits, "VllmV1"):
                by_hand = paced_s(kinds) if policy == "Wait, (9)" else None
                seen = lookup[instance, share, policy]
                rows.append(
                    Row(
                        where=where,
                        what=f"mean time from admission to the end, {policy}",
                        unit="s",
                        theory=by_hand,
                        simulation=seen["in service, s"],
                        half_width=seen["±"],
                        note="" if by_hand is None else "theory: l'·n/λ + ΔT",
                    )
                )
    alike = (
        found.filter(pl.col("policy") == "VllmV1")
        .drop("policy")
        .equals(found.filter(pl.col("policy") == "Sarathi").drop("policy"))
    )
    steady = found.filter(pl.col("served") >= KEEPS_UP)
    waiting = steady.filter(~pl.col("policy").is_in(["VllmV1", "Sarathi"]))
    pairs = waiting.join(steady.filter(pl.col("policy") == "VllmV1"), on=["instance", "load"])
    slower = (pairs["mean E2E, s"] / pairs["mean E2E, s_right"]).to_list()
    jams = found.filter(pl.col("served") < KEEPS_UP).filter(~pl.col("policy").is_in(["VllmV1", "Sarathi"]))
    return Section(
        title="Benefit of waiting for larger batches",
        text=(
            'Section 6: "the throughput of WAIT surpasses that of the benchmark algorithms across all tested '
            "arrival rates\". Each instance runs at several demands, named by its load d1 Σ λ (l' + 1)(l + "
            "l'/2); "
            f"the printed low demand is load {cases.load(cases.LOW):.2f}. All policies have the same limit "
            f"on "
            "requests in a batch, the limit that the thresholds by (9) or (10) require. A tenth of the "
            "requests at each end is not measured."
        ),
        rows=tuple(rows),
        tables=(
            Table(
                title="All policies at all loads",
                frame=found.drop("in service, s", "±"),
                decimals={"served": 3, "requests/s": 0},
                note='"served" is the share of the arriving tokens; below 0.98 a queue grows, and times '
                "only reflect the length of the run.",
            ),
        ),
        pictures=(
            Chart(
                title="Mean time in the system",
                caption="Mean time in the system against the load on the three instances; crosses: less than "
                "98 % of the arriving tokens are served.",
                chart=lambda: chart(found),
            ),
        ),
        remarks=(
            "**Throughput: no policy surpasses another.** A stable policy serves all arrivals. "
            + ("VllmV1 and Sarathi make the same decisions here, and " if alike else "VllmV1 and Sarathi ")
            + f"if both keep up, waiting takes {min(slower):.2f} to {max(slower):.1f} times their mean "
            f"time "
            "in the system.",
            "**The reason follows from the paper's own model.** A request of type j passes l'_j + 1 stages, "
            "and under WAIT each stage waits for n_j arrivals, so its time is (l'_j + 1)·n_j/λ_j. Condition "
            "(9) requires that n_j/λ_j is *at least* the time of an iteration. A policy that runs all "
            "requests in each iteration takes (l'_j + 1) iterations, and spreads d0 over the largest "
            "possible batch. Waiting adds idle time or pauses and saves nothing: (1) has no term that it "
            "reduces. Its cost is lowest for large thresholds.",
            "**Unstable cases**: "
            + "; ".join(jammed_text(jams))
            + ". On the low demand the rule of 6.1 gives the type with the longer output fewer places than "
            "(9) requires. In integers 15:14:12:8 violates (10): requests accumulate at a segment's "
            "entry, keep their cache, and preemption returns them to stage 0. Strict thresholds are unstable "
            "if their memory, (12), exceeds the cache.",
        ),
    )


def jammed_text(jams: pl.DataFrame) -> list[str]:
    """Loads at which each policy does not keep up, and the served share."""
    sentences = []
    for (instance, policy), rows in jams.group_by("instance", "policy", maintain_order=True):
        loads = ", ".join(str(load) for load in rows["load"].to_list())
        served = [f"{100 * share:.0f} %" for share in rows["served"].to_list()]
        sentences.append(f"{policy} on the {instance} instance at loads {loads} ({', '.join(served)} served)")
    return sentences


def nested_memory(scale: float) -> pl.DataFrame:
    """Memory of the stages, bound (12), and memory in use for each load."""
    base, number = INSTANCES["nested"]
    rows = []
    for share in cases.LOADS:
        kinds = cases.at_load(base, share)
        requests = cases.workload(kinds, round(number * scale))
        n = cases.nested_thresholds(kinds).thresholds
        held = cases.run(requests, cases.nested(kinds, n), None)
        evaluated = cases.nested_thresholds(kinds, n, held.totals["iterations"])
        greedy = cases.run(requests, cases.deployed(evaluated.batch_limit or 1)["VllmV1"])
        rows.append(
            {
                "load": share,
                "thresholds": ":".join(map(str, n)),
                "M* (6)": cases.settled(kinds).kv_tokens_needed,
                "its stages alone": evaluated.stages_kv_tokens,
                "(12), risk 0.01": evaluated.kv_tokens_needed,
                "held by NestedWait": held.timeline["kv_used_tokens"].max(),
                "held by VllmV1": greedy.timeline["kv_used_tokens"].max(),
            }
        )
    return pl.DataFrame(rows)


def drift(scale: float) -> pl.DataFrame:
    """The printed thresholds, which satisfy (10) with equality, with memory for any queue."""
    base, number = INSTANCES["nested"]
    kinds = cases.at_load(base, 0.55)
    requests, rows = cases.workload(kinds, round(4 * number * scale)), []
    for n in (PRINTED, (16, 15, 13, 9)):
        held = cases.run(requests, cases.nested(kinds, n), None)
        timeline = held.timeline.filter(pl.col("time_s") < requests.frame["arrival_s"][-1])
        quarter = timeline.height // 4
        evaluated = cases.nested_thresholds(kinds, n, held.totals["iterations"])
        row: dict[str, object] = {
            "thresholds": ":".join(map(str, n)),
            "its stages alone": evaluated.stages_kv_tokens,
            "(12), risk 0.01": evaluated.kv_tokens_needed,
        }
        for place, name in enumerate(("1st", "2nd", "3rd", "4th")):
            row[f"{name} quarter"] = timeline["kv_used_tokens"].slice(place * quarter, quarter).max()
        rows.append(row)
    return pl.DataFrame(rows)


def tight_memory(scale: float, share: float = 0.15) -> pl.DataFrame:
    """A cache about as large as the thresholds need, on the low demand."""
    base, number = INSTANCES["low demand"]
    kinds = cases.at_load(base, share)
    requests, found = cases.workload(kinds, round(number * scale)), cases.wait_thresholds(kinds)
    assert found.kv_tokens_needed is not None and found.batch_limit is not None
    rows = []
    for factor in (0.9, 1.0, 1.05, 1.1):
        kv_tokens = round(factor * found.kv_tokens_needed)
        policies = {
            "Wait, (9)": cases.wait(kinds, list(found.thresholds.values())),
            "VllmV1, as many requests": cases.deployed(found.batch_limit)["VllmV1"],
            "VllmV1, any number": cases.unbounded(),
        }
        for name, scheduler in policies.items():
            measured = cases.measures(cases.run(requests, scheduler, kv_tokens))
            rows.append({"cache": kv_tokens, "policy": name, **measured})
    return pl.DataFrame(rows)


def other_limits(scale: float, share: float = 0.15) -> pl.DataFrame:
    """A batch-size limit below what the demand needs, and twice as much, on the low demand."""
    base, number = INSTANCES["low demand"]
    kinds = cases.at_load(base, share)
    enough = cases.wait_thresholds(kinds).batch_limit
    assert enough is not None
    requests, rows = cases.workload(kinds, round(number * scale)), []
    for factor in (0.5, 0.8, 0.95, 2.0):
        limit = round(factor * enough)
        stages = sum(one.rate * (one.output_tokens + 1) for one in kinds)
        proportional = [max(1, math.floor(round(limit * one.rate / stages, 9))) for one in kinds]
        policies = {
            "Wait, in proportion to λ": cases.wait(kinds, proportional),
            "Wait, rule of 6.1": cases.wait(kinds, cases.printed_thresholds(kinds, limit)),
            "VllmV1": cases.deployed(limit)["VllmV1"],
        }
        for name, scheduler in policies.items():
            rows.append({"limit": limit, "policy": name, **cases.measures(cases.run(requests, scheduler))})
    return pl.DataFrame(rows)


def memory(quick: bool) -> Section:
    """Memory of waiting, and cases with a gain."""
    scale = 0.4 if quick else 1.0
    held, drifting, tight, limited = (
        nested_memory(scale),
        drift(scale),
        tight_memory(scale),
        other_limits(scale),
    )
    rows = tuple(
        Row(
            where=f"(12): four lengths, load {row['load']}",
            what="memory of nested WAIT",
            unit="tokens",
            theory=row["(12), risk 0.01"],
            simulation=row["held by NestedWait"],
            note="the theory is a bound that holds with a probability of at least 0.99",
        )
        for row in held.iter_rows(named=True)
    )
    whole = {"M* (6)": 0, "its stages alone": 0, "(12), risk 0.01": 0}
    within = all(row["held by NestedWait"] <= row["(12), risk 0.01"] for row in held.iter_rows(named=True))
    worst = max(row["held by NestedWait"] / row["held by VllmV1"] for row in held.iter_rows(named=True))
    first = tight.filter(tight["cache"] == tight["cache"].unique().sort()[1])
    preempted = dict(first.select("policy", "preempted").iter_rows())
    return Section(
        title="Memory of waiting",
        text=(
            "(11) as corrected: n_i requests at every stage of segment i, including the prompt. "
            "(12) adds the queues at the segments' entries. The cache is unlimited in the first two "
            "tables."
        ),
        rows=rows,
        tables=(
            Table(title="Strict thresholds by (10)", frame=held, decimals=whole),
            Table(
                title="The printed thresholds, which satisfy (10) with equality, at load 0.55",
                frame=drifting,
                decimals=whole,
                note="Peak memory in tokens in each quarter of the run.",
            ),
            Table(
                title="A cache that just fits: low demand, load 0.15",
                frame=tight,
                decimals={"served": 3},
            ),
            Table(
                title="A binding limit on the batch: low demand, load 0.15",
                frame=limited,
                decimals={"served": 3},
            ),
        ),
        remarks=(
            f"**Nested WAIT stays {'within' if within else 'mostly within'} (12)**, and uses up to "
            f"{worst:.1f} times the memory of VllmV1.",
            "**With equality in (10) there is no bound**: the queue at a segment's entry is a random walk "
            "without drift.",
            "**Waiting helps with a cache that just fits.** WAIT never uses more than its thresholds "
            "times "
            f"the stages. With exactly this memory, VllmV1 preempts {preempted['VllmV1, any number']:,} "
            f"times, WAIT {preempted['Wait, (9)']:,} times; with 5 % more VllmV1 is ahead again.",
            "**A binding limit on the batch does not help WAIT**: tokens per second are in the last table. "
            "If the rule of 6.1 leads, it serves more short requests while long requests queue.",
        ),
    )


def chart(rows: pl.DataFrame) -> Any:
    """Mean time in the system against the load, one panel per instance."""
    series = {
        "VllmV1 (Sarathi does the same)": (BLUE, ["VllmV1"]),
        "thresholds by (9), nested by (10)": (VERMILION, ["Wait, (9)", "NestedWait, (10)"]),
        "thresholds as printed": (ORANGE, ["Wait, rule of 6.1", "NestedWait, 15:14:12:8"]),
    }
    named = {policy: name for name, (_, policies) in series.items() for policy in policies}
    color = colored("series", {name: color for name, (color, _) in series.items()}, columns=3)
    ticks: dict[str, list[float]] = {
        "low demand": [0.2, 0.3, 0.5, 1, 2],
        "high demand": [1, 2, 5, 10, 20, 50, 100, 200],
        "nested": [1, 2, 5, 10, 20],
    }
    panels = []
    for instance, values in ticks.items():
        measured = rows.filter((pl.col("instance") == instance) & pl.col("policy").is_in(list(named)))
        data = measured.with_columns(
            pl.col("policy").replace_strict(named).alias("series"), pl.col("mean E2E, s").alias("seconds")
        )
        x = alt.X("load:Q", title="load", scale=alt.Scale(domain=[0, 0.65]), axis=alt.Axis(tickCount=7))
        y = alt.Y(
            "seconds:Q",
            title="mean time in the system, s" if instance == "low demand" else None,
            scale=alt.Scale(type="log", domain=[values[0], values[-1]]),
            axis=alt.Axis(values=values, format="~g"),
        )
        layers = []
        # Where two series agree, the larger point, drawn first, shows below the smaller one.
        for name, size in zip(reversed(series), (140, 50, 50), strict=True):
            steady = alt.Chart(data.filter((pl.col("served") >= KEEPS_UP) & (pl.col("series") == name)))
            steady = steady.encode(x=x, y=y, color=color)
            layers.append(steady.mark_line(strokeWidth=2.5))
            layers.append(steady.mark_point(filled=True, opacity=1, size=size))
        # If a queue grows, its mean only reflects the length of the run: a cross at the edge replaces it.
        jammed = data.filter(pl.col("served") < KEEPS_UP)
        down = {name: 10 + 16 * place for place, name in enumerate(reversed(series))}
        for name in jammed["series"].unique(maintain_order=True):
            crosses = alt.Chart(jammed.filter(pl.col("series") == name))
            crosses = crosses.mark_point(shape="cross", angle=45, filled=True, size=110, opacity=1)
            layers.append(crosses.encode(x=x, y=alt.value(down[name]), color=color))
        if jammed.height:
            note = alt.Chart(pl.DataFrame({"text": ["× does not keep up"]})).mark_text(align="left", dx=8)
            layers.append(note.encode(x=alt.value(0), y=alt.value(44), text="text:N"))
        panels.append(alt.layer(*layers).properties(width=250, height=240, title=instance))
    return alt.hconcat(*panels, spacing=24)
