"""The division of a fleet between prefill and decode, and between classes, with the largest revenue."""

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
    Occupancies,
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
"""Most slots, tokens of a chunk, and replicas of a `GateAndRoute` cluster."""
_MOST_AMOUNT = 1e9
"""Largest limit or penalty: 30 years of seconds, more prefills or decodes than there are slots."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AllocationPlan(Statement, Planned):
    """The steady state with the largest revenue: requests of each class per replica and stage.

    `GateAndRoute` accepts a plan in place of an `Allocation`. All occupancies are per replica, by class, and
    empty without a plan (then `feasible` is False and `reason` explains why).

    **Uniqueness.** At an optimum x*, q_p* and, if decode slots bind, Σ y_m* and Σ y_s* are unique. The
    division of decodes among the classes is not, nor is q_d* in the separate scheme. The choice here: solo
    slots are filled first, every class has the same share of its tokens decoded there, and with the separate
    scheme every class with abandonment loses the same share of its tokens in the decode queue. With a decode
    fairness limit, the solver's division is moved towards this one as far as its spread allows. So everything
    except x* and q_p* follows from totals. If x* is not unique either (two identical classes), the solver's
    is used.
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
    """Whether the plan may let requests wait for their decode."""
    prefill_fairness: float | None
    decode_fairness: float | None
    tpot_limit_s: float | None
    prefill_fairness_penalty: float
    decode_fairness_penalty: float
    tpot_penalty: float
    feasible: bool
    reason: str
    """The reason why there is no plan; else empty."""
    feasible_share: float | None
    """The largest share, up to 1, of all rates for which there is a plan; None if there is none for any."""
    revenue_per_replica_s: float | None
    """R*, revenue per replica and second, before penalties."""
    penalty_per_replica_s: float | None
    """The penalties (44), (46) and (48) in the objective."""
    prefill: Mapping[str, float]
    """x_i*, prefills in progress."""
    mixed: Mapping[str, float]
    """y_m,i*, decodes next to a prefill."""
    solo: Mapping[str, float]
    """y_s,i*, decodes on replicas without a prefill."""
    prefill_queue: Mapping[str, float]
    """q_p,i*, requests waiting for prefill."""
    decode_queue_held: Mapping[str, float]
    """q_d,i*, requests waiting for decode."""
    shadow_prices: tuple[ShadowPrice, ...]
    duality_gap: float | None
    """|primal − dual| as a share of the objective, or, if larger, of the most that one class can pay."""
    hypotheses: tuple[Hypothesis, ...]

    @property
    def allocation(self) -> Allocation:
        """The plan as an `Allocation` of `GateAndRoute`.

        Raises:
            ConfigError: there is no plan, or a number is out of the range of an `Allocation`.
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
        """Raise an error if the plan was made for another cluster.

        Raises:
            ConfigError: a field of the cluster differs from the plan; the message has both values.
        """
        for name in ("timing", "slots", "chunk", "prices"):
            configured, planned = getattr(cluster, name), getattr(self, name)
            if configured != planned:
                raise ConfigError(
                    name,
                    f"{configured!r} differs from the plan, made for {planned!r}; solve it again, or use "
                    "plan.allocation, which fits any cluster",
                )
        abandonment = cluster.abandonment
        for fleet_class in self.classes:
            rate = (
                abandonment.get(fleet_class.name) if isinstance(abandonment, Mapping) else abandonment
            ) or 0.0
            if rate != fleet_class.abandonment_per_s:
                raise ConfigError(
                    "abandonment",
                    f"{rate!r} for class {fleet_class.name!r} differs from the plan, made for "
                    f"{fleet_class.abandonment_per_s!r}; solve it again, or use plan.allocation",
                )

    @property
    def mixed_s(self) -> float:
        """τ = α + βC, seconds of an iteration with a chunk."""
        return self.timing.alpha + self.timing.beta * self.chunk

    @property
    def objective_per_replica_s(self) -> float | None:
        """Revenue minus penalties."""
        if self.revenue_per_replica_s is None or self.penalty_per_replica_s is None:
            return None
        return self.revenue_per_replica_s - self.penalty_per_replica_s

    @property
    def prefill_use(self) -> float:
        """Σx*: the used share of the prefill slots, one per replica; 0 without a plan."""
        return math.fsum(self.prefill.values())

    @property
    def mixed_use(self) -> float:
        """Σy_m* / ((B − 1)Σx*): the used share of the slots next to a prefill; 0 if there are none."""
        places = (self.slots - 1) * self.prefill_use
        return math.fsum(self.mixed.values()) / places if places else 0.0

    @property
    def solo_use(self) -> float:
        """Σy_s* / (B(1 − Σx*)): the used share of the slots of replicas without a prefill."""
        places = self.slots * (1 - self.prefill_use)
        return math.fsum(self.solo.values()) / places if places > 0 else 0.0

    @property
    def tpot_s(self) -> float | None:
        """The left side of (47): the mean iteration over all decode slots; None without a plan."""
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
        """Names of the binding limits among the shadow prices, without balances."""
        return tuple(
            price.constraint for price in self.shadow_prices if price.binds and price.request_class is None
        )

    def price(self, constraint: str, request_class: str | None = None) -> float:
        """The shadow price of a constraint.

        Raises:
            ConfigError: the plan has no such constraint.
        """
        for shadow_price in self.shadow_prices:
            if (shadow_price.constraint, shadow_price.request_class) == (constraint, request_class):
                return shadow_price.price
        known = ", ".join(dict.fromkeys(repr(price.constraint) for price in self.shadow_prices))
        raise ConfigError(
            "constraint", f"unknown constraint {constraint!r} of {request_class!r}; known: {known or 'none'}"
        )

    def explain(self) -> str:
        """The program with its numbers, the optimum, binding limits and shadow prices."""
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
    r"""Compute the steady state with the largest revenue under gate-and-route, a linear program.

    Per replica, over x_i (in prefill), y_m,i (in decode next to a prefill), y_s,i (in decode without one),
    q_p,i and q_d,i (waiting for prefill and decode), all ≥ 0:

    - maximize `bundled` Σ (c_p P_i + c_d D_i)(μ_m,i y_m,i + μ_s,i y_s,i): a request pays on completion,
      or `separate` c_p (C/τ) Σx_i + (c_d/τ) Σy_m,i + c_d γ Σy_s,i: a request pays after each stage,
    - Σx_i ≤ 1, Σy_m,i ≤ (B − 1)Σx_i, Σy_s,i ≤ B(1 − Σx_i): at most one prefill and B requests,
    - λ_i = μ_p,i x_i + θ_i q_p,i and μ_p,i x_i = μ_m,i y_m,i + μ_s,i y_s,i + θ_i q_d,i: inflow equals
      outflow,

    with μ_p,i = C/(P_i τ), μ_m,i = 1/(D_i τ), μ_s,i = γ/D_i, τ = α + βC. Only the mean lengths of a class
    matter: all terms are linear in them. In the long run no policy has more revenue with any number of
    replicas, because its averages satisfy every constraint. Gate-and-route comes close as the number grows
    (Theorems 2 to 4, for Poisson arrivals and exponential services and patience).

    **Limits and penalties** (SLIs, (43) to (48)). With S(v) = max v_i − min v_i, prefill fairness is
    S(x) ≤ η_1, and decode fairness is S(y_s) ≤ η_2, both with q_d = 0. The TPOT limit is
    (τ(B − 1)Σx + B(1 − Σx)/γ) / (B − Σx) ≤ η_3. Its denominator is positive, so it is equivalent to the
    linear (τ(B − 1) − B/γ + η_3)Σx ≤ B(η_3 − 1/γ). It counts slots, not tokens. A penalty subtracts η' times
    the left side from the objective. The TPOT penalty is a fraction in Σx, whose best value is found exactly
    (`steady_state.solved`).

    Args:
        workload: classes with rates, or a workload with its classes.
        timing: the two iteration times, α, β and 1/γ.
        slots: B, running requests per replica, at least 2.
        chunk: C, prefill tokens per iteration, at least 1.
        prices: c_p and c_d per token, positive.
        replicas: number of replicas that share the rates of `workload` (or `rate`): λ_i is a class's rate
            divided by this number. With 1, rates are per replica.
        scheme: time of payment.
        abandonment: θ, abandonment rate of waiting requests per second: one rate, or one per class. Default:
            the rates of the classes. A class with 0 must be served in full.
        decode_queue: whether the plan may have q_d > 0. Default: only without fairness.
        prefill_fairness: η_1 of (43), prefills per replica, non-negative.
        decode_fairness: η_2 of (45), decodes per replica, non-negative.
        tpot_s: η_3 of (47), seconds, positive.
        prefill_fairness_penalty: η'_1 of (44), revenue per second and prefill of spread.
        decode_fairness_penalty: η'_2 of (46), revenue per second and decode of spread.
        tpot_penalty: η'_3 of (48), revenue per second and second of TPOT.
        rate: total requests per second. Default: the rate of the workload.
        seed: seed for workloads that must be drawn.

    Raises:
        ConfigError: an argument is out of range, or a class of `abandonment` is unknown. A plan that does not
            exist is not an error: its `feasible` is False.

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
        >>> round(plan.price("arrivals", "papers"), 1)  # revenue per additional request of that class
        264.5
        >>> fleet = iq.research.GateAndRoute(
        ...     plan, replicas=20, timing=timing, slots=16, chunk=256, prices=prices, abandonment=0.1
        ... )
        >>> round(fleet.allocation.prefill["papers"], 4)
        0.195
    """
    demand = Demand.of(workload, rate=rate, seed=seed)
    if not isinstance(timing, MixedSolo):
        raise ConfigError("timing", f"must be MixedSolo, got {timing!r}")
    if not isinstance(prices, Prices):
        raise ConfigError("prices", f"must be Prices, got {prices!r}")
    for name in ("prefill", "decode"):
        within(f"prices.{name}", getattr(prices, name), 1e-18, 1e6)
    whole("slots", slots, 2, _MOST_COUNT)
    whole("chunk", chunk, 1, _MOST_COUNT)
    whole("replicas", replicas, 1, _MOST_COUNT)
    whole("seed", seed, 0, 2**64 - 1)
    if scheme not in get_args(Scheme):
        raise ConfigError("scheme", f"must be 'bundled' or 'separate', got {scheme!r}")
    if decode_queue is not None and not isinstance(decode_queue, bool):
        raise ConfigError("decode_queue", f"must be True, False or None, got {shown(decode_queue)}")
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
        raise ConfigError("timing", "iterations must take some time, with a chunk and without one")
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
    """The classes with their rates per replica."""
    names = [request_class.name for request_class in demand.classes]
    if abandonment is None and recorded and demand.gives_up:
        raise ConfigError(
            "abandonment", "is required: the workload has a patience, and the program needs its rate"
        )
    if isinstance(abandonment, Mapping):
        for name in abandonment:
            if name not in names:
                raise ConfigError(f"abandonment.{name}", f"unknown class; classes: {', '.join(names)}")
        for name in names:
            if name not in abandonment:
                raise ConfigError(f"abandonment.{name}", "is missing; every class requires a rate")
            within(f"abandonment.{name}", abandonment[name], 0, MOST_RATE)
    elif abandonment is not None:
        within("abandonment", abandonment, 0, MOST_RATE)
    classes = []
    for request_class in demand.classes:
        rate: Any = abandonment[request_class.name] if isinstance(abandonment, Mapping) else abandonment
        assert request_class.rate is not None, "a demand without a rate is an error"
        classes.append(
            FleetClass(
                request_class.name,
                request_class.rate / replicas,
                request_class.lengths.prompt_mean,
                request_class.lengths.output_mean,
                request_class.abandonment if rate is None else float(rate),
            )
        )
    return tuple(classes)


def _program(plan: AllocationPlan) -> FleetProgram:
    other: dict[str, Any] = {"mixed_s": plan.mixed_s, "solo_s": plan.timing.solo, "tpot_s": plan.tpot_limit_s}
    other |= {"prefill_price": plan.prices.prefill, "decode_price": plan.prices.decode}
    same = {
        field.name: getattr(plan, field.name) for field in fields(FleetProgram) if field.name not in other
    }
    return FleetProgram(**same, **other)


def _hypotheses(plan: AllocationPlan, demand: Demand) -> tuple[Hypothesis, ...]:
    """The hypotheses of Proposition 1 and Theorems 2 to 4."""
    gain, least = plan.mixed_s / plan.timing.solo, (plan.slots - 1) / plan.slots
    patient = [fleet_class.name for fleet_class in plan.classes if not fleet_class.abandonment_per_s]
    return (
        Hypothesis(
            name="decodes are no less efficient without a prefill, γτ ≥ (B − 1)/B (Proposition 1)",
            met=gain >= least,
            why=f"{number(gain)} compared with {number(least)}",
        ),
        Hypothesis(name="Poisson arrivals", met=demand.poisson, why=demand.arrivals),
        Hypothesis(
            name="services and patience are exponential",
            met=None,
            why='true with service="exponential"; the upper bound R* needs only exponential patience and the '
            "mean services",
        ),
        Hypothesis(
            name="waiting requests abandon in every class, θ_i > 0 (Proposition EC.1)",
            met=not patient,
            why=f"not {', '.join(patient)}" if patient else "all abandonment rates are positive",
        ),
    )


def _planned(
    empty: AllocationPlan, program: FleetProgram, state: Optimum, tangent: Optimum
) -> AllocationPlan:
    """The plan of an optimum."""
    occupancies = divided(program, state)
    names = [fleet_class.name for fleet_class in empty.classes]
    tables = {stage: Table(dict(zip(names, occupancies[stage], strict=True))) for stage in STAGES}
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
        revenue_per_replica_s=revenue(program, occupancies),
        penalty_per_replica_s=spreads + slow,
        shadow_prices=tuple(shadow_prices(program, occupancies, tangent)),
        duality_gap=dual_gap(program, occupancies, spreads, tangent),
    )


_DUST = 1e-9
"""Share of a bound below which its slack counts as 0."""
_ROUNDING = 1e-12
"""Share of the most that one class can pay below which a price counts as 0."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ShadowPrice:
    """The shadow price of a constraint of the program."""

    constraint: str
    """`"prefill slots"`, `"mixed slots"`, `"solo slots"`, `"arrivals"`, `"decodes"`, `"TPOT limit"`,
    `"prefill fairness"` or `"decode fairness"`."""
    request_class: str | None
    """The class, if each class has such a constraint."""
    price: float
    """Growth of the objective, in revenue per replica and second, per unit of the bound."""
    unit: str
    slack: float
    """Distance from binding, in units of the bound; 0 for a balance."""
    binds: bool

    def __str__(self) -> str:
        """One line."""
        worth = f"{number(self.price)} {self.unit}"
        if self.request_class is not None:
            return f"{self.constraint} of {self.request_class!r}: {worth}"
        return f"{self.constraint}: {worth} ({'binds' if self.binds else f'{number(self.slack)} left'})"


