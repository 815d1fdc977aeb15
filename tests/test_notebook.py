"""Notebook views: numbers, no network, and completion of public names."""

import copy
import inspect
import pickle
import re
import sys
from types import SimpleNamespace
from typing import Any

import pytest

import inferq as iq
from inferq.display.text import number, seconds
from inferq.progress import watched

from .markup import Page
from .pictured import ENGINE, SHORT, run_of_a_fleet, synthetic


@pytest.fixture(scope="module")
def fleet() -> iq.Result:
    return run_of_a_fleet()


def shown(one: Any) -> Page:
    """The notebook view of an object, which must need no external resource."""
    text = one._repr_html_()
    assert not re.search(r"https?:|<script|@import", re.sub(r'xmlns(:\w+)?="[^"]*"', "", text))
    return Page(text)


def test_a_result_shows_its_numbers(fleet: iq.Result):
    held, row = shown(fleet), fleet.summary().row(0, named=True)
    assert held.of("b") == ["Result"] and "svg" in held.tags
    for name in ("ttft_p50", "ttft_p99", "e2e_p99"):
        assert seconds(row[name]) in held.of("td")
    assert "3 replicas behind LeastRequests" in held.of("td")
    told = repr(fleet)
    assert f"ttft p50 {seconds(row['ttft_p50'])}, p99 {seconds(row['ttft_p99'])}" in told
    assert f"{number(row['request_throughput'])} requests/s" in told
    rejected = iq.simulate({"arrival_s": [0.0], "prompt_tokens": [5000], "output_tokens": [3]}, SHORT)
    assert repr(rejected) == "Result(1 requests: 1 rejected; 1 finding)"
    assert "svg" not in shown(rejected).tags and any("Rejected" in one for one in shown(rejected).of("li"))


def test_engines_workloads_and_experiments_show_what_they_are():
    card = shown(iq.Engine.on("llama-3.1-8b", "h100-80gb", tensor_parallel=2))
    assert "2 × h100-80gb (2 per replica)" in card.of("td") and "llama-3.1-8b" in card.of("td")
    assert any("KV cache per replica" in one for one in shown(ENGINE).of("td"))
    asked = synthetic(300, 8, 600, 60)
    drawn = shown(asked)
    assert "300 with seed 0" in drawn.of("td")
    assert number(asked.draw(0).frame["prompt_tokens"].mean()) in drawn.of("td")
    closed = iq.Workload({"prompt_tokens": [1], "output_tokens": [1]})
    assert shown(closed).of("b") == ["Workload"]
    other = iq.Engine(timing=ENGINE.timing, scheduler=iq.VllmV0(), kv=ENGINE.kv)
    found = iq.compare(asked, {"a": ENGINE, "b": other}, seeds=range(2), metrics=["ttft_p99"])
    held = shown(found)
    (row,) = found.frame.filter(system="b").rows(named=True)
    assert seconds(row["mean"]) in held.of("td") and row["verdict"] in held.of("td")
    plan = iq.capacity(asked, ENGINE, iq.Slo(ttft_p50=0.5), seeds=range(2), precision=0.5)
    assert number(plan.rate, 4) in shown(plan).of("li")[0]
    verdict = iq.theory.stability(asked, ENGINE)
    assert shown(verdict).of("pre") == [" ".join(verdict.explain().split())]
    trace = iq.Workload(asked.draw(0).frame.head(60))
    chosen = iq.plan(trace, iq.Slo(ttft_p99=5), model="llama-3.1-8b", gpus=["h200"], tensor_parallel=[1])
    held = shown(chosen)
    assert held.of("b") == ["FleetPlan"] and chosen.name(chosen.best.candidate, chosen.units) in held.of("td")


def test_pictures_need_no_network_in_a_notebook(fleet: iq.Result):
    import altair as alt

    chart = fleet.plot.queue()
    assert chart._repr_mimebundle_()["image/svg+xml"].startswith("<svg")
    assert pickle.loads(pickle.dumps(chart)).to_dict() == chart.to_dict() == copy.deepcopy(chart).to_dict()
    with alt.renderers.enable("json"):  # what the user chose is kept
        assert "image/svg+xml" not in chart._repr_mimebundle_()


def test_completion_lists_public_names_and_parts_that_exist(fleet: iq.Result):
    assert {"timing", "scheduler", "explain", "on", "to_json"} <= set(dir(ENGINE))
    assert {"on", "from_json"} <= set(dir(iq.Engine))
    assert not [name for name in dir(iq) if name.isupper()]
    # a missing part is no attribute for a variable explorer, and an error with a reason
    assert not hasattr(fleet, "revenue") and hasattr(fleet, "requests")
    with pytest.raises(AttributeError, match="`itl`"):
        fleet.tbt  # type: ignore[attr-defined] # noqa: B018
    assert dict(inspect.getmembers(fleet))["has_jobs"] is False
    with pytest.raises(iq.ConfigError, match="revenue"):
        fleet.revenue  # noqa: B018
    with pytest.raises(iq.ConfigError, match="synthetic"):
        iq.dist.Empirical(synthetic(3, 1, 2, 2))


def test_a_bar_in_a_notebook(monkeypatch: pytest.MonkeyPatch):
    bars: list[str] = []
    shell = SimpleNamespace(
        HTML=lambda text: text,
        display=lambda text, display_id: bars.append(text) or SimpleNamespace(update=bars.append),
    )
    monkeypatch.setitem(
        sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=1))
    )
    monkeypatch.setitem(sys.modules, "IPython.display", shell)
    clock = iter(range(100))
    monkeypatch.setattr("inferq.progress.time.monotonic", lambda: float(next(clock)))
    with watched(True, "requests") as tell:
        assert tell is not None
        tell(1200, 4000)
        tell(4000, 4000)
    assert 'value="1200" max="4000"' in bars[0] and "1,200 of 4,000 requests" in bars[0]
    assert "4,000 of 4,000" in bars[1] and bars[-1] == ""


def test_commands_are_never_silent_in_a_pipe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("inferq.progress._EVERY_S", 0.01)
    with watched(True, "runs", in_a_pipe=True) as tell:
        assert tell is not None
        tell(1, 4)
        told = ""
        while "1 of 4 runs" not in told:
            told += capsys.readouterr().err
    with watched(True, "runs") as quiet:
        assert quiet is None
