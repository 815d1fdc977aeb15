"""How should a fleet be divided between prefill and decode, and between the classes, to earn most?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, get_args

from inferq.checks import shown, whole, within
from inferq.description import Table
from inferq.errors import ConfigError
from inferq.systems.gate_and_route import Allocation, GateAndRoute, Planned
from inferq.systems.prices import Prices
from inferq.theory.demands.demand import MOST_RATE, Demand, WorkloadLike
from inferq.theory.gate_and_route.steady_state import (
    STAGES,
    FleetClass,
    FleetProgram,
    Held,
    Optimum,
    Scheme,
    divided,
    dual_gap,
    revenue,
    solved,
    spread,
    within_one,
)
from inferq.theory.statement import Hypothesis, Statement, hypotheses_text, number
from inferq.timing import MixedSolo
from inferq.workload.workload import Workload

_MOST_COUNT = 2**24
"""Slots, tokens of a chunk, replicas: no cluster of `GateAndRoute` has more."""
_MOST_AMOUNT = 1e9
"""Of a limit or penalty: 30 years of seconds, more prefills or decodes than there are slots."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AllocationPlan(Statement, Planned):
    """The steady state that earns most: how many requests of each class a replica should hold, and where.

    `GateAndRoute` takes it as it takes an `Allocation`. All occupancies are per replica, by class, and empty
    where there is no plan (`feasible` is False and `reason` says why).

    **What is unique.** At an optimum x*, q_p* and, where decode slots bind, Σ y_m* and Σ y_s* are; how the
    decodes are divided among the classes is not, nor q_d* in the separate scheme. The choice here: solo slots
    are filled first, every class has the same share of its tokens decoded there, and with the separate
    scheme every class that gives up has the same share of its tokens lost in the decode queue. Where decode
    fairness is asked, the solver's division is moved towards that one as far as its spread allows. So all but
    x* and q_p* follow from totals; where x* is not unique either (two classes alike), the solver's is taken.
    """

    source: ClassVar[str] = "lin2026 (40), (42), (43)–(49)"

    scheme: Scheme
    replicas: int
    slots: int
    chunk: int
    timing: MixedSolo
    prices: Prices
    classes: tuple[FleetClass, ...]
    """λ_i, P_i, D_i and θ_i, rates per replica."""
    decode_queue: bool
    """Whether the plan may keep requests waiting for their decode."""
    prefill_fairness: float | None
    decode_fairness: float | None
    tpot_limit_s: float | None
    prefill_fairness_penalty: float
    decode_fairness_penalty: float
    tpot_penalty: float
    feasible: bool
    reason: str
    """Why there is no plan; empty where there is one."""
    feasible_share: float | None
    """The largest share, up to 1, of all rates for which there is a plan; None if there is none for any."""
    revenue_per_replica_s: float | None
    """R*, money per replica and second, penalties not taken off."""
    penalty_per_replica_s: float | None
    """What (44), (46) and (48) take off the objective."""
    prefill: Mapping[str, float]
    """x_i*, prefills under way."""
    mixed: Mapping[str, float]
    """y_m,i*, decodes beside a prefill."""
    solo: Mapping[str, float]
    """y_s,i*, decodes on a replica that runs no prefill."""
    prefill_queue: Mapping[str, float]
    """q_p,i*, requests that wait for their prefill."""
    decode_queue_held: Mapping[str, float]
    """q_d,i*, requests that wait for their decode."""
    shadow_prices: tuple[ShadowPrice, ...]
    duality_gap: float | None
    """|primal − dual| objective as a share of the objective, or of what the best class can pay if more."""
    hypotheses: tuple[Hypothesis, ...]

    @property
    def allocation(self) -> Allocation:
        """The plan as `GateAndRoute` takes it.

        Raises:
            ConfigError: there is no plan, or a number beyond those of an `Allocation`.
        """
        if not self.feasible:
            raise ConfigError("allocation", f"infeasible: {self.reason}")
        return Allocation(
            prefill=within_one(self.prefill),
            mixed=self.mixed,
            solo=self.solo,
            prefill_queue=self.prefill_queue,
            decode_queue=self.decode_queue_held,
        )

    def check_planned_for(self, cluster: GateAndRoute) -> None:
        """Refuse a cluster that is not the one that the plan is for.

        Raises:
            ConfigError: naming the field with the value of the cluster and that of the plan.
        """
        for name in ("timing", "slots", "chunk", "prices"):
            given, planned = getattr(cluster, name), getattr(self, name)
            if given != planned:
                raise ConfigError(
                    name,
                    f"is {given!r}, but the plan is for {planned!r}; solve it anew, or give "
                    "plan.allocation, which fits any",
                )
        leaving = cluster.abandonment
        for one in self.classes:
            rate = (leaving.get(one.name) if isinstance(leaving, Mapping) else leaving) or 0.0
            if rate != one.abandonment_per_s:
                raise ConfigError(
                    "abandonment",
                    f"is {rate!r} for class {one.name!r}, but the plan is for "
                    f"{one.abandonment_per_s!r}; solve it anew, or give plan.allocation, which fits any",
                )

    @property
    def mixed_s(self) -> float:
        """τ = α + βC, seconds of an iteration with a chunk."""
        return self.timing.alpha + self.timing.beta * self.chunk

    @property
    def objective_per_replica_s(self) -> float | None:
        """Revenue less penalties."""
        if self.revenue_per_replica_s is None or self.penalty_per_replica_s is None:
            return None
        return self.revenue_per_replica_s - self.penalty_per_replica_s

    @property
    def prefill_use(self) -> float:
        """Σx*: the share of the places for a prefill, one in each replica, in use; 0 without a plan."""
        return math.fsum(self.prefill.values())

    @property
    def mixed_use(self) -> float:
        """Σy_m* / ((B − 1)Σx*): the share of the slots beside a prefill in use; 0 if there are none."""
        places = (self.slots - 1) * self.prefill_use
        return math.fsum(self.mixed.values()) / places if places else 0.0

    @property
    def solo_use(self) -> float:
        """Σy_s* / (B(1 − Σx*)): the same of the slots of replicas without a prefill."""
        places = self.slots * (1 - self.prefill_use)
        return math.fsum(self.solo.values()) / places if places > 0 else 0.0

    @property
    def tpot_s(self) -> float | None:
        """The left side of (47): the mean iteration over all decode slots, used or not; None for no plan."""
        return _program(self).tpot(self.prefill_use) if self.feasible else None

    @property
    def prefill_spread(self) -> float:
        """S(x*), the left side of (43); 0 without a plan."""
        return spread(self.prefill.values())

    @property
    def solo_spread(self) -> float:
        """S(y_s*), the left side of (45); 0 without a plan."""
        return spread(self.solo.values())

    @property
    def binding(self) -> tuple[str, ...]:
        """The limits that bind, by their names among the shadow prices, balances left out."""
        return tuple(one.constraint for one in self.shadow_prices if one.binds and one.request_class is None)

    def price(self, constraint: str, request_class: str | None = None) -> float:
        """The shadow price of a constraint.

        Raises:
            ConfigError: the plan has no such constraint.
        """
        for one in self.shadow_prices:
            if (one.constraint, one.request_class) == (constraint, request_class):
                return one.price
        known = ", ".join(dict.fromkeys(repr(one.constraint) for one in self.shadow_prices))
        raise ConfigError(
            "constraint", f"the plan has no {constraint!r} of {request_class!r} (known: {known or 'none'})"
        )

    def explain(self) -> str:
        """The program with its numbers, the optimum, what binds and what each constraint is worth."""
        rest = _optimum_lines(self) if self.feasible else _no_plan_lines(self)
        return "\n".join([*_program_lines(self), *rest])


