"""Kernel times of aiconfigurator's database, as the three parts of an iteration in seconds.

aiconfigurator (NVIDIA, Apache-2.0) has kernel times measured under vLLM, SGLang and TensorRT-LLM, in
milliseconds per operation. Attention is one operation per phase; all other operations are the linear part.
"""

from __future__ import annotations

import contextlib
import importlib.resources
import json
import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from inferq.checks import nearest
from inferq.description import table_of
from inferq.errors import ConfigError
from inferq.inputs import parsed_json, read_text
from inferq.timing.hardware.catalog import entries, near

CARRIED = {
    "llama-3.1-8b": "meta-llama/Meta-Llama-3.1-8B",
    "llama-3.1-70b": "meta-llama/Meta-Llama-3.1-70B",
    "qwen3-8b": "Qwen/Qwen3-8B",
    "qwen3-32b": "Qwen/Qwen3-32B",
    "mixtral-8x7b": "mistralai/Mixtral-8x7B-v0.1",
}
"""aiconfigurator's names of known models; other models are passed as a `config.json`."""
SYSTEMS = {
    "a100-80gb": "a100_sxm",
    "h100-80gb": "h100_sxm",
    "h200": "h200_sxm",
    "l40s": "l40s",
    "rtx-pro-6000": "rtx_pro_6000_server",
}
"""aiconfigurator's names of known GPUs."""
QUANTIZATION = (
    "gemm_quant_mode",
    "moe_quant_mode",
    "kvcache_quant_mode",
    "fmha_quant_mode",
    "comm_quant_mode",
)

_MILLISECOND = 1e-3
_LEAST_DECODE_CONTEXT = 3
"""At smaller contexts of a decode the database extrapolates, with errors up to 40 %."""

Operations = list[tuple[str, float, float, str]]


