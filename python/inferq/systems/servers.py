"""Defaults of vLLM and SGLang by version and GPU, from `servers.json`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, cast

from inferq.checks import nearest, shown
from inferq.description import read_fields
from inferq.errors import ConfigError
from inferq.scheduler import SCHEDULERS, Scheduler, Speculation
from inferq.systems.kv_cache import KvCache
from inferq.systems.overhead import Overhead
from inferq.timing.hardware.gpu import Gpu
from inferq.timing.hardware.kv_memory import GIB


@cache
def _table() -> Mapping[str, Mapping[str, Any]]:
    """All releases. An entry of `servers.json` applies from its release up to `until`.

    vLLM's defaults were read in the source distribution of each release; 0.15 has none.
    """
    entries: dict[str, dict[str, Any]] = json.loads(
        (Path(__file__).parent / "servers.json").read_text(encoding="utf-8")
    )
    table = {}
    for first, entry in entries.items():
        engine, major, minor = re.split(r"[-.]", first)
        for number in range(int(minor), entry["until"] + 1):
            version = f"{major}.{number}"
            table[f"{engine}-{version}"] = {**entry, "sources": _sources(entry["sources"], version)}
    return table


def _sources(sources: Mapping[str, str], version: str) -> Mapping[str, str]:
    """The sources of a release, by setting."""
    release = "0.14.0" if version == "0.15" else f"{version}.0"
    assumed = "; 0.16.0 agrees, assumed for 0.15" if version == "0.15" else ""
    return {
        name: source.format(release=release, version=version) + (assumed if "{release}" in source else "")
        for name, source in sources.items()
    }


def known_servers() -> tuple[str, ...]:
    """List the servers that `Engine.on(..., server=…)` accepts."""
    return tuple(_table())


def program_of(scheduler: object) -> str | None:
    """Return the program whose releases use this class of scheduler, such as `vllm`. None: no known one."""
    programs = {entry["scheduler"]: name.partition("-")[0] for name, entry in _table().items()}
    return programs.get(type(scheduler).__name__)


@dataclass(frozen=True, slots=True)
class Server:
    """One version of a server on one GPU.

    Args:
        name: its entry in `servers.json`.
        version: the requested version, with the patch release if given.
        card: the GPU.
    """

    name: str
    version: tuple[int, ...]
    card: Gpu

    @classmethod
    def of(cls, name: str, card: Gpu) -> Server:
        """Return the server `vllm-0.33`, `vllm-0.33.0`, `sglang-0.5` and so on, in any letter case.

        Raises:
            ConfigError: an unknown server, with the nearest known one.
        """
        match = re.fullmatch(r"([a-z]+-\d+\.\d+)((?:\.\d+)*)", str(name).strip().lower())
        if match is None or match[1] not in _table():
            raise ConfigError("server", f"unknown server {shown(name)}{_nearest(str(name))}")
        number = match[1].partition("-")[2] + match[2]
        return cls(match[1], tuple(map(int, number.split("."))), card)

    @classmethod
    def newest(cls, scheduler: object, card: Gpu) -> Server:
        """Return the latest known server with this scheduler, or else the latest vLLM."""
        kind = type(scheduler).__name__
        matching = [name for name, entry in _table().items() if entry["scheduler"] == kind]
        return cls.of((matching or [name for name in _table() if name.startswith("vllm")])[-1], card)

    @staticmethod
    def known() -> list[str]:
        """The names of all servers, oldest first."""
        return list(_table())

    @staticmethod
    def until(engine: str, version: tuple[int, ...]) -> str:
        """Return the latest server of a program up to a version, or else the oldest."""
        releases = {
            tuple(map(int, name.partition("-")[2].split("."))): name
            for name in _table()
            if name.startswith(engine)
        }
        return releases[max((release for release in releases if release <= version), default=min(releases))]

    @property
    def engine(self) -> Literal["vllm", "sglang"]:
        """The program, without its version."""
        return cast("Literal['vllm', 'sglang']", self.name.partition("-")[0])

    @property
    def prefix_cache(self) -> Literal["blocks", "radix"]:
        """The kind of its prefix cache."""
        return cast("Literal['blocks', 'radix']", _table()[self.name]["prefix_cache"])

    @property
    def block(self) -> int:
        """Tokens of a KV cache block."""
        return int(_table()[self.name]["block"])

    def limits(self) -> Mapping[str, int]:
        """Token budget and sequence limit, by the scheduler's field names."""
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
        """Whether an earlier patch release was requested. Default: the latest one."""
        return len(self.version) > 2 and self.version < version

    def gpu_memory_utilization(self, gpus: int) -> float:
        """The fraction of GPU memory that it uses; SGLang's is `mem_fraction_static`."""
        share = _table()[self.name].get("gpu_memory_utilization")
        if share is not None:
            return float(share)
        return sglang_share(self.card, gpus, self.version if len(self.version) > 2 else None)

    def source(self, setting: str) -> str:
        """The source of a setting's value."""
        return str(_table()[self.name]["sources"][setting])

    @property
    def api_s(self) -> float:
        """Seconds from a client to the engine and back."""
        return float(_table()[self.name]["api_s"])

    def host(self, layers: int, gpus: int, token_budget: int | None, launches: int | None = None) -> Overhead:
        """Return the host time of an iteration.

        Every GPU of a replica has a process that receives every request of a batch. From vLLM 0.14 on, GPUs
        wait for each other for a fixed time per doubling beyond two GPUs. The kernels of a batch
        above the largest captured graph are launched one by one, with a fixed time per layer. An engine
        without graphs launches those of every batch, which takes the host a time per operation.

        Args:
            layers: layers of the model.
            gpus: GPUs of the replica.
            token_budget: token budget of the scheduler, an upper bound on graphs.
            launches: operations of an iteration (`timing.hardware.launches`) of an engine without graphs.
                None: it has graphs.
        """
        host, name = _table()[self.name]["host"], self.card.name.lower()
        graphs = _table()[self.name]["graphs"]
        tokens = next((row["tokens"] for row in graphs if name in row.get("only", (name,))), None)
        if launches is not None:
            tokens = None if tokens is None else 0
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
            exposed_s=max(0, gpus.bit_length() - 2) * host.get("exposed_of_a_doubling_s", 0),
            launch_s=0 if launches is None else launches * self._launch_s,
            **launched,
        )

    @property
    def _launch_s(self) -> float:
        """Seconds in which the host launches an operation."""
        return _LAUNCH_S["ampere" if self.card.name.lower().startswith(("a100", "a10g")) else "later"]

    def scheduler(self, given: Mapping[str, Any], max_model_len: int | None) -> Scheduler:
        """Return its scheduler, with the fields in `given` in place of its own."""
        entry = _table()[self.name]
        kind = next(policy for policy in SCHEDULERS if policy.__name__ == entry["scheduler"])
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
            fields["pause_s"] = 0.0  # the pause belongs to async scheduling
        try:
            kind(**fields)
        except ConfigError as error:
            raise error.within("scheduler") from None
        if self.engine == "vllm":
            if "token_budget" not in given and max_model_len is not None:
                fields["token_budget"] = min(fields["token_budget"], fields["max_seqs"] * max_model_len)
            if "max_seqs" not in given:
                fields["max_seqs"] = min(fields["max_seqs"], fields["token_budget"])
        policy = kind(**fields)
        self.check_limits(policy)
        return policy

    def check_limits(self, scheduler: object) -> None:
        """Reject limits with which this server does not start."""
        budget, sequences = getattr(scheduler, "token_budget", None), getattr(scheduler, "max_seqs", None)
        if self.engine == "vllm" and budget is not None and sequences is not None and budget < sequences:
            raise ConfigError(
                "scheduler.token_budget",
                f"{self.name} requires at least max_seqs ({sequences:,}), got {budget:,}; raise token_budget "
                "or lower max_seqs",
            )

    def check(self, scheduler: object, prefix_cache: str | None) -> None:
        """Reject parts that this server lacks.

        Args:
            scheduler: the scheduler that forms batches.
            prefix_cache: the caller's choice. None: the server's.

        Raises:
            ConfigError: the scheduler or the prefix cache of another server, or limits that it refuses.
        """
        kind = _table()[self.name]["scheduler"]
        if type(scheduler).__name__ != kind:
            raise ConfigError("scheduler", f"{self.name} has {kind}, not {type(scheduler).__name__}")
        self.check_limits(scheduler)
        if prefix_cache not in (None, "none", self.prefix_cache):
            raise ConfigError("prefix_cache", f"{self.name} has {self.prefix_cache!r}, not {prefix_cache!r}")

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
        """Return a line for each setting, with its source.

        Args:
            scheduler: the scheduler of the engine.
            share: the fraction of GPU memory.
            kv: the cache of the engine.
            longest: maximum tokens of a request; None: unknown.
            host: the host time.
            api_s: seconds from a client to the engine and back.
            given: the settings of the caller.
        """
        sources = _table()[self.name]["sources"]
        newest = "" if "server" in given else ", the latest known"
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
                    source += ", limited by max_seqs · max_model_len or by the budget"
                line(name, value, source)
        if "kv" in given:
            lines.append(f"  kv_tokens {'unlimited' if kv.tokens is None else f'{kv.tokens:,}'}: as given")
        else:
            line("gpu_memory_utilization", f"{share:g}", sources["gpu_memory_utilization"])
        line("block", kv.block, sources["block"])
        line("prefix_cache", kv.prefix_cache or "none", sources["prefix_cache"])
        if longest is None:
            lines.append("  max_model_len: unknown for this model")
        else:
            own, room = "the model's max_position_embeddings", kv.tokens
            if self.engine == "vllm" and room is not None and room < longest:
                own, longest = (
                    f"the size of the cache; vLLM does not start with the model's {longest:,}",
                    room,
                )
            line("max_model_len", longest, own)
        line("overhead", host, sources["host"] + (f"; {_LAUNCHES}" if host.launch_s else ""))
        line("api_s", f"{api_s:g} in every TTFT and E2E", sources["api_s"])
        return lines


