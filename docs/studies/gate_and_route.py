"""What does steering by a fluid plan earn? Gate-and-route of lin2026, sections 6.2 and 6.3, by simulation.

    python docs/studies/gate_and_route.py      # prints the tables, writes gate_and_route.svg beside this file

Two classes, prompts of 300 and 3,000 tokens, outputs of 1,000 and 400 on average, half a request of each a
second and replica; who waits gives up after 10 s on average. Services are exponential, the paper's stochastic
model. Plans are the solutions of its linear programs (40) and (42), solved with scipy; revenue is told as a
share of their optimum, which no policy can pass in the long run: its averages satisfy every constraint.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Literal

import polars as pl
import show

import inferq as iq

CLASSES = ("decode-heavy", "prefill-heavy")
STAGES = ("prefill", "mixed", "solo", "prefill_queue", "decode_queue")
SIZES = (5, 20, 50, 200, 500, 2000)
SEEDS = (1, 2, 3, 4, 5)
STUDENT_95 = 2.7764
"""Student's t with 4 degrees of freedom: 95 % lie within this many standard errors."""
WARMUP_S = 500.0
"""Twenty times the mean decode, fifty times the mean patience."""
Scheme = Literal["bundled", "separate"]


def horizon_s(replicas: int) -> float:
    """10,000 s as in the paper, less for large clusters, which need less for as narrow an interval."""
    return min(10_000.0, max(1500.0, 800_000.0 / replicas))


@dataclass(frozen=True)
class Instance:
    """Section 6.2; `slots` is B."""

    slots: int = 16
    chunk: int = 256
    alpha_s: float = 0.0174
    beta_s: float = 6.2e-5
    solo_s: float = 0.022
    prompt: tuple[int, int] = (300, 3000)
    output: tuple[int, int] = (1000, 400)
    rate: tuple[float, float] = (0.5, 0.5)
    impatience: float = 0.1
    prices: tuple[float, float] = (0.1, 0.2)

    @property
    def mixed_s(self) -> float:
        """An iteration beside a prefill."""
        return self.alpha_s + self.beta_s * self.chunk

    def prefill_rate(self, i: int) -> float:
        """μ_p,i."""
        return self.chunk / (self.prompt[i] * self.mixed_s)

    def decode_rate(self, i: int, *, solo: bool) -> float:
        """μ_s,i or μ_m,i."""
        return 1 / (self.output[i] * (self.solo_s if solo else self.mixed_s))

    def worth(self, i: int) -> tuple[float, float]:
        """c_p P_i and c_d D_i."""
        return self.prices[0] * self.prompt[i], self.prices[1] * self.output[i]


@dataclass(frozen=True)
class Plan:
    """A solution of the linear program: its value, and per replica how many are where, by stage and class."""

    optimum: float
    table: dict[str, tuple[float, float]]

    @property
    def allocation(self) -> iq.Allocation:
        """The same for `GateAndRoute`."""
        return iq.Allocation(
            **{name: dict(zip(CLASSES, row, strict=True)) for name, row in self.table.items()}
        )

    def total(self, stage: str) -> float:
        """Over the classes: only these are unique, with x* and q_p*, not their split by class."""
        return sum(self.table[stage])


@cache
def plan(instance: Instance, scheme: Scheme = "bundled") -> Plan:
    """The solution of (40), or of (42), which has the same constraints."""
    from scipy.optimize import linprog

    slots, classes = instance.slots, range(2)
    column = {(stage, i): 2 * s + i for s, stage in enumerate(STAGES) for i in classes}

    def row(terms: dict[tuple[str, int], float]) -> list[float]:
        made = [0.0] * len(column)
        for key, factor in terms.items():
            made[column[key]] = factor
        return made

    def decodes(i: int, factor: float) -> dict[tuple[str, int], float]:
        rates = {stage: instance.decode_rate(i, solo=stage == "solo") for stage in ("mixed", "solo")}
        return {(stage, i): factor * rate for stage, rate in rates.items()}

    earned: dict[tuple[str, int], float] = {}
    for i in classes:
        prefill, decode = instance.worth(i)
        if scheme == "bundled":
            earned |= decodes(i, prefill + decode)
        else:
            earned |= decodes(i, decode) | {("prefill", i): prefill * instance.prefill_rate(i)}
    capacities = [
        {("prefill", i): 1.0 for i in classes},
        {("mixed", i): 1.0 for i in classes} | {("prefill", i): 1.0 - slots for i in classes},
        {("solo", i): 1.0 for i in classes} | {("prefill", i): float(slots) for i in classes},
    ]
    balances = []
    for i in classes:
        through = instance.prefill_rate(i)
        balances.append({("prefill", i): through, ("prefill_queue", i): instance.impatience})
        balances.append({("prefill", i): -through, ("decode_queue", i): instance.impatience} | decodes(i, 1))
    solved = linprog(
        [-factor for factor in row(earned)],
        A_ub=[row(terms) for terms in capacities],
        b_ub=[1, 0, slots],
        A_eq=[row(terms) for terms in balances],
        b_eq=[instance.rate[0], 0, instance.rate[1], 0],
    )
    values = [float(value) for value in solved.x]
    return Plan(
        -float(solved.fun), {stage: (values[2 * s], values[2 * s + 1]) for s, stage in enumerate(STAGES)}
    )