class KernelDatabase:
    """Times of one model on one system under one backend.

    Args:
        model: a known model, one that aiconfigurator has, or a folder with `config.json`.
        system: one of `SYSTEMS`, or a system of aiconfigurator.
        backend: `vllm`, `sglang` or `trtllm`.
        version: version of the backend. Default: the current one of the database.
        tensor_parallel: GPUs that share the model; experts are cut the same way.
        quantization: modes by their names in `QUANTIZATION`.

    Raises:
        ConfigError: the package is missing or has no data; it names the argument.
    """

    def __init__(
        self,
        model: str,
        system: str,
        backend: str,
        *,
        version: str | None,
        tensor_parallel: int,
        quantization: Mapping[str, str],
    ) -> None:
        compiled = _engine()
        self.system = SYSTEMS.get(system, system)
        self.version = _version(self.system, backend, version)
        for name in quantization:
            if name not in QUANTIZATION:
                raise ConfigError("quantization", f"unknown mode {name!r}{nearest(str(name), QUANTIZATION)}")
        with _folder(model) as (folder, self.model), _quiet():
            config = Path(folder, "config.json")
            self.most_context, self.has_multi_head_attention = _most_context(config), _is_multi_head(config)
            try:
                self._engine = compiled(
                    folder,
                    self.system,
                    backend,
                    backend_version=self.version,
                    tp_size=tensor_parallel,
                    moe_tp_size=tensor_parallel,
                    moe_ep_size=1,
                    **quantization,
                )
            except AssertionError as error:
                raise ConfigError("tensor_parallel", f"{tensor_parallel}: {error}") from None
            except (ValueError, RuntimeError, LookupError, TypeError, AttributeError, OSError) as error:
                raise ConfigError(self._refusal(model, quantization, error)) from None
        with self._answers(model, quantization):
            self._prefill_names = _names(self._engine.evaluate_context_ops)
            self._decode_names = _names(self._engine.evaluate_generation_ops)
        self._chunk = _attention(self._prefill_names)
        self._decode = _attention(self._decode_names)
        self._prefill_rest = [at for at in range(len(self._prefill_names)) if at != self._chunk]
        self._decode_rest = [at for at in range(len(self._decode_names)) if at != self._decode]
        self._experts = [at for at in self._prefill_rest if "moe" in self._prefill_names[at]]
        self.sources: dict[str, set[str]] = {}
        self.corrections: tuple[str, ...] = ()
        self._other: KernelDatabase | None = None
        if backend == "vllm" and version is None and (self._experts or self.has_multi_head_attention):
            self._use_sglang(model, system, tensor_parallel, quantization)
        with self._answers(model, quantization):
            for time_s in (self.chunk, self.decode):
                time_s(16, 16)
            near, far = (self._rest(context) for context in (16, 4096))
        if near != far:
            raise ConfigError(
                "model",
                "a table requires that everything except attention depends on the tokens of the batch only; "
                "in this model it also depends on their context",
            )

    def _use_sglang(
        self, model: str, system: str, tensor_parallel: int, quantization: Mapping[str, str]
    ) -> None:
        """Use times measured under SGLang if vLLM's were measured with untuned kernels.

        Both run the same Triton kernel for experts and, on Hopper, the same FlashAttention; measured times
        differ by the kernel configuration. Experts: the shorter time of both. Mixtral on two H100s rises from
        17.9 ms at 32 tokens to 23.7 at 80 and falls to 20.4 at 128 under vLLM 0.24; measured servers do not.
        Decodes with equal numbers of key and query heads: SGLang's, which reach 0.7 to 0.9 of the bandwidth;
        vLLM's reach 0.5 to 0.7.
        """
        try:
            self._other = KernelDatabase(
                model,
                system,
                "sglang",
                version=None,
                tensor_parallel=tensor_parallel,
                quantization=quantization,
            )
        except ConfigError:
            return
        under = f"under SGLang {self._other.version}"
        self.corrections = (
            *((f"experts: the shorter of the times measured here and {under}",) if self._experts else ()),
            *((f"decode attention: measured {under}",) if self.has_multi_head_attention else ()),
        )

    def linear(self, tokens: int) -> float:
        """Seconds of everything except attention for `tokens` tokens, with the logits of one row."""
        seconds = self._own_linear_s(tokens)
        if self._other is None or not self._experts:
            return seconds
        return seconds - max(0.0, self._experts_s(tokens) - self._other._experts_s(tokens))

    def _own_linear_s(self, tokens: int) -> float:
        return self._seconds(self._engine.evaluate_context_ops(self._prefill_rest, batch_size=1, s=tokens))

    def _experts_s(self, tokens: int) -> float:
        return self._seconds(self._engine.evaluate_context_ops(self._experts, batch_size=1, s=tokens))

    def chunk(self, tokens: int, context: int) -> float:
        """Seconds of attention of one chunk in all layers, writing its keys included.

        Chunks were measured at context 0 only. The database returns the time of a prompt of `context +
        tokens`, multiplied by the fraction of its pairs that the chunk computes. This vanishes for short
        chunks, so two measured times are lower bounds: the same chunk at context 0, and one decode that reads
        the same keys.
        """
        share = self._chunk_s(tokens, context)
        return max(share, self._chunk_s(tokens, 0), self._decode_s(1, context + tokens)) if context else share

    def chunks(self, tokens: int, count: int) -> float:
        """Seconds of attention of `count` whole prompts, in one kernel per layer."""
        return self._seconds(
            self._engine.evaluate_context_ops([self._chunk], batch_size=count, s=tokens, prefix=0)
        )

    def decode(self, sequences: int, mean_context: int) -> float:
        """Seconds of attention of decodes in all layers, and of the logits of all rows except one.

        `mean_context` is before the iteration; the database includes the new token. Contexts below 3 take as
        long as 3.
        """
        length = max(mean_context, _LEAST_DECODE_CONTEXT) + 1
        rest = self._engine.evaluate_generation_ops(
            self._decode_rest, batch_size=sequences, s=mean_context + 1
        )
        more_logits = self._seconds(rest) - self._own_linear_s(sequences)
        return self._decode_s(sequences, length) + max(0.0, more_logits)

    def _rest(self, context: int) -> tuple[float, float]:
        """Seconds of everything except attention at a context, for a chunk and for a decode."""
        of_chunk = self._engine.evaluate_context_ops(self._prefill_rest, batch_size=1, s=16, prefix=context)
        of_decode = self._engine.evaluate_generation_ops(self._decode_rest, batch_size=1, s=context)
        return self._seconds(of_chunk), self._seconds(of_decode)

    def _chunk_s(self, tokens: int, context: int) -> float:
        return self._seconds(
            self._engine.evaluate_context_ops([self._chunk], batch_size=1, s=tokens, prefix=context)
        )

    def _decode_s(self, sequences: int, length: int) -> float:
        if self._other is not None and self.has_multi_head_attention:
            return self._other._decode_s(sequences, length)
        return self._seconds(
            self._engine.evaluate_generation_ops([self._decode], batch_size=sequences, s=length)
        )

    def _seconds(self, operations: Operations) -> float:
        for name, _, _, source in operations:
            self.sources.setdefault(source, set()).add(name)
        return sum(milliseconds for _, milliseconds, _, _ in operations) * _MILLISECOND

    @contextlib.contextmanager
    def _answers(self, model: str, quantization: Mapping[str, str]) -> Iterator[None]:
        """Convert an exception of the first calls to a ConfigError with the name of the argument."""
        try:
            with _quiet():
                yield
        except (ValueError, RuntimeError, LookupError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(self._refusal(model, quantization, error)) from None

    def _refusal(self, model: str, quantization: Mapping[str, str], error: Exception) -> str:
        """The text of an exception of aiconfigurator, with the argument that most likely caused it."""
        reason = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, LookupError):
            reason = f"no data for {reason}"
        field = "quantization" if quantization else "model"
        given = dict(quantization) if quantization else model
        return f"{field}: aiconfigurator cannot price {given} on {self.system}: {reason}"


