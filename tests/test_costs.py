"""Costs of runs: computed by hand, in comparisons, gates, pages and commands; and revenue."""

import json
import math
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

import inferq as iq
from inferq.cli import app
from inferq.experiments.comparison.blocks import pseudo_values
from inferq.reports import runs_page
from inferq.results.metric import COSTS, Metric
from inferq.results.result import Result
from inferq_papers.bari2025 import deadlines
from inferq_papers.lin2026 import fleet

LENGTHS = {"prompt": iq.dist.Uniform(10, 1500), "output": iq.dist.Uniform(5, 120)}
PRICES = iq.Prices(gpu_hour={"own": 3.6}, busy_watts={"own": 500}, idle_watts={"own": 80}, card="own")


def plain(speed: float = 1.0) -> iq.Engine:
    """An engine without a GPU."""
    timing = iq.PiecewiseLinear(base=0.01 / speed, per_token=8e-5 / speed)
    return iq.Engine(timing=timing, scheduler=iq.Sarathi(), kv=iq.KvCache(tokens=100_000))


def test_prices_are_read_from_a_file(tmp_path: Path):
    """Prices of GPUs and tokens; errors name the field."""
    file = tmp_path / "prices.toml"
    file.write_text('currency = "EUR"\n[gpu_hour]\nh200 = 3.5\n')
    assert iq.Prices.read(file) == iq.Prices(gpu_hour={"h200": 3.5}, currency="EUR")
    file.write_text("[gpu_hour]\nh200 = -1\n")
    with pytest.raises(iq.ConfigError, match=r"prices\.toml.*gpu_hour\.h200: must be non-negative"):
        iq.Prices.read(file)
    file.write_text("[gpu_hours]\nh200 = 1\n")
    with pytest.raises(iq.ConfigError, match="unknown field 'gpu_hours'"):
        iq.Prices.read(file)


def test_what_a_run_costs():
    """By hand: two replicas of two GPUs for the duration of the run, busy as in the timeline."""
    engine = iq.Engine.on("llama-3.1-8b", "h100-80gb", tensor_parallel=2)
    chat = iq.Workload({"arrival_s": [0.0, 1.0], "prompt_tokens": [100, 300], "output_tokens": [50, 150]})
    run = iq.simulate(chat, iq.Cluster(engine, replicas=2), timeline_s=0.01)
    prices = iq.Prices(
        gpu_hour={"h100-80gb": 3.6}, idle_watts={"h100-80gb": 100.0}, prefill=1e-6, decode=2e-6
    )
    row = run.summary(prices=prices).row(0, named=True)
    assert (row["gpus"], row["nodes"], row["cost_per_hour"]) == (4, 1, pytest.approx(14.4))
    assert row["cost_per_request"] == pytest.approx(0.004 * row["duration_s"] / 2)
    assert row["cost_per_million_output_tokens"] == pytest.approx(1e6 * 0.004 * row["duration_s"] / 200)
    assert row["revenue_per_hour"] == pytest.approx((400e-6 + 2 * 200e-6) * 3600 / row["duration_s"])
    samples = run.timeline
    busy = [(samples.filter(replica=one)["running"] > 0).mean() for one in (0, 1)]
    assert 0.1 < min(busy) < max(busy) < 0.9
    assert row["watts"] == pytest.approx(sum(2 * (700 * share + 100 * (1 - share)) for share in busy))
    assert row["joules_per_request"] == pytest.approx(row["watts"] * row["duration_s"] / 2)
    assert 4 * 121.7 < run.summary(prices=iq.Prices(gpu_hour={"h100-80gb": 3.6}))["watts"].item() < 4 * 700.0
    with pytest.raises(iq.ConfigError, match="prices: apply to the whole fleet"):
        run.summary(by="replica", prices=prices)
    with pytest.raises(iq.ConfigError, match="prices: the engine has no GPU"):
        iq.simulate(chat, plain()).summary(prices=prices)
    with pytest.raises(iq.ConfigError, match=r"prices\.gpu_hour\.h100-80gb: missing: no price"):
        run.summary(prices=iq.Prices(gpu_hour={"h200": 3.0}))


