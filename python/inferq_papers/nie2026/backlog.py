"""Queue growth, slot estimators and fleet sizes of nie2026."""

from __future__ import annotations

import polars as pl

import inferq as iq
from inferq.theory import observed
from inferq_papers.nie2026 import pictures, runs
from inferq_papers.nie2026.runs import MEMORY_TOKENS, REPLICAS, SETTINGS, Setting, Sizes
from inferq_papers.report import Chart, Rows, Section, Table, interval

RATE = "requests/s"

PRINTED_QUEUE = {1: 5, REPLICAS: 13}
"""Largest queue below the limit ("usually"), by number of replicas; sections 5.2 and 5.3."""
CALM_PER_REPLICA, GROWING_PER_REPLICA = (1.0, 3.0), (5.0, 20.0, 50.0)
SHOWN_S = 400.0


def queues(sizes: Sizes) -> Section:
    """Figures 2 and 4: queue growth, and the queue below the limit."""
    limit = SETTINGS["1:1"].capacity()
    rows = Rows()
    shown = []
    verdicts = []
    for replicas, figure in ((1, "Figure 2"), (REPLICAS, "Figure 4")):
        mu, whole = replicas * limit.mu, replicas * limit.mu_whole_chunks
        most = PRINTED_QUEUE[replicas]
        drawn: dict[float, pl.DataFrame] = {}
        arrivals = sizes.arrivals if replicas == 1 else sizes.arrivals // 4
        for per_replica in (*CALM_PER_REPLICA, *GROWING_PER_REPLICA):
            rate = replicas * per_replica
            until_s = max(arrivals / per_replica, 2 * runs.WARM_UP_S)
            growths, within = [], []
            verdict = ""
            for seed in range(1, sizes.seeds + 1):
                result = runs.queue_run(rate, replicas, until_s, seed)
                growths.append(runs.growth_per_s(result, until_s))
                waits = runs.waiting(result)
                within.append(float((waits["waiting"] <= most).sum()) / waits.height)
                if seed == 1:
                    drawn[rate] = waits
                    verdict = observed(result).verdict
            verdicts.append((per_replica < limit.mu, verdict))
            growth, calm = interval(growths), per_replica in CALM_PER_REPLICA
            rows.add(
                f"{figure}, λ = {rate:g}",
                "growth of the queue",
                RATE,
                growth,
                theory=0.0 if calm else rate - whole,
                note=f"observed in one run of {rate * until_s:,.0f} requests: {verdict}. "
                + (
                    "λ < (1 − δ)·μ: no growth"
                    if calm
                    else f"Theory: λ − μ over whole chunks; at least λ − μ = {rate - mu:.3f}, at most "
                    f"λ − (1 − δ)·μ = {rate - replicas * (limit.stable_below_per_s or 0.0):.3f}. The "
                    "paper has only a chart"
                ),
            )
            if calm:
                share = interval(within)
                rows.add(
                    f"{figure}, λ = {rate:g}",
                    f"time with at most {most} waiting",
                    "share",
                    share,
                    paper=1.0,
                    note='"usually upper bounded": neither the share nor the duration is printed'
                    if replicas == 1
                    else '"upper bounded": the duration is not printed',
                )
        shown.append(_queue_chart(figure, replicas, drawn, mu, most))
    agree = sum(verdict == ("stable" if calm else "unstable") for calm, verdict in verdicts)
    unknown = sum(verdict == "unknown" for _, verdict in verdicts)
    return Section(
        title="Queue growth",
        text="Lengths 1:1. Growth is arrivals minus departures per second, from 200 s to the last arrival. "
        "`iq.theory.observed` evaluates only the first run.",
        rows=tuple(rows),
        pictures=tuple(shown),
        remarks=(
            f"**Below μ the queue does not grow; above μ it grows by λ − μ.** Of {len(verdicts)} verdicts "
            f'{agree} agree with the theory, {unknown} are "unknown" and '
            f"{len(verdicts) - agree - unknown} are wrong.",
            "**At λ = 3 the load is 0.92**, so a queue of more than 5 is not rare in a long run: "
            '"usually upper bounded by 5" holds most of the time.',
        ),
    )


def _queue_chart(figure: str, replicas: int, drawn: dict[float, pl.DataFrame], mu: float, most: int) -> Chart:
    shown = {rate: frame.filter(pl.col("time_s") <= SHOWN_S) for rate, frame in drawn.items()}
    calm = {rate: frame for rate, frame in shown.items() if rate < mu}
    growing = {rate: frame for rate, frame in shown.items() if rate > mu}
    fleet = "one replica" if replicas == 1 else f"{replicas} replicas together"
    return Chart(
        title=f"Waiting requests, {fleet} ({figure})",
        caption=f"Dotted: the paper's bound of {most}. Dashed: (λ − μ)·t.",
        chart=lambda: pictures.queues(calm, growing, mu, most),
    )


