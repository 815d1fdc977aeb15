"""Kernel times of aiconfigurator's database, as the three parts of an iteration in seconds.

aiconfigurator (NVIDIA, Apache-2.0) has kernel times measured under vLLM, SGLang and TensorRT-LLM, in
milliseconds per operation. Operations whose time depends on the context are attention: full, windowed,
latent or sparse, also as a module with its projections. All other operations are the linear part, recurrent
layers included.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, cached_property, partial
from typing import Any

from inferq._lazy import load
from inferq.checks import nearest
from inferq.errors import ConfigError
from inferq.timing.baking.checkpoints import Source
from inferq.timing.baking.phases import UNTUNED, UNTUNED_BLOCKS, Linear, Phase, padded
from inferq.timing.hardware.catalog import near
from inferq.timing.hardware.layers import Experts

SYSTEMS = {
    "a100-80gb": "a100_sxm",
    "h100-80gb": "h100_sxm",
    "h200": "h200_sxm",
    "b200": "b200_sxm",
    "b300": "b300_sxm",
    "gb200": "gb200",
    "gb300": "gb300",
    "l40s": "l40s",
    "rtx-pro-6000": "rtx_pro_6000_server",
}
"""aiconfigurator's names of known GPUs."""
OVERLAPPED_TOKENS = 1024
"""Largest batch in which shared experts run next to routed experts, as in batches of decodes."""
NOISE = 1e-4
"""Relative difference up to which prefill and decode count as equal."""
ROUTING_S = 15e-6
"""Seconds per layer for choosing the experts of each token, which most measured times of experts lack.

Calibrated on 18 runs of Kimi-K2.5 in NVFP4 (InferenceX, vLLM 0.17.0 on 4 and 8 B200, fold `fit`), on a grid
from 0 to 25 µs in steps of 2.5 µs: their median error of mean TPOT falls from 10.8 to 4.2 %. Small kernels
next to the choice, and gaps between them, are part of it.
"""
LARGEST_LAUNCHED = 2048
"""Largest chunk of an attention module whose time may be that of launching its kernels."""
MODULE_SHARE = 0.9
"""Fraction of the shortest time of an attention module that counts as its fixed cost."""

_TITLES = {"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM"}
_PRECISIONS = {"bfloat16": "16-bit", "fp8": "FP8"}
_OTHERS = {"vllm": "sglang", "trtllm": "sglang", "sglang": "vllm"}
"""The backend whose times replace those of untuned kernels."""
_LEAST_DECODE_CONTEXT = 3
"""At smaller contexts of a decode the database extrapolates, with errors up to 40 %."""
_REFUSALS = (ValueError, RuntimeError, LookupError, TypeError, AttributeError, OSError, AssertionError)
"""Exceptions by which aiconfigurator refuses a model, a format, or a parallelism."""


