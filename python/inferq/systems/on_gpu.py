"""The steps of `Engine.on`: server defaults, memory, timing, KV cache, longest request, provenance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Literal

from inferq.checks import finite, flag, whole
from inferq.description import field_names, read_fields
from inferq.display.text import counted
from inferq.errors import ConfigError
from inferq.scheduler import Scheduler
from inferq.systems.kv_cache import BLOCK, KvCache
from inferq.systems.overhead import Overhead
from inferq.systems.servers import CONTEXT_BYTES, Server
from inferq.timing import Roofline, TimingModel, TimingTable
from inferq.timing.hardware.catalog import entries
from inferq.timing.hardware.formats import KvType, Weights
from inferq.timing.hardware.gpu import RATES, Gpu
from inferq.timing.hardware.kv_memory import KvMemory
from inferq.timing.hardware.launches import launches
from inferq.timing.hardware.model_shape import ModelShape, one_of
from inferq.timing.tables.archive import Key
from inferq.timing.tables.neighbors import NEIGHBORS
from inferq.timing.tables.shipped import tables_of

_BACKENDS = ("vllm", "sglang", "trtllm")
"""Engines with measured kernels; tables of the first two are shipped."""

_NOT_SIMULATED = {
    "data_parallel": "ranks that wait for one another are not simulated; for independent replicas use "
    "Cluster(engine, replicas={ranks}) or --replicas {ranks}",
    "pipeline_parallel": "pipeline stages are not simulated; use tensor_parallel for all GPUs of the replica",
}
"""Kinds of parallelism that no engine simulates, with the alternative."""

_SETTINGS = (
    "server",
    "gpu_memory_utilization",
    "prefix_cache",
    "kv",
    "max_model_len",
    "overhead",
    "api_s",
)
"""Options whose source `Engine.explain` reports."""


@dataclass(frozen=True, kw_only=True)
class OnGpu:
    """A model on a GPU with the options of `Engine.on`, checked; None stands for the default."""

    shape: ModelShape
    gpu: Gpu
    tensor_parallel: int | None
    expert_parallel: int | Literal["all"]
    data_parallel: int
    pipeline_parallel: int
    server: str | None
    scheduler: Scheduler | Mapping[str, Any] | None
    gpu_memory_utilization: float | None
    max_model_len: int | None
    weights: Weights
    kv_dtype: KvType
    backend: str | None
    timing: TimingModel | Literal["roofline"] | None
    kv: KvCache | Mapping[str, Any] | None
    prefix_cache: Literal["blocks", "radix", "none"] | None
    overhead: Overhead | None
    eager: bool
    api_s: float | None

    def __post_init__(self) -> None:
        """Reject unknown words, a scheduler outside its limits, and a mismatch with the server."""
        if not isinstance(self.kv, (KvCache, Mapping, type(None))):
            raise ConfigError("kv", f"must be a KvCache(…) or a table of its fields, got {self.kv!r}")
        kind = self._kv_fields.get("prefix_cache")
        if kind is not None and self.prefix_cache is not None:
            raise ConfigError("prefix_cache", f"{self.prefix_cache!r} conflicts with {kind!r} of kv; set one")
        if self.tensor_parallel is not None:
            whole("tensor_parallel", self.tensor_parallel, 1)
        if self.expert_parallel != "all":
            whole("expert_parallel", self.expert_parallel, 1)
        for name, advice in _NOT_SIMULATED.items():
            if (ranks := whole(name, getattr(self, name), 1)) > 1:
                raise ConfigError(name, f"must be 1, got {ranks}: {advice.format(ranks=ranks)}")
        flag("eager", self.eager)
        if self.gpu_memory_utilization is not None:
            finite("gpu_memory_utilization", self.gpu_memory_utilization)
        one_of("backend", self.backend or "vllm", _BACKENDS)
        if self.prefix_cache not in (None, "blocks", "radix", "none"):
            raise ConfigError(
                "prefix_cache", f"must be 'blocks', 'radix', 'none' or None, got {self.prefix_cache!r}"
            )
        if not isinstance(self.scheduler, (Scheduler, Mapping, type(None))):
            raise ConfigError("scheduler", f"must be a scheduler such as VllmV1(), got {self.scheduler!r}")
        for name in ("token_budget", "max_seqs"):
            if getattr(self._policy, name, None) is not None:
                whole(f"scheduler.{name}", getattr(self._policy, name), 1, 2**31 - 1)
        if self.server is not None:
            self.served_by.check(self._policy, self.prefix_cache or kind)
        if not isinstance(self.timing, (TimingModel, type(None))) and self.timing != "roofline":
            raise ConfigError("timing", f"must be a timing model or 'roofline', got {self.timing!r}")

    @cached_property
    def served_by(self) -> Server:
        """The server whose defaults apply."""
        if self.server is not None:
            return Server.of(self.server, self.gpu)
        given = self.scheduler
        return Server.newest(given.batching_policy() if isinstance(given, Scheduler) else given, self.gpu)

    @cached_property
    def longest(self) -> int | None:
        """The maximum tokens of a request, before the KV cache limits it."""
        if self.max_model_len is None:
            return self.shape.max_model_len
        given, own = whole("max_model_len", self.max_model_len, 1, 2**31 - 1), self.shape.max_model_len
        if own is not None and given > own:
            raise ConfigError(
                "max_model_len",
                f"{self.served_by.name} does not start with more than the {own:,} tokens of "
                f"{self.shape.name}, got {given:,}; set max_model_len={own} or less",
            )
        return given

    @cached_property
    def full_scheduler(self) -> Scheduler:
        """The scheduler of the engine, with the server's values for the fields that are not set."""
        if isinstance(self.scheduler, Scheduler):
            return self.scheduler
        return self.served_by.scheduler(self.scheduler or {}, self.longest)

    @property
    def _policy(self) -> Scheduler:
        """The scheduler that holds the limits, without its classes."""
        return self.full_scheduler.batching_policy()

    def utilization(self, gpus: int | None) -> float:
        """The fraction of GPU memory that the engine may use."""
        if self.gpu_memory_utilization is not None:
            return self.gpu_memory_utilization
        return self.served_by.gpu_memory_utilization(gpus or 1)

    def memory(self, gpus: int | None) -> KvMemory:
        """The memory of each of `gpus` GPUs; None: of the smallest number on which the model fits."""
        share = self.utilization(gpus)
        if self.served_by.engine == "sglang":
            # SGLang's fraction applies to memory free before the weights load, and excludes activations.
            usage: dict[str, Any] = {
                "batched_tokens": 0,
                "sampled_rows": 0,
                "reserved_bytes": share * CONTEXT_BYTES,
                "block": 1,
            }
        else:
            usage = {
                "batched_tokens": getattr(self._policy, "token_budget", None) or 8192,
                "sampled_rows": getattr(self._policy, "max_seqs", None) or 256,
            }
        memory = KvMemory.of(
            self.shape,
            self.gpu,
            tensor_parallel=gpus,
            weights=self.weights,
            kv_dtype=self.kv_dtype,
            expert_parallel=self._least_groups if gpus is None else self.expert_groups,
            gpu_memory_utilization=share,
            max_model_len=self.longest,
            **usage,
        )
        return replace(memory, activation_bytes=0.0) if self.served_by.engine == "sglang" else memory

    @cached_property
    def tables(self) -> Mapping[int, Key]:
        """The shipped table for each number of GPUs."""
        if self.timing is not None:
            return {}
        sglang_first = self.backend is None and self.served_by.engine == "sglang"
        tables: dict[int, Key] = {}
        for backend in ("vllm", "sglang") if sglang_first else (self.backend or "vllm",):
            tables |= {
                key.tensor_parallel: key
                for key in _tables_on(self.shape, self.gpu)
                if (key.backend, key.weights, key.kv_dtype) == (backend, self.weights, self.kv_dtype)
                and key.expert_parallel == self._groups_of(key.tensor_parallel)
                and key.data_parallel == 1
            }
        return tables

    @cached_property
    def gpus(self) -> int:
        """The number of GPUs of the replica."""
        measured_on = (
            self.timing.provenance.get("tensor_parallel") if isinstance(self.timing, TimingTable) else None
        )
        if self.tensor_parallel is not None:
            if measured_on not in (None, self.tensor_parallel):
                raise ConfigError(
                    "tensor_parallel",
                    f"is {self.tensor_parallel}, but the timing was measured with {measured_on}: "
                    f"{self.timing!r}",
                )
            return self.tensor_parallel
        if measured_on is not None:
            return int(measured_on)
        if isinstance(self.timing, TimingModel) and self.kv is not None:
            return 1  # no result depends on it
        least = max(self.memory(None).tensor_parallel, self._least_groups)
        return min((gpus for gpus in self.tables if gpus >= least), default=least)

    @property
    def _least_groups(self) -> int:
        """The number of groups of experts before that of GPUs is known."""
        return 1 if self.expert_parallel == "all" else self.expert_parallel

    @cached_property
    def expert_groups(self) -> int:
        """The number of groups of GPUs among which the experts are divided.

        Raises:
            ConfigError: the model has no experts, or the groups cannot have equally many experts and GPUs.
        """
        groups = self._groups_of(self.gpus)
        self.shape.check_expert_parallel(self.gpus, groups)
        if self.gpus % groups:
            raise ConfigError(
                "expert_parallel", f"must divide the {counted(self.gpus, 'GPU')} of the replica, got {groups}"
            )
        return groups

    def _groups_of(self, gpus: int) -> int:
        """The number of groups of experts on a number of GPUs."""
        return gpus if self.expert_parallel == "all" else self.expert_parallel

    @cached_property
    def timing_model(self) -> TimingModel:
        """The timing model that is given, the shipped table, or else a roofline."""
        if isinstance(self.timing, TimingModel):
            return self.timing
        if self.gpus in self.tables:
            return TimingTable.shipped(**self.tables[self.gpus]._asdict())
        if isinstance(self.baked, TimingTable):
            return self.baked
        return Roofline(
            self.shape,
            self.gpu,
            self.gpus,
            expert_parallel=self.expert_groups,
            weights=self.weights,
            kv_dtype=self.kv_dtype,
        )

    @cached_property
    def baked(self) -> TimingTable | str | None:
        """The table baked on demand, or the reason why it is missing; None if no table is wanted."""
        if self.timing is not None or self.gpus in self.tables:
            return None
        from inferq.timing.baking import on_demand  # only engines without a shipped table use it

        if not on_demand.has_system(self.gpu):
            if self.gpu.name not in entries("gpus") or self.gpu != Gpu.of(self.gpu.name):
                return None  # a roofline is what the caller of a Gpu(…) expects
            return f"the database has no kernels of {self.gpu.name}; measure them with inferq calibrate"
        if not on_demand.is_installed():
            return f"to bake one, pip install 'inferq[tables]' ({on_demand.PLATFORM})"
        backend = self.backend or self.served_by.engine
        key = Key(
            *(self.shape.name, self.gpu.name, self.gpus, self.expert_groups, 1),
            *(backend, self.weights, self.kv_dtype),
        )
        try:
            return on_demand.table(self.shape, self.gpu, key)
        except ConfigError as error:
            return f"none can be baked: {error}"

    @property
    def computed_in(self) -> str | None:
        """The number format in which a roofline of this GPU computes, if it is not that of the weights."""
        own, used = RATES[self.weights][0], self.gpu.computed_in(self.weights)
        is_roofline = not isinstance(self.timing, TimingModel) and isinstance(self.timing_model, Roofline)
        return used if is_roofline and used != own else None

    @cached_property
    def _kv_fields(self) -> Mapping[str, Any]:
        """The fields of the KV cache that the caller set.

        In a `KvCache` without a prefix cache, a block of the default size counts as not set.
        """
        if not isinstance(self.kv, KvCache):
            return {} if self.kv is None else self._read_kv(self.kv)
        if self.kv.prefix_cache is not None:
            return {name: getattr(self.kv, name) for name in field_names(KvCache)}
        fields = {"tokens": self.kv.tokens, **({} if self.kv.block == BLOCK else {"block": self.kv.block})}
        return fields if self.kv.groups is None else {**fields, "groups": self.kv.groups}

    @staticmethod
    def _read_kv(table: Mapping[str, Any]) -> Mapping[str, Any]:
        kv = read_fields("kv", table, KvCache)
        return {name: getattr(kv, name) for name in table}

    @cached_property
    def kv_cache(self) -> KvCache:
        """The server's KV cache with the fields that are given; by default it fills the memory left."""
        kind = self.prefix_cache or self.served_by.prefix_cache
        own = {"block": self.served_by.block, "prefix_cache": None if kind == "none" else kind}
        if self.kv is None:
            memory = self.memory(self.gpus)
            own |= {"tokens": memory.tokens, "block": memory.block}
        return KvCache(**{**own, **self._kv_fields})

    @cached_property
    def room_tokens(self) -> int | None:
        """The tokens that the GPU has memory for, if the KV cache that is given holds more."""
        if self.kv is None or self.kv_cache.tokens is None:
            return None
        try:
            room = self.memory(self.gpus).tokens
        except ConfigError:  # the model does not fit
            return None
        return room if self.kv_cache.tokens > room else None

    @property
    def has_average_capacity(self) -> bool:
        """Whether the size of the KV cache is an average over requests of the maximum length."""
        return self.kv is None and self.memory(self.gpus).is_average

    @cached_property
    def longest_held(self) -> int | None:
        """The maximum tokens of a request that the KV cache can hold.

        Raises:
            ConfigError: vLLM does not start, because the cache is smaller than the longest request.
        """
        tokens = self.kv_cache.tokens
        if self.served_by.engine == "sglang" or self.longest is None or tokens is None:
            return self.longest
        if tokens < self.longest and (self.server is not None or self.max_model_len is not None):
            raise ConfigError(
                "max_model_len",
                f"{self.served_by.name} does not start: the KV cache holds {tokens:,} tokens on "
                f"{self.gpus} × {self.gpu.name}, but a request of {self.shape.name} may have "
                f"{self.longest:,}; set max_model_len={tokens} or less, or use more GPUs",
            )
        return min(self.longest, tokens)

    @cached_property
    def host(self) -> Overhead:
        """The time that the host adds to an iteration."""
        if self.overhead is not None:
            return self.overhead
        budget = getattr(self._policy, "token_budget", None)
        eager = launches(self.shape, self.gpus) if self.eager else None
        return self.served_by.host(self.shape.layers, self.gpus, budget, eager)

    @property
    def api_delay_s(self) -> float:
        """The API's time per request."""
        return self.served_by.api_s if self.api_s is None else self.api_s

    def parts(self) -> dict[str, Any]:
        """The arguments of `Engine`, but for `first_token`."""
        return {
            "timing": self.timing_model,
            "scheduler": self.full_scheduler,
            "kv": self.kv_cache,
            "overhead": None if self.host == Overhead() else self.host,
            "max_model_len": self.longest_held,
            "api_s": self.api_delay_s,
        }

    def provenance(self) -> dict[str, Any]:
        """What the engine is made of: `Engine.on_card`."""
        table = self.timing_model.provenance if isinstance(self.timing_model, TimingTable) else {}
        optional = {
            "max_model_len": self.longest_held,
            "backend_version": table.get("backend_version") or None,
            "room_tokens": self.room_tokens,
            "average_tokens": self.longest if self.has_average_capacity else None,
            "unused": dict(self.shape.unused) or None,
            "computed_in": self.computed_in,
            "linked_gpus": self.gpu.domain if self.gpus > self.gpu.domain else None,
            "timing_source": _attribution(table) or None,
            "unmeasured": self.baked if isinstance(self.baked, str) else None,
        }
        return {
            "model": self.shape.name,
            "gpu": self.gpu.name,
            "tensor_parallel": self.gpus,
            **({"expert_parallel": self.expert_groups} if self.expert_groups > 1 else {}),
            **({"eager": True} if self.eager else {}),
            "gpu_memory_utilization": self.utilization(self.gpus),
            "weights": self.weights,
            "kv_dtype": self.kv_dtype,
            "kv_bytes_per_token": self.shape.kv_bytes_per_token(self.kv_dtype)
            + self.shape.index_bytes_per_token,
            "backend": table.get("backend") if self.timing is None and table else self.backend or "vllm",
            "server": self.server or self.served_by.name,
            **{name: value for name, value in optional.items() if value is not None},
            "explained": tuple("\n".join(self._explanation()).splitlines()),
        }

    def _explanation(self) -> list[str]:
        """The lines of `Engine.explain`."""
        return [
            f"timing: {self.timing_model!r}{self._timing_source()}",
            *self._computed_in_line(),
            *self._memory_lines(),
            *self.shape.explain(self.kv_dtype),
            *(f"unused: {key} of {self.shape.name}: {reason}" for key, reason in self.shape.unused.items()),
            *self.served_by.explained(
                self.full_scheduler,
                self.utilization(self.gpus),
                self.kv_cache,
                self.longest,
                self.host,
                self.api_delay_s,
                self._settings(),
            ),
        ]

    def _computed_in_line(self) -> list[str]:
        """The number format of a roofline, if the GPU lacks that of the weights."""
        used, lacks = self.computed_in, RATES[self.weights][0]
        text = f"  {self.weights} weights are computed in {used}: {self.gpu.name} lacks {lacks}"
        return [] if used is None else [text]

    def _settings(self) -> set[str]:
        """The settings that the caller gave, fields of the scheduler included."""
        fields = set(self.scheduler or ()) if not isinstance(self.scheduler, Scheduler) else {"scheduler"}
        return fields | {name for name in _SETTINGS if getattr(self, name) is not None} | {*self._kv_fields}

    def _timing_source(self) -> str:
        """Where the timing model comes from, as the end of a line."""
        if isinstance(self.timing, TimingModel):
            return ", as given"
        if self.timing == "roofline":
            return ": as requested"
        if self.gpus in self.tables:
            table, name = self.timing_model, self.tables[self.gpus].model
            near = table.provenance.get("derived_from") if isinstance(table, TimingTable) else None
            source = "measured" if near is None else f"measured on {near}, scaled by the ratio of rooflines"
            return f", {source}" + (
                f"; {self.shape.name} has the same shape" if self.shape.name != name else ""
            )
        if isinstance(self.baked, TimingTable):
            from inferq.timing.baking import on_demand

            place = f", kept in {on_demand.folder()}" if on_demand.can_keep() else ""
            return f", baked from {self.baked.provenance['version']}{place}"
        reason = "" if self.baked is None else f"; {self.baked}"
        if self.tables:
            sizes = ", ".join(map(str, sorted(self.tables)))
            return (
                f": no measured table is shipped for {self.gpus} × {self.gpu.name}, only for {sizes}{reason}"
            )
        return f": no measured table is shipped{reason}"

    def _memory_lines(self) -> list[str]:
        """How large the KV cache is, and why."""
        if self.kv is None:
            return [f"memory: {self.memory(self.gpus).explain()}"]
        room = self.room_tokens
        return [
            f"memory: {self.kv_cache!r}, size as given",
            *([] if room is None else [f"  the GPU has room for {room:,} tokens"]),
        ]


def _attribution(provenance: Mapping[str, Any]) -> str:
    """The source of a table's times and its license, as that license requires."""
    parts = (provenance.get(key) for key in ("source", "url", "version", "license", "attribution"))
    return "; ".join(str(part) for part in parts if part)


@lru_cache(maxsize=256)
def _tables_on(shape: ModelShape, gpu: Gpu) -> Sequence[Key]:
    """The shipped tables of a shape on a GPU, or on the measured GPU that replaces it."""
    derived = next((name for name in NEIGHBORS if Gpu.of(name) == gpu), None)
    measured = gpu if derived is None else Gpu.of(NEIGHBORS[derived])
    names = [name for name in entries("gpus") if Gpu.of(name) == measured]
    return [
        key if derived is None else key._replace(gpu=derived) for key in tables_of(shape) if key.gpu in names
    ]