def shadow_prices(program: FleetProgram, occupancies: Occupancies, tangent: Optimum) -> Iterator[ShadowPrice]:
    """Shadow prices of the capacities, of the limits and of each class's balances.

    Args:
        program: the solved program.
        occupancies: the occupancies of the plan.
        tangent: the optimum whose prices hold.
    """
    prefills, slots = math.fsum(occupancies["prefill"]), program.slots

    def limit(kind: str, name: str, unit: str, slack: float, bound: float, by: float = 1.0) -> ShadowPrice:
        return ShadowPrice(
            constraint=name,
            request_class=None,
            price=_clean(max(0.0, tangent.prices[kind, -1]) * by, bound, program),
            unit=f"money/s per {unit}",
            slack=max(0.0, slack),
            binds=slack <= _DUST * bound,
        )

    yield limit("prefill", "prefill slots", "prefill slot", 1 - prefills, 1)
    mixed_left = (slots - 1) * prefills - math.fsum(occupancies["mixed"])
    yield limit("mixed", "mixed slots", "slot next to a prefill", mixed_left, slots)
    solo_left = slots * (1 - prefills) - math.fsum(occupancies["solo"])
    yield limit("solo", "solo slots", "slot without a prefill", solo_left, slots)
    if program.tpot_s is not None:
        # The row is (47) times B − Σx and has η_3 on both sides: a unit of η_3 moves its bound by B − Σx.
        left_s = program.tpot_s - program.tpot(prefills)
        yield limit("tpot", "TPOT limit", "second of TPOT", left_s, program.tpot_s, slots - prefills)
    if program.prefill_fairness is not None:
        left = program.prefill_fairness - spread(occupancies["prefill"])
        yield limit("prefill_fairness", "prefill fairness", "prefill of spread", left, 1)
    if program.decode_fairness is not None:
        left = program.decode_fairness - spread(occupancies["solo"])
        yield limit("decode_fairness", "decode fairness", "decode of spread", left, slots)
    for kind, unit in (("arrivals", "arriving request"), ("decodes", "prefilled request")):
        for i, fleet_class in enumerate(program.classes):
            yield ShadowPrice(
                constraint=kind,
                request_class=fleet_class.name,
                price=_clean(tangent.prices[kind, i], fleet_class.rate_per_s, program),
                unit=f"money per {unit}",
                slack=0.0,
                binds=True,
            )