_LAUNCH_S = {"ampere": 83e-6, "later": 50e-6}
"""Seconds in which the host of a GPU launches one operation in eager mode, by the generation of both.

`ampere`: calibrated on gemma-3-4b-it (476 operations) with one user, vLLM 0.18.0 on one A10G, 40.6 ms per
token. The runs of that server with 16 and 64 users, and gemma-2-9b-it with 64, were held back. A report of
Qwen2.5-Omni-7B on an A800 gives 77 µs (vllm-omni issue 7960). `later`: one report, Qwen3.8-27B (816
operations) on an RTX 5090, 41.7 ms per token (pull request 314 of local-inference-lab/vllm).
"""

_LAUNCHES = "launches calibrated on gemma-3-4b with one user (vLLM 0.18.0, A10G), or on one report"

CONTEXT_BYTES = 1.2 * GIB
"""GPU memory of an SGLang process before it loads weights: its logs show 78.4 to 78.8 GB free of the 79.65 of
an H100. `mem_fraction_static` is a fraction of the free memory."""


def sglang_share(card: Gpu, gpus: int, version: tuple[int, ...] | None) -> float:
    """Return SGLang's default `mem_fraction_static`: the fraction of GPU memory for weights and cache.

    Rules of its `server_args.py`: a reserve that depends on GPU memory before 0.5.3 (pull request
    10975), since then 512 MiB, 1.5 MiB per token of a chunk, 2 MiB per request of the largest graph, and
    128 MiB per GPU; at least 10 GiB on GPUs with more than 60.
    """
    mib = 2**20
    all_mib = card.memory_bytes / mib
    if version is not None and version < (0, 5, 3):
        reserve = (2.8 + gpus / 10) if all_mib < 35 * 1024 else (9.5 + gpus / 2)
        if all_mib >= 90 * 1024:
            reserve = 12 + gpus / 2
        return round((all_mib - 1024 * reserve) / all_mib, 3)
    up_to_3_gpus, from_4_gpus = next(graph for least, graph in _GRAPHS if all_mib >= 1024 * least)
    chunk = Server("sglang-0.5", (0, 5), card).limits()["chunk_tokens"]
    reserve_mib = 512 + 1.5 * chunk + 2 * (up_to_3_gpus if gpus < 4 else from_4_gpus) + 128 * gpus
    if all_mib > 60 * 1024:
        reserve_mib = max(reserve_mib, 10 * 1024)
    return round((all_mib - reserve_mib) / all_mib, 3)