def allocation(
    workload: WorkloadLike,
    *,
    timing: MixedSolo,
    slots: int,
    chunk: int,
    prices: Prices,
    replicas: int = 1,
    scheme: Scheme = "bundled",
    abandonment: float | Mapping[str, float] | None = None,
    decode_queue: bool | None = None,
    prefill_fairness: float | None = None,
    decode_fairness: float | None = None,
    tpot_s: float | None = None,
    prefill_fairness_penalty: float = 0.0,
    decode_fairness_penalty: float = 0.0,
    tpot_penalty: float = 0.0,
    rate: float | None = None,
    seed: int = 0,
) -> AllocationPlan:
    r"""The steady state of a fleet under gate and route that earns most, a linear program solved by HiGHS.

    Per replica, over x_i (in prefill), y_m,i (in decode beside a prefill), y_s,i (in decode without one),
    q_p,i and q_d,i (waiting for prefill, for decode), all ≥ 0:

    - maximize `bundled` Σ (c_p P_i + c_d D_i)(μ_m,i y_m,i + μ_s,i y_s,i), a request pays when it is finished,
      or `separate` c_p (C/τ) Σx_i + (c_d/τ) Σy_m,i + c_d γ Σy_s,i, each stage pays when it is done,
    - Σx_i ≤ 1, Σy_m,i ≤ (B − 1)Σx_i, Σy_s,i ≤ B(1 − Σx_i): one prefill and B requests at most,
    - λ_i = μ_p,i x_i + θ_i q_p,i and μ_p,i x_i = μ_m,i y_m,i + μ_s,i y_s,i + θ_i q_d,i: in equals out,

    with μ_p,i = C/(P_i τ), μ_m,i = 1/(D_i τ), μ_s,i = γ/D_i, τ = α + βC. A class enters by its mean lengths
    alone: all terms are linear in them. In the long run no policy earns more with any number of replicas,
    because its averages satisfy every constraint; gate-and-route comes near as the number grows (Theorems 2
    to 4, for Poisson arrivals and exponential services and patience).

    **Limits and penalties** (SLIs, (43) to (48)). With S(v) = max v_i − min v_i, prefill fairness is
    S(x) ≤ η_1, decode fairness S(y_s) ≤ η_2, either with q_d = 0. The TPOT limit is
    (τ(B − 1)Σx + B(1 − Σx)/γ) / (B − Σx) ≤ η_3; the denominator is positive, so it multiplies out to the
    linear (τ(B − 1) − B/γ + η_3)Σx ≤ B(η_3 − 1/γ). It counts slots, not tokens. A penalty takes η' times
    the left side off the objective; that of TPOT is a fraction in Σx, whose best value is searched exactly
    (`steady_state.solved`).

    Args:
        workload: what is asked: classes with rates, or a workload, whose classes are taken.
        timing: the two lengths of an iteration, α, β and 1/γ.
        slots: B, requests in a replica at once, at least 2.
        chunk: C, prefill tokens in an iteration, at least 1.
        prices: c_p and c_d for a token, above 0.
        replicas: how many share the rates of `workload` (or `rate`): λ_i is a class's rate divided by this.
            With 1, rates are those of one replica.
        scheme: when a request pays.
        abandonment: θ, how fast waiting requests give up, per second: one rate, or one for each class;
            instead of those of the classes. A class with 0 must be served in full.
        decode_queue: whether the plan may hold q_d > 0; None: unless fairness is asked.
        prefill_fairness: η_1 of (43), prefills per replica, 0 or above.
        decode_fairness: η_2 of (45), decodes per replica, 0 or above.
        tpot_s: η_3 of (47), seconds, above 0.
        prefill_fairness_penalty: η'_1 of (44), money per second and prefill of spread.
        decode_fairness_penalty: η'_2 of (46), money per second and decode of spread.
        tpot_penalty: η'_3 of (48), money per second and second of TPOT.
        rate: requests per second in all, instead of what `workload` says.
        seed: with which a workload whose distributions are not known exactly is drawn.

    Raises:
        ConfigError: an argument outside its range, or a class of `abandonment` that is not asked for.
            A plan that does not exist is no error: its `feasible` is False.

    Source: lin2026 sections 3.1, 4.2 and 5, Proposition 1 (the hypothesis on γτ) and its proof, EC.1.

    Example:
        >>> import inferq as iq
        >>> code = iq.theory.RequestClass(name="code", rate=0.5, prompt=300, output=1000, abandonment=0.1)
        >>> papers = iq.theory.RequestClass(name="papers", rate=0.5, prompt=3000, output=400, abandonment=0.1)
        >>> timing = iq.research.MixedSolo(alpha=0.0174, beta=6.2e-5, solo=0.022)
        >>> prices = iq.Prices(prefill=0.1, decode=0.2)
        >>> plan = iq.theory.allocation([code, papers], timing=timing, slots=16, chunk=256, prices=prices)
        >>> round(plan.revenue_per_replica_s, 2), round(plan.prefill_use, 4), plan.binding
        (297.72, 0.2132, ('mixed slots', 'solo slots'))
        >>> round(plan.price("arrivals", "papers"), 1)  # money for each further request of that class
        264.5
        >>> fleet = iq.research.GateAndRoute(
        ...     plan, replicas=20, timing=timing, slots=16, chunk=256, prices=prices, abandonment=0.1
        ... )
        >>> round(fleet.allocation.prefill["papers"], 4)
        0.195
    """
    demand = Demand.of(workload, rate=rate, seed=seed)
    if not isinstance(timing, MixedSolo):
        raise ConfigError("timing", f"must be MixedSolo(…), is {timing!r}")
    if not isinstance(prices, Prices):
        raise ConfigError("prices", f"must be Prices(…), is {prices!r}")
    for name in ("prefill", "decode"):
        within(f"prices.{name}", getattr(prices, name), 1e-18, 1e6)
    whole("slots", slots, 2, _MOST_COUNT)
    whole("chunk", chunk, 1, _MOST_COUNT)
    whole("replicas", replicas, 1, _MOST_COUNT)
    whole("seed", seed, 0, 2**64 - 1)
    if scheme not in get_args(Scheme):
        raise ConfigError("scheme", f"must be 'bundled' or 'separate', is {scheme!r}")
    if decode_queue is not None and not isinstance(decode_queue, bool):
        raise ConfigError("decode_queue", f"must be True, False or None, is {shown(decode_queue)}")
    limits = {"prefill_fairness": prefill_fairness, "decode_fairness": decode_fairness, "tpot_s": tpot_s}
    for name, limit in limits.items():
        if limit is not None:
            within(name, limit, 1e-12 if name == "tpot_s" else 0, _MOST_AMOUNT)
    penalties = {
        "prefill_fairness_penalty": prefill_fairness_penalty,
        "decode_fairness_penalty": decode_fairness_penalty,
        "tpot_penalty": tpot_penalty,
    }
    for name, penalty in penalties.items():
        within(name, penalty, 0, _MOST_AMOUNT)
    fair = (prefill_fairness, decode_fairness) != (None, None)
    fair = fair or prefill_fairness_penalty > 0 or decode_fairness_penalty > 0
    if timing.alpha + timing.beta * chunk <= 0 or timing.solo <= 0:
        raise ConfigError("timing", "an iteration must take some time, with a chunk and without one")
    nothing: Mapping[str, float] = Table({})
    empty = AllocationPlan(
        scheme=scheme,
        replicas=int(replicas),
        slots=int(slots),
        chunk=int(chunk),
        timing=timing,
        prices=prices,
        classes=_classes(demand, abandonment, int(replicas), isinstance(workload, Workload)),
        decode_queue=not fair if decode_queue is None else decode_queue,
        prefill_fairness=prefill_fairness,
        decode_fairness=decode_fairness,
        tpot_limit_s=tpot_s,
        **penalties,
        feasible=False,
        reason="",
        feasible_share=None,
        revenue_per_replica_s=None,
        penalty_per_replica_s=None,
        prefill=nothing,
        mixed=nothing,
        solo=nothing,
        prefill_queue=nothing,
        decode_queue_held=nothing,
        shadow_prices=(),
        duality_gap=None,
        hypotheses=(),
    )
    empty = replace(empty, hypotheses=_hypotheses(empty, demand))
    program = _program(empty)
    optimum = solved(program)
    if optimum is None:
        share = program.feasible_share()
        return replace(empty, reason=infeasible(program, share), feasible_share=share)
    return _planned(empty, program, *optimum)