class KernelDatabase:
    """Times of one model on one system under one backend.

    Args:
        source: the model's files.
        system: one of `SYSTEMS`, or a system of aiconfigurator.
        backend: `vllm`, `sglang` or `trtllm`.
        version: version of the backend. Default: the current one of the database.
        tensor_parallel: GPUs that share an attention layer.
        expert_parallel: groups of GPUs, each with its own experts.
        data_parallel: copies of the attention layers. Times are those of one copy, with equal batches in all.
        weights: number format of the weights. Default: the checkpoint's.
        kv_dtype: number format of the KV cache. Default: the checkpoint's.

    Raises:
        ConfigError: the package is missing or has no data; it names the argument.
    """

    def __init__(
        self,
        source: Source,
        system: str,
        backend: str,
        *,
        version: str | None = None,
        tensor_parallel: int = 1,
        expert_parallel: int = 1,
        data_parallel: int = 1,
        weights: str | None = None,
        kv_dtype: str | None = None,
    ) -> None:
        compiled = _compiler()
        self.system = SYSTEMS.get(system, system)
        self.version = _version(self.system, backend, version)
        gpus = tensor_parallel * data_parallel
        if gpus % expert_parallel:
            raise ConfigError("expert_parallel", f"must divide the {gpus} GPUs, got {expert_parallel}")
        options = {
            "tp_size": tensor_parallel,
            "attention_dp_size": data_parallel,
            "moe_ep_size": expert_parallel,
            "moe_tp_size": gpus // expert_parallel,
            **source.modes(weights, kv_dtype),
        }
        self._what = f"{source.name} on {self.system}"
        self.corrections: list[str] = []
        with source.folder() as folder, self._refusals(), _quiet():

            def phases(backend: str, version: str) -> tuple[Phase, Phase, str | None]:
                """Prefill, decode, and the precision of prefill attention if it is not the checkpoint's."""
                reasons = []
                for precision in (None, "bfloat16", "fp8"):
                    modes = {**options, **({"fmha_quant_mode": precision} if precision else {})}
                    try:
                        handle = compiled(folder, self.system, backend, backend_version=version, **modes)
                        return *_phases(handle), precision
                    except _REFUSALS as error:
                        reasons.append(error)
                    if "fmha_quant:" not in str(reasons[0]):
                        break
                raise reasons[0]

            self._prefill, self._decode, precision = phases(backend, self.version)
            if precision is not None:
                self._note(f"prefill attention: measured with {_PRECISIONS[precision]} products")
            other = _OTHERS[backend] if version is None else None
            others: tuple[Phase, Phase] | tuple[None, None] = (None, None)
            with contextlib.suppress(*_REFUSALS):
                others = phases(other, _version(self.system, other, None))[:2] if other else others
            self._has_modules = not any(name.endswith("_proj_gemm") for name in self._prefill.names)
            self._count_all_reduces_once()
            same = other == "sglang"
            routing_s = self._routing_s(source, (backend, other), weights, expert_parallel)
            untuned = UNTUNED_BLOCKS if (weights or source.weights) == "fp8-block" else UNTUNED
            self._of_prefill, self._of_decode = (
                Linear(phase, of_other, has_same_experts=same, routing_s=routing_s, untuned=untuned)
                for phase, of_other in zip((self._prefill, self._decode), others, strict=True)
            )
            self._other_decode = others[1] if backend == "vllm" and source.is_multi_head else None
            if others[0] is not None and other is not None:
                self._note_other(other)
            self._module_s = self._fixed_module_s()
            for time_s in (self.chunk, self.decode):
                time_s(16, 16)

    def pad(self) -> None:
        """Let no linear operation take longer than in a somewhat larger batch.

        Single measurements are outliers: Llama-3.1-70B in FP8 on two B200 takes 15.3 ms with one sequence and
        10.5 with two under vLLM 0.24. Engines pad batches to the sizes of their CUDA graphs.
        """
        self._of_prefill.is_padded = self._of_decode.is_padded = True
        self.forget()
        self.__dict__.pop("_fixed_prefill_s", None)
        self._note("outliers: no operation takes longer than in a batch of up to 8 times the size")

    def forget(self) -> None:
        """Drop the times computed so far, which keep the database in memory."""
        for cached in (
            *(self.linear, self._generated_s, self._more_of_decodes_s),
            *(self._chunk_s, self._decode_s),
        ):
            cached.cache_clear()

    def _routing_s(
        self, source: Source, backends: tuple[str, str | None], weights: str | None, expert_parallel: int
    ) -> tuple[float, float]:
        """Seconds for choosing the experts in all layers, if the times of either backend lack them."""
        if not any("moe" in name for name in self._prefill.names):
            return 0.0, 0.0
        form = weights or source.weights
        layers = sum(group.layers for group in source.shape.groups if isinstance(group.feed_forward, Experts))
        own, other = (
            ROUTING_S * layers if _lacks_routing(backend, form, expert_parallel) else 0.0
            for backend in backends
        )
        if own:
            self._note(f"experts: {ROUTING_S * 1e6:g} µs per layer added to times without their choice")
        return own, other

    def _note(self, note: str) -> None:
        if note not in self.corrections:
            self.corrections.append(note)

    @property
    def sources(self) -> dict[str, set[str]]:
        """The operations by the way in which the database knows their times."""
        merged: dict[str, set[str]] = {}
        for phase in (self._prefill, self._decode):
            for source, names in phase.sources.items():
                merged.setdefault(source, set()).update(names)
        return merged

    def _count_all_reduces_once(self) -> None:
        """Leave out all-reduces that the dispatch of experts already includes.

        In models with latent attention under vLLM, the source has the two all-reduces of a layer as an
        operation of its own, and again in the dispatch of experts.
        """
        for phase in (self._prefill, self._decode):
            twice = [at for at in phase.linear if phase.names[at].endswith("_tp_allreduce")]
            if twice and any("moe_pre_dispatch" in name for name in self._prefill.names):
                phase.linear = [at for at in phase.linear if at not in twice]
                self._note("all-reduces: counted once, not twice as in the source")

    def _note_other(self, backend: str) -> None:
        """Note the times that another backend measured.

        vLLM and SGLang run the same Triton kernel for experts; measured times differ by its configuration, so
        the shorter time is used. Mixtral on two H100s rises from 17.9 ms at 32 tokens to 23.7 at 80 and falls
        to 20.4 at 128 under vLLM 0.24; measured servers do not. Experts under TensorRT-LLM take twice as long
        as under SGLang in small batches of DeepSeek-R1 on eight B200; measured servers do not. Products in
        FP8 blocks take 0.27 ms at any size under vLLM 0.24, measured without tuned configurations. Decodes
        with equal numbers of key and query heads: SGLang's, which reach 0.7 to 0.9 of the bandwidth; vLLM's
        reach 0.5 to 0.7.
        """
        under = f"under {_TITLES[backend]} {_version(self.system, backend, None)}"
        if self._of_prefill.has_experts:
            self._note(f"experts: the shorter of the times measured here and {under}")
        if replaced := sorted(self._of_prefill.replaced | self._of_decode.replaced):
            self._note(f"products ({', '.join(replaced)}): untuned here, measured {under}")
        if self._other_decode is not None:
            self._note(f"decode attention: measured {under}")

    def _fixed_module_s(self) -> float:
        """The fixed cost of attention modules, which chunks and decodes of one batch pay once.

        A module includes its projections, whose weights are read once per iteration.
        """
        if not self._has_modules:
            return 0.0
        sizes = [2**power for power in range(9)]
        chunks = min(self._chunk_s(size, 0) for size in sizes)
        return MODULE_SHARE * min(
            chunks, *(self._decode_s(size, _LEAST_DECODE_CONTEXT + 1) for size in sizes)
        )

    @cache  # noqa: B019  until `forget`
    def linear(self, tokens: int) -> float:
        """Seconds of everything except attention for `tokens` tokens, with the logits of one row.

        The shorter of prefill, without the fixed cost that its chunks have, and of decodes.
        """
        seconds = self._of_prefill.seconds(tokens) - self._fixed_prefill_s
        if tokens <= OVERLAPPED_TOKENS and (shorter := self._generated_s(tokens)) < (1 - NOISE) * seconds:
            seconds = shorter
        return seconds + self._module_s

    @cached_property
    def _fixed_prefill_s(self) -> float:
        """The fixed cost by which a batch with chunks is longer: shared experts after routed ones."""
        prefill_s = self._of_prefill.seconds(1)
        more_s = prefill_s - self._generated_s(1)
        return more_s if more_s > NOISE * prefill_s else 0.0

    def chunk(self, tokens: int, context: int) -> float:
        """Seconds of attention of one chunk in all layers, writing its keys included.

        Chunks were measured at context 0 only. The database returns the time of a prompt of `context +
        tokens`, multiplied by the fraction of its pairs that the chunk computes. This vanishes for short
        chunks, so two measured times are lower bounds: the same chunk at context 0, and one decode that reads
        the same keys.
        """
        seconds = self._chunk_s(tokens, context)
        if context:
            seconds = max(seconds, self._chunk_s(tokens, 0), self._decode_s(1, context + tokens))
        return seconds - self._module_s + self._fixed_prefill_s

    def chunks(self, tokens: int, count: int) -> float:
        """Seconds of `count` whole prompts beyond `linear`, with one attention kernel per layer."""
        seconds = self._prefill.seconds(self._prefill.attention, tokens, count=count)
        return seconds + self._of_prefill.seconds(tokens * count) - self.linear(tokens * count)

    def decode(self, sequences: int, mean_context: int) -> float:
        """Seconds of attention of decodes in all layers, and of the logits of all rows except one.

        `mean_context` is before the iteration; the database includes the new token. Contexts below 3 take as
        long as 3.
        """
        length = max(mean_context, _LEAST_DECODE_CONTEXT) + 1
        return self._decode_s(sequences, length) - self._module_s + self._more_of_decodes_s(sequences)

    @cache  # noqa: B019
    def _generated_s(self, sequences: int) -> float:
        """Seconds of the linear operations of decodes, with the logits of one row."""
        one, every = (self._decode.seconds(self._decode.logits, rows) for rows in (1, sequences))
        return self._of_decode.seconds(sequences) - every + one

    @cache  # noqa: B019
    def _more_of_decodes_s(self, sequences: int) -> float:
        """Seconds of the linear operations of decodes beyond `linear`: more rows of logits, and states."""
        return max(0.0, self._of_decode.seconds(sequences) + self._module_s - self.linear(sequences))

    @cache  # noqa: B019
    def _chunk_s(self, tokens: int, context: int) -> float:
        time_s = partial(self._prefill.seconds, self._prefill.attention)
        return min(time_s(size, context) for size in self._sizes(tokens))

    @cache  # noqa: B019
    def _decode_s(self, sequences: int, length: int) -> float:
        phase = self._other_decode or self._decode
        return min(phase.seconds(phase.attention, size, length) for size in self._sizes(sequences))

    def _sizes(self, size: int) -> tuple[int, ...]:
        """Sizes of a batch that take at least as long.

        Modules of attention were timed with the launches of their kernels, which vary: GLM-5 on eight B200
        takes 46 ms for a chunk of 4 tokens and 33 for one of 1,024.
        """
        return padded(size, LARGEST_LAUNCHED) if self._has_modules else (size,)

    @contextlib.contextmanager
    def _refusals(self) -> Iterator[None]:
        """Convert an exception of aiconfigurator to a ConfigError with the name of the argument."""
        try:
            yield
        except ConfigError:
            raise
        except AssertionError as error:
            raise ConfigError(
                "tensor_parallel", f"aiconfigurator cannot split {self._what}: {error}"
            ) from None
        except _REFUSALS as error:
            reason = " ".join(str(error).split()).partition(". ")[0][:200] or type(error).__name__
            raise ConfigError("model", f"aiconfigurator cannot price {self._what}: {reason}") from None


