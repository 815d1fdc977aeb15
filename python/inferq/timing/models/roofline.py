"""Roofline: the duration of an iteration from a datasheet and the shape of a model.

Each part of an iteration is bound by computing or by reading memory, whichever takes longer. The shape of the
model determines computation and memory traffic, the GPU their rates. The efficiencies are the fractions of
these rates that are reached.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inferq.checks import nearest, whole, within
from inferq.description import Description, fields_in, fields_of
from inferq.errors import ConfigError
from inferq.timing.hardware.formats import ACTIVATION_BYTES, kv_type_of, weights_of
from inferq.timing.hardware.gpu import Gpu
from inferq.timing.hardware.layers import Attention, LayerGroup, Recurrent
from inferq.timing.hardware.model_shape import ModelShape
from inferq.timing.models.timing_model import TimingModel

EFFICIENCIES: Mapping[str, float] = {
    "flops_efficiency": 0.66,
    "attention_flops_efficiency": 0.62,
    "bandwidth_efficiency": 0.78,
    "kv_bandwidth_efficiency": 0.79,
    "link_efficiency": 0.58,
    "pcie_efficiency": 0.11,
    "layer_s": 36e-6,
}
"""Fitted once to 24 shipped tables together by `benches/fit_roofline.py`, and rounded."""

EXCHANGES: Mapping[str, float] = {
    "exchange_s": 3.6e-6,
    "link_step_s": 0.47e-6,
    "pcie_step_s": 1e-6,
}
"""Fixed times of an all-reduce, from the model by which NCCL selects algorithms: a ring with its protocol for
short messages (`baseLat` and `hwLat` in its `src/graph/tuning.cc`)."""

_LONGEST_KERNEL_S = 1.0
"""Upper bound on fixed times, which are tens of microseconds; larger values are in another unit."""

_PARTS: Mapping[str, tuple[str, ...]] = {
    "linear": ("flops_s_per_token", "weight_s", "activation_s_per_token"),
    "chunk": ("compute_s_per_pair", "memory_s_per_token"),
    "decode": ("compute_s_per_token", "memory_s_per_token"),
    "all_reduce": ("latency_s", "s_per_token"),
}
"""The tables of the core's description, and their fields."""


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Roofline(TimingModel):
    """First principles: each part of an iteration takes the longer of computing and reading memory.

    An iteration of τ tokens, with chunks of c tokens at context x and decodes at some context, takes

    - `base_s`, and for more than one GPU `all_reduce_latency_s + all_reduce_s_per_token·τ`,
    - plus the larger of `linear_flops_s_per_token·τ` and `linear_weight_s + linear_activation_s_per_token·τ`,
    - plus the larger of `chunk_compute_s_per_pair·Σ c·(x + (c + 1)/2)` and
      `chunk_memory_s_per_token·Σ (x + c)`,
    - plus the larger of `decode_compute_s_per_token` and `decode_memory_s_per_token`, times Σ (context + 1).

    With P weights per token in the layers, p GPUs, F operations per second, W bytes per second and
    the efficiencies f, a, b, k, l of the arguments, in their order (l of NVLink or of PCIe): a token computes
    2·P/(p·f·F); the weights of all layers and of the output layer are read once, bytes/(p·b·W); a pair of
    tokens of a chunk computes 4·layers·heads·head_size/(p·a·F); a token of context is read in (KV
    bytes)/(p·k·W). Two exchanges a layer sum the activations of p GPUs in a ring of 2·(p − 1) steps:
    each token sends 2·(p − 1)/p · 2·layers·hidden·2 bytes/(l·link), and the latency is
    2·layers·(`exchange_s` + 2·(p − 1)·`link_step_s`), or `pcie_step_s`. `base_s` is `layers·layer_s`.

    Limits: the model has no tiles, caches or kernel launches except `layer_s`, and computes the output layer
    for no request (it is read). All experts are read in every iteration, which holds once a batch uses them
    all. But n tokens use about 1 − (1 − active/experts)ⁿ of them, so that small batches are too slow: one
    token of Mixtral-8x7B takes three times the measured time. The time of an all-reduce over PCIe depends on
    the wiring of the GPUs; one efficiency represents all. `timing.roofline_against_tables` compares the model
    with measured kernels.

    Source: Williams, Waterman, Patterson, "Roofline" (2009) for the form; the ring all-reduce of Patarasuk
        and Yuan (2009), with the latencies of NCCL's tuning model. The default efficiencies are one
        set, fitted to 24 shipped tables.

    Args:
        model: a name of `timing.known_models()`, the path of a `config.json`, a mapping with its keys, or a
            `timing.ModelShape`.
        gpu: a name of `timing.known_gpus()`, a `timing.Gpu`, or a mapping with its fields.
        tensor_parallel: GPUs that share every layer.
        weights: number format of the matrices: `"bf16"` (also float16), `"fp8"`, `"fp8-block"` and `"int8"`
            (also activations, if the GPU computes with 8 bits; otherwise only reads are 8-bit), or `"nvfp4"`,
            `"mxfp4"` and `"int4"` (computed with 16 bits). Default: the checkpoint's.
        kv_dtype: number format of the KV cache, `"bf16"`, `"fp8"`, `"nvfp4"` or `"int8"`; attention has 16
            bits. Default: the checkpoint's, else `"bf16"`.
        flops_efficiency: fraction of the GPU's operations per second reached by the matrices of the layers.
        attention_flops_efficiency: the same for attention.
        bandwidth_efficiency: fraction of the memory bandwidth reached when reading weights.
        kv_bandwidth_efficiency: the same for reading the KV cache.
        link_efficiency: fraction of the link bandwidth reached by an all-reduce over NVLink.
        pcie_efficiency: the same over PCIe, where the data may go through the host.
        layer_s: fixed seconds per layer: small kernels and their gaps.
        exchange_s: fixed seconds of an all-reduce, in addition to the steps of its ring.
        link_step_s: fixed seconds of a step over NVLink.
        pcie_step_s: the same over PCIe.

    Raises:
        ConfigError: an unknown model or GPU, with the nearest known name; a `config.json` without a required
            key; an efficiency outside 0.001 to 1; seconds outside 0 to 1; GPUs that cannot share
            the heads.
        OSError: a `config.json` cannot be read.

    Example:
        >>> import inferq as iq
        >>> model = iq.Roofline("llama-3.1-8b", "h100-80gb", bandwidth_efficiency=1)
        >>> round(model.linear_weight_s * 3.35e12 / 1e9, 2)  # GB of weights that an iteration reads
        15.01
        >>> model
        Roofline('llama-3.1-8b', 'h100-80gb', bandwidth_efficiency=1.0)
    """

    linear_flops_s_per_token: float
    linear_weight_s: float
    linear_activation_s_per_token: float
    chunk_compute_s_per_pair: float
    chunk_memory_s_per_token: float
    decode_compute_s_per_token: float
    decode_memory_s_per_token: float
    all_reduce_latency_s: float
    all_reduce_s_per_token: float
    base_s: float
    call: str = field(default="", compare=False)
    """The call that created it; empty for a model read from numbers."""

    def __init__(
        self,
        model: ModelShape | str | Path | Mapping[str, Any],
        gpu: Gpu | str | Mapping[str, Any],
        tensor_parallel: int = 1,
        *,
        weights: str | None = None,
        kv_dtype: str | None = None,
        flops_efficiency: float = EFFICIENCIES["flops_efficiency"],
        attention_flops_efficiency: float = EFFICIENCIES["attention_flops_efficiency"],
        bandwidth_efficiency: float = EFFICIENCIES["bandwidth_efficiency"],
        kv_bandwidth_efficiency: float = EFFICIENCIES["kv_bandwidth_efficiency"],
        link_efficiency: float = EFFICIENCIES["link_efficiency"],
        pcie_efficiency: float = EFFICIENCIES["pcie_efficiency"],
        layer_s: float = EFFICIENCIES["layer_s"],
        exchange_s: float = EXCHANGES["exchange_s"],
        link_step_s: float = EXCHANGES["link_step_s"],
        pcie_step_s: float = EXCHANGES["pcie_step_s"],
    ) -> None:
        """Compute the seconds of every part."""
        shape, card = ModelShape.of(model), Gpu.of(gpu)
        gpus = whole("tensor_parallel", tensor_parallel, 1, 1024)
        weights, kv_dtype = weights_of(weights, shape.checkpoint), kv_type_of(kv_dtype, shape.checkpoint)
        kv_bytes = shape.kv_bytes_per_token(kv_dtype, gpus) + shape.window_bytes_per_token(kv_dtype, gpus)
        shares = {
            "flops_efficiency": flops_efficiency,
            "attention_flops_efficiency": attention_flops_efficiency,
            "bandwidth_efficiency": bandwidth_efficiency,
            "kv_bandwidth_efficiency": kv_bandwidth_efficiency,
            "link_efficiency": link_efficiency,
            "pcie_efficiency": pcie_efficiency,
        }
        shares = {name: within(name, value, 0.001, 1) for name, value in shares.items()}
        seconds = {
            "layer_s": layer_s,
            "exchange_s": exchange_s,
            "link_step_s": link_step_s,
            "pcie_step_s": pcie_step_s,
        }
        seconds = {name: within(name, value, 0, _LONGEST_KERNEL_S) for name, value in seconds.items()}

        flops = shares["flops_efficiency"] * card.flops(weights) * gpus
        attention_flops = shares["attention_flops_efficiency"] * card.bf16_flops * gpus
        bandwidth = shares["bandwidth_efficiency"] * card.bandwidth_bytes_per_s
        kv_s = kv_bytes / (shares["kv_bandwidth_efficiency"] * card.bandwidth_bytes_per_s)
        pair_s = _pair_flops(shape) / attention_flops
        weight_bytes = shape.linear_weight_bytes(weights) + shape.output_weights * ACTIVATION_BYTES
        exchanges = 2 * shape.layers if gpus > 1 else 0
        sent_bytes = exchanges * shape.hidden * ACTIVATION_BYTES * 2 * (gpus - 1) / gpus
        link, step = ("link_efficiency", "link_step_s") if card.nvlink else ("pcie_efficiency", "pcie_step_s")
        latency_s = seconds["exchange_s"] + 2 * (gpus - 1) * seconds[step]
        values = {
            "linear_flops_s_per_token": 2 * shape.active_linear_weights / flops,
            "linear_weight_s": weight_bytes / gpus / bandwidth,
            "linear_activation_s_per_token": _activation_bytes(shape, gpus) / bandwidth,
            "chunk_compute_s_per_pair": pair_s,
            "chunk_memory_s_per_token": kv_s,
            "decode_compute_s_per_token": pair_s,
            "decode_memory_s_per_token": kv_s,
            "all_reduce_latency_s": exchanges * latency_s,
            "all_reduce_s_per_token": sent_bytes / (shares[link] * card.link_bytes_per_s),
            "base_s": shape.layers * seconds["layer_s"],
        }
        arguments = [repr(shape.name), repr(card.name)]
        if gpus > 1:
            arguments.append(f"tensor_parallel={gpus}")
        arguments += [
            f"{name}={word!r}"
            for name, word in (("weights", weights), ("kv_dtype", kv_dtype))
            if word != "bf16"
        ]
        settings, defaults = {**shares, **seconds}, {**EFFICIENCIES, **EXCHANGES}
        arguments += [f"{name}={value!r}" for name, value in settings.items() if value != defaults[name]]
        self._set(values, f"Roofline({', '.join(arguments)})")

    @classmethod
    def of_seconds(cls, **seconds: float) -> Roofline:
        """Create a roofline from your own numbers, without a model and a GPU.

        Args:
            seconds: all fields in the formula of the class; those of the all-reduce are optional.

        Raises:
            ConfigError: an unknown or missing field; a number that is negative, not finite, or rounds to 0
                attoseconds although it is not 0.

        Example:
            >>> import inferq as iq
            >>> flat = iq.Roofline.of_seconds(
            ...     linear_flops_s_per_token=10e-6, linear_weight_s=1e-3, linear_activation_s_per_token=0,
            ...     chunk_compute_s_per_pair=1e-9, chunk_memory_s_per_token=0,
            ...     decode_compute_s_per_token=0, decode_memory_s_per_token=100e-9, base_s=1e-3,
            ... )
            >>> iq.timing.iteration_s(flat, decodes=[999] * 200)  # 1 ms, 200 tokens, 200,000 of context
            0.023
        """
        for name in seconds:
            if name not in ROOFLINE_SECONDS:
                raise ConfigError(name, f"unknown field{nearest(name, ROOFLINE_SECONDS)}")
        values = {"all_reduce_latency_s": 0.0, "all_reduce_s_per_token": 0.0, **seconds}
        if missing := [name for name in ROOFLINE_SECONDS if name not in values]:
            raise ConfigError(f"{missing[0]}", "missing")
        model = object.__new__(cls)
        model._set(values, "")
        return model

    def _set(self, values: Mapping[str, float], call: str) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "call", call)
        Description.__post_init__(self)

    def shortest_iteration_s(self) -> float:
        """The time to read the weights."""
        return self.base_s + self.all_reduce_latency_s + self.linear_weight_s

    def to_json(self) -> dict[str, Any]:
        """Return the seconds of every part, as the core reads them."""
        flat = fields_of(self)
        nested = {part: {name: flat[f"{part}_{name}"] for name in names} for part, names in _PARTS.items()}
        return {"kind": "Roofline", **nested, "base_s": flat["base_s"]}

    def __repr__(self) -> str:
        """The call that created it, or its numbers if it was read from a description."""
        if self.call:
            return self.call
        numbers = ", ".join(f"{name}={value!r}" for name, value in fields_of(self).items())
        return f"Roofline.of_seconds({numbers})"

    @classmethod
    def written_fields(cls) -> list[str]:
        """The arguments of the class."""
        return ["model", "gpu", "tensor_parallel", "weights", "kv_dtype", *EFFICIENCIES, *EXCHANGES]

    @classmethod
    def from_elsewhere(cls, path: str, description: Mapping[str, Any]) -> Roofline:
        """Read the roofline from a table with `model`, `gpu` and so on, or from `to_json()`.

        Raises:
            ConfigError: an unknown or missing field, named by its path.
        """
        if "linear" in description:
            return cls._of_numbers(path, description)
        given = fields_in(path, description, cls.written_fields(), ("model", "gpu"), cls.__name__)
        try:
            return cls(**given)
        except ConfigError as error:
            raise error.within(path) from None

    @classmethod
    def _of_numbers(cls, path: str, table: Mapping[str, Any]) -> Roofline:
        """The inverse of `to_json()`."""
        seconds: dict[str, float] = {}
        for key, part in table.items():
            if key == "base_s":
                seconds[key] = part
                continue
            if key not in _PARTS:
                raise ConfigError(path, f"unknown field {key!r}{nearest(str(key), (*_PARTS, 'base_s'))}")
            if not isinstance(part, Mapping):
                raise ConfigError(f"{path}.{key}", f"must be a table of fields, got {part!r}")
            for name, value in part.items():
                if name not in _PARTS[key]:
                    raise ConfigError(
                        f"{path}.{key}", f"unknown field {name!r}{nearest(str(name), _PARTS[key])}"
                    )
                seconds[f"{key}_{name}"] = value
        try:
            return cls.of_seconds(**seconds)
        except ConfigError as error:
            raise error.within(path) from None


