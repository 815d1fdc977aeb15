"""When do queues grow under nie2026, which slot does its formula need, and how many replicas?"""

from __future__ import annotations

import polars as pl

import inferq as iq
from inferq.theory import observed
from inferq_papers.nie2026 import pictures, runs
from inferq_papers.nie2026.runs import MEMORY_TOKENS, REPLICAS, SETTINGS, Setting, Sizes
from inferq_papers.report import Chart, Rows, Section, Table, interval

RATE = "requests/s"

PRINTED_QUEUE = {1: 5, REPLICAS: 13}
"""By the number of replicas, how many wait at most below the limit ("usually"), sections 5.2 and 5.3."""
CALM_PER_REPLICA, GROWING_PER_REPLICA = (1.0, 3.0), (5.0, 20.0, 50.0)
SHOWN_S = 400.0


def queues(sizes: Sizes) -> Section:
    """Figures 2 and 4: growth, and the queue below the limit."""
    limit = SETTINGS["1:1"].capacity()
    rows = Rows()
    shown = []
    verdicts = []
    for replicas, figure in ((1, "Figure 2"), (REPLICAS, "Figure 4")):
        mu, whole = replicas * limit.mu, replicas * limit.mu_whole_chunks
        most = PRINTED_QUEUE[replicas]
        drawn: dict[float, pl.DataFrame] = {}
        arrivals = sizes.arrivals if replicas == 1 else sizes.arrivals // 4
        for each in (*CALM_PER_REPLICA, *GROWING_PER_REPLICA):
            rate = replicas * each
            until_s = max(arrivals / each, 2 * runs.WARM_UP_S)
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
            verdicts.append((each < limit.mu, verdict))
            growth, calm = interval(growths), each in CALM_PER_REPLICA
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
                    "paper has a picture alone"
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
                    note='"usually upper bounded": no share is printed, and how long they ran neither'
                    if replicas == 1
                    else '"upper bounded": how long they ran is not printed',
                )
        shown.append(_queue_picture(figure, replicas, drawn, mu, most))
    agree = sum(verdict == ("stable" if calm else "unstable") for calm, verdict in verdicts)
    unknown = sum(verdict == "unknown" for _, verdict in verdicts)
    return Section(
        title="When does the queue grow?",
        text="Lengths 1:1. Growth is what came less what left, per second, from 200 s to the last arrival. "
        "`iq.theory.observed` judges the first of the runs by itself.",
        rows=tuple(rows),
        pictures=tuple(shown),
        remarks=(
            f"**Below μ nothing grows, above it the queue grows by λ − μ.** Of {len(verdicts)} verdicts "
            f'{agree} are the theory\'s, {unknown} are "unknown" and '
            f"{len(verdicts) - agree - unknown} are wrong.",
            "**At λ = 3 the load is 0.92**, so a queue of more than 5 is no rare event in a long run: "
            '"usually upper bounded by 5" holds most of the time.',
        ),
    )


def _queue_picture(
    figure: str, replicas: int, drawn: dict[float, pl.DataFrame], mu: float, most: int
) -> Chart:
    shown = {rate: frame.filter(pl.col("time_s") <= SHOWN_S) for rate, frame in drawn.items()}
    calm = {rate: frame for rate, frame in shown.items() if rate < mu}
    growing = {rate: frame for rate, frame in shown.items() if rate > mu}
    fleet = "one replica" if replicas == 1 else f"{replicas} replicas together"
    return Chart(
        title=f"Requests that wait, {fleet} ({figure})",
        caption=f"Dotted: the paper's bound of {most}. Dashed: (λ − μ)·t.",
        chart=lambda: pictures.queues(calm, growing, mu, most),
    )


def averages(sizes: Sizes) -> Section:
    """μ by each estimator of the slot where iterations differ in length."""
    ratios: list[Setting] = [*SETTINGS.values(), runs.eight_to_one(0.05)]
    frame = pl.DataFrame(
        [runs.estimated(setting, policy, sizes.policies) for policy in runs.POLICIES for setting in ratios]
    )
    names = list(runs.ESTIMATORS)
    rows = frame.to_dicts()
    full = [one for one in rows if one["memory used"] > 0.95]
    starved = [one for one in rows if one["memory used"] <= 0.95]
    off = max(abs(one["μ, mean"] - 1) for one in full)
    medians = sorted(one["μ, median"] for one in full)
    remarks = [
        "**The mean is the right average.** Memory is supplied slot by slot, and a second has 1/mean slots. "
        f"Where memory is the limit, μ with the mean slot is within {100 * off:.1f} % of what is served, "
        "under vLLM's policy too, whose preemptions cost a recomputation.",
        f"**The others fit by luck.** With the median μ is {medians[0]:.2f} to {medians[-1]:.2f} times what "
        "is served, and leaving out the longest 5 % or 10 % of the slots helps only in part: long slots "
        "do take their time.",
    ]
    if starved:
        held = max(one["memory used"] for one in starved)
        cases = " and ".join(f"{one['lengths']} under {one['policy']}" for one in starved)
        remarks.append(
            f"**Memory is not always the limit.** {cases}: {100 * held:.0f} % of the memory is "
            "used, because batches of so few tokens do not compute prompts fast enough; μ, "
            f"{max(one['μ, mean'] for one in starved):.2f} times what is served, is an upper bound and no "
            "more. `iq.theory.token_capacity` has the limit that binds."
        )
    decimals = {"served": 3, "memory used": 3}
    decimals |= {f"slot, {name}": 1 for name in names} | {f"μ, {name}": 3 for name in names}
    return Section(
        title="Which average of the slot is b̄?",
        text="The paper takes the median of the GPU's slots, for long prompts a mean without the longest "
        "5 or 10 %. Here iterations differ in length: 12 ms, 75 µs for each token beyond 160, 64 ns for each "
        "token of context, and the prompts' attention, about Llama-3-8B on an A100 (chosen, not measured). "
        "λ = 20, one long run; b̄ is estimated from the iterations with a backlog of that run.",
        tables=(
            Table(
                title="μ over whole chunks by estimator of b̄, over what is served",
                frame=frame,
                decimals=decimals,
                note="Slots in ms; μ as a multiple of the requests per second that were served.",
            ),
        ),
        pictures=(
            Chart(
                title="μ over what is served, by the average that is taken for b̄",
                caption="At 1 the formula is right. " + ", ".join(runs.POLICIES),
                chart=lambda: pictures.estimators(frame, names),
            ),
        ),
        remarks=tuple(remarks),
    )


def fleet(sizes: Sizes) -> Section:
    """⌈λ/(μρ)⌉ and what fleets of about that size do."""
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
        title="How many replicas does a rate need?",
        text=f"λ = {rate:g} a second, lengths 1:1, behind round robin. ⌈λ/μ⌉ = {least.replicas} is the least "
        f"number that can be stable, ⌈λ/(μρ)⌉ = {planned.replicas} that with ρ = 90 % (section 4), which "
        f"carries up to {planned.target_per_s:.2f} a second at that load. One run of {until_s:,.0f} s.",
        tables=(
            Table(
                title="Fleets of each size",
                frame=frame,
                decimals={"load": 3, "growth, theory": 3, "growth, found": 3, "waiting, mean": 1},
                note="Growth in requests per second over the fleet, waiting in requests.",
            ),
        ),
        remarks=(
            f"**One replica less than ⌈λ/μ⌉ drowns**, as Theorem 4.1 says. {least.replicas} have a load of "
            f"{least.load:.2f}: stable, with a queue. ρ buys a short queue and no more throughput.",
        ),
    )
