"""Published errors of the model next to verdicts with a smaller margin; `REWRITE_DOCS=1` renews the table."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

import inferq as iq
from inferq.experiments.model_error import TABLE, ModelErrors, published, with_errors
from inferq.results.metric import Metric

ACCURACY = Path(__file__).parent.parent / "docs" / "explanation" / "accuracy.md"
NAMES = {"req_s": "request_throughput", "out_tok_s": "output_throughput"}


def on_the_page() -> list[dict[str, Any]]:
    """The table "Errors by engine" of the accuracy page."""
    table = (
        ACCURACY.read_text(encoding="utf-8").partition("**Errors by engine, %**")[2].partition("\n\n**")[0]
    )
    cells = re.findall(
        r"^\| ([a-z]+) \| ([a-z0-9 ]+) \| (\d+) \| ([\d.]+) \| ([\d.]+) \|", table, re.MULTILINE
    )
    return [
        {
            "kind": {"engine": engine},
            "metric": NAMES.get(name := metric.replace(" ", "_"), name),
            "runs": int(runs),
            "median": round(float(median) / 100, 4),
            "p90": round(float(p90) / 100, 4),
        }
        for engine, metric, runs, median, p90 in cells
    ]


def test_the_errors_are_those_of_the_accuracy_page() -> None:
    rows = on_the_page()
    assert {row["kind"]["engine"] for row in rows} == {"vllm", "sglang"} and len(rows) == 21
    table = {"source": 'docs/explanation/accuracy.md, "Errors by engine"', "rows": rows}
    if os.environ.get("REWRITE_DOCS"):
        lines = ",\n".join(f"    {json.dumps(row)}" for row in rows)
        text = f'{{\n  "source": {json.dumps(table["source"])},\n  "rows": [\n{lines}\n  ]\n}}\n'
        TABLE.write_text(text, encoding="utf-8")
        published.cache_clear()
    assert json.loads(TABLE.read_text(encoding="utf-8")) == table
    assert all(Metric.of(row.metric).name == row.metric for row in published())
    assert len({(tuple(row.kind.items()), row.metric) for row in published()}) == len(published())


def server(name: str, **options: Any) -> iq.Engine:
    return iq.Engine.on("llama-3.1-8b", "h100-80gb", server=name, **options)


VLLM, SGLANG = server("vllm-0.15"), server("sglang-0.5")
SARATHI = iq.Engine.on("llama-3.1-8b", "h100-80gb", scheduler=iq.Sarathi())
FORMULA = iq.Engine(timing=iq.Constant(0.01), scheduler=iq.VllmV1(), kv=iq.KvCache(tokens=100_000))


# The accuracy page: mean TTFT 6.2 % for vLLM and 9.1 % for SGLang; P50 of TTFT 4.6 %, for vLLM alone.
@pytest.mark.parametrize(
    ("systems", "metric", "margin", "note"),
    [
        ([VLLM], "ttft_p50", 0.0195, "model error: vllm 4.6 %"),
        ([VLLM], "ttft_p50", -0.0195, "model error: vllm 4.6 %"),
        ([VLLM], "ttft_p50", 0.05, ""),
        ([SGLANG], "ttft_mean", 0.08, "model error: sglang 9.1 %"),
        ([VLLM, SGLANG], "ttft_mean", 0.08, "model error: sglang 9.1 %"),
        ([VLLM, SGLANG], "ttft_mean", 0.05, "model error: vllm 6.2 %, sglang 9.1 %"),
        ([VLLM, SGLANG], "ttft_p50", 0.01, "model error: vllm 4.6 %, sglang not measured"),
        ([VLLM], "itl_p99", 0.5, "model error: vllm not measured"),
        ([SARATHI], "ttft_p50", 0.5, "model error: Sarathi not measured"),
        ([iq.Cluster(VLLM, replicas=2)], "e2e_p99", 0.08, "model error: vllm 8.1 %"),
        ([FORMULA], "ttft_p50", 0.01, ""),  # a formula is no model of a server
        ([VLLM], "failed_share", 0.01, ""),  # no benchmark publishes it
        ([VLLM], "ttft_p50", None, ""),
    ],
)
def test_a_verdict_carries_the_error_of_its_kind_of_engine(
    systems: list[Any], metric: str, margin: float | None, note: str
) -> None:
    assert ModelErrors.of(*systems).note(Metric.of(metric), margin) == note


def test_the_row_with_the_most_properties_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    import inferq.experiments.model_error as module

    wide = module.PublishedError({"engine": "vllm"}, "ttft_p50", 9, 0.05, 0.1)
    narrow = module.PublishedError({"engine": "vllm", "gpu": "h200"}, "ttft_p50", 2, 0.2, 0.3)
    monkeypatch.setattr(module, "published", lambda: (wide, narrow))
    for gpu, median in (("h200", 0.2), ("h100-80gb", 0.05)):
        assert ModelErrors(({"engine": "vllm", "gpu": gpu},)).median("ttft_p50") == median


def test_speculation_is_a_kind_of_its_own() -> None:
    drafts = iq.Speculation(tokens=3, acceptance=0.5)
    engine = server("vllm-0.15", scheduler=iq.VllmV1(speculation=drafts))
    assert ModelErrors.of(engine).unmeasured == ("vllm with speculation",)


def test_rows_of_a_comparison() -> None:
    errors = {"b": ModelErrors.of(VLLM)}
    rows: list[dict[str, Any]] = [
        {"system": "b", "metric": "ttft_p50", "relative": relative, "verdict": verdict, "note": None}
        for relative, verdict in ((0.0195, "worse"), (0.0195, "not distinguishable"), (0.05, "worse"))
    ]
    assert with_errors(rows, errors) == ["ttft_p50"]
    assert [row["note"] for row in rows] == ["model error: vllm 4.6 %", None, None]
    assert [row["model_error"] for row in rows] == [0.046] * 3


WORK = iq.Workload.synthetic(
    requests=300,
    arrivals=iq.dist.Poisson(rate=8),
    prompt=iq.dist.Fixed(500),
    output=iq.dist.Geometric(mean=50),
)


def host(seconds: float, **options: Any) -> iq.Engine:
    return iq.Engine.on("llama-3.1-8b", "h100-80gb", overhead=iq.Overhead(base_s=seconds), **options)


def test_a_comparison_of_servers_reports_it() -> None:
    fast, slow = host(0.0), host(5e-5)
    compared = iq.compare(WORK, {"fast": fast, "slow": slow}, metrics=["tpot_mean"], seeds=range(5))
    (finding,) = [finding for finding in compared.findings if finding.kind == "model-error"]
    assert finding.data == {"tpot_mean": 0.039} and "median 3.9 %, P90 10.4 %, 39 runs" in finding
    assert compared.frame["model_error"].to_list() == [None, 0.039]
    assert compared.frame["note"].to_list() == [None, "model error: vllm 3.9 %"]
    assert "worse; model error: vllm 3.9 %" in " ".join(compared.explain(200).split())


def test_a_capacity_search_reports_it() -> None:
    trace = iq.Workload(WORK.draw(0).frame)
    answer = iq.capacity(trace, host(0.0), iq.Slo(e2e_mean=0.5), precision=0.02)
    assert answer.rate > 0 and answer.high is not None
    at_ends = [text for text in answer.findings if text.startswith("at ")]
    # Rates 2 % apart around the limit: both means are closer to it than the error of 3.6 %.
    assert all(text.endswith("[model error: vllm 3.6 %]") for text in at_ends) and len(at_ends) == 2
    kinds = [text.kind for text in answer.findings]
    assert kinds.count("model-error") == 1 and "no-model-error" not in kinds


def test_a_plan_reports_it() -> None:
    plan = iq.plan(WORK, iq.Slo(e2e_mean=10.0), engines=SARATHI, seeds=3)
    assert any("[model error: Sarathi not measured]" in text for text in plan.findings)
    assert "model error: Sarathi not measured" in plan.candidates["reason"][0]
    assert "no-model-error" in [text.kind for text in plan.findings]


CHAT = """
[workload]
requests = 300
arrivals = { kind = "Poisson", rate = 8 }
prompt = { kind = "Fixed", tokens = 500 }
output = { kind = "Geometric", mean = 50 }
[engine]
model = "llama-3.1-8b"
gpu = "h100-80gb"
overhead = { base_s = SECONDS }
[gate]
seeds = 3
tolerance = { tpot_mean = "0.1%" }
"""


def test_a_gate_reports_it(tmp_path: Path) -> None:
    chat, baseline = tmp_path / "chat.toml", tmp_path / "baseline.json"
    chat.write_text(CHAT.replace("SECONDS", "0.0"), encoding="utf-8")
    iq.gate(chat, baseline, update=True)
    assert "model error" not in str(iq.gate(chat, baseline))
    chat.write_text(CHAT.replace("SECONDS", "5e-5"), encoding="utf-8")
    report = iq.gate(chat, baseline)
    (verdict,) = report.scenarios[0].metrics
    assert verdict.verdict == "worse" and verdict.note == "model error: vllm 3.9 %"
    assert "(model error: vllm 3.9 %)" in str(report)
    assert "<sub>model error: vllm 3.9 %</sub>" in report.markdown().replace("\u00a0", " ")
