"""Do networks and fleets grow, or not, as the theories of li2025 section 4.3 and nie2026 say?

The studies `docs/studies/networks.py` and `replicas.py` derive what is expected. Every interval has a
confidence of 99 %: Student's t over independent seeds. Each test asks for a narrow one, and the seeds are
fixed.
"""

from pathlib import Path

import networks
import numpy as np
import pytest
import replicas

import inferq as iq

HORIZON = 100_000


def holds(found: networks.Interval, expected: float, narrow: float) -> None:
    """The expected number is in the interval, which is at most `narrow` wide to either side."""
    assert found.half_width <= narrow, f"too wide to tell: {found}, expected {expected}"
    assert found.holds(expected), f"{found}, expected {expected}"


# The two agents of Rybko and Stolyar.


def test_the_virtual_station_is_full_before_any_agent_is() -> None:
    # 2λM/b = 1 with λ = ρ·b/(m + M): ρ = 608/1088.
    assert pytest.approx(608 / 1088) == networks.CRITICAL_LOAD
    assert networks.virtual_station_growth(networks.CRITICAL_LOAD) == pytest.approx(0)
    assert networks.half_cycle_growth(networks.CRITICAL_LOAD) == pytest.approx(1)


@pytest.mark.parametrize("load", [0.7, 0.8, 0.9])
def test_last_tasks_first_drowns_the_network_at_the_rate_of_the_virtual_station(load: float) -> None:
    found, growth = networks.rybko_stolyar_drift(load, horizon=HORIZON), networks.virtual_station_growth(load)
    holds(found.jobs, growth, narrow=0.03 * growth)
    # Only one of the two long tasks is served at a time, at b/M; free of the noise of the arrivals.
    served = networks.TOKEN_BUDGET / networks.LONG_TOKENS
    holds(found.departures, served, narrow=0.001 * served)


@pytest.mark.parametrize(("load", "last_first"), [(0.5, True), (0.9, False)])
def test_below_the_critical_load_or_with_first_tasks_first_nothing_grows(
    load: float, last_first: bool
) -> None:
    found = networks.rybko_stolyar_drift(load, last_first, HORIZON, seeds=8)
    holds(found.jobs, 0.0, narrow=0.001 * 2 * networks.rate_of(load))


def test_the_periods_of_the_saw_tooth_get_longer_by_a_factor() -> None:
    expected = networks.half_cycle_growth(0.9)
    holds(networks.half_cycle_ratios(0.9), expected, narrow=0.06 * expected)


# Fork and join.


@pytest.mark.parametrize(("name", "slow_branches"), [("one slow branch", 1), ("two slow branches", 2)])
def test_a_fork_join_beyond_its_slowest_branch_grows_by_what_it_cannot_serve(
    name: str, slow_branches: int
) -> None:
    found, growth = networks.fork_join_drift(name, 1.05, HORIZON), networks.fork_join_growth(1.05)
    # A job waits for the slower branch; copies pile up at every slow one. The growth is a small difference
    # of two rates, one of them the noisy one of the arrivals.
    holds(found.jobs, growth, narrow=0.1 * growth)
    holds(found.tasks, slow_branches * growth, narrow=0.1 * slow_branches * growth)
    holds(found.departures, networks.fork_join_rate(1.0), narrow=0.001 * networks.fork_join_rate(1.0))


@pytest.mark.parametrize("name", networks.FORK_JOIN)
def test_a_fork_join_below_it_does_not_grow(name: str) -> None:
    found = networks.fork_join_drift(name, 0.9, HORIZON, seeds=8)
    # Some 600 jobs are under way at any time, by chance 30 more or fewer.
    holds(found.jobs, 0.0, narrow=0.001 * networks.fork_join_rate(0.9))
    holds(found.tasks, 0.0, narrow=0.001 * networks.fork_join_rate(0.9))


# Replicas that are bounded by their memory.


@pytest.mark.parametrize("ratio", replicas.SETTINGS)
def test_the_formula_gives_the_rates_that_the_paper_prints_for_one_replica(ratio: str) -> None:
    setting = replicas.SETTINGS[ratio]
    assert round(replicas.theory_rate(setting), 3) == setting.printed_theory


def test_the_rate_printed_for_eight_replicas_is_not_eight_times_that_of_one() -> None:
    formula = replicas.REPLICAS * replicas.theory_rate(replicas.SETTINGS["1:1"])
    assert formula == pytest.approx(26.106, abs=0.001)
    assert formula > 1.01 * replicas.PRINTED_EIGHT_THEORY


def test_memory_of_whole_chunks_is_what_the_chunks_hold_slot_by_slot() -> None:
    setting = replicas.Setting(1500, 1100, 1.0, 0.0, 0.0)

    def held(s: int, o: int) -> int:
        chunks = -(-s // replicas.CHUNK)
        prompt = sum(min(j * replicas.CHUNK, s) for j in range(1, chunks + 1))
        return prompt + sum(s + j for j in range(1, o + 1))

    prompts, outputs = (range(replicas.SHORTEST, n + 1) for n in (setting.prompt, setting.output))
    # Linear in s for a given o but for the prompt's chunks: means may be taken one after the other.
    at_no_output = np.mean([held(s, 0) for s in prompts])
    decodes = np.mean([held(int(np.mean(prompts)), o) - held(int(np.mean(prompts)), 0) for o in outputs])
    assert replicas.lifetime_memory(setting, whole_chunks=True) == pytest.approx(at_no_output + decodes)


def test_eight_replicas_in_overload_serve_eight_times_what_one_serves() -> None:
    setting, requests = replicas.SETTINGS["1:1"], 100_000
    found = {n: replicas.rates("1:1", n, requests) for n in (1, replicas.REPLICAS)}
    for n, values in found.items():
        # Theorems 4.1 and 4.2: at most μ, at least (1 − δ)μ, with as many chunks as an engine takes.
        limit, error = n * replicas.theory_rate(setting, whole_chunks=True), replicas.half_width(values)
        assert error <= 0.01 * limit
        assert replicas.least_share(setting) * limit - error <= np.mean(values) <= limit + error
    ratio = np.mean(found[replicas.REPLICAS]) / np.mean(found[1])
    assert ratio == pytest.approx(replicas.REPLICAS, rel=0.02)


def test_round_robin_over_eight_is_eight_separate_replicas() -> None:
    setting = replicas.SETTINGS["1:1"]
    fleet = replicas.overloaded(setting, replicas.REPLICAS, 500, seed=1).requests
    engine = iq.Engine(
        timing=iq.Constant(setting.slot_s),
        scheduler=iq.SlotGreedy(chunk=replicas.CHUNK),
        kv=iq.KvCache(tokens=replicas.MEMORY_TOKENS, block=1),
        first_token="decode",
    )
    for place in range(replicas.REPLICAS):
        rows = fleet[place :: replicas.REPLICAS]
        assert rows["replica"].unique().to_list() == [place]
        alone = iq.simulate(rows.select("arrival_s", "prompt_tokens", "output_tokens"), engine).requests
        assert alone["finish_s"].to_list() == rows["finish_s"].to_list()


def test_the_picture_comes_out_the_same_when_it_is_drawn_again(tmp_path: Path) -> None:
    for name in ("first.svg", "second.svg"):
        networks.chart(networks.paths(horizon=2_000, samples=20), tmp_path / name)
    assert (tmp_path / "first.svg").read_bytes() == (tmp_path / "second.svg").read_bytes()