_GRAPHS = ((160, (512, 512)), (60, (256, 512)), (35, (32, 160)), (20, (24, 80)), (0, (8, 8)))
"""Minimum GiB of a GPU, and requests of SGLang's largest graph on up to three GPUs and on more."""


def _nearest(name: str) -> str:
    """A hint: the nearest version of the named program, or else the nearest name."""
    match = re.fullmatch(r"([a-z]+)-?v?(\d{1,9})(?:\.(\d{1,9}))?(?!\d).*", name.strip().lower())
    same = [server for server in _table() if match and server.startswith(f"{match[1]}-")]
    vllm, sglang = (
        [server for server in _table() if server.startswith(engine)] for engine in ("vllm", "sglang")
    )
    known = f"known: {vllm[0]} to {vllm[-1]}, {', '.join(sglang)}"
    if name.strip().lower().startswith(("trt", "tensorrt")):
        return f"; the scheduler of TensorRT-LLM is not simulated ({known}); its kernels are backend='trtllm'"
    if match is None or not same:
        hint = nearest(name, _table())
        return hint if "did you mean" in hint else f"; {known}"
    wanted = (int(match[2]), int(match[3] or 0))

    def distance(server: str) -> tuple[int, int]:
        major, minor = map(int, server.partition("-")[2].split("."))
        return abs(major - wanted[0]), abs(minor - wanted[1]) if major == wanted[0] else -minor

    return f"; the nearest is {min(same, key=distance)} ({known})"
