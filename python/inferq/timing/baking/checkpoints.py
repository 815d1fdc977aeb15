"""The files of a model that aiconfigurator reads, and its names of number formats."""

from __future__ import annotations

import contextlib
import importlib.resources
import json
import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from inferq.checks import nearest
from inferq.description import table_of
from inferq.errors import ConfigError
from inferq.inputs import parsed_json
from inferq.timing.hardware.catalog import entries
from inferq.timing.hardware.model_shape import ModelShape

CARRIED = {
    "llama-3.1-8b": "meta-llama/Meta-Llama-3.1-8B",
    "llama-3.1-70b": "meta-llama/Meta-Llama-3.1-70B",
    "qwen3-8b": "Qwen/Qwen3-8B",
    "qwen3-32b": "Qwen/Qwen3-32B",
    "mixtral-8x7b": "mistralai/Mixtral-8x7B-v0.1",
}
"""aiconfigurator's names of known models; other models are passed as a `config.json`."""
WEIGHTS = {
    "bf16": ("bfloat16", "bfloat16"),
    "fp8": ("fp8_static", "fp8"),
    "fp8-block": ("fp8_block", "fp8_block"),
    "nvfp4": ("nvfp4", "nvfp4"),
    "mxfp4": ("bfloat16", "w4a16_mxfp4"),
    "int8": ("int8_wo", "int8_wo"),
    "int4": ("int4_wo", "int4_wo"),
}
"""aiconfigurator's modes of products and of experts for each format of weights."""
KV_TYPES = {"bf16": "bfloat16", "fp8": "fp8", "int8": "int8"}
_FILES = ("config.json", "hf_quant_config.json")
_LONGEST = 131_072


class Source(NamedTuple):
    """The `config.json` of a model, and the `hf_quant_config.json` of its checkpoint if it has one."""

    name: str
    config: Mapping[str, Any]
    quantization: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, model: str) -> Source:
        """The files of a folder, of a model that aiconfigurator has, or of a known model.

        Raises:
            ConfigError: there is none.
        """
        if Path(model, "config.json").is_file():
            files = [Path(model, name) for name in _FILES]
            return cls(Path(model).resolve().name, *map(_table, files))
        name = CARRIED.get(model, model)
        stem = name.replace("/", "--")
        carried = [_carried() / f"{stem}_{part}" for part in _FILES]
        if carried[0].is_file():
            return cls(name, *map(_table, carried))
        known = entries("models").get(name)
        if known is not None and "architectures" in known["config"]:
            return cls(name, _as_llama(known["config"]))
        if known is not None and (same := cls.like(ModelShape.of(name), None)) is not None:
            return same
        hint = nearest(model, [*entries("models"), *cls.names()]).partition("; known")[0]
        raise ConfigError(
            "model", f"aiconfigurator has no {model!r}; use a folder with its config.json{hint}"
        )

    @classmethod
    def like(cls, shape: ModelShape, weights: str | None) -> Source | None:
        """A model of aiconfigurator of a shape, in a format of weights or else 16 bits; None without one."""
        same = [source for source, known in _shapes() if known == shape]
        for wanted in (weights or shape.checkpoint.weights, "bf16"):
            for source in same:
                if source.weights == wanted:
                    return source
        return None

    @staticmethod
    def names() -> list[str]:
        """The models of aiconfigurator."""
        ending = f"_{_FILES[0]}"
        files = sorted(file.name for file in _carried().iterdir() if file.name.endswith(ending))
        return [file.removesuffix(ending).replace("--", "/") for file in files]

    @contextlib.contextmanager
    def folder(self) -> Iterator[str]:
        """Yield a folder with the files, so that no network access is needed."""
        with tempfile.TemporaryDirectory() as folder:
            for name, table in zip(_FILES, (self.config, self.quantization), strict=True):
                if table is not None:
                    Path(folder, name).write_text(json.dumps(table), encoding="utf-8")
            yield folder

    @property
    def most_context(self) -> int:
        """The maximum context of the model, at most 131,072."""
        text = self.config.get("text_config") or {}
        most = self.config.get("max_position_embeddings", text.get("max_position_embeddings", _LONGEST))
        if not isinstance(most, int) or most < 32:
            raise ConfigError(
                "model", f"{self.name}: max_position_embeddings must be a number of tokens, got {most!r}"
            )
        return min(most, _LONGEST)

    def modes(self, weights: str | None, kv_dtype: str | None) -> dict[str, str]:
        """Aiconfigurator's modes of a format of weights and of the KV cache; empty: as in the files."""
        modes = {}
        if weights is not None and weights != self.weights:
            modes["gemm_quant_mode"], modes["moe_quant_mode"] = WEIGHTS[weights]
        if kv_dtype is not None:
            modes["kvcache_quant_mode"] = KV_TYPES[kv_dtype]
        return modes

    @property
    def shape(self) -> ModelShape:
        """The shape of the model, with the formats of its checkpoint.

        Raises:
            ConfigError: the files cannot be read as a model.
        """
        stored = {} if self.quantization is None else {"quantization_config": self.quantization}
        return ModelShape.of({**self.config, **stored})

    @property
    def weights(self) -> str:
        """The format of the checkpoint's weights."""
        return self.shape.checkpoint.weights

    @property
    def kv_dtype(self) -> str:
        """The format of the KV cache that the checkpoint states, or 16 bits."""
        return self.shape.checkpoint.kv_dtype or "bf16"

    @property
    def is_multi_head(self) -> bool:
        """Whether the model has as many key heads as query heads."""
        heads = self.config.get("num_attention_heads")
        return (
            heads is not None
            and self.config.get("num_key_value_heads") in (None, heads)
            and "kv_lora_rank" not in self.config
        )


def _carried() -> Any:
    """The folder of aiconfigurator's models."""
    return importlib.resources.files("aiconfigurator_core") / "model_configs"


def _table(file: Any) -> Any:
    """The content of a JSON file of a folder or package; None if there is none."""
    return table_of("", parsed_json(file.read_text("utf-8"))) if file.is_file() else None


@cache
def _shapes() -> list[tuple[Source, ModelShape]]:
    """The models of aiconfigurator that have a shape."""
    models = []
    for name in Source.names():
        source = Source.of(name)
        try:
            models.append((source, source.shape))
        except ConfigError:
            continue
    return models


def _as_llama(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Describe a Mistral model without a sliding window as a Llama model, which has the same layers."""
    if config.get("model_type") != "mistral" or config.get("sliding_window") is not None:
        return config
    return {**config, "architectures": ["LlamaForCausalLM"], "model_type": "llama"}
