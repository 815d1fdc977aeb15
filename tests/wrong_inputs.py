"""Commands with wrong files: traces, scenarios, baselines, results, tokenizers, tables, prices."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl

import inferq as iq

from .damaged import in_bytes, in_json, in_text

ROOT = Path(__file__).parent.parent
TRACES = [file for file in sorted((ROOT / "traces").iterdir()) if file.is_file() and file.suffix != ".py"]
TOML = [file.read_text(encoding="utf-8") for file in sorted(ROOT.glob("docs/*.toml"))]
TABLES = (("llama-3.1-8b", "h200"), ("mixtral-8x7b", "h100-80gb"), ("qwen3-32b", "l40s"))
Command = list[object]


def wrong(draw: random.Random, folder: Path) -> Command:
    """A command with a wrong file, or a wrong command."""
    return draw.choice(KINDS)(draw, folder)


def _changed(path: Path, content: bytes, draw: random.Random) -> Path:
    """Change bytes, or a value of a text."""
    is_text = path.suffix not in (".parquet", ".gz") and draw.random() < 0.6
    path.write_bytes(in_text(content.decode(), path.suffix, draw) if is_text else in_bytes(content, draw))
    return path


def _texts(name: str) -> Command:
    return ["--tokens-per-word", 1.3] if re.match("sharegpt|long|dolly", name) else []


def _trace(draw: random.Random, folder: Path) -> Command:
    """Compressed or not; compressed files are damaged too."""
    trace = draw.choice(TRACES)
    path = _changed(folder / f"trace{trace.suffix}", trace.read_bytes(), draw)
    if draw.random() < 0.3:
        packed = gzip.compress(path.read_bytes())
        path.write_bytes(in_bytes(packed, draw) if draw.random() < 0.5 else packed)
    if draw.random() < 0.3:
        return ["trace", "describe", path, *_texts(trace.name)]
    options = ["--rate", 5, "--output-tokens", 9, "--out", folder / "out"]
    return ["replay", path, *options, *_texts(trace.name)]


COLUMNS: dict[str, list[Any]] = {
    "arrival_s": [0.0, 0.5, 1.5],
    "prompt_tokens": [3, 40, 900],
    "output_tokens": [1, 7, 30],
    "class": ["a", "b", None],
    "session_id": [1, 1, 2],
    "turn": [0, 1, 0],
    "think_s": [0.0, 0.1, None],
    "patience_s": [None, 0.1, 5.0],
    "priority": [0, 1, 2],
    "continues": [None, 0, None],
    "prefix_parts": [[["a", 3]], None, [["a", 2], ["b", 4]]],
    "prefix_hashes": [[1], [1, 2, 3], [2**63 - 1] * 57],
    "prefix_block_tokens": [16, 16, 16],
    "max_output_tokens": [4, None, 30],
    "itl_slo_s": [0.1, None, 0.2],
}
VALUES: tuple[Any, ...] = (
    *(None, -1, 0, 1, 2**31, 2**63 - 1, -(2**63), 2**64 - 1, 0.5, 1e300, -1e-300, float("nan"), float("inf")),
    *(
        "",
        "x",
        "\x00",
        "\ud7ff",
        b"\xff",
        True,
        [],
        [1],
        [[1, 2]],
        [["a", -1]],
        {"a": 1},
        {"text": None, "tokens": 1},
    ),
)


def _columns(draw: random.Random, folder: Path) -> Command:
    """A Parquet file of known columns with wrong values, types or rows."""
    names = ["arrival_s", "prompt_tokens", "output_tokens"]
    names = draw.sample(names, 3 - (draw.random() < 0.1)) + draw.sample(
        sorted(COLUMNS)[1:], draw.randrange(4)
    )
    columns = {name: list(COLUMNS[name]) for name in names}
    for _ in range(draw.choice((1, 1, 2))):
        values = columns[draw.choice(names)]
        values[draw.randrange(3)] = draw.choice(VALUES)
    made = pl.DataFrame({name: pl.Series(name, values, strict=False) for name, values in columns.items()})
    made.select(pl.exclude(pl.Object)).write_parquet(folder / "trace.parquet")
    cache = ["--set", f'engine.kv.prefix_cache="{draw.choice(("blocks", "radix"))}"']
    return ["replay", folder / "trace.parquet", *(cache if draw.random() < 0.5 else [])]


def _scenario(draw: random.Random, folder: Path) -> Command:
    path = _changed(folder / "a.toml", draw.choice(TOML).encode(), draw)
    command = draw.choice(("simulate", "simulate", "theory", "report"))
    return [
        command,
        path,
        "--set",
        "workload.requests=20",
        *(["--out", folder / "a.html"] if command == "report" else []),
    ]


def _baseline(draw: random.Random, folder: Path) -> Command:
    baseline = json.loads((ROOT / "docs" / "gate-baseline.json").read_text(encoding="utf-8"))
    (folder / "b.json").write_text(json.dumps(in_json(baseline, draw)))
    return ["gate", ROOT / "docs" / "chat.toml", "--baseline", folder / "b.json"]


def _result(draw: random.Random, folder: Path) -> Command:
    """A folder of a result with one wrong file; its manifest may match it."""
    work = {
        "arrival_s": [0.0, 0.1, 0.2],
        "prompt_tokens": [9, 4, 60],
        "output_tokens": [3, 9, 1],
        "class": list("aba"),
    }
    engine = iq.Engine(timing=iq.Constant(0.01), scheduler=iq.Sarathi(), kv=iq.KvCache.unlimited())
    place = folder / "result"
    iq.simulate(work, engine, out=place)
    file = draw.choice(sorted(file for file in place.rglob("*.*") if file.is_file()))
    if file.suffix == ".json" and draw.random() < 0.7:
        file.write_text(json.dumps(in_json(json.loads(file.read_text()), draw)))
    else:
        file.write_bytes(in_bytes(file.read_bytes(), draw))
    if draw.random() < 0.6:
        _resealed(place)
    return ["report", place, "--out", folder / "page.html"]


def _resealed(place: Path) -> None:
    """Update the hashes, as a forger would."""
    try:
        record = json.loads((place / "manifest.json").read_text())
        for name in record["files"]:
            record["files"][name] = hashlib.sha256((place / name).read_bytes()).hexdigest()
        record.pop("sha256", None)
        record["sha256"] = hashlib.sha256(json.dumps(record).encode()).hexdigest()
    except (ValueError, KeyError, TypeError, AttributeError, OSError):
        return
    (place / "manifest.json").write_text(json.dumps(record))


TOKENIZER: dict[str, Any] = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [
        {
            "id": 0,
            "content": "[UNK]",
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
    ],
    "normalizer": {"type": "Lowercase"},
    "pre_tokenizer": {
        "type": "Split",
        "pattern": {"Regex": "(a+)+b|\\s"},
        "behavior": "Isolated",
        "invert": False,
    },
    "post_processor": None,
    "decoder": None,
    "model": {"type": "WordLevel", "vocab": {"[UNK]": 0, "a": 1, "b": 2}, "unk_token": "[UNK]"},
}


def _tokenizer(draw: random.Random, folder: Path) -> Command:
    (folder / "tokenizer.json").write_text(json.dumps(in_json(in_json(TOKENIZER, draw), draw)))
    turns = [
        {"from": "human", "value": "a b " + "a" * draw.choice((1, 30, 3000))},
        {"from": "gpt", "value": "c"},
    ]
    (folder / "talks.json").write_text(json.dumps([{"id": "x", "conversations": turns}]))
    return ["trace", "describe", folder / "talks.json", "--tokenizer", folder / "tokenizer.json"]


def _measured(draw: random.Random, folder: Path) -> Command:
    lines = (ROOT / "tests/measured/runs.csv").read_bytes().splitlines(keepends=True)
    return ["validate", _changed(folder / "runs.csv", b"".join(lines[:4]), draw)]


def _prices(draw: random.Random, folder: Path) -> Command:
    prices = _changed(folder / "prices.toml", b'[gpus]\n"a100-80gb" = 1.8\n"h100-80gb" = 3.5\n', draw)
    most = ["--gpus", "h100-80gb", "--tp", 1, "--most-replicas", 1, "--head", 9]
    return ["plan", ROOT / "traces/table.csv", "--slo", "e2e_p99=20", *most, "--prices", prices]


def _table(draw: random.Random, folder: Path) -> Command:
    file = folder / "table.parquet"
    iq.TimingTable.shipped(*draw.choice(TABLES)).write(file)
    return ["timing", "show", _changed(file, file.read_bytes(), draw)]


COMMANDS = (
    "replay {traces}/azure_2023.csv --scheduler sarathi --timing a100 --rate 2 --head 20",
    "simulate {docs}/chat.toml --set workload.requests=20 --seed 3",
    "theory {docs}/chat.toml --set engine.kv.tokens=9000",
    "compare {docs}/chat.toml {docs}/gate.toml --seeds 2 --set workload.requests=20",
    "capacity {docs}/chat.toml --slo ttft_p99=0.5 --seeds 2 --set workload.requests=20",
    "plan {traces}/table.csv --slo e2e_p99=20 --gpus h100-80gb --tp 1 --most-replicas 2 --head 9",
    "sweep {docs}/chat.toml --set workload.requests=9,19 --seeds 2 --threads 1",
    "gate {docs}/chat.toml --baseline {docs}/gate-baseline.json --set workload.requests=9",
    "validate {tests}/measured/runs.csv --only engine=vllm --worst 2 --by gpu",
    "report {docs}/chat.toml --slo ttft_p99=1 --title chat",
    "trace describe {traces}/mooncake.jsonl --head 9",
    "list models",
    "init {traces}/burstgpt.csv --gpu h100-80gb --rate 3 --replicas 2",
)
ODD = (
    "",
    "-1",
    "0",
    "nan",
    "1e400",
    "9" * 400,
    "=",
    "a=b=c",
    "--",
    "-",
    "/dev/null",
    "/",
    "\u202e",
    "x\x1b[0m",
    "[",
    "{}",
)


def mangled(draw: random.Random, folder: Path) -> Command:
    """A command line with a wrong, missing, duplicate or moved word."""
    places = {"traces": ROOT / "traces", "docs": ROOT / "docs", "tests": ROOT / "tests"}
    words: Command = [word.format(**places) for word in draw.choice(COMMANDS).split()]
    for _ in range(draw.choice((1, 1, 2))):
        at = draw.randrange(1, len(words)) if len(words) > 1 else 0
        what = draw.randrange(4)
        if what == 0:
            words[at] = draw.choice(ODD)
        elif what == 1:
            words[at : at + 1] = []
        elif what == 2:
            words.insert(draw.randrange(len(words)), words[at])
        else:
            words.insert(at, draw.choice(ODD))
    return words


KINDS: tuple[Callable[[random.Random, Path], Command], ...] = (
    *(_trace, _trace, _trace, _columns, _columns, _scenario, _scenario),
    *(_baseline, _result, _result, _tokenizer, _measured, _prices, _table, mangled),
)
"""Functions by weight."""