def _classes(demand: Demand, abandonment: object, replicas: int, recorded: bool) -> tuple[FleetClass, ...]:
    """The classes with what a replica gets of each."""
    names = [one.name for one in demand.classes]
    if abandonment is None and recorded and demand.gives_up:
        raise ConfigError(
            "abandonment", "missing: the workload has a patience, and the program needs its rate"
        )
    if isinstance(abandonment, Mapping):
        for name in abandonment:
            if name not in names:
                raise ConfigError(f"abandonment.{name}", f"no such class (there are {', '.join(names)})")
        for name in names:
            if name not in abandonment:
                raise ConfigError(f"abandonment.{name}", "missing: every class needs a rate")
            within(f"abandonment.{name}", abandonment[name], 0, MOST_RATE)
    elif abandonment is not None:
        within("abandonment", abandonment, 0, MOST_RATE)
    classes = []
    for one in demand.classes:
        leaving: Any = abandonment[one.name] if isinstance(abandonment, Mapping) else abandonment
        assert one.rate is not None, "a demand without a rate is refused"
        classes.append(
            FleetClass(
                one.name,
                one.rate / replicas,
                one.lengths.prompt_mean,
                one.lengths.output_mean,
                one.abandonment if leaving is None else float(leaving),
            )
        )
    return tuple(classes)


