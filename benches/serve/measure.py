"""What load generators measure of `inferq serve`, beside what `simulate` says of the same arrivals.

Three systems at two loads, each measured by unmodified load generators: AIPerf with users, with Poisson
arrivals and with the schedule of a trace in Mooncake's form, and GuideLLM. A load is a share of the rate that
the system sustains while there is always one more request. The server records the arrivals, the same system
simulates them again, and what the client says of each request is held against that: mean and 99th percentile
of the time to the first token, of the time a token and of the time to the last one, and the throughput.

    python benches/serve/measure.py --aiperf VENV/bin/aiperf --guidellm VENV/bin/guidellm
    python benches/serve/measure.py --page docs/guides/mock-server.md

The load generators are installed in environments of their own. Measure on a machine that does nothing else: a
row is added to `measured.jsonl` for each point. The second command writes table and picture of the page.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import polars as pl
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import inferq as iq
from inferq.display.style import BLUE, ORANGE, colored, styled, svg

ROOT = Path(__file__).parents[2]
SEED = 1
LOADS = (0.5, 0.9)
PROMPT_TOKENS, PROMPT_SPREAD = 300, 80
OUTPUT_TOKENS, OUTPUT_SPREAD = 60, 15
"""Mean and standard deviation."""
TURNS, THINK_S = 4, 1.0
"""Of a chat."""
FIRST = 40
"""So many requests, which open connections, count on neither side."""


def engine(seats: int) -> iq.Engine:
    """An engine of 33 tokens a second and seat: slow enough that two cores hold server and client."""
    return iq.Engine(
        timing=iq.PiecewiseLinear(base=0.03, per_token=1.2e-4, knee=64, per_context_token=4e-8),
        scheduler=iq.VllmV1(max_seqs=seats),
        kv=iq.KvCache(tokens=400_000, prefix_cache="blocks"),
    )


SYSTEMS: Mapping[str, iq.Engine | iq.Cluster | iq.Disaggregated] = {
    "one": engine(16),
    "four": iq.Cluster([engine(5)] * 4, router=iq.PrefixAffinity()),
    "2 + 2": iq.Disaggregated(
        prefill=(engine(16), 2),
        decode=(engine(8), 2),
        link=iq.Link(latency_s=0.001, bytes_per_s=25e9, bytes_per_token=131_072),
    ),
}


def workload(name: str, requests: int, rate: float) -> iq.Workload:
    """What clients send: requests, or to the four replicas chats, so many requests a second."""
    if name == "four":
        return iq.Workload.sessions(
            sessions=requests // TURNS,
            arrivals=iq.dist.Poisson(rate=rate / TURNS),
            turns=TURNS,
            prompt=PROMPT_TOKENS,
            output=OUTPUT_TOKENS,
            think=THINK_S,
        )
    dice = np.random.default_rng(SEED)

    def lengths(mean: int, spread: int) -> np.ndarray[Any, Any]:
        return np.maximum(2, dice.normal(mean, spread, requests).round()).astype(np.int32)

    rows = {
        "prompt_tokens": lengths(PROMPT_TOKENS, PROMPT_SPREAD),
        "output_tokens": lengths(OUTPUT_TOKENS, OUTPUT_SPREAD),
    }
    return iq.Workload(rows).with_arrivals(iq.dist.Poisson(rate=rate))


@cache
def sustained(name: str) -> float:
    """Requests a second that a system works off while there is always one more."""
    backlog = workload(name, 4_000, rate=1_000)
    finish = iq.simulate(backlog, SYSTEMS[name], seed=SEED).requests["finish_s"].sort()
    middle = finish[len(finish) // 4 : 3 * len(finish) // 4]
    return len(middle) / float(middle[-1] - middle[0])


@dataclass(frozen=True)
class Point:
    """One measurement."""

    system: str
    load: float
    client: str
    seconds: float

    @property
    def rate(self) -> float:
        """Requests a second."""
        return self.load * sustained(self.system)

    @property
    def requests(self) -> int:
        """That are sent, a multiple of the turns of a chat."""
        return round(self.rate * self.seconds / TURNS) * TURNS

    def users(self, think_s: float) -> int:
        """Users that make about the load: each waits for an answer, and thinks, before the next request."""
        sent = workload(self.system, 8_000, self.rate)
        e2e_s = iq.simulate(sent, SYSTEMS[self.system], seed=SEED).requests["e2e_s"].to_numpy()
        return round(self.rate * (float(e2e_s.mean()) + think_s))


@dataclass(frozen=True)
class Tools:
    """What a measurement needs of the machine."""

    aiperf: str
    guidellm: str
    tokenizer: str


def trained(folder: Path) -> str:
    """A tokenizer that server and clients count with: pairs of bytes of these guides, as GPT-2's."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=8_000, special_tokens=["</s>"], initial_alphabet=alphabet)
    tokenizer.train([str(page) for page in sorted(ROOT.glob("docs/**/*.md"))], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>"}
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    (folder / "tokenizer_config.json").write_text(json.dumps({**about, "chat_template": template}))
    return str(folder)


def aiperf(point: Point, url: str, folder: Path, tools: Tools) -> list[str]:
    """The command that measures a point with AIPerf."""
    told = [
        f"--url {url} --model inferq --endpoint-type chat --streaming --extra-inputs ignore_eos:true",
        f"--artifact-dir {folder} --random-seed {SEED} --ui none --no-server-metrics --no-gpu-telemetry",
        "--workers-max 1 --record-processors 1",
    ]
    chats = point.system == "four"
    if point.client == "schedule":
        told.append(f"--input-file {schedule(point, folder)} --custom-dataset-type mooncake_trace")
    else:
        told.append(f"--isl {PROMPT_TOKENS} --isl-stddev {PROMPT_SPREAD}")
        told.append(f"--osl {OUTPUT_TOKENS} --osl-stddev {OUTPUT_SPREAD}")
        if chats:
            told.append(f"--conversation-num {point.requests // TURNS} --conversation-turn-mean {TURNS}")
            told.append(f"--conversation-turn-delay-mean {1000 * THINK_S}")
        else:
            told.append(f"--request-count {point.requests} --num-dataset-entries {point.requests}")
    if point.client == "users":
        think_s = THINK_S * (TURNS - 1) / TURNS if chats else 0.0
        told.append(f"--concurrency {point.users(think_s)}")
    elif point.client == "poisson":
        told.append(f"--request-rate {point.rate} --arrival-pattern poisson")
    return [tools.aiperf, "profile", "--tokenizer", tools.tokenizer, *" ".join(told).split()]


def schedule(point: Point, folder: Path) -> Path:
    """The requests of a point as a trace in Mooncake's form."""
    sent = workload(point.system, point.requests, point.rate)
    rows = []
    for row in sent.draw(SEED).frame.iter_rows(named=True):
        said = {"input_length": row["prompt_tokens"], "output_length": row["output_tokens"]}
        if row.get("turn"):
            said |= {"input_length": PROMPT_TOKENS, "delay": 1000 * THINK_S}
        else:
            said["timestamp"] = round(1000 * row["arrival_s"])
        if "session_id" in row:
            said["session_id"] = str(row["session_id"])
        rows.append(json.dumps(said) + "\n")
    path = folder.with_name("schedule.jsonl")
    path.write_text("".join(rows))
    return path


def guidellm(point: Point, url: str, folder: Path, tools: Tools) -> list[str]:
    """The command that measures a point with GuideLLM."""
    folder.mkdir(parents=True)
    data: dict[str, Any] = {
        "kind": "synthetic_text",
        "prompt_tokens": PROMPT_TOKENS,
        "prompt_tokens_stdev": PROMPT_SPREAD,
        "output_tokens": OUTPUT_TOKENS,
        "output_tokens_stdev": OUTPUT_SPREAD,
    }
    profile: dict[str, Any] = {"kind": "poisson", "rate": point.rate}
    if point.system == "four":
        # Its Poisson arrivals are of single requests, and its users do not think.
        data["turns"] = TURNS
        profile = {"kind": "concurrent", "streams": point.users(think_s=0.0)}
    options = {
        "--backend": {"kind": "openai_http", "target": url, "model": "inferq", "http2": False},
        "--tokenizer": {"kind": "huggingface_auto", "model": tools.tokenizer},
        "--data": data,
        "--seed": {"kind": "static", "value": SEED},
        "--profile": profile,
        "--constraint": {"kind": "max_requests", "count": point.requests},
        "--output": {"kind": "json", "path": str(folder / "report.json")},
    }
    told = [part for name, value in options.items() for part in (name, json.dumps(value))]
    return [tools.guidellm, "run", "--disable-console-interactive", *told]


def told_by_aiperf(folder: Path) -> pl.DataFrame:
    """Each request as AIPerf tells it: start, time to the first token, a token, the last; in seconds."""
    rows = []
    for line in (folder / "profile_export.jsonl").read_text().splitlines():
        told = json.loads(line)
        value = {name: field["value"] for name, field in told["metrics"].items()}
        row = {
            "start_s": told["metadata"]["request_start_ns"] / 1e9,
            "ttft_s": value["time_to_first_token"] / 1e3,
            "tpot_s": value["inter_token_latency"] / 1e3,
            "e2e_s": value["request_latency"] / 1e3,
            "output_tokens": value["output_sequence_length"],
        }
        rows.append(row)
    return pl.DataFrame(rows)


def told_by_guidellm(folder: Path) -> pl.DataFrame:
    """Each request as GuideLLM tells it."""
    (benchmark,) = json.loads((folder / "report.json").read_text())["benchmarks"]
    return pl.DataFrame(
        {
            "start_s": told["request_start_time"],
            "ttft_s": told["time_to_first_token_ms"] / 1e3,
            "tpot_s": told["inter_token_latency_ms"] / 1e3,
            "e2e_s": told["request_latency"],
            "output_tokens": told["output_tokens"],
        }
        for told in benchmark["requests"]["successful"]
    )


@dataclass(frozen=True)
class Client:
    """A load generator, and how it sends."""

    name: str
    command: Callable[[Point, str, Path, Tools], list[str]]
    told: Callable[[Path], pl.DataFrame]


CLIENTS = {
    "users": Client("AIPerf, users", aiperf, told_by_aiperf),
    "poisson": Client("AIPerf, Poisson", aiperf, told_by_aiperf),
    "schedule": Client("AIPerf, Mooncake", aiperf, told_by_aiperf),
    "guidellm": Client("GuideLLM", guidellm, told_by_guidellm),
}


@contextmanager
def served(system: Any, record: Path, tokenizer: str, said: list[str]) -> Iterator[str]:
    """The address of a server of the system; what it says at the end is added to `said`."""
    scenario = record.with_name("scenario.json")
    iq.Scenario(workload("one", 10, rate=1), system).write(scenario)
    command = [sys.executable, "-m", "inferq.cli", "serve", str(scenario), "--port", "0", "--seed", str(SEED)]
    command += ["--tokenizer", tokenizer, "--record", str(record)]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    assert server.stderr is not None
    try:
        line = next(line for line in server.stderr if "http://" in line)
        yield re.findall(r"(http://\S+)/v1", line)[0]
    finally:
        server.send_signal(signal.SIGTERM)
        said += server.stderr.read().splitlines()
        server.wait()


def told_of(simulated: pl.DataFrame, measured: pl.DataFrame) -> pl.DataFrame:
    """Without the requests that the client does not tell of, as GuideLLM may: those that fit worst."""
    while len(simulated) > len(measured):
        starts = measured["start_s"].to_numpy() - measured["start_s"][0]
        apart = [
            np.ptp(np.delete(simulated["start_s"].to_numpy(), place)[: len(starts)] - starts)
            for place in range(len(simulated))
        ]
        place = int(np.argmin(apart))
        simulated = pl.concat([simulated[:place], simulated[place + 1 :]])
    return simulated


def statistics(rows: pl.DataFrame) -> dict[str, float]:
    """Of requests, by their `start_s`: mean and p99 of each latency in milliseconds, and tokens a second."""
    rows = rows.sort("start_s")[FIRST:]
    found = {}
    for name in ("ttft", "tpot", "e2e"):
        values = 1e3 * rows[f"{name}_s"].drop_nulls().to_numpy()
        found[f"{name}_mean"] = float(values.mean())
        found[f"{name}_p99"] = float(np.percentile(values, 99))
    ended = (rows["start_s"] + rows["e2e_s"]).to_numpy().max()
    found["throughput"] = float(rows["output_tokens"].sum() / (ended - rows["start_s"][0]))
    return found


def within(name: str, measured: float, simulated: float) -> bool:
    """Whether they are as close as they should be: 2 % and 2 ms, of a throughput 2 %."""
    return abs(measured - simulated) <= 0.02 * simulated + (0 if name == "throughput" else 2)


def measure(point: Point, tools: Tools) -> dict[str, Any]:
    """Measure a point, and simulate what was recorded."""
    system, client, said = SYSTEMS[point.system], CLIENTS[point.client], list[str]()
    environment = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    with tempfile.TemporaryDirectory() as place:
        folder, record = Path(place) / "client", Path(place) / "trace.parquet"
        with served(system, record, tools.tokenizer, said) as url:
            command = client.command(point, url, folder, tools)
            done = subprocess.run(command, capture_output=True, text=True, env=environment)
            if done.returncode:
                raise SystemExit(done.stdout[-3000:] + done.stderr[-3000:])
        measured = client.told(folder)
        simulated = iq.simulate(iq.read_trace(record), system, seed=SEED).requests
    measured = measured.sort("start_s")
    simulated = told_of(simulated.rename({"arrival_s": "start_s"}).sort("start_s"), measured)
    if measured["output_tokens"].sum() != simulated["output_tokens"].sum():
        raise SystemExit(f"{point}: the client tells of other requests than the server")
    return {
        "system": point.system,
        "load": point.load,
        "client": point.client,
        "requests": len(measured) - FIRST,
        "measured": statistics(measured),
        "simulated": statistics(simulated),
        "said": said[-1],
    }


def shown(row: Mapping[str, Any]) -> str:
    """A result in lines."""
    lines = [f"{row['system']}, {row['load']}, {row['client']}: {row['requests']} counted; {row['said']}"]
    for name, simulated in row["simulated"].items():
        measured = row["measured"][name]
        far = "" if within(name, measured, simulated) else "  beyond 2 % and 2 ms"
        lines.append(f"  {name:10} {measured:9.2f} {simulated:9.2f} {measured - simulated:+8.2f}{far}")
    return "\n".join(lines)


COLUMNS = {
    "ttft_mean": "TTFT, ms",
    "ttft_p99": "p99",
    "tpot_mean": "TPOT, ms",
    "tpot_p99": "p99",
    "e2e_mean": "E2E, ms",
    "e2e_p99": "p99",
    "throughput": "tokens/s",
}


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Simulated values and measured differences; bold if a difference is too large."""
    heads = ["system", "load", "client", *COLUMNS.values()]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for row in rows:
        cells = [row["system"], str(row["load"]), CLIENTS[row["client"]].name]
        for name in COLUMNS:
            simulated, measured = row["simulated"][name], row["measured"][name]
            digits = 1 if name.startswith(("ttft", "e2e")) else 2
            more = round(measured - simulated, digits) + 0.0  # no -0.0
            bold = "" if within(name, measured, simulated) else "**"
            cells.append(f"{bold}{simulated:,.{digits}f} {more:+.{digits}f}{bold}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def picture(rows: Sequence[Mapping[str, Any]]) -> str:
    """Mean and p99 of each latency at the highest load: what is measured, on what is simulated."""
    titles = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E latency"}
    told = pl.DataFrame(
        {
            "point": f"{row['system']}: {CLIENTS[row['client']].name}",
            "latency": latency,
            "statistic": statistic,
            "kind": kind,
            "ms": row[kind][f"{latency}_{statistic}"],
        }
        for row in rows
        if row["load"] == max(LOADS)
        for latency in titles
        for statistic in ("mean", "p99")
        for kind in ("simulated", "measured")
    )
    shape = alt.Shape("statistic:N", title=None, legend=alt.Legend(orient="bottom"))
    color = colored("kind", {"simulated": BLUE, "measured": ORANGE})
    y = alt.Y("point:N", title=None, sort=None, axis=alt.Axis(labelLimit=240))
    panels = []
    for latency, title in titles.items():
        one = told.filter(latency=latency)
        ticks = [number * 10**power for power in range(1, 5) for number in (1, 2, 3, 4, 5, 7)]
        scale = alt.Scale(type="log", nice=False, padding=15)
        x = alt.X("ms:Q", title=f"{title}, ms", scale=scale, axis=alt.Axis(values=ticks))
        dots = [
            alt.Chart(one.filter(kind=kind))
            .mark_point(filled=kind == "simulated", size=size, opacity=1, strokeWidth=1.5)
            .encode(x=x, y=y, color=color, shape=shape)
            for kind, size in (("simulated", 110), ("measured", 30))
        ]
        panels.append(alt.layer(*dots).properties(width=420, height=18 * one["point"].n_unique()))
    return svg(styled(alt.vconcat(*panels)))


def write(page: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """The table between its marks in the page, and the picture beside it."""
    marked = re.compile(r"(<!-- measure.py -->\n).*?(<!-- end -->)", re.DOTALL)
    text = page.read_text(encoding="utf-8")
    text, count = marked.subn(lambda mark: f"{mark[1]}\n{table(rows)}\n\n{mark[2]}", text)
    if count != 1:
        raise SystemExit(f"{page}: has no mark for the table")
    page.write_text(text, encoding="utf-8")
    page.with_suffix(".svg").write_text(picture(rows), encoding="utf-8")


def main() -> None:
    """Measure the points asked for, or write what was measured into a page."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--aiperf", default="aiperf")
    parser.add_argument("--guidellm", default="guidellm")
    parser.add_argument("--seconds", type=float, default=60.0, help="of a measurement")
    parser.add_argument("--only", action="append", help="SYSTEM,LOAD,CLIENT; again for more")
    parser.add_argument("--results", type=Path, default=Path(__file__).with_name("measured.jsonl"))
    parser.add_argument("--page", type=Path, help="write the results there, and measure nothing")
    asked = parser.parse_args()
    every = [f"{system},{load},{client}" for system in SYSTEMS for load in LOADS for client in CLIENTS]
    if asked.page is not None:
        rows = [json.loads(line) for line in asked.results.read_text(encoding="utf-8").splitlines()]
        rows.sort(key=lambda row: every.index(f"{row['system']},{row['load']},{row['client']}"))
        write(asked.page, rows)
        return
    with tempfile.TemporaryDirectory() as folder:
        tools = Tools(asked.aiperf, asked.guidellm, trained(Path(folder)))
        for one in asked.only or every:
            system, load, client = one.split(",")
            row = measure(Point(system, float(load), client, asked.seconds), tools)
            print(shown(row), flush=True)
            with asked.results.open("a", encoding="utf-8") as results:
                results.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