def test_a_fleet_of_cards_without_names_has_the_price_that_is_said():
    """`Prices.card` applies to engines without a GPU, one per replica; a stored run has the same cost."""
    chat = iq.Workload.synthetic(requests=300, arrivals=iq.dist.Poisson(6), **LENGTHS)
    run = iq.simulate(chat, iq.Cluster([plain(), plain(2)]), seed=1)
    row = run.summary(prices=PRICES).row(0, named=True)
    assert (row["gpus"], row["nodes"], row["cost_per_hour"]) == (2, 1, 7.2)
    assert row["revenue_per_hour"] is None
    nothing = run.summary(prices=iq.Prices(gpu_hour={"own": 1.0}, card="own"))
    assert nothing["watts"].item() is None and nothing["joules_per_request"].item() is None


def test_a_stored_run_costs_what_it_cost_in_memory(tmp_path: Path):
    chat = iq.Workload.synthetic(requests=300, arrivals=iq.dist.Poisson(6), **LENGTHS)
    run = iq.simulate(chat, iq.Cluster(iq.Engine.on("llama-3.1-8b", "h100-80gb"), replicas=2), seed=1)
    prices = iq.Prices(gpu_hour={"h100-80gb": 2.5}, decode=1e-6)
    run.write(tmp_path / "run")
    stored = Result.read(tmp_path / "run")
    assert stored.summary(prices=prices).equals(run.summary(prices=prices))


def test_revenue_beside_cost_finds_the_division_of_lin2026():
    """Section 6.2 with n = 20: the best number of prefill replicas is that of the plan, ± 1.

    The linear program gives ⌈20 · Σx*⌉ = 5. All divisions have the same cost and earn at most R*.
    """
    instance, n = fleet.Instance(), 20
    plan = fleet.plan(instance)
    prefill = plan.allocation.prefill
    whole = sum(prefill.values())
    planned = math.ceil(n * whole)

    def divided(mixed: int) -> iq.research.GateAndRoute:
        share = mixed / n / whole
        return iq.research.GateAndRoute(
            iq.research.Allocation(prefill={name: share * one for name, one in prefill.items()}),
            replicas=n,
            timing=instance.timing,
            slots=instance.slots,
            chunk=instance.chunk,
            prices=plan.prices,
            abandonment=instance.impatience,
        )

    prices = iq.Prices(
        prefill=plan.prices.prefill, decode=plan.prices.decode, gpu_hour={"a100-80gb": 2.0}, card="a100-80gb"
    )
    found = iq.compare(
        fleet.requests(instance, n, 1000, 1),
        {f"{mixed}": divided(mixed) for mixed in range(3, 10)},
        seeds=3,
        metrics=["revenue_per_hour", "cost_per_hour"],
        prices=prices,
        horizon_s=1000.0,
        warmup="300s",
    )
    earned = dict(found.frame.filter(metric="revenue_per_hour").select("system", "mean").iter_rows())
    assert abs(int(max(earned, key=earned.__getitem__)) - planned) <= 1
    assert 0.9 < earned[f"{planned}"] / (plan.revenue_per_replica_s * n * 3600) < 1.02
    assert set(found.frame.filter(metric="cost_per_hour")["mean"]) == {2.0 * n}


def test_what_the_replicas_of_nie2026_earn_and_cost():
    """⌈λ/μ⌉ replicas are paid by the hour; requests, which all finish, pay (c_p·E[P] + c_d·E[D])·λ."""
    lengths = iq.dist.Uniform(10, 1600)
    nie = iq.Workload.synthetic(requests=20_000, arrivals=iq.dist.Poisson(24), prompt=lengths, output=lengths)
    needed = iq.theory.replicas_needed(nie, kv_tokens=131_000, slot_s=0.0372, first_token="decode").replicas
    slots = iq.Engine(
        timing=iq.Constant(0.0372),
        scheduler=iq.research.SlotGreedy(chunk=512),
        kv=iq.KvCache(tokens=131_000, block=1),
        first_token="decode",
    )
    run = iq.simulate(nie, iq.Cluster(slots, replicas=needed))
    prices = iq.Prices(prefill=1e-6, decode=3e-6, gpu_hour={"a100-80gb": 2.0}, card="a100-80gb")
    row = run.summary(prices=prices).row(0, named=True)
    assert row["gpus"] == needed and row["cost_per_hour"] == 2.0 * needed
    assert row["revenue_per_hour"] == pytest.approx(805 * 4e-6 * 24 * 3600, rel=0.1)