def _program(plan: AllocationPlan) -> FleetProgram:
    other: dict[str, Any] = {"mixed_s": plan.mixed_s, "solo_s": plan.timing.solo, "tpot_s": plan.tpot_limit_s}
    other |= {"prefill_price": plan.prices.prefill, "decode_price": plan.prices.decode}
    same = {one.name: getattr(plan, one.name) for one in fields(FleetProgram) if one.name not in other}
    return FleetProgram(**same, **other)


def _hypotheses(plan: AllocationPlan, demand: Demand) -> tuple[Hypothesis, ...]:
    """What Proposition 1 and Theorems 2 to 4 assume."""
    gain, least = plan.mixed_s / plan.timing.solo, (plan.slots - 1) / plan.slots
    patient = [one.name for one in plan.classes if not one.abandonment_per_s]
    return (
        Hypothesis(
            name="decodes are no less efficient without a prefill, γτ ≥ (B − 1)/B (Proposition 1)",
            met=gain >= least,
            why=f"{number(gain)} against {number(least)}",
        ),
        Hypothesis(name="Poisson arrivals", met=demand.poisson, why=demand.arrivals),
        Hypothesis(
            name="services and patience are exponential",
            met=None,
            why='they are with service="exponential"; as an upper bound R* needs no more than exponential '
            "patience and the mean services",
        ),
        Hypothesis(
            name="waiting requests give up in every class, θ_i > 0 (Proposition EC.1)",
            met=not patient,
            why=f"not {', '.join(patient)}" if patient else "all rates of abandonment are above 0",
        ),
    )


