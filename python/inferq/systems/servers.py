"""What a server does unasked, by its version and the card: the rules that read `servers.json`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, cast

from inferq.description import read_fields
from inferq.errors import ConfigError
from inferq.scheduler import SCHEDULERS, Scheduler, Speculation
from inferq.systems.kv_cache import KvCache
from inferq.systems.overhead import Overhead
from inferq.timing.hardware.gpu import Gpu
from inferq.timing.hardware.kv_memory import GIB
from inferq.workload.columns import nearest


@cache
def _table() -> Mapping[str, Mapping[str, Any]]:
    """Every release; an entry of `servers.json` is that of its first one, and of all up to `until`.

    vLLM's were read release by release in its source distributions; 0.15 has none.
    """
    read: dict[str, dict[str, Any]] = json.loads(
        (Path(__file__).parent / "servers.json").read_text(encoding="utf-8")
    )
    table = {}
    for first, entry in read.items():
        engine, major, minor = re.split(r"[-.]", first)
        for number in range(int(minor), entry["until"] + 1):
            version = f"{major}.{number}"
            table[f"{engine}-{version}"] = {**entry, "sources": _sources(entry["sources"], version)}
    return table


def _sources(sources: Mapping[str, str], version: str) -> Mapping[str, str]:
    """The sources of a release, by setting."""
    read = "0.14.0" if version == "0.15" else f"{version}.0"
    beside = "; 0.16.0 agrees, taken to hold in 0.15" if version == "0.15" else ""
    return {
        name: source.format(release=read, version=version) + (beside if "{release}" in source else "")
        for name, source in sources.items()
    }


def known_servers() -> tuple[str, ...]:
    """The servers that `Engine.on(..., server=…)` takes."""
    return tuple(_table())


@dataclass(frozen=True, slots=True)
class Server:
    """One version of a server on one card.

    Args:
        name: its entry in `servers.json`.
        version: as it was asked for, the patch release too if it was named.
        card: where it runs.
    """

    name: str
    version: tuple[int, ...]
    card: Gpu

    @classmethod
    def of(cls, name: str, card: Gpu) -> Server:
        """The server called `vllm-0.33`, `vllm-0.33.0`, `sglang-0.5` and so on, in any case.

        Raises:
            ConfigError: no such server, with the nearest that is known.
        """
        found = re.fullmatch(r"([a-z]+-\d+\.\d+)((?:\.\d+)*)", str(name).strip().lower())
        if found is None or found[1] not in _table():
            raise ConfigError("server", f"unknown server {name!r}{_nearest(str(name))}")
        number = found[1].partition("-")[2] + found[2]
        return cls(found[1], tuple(map(int, number.split("."))), card)

    @classmethod
    def newest(cls, scheduler: object, card: Gpu) -> Server:
        """The newest server that is known: the one whose scheduler it is, else vLLM."""
        kind = type(scheduler).__name__
        own = [name for name, entry in _table().items() if entry["scheduler"] == kind]
        return cls.of((own or [name for name in _table() if name.startswith("vllm")])[-1], card)

    @staticmethod
    def known() -> list[str]:
        """The names of all servers, oldest first."""
        return list(_table())

    @staticmethod
    def until(engine: str, version: tuple[int, ...]) -> str:
        """The newest server of this program that is no newer than a version; else its oldest."""
        releases = {
            tuple(map(int, one.partition("-")[2].split("."))): one
            for one in _table()
            if one.startswith(engine)
        }
        return releases[max((one for one in releases if one <= version), default=min(releases))]

    @property
    def engine(self) -> Literal["vllm", "sglang"]:
        """The program, without its version."""
        return cast("Literal['vllm', 'sglang']", self.name.partition("-")[0])

    @property
    def prefix_cache(self) -> Literal["blocks", "radix"]:
        """The kind of prefix cache that it keeps."""
        return cast("Literal['blocks', 'radix']", _table()[self.name]["prefix_cache"])

    @property
    def block(self) -> int:
        """Tokens of a block of its KV cache."""
        return int(_table()[self.name]["block"])

    def limits(self) -> Mapping[str, int]:
        """Tokens of an iteration and requests at once, by the scheduler's names of them."""
        gib = self.card.memory_bytes / GIB
        name = self.card.name.lower()
        rows = _table()[self.name]["limits"]
        row = next(
            row
            for row in rows
            if gib >= row.get("least_gib", 0)
            and row.get("without", "\n") not in name
            and ("before" not in row or self._is_before(*row["before"]))
        )
        return {key: value for key, value in row.items() if key not in ("least_gib", "without", "before")}

    def _is_before(self, *version: int) -> bool:
        """Was an earlier patch release asked for? Without one it is the newest of its kind."""
        return len(self.version) > 2 and self.version < version

    def gpu_memory_utilization(self, gpus: int) -> float:
        """The share of the card that it uses; SGLang's is `mem_fraction_static`."""
        share = _table()[self.name].get("gpu_memory_utilization")
        if share is not None:
            return float(share)
        return sglang_share(self.card, gpus, self.version if len(self.version) > 2 else None)

    def source(self, setting: str) -> str:
        """Where its value of a setting comes from."""
        return str(_table()[self.name]["sources"][setting])

    @property
    def api_s(self) -> float:
        """From a client to the engine and back."""
        return float(_table()[self.name]["api_s"])

    def host(self, layers: int, gpus: int, token_budget: int | None) -> Overhead:
        """What its host takes for an iteration.

        Several GPUs have a process each, which is told of every request of a batch. A batch above the largest
        captured graph is launched kernel by kernel, so much for each layer.

        Args:
            layers: of the model.
            gpus: that share it.
            token_budget: of the scheduler; no graph is larger.
        """
        host, name = _table()[self.name]["host"], self.card.name.lower()
        graphs = _table()[self.name]["graphs"]
        tokens = next((row["tokens"] for row in graphs if name in row.get("only", (name,))), None)
        launched = (
            {}
            if tokens is None
            else {
                "largest_graph_tokens": min(tokens, token_budget or tokens),
                "beyond_graph_s": layers * host["beyond_graph_of_a_layer_s"],
            }
        )
        return Overhead(
            base_s=host["base_s"],
            per_sequence_s=host["per_sequence_s" if gpus == 1 else "per_sequence_of_several_gpus_s"],
            overlapped=host["overlapped"],
            **launched,
        )

    def scheduler(self, given: Mapping[str, Any], max_model_len: int | None) -> Scheduler:
        """Its scheduler, with the fields that are `given` instead of its own."""
        entry = _table()[self.name]
        kind = next(one for one in SCHEDULERS if one.__name__ == entry["scheduler"])
        for field in given:
            if field not in kind.written_fields():
                raise ConfigError(
                    f"scheduler.{field}", f"unknown field{nearest(field, kind.written_fields())}"
                )
        if isinstance(given.get("speculation"), Mapping):
            drafts = read_fields("scheduler.speculation", given["speculation"], Speculation)
            given = {**given, "speculation": drafts}
        fields = {**self.limits(), **entry["fields"], **given}
        if given.get("async_scheduling") is False and "pause_s" not in given:
            fields["pause_s"] = 0.0  # which only a loop that plans ahead has
        try:
            kind(**fields)
        except ConfigError as error:
            raise error.within("scheduler") from None
        if self.engine == "vllm":
            if "token_budget" not in given and max_model_len is not None:
                fields["token_budget"] = min(fields["token_budget"], fields["max_seqs"] * max_model_len)
            if "max_seqs" not in given:
                fields["max_seqs"] = min(fields["max_seqs"], fields["token_budget"])
        return kind(**fields)

    def check(self, scheduler: object, prefix_cache: str | None) -> None:
        """Refuse what this server does not have.

        Args:
            scheduler: the one that forms batches.
            prefix_cache: as the caller gives it; None: the server's own.

        Raises:
            ConfigError: the scheduler of another server, or another prefix cache than its own.
        """
        kind = _table()[self.name]["scheduler"]
        if type(scheduler).__name__ != kind:
            raise ConfigError("scheduler", f"{self.name} has {kind}, not {type(scheduler).__name__}")
        if prefix_cache == "none" and self.prefix_cache == "radix":
            raise ConfigError(
                "prefix_cache", f"{self.name} keeps a radix tree; a cache without one is given whole, as kv"
            )
        if prefix_cache not in (None, "none", self.prefix_cache):
            raise ConfigError(
                "prefix_cache", f"{self.name} keeps {self.prefix_cache!r}, not {prefix_cache!r}"
            )

    def explained(
        self,
        scheduler: Scheduler,
        share: float,
        kv: KvCache,
        longest: int | None,
        host: Overhead,
        api_s: float,
        given: set[str],
    ) -> list[str]:
        """A line for each setting, with its source, and for what is not simulated.

        Args:
            scheduler: that of the engine.
            share: of the card's memory.
            kv: the cache of the engine.
            longest: tokens of the longest request; None: not known.
            host: what the host takes.
            api_s: from a client to the engine and back.
            given: the settings that the caller gave.
        """
        sources = _table()[self.name]["sources"]
        newest = "" if "server" in given else ", the newest that is known"
        lines = [f"server: {self.name} on {self.card.name}{newest}"]

        def line(name: str, value: object, source: str) -> None:
            number = f"{value:,}" if type(value) is int else str(value)
            lines.append(f"  {name} {number}: {'as given' if name in given else source}")

        if "scheduler" in given:
            lines.append(f"  scheduler {scheduler!r}: as given")
        else:
            limits = self.limits()
            named = [*limits, *_table()[self.name]["fields"]]
            for name in sorted(given - {*named}):
                if hasattr(scheduler, name):
                    line(name, getattr(scheduler, name), "")
            for name in named:
                value, source = getattr(scheduler, name), sources[name if name in sources else "limits"]
                if value < limits.get(name, value):
                    source += ", less by max_seqs · max_model_len or by the budget"
                line(name, value, source)
        if "kv" in given:
            lines.append(f"  kv {kv!r}: as given")
        else:
            line("gpu_memory_utilization", f"{share:g}", sources["gpu_memory_utilization"])
            line("block", kv.block, sources["block"])
            line("prefix_cache", kv.prefix_cache or "none", sources["prefix_cache"])
        if longest is None:
            lines.append("  max_model_len: not known of this model")
        else:
            own, room = "the model's max_position_embeddings", kv.tokens
            if self.engine == "vllm" and room is not None and room < longest:
                own, longest = (
                    f"what the cache holds; with the model's {longest:,} vLLM does not start",
                    room,
                )
            line("max_model_len", longest, own)
        line("overhead", host, sources["host"])
        line("api_s", f"{api_s:g} in every ttft and e2e", sources["api_s"])
        return lines