def _lacks_routing(backend: str | None, weights: str, expert_parallel: int) -> bool:
    """Whether the experts of a backend were timed without choosing them.

    aiconfigurator chooses the experts before it times those of vLLM, and of SGLang in NVFP4 or with groups of
    experts. It times the whole module, with the choice, in MXFP4 and under TensorRT-LLM.

    Source: `collector/*/collect_moe.py` of <https://github.com/ai-dynamo/aiconfigurator>.
    """
    if weights == "mxfp4":
        return False
    return backend == "vllm" or (backend == "sglang" and (weights == "nvfp4" or expert_parallel > 1))


def _phases(handle: Any) -> tuple[Phase, Phase]:
    prefill = Phase(handle.evaluate_context_ops, is_prefill=True)
    decode = Phase(handle.evaluate_generation_ops, is_prefill=False)
    if not prefill.attention or not decode.attention:
        raise ConfigError("model", "no operation depends on the context; a table requires attention")
    return prefill, decode


def _compiler() -> Callable[..., Any]:
    """The function that compiles a model."""
    try:
        compiled: Callable[..., Any] = load("aiconfigurator_core.sdk.engine").EngineHandle.compile
    except ImportError as error:
        raise ConfigError("baking", f"{error} (Linux on x86-64, Python 3.11 or newer)") from None
    return compiled