def _planned(
    empty: AllocationPlan, program: FleetProgram, state: Optimum, tangent: Optimum
) -> AllocationPlan:
    """The plan that an optimum is."""
    held = divided(program, state)
    names = [one.name for one in empty.classes]
    tables = {stage: Table(dict(zip(names, held[stage], strict=True))) for stage in STAGES}
    plan = replace(
        empty,
        feasible=True,
        feasible_share=1.0,
        prefill=tables["prefill"],
        mixed=tables["mixed"],
        solo=tables["solo"],
        prefill_queue=tables["prefill_queue"],
        decode_queue_held=tables["decode_queue"],
    )
    spreads = (
        plan.prefill_fairness_penalty * plan.prefill_spread + plan.decode_fairness_penalty * plan.solo_spread
    )
    slow = plan.tpot_penalty * program.tpot(plan.prefill_use) if plan.tpot_penalty else 0.0
    return replace(
        plan,
        revenue_per_replica_s=revenue(program, held),
        penalty_per_replica_s=spreads + slow,
        shadow_prices=tuple(shadow_prices(program, held, tangent)),
        duality_gap=dual_gap(program, held, spreads, tangent),
    )


_DUST = 1e-9
"""A share of a bound below which what is left of it counts as nothing."""
_ROUNDING = 1e-12
"""A share of what one class can pay below which a price counts as nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ShadowPrice:
    """What a constraint of the program costs."""

    constraint: str
    """`"prefill slots"`, `"mixed slots"`, `"solo slots"`, `"arrivals"`, `"decodes"`, `"TPOT limit"`,
    `"prefill fairness"` or `"decode fairness"`."""
    request_class: str | None
    """Of a constraint that each class has."""
    price: float
    """By how much the objective, in money per replica and second, grows for each unit of the bound."""
    unit: str
    slack: float
    """What is left until the constraint binds, in units of the bound; 0 for a balance."""
    binds: bool

    def __str__(self) -> str:
        """One line."""
        worth = f"{number(self.price)} {self.unit}"
        if self.request_class is not None:
            return f"{self.constraint} of {self.request_class!r}: {worth}"
        return f"{self.constraint}: {worth} ({'binds' if self.binds else f'{number(self.slack)} left'})"


def shadow_prices(program: FleetProgram, held: Held, tangent: Optimum) -> Iterator[ShadowPrice]:
    """Those of the capacities, of the limits and of each class's balances.

    Args:
        program: what was solved.
        held: the occupancies of the plan.
        tangent: the optimum whose prices hold.
    """
    prefills, slots = math.fsum(held["prefill"]), program.slots

    def limit(kind: str, name: str, unit: str, slack: float, bound: float, by: float = 1.0) -> ShadowPrice:
        return ShadowPrice(
            constraint=name,
            request_class=None,
            price=_clean(max(0.0, tangent.prices[kind, -1]) * by, bound, program),
            unit=f"money/s per {unit}",
            slack=max(0.0, slack),
            binds=slack <= _DUST * bound,
        )

    yield limit("prefill", "prefill slots", "place for a prefill", 1 - prefills, 1)
    beside = (slots - 1) * prefills - math.fsum(held["mixed"])
    yield limit("mixed", "mixed slots", "slot beside a prefill", beside, slots)
    alone = slots * (1 - prefills) - math.fsum(held["solo"])
    yield limit("solo", "solo slots", "slot without a prefill beside it", alone, slots)
    if program.tpot_s is not None:
        # the row is (47) times B − Σx and has η_3 on both sides: one unit of η_3 moves its bound by B − Σx
        left_s = program.tpot_s - program.tpot(prefills)
        yield limit("tpot", "TPOT limit", "second of TPOT", left_s, program.tpot_s, slots - prefills)
    if program.prefill_fairness is not None:
        left = program.prefill_fairness - spread(held["prefill"])
        yield limit("prefill_fairness", "prefill fairness", "prefill of spread", left, 1)
    if program.decode_fairness is not None:
        left = program.decode_fairness - spread(held["solo"])
        yield limit("decode_fairness", "decode fairness", "decode of spread", left, slots)
    for kind, unit in (("arrivals", "arriving request"), ("decodes", "request that comes prefilled")):
        for i, one in enumerate(program.classes):
            yield ShadowPrice(
                constraint=kind,
                request_class=one.name,
                price=_clean(tangent.prices[kind, i], one.rate_per_s, program),
                unit=f"money per {unit}",
                slack=0.0,
                binds=True,
            )


def _clean(price: float, bound: float, program: FleetProgram) -> float:
    """The price, or 0 where the whole bound is worth no more than the solver's rounding."""
    return price if abs(price) * bound > _ROUNDING * program.money else 0.0