@dataclass(frozen=True)
class Policy:
    """A gate, a router, and the linear program whose plan they follow."""

    gate: str
    router: str
    planned: bool = True
    scheme: Scheme = "bundled"


def cluster(instance: Instance, replicas: int, policy: Policy) -> iq.GateAndRoute:
    """The instance under a policy."""
    return iq.GateAndRoute(
        plan(instance, policy.scheme).allocation,
        replicas=replicas,
        timing=iq.MixedSolo(alpha=instance.alpha_s, beta=instance.beta_s, solo=instance.solo_s),
        slots=instance.slots,
        chunk=instance.chunk,
        prices=iq.Prices(prefill=instance.prices[0], decode=instance.prices[1]),
        abandonment=instance.impatience,
        gate=policy.gate,
        router=policy.router,
        planned=policy.planned,
    )


def requests(instance: Instance, replicas: int, until_s: float, seed: int) -> iq.Workload:
    """Poisson arrivals of both classes beyond the horizon: six standard deviations more than are expected."""
    rate = replicas * sum(instance.rate)
    number = math.ceil(rate * until_s + 6 * math.sqrt(rate * until_s))
    one = iq.Fixed(1)
    law = iq.Workload.law(requests=number, arrivals=iq.Poisson(rate), prompt=one, output=one)
    shares = {name: share / sum(instance.rate) for name, share in zip(CLASSES, instance.rate, strict=True)}
    frame = law.with_classes(shares).draw(seed).frame

    def lengths(of: tuple[int, int]) -> pl.Expr:
        return pl.col("class").replace_strict(dict(zip(CLASSES, of, strict=True)), return_dtype=pl.Int32)

    return iq.Workload(
        frame.with_columns(
            lengths(instance.prompt).alias("prompt_tokens"), lengths(instance.output).alias("output_tokens")
        )
    )


Measured = dict[str, float]