def test_the_capacity_of_bari2025_under_its_slo_is_one_call():
    """The largest rate with a median TTFT of 0.5 s, as section 7 of the paper bisects it."""
    rng = np.random.default_rng(3)
    lengths = {"prompt_tokens": rng.integers(100, 4000, 400), "output_tokens": rng.integers(50, 900, 400)}
    size = deadlines.Size(2_000, (1,), (1,), steps=9, fit_steps=1, edge_steps=1, rate_step=1.0)
    study = deadlines.Study(pl.DataFrame(lengths), size)
    for name in (deadlines.SARATHI, deadlines.SLAI):
        made = deadlines.Hardware().engine(1.2e-4, deadlines.POLICIES[name])
        workload = study.requests(1.0, 1)
        drawn = workload.frame["arrival_s"]
        realized = (drawn.len() - 1) / (drawn[-1] - drawn[0])
        slo = iq.Slo(ttft_p50=deadlines.TTFT_LIMIT_S)
        found = iq.capacity(workload, made, slo, warmup=size.requests // 10, precision=0.01)
        step = 2.2 / 2**size.steps
        assert found.rate / realized == pytest.approx(study.capacity(made, 1), rel=0.01, abs=step)


# -- where prices are given


SYSTEMS = {"one": plain(), "two": iq.Cluster(plain(1.2), replicas=2)}


def test_comparisons_tell_money_and_energy():
    """The mean equals `summary`; in blocks, cost per request is cost per hour over the rate."""
    trace = iq.Workload(
        iq.Workload.synthetic(requests=1600, arrivals=iq.dist.Poisson(8), **LENGTHS).draw(3).frame
    )
    found = iq.compare(trace, SYSTEMS, prices=PRICES)
    told = dict(found.frame.filter(system="two").select("metric", "mean").iter_rows())
    run = iq.simulate(trace, SYSTEMS["two"])
    row = run.summary(prices=PRICES).row(0, named=True)
    assert {name: told[name] for name in COSTS if name in told} == pytest.approx(
        {name: row[name] for name in COSTS if row[name] is not None}
    )
    names = ("request_throughput", "cost_per_request", "watts", "joules_per_request", "gpus")
    pseudo = pseudo_values(run, [Metric.of(name) for name in names], prices=PRICES)
    rate, cost, watts, joules, gpus = (
        (values.size * row[metric.name] - values) / (values.size - 1) for metric, values in pseudo.items()
    )
    assert np.allclose(cost * rate, 7.2 / 3600) and np.allclose(joules * rate, watts)
    assert np.allclose(gpus, 2) and watts.std() > 0
    by_class = iq.compare(trace, SYSTEMS, prices=PRICES, by="class", metrics=["e2e_p50", "cost_per_hour"])
    assert by_class.frame.filter(pl.col("class").is_not_null())["metric"].unique().to_list() == ["e2e_p50"]
    for wrong, said in (
        ({"metrics": ["watts"]}, "prices: required by the metric watts"),
        (
            {"prices": iq.Prices(gpu_hour={"h200": 2.0}, card="own")},
            "one: prices.gpu_hour.own: missing: no price",
        ),
        ({"prices": 3}, "prices: must be Prices"),
    ):
        with pytest.raises(iq.ConfigError, match=said):
            iq.compare(trace, SYSTEMS, **wrong)


SCENARIO = """
[workload]
requests = 200
arrivals = {{ kind = "Poisson", rate = 4 }}
prompt = {{ kind = "Fixed", tokens = 900 }}
output = {{ kind = "Geometric", mean = 20 }}
[engine]
model = "llama-3.1-8b"
gpu = "{gpu}"
[gate]
seeds = 3
tolerance = {{ cost_per_request = "1%", joules_per_million_output_tokens = "10 J" }}
{prices}
"""
TOML = 'currency = "USD"\n[gpu_hour]\nh100-80gb = 2.5\na100-80gb = 1.6\n'


def command(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(one) for one in arguments], env={"COLUMNS": "80"})
    return done.exit_code, done.output