def infeasible(program: FleetProgram, share: float | None) -> str:
    """Why no state satisfies the constraints.

    Args:
        program: that has no state.
        share: the largest share of all rates for which it has one; None if none.
    """
    if share is None:
        return (
            f"no Σx that requests can bring about meets the TPOT limit of {number(program.tpot_s)} s: (47) "
            f"is {number(program.tpot(0.0))} s at Σx = 0 and {number(program.tpot(1.0))} s at Σx = 1"
        )
    patient = ", ".join(repr(one.name) for one in program.classes if not one.abandonment_per_s)
    return (
        f"no request of {patient} gives up, so that all must be served, which is possible up to "
        f"{number(share)} times the rates"
    )


def _program_lines(plan: AllocationPlan) -> Iterator[str]:
    tau, gamma, slots = plan.mixed_s, 1 / plan.timing.solo, plan.slots
    equation, pays = {
        "bundled": ("(40)", "Σ (c_p P_i + c_d D_i)(μ_m,i y_m,i + μ_s,i y_s,i)"),
        "separate": ("(42)", "c_p (C/τ) Σx_i + (c_d/τ) Σy_m,i + c_d γ Σy_s,i"),
    }[plan.scheme]
    yield f"lin2026 {equation}, {plan.scheme} prices: per replica, maximize {pays}"
    yield "  with Σx_i ≤ 1, Σy_m,i ≤ (B − 1)Σx_i, Σy_s,i ≤ B(1 − Σx_i),"
    yield "  λ_i = μ_p,i x_i + θ_i q_p,i, μ_p,i x_i = μ_m,i y_m,i + μ_s,i y_s,i + θ_i q_d,i"
    yield (
        f"c_p = {number(plan.prices.prefill)} and c_d = {number(plan.prices.decode)} per token, B = "
        f"{number(slots)} slots, C = {number(plan.chunk)} tokens, "
        f"τ = α + βC = {number(plan.timing.alpha)} + {number(plan.timing.beta)}·{number(plan.chunk)} = "
        f"{number(tau)} s, 1/γ = {number(plan.timing.solo)} s"
    )
    for one in plan.classes:
        prompt, output = one.prompt_tokens, one.output_tokens
        whole = plan.prices.prefill * prompt + plan.prices.decode * output
        yield (
            f"class {one.name!r}: λ = {number(one.rate_per_s * plan.replicas)}/{number(plan.replicas)} = "
            f"{number(one.rate_per_s)} per replica and second, P = {number(prompt)}, D = {number(output)}, "
            f"θ = {number(one.abandonment_per_s)}/s; μ_p = {number(plan.chunk / (prompt * tau))}, "
            f"μ_m = {number(1 / (output * tau))}, μ_s = {number(gamma / output)} per second; "
            f"pays {number(whole)}"
        )
    limits = (
        ("max x_i − min x_i ≤ η_1", plan.prefill_fairness, "(43)", ""),
        ("max y_s,i − min y_s,i ≤ η_2", plan.decode_fairness, "(45)", ""),
        ("(τ(B − 1)Σx + B(1 − Σx)/γ) / (B − Σx) ≤ η_3", plan.tpot_limit_s, "(47)", " s"),
    )
    for text, bound, where, unit in limits:
        if bound is not None:
            yield f"limit {where}: {text} = {number(bound)}{unit}"
    penalties = (
        ("(44): η'_1 (max x_i − min x_i)", "η'_1", plan.prefill_fairness_penalty),
        ("(46): η'_2 (max y_s,i − min y_s,i)", "η'_2", plan.decode_fairness_penalty),
        ("(48): η'_3 (τ(B − 1)Σx + B(1 − Σx)/γ) / (B − Σx)", "η'_3", plan.tpot_penalty),
    )
    for text, name, weight in penalties:
        if weight:
            yield f"penalty {text}, {name} = {number(weight)}"
    if not plan.decode_queue:
        yield "no request is planned to wait for a decode: q_d,i = 0"


