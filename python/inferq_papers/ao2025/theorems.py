"""Proposition 4 and Theorem 1 of ao2025 in simulation."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np
import polars as pl
from numpy.typing import NDArray

import inferq as iq
from inferq import Interval
from inferq.display import BLUE, GRAY, INK, ORANGE, SKY, VERMILION, colored
from inferq_papers.report import Chart, Rows, Section, interval, with_half_width

KINDS = {"type 1": 2, "type 2": 3}
"""l' + 1 of the example of A.3, both with a prompt of one token. With `first_token="prefill"` the iteration
of the prompt produces a token, so outputs of l' + 1 tokens have the paper's stages and its throughput (4)."""
KV_TOKENS = 9
"""C = M* with K = 1."""
BOTH = {"d1 = 0": (1.0, 0.0), "d1 = 0.05": (0.55, 0.05)}
"""d0 and d1 with K = d0/(1 − 9·d1) = 1."""
STRICT = 0.9
"""Rate at which the same thresholds satisfy (9) strictly."""
CLAIMED = 0.3
"""A.3: the queue of type 2 at t is at least 0.3·t."""
CLAIMED_OVERFLOW = 0.391


def policies() -> dict[str, iq.Scheduler]:
    """First come, first served within the memory, and WAIT with the thresholds of the fluid."""
    return {
        "VllmV1": iq.VllmV1(token_budget=2**20, max_seqs=2**16, async_scheduling=False),
        "SlotGreedy": iq.research.SlotGreedy(chunk=512),
        "Wait": iq.research.Wait(thresholds=1),
    }


def run(scheduler: iq.Scheduler, costs: str, horizon_s: float, seed: int, rate: float = 1.0) -> pl.DataFrame:
    """The requests of one run, in order of arrival; arrivals continue beyond the horizon."""
    number = round(rate * horizon_s + 6 * math.sqrt(rate * horizon_s) + 50)
    parts = [
        iq.Workload.synthetic(
            requests=number,
            arrivals=iq.dist.Poisson(rate),
            prompt=iq.dist.Fixed(1),
            output=iq.dist.Fixed(output),
        ).with_classes(name)
        for name, output in KINDS.items()
    ]
    base_s, per_token_s = BOTH[costs]
    engine = iq.Engine(
        timing=iq.research.MemoryLinear(base=base_s, per_kv_token=per_token_s),
        scheduler=scheduler,
        kv=iq.KvCache(tokens=KV_TOKENS, block=1),
        first_token="prefill",
    )
    return iq.simulate(parts[0].concat(*parts[1:]).draw(seed), engine).requests


def waiting(requests: pl.DataFrame, instants_s: Sequence[float]) -> NDArray[np.float64]:
    """Number of waiting requests of type 2 at each instant."""
    rows = requests.filter(pl.col("class") == "type 2")
    arrivals = np.searchsorted(rows["arrival_s"].to_numpy(), instants_s, side="right")
    begun = np.searchsorted(np.sort(rows["admitted_s"].to_numpy()), instants_s, side="right")
    return (arrivals - begun).astype(np.float64)


def restarting(steps: int, seed: int) -> list[int]:
    """The queue of type 2 after each step under first come, first served as in A.3.

    Each step lasts K = 1. In order of arrival a request starts when its prompt fits into the free memory.
    If the next tokens do not fit, the last started request loses its progress and is first in the queue.
    """
    stream = np.random.default_rng(seed)
    arrivals = stream.poisson(1.0, size=(steps, 2)).tolist()
    last = tuple(output - 1 for output in KINDS.values())
    queue: deque[int] = deque()
    active: list[tuple[int, int]] = []
    lengths, of_type_2 = [], 0
    for came in arrivals:
        newcomers = [0] * came[0] + [1] * came[1]
        stream.shuffle(newcomers)
        queue.extend(newcomers)
        of_type_2 += came[1]
        held = sum(1 + stage for _, stage in active)
        while held > KV_TOKENS:
            kind, stage = active.pop()
            held -= 1 + stage
            queue.appendleft(kind)
            of_type_2 += kind
        while queue and held < KV_TOKENS:
            kind = queue.popleft()
            of_type_2 -= kind
            active.append((kind, 0))
            held += 1
        active = [(kind, stage + 1) for kind, stage in active if stage < last[kind]]
        lengths.append(of_type_2)
    return lengths


def overflow_chances() -> tuple[float, float]:
    """The probability that new requests overflow the cache in two steps from equilibrium: A.3's and correct.

    Present requests need 7 tokens in the next step and 3 in the step after it. New requests (x, y)
    need x + y, then 2x + 2y: they fit if x + y ≤ 2. The list in A.3 leaves out (0, 2).
    """
    listed = [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0)]
    right = [
        (x, y) for x in range(4) for y in range(4) if x + y + 7 <= KV_TOKENS and 2 * (x + y) + 3 <= KV_TOKENS
    ]

    def overflows(fitting: Sequence[tuple[int, int]]) -> float:
        return 1 - math.exp(-2) * sum(1 / (math.factorial(x) * math.factorial(y)) for x, y in fitting)

    return overflows(listed), overflows(right)


def memory_greedy(quick: bool) -> Section:
    """Proposition 4: loss of first come, first served at C = M*."""
    steps, seeds = (20_000, range(6)) if quick else (100_000, range(12))
    instants = np.unique(np.geomspace(10, steps, 40).round())
    curves: dict[str, list[NDArray[np.float64]]] = {"FCFS, restarting (A.3)": []}
    for seed in seeds:
        lengths = restarting(steps, seed)
        curves["FCFS, restarting (A.3)"].append(
            np.array([lengths[int(t) - 1] for t in instants], dtype=np.float64)
        )
    lost: dict[str, list[float]] = {}
    for costs in BOTH:
        for name, scheduler in policies().items():
            label = f"{name}, {costs}"
            curves[label], lost[label] = [], []
            for seed in seeds:
                requests = run(scheduler, costs, steps, seed)
                curves[label].append(waiting(requests, instants.tolist()))
                lost[label].append(unfinished(requests, [steps])[0] / steps)
    rows = Rows()
    rows.add(
        "A.3",
        "chance that newcomers overflow the cache within two steps",
        "",
        paper=CLAIMED_OVERFLOW,
        theory=overflow_chances()[1],
        note="the list of A.3 leaves out (0, 2), which fits as (1, 1) does",
    )
    slopes: dict[str, Interval] = {}
    half = int(np.searchsorted(instants, steps / 2))
    for label, runs in curves.items():
        grown = [float((q[-1] - q[half]) / (instants[-1] - instants[half])) for q in runs]
        slopes[label] = interval(grown)
        greedy = label.startswith(("FCFS", "VllmV1"))
        rows.add(
            "Proposition 4, A.3",
            f"growth of the queue of type 2, {label}",
            "requests/step",
            slopes[label],
            paper=CLAIMED if greedy else None,
            note="over the second half of the run"
            if greedy
            else "over the second half; a walk without drift, so about 1/√T",
        )
    for label, values in lost.items():
        share = interval(values)
        rows.add("Proposition 4", f"throughput lost of Σ λ(l' + 1) = 5, {label}", "tokens/step", share)
    literal, kept = slopes["FCFS, restarting (A.3)"], slopes["VllmV1, d1 = 0"]
    return Section(
        title="Loss of memory-greedy first come, first served at C = M*",
        text=(
            "Proposition 4's example: types with (l, l') = (1, 1) and (1, 2), one request of each per "
            "second, K = d0/(1 − 9·d1) = 1, so M* = C = 9. Here the load is 1 for every policy: unused "
            "cache "
            f'is lost capacity. {len(seeds)} runs of {steps:,} steps. "FCFS, restarting" is the '
            "policy of A.3 step by step; its victims start again. All other policies are simulated in "
            "continuous time, VllmV1 with recomputation, which keeps the generated tokens of a victim."
        ),
        rows=tuple(rows),
        pictures=(
            Chart(
                title="The queue of type 2 at C = M*",
                caption="Mean over the runs, both axes logarithmic: first come, first served grows with t, "
                "WAIT with √t. The dashed line is the 0.3·t of A.3.",
                chart=lambda: queues_chart(instants, curves),
            ),
        ),
        remarks=(
            f"**The loss is confirmed**: the queue grows linearly, by {with_half_width(literal, 3)} per "
            f"step with "
            f"restarts from the beginning, by {with_half_width(kept, 4)} under VllmV1.",
            f"**But not with 0.3 per step.** A.3 derives a probability of {CLAIMED_OVERFLOW} in *two* steps "
            f"(the correct "
            f"value is {overflow_chances()[1]:.3f}), hence at most {CLAIMED_OVERFLOW / 2:.3f} per step, and "
            f"assumes "
            "that each pair of steps starts in equilibrium.",
            "**Not every greedy policy loses**: SlotGreedy, whose victims leave the batch but keep their "
            "computed tokens, has a queue like that of WAIT.",
        ),
    )


def unfinished(requests: pl.DataFrame, instants_s: Sequence[float]) -> list[float]:
    """Tokens of requests that arrived by each instant and are not complete."""
    tokens = requests["output_tokens"].to_numpy()
    finish_s = requests["finish_s"].to_numpy()
    order = np.argsort(finish_s)
    arrivals = np.concatenate([[0], tokens.cumsum()])
    done = np.concatenate([[0], tokens[order].cumsum()])
    arrived = np.searchsorted(requests["arrival_s"].to_numpy(), instants_s, side="right")
    left = np.searchsorted(finish_s[order], instants_s, side="right")
    return [float(one) for one in arrivals[arrived] - done[left]]


def exponent(horizons_s: NDArray[Any], gaps: NDArray[Any]) -> Interval:
    """The slope of ln(mean gap) against ln(T) with its 99 % interval: each run left out in turn."""
    logs = np.log(horizons_s)

    def slope(rows: NDArray[Any]) -> float:
        return float(np.polyfit(logs, np.log(rows.mean(axis=0)), 1)[0])

    runs = len(gaps)
    without = np.array([slope(np.delete(gaps, place, axis=0)) for place in range(runs)])
    error = math.sqrt((runs - 1) / runs * float(((without - without.mean()) ** 2).sum()))
    return Interval.of_estimate(slope(gaps), error, runs, 0.99)


def convergence(quick: bool) -> Section:
    """Theorem 1: convergence of the throughput of WAIT to Σ λ(l' + 1)."""
    horizons_s = 250.0 * 2.0 ** np.arange(7 if quick else 9)
    seeds = range(50 if quick else 100)
    cases = {
        "equality in (9), d1 = 0": ("d1 = 0", 1.0),
        "equality in (9), d1 = 0.05": ("d1 = 0.05", 1.0),
        f"strict, {STRICT:g} of the rates, d1 = 0.05": ("d1 = 0.05", STRICT),
    }
    gaps = {}
    for label, (costs, rate) in cases.items():
        runs = [
            unfinished(
                run(iq.research.Wait(thresholds=1), costs, horizons_s[-1], seed, rate), horizons_s.tolist()
            )
            for seed in seeds
        ]
        gaps[label] = np.array(runs) / horizons_s
    rows, fitted = Rows(), {}
    for label, values in gaps.items():
        strict = label.startswith("strict")
        fitted[label] = exponent(horizons_s, values)
        rows.add(
            "Theorem 1",
            f"exponent of the gap in T: {label}",
            "",
            fitted[label],
            paper=-1.0 if strict else -0.5,
            theory=-1.0 if strict else -0.5,
            note="the theorem is an upper bound: an exponent of at most this",
        )
    steps = sum(KINDS.values())
    label = "equality in (9), d1 = 0"
    scaled = interval((gaps[label][:, -1] * math.sqrt(horizons_s[-1])).tolist())
    rows.add(
        "Theorem 1",
        f"√T · gap: {label}",
        "tokens/√s",
        scaled,
        theory=math.sqrt(2 / math.pi) * steps,
        note="theory: each queue is a reflected random walk with steps of variance 1",
    )
    strict_label = next(one for one in gaps if one.startswith("strict"))
    scaled = interval((gaps[strict_label][:, -1] * horizons_s[-1]).tolist())
    rows.add(
        "Theorem 1",
        f"T · gap: {strict_label}",
        "tokens",
        scaled,
        note=f"at most {bound_tokens():.1f} by appendix B (queues) and the stages (9 tokens' worth of "
        f"requests)",
    )
    return Section(
        title="Convergence of the throughput of WAIT to λ(l' + 1)",
        text=(
            "The same example, thresholds 1 and 1, a cache of exactly M^π = 9 tokens. The gap at T is Σ "
            "λ(l' + 1) minus the tokens, including prompt iterations, of requests complete by T, over T. Its "
            "mean is estimated by the tokens of incomplete requests: same mean, less "
            "noise. "
            f"{len(seeds)} runs, T up to {horizons_s[-1]:,.0f} s; the exponent is the slope in the chart."
        ),
        rows=tuple(rows),
        pictures=(
            Chart(
                title="Throughput of WAIT against the fluid",
                caption="Mean gap with its 99 % interval, both axes logarithmic; the gray lines fall like "
                "1/√T and 1/T.",
                chart=lambda: gap_chart(horizons_s, gaps),
            ),
        ),
        remarks=(
            "**Theorem 1 holds with its rates**: "
            + "; ".join(
                f"{label}: −{-slope.mean:.2f} ± {slope.half_width:.2f}" for label, slope in fitted.items()
            )
            + ".",
            "**The gap consists only of requests in progress**: all arrivals are served slightly later. Any "
            "policy with bounded queues has the rate 1/T; the rate does not rank policies.",
        ),
    )


def bound_tokens() -> float:
    """Upper bound on the mean tokens of incomplete requests: queues by appendix B, and all stages."""
    asked = [
        iq.theory.RequestClass(name=name, rate=STRICT, prompt=1, output=output)
        for name, output in KINDS.items()
    ]
    base_s, per_token_s = BOTH["d1 = 0.05"]
    found = iq.theory.wait_thresholds(
        asked,
        iq.research.MemoryLinear(base=base_s, per_kv_token=per_token_s),
        kv_tokens=KV_TOKENS,
        first_token="prefill",
        thresholds=1,
    )
    total = 0.0
    for one in found.classes:
        assert one.queue_bound is not None
        total += KINDS[one.name] * (one.queue_bound + one.arrivals + one.threshold * one.iterations)
    return total


def queues_chart(instants: NDArray[np.float64], curves: dict[str, list[NDArray[np.float64]]]) -> Any:
    """The queue of type 2 against time, both logarithmic."""
    shown = {
        "FCFS, restarting (A.3)": INK,
        "VllmV1, d1 = 0": BLUE,
        "VllmV1, d1 = 0.05": SKY,
        "SlotGreedy, d1 = 0": GRAY,
        "Wait, d1 = 0": VERMILION,
        "Wait, d1 = 0.05": ORANGE,
    }
    rows = [
        {"policy": label, "t": float(t), "queue": float(q)}
        for label in shown
        for t, q in zip(instants, np.mean(curves[label], axis=0), strict=True)
        if q > 0
    ]
    x = alt.X("t:Q", title="time, steps", scale=alt.Scale(type="log", nice=False), axis=alt.Axis(format="~s"))
    y = alt.Y(
        "queue:Q",
        title="requests of type 2 that wait",
        scale=alt.Scale(type="log", domain=[0.5, CLAIMED * float(instants[-1])], clamp=True),
        axis=alt.Axis(format="~s"),
    )
    lines = (
        alt.Chart(pl.DataFrame(rows))
        .mark_line(strokeWidth=2.5)
        .encode(
            x=x,
            y=y,
            color=colored("policy", shown, orient="right"),
        )
    )
    ends = pl.DataFrame({"t": [float(instants[0]), float(instants[-1])]})
    claim = alt.Chart(ends.with_columns((CLAIMED * pl.col("t")).alias("queue")))
    claim = claim.mark_line(strokeDash=[6, 4], color=INK, strokeWidth=1.5).encode(x=x, y=y)
    place = float(instants[len(instants) // 2])
    label = alt.Chart(pl.DataFrame({"t": [place], "queue": [CLAIMED * place], "text": ["0.3·t (A.3)"]}))
    words = label.mark_text(align="right", dx=-8, dy=-6).encode(x=x, y=y, text="text:N")
    return alt.layer(lines, claim, words).properties(width=520, height=300)


def gap_chart(horizons_s: NDArray[Any], gaps: dict[str, NDArray[Any]]) -> Any:
    """The mean gap against the horizon, both logarithmic, with the two slopes of the theorem."""
    rows, guides = [], []
    for label, values in gaps.items():
        shift = 1.05 if label == list(gaps)[1] else 1.0  # otherwise the first would hide it
        for place, horizon_s in enumerate(horizons_s):
            gap = interval(values[:, place].tolist())
            rows.append(
                {
                    "case": label,
                    "T": float(horizon_s) * shift,
                    "gap": gap.mean,
                    "low": max(gap.low, gap.mean / 3),
                    "high": gap.high,
                }
            )
    for power, label in ((-0.5, next(iter(gaps))), (-1.0, list(gaps)[-1])):
        start = (
            float(gaps[label].mean(axis=0)[len(horizons_s) // 2]) * horizons_s[len(horizons_s) // 2] ** -power
        )
        guides += [
            {"slope": str(power), "T": float(t), "gap": float(start * t**power)} for t in horizons_s[[0, -1]]
        ]
    x = alt.X(
        "T:Q",
        title="horizon T, s",
        scale=alt.Scale(type="log", domain=[200, float(horizons_s[-1]) * 1.25], nice=False),
        axis=alt.Axis(format="~s"),
    )
    y = alt.Y(
        "gap:Q",
        title="λ(l' + 1) − throughput, tokens/s",
        scale=alt.Scale(type="log"),
        axis=alt.Axis(format="~g"),
    )
    color = colored("case", dict(zip(gaps, [VERMILION, ORANGE, BLUE], strict=True)), columns=1)
    frame = pl.DataFrame(rows)
    lines = alt.Chart(pl.DataFrame(guides)).mark_line(color=GRAY, strokeDash=[5, 4], strokeWidth=1.5)
    bars = alt.Chart(frame).mark_rule(strokeWidth=2).encode(x=x, y=alt.Y("low:Q"), y2="high:Q", color=color)
    points = alt.Chart(frame).mark_point(filled=True, opacity=1, size=60).encode(x=x, y=y, color=color)
    return alt.layer(lines.encode(x=x, y=y, detail="slope:N"), bars, points).properties(width=520, height=300)
