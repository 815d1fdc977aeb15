"""A small user script; `make lint` checks it against the types of the package."""

from typing import Any

import inferq as iq

log = [
    {"arrival_s": 0.0, "prompt_tokens": 100, "output_tokens": 20},
    {"arrival_s": 0.5, "prompt_tokens": 200, "output_tokens": 30},
]
engine = iq.Engine.on("llama-3.1-8b", "h100-80gb")
run = iq.simulate(log, engine, warmup="0s")
findings: list[iq.Finding] = run.findings
trace = iq.read_trace("traces/azure_2023.csv", time_unit=None).at_rate(12)
fleet = iq.Cluster(engine, replicas=2, router=iq.PrefixAffinity())
comparison = iq.compare(trace, {"one": engine, "two": fleet}, seeds=3, metrics=["ttft_p99"])
print(comparison.explain(), run.summary()["ttft_p99"].item(), findings)
limit = iq.capacity(trace, engine, iq.Slo(ttft_p99=0.5), seeds=3)
print(limit.rate)
classes = iq.Workload(log).with_classes("chat")
split = iq.Disaggregated(
    prefill=(engine, 1), decode=(engine, 2), link=iq.Link(latency_s=1e-4, bytes_per_s=50e9)
)
count: int = len(trace)
chosen = iq.plan(trace, iq.Slo(ttft_p99=1), model="llama-3.1-8b", gpus=["h200"], tensor_parallel=[1])
page = iq.report(iq.simulate(trace, split), "split.html", slo=iq.Slo(ttft_p99=1))
grid: dict[str, Any] = {"engine.scheduler.token_budget": [256, 512]}
points = iq.sweep("docs/chat.toml", seeds=[0], **grid)
print(chosen.units, chosen.findings, page.suffix, points.height, count)