def _clean(price: float, bound: float, program: FleetProgram) -> float:
    """The price, or 0 if the whole bound is worth no more than the solver's rounding error."""
    return price if abs(price) * bound > _ROUNDING * program.money else 0.0


def infeasible(program: FleetProgram, share: float | None) -> str:
    """The reason why no state satisfies the constraints.

    Args:
        program: a program without a feasible state.
        share: the largest share of all rates that is feasible; None if there is none.
    """
    if share is None:
        return (
            f"no possible Σx meets the TPOT limit of {number(program.tpot_s)} s: (47) "
            f"is {number(program.tpot(0.0))} s at Σx = 0 and {number(program.tpot(1.0))} s at Σx = 1"
        )
    patient = ", ".join(
        repr(fleet_class.name) for fleet_class in program.classes if not fleet_class.abandonment_per_s
    )
    return (
        f"no request of {patient} abandons, so all must be served, which is possible up to "
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
    for fleet_class in plan.classes:
        prompt, output = fleet_class.prompt_tokens, fleet_class.output_tokens
        whole = plan.prices.prefill * prompt + plan.prices.decode * output
        yield (
            f"class {fleet_class.name!r}: λ = {number(fleet_class.rate_per_s * plan.replicas)}/"
            f"{number(plan.replicas)} = {number(fleet_class.rate_per_s)} per replica and second, "
            f"P = {number(prompt)}, D = {number(output)}, "
            f"θ = {number(fleet_class.abandonment_per_s)}/s; μ_p = {number(plan.chunk / (prompt * tau))}, "
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
        yield "no request waits for a decode: q_d,i = 0"


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
    mixed, solo = math.fsum(plan.mixed.values()), math.fsum(plan.solo.values())
    yield f"prefill slots: Σx = {number(prefills)} of 1, {prefills:.1%} in use"
    yield (
        f"mixed slots: Σy_m = {number(mixed)} of (B − 1)Σx = {number((slots - 1) * prefills)}, "
        f"{plan.mixed_use:.1%} in use"
    )
    yield (
        f"solo slots: Σy_s = {number(solo)} of B(1 − Σx) = {number(slots * (1 - prefills))}, "
        f"{plan.solo_use:.1%} in use"
    )
    yield (
        f"spread of x {number(plan.prefill_spread)}, of y_s {number(plan.solo_spread)}; TPOT by (47) "
        f"{number(plan.tpot_s)} s"
    )
    for fleet_class in plan.classes:
        name = fleet_class.name
        yield (
            f"class {name!r}: x = {number(plan.prefill[name])}, y_m = {number(plan.mixed[name])}, "
            f"y_s = {number(plan.solo[name])}, q_p = {number(plan.prefill_queue[name])}, "
            f"q_d = {number(plan.decode_queue_held[name])}"
        )
    yield "shadow price of each bound (at a kink, a value between the two one-sided prices):"
    yield from (f"  - {price}" for price in plan.shadow_prices)
    yield f"the dual objective agrees within a share of {plan.duality_gap:.1e}"
    yield from hypotheses_text(plan.hypotheses)
