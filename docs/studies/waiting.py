"""Does it pay to wait for company? WAIT and nested WAIT on the instances of ao2025 section 6, by simulation.

    python docs/studies/waiting.py              # prints the tables, writes waiting.svg beside this file

Iterations take d0 + d1 for each token in the batch's cache (the paper's model (1)): d0 = 15 ms, d1 = 0.26 µs,
a cache of 125,000 tokens, about Llama-2-7B on an A100. The paper's high demand would need d1 below 4.2 ns,
which no GPU has: all instances are used at several demands, told by their load d1 Σ λ (l' + 1)(l + l'/2).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import polars as pl
import show

import inferq as iq

BASE_S, PER_TOKEN_S, KV_TOKENS = 0.015, 2.6e-7, 125_000
LOADS = (0.05, 0.15, 0.3, 0.45, 0.55, 0.6)
PRINTED = (15, 14, 12, 8)
"""The ratio of section 6.2."""
LONG_PROMPTS = 16_384
"""A token budget that never binds: whole prompts, as WAIT has them."""


@dataclass(frozen=True)
class Type:
    """Requests of one kind: lengths in tokens, and how many come in a second."""

    prompt_tokens: int
    output_tokens: int
    rate: float

    @property
    def kv_tokens(self) -> float:
        """Tokens in the cache, summed over the iterations of one request: (l' + 1)(l + l'/2)."""
        return (self.output_tokens + 1) * (self.prompt_tokens + self.output_tokens / 2)


Types = tuple[Type, ...]

# The instances of section 6, with the rates in print, and how many requests a run has.
INSTANCES: dict[str, tuple[Types, int]] = {
    "low demand": ((Type(10, 10, 1000), Type(10, 20, 1000)), 400_000),
    "high demand": ((Type(20, 100, 6000), Type(20, 200, 4000), Type(20, 300, 2000)), 100_000),
    "nested": (tuple(Type(10, tokens, tokens) for tokens in (20, 40, 80, 160)), 100_000),
}


def load(types: Types) -> float:
    """d1 Σ λ (l' + 1)(l + l'/2): the share of time that work in proportion to the cache takes, ao2025 (6)."""
    return PER_TOKEN_S * sum(t.rate * t.kv_tokens for t in types)


def at_load(types: Types, wanted: float) -> Types:
    """The same types at another demand."""
    factor = wanted / load(types)
    return tuple(Type(t.prompt_tokens, t.output_tokens, t.rate * factor) for t in types)


def fluid_kv_tokens(types: Types) -> float:
    """M* of (6), the memory that no policy can do without."""
    return BASE_S / PER_TOKEN_S * load(types) / (1 - load(types))


def wait_kv_tokens(types: Types, n: list[int]) -> float:
    """The memory of (9), with n_j requests at every stage of every type."""
    return sum(count * t.kv_tokens for count, t in zip(n, types, strict=True))


def wait_thresholds(types: Types) -> list[int]:
    """Whole n_j in proportion to λ_j, the least for which an iteration lasts n_j / λ_j at most: (9)."""
    iteration_s = BASE_S / (1 - load(types))
    while True:
        n = [math.ceil(t.rate * iteration_s) for t in types]
        needed_s = BASE_S + PER_TOKEN_S * wait_kv_tokens(types, n)
        if all(needed_s <= count / t.rate for count, t in zip(n, types, strict=True)):
            return n
        iteration_s *= 1.02


def batch_limit(types: Types, n: list[int]) -> int:
    """B: the most requests that WAIT holds with these thresholds."""
    return sum(count * (t.output_tokens + 1) for count, t in zip(n, types, strict=True))


def printed_thresholds(types: Types, limit: int) -> list[int]:
    """n_j = B·ρ_j / (l'_j + 1), the rule of section 6.1, in whole numbers."""
    total = sum(t.rate for t in types)
    return [max(1, round(limit * t.rate / total / (t.output_tokens + 1))) for t in types]


def segments(types: Types) -> list[range]:
    """The stages of each segment of nested WAIT: 0 to l'_1, then those after l'_(i−1) up to l'_i."""
    ends = [-1, *(t.output_tokens for t in types)]
    return [range(low + 1, high + 1) for low, high in pairwise(ends)]


def nested_kv_tokens(types: Types, n: list[int]) -> int:
    """The memory with n_i requests at every stage of segment i: (11) without its slips."""
    prompt = types[0].prompt_tokens
    tokens = (sum(prompt + stage for stage in stages) for stages in segments(types))
    return sum(count * each for count, each in zip(n, tokens, strict=True))


def nested_limit(types: Types, n: list[int]) -> int:
    """The most requests that nested WAIT has in a batch."""
    return sum(count * len(stages) for count, stages in zip(n, segments(types), strict=True))


def shares(types: Types) -> list[float]:
    """p_i: of those who are in segment i, the share that goes on to the next one."""
    rates = [t.rate for t in types]
    return [sum(rates[i + 1 :]) / sum(rates[i:]) for i in range(len(rates) - 1)]


def nested_thresholds(types: Types, *, strict: bool) -> list[int]:
    """The least n with an iteration shorter than n_1 / Σλ, the first line of (10).

    Strict: n_(i+1) is the least whole number above p_i·n_i, which is the second line. Else the printed ratio,
    which meets that line with equality, in whole numbers.
    """
    for first in range(1, 10_000):
        if strict:
            n = [first]
            for share in shares(types):
                n.append(math.floor(round(share * n[-1], 9)) + 1)
        else:
            n = [max(1, round(first * part / PRINTED[0])) for part in PRINTED]
        if BASE_S + PER_TOKEN_S * nested_kv_tokens(types, n) < n[0] / sum(t.rate for t in types):
            return n
    raise ValueError("no thresholds keep up with the arrivals")


def nested_bound_tokens(types: Types, n: list[int], iterations: int, risk: float = 0.01) -> float:
    """The memory that (12) asks for, so that an overflow has at most this risk in so many iterations."""
    tokens = float(nested_kv_tokens(types, n))
    for i, share in enumerate(shares(types)):
        theta = 8 * (n[i + 1] - n[i] * share) / n[i + 1]
        if round(theta, 9) <= 0:
            return math.inf
        waiting = n[i + 1] + math.log(len(n) * iterations / risk) / theta
        tokens += (types[0].prompt_tokens + types[i].output_tokens) * waiting
    return tokens


def workload(types: Types, requests: int, seed: int = 1) -> iq.Workload:
    """A Poisson process of each type, its class named after its output length."""
    total = sum(t.rate for t in types)
    parts = [
        iq.Workload.law(
            requests=round(requests * t.rate / total),
            arrivals=iq.Poisson(t.rate),
            prompt=iq.Fixed(t.prompt_tokens),
            output=iq.Fixed(t.output_tokens),
        ).with_classes(f"output {t.output_tokens}")
        for t in types
    ]
    return parts[0].concat(*parts[1:]).draw(seed)


def wait(types: Types, n: list[int]) -> iq.Wait:
    """WAIT with a threshold for each type."""
    names = [f"output {t.output_tokens}" for t in types]
    return iq.Wait(thresholds=dict(zip(names, n, strict=True)))


def nested(types: Types, n: list[int]) -> iq.NestedWait:
    """Nested WAIT with a segment for each type."""
    return iq.NestedWait(segments=[t.output_tokens for t in types], thresholds=n)


def deployed(limit: int) -> dict[str, iq.Scheduler]:
    """The policies of real engines, with so many requests in a batch."""
    return {
        "VllmV1": iq.VllmV1(token_budget=LONG_PROMPTS, max_seqs=limit),
        "Sarathi": iq.Sarathi(token_budget=LONG_PROMPTS, max_seqs=limit, watermark=0.0),
    }


def run(requests: iq.Workload, scheduler: iq.Scheduler, kv_tokens: int = KV_TOKENS) -> iq.Result:
    """On one replica; a tenth of the requests at either end is not measured."""
    engine = iq.Engine(
        timing=iq.MemoryLinear(base=BASE_S, per_kv_token=PER_TOKEN_S),
        scheduler=scheduler,
        kv=iq.KvCache(tokens=kv_tokens, block=1),
        first_token="decode",
    )
    tenth = requests.frame.height // 10
    return iq.simulate(requests, engine, warmup=tenth, cooldown=tenth)


def measures(result: iq.Result) -> dict[str, float | int]:
    """Throughput while requests arrive (the drain after the last one is no part of it), and latencies.

    As in section 2.3 the tokens of a request count when it is complete. `served` is over those that arrive.
    """
    requests = result.requests
    start_s = requests["arrival_s"][requests.height // 10]
    end_s = requests.group_by("class").agg(pl.col("arrival_s").max())["arrival_s"].min()

    def tokens_per_s(column: str) -> float:
        inside = requests.filter(pl.col(column).is_between(start_s, end_s))
        return inside["output_tokens"].sum() / (end_s - start_s)

    summary = result.summary().row(0, named=True)
    return {
        "tokens/s": round(tokens_per_s("finish_s")),
        "served": min(1.0, tokens_per_s("finish_s") / tokens_per_s("arrival_s")),
        "mean E2E, s": summary["mean_e2e_s"],
        "P99 E2E, s": summary["p99_e2e_s"],
        "mean TTFT, s": summary["mean_ttft_s"],
        "preempted": requests["preemptions"].sum(),
        "most tokens held": result.timeline["kv_used_tokens"].max(),
    }


def instances() -> Iterator[dict[str, object]]:
    """Every policy on every instance at every load."""
    for instance, (base, number) in INSTANCES.items():
        for share in LOADS:
            types = at_load(base, share)
            requests = workload(types, number)
            chosen: dict[str, tuple[list[int] | None, iq.Scheduler]]
            if instance == "nested":
                strict = nested_thresholds(types, strict=True)
                printed = nested_thresholds(types, strict=False)
                limit = nested_limit(types, strict)
                chosen = {
                    "NestedWait, (10)": (strict, nested(types, strict)),
                    "NestedWait, 15:14:12:8": (printed, nested(types, printed)),
                }
            else:
                strict = wait_thresholds(types)
                limit = batch_limit(types, strict)
                printed = printed_thresholds(types, limit)
                chosen = {
                    "Wait, (9)": (strict, wait(types, strict)),
                    "Wait, rule of 6.1": (printed, wait(types, printed)),
                }
            for name, scheduler in deployed(limit).items():
                chosen[name] = (None, scheduler)
            for name, (n, scheduler) in chosen.items():
                result = run(requests, scheduler)
                row: dict[str, object] = {
                    "instance": instance,
                    "load": share,
                    "requests/s": sum(t.rate for t in types),
                    "policy": name,
                    "thresholds": n and ":".join(map(str, n)),
                    "limit": limit,
                }
                yield row | measures(result)


def paced_s(types: Types, n: list[int]) -> float:
    """Mean time in the system under WAIT: l'_j + 1 iterations, and n_j newcomers of its type for each."""
    total = sum(t.rate for t in types)
    return sum(count * (t.output_tokens + 1) / total for count, t in zip(n, types, strict=True))


def drift() -> pl.DataFrame:
    """The printed thresholds themselves, which meet (10) with equality, with memory enough for any queue."""
    base, _ = INSTANCES["nested"]
    types = at_load(base, 0.55)
    requests, rows = workload(types, 400_000), []
    for n in (list(PRINTED), [16, 15, 13, 9]):
        held = run(requests, nested(types, n), kv_tokens=10**9)
        timeline = held.timeline.filter(pl.col("time_s") < requests.frame["arrival_s"][-1])
        quarter = timeline.height // 4
        row: dict[str, object] = {
            "thresholds": ":".join(map(str, n)),
            "the stages alone": nested_kv_tokens(types, n),
            "(12)": nested_bound_tokens(types, n, held.totals["iterations"]),
        }
        for place, name in enumerate(("1st", "2nd", "3rd", "4th")):
            row[f"{name} quarter"] = timeline["kv_used_tokens"].slice(place * quarter, quarter).max()
        rows.append(row)
    return pl.DataFrame(rows).with_columns(pl.col("(12)").replace(math.inf, None))


def nested_memory() -> pl.DataFrame:
    """Does the memory hold? For each load the stages alone, the bound (12), and what was held."""
    base, number = INSTANCES["nested"]
    rows = []
    for share in LOADS:
        types = at_load(base, share)
        n, requests = nested_thresholds(types, strict=True), workload(types, number)
        limit = nested_limit(types, n)
        held = run(requests, nested(types, n), kv_tokens=10**9)
        rows.append(
            {
                "load": share,
                "thresholds": ":".join(map(str, n)),
                "M* (6)": fluid_kv_tokens(types),
                "the stages alone": nested_kv_tokens(types, n),
                "(12)": nested_bound_tokens(types, n, held.totals["iterations"]),
                "held by NestedWait": held.timeline["kv_used_tokens"].max(),
                "held by VllmV1": run(requests, deployed(limit)["VllmV1"]).timeline["kv_used_tokens"].max(),
            }
        )
    return pl.DataFrame(rows)


def tight_memory(share: float = 0.15) -> pl.DataFrame:
    """A cache about as large as the thresholds need, on the low demand."""
    base, number = INSTANCES["low demand"]
    types = at_load(base, share)
    requests, n = workload(types, number), wait_thresholds(types)
    rows = []
    for factor in (0.9, 1.0, 1.05, 1.1):
        kv_tokens = round(factor * wait_kv_tokens(types, n))
        policies = {
            "Wait, (9)": wait(types, n),
            "VllmV1, as many requests": deployed(batch_limit(types, n))["VllmV1"],
            "VllmV1, any number": deployed(number)["VllmV1"],
        }
        for name, scheduler in policies.items():
            rows.append({"cache": kv_tokens, "policy": name, **measures(run(requests, scheduler, kv_tokens))})
    return pl.DataFrame(rows)


def other_limits(share: float = 0.15) -> pl.DataFrame:
    """A batch-size limit below what the demand needs, and twice as much, on the low demand."""
    base, number = INSTANCES["low demand"]
    types = at_load(base, share)
    requests, enough = workload(types, number), batch_limit(types, wait_thresholds(types))
    rows = []
    for factor in (0.5, 0.8, 0.95, 2.0):
        limit = round(factor * enough)
        stages = sum(t.rate * (t.output_tokens + 1) for t in types)
        proportional = [max(1, math.floor(round(limit * t.rate / stages, 9))) for t in types]
        policies = {
            "Wait, in proportion to λ": wait(types, proportional),
            "Wait, rule of 6.1": wait(types, printed_thresholds(types, limit)),
            "VllmV1": deployed(limit)["VllmV1"],
        }
        for name, scheduler in policies.items():
            rows.append({"limit": limit, "policy": name, **measures(run(requests, scheduler))})
    return pl.DataFrame(rows)


KEEPS_UP = 0.98


def chart(rows: pl.DataFrame, path: Path) -> None:
    """Mean time in the system against the load, one panel an instance."""
    import altair as alt

    series = {
        "VllmV1 (Sarathi does the same)": (show.BLUE, ["VllmV1"]),
        "thresholds by (9), nested by (10)": (show.VERMILION, ["Wait, (9)", "NestedWait, (10)"]),
        "thresholds as printed": (show.ORANGE, ["Wait, rule of 6.1", "NestedWait, 15:14:12:8"]),
    }
    named = {policy: name for name, (_, policies) in series.items() for policy in policies}
    colour = alt.Color(
        "series:N",
        title=None,
        scale=alt.Scale(domain=list(series), range=[colour for colour, _ in series.values()]),
        legend=alt.Legend(orient="bottom", columns=3),
    )
    ticks = {
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
            steady = steady.encode(x=x, y=y, color=colour)
            layers.append(steady.mark_line(strokeWidth=2.5))
            layers.append(steady.mark_point(filled=True, opacity=1, size=size))
        # Where a queue grows, its mean only says how long the run was: a cross stands at the edge instead.
        jammed = data.filter(pl.col("served") < KEEPS_UP)
        down = {name: 10 + 16 * place for place, name in enumerate(reversed(series))}
        for name in jammed["series"].unique(maintain_order=True):
            crosses = alt.Chart(jammed.filter(pl.col("series") == name))
            crosses = crosses.mark_point(shape="cross", angle=45, filled=True, size=110, opacity=1)
            layers.append(crosses.encode(x=x, y=alt.value(down[name]), color=colour))
        if jammed.height:
            note = alt.Chart(pl.DataFrame({"text": ["× does not keep up"]})).mark_text(align="left", dx=8)
            layers.append(note.encode(x=alt.value(0), y=alt.value(44), text="text:N"))
        panels.append(alt.layer(*layers).properties(width=250, height=240, title=instance))
    show.save(alt.hconcat(*panels, spacing=24), path)


if __name__ == "__main__":
    found = pl.DataFrame(list(instances()), infer_schema_length=None)
    deployed_rows = [found.filter(pl.col("policy") == name).drop("policy") for name in ("VllmV1", "Sarathi")]
    assert deployed_rows[0].equals(deployed_rows[1]), "the picture shows one line for both"
    decimals = {"served": 3, "requests/s": 0, "M* (6)": 0, "(12)": 0}
    print(show.table(found, **decimals))
    for instance in ("low demand", "high demand"):
        by_hand = []
        for share in LOADS:
            types = at_load(INSTANCES[instance][0], share)
            by_hand.append(f"{paced_s(types, wait_thresholds(types)):.2f}")
        print(f"{instance}, mean time under Wait, (9), by hand: {', '.join(by_hand)} s")
    for frame in (nested_memory(), drift(), tight_memory(), other_limits()):
        print(show.table(frame, **decimals))
    chart(found, Path(__file__).with_suffix(".svg"))