@cache
def _version(system: str, backend: str, version: str | None) -> str:
    """The version of the backend, if the database has measurements of it; finding it takes a second."""
    perf_database = load("aiconfigurator_core.sdk.perf_database")
    with _quiet():
        measured = _measured()
        if system not in measured:
            names = [*SYSTEMS, *sorted(measured)]
            raise ConfigError("gpu", f"aiconfigurator has no measurements on {system!r}{near(system, names)}")
        backends = measured[system]
        if backend not in backends:
            hint = nearest(backend, sorted(backends))
            raise ConfigError(
                "backend", f"aiconfigurator has no measurements of {backend!r} on {system}{hint}"
            )
        if version is None:
            return str(perf_database.get_latest_database_version(system, backend))
    if version not in backends[backend]:
        known = ", ".join(backends[backend])
        raise ConfigError("version", f"{backend} {version!r} was not measured on {system}; known: {known}")
    return version


@cache
def _measured() -> Mapping[str, Mapping[str, Sequence[str]]]:
    """The versions that were measured, by system and backend; finding them reads hundreds of files."""
    measured: Mapping[str, Mapping[str, Sequence[str]]] = load(
        "aiconfigurator_core.sdk.perf_database"
    ).get_supported_databases()
    return measured


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress messages about kernels that these models do not use."""
    logger = logging.getLogger("aiconfigurator_core")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing):
            yield
    finally:
        logger.setLevel(level)
