"""ModelShape: the sizes of a model that determine time and memory.

A decoder in groups of equal layers; each group has a kind of attention or recurrent part and a kind of
feed-forward part. The terms are those of a `config.json` on the Hugging Face Hub, which can be read
unchanged.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

from inferq._lazy import pl
from inferq.checks import whole
from inferq.display.text import listed
from inferq.errors import ConfigError
from inferq.inputs import parsed_json, read_text
from inferq.timing.hardware.catalog import entries, entry, hub_config
from inferq.timing.hardware.configs.reader import read_config
from inferq.timing.hardware.formats import (
    ACTIVATION_BYTES,
    KV_BYTES,
    WEIGHT_BYTES,
    Checkpoint,
    KvType,
    Part,
    Weights,
    kv_type_of,
    weights_of,
)
from inferq.timing.hardware.layers import Attention, Experts, LatentAttention, LayerGroup, Recurrent

__all__ = [
    "ACTIVATION_BYTES",
    "KV_BYTES",
    "WEIGHT_BYTES",
    "KvType",
    "ModelShape",
    "Weights",
    "is_path",
    "known_models",
    "one_of",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelShape:
    """The sizes of a model that determine the computation, memory traffic and memory of an iteration.

    Args:
        hidden: width of a token between layers.
        vocab: size of the vocabulary.
        groups: the decoder layers in groups of equal shape.
        tied: whether the output layer is the embedding.
        extra_parameters: parameters besides layers, embedding, output layer and final norm.
        name: name of the model.
        max_model_len: maximum tokens of prompt and output.
        checkpoint: the number formats in which the model is stored.
        unused: keys of its `config.json` that may change time or memory and are not used, with the reason.

    Two shapes are equal if their layers and sizes are; name, maximum length and formats do not matter.

    Raises:
        ConfigError: a size that is not a positive integer, or inconsistent sizes.

    Example:
        >>> import inferq as iq
        >>> shape = iq.timing.ModelShape.of("llama-3.1-8b")
        >>> shape.parameters, shape.kv_bytes_per_token()
        (8030261248, 131072)
        >>> iq.timing.ModelShape.of("mixtral-8x7b").active_parameters
        12879925248
        >>> oss = iq.timing.ModelShape.of("gpt-oss-20b")  # every second layer attends to 128 tokens
        >>> oss.kv_bytes_per_token(), oss.window_bytes_per_token(), oss.checkpoint.weights
        (24576, 24576, 'mxfp4')
    """

    hidden: int
    vocab: int
    groups: tuple[LayerGroup, ...]
    tied: bool = False
    extra_parameters: int = 0
    name: str = field(default="a model", compare=False)
    max_model_len: int | None = field(default=None, compare=False, repr=False)
    checkpoint: Checkpoint = field(default_factory=Checkpoint, compare=False, repr=False)
    unused: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Reject impossible sizes."""
        for size in ("hidden", "vocab"):
            whole(f"model.{size}", getattr(self, size), 1, 2**31 - 1)
        whole("model.extra_parameters", self.extra_parameters, 0)
        if not self.groups or not all(isinstance(group, LayerGroup) for group in self.groups):
            raise ConfigError("model.groups", f"must be a tuple of LayerGroup(…), got {self.groups!r}")

    @classmethod
    def of(cls, model: ModelShape | str | Path | Mapping[str, Any]) -> ModelShape:
        """Return the shape of a model by its name in the catalog, or from a `config.json`.

        Args:
            model: a name of `timing.known_models()` or of its model on the Hugging Face Hub
                (`"Qwen/Qwen3-32B-FP8"`); the path of a `config.json`, or of the folder that holds one; or a
                mapping with its keys. The rule of its `model_type` reads the layers; a decoder in
                `text_config`, `language_config` or `llm_config` is read. `quantization_config`, or an
                `hf_quant_config.json` next to the file, states the formats of the checkpoint. `unused` lists
                keys that may change time or memory and are not used.

        Raises:
            ConfigError: an unknown name, with the nearest known one; missing keys, with the file; a model
                type without a rule, with the keys that were not understood; an unknown quantization method.
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
        file = Path(model)
        if os.path.isdir(file):  # unlike Path.is_dir, false for names that are too long
            file = file / "config.json"
        plain = model.strip().lower() if isinstance(model, str) else ""
        if plain in entries("models") or (plain and not os.path.isfile(file)):
            known = _known(plain)
            if known is not None:
                return known
        if not os.path.isfile(file):
            if is_path(model):
                last = Path(model).name.lower()
                entry_name = max(filter(last.startswith, entries("models")), key=len, default="")
                hint = (
                    f"; did you mean {entry_name} of timing.known_models()?"
                    if entry_name
                    else "; for known names see timing.known_models() or inferq list models"
                )
                raise ConfigError("model", f"no such file: {file}{hint}")
            entry("models", "model", str(model))  # raises for an unknown name
        config = _table(file)
        quantized = file.with_name("hf_quant_config.json")
        return cls._of_config(
            str(file),
            file.resolve().parent.name or file.stem,
            config,
            _table(quantized) if quantized.is_file() else None,
        )

    @classmethod
    def _of_config(
        cls,
        where: str,
        name: str,
        config: Mapping[str, Any],
        hf_quant_config: Mapping[str, Any] | None = None,
    ) -> ModelShape:
        """Read the shape from a `config.json`."""
        read = read_config(where, config, hf_quant_config)
        return cls(
            hidden=read.hidden,
            vocab=read.vocab,
            groups=read.groups,
            tied=read.tied,
            extra_parameters=read.extra_parameters,
            name=name,
            max_model_len=read.max_model_len,
            checkpoint=read.checkpoint,
            unused=read.unused,
        )

    @property
    def layers(self) -> int:
        """Decoder layers."""
        return sum(group.layers for group in self.groups)

    @property
    def attention(self) -> Attention | LatentAttention | None:
        """The attention of the first group that has one, preferably over all tokens."""
        mixers = [
            mixer for group in self.groups for mixer in group.mixers if not isinstance(mixer, Recurrent)
        ]
        return next((mixer for mixer in mixers if mixer.limit is None), mixers[0] if mixers else None)

    @property
    def heads(self) -> int:
        """Query heads of the attention."""
        return self.attention.heads if self.attention is not None else 0

    @property
    def kv_heads(self) -> int:
        """Key-value heads of the attention; 1 for latent attention."""
        return self.attention.kv_splits if self.attention is not None else 0

    @property
    def experts(self) -> int:
        """Routed experts of the layers that have experts; 1 without experts."""
        return max((part.experts for part in self._experts()), default=1)

    @property
    def active_experts(self) -> int:
        """Routed experts of a token; 1 without experts."""
        return max((part.active for part in self._experts()), default=1)

    def _experts(self) -> list[Experts]:
        return [group.feed_forward for group in self.groups if isinstance(group.feed_forward, Experts)]

    @property
    def linear_weights(self) -> int:
        """Weights of the matrices of all layers, which are multiplied and read."""
        return sum(group.layers * group.weights(self.hidden) for group in self.groups)

    @property
    def active_linear_weights(self) -> int:
        """The part of `linear_weights` that one token uses."""
        return sum(group.layers * group.active_weights(self.hidden) for group in self.groups)

    @property
    def output_weights(self) -> int:
        """Weights of the output layer, read in every iteration."""
        return self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        """All parameters of the decoder, counted as in the model card.

        Vision and audio parts and blocks for multi-token prediction are not counted.
        """
        return self.linear_weights + self._other_weights

    @property
    def active_parameters(self) -> int:
        """The parameters that one token uses, with embedding and output layer."""
        layers = sum(group.layers * group.active_other_parameters(self.hidden) for group in self.groups)
        return self.active_linear_weights + self._outside_weights + layers

    @property
    def _outside_weights(self) -> int:
        """Embedding, output layer and final norm."""
        return self.output_weights * (1 if self.tied else 2) + self.hidden + self.extra_parameters

    @property
    def _other_weights(self) -> int:
        """Embedding, output layer, norms, biases and other vectors."""
        layers = sum(group.layers * group.other_parameters(self.hidden) for group in self.groups)
        return self._outside_weights + layers

    def stored_weights(self, weights: str | None = None) -> Mapping[Part, tuple[int, int]]:
        """The weights of the layers by part: the number in the format `weights`, and the number at 16 bits.

        If `weights` is the checkpoint's format, the matrices that it leaves at 16 bits stay there.

        Raises:
            ConfigError: an unknown format.
        """
        chosen = weights_of(weights, self.checkpoint)
        totals: dict[Part, int] = {}
        for group in self.groups:
            for part, count in group.part_weights(self.hidden).items():
                totals[part] = totals.get(part, 0) + group.layers * count
        unquantized = self.checkpoint.sixteen_bit_weights if chosen == self.checkpoint.weights else {}
        if chosen == "bf16":
            unquantized = totals
        return {
            part: (total - unquantized.get(part, 0), unquantized.get(part, 0))
            for part, total in totals.items()
        }

    def linear_weight_bytes(self, weights: str | None = None) -> float:
        """Bytes of the matrices of all layers.

        Raises:
            ConfigError: an unknown format.
        """
        size = self.checkpoint.weight_bytes(weights_of(weights, self.checkpoint))
        stored = self.stored_weights(weights).values()
        quantized = sum(count for count, _ in stored)
        unquantized = sum(count for _, count in stored)
        return quantized * size + unquantized * ACTIVATION_BYTES

    def weight_bytes(
        self, weights: str | None = None, tensor_parallel: int = 1, expert_parallel: int = 1
    ) -> float:
        """Bytes of the weights on one GPU; embedding, output layer and norms stay at 16 bits.

        Tensor parallelism splits every matrix, but each GPU stores the projections of latent attention to its
        ranks and, with more GPUs than key-value heads, a whole head. Expert parallelism divides the routed
        experts among `expert_parallel` GPUs; with fewer than `tensor_parallel`, each expert is split too.

        Args:
            weights: number format of the matrices, as for `Engine.on`. Default: the checkpoint's.
            tensor_parallel: GPUs that share every layer.
            expert_parallel: GPUs or groups of GPUs that share the experts.

        Raises:
            ConfigError: an unknown format; a number of GPUs that does not divide the heads or experts.
        """
        stored = self.stored_weights(weights)
        size = self.checkpoint.weight_bytes(weights_of(weights, self.checkpoint))
        total = self.linear_weight_bytes(weights) + self._other_weights * ACTIVATION_BYTES
        if tensor_parallel == expert_parallel == 1:
            return total
        self.check_tensor_parallel(tensor_parallel)
        self.check_expert_parallel(tensor_parallel, expert_parallel)
        replicated = self._replicated_bytes(stored, size, tensor_parallel)
        if expert_parallel <= tensor_parallel:
            return (total + replicated) / tensor_parallel
        quantized, unquantized = stored.get("experts", (0, 0))
        experts = quantized * size + unquantized * ACTIVATION_BYTES
        return (total - experts + replicated) / tensor_parallel + experts / expert_parallel

    def _replicated_bytes(
        self, stored: Mapping[Part, tuple[int, int]], size: float, tensor_parallel: int
    ) -> float:
        """Bytes stored in addition by all GPUs, because some matrices cannot be split."""
        quantized, unquantized = stored.get("attention", (0, 0))
        if not quantized + unquantized:
            return 0.0
        mean = (quantized * size + unquantized * ACTIVATION_BYTES) / (quantized + unquantized)
        weights = sum(
            group.layers * mixer.replicated_weights(self.hidden, tensor_parallel)
            for group in self.groups
            for mixer in group.mixers
        )
        return weights * mean

    def kv_bytes_per_token(self, kv_dtype: str | None = "bf16", tensor_parallel: int = 1) -> int:
        """Bytes that one token adds to the caches of all layers that store every token, on one GPU.

        Layers with a window or chunk are in `window_bytes_per_token`, and a sparse index is in
        `index_bytes_per_token`. With more GPUs than key-value heads, each head is stored more than once;
        every GPU stores the whole latent cache.

        Args:
            kv_dtype: number format of the cache, as for `Engine.on`. None: the checkpoint's.
            tensor_parallel: GPUs that share every layer.

        Raises:
            ConfigError: an unknown format; a number of GPUs that does not divide the heads.
        """
        return self._kv_bytes(kv_dtype, tensor_parallel, False)

    def window_bytes_per_token(self, kv_dtype: str | None = "bf16", tensor_parallel: int = 1) -> int:
        """Bytes that one token within the window or chunk adds to the layers that have one, on one GPU.

        Raises:
            ConfigError: an unknown format; a number of GPUs that does not divide the heads.
        """
        return self._kv_bytes(kv_dtype, tensor_parallel, True)

    def _kv_bytes(self, kv_dtype: str | None, tensor_parallel: int, is_limited: bool) -> int:
        self.check_tensor_parallel(tensor_parallel)
        return sum(
            self.group_kv_bytes(group, kv_dtype, tensor_parallel)
            for group in self.groups
            if (group.limit is not None) == is_limited
        )

    def group_kv_bytes(
        self, group: LayerGroup, kv_dtype: str | None = "bf16", tensor_parallel: int = 1
    ) -> int:
        """Bytes that one token adds to the caches of a group of layers, on one GPU.

        Raises:
            ConfigError: an unknown format.
        """
        size = KV_BYTES[kv_type_of(kv_dtype, self.checkpoint)]
        values = sum(
            mixer.kv_values_per_token // mixer.kv_splits * max(1, mixer.kv_splits // tensor_parallel)
            for mixer in group.mixers
        )
        return math.ceil(group.layers * values * size)

    @property
    def index_bytes_per_token(self) -> int:
        """Bytes that one token adds to the sparse indexes of all layers, on every GPU."""
        return sum(
            group.layers * mixer.index_bytes_per_token for group in self.groups for mixer in group.mixers
        )

    def sequence_kv_bytes(self, tokens: int, kv_dtype: str | None = "bf16", tensor_parallel: int = 1) -> int:
        """Bytes of keys and values of a sequence of `tokens` tokens, on one GPU, without index and state.

        Raises:
            ConfigError: an unknown format; a number of GPUs that does not divide the heads.
        """
        self.check_tensor_parallel(tensor_parallel)
        return sum(
            self.group_kv_bytes(group, kv_dtype, tensor_parallel)
            * (tokens if group.limit is None else min(tokens, group.limit))
            for group in self.groups
        )

    def state_bytes(self, tensor_parallel: int = 1) -> int:
        """Bytes of the recurrent states of one sequence, on one GPU."""
        total = sum(group.layers * group.state_bytes for group in self.groups)
        return -(-total // tensor_parallel)

    def check_tensor_parallel(self, tensor_parallel: int) -> int:
        """Return a number of GPUs that can share the heads.

        Raises:
            ConfigError: it does not divide the heads; the message has the numbers that do.
        """
        gpus = whole("tensor_parallel", tensor_parallel, 1, 1024)
        if not self.splits(gpus):
            heads = max(self.heads, 1)
            divisors = [size for size in range(1, heads + 1) if self.splits(size)]
            raise ConfigError(
                "tensor_parallel",
                f"{gpus} GPUs cannot share the {self.heads} query heads and "
                f"{self.kv_heads} key-value heads of {self.name}; use {listed(map(str, divisors), 'or')}",
            )
        return gpus

    def splits(self, gpus: int) -> bool:
        """Whether the GPUs have equally many heads, of queries, of keys and values, and of states.

        With more GPUs than key-value heads, equally many GPUs have each head.
        """
        return all(_splits(mixer, gpus) for group in self.groups for mixer in group.mixers)

    def check_expert_parallel(self, tensor_parallel: int, expert_parallel: int) -> int:
        """Return a number of GPUs that can share the experts.

        Raises:
            ConfigError: it does not divide the experts, or neither parallelism is a multiple of the other.
        """
        gpus = whole("expert_parallel", expert_parallel, 1, 4096)
        if gpus == 1:
            return gpus
        counts = sorted({part.experts for part in self._experts()})
        if not counts:
            raise ConfigError(
                "expert_parallel", f"{self.name} has no experts; set expert_parallel=1, got {gpus}"
            )
        if any(count % gpus for count in counts):
            divisors = [size for size in range(1, counts[0] + 1) if not any(count % size for count in counts)]
            raise ConfigError(
                "expert_parallel",
                f"{gpus} GPUs cannot share the {counts[0]} experts of {self.name}; use "
                f"{listed(map(str, divisors), 'or')}",
            )
        if tensor_parallel % gpus and gpus % tensor_parallel:
            raise ConfigError(
                "expert_parallel",
                f"{gpus} is neither a divisor nor a multiple of tensor_parallel={tensor_parallel}",
            )
        return gpus

    def kv_heads_of(self, tensor_parallel: int) -> int:
        """Key-value heads of the attention on one of `tensor_parallel` GPUs.

        Raises:
            ConfigError: a number of GPUs that does not divide the heads.
        """
        return max(1, self.kv_heads // self.check_tensor_parallel(tensor_parallel))

    def explain(self, kv_dtype: str | None = None) -> list[str]:
        """Lines that report parameters, format, and the caches of each layer group."""
        kv_type = kv_type_of(kv_dtype, self.checkpoint)
        return [
            f"model: {self.name}, {_billions(self.parameters)} parameters, "
            f"{_billions(self.active_parameters)} active, stored as {self.checkpoint.weights}",
            *(f"  {group}: {self._caches(group, kv_type)}" for group in self.groups),
        ]

    def _caches(self, group: LayerGroup, kv_type: KvType) -> str:
        """The caches of a layer group."""
        kv_bytes, state = self.group_kv_bytes(group, kv_type), group.layers * group.state_bytes
        index = group.layers * sum(mixer.index_bytes_per_token for mixer in group.mixers)
        limit = "" if group.limit is None else f", at most {group.limit:,} tokens"
        parts = [
            *([f"{kv_bytes:,} bytes of {kv_type} cache a token{limit}"] if kv_bytes else []),
            *([f"{index:,} bytes of index a token"] if index else []),
            *([f"{state:,} bytes of state a sequence"] if state else []),
        ]
        return ", ".join(parts) or "no cache"


@cache
def _known(name: str) -> ModelShape | None:
    """The shape of a name in the catalog or on the Hugging Face Hub; None for an unknown name."""
    known = hub_config(name)
    return None if known is None else ModelShape._of_config(known[0], *known)


def _splits(mixer: Attention | LatentAttention | Recurrent, gpus: int) -> bool:
    if mixer.heads % gpus:
        return False
    if not isinstance(mixer, Attention):
        return True
    return not mixer.kv_heads % gpus or not gpus % mixer.kv_heads


def _billions(count: int) -> str:
    return f"{count / 1e9:,.2f} B"


def _table(file: Path) -> Mapping[str, Any]:
    """The table in a JSON file."""
    refuse = partial(ConfigError, file)
    table = parsed_json(read_text(file, refuse), refuse)
    if not isinstance(table, Mapping):
        raise ConfigError(file, f"must contain one table, got {type(table).__name__}")
    return table


def is_path(model: object) -> bool:
    """Whether a model is the path of a `config.json` and not a name."""
    if isinstance(model, Path):
        return True
    if not isinstance(model, str) or hub_config(model) is not None:
        return False
    return "/" in model or "\\" in model or model.endswith(".json")


def one_of(field: str, value: object, values: tuple[str, ...]) -> None:
    """Reject a `value` that is not one of `values`."""
    if value not in values:
        raise ConfigError(field, f"must be one of {', '.join(map(repr, values))}, got {value!r}")


def known_models() -> pl.DataFrame:
    """List the models that `Engine.on` and `timing.Roofline` know by name.

    Returns:
        A row for each model: `model`, `parameters`, `active_parameters` (of one token, fewer with experts),
        `layers`, `hidden`, `heads`, `kv_heads`, `experts`, `active_experts`, `kv_bytes_per_token` and
        `window_bytes_per_token` (16-bit; of layers that store every token, and within a window),
        `index_bytes_per_token`, `state_bytes` (per sequence), `weights` (format of the checkpoint),
        `layer_groups` (a description of each) and `source`.

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
                **{column: getattr(shape, column) for column in (*columns, "active_experts")},
                "kv_bytes_per_token": shape.kv_bytes_per_token(),
                "window_bytes_per_token": shape.window_bytes_per_token(),
                "index_bytes_per_token": shape.index_bytes_per_token,
                "state_bytes": shape.state_bytes(),
                "weights": shape.checkpoint.weights,
                "layer_groups": [str(group) for group in shape.groups],
                "source": fields["source"],
            }
        )
    return pl.DataFrame(rows)