def averages(sizes: Sizes) -> Section:
    """μ by each estimator of the slot for iterations of different durations."""
    ratios: list[Setting] = [*SETTINGS.values(), runs.eight_to_one(0.05)]
    frame = pl.DataFrame(
        [runs.estimated(setting, policy, sizes.policies) for policy in runs.POLICIES for setting in ratios]
    )
    names = list(runs.ESTIMATORS)
    rows = frame.to_dicts()
    full = [row for row in rows if row["memory used"] > 0.95]
    starved = [row for row in rows if row["memory used"] <= 0.95]
    off = max(abs(row["μ, mean"] - 1) for row in full)
    medians = sorted(row["μ, median"] for row in full)
    remarks = [
        "**The mean is the correct average.** Memory is available per slot, and a second has 1/mean slots. "
        f"If memory is the limit, μ with the mean slot is within {100 * off:.1f} % of the served rate, "
        "also under vLLM's policy, in which preemptions cost a recomputation.",
        f"**Other averages fit only by chance.** With the median, μ is {medians[0]:.2f} to {medians[-1]:.2f} "
        "times the served rate. Leaving out the longest 5 % or 10 % of the slots helps only in part, because "
        "long slots use time as well.",
    ]
    if starved:
        used = max(row["memory used"] for row in starved)
        cases = " and ".join(f"{row['lengths']} under {row['policy']}" for row in starved)
        remarks.append(
            f"**Memory is not always the limit.** {cases}: {100 * used:.0f} % of the memory is "
            "used, because such small batches do not compute prompts fast enough; μ, "
            f"{max(row['μ, mean'] for row in starved):.2f} times the served rate, is only an upper "
            "bound. `iq.theory.token_capacity` computes the binding limit."
        )
    decimals = {"served": 3, "memory used": 3}
    decimals |= {f"slot, {name}": 1 for name in names} | {f"μ, {name}": 3 for name in names}
    return Section(
        title="Estimators of the slot b̄",
        text="The paper takes the median of the GPU's slots, for long prompts a mean without the longest "
        "5 or 10 %. Here iterations differ in duration: 12 ms, 75 µs for each token beyond 160, 64 ns for "
        "each token of context, and the prompts' attention, about Llama-3-8B on an A100 (chosen, not "
        "measured). λ = 20, one long run; b̄ is estimated from its iterations with a backlog.",
        tables=(
            Table(
                title="μ over whole chunks by estimator of b̄, relative to the served rate",
                frame=frame,
                decimals=decimals,
                note="Slots in ms; μ relative to the served requests per second.",
            ),
        ),
        pictures=(
            Chart(
                title="μ relative to the served rate, by estimator of b̄",
                caption="At 1 the formula is exact. " + ", ".join(runs.POLICIES),
                chart=lambda: pictures.estimators(frame, names),
            ),
        ),
        remarks=tuple(remarks),
    )


def fleet(sizes: Sizes) -> Section:
    """⌈λ/(μρ)⌉ and runs of fleets of about that size."""
    rate, setting = 40.0, SETTINGS["1:1"]
    workload = setting.workload(rate, 1)

    def needed(utilization: float) -> iq.theory.ReplicasNeeded:
        return iq.theory.replicas_needed(
            workload,
            kv_tokens=MEMORY_TOKENS,
            slot_s=setting.slot_s,
            utilization=utilization,
            first_token="decode",
        )

    least, planned = needed(1.0), needed(0.9)
    until_s = sizes.arrivals / 4
    rows = []
    for replicas in range(least.replicas - 1, planned.replicas + 1):
        result = runs.queue_run(rate, replicas, until_s, seed=1)
        waits = runs.waiting(result)["waiting"]
        rows.append(
            {
                "replicas": replicas,
                "load": rate / (replicas * planned.replica.mu),
                "growth, theory": max(0.0, rate - replicas * planned.replica.mu_whole_chunks),
                "growth, found": runs.growth_per_s(result, until_s),
                "waiting, mean": float(waits.to_numpy().mean()),
                "observed": observed(result).verdict,
            }
        )
    frame = pl.DataFrame(rows)
    return Section(
        title="Number of replicas for a rate",
        text=f"λ = {rate:g} per second, lengths 1:1, behind round robin. ⌈λ/μ⌉ = {least.replicas} is the "
        f"smallest stable number, ⌈λ/(μρ)⌉ = {planned.replicas} the number for ρ = 90 % (section 4), which "
        f"serves up to {planned.target_per_s:.2f} per second at that load. One run of {until_s:,.0f} s.",
        tables=(
            Table(
                title="Fleets of each size",
                frame=frame,
                decimals={"load": 3, "growth, theory": 3, "growth, found": 3, "waiting, mean": 1},
                note="Growth in requests per second over the fleet, waiting in requests.",
            ),
        ),
        remarks=(
            f"**With one replica less than ⌈λ/μ⌉ the fleet is unstable**, as in Theorem 4.1. "
            f"{least.replicas} have a load of {least.load:.2f}: stable, with a queue. ρ shortens the queue "
            "but adds no throughput.",
        ),
    )
