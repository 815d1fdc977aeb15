"""Reproduction of lin2026: revenue of its plans and policies by linear programs and in simulation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from inferq_papers.lin2026 import planning, simulated
from inferq_papers.lin2026.fits import fits_section
from inferq_papers.lin2026.fleet import FULL, QUICK
from inferq_papers.report import Report, Section, Slip, in_turn


def report(
    *, quick: bool = False, traces: Path | None = None, tell: Callable[[str], None] = lambda text: None
) -> Report:
    """The paper's page.

    Args:
        quick: shorter runs and fewer seeds for the same rows.
        traces: unused; no experiment of the paper on a trace is repeatable.
        tell: receives one line per part.

    Example:
        >>> from inferq_papers.lin2026 import slips
        >>> slips()[0].where
        'Section 6.2 and Figures 2, 8, 9, 10'
    """
    effort = QUICK if quick else FULL
    parts: dict[str, Callable[[], Section]] = {
        "plans": planning.plans_section,
        "arrival rates": planning.arrivals_section,
        "convergence in n": lambda: simulated.convergence_section(effort),
        "occupancies": lambda: simulated.occupancies_section(effort),
        "policies": lambda: simulated.policies_section(effort),
        "slow solo decodes": lambda: simulated.hypothesis_section(effort),
        "service levels": planning.limits_section,
        "hardware": planning.hardware_section,
        "configurations": planning.configurations_section,
        "measured iterations": fits_section,
    }
    lengths = f"{effort.most_s:,.0f} s, less for many replicas, all after a warm-up of {effort.warmup_s:g} s"
    return Report(
        name="lin2026",
        title="Large-Scale LLM Inference with Heterogeneous Workloads",
        citation="Lin, Han, Ding, Zhang: Large-Scale LLM Inference with Heterogeneous Workloads "
        "(arXiv 2602.02987)",
        setting="n replicas with B slots; a prefill in the same batch slows decodes by a half (γτ = 1.51). "
        "Half of the requests have prompts of 300 tokens and outputs of 1,000 (decode-heavy, class 0), half "
        "3,000 and 400 (prefill-heavy, class 1), in total one request per second and replica. A waiting "
        "request abandons after 10 s on average. Services are exponential, as in the paper's model. A linear "
        "program gives the plan that gates and routers follow. In the long run no policy exceeds its optimum "
        "at any n, because averages satisfy every constraint. Values above it are due to random arrivals, "
        f"the same for all policies. Intervals are of 99 % over {effort.seeds} seeds, runs of up to "
        f"{lengths}.",
        sections=in_turn(parts, lambda name: tell(f"lin2026: {name}")),
        slips=slips(),
        quick=quick,
    )


def slips() -> tuple[Slip, ...]:
    """Printed values that the paper's own formulas contradict."""
    return (
        Slip(
            where="Section 6.2 and Figures 2, 8, 9, 10",
            printed='B = 16; section 6.4 uses "the same system instance"',
            right="Figures 2 and 8 to 10 are those of B = 8: OPT = 452.9 of Figure 2, the flat end of "
            "Figure 8b before 1, and the levels of Figure 9",
        ),
        Slip(
            where="Figure 2, bundled",
            printed="OPT = 300.2",
            right="(40) gives 300.5 with the parameters that give the separate 452.9 to its last digit",
        ),
        Slip(
            where="Section 6.2",
            printed='"We utilize the separate charging scheme"',
            right="gate-and-route and its R* belong to the bundled program (40); with the separate one it is "
            "prioritize-and-route. Both are reported",
        ),
        Slip(
            where="Section 6.2",
            printed='decode occupancies deviate from "the LP solution" y*_m,i, y*_s,i',
            right="at the optimum only x*, q_p*, Σy_m* and Σy_s* are unique, not their split by class (nor "
            "q_d* with separate prices)",
        ),
        Slip(
            where="Section 4.1",
            printed="ξ_i = (X_i − n x_i*) / x_i*, without a case for x_i* = 0",
            right="a class without planned prefills has the lowest priority",
        ),
        Slip(
            where="Section 5.1",
            printed='a route is drawn "upon prefill or decode completion"',
            right="nothing is left to route when a decode ends; the route is drawn once, when the prefill "
            "ends",
        ),
        Slip(
            where="Section 5, (47) and (48)",
            printed="a fractional constraint, and a fractional penalty",
            right="the denominator B − Σx is positive: (47) is the linear (τ(B − 1) − B/γ + η3)Σx ≤ B(η3 − "
            "1/γ), (48) a function of Σx alone",
        ),
        Slip(
            where="Section 6.3",
            printed='a "queue-length based" gate "derived from our theoretical analysis"',
            right="section 4.1 derives a gate on occupancies; queues break its ties",
        ),
        Slip(
            where="Section 6.3",
            printed="instances with γ from 10",
            right="Proposition 1, on which Theorem 2 rests, needs γτ ≥ (B − 1)/B: with γ = 10, τ ≥ 94 ms "
            "at B = 16",
        ),
        Slip(
            where="Section 6.4",
            printed='prefill fairness is costly "because the prefill stage acts as the primary bottleneck"',
            right="the shadow price of a prefill slot is 0 in that instance; decode slots bind. "
            "Equal x_i cost revenue because the classes differ tenfold in prefill per request",
        ),
        Slip(
            where="Section 6.4",
            printed='prices on a budget have a "unique, constant ratio", an "optimal economic balance"',
            right="R* is convex and homogeneous in the prices, so the best point of a budget is one "
            "of its ends: the whole budget on one price, for every budget",
        ),
    )