CONTEXT_BYTES = 1.2 * GIB
"""What a process of SGLang holds of a card before it loads weights: its logs show 78.4 to 78.8 GB free of the
79.65 of an H100. Its share is of what is free then."""


def sglang_share(card: Gpu, gpus: int, version: tuple[int, ...] | None) -> float:
    """SGLang's own `mem_fraction_static`: the share of a card for weights and cache.

    From the rules in its `server_args.py`: a reserve by the size of the card before 0.5.3 (pull request
    10975), since then 512 MiB, 1.5 MiB for each token of a chunk, 2 MiB for each request of the largest
    graph, and an eighth of a GiB a GPU; 10 GiB at least on cards of more than 60.
    """
    mib = 2**20
    all_mib = card.memory_bytes / mib
    if version is not None and version < (0, 5, 3):
        reserve = (2.8 + gpus / 10) if all_mib < 35 * 1024 else (9.5 + gpus / 2)
        if all_mib >= 90 * 1024:
            reserve = 12 + gpus / 2
        return round((all_mib - 1024 * reserve) / all_mib, 3)
    few, many = next(graph for least, graph in _GRAPHS if all_mib >= 1024 * least)
    chunk = Server("sglang-0.5", (0, 5), card).limits()["chunk_tokens"]
    reserve_mib = 512 + 1.5 * chunk + 2 * (few if gpus < 4 else many) + 128 * gpus
    if all_mib > 60 * 1024:
        reserve_mib = max(reserve_mib, 10 * 1024)
    return round((all_mib - reserve_mib) / all_mib, 3)


_GRAPHS = ((160, (512, 512)), (60, (256, 512)), (35, (32, 160)), (20, (24, 80)), (0, (8, 8)))
"""Requests of SGLang's largest graph on fewer than four GPUs and on more, by the GiB of a card at least."""


def _nearest(name: str) -> str:
    """The nearest version of the program that is named, else the nearest name."""
    found = re.fullmatch(r"([a-z]+)-?v?(\d+)(?:\.(\d+))?.*", name.strip().lower())
    same = [one for one in _table() if found and one.startswith(f"{found[1]}-")]
    vllm, sglang = ([one for one in _table() if one.startswith(engine)] for engine in ("vllm", "sglang"))
    known = f"known are {vllm[0]} to {vllm[-1]}, {', '.join(sglang)}"
    if found is None or not same:
        hint = nearest(name, _table())
        return hint if "did you mean" in hint else f"; {known}"
    asked = (int(found[2]), int(found[3] or 0))

    def apart(one: str) -> tuple[int, int]:
        major, minor = map(int, one.partition("-")[2].split("."))
        return abs(major - asked[0]), abs(minor - asked[1]) if major == asked[0] else -minor

    return f"; the nearest is {min(same, key=apart)} ({known})"