def _engine() -> Callable[..., Any]:
    """The function that compiles a model."""
    try:
        from aiconfigurator_core.sdk.engine import EngineHandle
    except ImportError:
        raise ConfigError(
            "baking",
            "requires aiconfigurator: pip install -r tools/baking/requirements.txt (Linux on x86-64, Python "
            "3.11 or newer)",
        ) from None
    compiled: Callable[..., Any] = EngineHandle.compile
    return compiled


def _version(system: str, backend: str, version: str | None) -> str:
    """The version of the backend, if the database has measurements of it."""
    from aiconfigurator_core.sdk import perf_database

    with _quiet():
        measured = perf_database.get_supported_databases()
        if system not in measured:
            names = [*SYSTEMS, *sorted(measured)]
            raise ConfigError(
                "system", f"aiconfigurator has no measurements on {system!r}{near(system, names)}"
            )
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


@contextlib.contextmanager
def _folder(model: str) -> Iterator[tuple[str, str]]:
    """A folder with the model's `config.json`, so that no network access is needed, and the model's name."""
    if Path(model, "config.json").is_file():
        yield model, Path(model).resolve().name
        return
    carried = importlib.resources.files("aiconfigurator_core") / "model_configs"
    name = CARRIED.get(model, model)
    with tempfile.TemporaryDirectory() as folder:
        for part in ("config.json", "hf_quant_config.json"):
            file = carried / f"{name.replace('/', '--')}_{part}"
            if file.is_file():
                Path(folder, part).write_bytes(file.read_bytes())
        config = Path(folder, "config.json")
        if not config.is_file() and name in entries("models"):
            config.write_text(json.dumps(_as_llama(entries("models")[name]["config"])), encoding="utf-8")
        if not config.is_file():
            ending = "_config.json"
            all_names = [file.name for file in carried.iterdir() if file.name.endswith(ending)]
            names = [one.removesuffix(ending).replace("--", "/") for one in all_names]
            hint = nearest(model, [*entries("models"), *names]).partition("; known")[0]
            raise ConfigError(
                "model", f"aiconfigurator has no {model!r}; use a folder with its config.json{hint}"
            )
        yield folder, name


def _is_multi_head(config: Path) -> bool:
    """Whether a model has as many key heads as query heads, from its `config.json`."""
    config_of = json.loads(config.read_text(encoding="utf-8"))
    heads = config_of.get("num_attention_heads")
    return heads is not None and config_of.get("num_key_value_heads") in (None, heads)


def _as_llama(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Describe a Mistral model without a sliding window as a Llama model, which has the same layers."""
    if config.get("model_type") != "mistral" or config.get("sliding_window") is not None:
        return config
    return {**config, "architectures": ["LlamaForCausalLM"], "model_type": "llama"}


def _most_context(config: Path) -> int:
    """The maximum context of a model, from its `config.json`."""
    try:
        table = table_of("", parsed_json(read_text(config)))
    except ConfigError as error:
        raise ConfigError("model", f"{config}: {error}") from None
    most = table.get("max_position_embeddings", 131_072)
    if not isinstance(most, int) or most < 32:
        raise ConfigError(
            "model", f"{config}: max_position_embeddings must be a number of tokens, got {most!r}"
        )
    return min(most, 131_072)


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


def _names(evaluate: Callable[..., Operations]) -> list[str]:
    """The operations of a phase, in the order of their indices; an index out of range ends the list."""
    names: list[str] = []
    while True:
        try:
            ((name, _, _, _),) = evaluate([len(names)], batch_size=1, s=16)
        except ValueError as error:
            if "out of range" not in str(error):
                raise
            return names
        names.append(name)


def _attention(names: list[str]) -> int:
    places = [at for at, name in enumerate(names) if "attention" in name]
    if len(places) != 1:
        has = ", ".join(names[at] for at in places) or "none"
        raise ConfigError("model", f"a table requires one attention operation per phase, got {has}")
    return places[0]