def measure(instance: Instance, replicas: int, policy: Policy, until_s: float, seed: int) -> Measured:
    """Revenue a replica and second, and how many are where, per replica, by stage and class and in all."""
    workload, made = requests(instance, replicas, until_s, seed), cluster(instance, replicas, policy)
    result = iq.simulate(workload, made, horizon_s=until_s, warmup=f"{WARMUP_S}s", seed=seed)
    last = result.revenue.row(-1, named=True)
    found = {name: last[f"{name}_per_replica_s"] for name in ("bundled", "separate")}
    for stage in STAGES:
        column = result.occupancy[stage].to_list()
        found |= {stage: sum(column), **{f"{stage} {i}": value for i, value in enumerate(column)}}
    return found


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds and the half-width of its 95 % interval."""

    mean: float
    half: float

    def __str__(self) -> str:
        return f"{self.mean:.4f} ± {self.half:.4f}"

    def over(self, divisor: float) -> Estimate:
        """The same as a share."""
        return Estimate(self.mean / divisor, self.half / divisor)


def estimates(runs: list[Measured]) -> dict[str, Estimate]:
    """Of everything that was measured in the runs of `SEEDS`."""
    factor = STUDENT_95 / math.sqrt(len(SEEDS))
    return {
        name: Estimate(fmean(run[name] for run in runs), factor * stdev(run[name] for run in runs))
        for name in runs[0]
    }


@cache
def estimated(instance: Instance, replicas: int, policy: Policy) -> dict[str, Estimate]:
    """A policy on so many replicas."""
    until_s = horizon_s(replicas)
    return estimates([measure(instance, replicas, policy, until_s, seed) for seed in SEEDS])


GREEDY = Policy("occupancy", "greedy")
SLI_AWARE = Policy("occupancy", "randomised")
PRIORITY = Policy("priority", "greedy", scheme="separate")


def convergence(instance: Instance, sizes: tuple[int, ...] = SIZES) -> pl.DataFrame:
    """Revenue over the optimum against n: gate-and-route both ways, prioritise-and-route separately."""
    bundled, separate = plan(instance), plan(instance, "separate")
    rows = []
    for n in sizes:
        greedy, first = estimated(instance, n, GREEDY), estimated(instance, n, PRIORITY)
        shares = {
            "gate-and-route, bundled": greedy["bundled"].over(bundled.optimum),
            "gate-and-route, separate": greedy["separate"].over(separate.optimum),
            "prioritise-and-route, separate": first["separate"].over(separate.optimum),
        }
        rows += [
            {"B": instance.slots, "n": n, "measure": name, "share": share.mean, "half": share.half}
            for name, share in shares.items()
        ]
    return pl.DataFrame(rows)


def occupancies(instance: Instance, sizes: tuple[int, ...] = (50, 500, 2000)) -> pl.DataFrame:
    """How many are where against the plan, in all and for the decodes by class, under both routers."""
    names = [*STAGES, *(f"{stage} {i}" for stage in ("mixed", "solo") for i in (0, 1))]
    target = plan(instance)
    wanted = {stage: target.total(stage) for stage in STAGES}
    wanted |= {f"{s} {i}": target.table[s][i] for s in ("mixed", "solo") for i in (0, 1)}
    columns: dict[str, list[str]] = {"per replica": names, "plan": [f"{wanted[name]:.4f}" for name in names]}
    for router, policy in (("greedy", GREEDY), ("SLI-aware", SLI_AWARE)):
        for n in sizes:
            found = estimated(instance, n, policy)
            columns[f"{router}, n = {n:,}"] = [str(found[name]) for name in names]
    return pl.DataFrame(columns)


POLICIES = {
    "GG-SP, occupancy gate": GREEDY,
    "GG-SP, queue gate": Policy("queue", "greedy"),
    "FG-SP": Policy("fcfs", "greedy"),
    "GF-WSP, occupancy gate": Policy("occupancy", "fcfs", planned=False),
    "GF-WSP, queue gate": Policy("queue", "fcfs", planned=False),
    "GI-WSP, occupancy gate": Policy("occupancy", "immediate", planned=False),
    "GI-WSP, queue gate": Policy("queue", "immediate", planned=False),
    "FI-WSP (Sarathi)": Policy("fcfs", "immediate", planned=False),
}


def policies(instance: Instance, replicas: int) -> pl.DataFrame:
    """Both revenues of the policies of section 6.3 over their optima."""
    optima = {
        "bundled": plan(instance).optimum,
        "separate": plan(instance, "separate").optimum,
    }
    rows = []
    for name, policy in POLICIES.items():
        found = estimated(instance, replicas, policy)
        for scheme, optimum in optima.items():
            share = found[scheme].over(optimum)
            rows.append(
                {
                    "B": instance.slots,
                    "n": replicas,
                    "policy": name,
                    "scheme": scheme,
                    "share": share.mean,
                    "half": share.half,
                }
            )
    return pl.DataFrame(rows)


def written(frame: pl.DataFrame, down: str, across: str) -> str:
    """A long frame as a table of estimates: one row for each `down`, one column for each `across`."""
    cell = pl.struct("share", "half").map_elements(
        lambda pair: f"{pair['share']:.4f} ± {pair['half']:.4f}", return_dtype=pl.String
    )
    return show.table(frame.with_columns(cell.alias("cell")).pivot(across, index=down, values="cell"))


LOWEST = {16: 0.92, 8: 0.6}
"""Where the axis of a share begins, by B."""


def chart(converging: pl.DataFrame, compared: pl.DataFrame, path: Path) -> None:
    """Above: revenue over the optimum against n. Below: the policies of section 6.3. A column for each B."""
    import altair as alt

    bounds = [
        (pl.col("share") - pl.col("half")).alias("low"),
        (pl.col("share") + pl.col("half")).alias("high"),
    ]
    looks = {
        "gate-and-route, bundled": show.BLUE,
        "gate-and-route, separate": show.SKY,
        "prioritise-and-route, separate": show.ORANGE,
    }
    schemes = {"bundled": show.BLUE, "separate": show.SKY}

    def colour(column: str, of: dict[str, str], **legend: object) -> alt.Color:
        scale = alt.Scale(domain=list(of), range=list(of.values()))
        return alt.Color(f"{column}:N", title=None, scale=scale, legend=alt.Legend(orient="bottom", **legend))

    def curves(slots: int) -> alt.LayerChart:
        scale, axis = alt.Scale(domain=[LOWEST[slots], 1.01], nice=False), alt.Axis(format=".0%", tickCount=6)
        base = alt.Chart(converging.filter(pl.col("B") == slots).with_columns(bounds)).encode(
            x=alt.X(
                "n:Q",
                title="replicas n",
                scale=alt.Scale(type="log", domain=[4, 2500], nice=False),
                axis=alt.Axis(values=list(SIZES), format=",d", grid=False),
            ),
            color=colour("measure", looks, columns=3, symbolType="stroke", symbolSize=400),
        )
        height = alt.Y("share:Q", title=None, scale=scale, axis=axis)
        optimum = alt.Chart(pl.DataFrame({"share": [1.0]})).mark_rule(color=show.INK, strokeDash=[2, 2])
        lines = base.mark_line(strokeWidth=2.5, point=alt.OverlayMarkDef(size=40, filled=True))
        bars = base.mark_rule(strokeWidth=1.5).encode(y=alt.Y("low:Q", scale=scale), y2="high:Q")
        layers = alt.layer(optimum.encode(y=height), bars, lines.encode(y=height))
        return layers.properties(width=400, height=230, title=f"Revenue over the optimum, B = {slots}")

    def dots(slots: int, replicas: int) -> alt.LayerChart:
        scale, axis = alt.Scale(domain=[LOWEST[slots], 1.01], nice=False), alt.Axis(format=".0%", tickCount=6)
        base = alt.Chart(compared.filter(pl.col("B") == slots).with_columns(bounds)).encode(
            y=alt.Y(
                "policy:N",
                title=None,
                sort=list(POLICIES),
                axis=alt.Axis(labelLimit=220, grid=True, tickSize=0),
            ),
            color=colour("scheme", schemes, columns=2, symbolType="circle"),
        )
        along = alt.X("share:Q", title=None, scale=scale, axis=axis)
        optimum = alt.Chart(pl.DataFrame({"share": [1.0]})).mark_rule(color=show.INK, strokeDash=[2, 2])
        bars = base.mark_rule(strokeWidth=1.5).encode(x=alt.X("low:Q", scale=scale), x2="high:Q")
        marks = base.mark_point(size=70, filled=True, opacity=1).encode(x=along)
        layers = alt.layer(optimum.encode(x=along), bars, marks)
        return layers.properties(width=400, height=230, title=f"Policies, B = {slots}, n = {replicas:,}")

    above = [curves(slots) for slots in converging["B"].unique(maintain_order=True)]
    below = [dots(*both) for both in compared.select("B", "n").unique(maintain_order=True).iter_rows()]
    rows = [alt.hconcat(*row, spacing=28).resolve_scale(color="shared") for row in (above, below)]
    show.save(alt.vconcat(*rows, spacing=24).resolve_scale(color="independent"), path)


def report(run: Callable[[str], None] = print) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Everything, told to `run`; the frames of the picture."""
    wide, narrow = Instance(), replace(Instance(), slots=8)
    for instance in (wide, narrow):
        bundled, separate = plan(instance), plan(instance, "separate")
        run(f"B = {instance.slots}: R* = {bundled.optimum:.2f}, separate {separate.optimum:.2f}; Σ by stage:")
        run(
            str(
                {stage: (round(bundled.total(stage), 4), round(separate.total(stage), 4)) for stage in STAGES}
            )
        )
        run(f"x* = {bundled.table['prefill']}, q_p* = {bundled.table['prefill_queue']}")
    converging = pl.concat([convergence(wide), convergence(narrow)])
    for slots, rows in converging.group_by("B", maintain_order=True):
        run(f"B = {slots[0]}\n{written(rows, 'n', 'measure')}")
    run(show.table(occupancies(wide)))
    compared = pl.concat([policies(wide, 500), policies(narrow, 200)])
    joined = compared.with_columns(pl.format("{}, B = {}, n = {}", "scheme", "B", "n").alias("column"))
    run(written(joined, "policy", "column"))
    return converging, compared


if __name__ == "__main__":
    chart(*report(), Path(__file__).with_suffix(".svg"))
