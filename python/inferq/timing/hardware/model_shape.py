"""ModelShape: the sizes of a model that determine time and memory.

A transformer of the Llama kind: grouped-query attention, a gated feed-forward part of three matrices, dense
or in experts. The terms are those of a `config.json` on the Hugging Face Hub, which can be read unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from inferq._lazy import pl
from inferq.checks import flag, whole
from inferq.display.text import listed
from inferq.errors import ConfigError
from inferq.inputs import parsed_json, read_text
from inferq.timing.hardware.catalog import entries, entry

Weights = Literal["bf16", "fp8", "int8", "int4"]
KvType = Literal["bf16", "fp8", "int8"]

WEIGHT_BYTES: Mapping[str, float] = {"bf16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5 + 2.5 / 128}
"""Bytes of a weight of the linear layers; int4 with a 16-bit scale and a 4-bit zero for each 128 weights
(AWQ, GPTQ)."""

KV_BYTES: Mapping[str, int] = {"bf16": 2, "fp8": 1, "int8": 1}
"""Bytes of a number in the KV cache."""

ACTIVATION_BYTES = 2
"""Activations, embeddings and the output layer stay at 16 bits, whatever the other weights are."""

_NEEDED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
_UNKNOWN_PARTS = {
    "kv_lora_rank": "multi-head latent attention",
    "n_shared_experts": "shared experts",
    "num_shared_experts": "shared experts",
    "shared_expert_intermediate_size": "shared experts",
    "shared_intermediate_size": "shared experts",
    "intermediate_size_mlp": "shared experts",
    "linear_num_key_heads": "linear attention",
    "mamba_d_state": "state-space layers",
    "mamba_n_heads": "state-space layers",
    "mamba_num_heads": "state-space layers",
    "is_encoder_decoder": "an encoder",
    "ssm_cfg": "state-space layers",
}
"""Keys of parts that are not supported."""

_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
_OF_EXPERTS = ("num_experts_per_tok", "moe_intermediate_size", "moe_num_experts")
"""Keys with the number of experts, and keys that only models with experts have."""

_ATTENTION = ("full_attention", "sliding_attention", "chunked_attention", "attention")
"""Kinds of layers that store keys and values for at most every token."""

_OTHER_HEAD_SIZE = ("gemma", "qwen3")
"""Prefixes of model types whose head size is not width / heads if `head_dim` is missing."""

_TIED = ("gemma", "cohere")
"""Prefixes of model types whose output layer is the embedding by default."""

_NOT_GATED = ("bert", "bloom", "falcon", "gpt2", "gpt_neox", "gptj", "nemotron", "opt", "phi", "starcoder2")
"""Types of models whose feed-forward part is two matrices."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelShape:
    """The sizes of a model that determine the computation, memory traffic and memory of an iteration.

    Args:
        layers: decoder blocks.
        hidden: width of a token between blocks.
        heads: query heads.
        kv_heads: key-value heads, a divisor of `heads`.
        head_size: numbers per head.
        intermediate: width of the feed-forward part, or of one expert.
        vocab: size of the vocabulary.
        experts: experts of a layer; 1 for a dense model.
        active_experts: experts per token.
        tied: whether the output layer is the embedding.
        qkv_bias: whether queries, keys and values have a bias (Qwen2).
        qk_norm: whether queries and keys are normalized per head (Qwen3).
        name: name of the model.

    Raises:
        ConfigError: a size that is not a positive integer, or inconsistent sizes.

    Example:
        >>> import inferq as iq
        >>> shape = iq.timing.ModelShape.of("llama-3.1-8b")
        >>> shape.parameters, shape.kv_bytes_per_token()
        (8030261248, 131072)
        >>> iq.timing.ModelShape.of("mixtral-8x7b").active_parameters
        12879925248
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    intermediate: int
    vocab: int
    experts: int = 1
    active_experts: int = 1
    tied: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    name: str = field(default="a model", compare=False)
    ignored: tuple[str, ...] = field(default=(), compare=False, repr=False)
    """Keys of its `config.json` that would change time or memory and are ignored."""
    max_model_len: int | None = field(default=None, compare=False, repr=False)
    """`max_position_embeddings` of its `config.json`: maximum tokens of prompt and output."""

    def __post_init__(self) -> None:
        """Reject impossible sizes."""
        sizes = ("layers", "hidden", "heads", "kv_heads", "head_size", "intermediate", "vocab", "experts")
        for size in (*sizes, "active_experts"):
            whole(f"model.{size}", getattr(self, size), 1, 2**31 - 1)
        if self.heads % self.kv_heads:
            raise ConfigError("model.kv_heads", f"{self.kv_heads} does not divide {self.heads} heads")
        if self.active_experts > self.experts:
            raise ConfigError(
                "model.active_experts", f"{self.active_experts} exceeds the {self.experts} experts"
            )

    @classmethod
    def of(cls, model: ModelShape | str | Path | Mapping[str, Any]) -> ModelShape:
        """Return the shape of a model by its name in the catalog, or from a `config.json`.

        Args:
            model: a name of `timing.known_models()`; the path of a `config.json`, or of the folder that holds
                one; or a mapping with its keys: `hidden_size`, `num_hidden_layers`, `num_attention_heads`,
                `vocab_size` and `intermediate_size`, and if applicable `num_key_value_heads`, `head_dim`,
                `tie_word_embeddings`, `num_local_experts` or `num_experts`, `num_experts_per_tok`,
                `moe_intermediate_size`. Other keys are ignored. Two ignored keys change time or memory,
                `quantization_config` (set the argument `weights`) and `sliding_window`; `ignored` and
                `Engine.explain` list them if present.

        Raises:
            ConfigError: an unknown name, with the nearest known one; missing keys, with the file; an
                unsupported kind of model.
            OSError: the file cannot be read.
        """
        if isinstance(model, ModelShape):
            return model
        if isinstance(model, Mapping):
            return cls._of_config("config.json", "a model", model)
        if not isinstance(model, (str, Path)):
            raise ConfigError(
                "model",
                f"must be a name of timing.known_models(), a config.json or a ModelShape, got {model!r}",
            )
        if isinstance(model, str) and model.strip().lower() in entries("models"):
            name = model.strip().lower()
            return cls._of_config(name, name, entry("models", "model", name)["config"])
        file = Path(model)
        if file.is_dir():
            file = file / "config.json"
        if not file.is_file():
            if is_path(model):
                last = Path(model).name.lower()
                entry_name = max(filter(last.startswith, entries("models")), key=len, default="")
                hint = f"; did you mean {entry_name} of timing.known_models()?" if entry_name else ""
                raise ConfigError("model", f"no such file: {file}{hint}")
            entry("models", "model", str(model))  # raises for an unknown name
        refuse = partial(ConfigError, file)
        config = parsed_json(read_text(file, refuse), refuse)
        if not isinstance(config, Mapping):
            raise ConfigError(file, f"must contain one table, got {type(config).__name__}")
        return cls._of_config(str(file), file.resolve().parent.name or file.stem, config)

    @classmethod
    def _of_config(cls, where: str, name: str, config: Mapping[str, Any]) -> ModelShape:
        """Read the shape from a `config.json`."""

        def given(key: str) -> bool:
            return config.get(key) is not None

        for key, part in _UNKNOWN_PARTS.items():
            if config.get(key):
                raise ConfigError(where, f"{key}: {part} is not supported")
        kind = str(config.get("model_type", ""))
        if kind in _NOT_GATED:
            raise ConfigError(
                where,
                f"models of type {kind!r} are not supported: they have no gated feed-forward part of three "
                "matrices",
            )
        experts = next((key for key in _EXPERTS if given(key)), None)
        marks = [key for key in _OF_EXPERTS if given(key)]
        if marks and not experts:
            raise ConfigError(
                where, f"{marks[0]} requires the number of experts: {', '.join(_EXPERTS)} are missing"
            )
        width = "moe_intermediate_size" if given("moe_intermediate_size") else "intermediate_size"
        needed = (
            *(*_NEEDED, width),
            *(("num_experts_per_tok",) if experts else ()),
            *(("head_dim",) if kind.startswith(_OTHER_HEAD_SIZE) else ()),
        )
        if missing := [key for key in needed if not given(key)]:
            nested = "; it has a text_config: use that table instead" if given("text_config") else ""
            raise ConfigError(where, f"missing {', '.join(missing)}{nested}")
        layer_types = config.get("layer_types")
        for kind_of_layer in layer_types if isinstance(layer_types, (list, tuple)) else ():
            if kind_of_layer not in _ATTENTION:
                raise ConfigError(where, f"layer_types: {kind_of_layer!r} is not supported")
        steps = ("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_freq")
        sparse = [key for key in ("mlp_only_layers", "first_k_dense_replace") if config.get(key)]
        if experts and (sparse or any(given(step) and config[step] != 1 for step in steps)):
            raise ConfigError(where, "models with experts in only some of the layers are not supported")

        def size(key: str) -> int:
            return whole(f"{where}: {key}", config[key], 1, 2**31 - 1)

        def switch(key: str, default: bool) -> bool:
            return flag(f"{where}: {key}", config[key]) if given(key) else default

        heads = size("num_attention_heads")
        if given("head_dim"):
            head_size = size("head_dim")
        elif size("hidden_size") % heads:
            raise ConfigError(
                where, f"a hidden_size of {size('hidden_size')} is not a multiple of {heads} heads"
            )
        else:
            head_size = size("hidden_size") // heads
        try:
            return cls(
                layers=size("num_hidden_layers"),
                hidden=size("hidden_size"),
                heads=heads,
                kv_heads=size("num_key_value_heads") if given("num_key_value_heads") else heads,
                head_size=head_size,
                intermediate=size(width),
                vocab=size("vocab_size"),
                experts=size(experts) if experts else 1,
                active_experts=size("num_experts_per_tok") if experts else 1,
                tied=switch("tie_word_embeddings", kind.startswith(_TIED)),
                qkv_bias=kind == "qwen2" or switch("attention_bias", False),
                qk_norm=kind in ("qwen3", "qwen3_moe"),
                name=name,
                max_model_len=size("max_position_embeddings") if given("max_position_embeddings") else None,
                ignored=tuple(
                    key
                    for key in ("quantization_config", "sliding_window")
                    if config.get(key) and config.get(f"use_{key}", True)
                ),
            )
        except ConfigError as error:
            text = str(error)
            raise ConfigError(text if text.startswith(where) else f"{where}: {text}") from None

    @property
    def attention_weights(self) -> int:
        """Weights of the four projections of a layer, without biases."""
        return 2 * self.hidden * (self.heads + self.kv_heads) * self.head_size

    @property
    def expert_weights(self) -> int:
        """Weights of one feed-forward part of a layer."""
        return 3 * self.hidden * self.intermediate

    @property
    def linear_weights(self) -> int:
        """Weights of the matrices of all layers, which are multiplied, read and quantized."""
        router = self.hidden * self.experts if self.experts > 1 else 0
        return self.layers * (self.attention_weights + self.experts * self.expert_weights + router)

    @property
    def active_linear_weights(self) -> int:
        """The part of `linear_weights` that one token uses."""
        router = self.hidden * self.experts if self.experts > 1 else 0
        return self.layers * (self.attention_weights + self.active_experts * self.expert_weights + router)

    @property
    def output_weights(self) -> int:
        """Weights of the output layer, read in every iteration."""
        return self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        """All parameters, counted as in the model card."""
        return self.linear_weights + self._other_weights

    @property
    def active_parameters(self) -> int:
        """The parameters that one token uses, with embedding and output layer."""
        return self.active_linear_weights + self._other_weights

    @property
    def _other_weights(self) -> int:
        """Embedding, output layer, norms and biases."""
        biases = (self.heads + 2 * self.kv_heads) * self.head_size if self.qkv_bias else 0
        norms = 2 * self.hidden + (2 * self.head_size if self.qk_norm else 0)
        embeddings = self.output_weights * (1 if self.tied else 2)
        return embeddings + self.layers * (biases + norms) + self.hidden

    def weight_bytes(self, weights: Weights = "bf16") -> float:
        """Bytes of the whole model; embedding, output layer and norms stay at 16 bits.

        Args:
            weights: number format of the matrices: `"bf16"` (also float16), `"fp8"`, `"int8"` or `"int4"`.

        Raises:
            ConfigError: an unknown format.
        """
        one_of("weights", weights, get_args(Weights))
        return self.linear_weights * WEIGHT_BYTES[weights] + self._other_weights * ACTIVATION_BYTES

    def kv_bytes_per_token(self, kv_dtype: KvType = "bf16", tensor_parallel: int = 1) -> int:
        """Bytes of the keys and values of one token in all layers, on one of `tensor_parallel` GPUs.

        With more GPUs than key-value heads, each head is stored more than once.

        Args:
            kv_dtype: number format of the cache: `"bf16"`, `"fp8"` or `"int8"`.
            tensor_parallel: GPUs of a replica.

        Raises:
            ConfigError: an unknown format; a number of GPUs that does not divide the heads.
        """
        one_of("kv_dtype", kv_dtype, get_args(KvType))
        return 2 * self.layers * self.kv_heads_of(tensor_parallel) * self.head_size * KV_BYTES[kv_dtype]

    def kv_heads_of(self, tensor_parallel: int) -> int:
        """Key-value heads on one of `tensor_parallel` GPUs.

        Raises:
            ConfigError: a number of GPUs that does not divide the heads.
        """
        gpus = whole("tensor_parallel", tensor_parallel, 1, 1024)
        if self.heads % gpus or not self._splits(gpus):
            divisors = [n for n in range(1, self.heads + 1) if not self.heads % n and self._splits(n)]
            raise ConfigError(
                "tensor_parallel",
                f"{gpus} GPUs cannot share the {self.heads} query heads and "
                f"{self.kv_heads} key-value heads of {self.name}; use {listed(map(str, divisors), 'or')}",
            )
        return max(1, self.kv_heads // gpus)

    def _splits(self, gpus: int) -> bool:
        """Whether the GPUs have equally many key-value heads, or the heads equally many GPUs."""
        return not self.kv_heads % gpus or not gpus % self.kv_heads


def is_path(model: object) -> bool:
    """Whether a model is the path of a `config.json` and not a name."""
    return isinstance(model, Path) or (
        isinstance(model, str) and ("/" in model or "\\" in model or model.endswith(".json"))
    )


def one_of(field: str, value: object, values: tuple[str, ...]) -> None:
    """Reject a `value` that is not one of `values`."""
    if value not in values:
        raise ConfigError(field, f"must be one of {', '.join(map(repr, values))}, got {value!r}")


def known_models() -> pl.DataFrame:
    """List the models that `Engine.on` and `timing.Roofline` know by name.

    Returns:
        A row for each model: `model`, `parameters`, `active_parameters` (of one token, fewer with experts),
        `layers`, `hidden`, `heads`, `kv_heads`, `experts`, `kv_bytes_per_token` (16-bit) and `source`.

    Example:
        >>> import inferq as iq
        >>> known = iq.timing.known_models()
        >>> known.filter(known["model"] == "llama-3.1-8b").select("parameters", "kv_bytes_per_token").rows()
        [(8030261248, 131072)]
    """
    columns = ("parameters", "active_parameters", "layers", "hidden", "heads", "kv_heads", "experts")
    rows = []
    for name, fields in entries("models").items():
        shape = ModelShape.of(name)
        rows.append(
            {
                "model": name,
                **{column: getattr(shape, column) for column in columns},
                "kv_bytes_per_token": shape.kv_bytes_per_token(),
                "source": fields["source"],
            }
        )
    return pl.DataFrame(rows)