def _no_plan_lines(plan: AllocationPlan) -> Iterator[str]:
    share = plan.feasible_share
    yield f"infeasible: {plan.reason}"
    yield f"plans exist up to {number(share)} times the rates" if share else "no plan exists for any rates"


def _optimum_lines(plan: AllocationPlan) -> Iterator[str]:
    slots, prefills = plan.slots, plan.prefill_use
    yield f"optimum: R* = {number(plan.revenue_per_replica_s)} per replica and second"
    if plan.penalty_per_replica_s:
        less = number(plan.penalty_per_replica_s)
        yield f"  less penalties of {less}: {number(plan.objective_per_replica_s)}"
    beside, alone = math.fsum(plan.mixed.values()), math.fsum(plan.solo.values())
    yield f"prefill slots: Σx = {number(prefills)} of 1, {prefills:.1%} in use"
    yield (
        f"mixed slots: Σy_m = {number(beside)} of (B − 1)Σx = {number((slots - 1) * prefills)}, "
        f"{plan.mixed_use:.1%} in use"
    )
    yield (
        f"solo slots: Σy_s = {number(alone)} of B(1 − Σx) = {number(slots * (1 - prefills))}, "
        f"{plan.solo_use:.1%} in use"
    )
    yield (
        f"spread of x {number(plan.prefill_spread)}, of y_s {number(plan.solo_spread)}; TPOT by (47) "
        f"{number(plan.tpot_s)} s"
    )
    for one in plan.classes:
        name = one.name
        yield (
            f"class {name!r}: x = {number(plan.prefill[name])}, y_m = {number(plan.mixed[name])}, "
            f"y_s = {number(plan.solo[name])}, q_p = {number(plan.prefill_queue[name])}, "
            f"q_d = {number(plan.decode_queue_held[name])}"
        )
    yield "what one more unit of each bound is worth (at a kink, a value between both one-sided ones):"
    yield from (f"  - {price}" for price in plan.shadow_prices)
    yield f"the dual program agrees but for a share of {plan.duality_gap:.1e}"
    yield from hypotheses_text(plan.hypotheses)