ROOFLINE_SECONDS = (*(f"{part}_{name}" for part, names in _PARTS.items() for name in names), "base_s")
"""The fields of a `Roofline`, the arguments of `Roofline.of_seconds`."""


def _pair_flops(shape: ModelShape) -> int:
    """Operations per pair of tokens in all layers."""
    return sum(group.layers * mixer.pair_flops for group in shape.groups for mixer in group.mixers)


def _activation_bytes(shape: ModelShape, gpus: int) -> float:
    """Bytes of activations of one token that the kernels of all layers read and write on one GPU.

    Each matrix reads its input and writes its output; two norms read and write the residual and its sum; the
    gate reads two widths and writes one.
    """
    return sum(
        group.layers * ACTIVATION_BYTES * _activation_numbers(group, shape.hidden, gpus)
        for group in shape.groups
    )


def _activation_numbers(group: LayerGroup, hidden: int, gpus: int) -> float:
    """Numbers of activations of one token and one layer."""
    numbers: float = 8 * hidden
    for mixer in group.mixers:
        if isinstance(mixer, Recurrent):
            numbers += (hidden + mixer.inputs / gpus) + (mixer.inner / gpus + hidden)
            continue
        if isinstance(mixer, Attention):
            query = mixer.heads * mixer.head_size / gpus
            key_value = max(1, mixer.kv_heads // gpus) * (mixer.head_size + mixer.values)
        else:
            query = mixer.heads * (mixer.nope_size + mixer.rope_size) / gpus
            key_value = mixer.kv_values_per_token
        numbers += (hidden + query + key_value) + (query + hidden)
    if group.feed_forward is not None:
        wide = group.feed_forward.active_width / gpus
        numbers += (hidden + 2 * wide) + 3 * wide + (wide + hidden)
    return numbers