def test_a_gate_holds_money_and_energy(tmp_path: Path):
    """Worse with a more expensive GPU; other prices are another scenario; prices from a file or a call."""
    chat, baseline = tmp_path / "chat.toml", tmp_path / "baseline.json"
    (tmp_path / "prices.toml").write_text(TOML)
    asks = ["gate", chat, "--baseline", baseline]
    chat.write_text(SCENARIO.format(gpu="a100-80gb", prices=""))
    code, said = command(*asks, "--update")
    assert code == 2 and "chat: tolerance.cost_per_request: requires [gate.prices] or prices" in said
    priced = [*asks, "--prices", tmp_path / "prices.toml"]
    assert command(*priced, "--update")[0] == 0
    assert command(*priced)[0] == 0
    inline = "gpu_hour = { a100-80gb = 1.6, h100-80gb = 2.5 }"
    of_file = SCENARIO.format(gpu="a100-80gb", prices=f'[gate.prices]\ncurrency = "USD"\n{inline}')
    chat.write_text(of_file)
    assert iq.gate(chat, baseline).passed
    chat.write_text(of_file.replace("a100-80gb = 1.6", "a100-80gb = 1.7"))
    code, said = command(*priced)
    assert code == 2 and "the prices differ" in said
    chat.write_text(of_file.replace('"a100-80gb"', '"h100-80gb"'))
    dearer = iq.gate(chat, baseline)
    assert not dearer.passed
    assert dict(dearer.frame.select("metric", "verdict").iter_rows())["cost_per_request"] == "worse"
    chat.write_text(of_file.replace("a100-80gb = 1.6, ", ""))
    code, said = command(*asks)
    assert code == 2 and "chat: prices.gpu_hour.a100-80gb: missing: no price" in said


def test_commands_and_pages_tell_costs(tmp_path: Path):
    """In 80 columns, in JSON, and on pages of one and several runs."""
    (tmp_path / "prices.toml").write_text(TOML)
    for gpu in ("a100-80gb", "h100-80gb"):
        (tmp_path / f"{gpu}.toml").write_text(SCENARIO.format(gpu=gpu, prices=""))
    prices, chat = ("--prices", tmp_path / "prices.toml"), tmp_path / "a100-80gb.toml"
    code, said = command("simulate", chat, *prices, "--out", tmp_path / "run")
    assert code == 0 and "cost USD" in said and "1 GPU in 1 node, 400 W on average." in said
    code, said = command("simulate", chat, *prices, "--json")
    assert json.loads(said)["summary"][-1]["cost_per_hour"] == 1.6
    both = [chat, tmp_path / "h100-80gb.toml"]
    code, said = command("compare", *both, *prices, "--seeds", 2, "--metric", "cost_per_hour")
    assert code == 0 and "1.60 USD" in said and "2.50 USD" in said
    code, said = command("report", tmp_path / "run", *prices, "--out", tmp_path / "page.html")
    assert code == 0 and "Cost and energy" in (tmp_path / "page.html").read_text()
    results = {path.stem: iq.Scenario.read(path).run() for path in both}
    grids = runs_page.document(results, None, None, iq.Prices.read(prices[1])).chapters[0].grids
    lines = {line[0]: line[1:] for line in grids[0].lines}
    assert lines["cost per hour"] == ["1.60 USD", "2.50 USD", "+56.2 %"]
    assert command("simulate", chat, "--prices", tmp_path / "none.toml")[0] == 2
    (tmp_path / "prices.toml").write_text("[gpu_hour]\nh200 = 3.0\n")
    for asked in (("simulate", chat), ("report", chat, "--out", tmp_path / "no.html")):
        code, said = command(*asked, *prices)
        assert code == 2 and "prices.gpu_hour.a100-80gb: missing: no price for this GPU" in said
