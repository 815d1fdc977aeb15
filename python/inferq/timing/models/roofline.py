"""Roofline: the duration of an iteration from a datasheet and the shape of a model.

Each part of an iteration is bound by computing or by reading memory, whichever takes longer. The shape of the
model determines computation and memory traffic, the GPU their rates. The efficiencies are the fractions of
these rates that are reached.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inferq.checks import nearest, within
from inferq.description import Description, field_names, fields_in, fields_of, read_fields
from inferq.errors import ConfigError
from inferq.timing.hardware.formats import kv_type_of, weights_of
from inferq.timing.hardware.gpu import Gpu
from inferq.timing.hardware.model_shape import ModelShape
from inferq.timing.models.roofline_parts import (
    ExchangeRoof,
    ExpertsRoof,
    StateRoof,
    WindowRoof,
    in_tables,
    out_of_tables,
)
from inferq.timing.models.roofline_seconds import CONSTANTS, Layout, roofline_seconds
from inferq.timing.models.timing_model import TimingModel

EFFICIENCIES: Mapping[str, float] = {
    "flops_efficiency": 0.66,
    "attention_flops_efficiency": 0.62,
    "bandwidth_efficiency": 0.78,
    "kv_bandwidth_efficiency": 0.79,
    "link_efficiency": 0.70,
    "pcie_efficiency": 0.12,
    "layer_s": 34e-6,
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

_EXPANSION = "chunk_compute_s_per_context_token"
"""A field of the table `chunk` that is written only if it is not 0."""

_LISTS: Mapping[str, type[ExpertsRoof | WindowRoof]] = {"experts": ExpertsRoof, "windows": WindowRoof}
_SINGLES: Mapping[str, type[StateRoof | ExchangeRoof]] = {"states": StateRoof, "exchange": ExchangeRoof}
"""Optional parts: lists, and single descriptions."""

_ABSENT: Mapping[str, Any] = {
    "all_reduce_latency_s": 0.0,
    "all_reduce_s_per_token": 0.0,
    _EXPANSION: 0.0,
    **dict.fromkeys(_LISTS, ()),
    **dict.fromkeys(_SINGLES),
}
"""The fields that may be missing, with their values then."""


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Roofline(TimingModel):
    """First principles: each part of an iteration takes the longer of computing and reading memory.

    An iteration of τ tokens, with chunks of c tokens at context x and decodes at some context, takes

    - `base_s`, and for more than one GPU `all_reduce_latency_s + all_reduce_s_per_token·τ`,
    - plus the larger of `linear_flops_s_per_token·τ` and `linear_weight_s + linear_activation_s_per_token·τ`,
    - plus the larger of `chunk_compute_s_per_pair·Σ c·(x + (c + 1)/2)` and
      `chunk_memory_s_per_token·Σ (x + c)`,
    - plus the larger of `decode_compute_s_per_token` and `decode_memory_s_per_token`, times Σ (context + 1).

    Some models have more parts, each absent by default:

    - `experts`: for each pair of experts E and active experts k, `base_s + s_per_token·τ + weight_s·(1 − (1 −
      k/E)^τ)`: a batch reads the experts that its tokens use. The share is exact for tokens that draw experts
      uniformly. Reading and computing are added: kernels of many small matrices do not overlap them.
    - `windows`: for each limit, attention of chunks and decodes in which a token attends to at most that many
      tokens: sliding windows, chunks (Llama 4), and the tokens that a sparse index selects.
    - `states`: seconds to read and write recurrent states, per decode and per chunk, and of the recurrence,
      per token of a chunk.
    - `chunk_compute_s_per_context_token`: latent attention expands the keys and values of earlier tokens.
    - `exchange`: the all-to-all of experts of data-parallel attention.

    With P weights per token in the layers, p GPUs, F operations per second, W bytes per second and
    the efficiencies f, a, b, k, l of the arguments, in their order (l of NVLink or of PCIe): a token computes
    2·P/(p·f·F); the weights of all layers and of the output layer are read once, bytes/(p·b·W); a pair of
    tokens of a chunk computes 4·layers·heads·head_size/(p·a·F); a token of context is read in (KV
    bytes)/(p·k·W). Two exchanges a layer sum the activations of p GPUs in a ring of 2·(p − 1) steps:
    each token sends 2·(p − 1)/p · 2·layers·hidden·2 bytes/(l·link), and the latency is
    2·layers·(`exchange_s` + 2·(p − 1)·`link_step_s`), or `pcie_step_s`. `base_s` is `layers·layer_s`, plus
    fixed times of latent attention and of quantized activations.

    Latent attention expands keys and values in chunks, 2·heads·(nope + rope + value) operations per pair, and
    absorbs them in decodes, 2·heads·(2·rank + rope) per token of context; every GPU reads the whole latent
    cache. A sparse index reads its keys and scores every token, and attention uses the selected ones.
    Experts are divided among all GPUs. Only data-parallel attention exchanges tokens between GPUs: each token
    goes to min(k, ranks − 1) others and back, as 16-bit numbers.

    Weights are computed in their own format, except for `"int4"`, `"mxfp4"`, and 8-bit or NVFP4 weights on a
    GPU without that format. The kernels expand these to 16 bits, which is slower than 16-bit weights in large
    batches. The constants of experts, formats and the parts above are not arguments: they are fitted once to
    the kernel database.

    Limits: the model has no tiles, caches or kernel launches except its fixed times, and computes the output
    layer for no request (it is read). Real routers prefer some experts and GPUs with more of them are later,
    so that experts take longer than here on many GPUs. Windows limit decodes at their mean context: too
    slow if contexts are on both sides of the limit. With speculation, the compute time of decodes counts one
    token per decode. The time of an all-reduce over PCIe depends on the wiring of the GPUs; one efficiency
    represents all. Links beyond the GPUs of one NVLink domain are not modeled.
    `timing.roofline_against_tables` compares the model with measured kernels.

    Source: Williams, Waterman, Patterson, "Roofline" (2009) for the form; the ring all-reduce of Patarasuk
        and Yuan (2009), with the latencies of NCCL's tuning model. The default efficiencies are one
        set, fitted to 24 shipped tables of dense models and to the kernel database that these come from.

    Args:
        model: a name of `timing.known_models()`, the path of a `config.json`, a mapping with its keys, or a
            `timing.ModelShape`.
        gpu: a name of `timing.known_gpus()`, a `timing.Gpu`, or a mapping with its fields.
        tensor_parallel: GPUs that share every layer.
        expert_parallel: groups of GPUs that hold whole experts. Default: every expert is split among all
            GPUs.
        data_parallel: ranks of attention, each with a batch of its own; τ counts the tokens of one rank.
        weights: number format of the matrices: `"bf16"` (also float16), `"fp8"`, `"fp8-block"`, `"nvfp4"`,
            `"mxfp4"`, `"int8"`, `"int4"`, or a name of vLLM such as `"awq"`. Default: the checkpoint's.
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
            the heads or the experts.
        OSError: a `config.json` cannot be read.

    Example:
        >>> import inferq as iq
        >>> model = iq.Roofline("llama-3.1-8b", "h100-80gb", bandwidth_efficiency=1)
        >>> round(model.linear_weight_s * 3.35e12 / 1e9, 2)  # GB of weights that an iteration reads
        15.01
        >>> model
        Roofline('llama-3.1-8b', 'h100-80gb', bandwidth_efficiency=1.0)
        >>> experts = iq.Roofline("mixtral-8x7b", "h100-80gb", 2).experts[0]
        >>> experts.active, experts.experts
        (2, 8)
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
    chunk_compute_s_per_context_token: float
    experts: Sequence[ExpertsRoof]
    windows: Sequence[WindowRoof]
    states: StateRoof | None
    exchange: ExchangeRoof | None
    call: str = field(default="", compare=False)
    """The call that created it; empty for a model read from numbers."""

    def __init__(
        self,
        model: ModelShape | str | Path | Mapping[str, Any],
        gpu: Gpu | str | Mapping[str, Any],
        tensor_parallel: int = 1,
        *,
        expert_parallel: int = 1,
        data_parallel: int = 1,
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
        formats = weights_of(weights, shape.checkpoint), kv_type_of(kv_dtype, shape.checkpoint)
        layout = Layout(tensor=tensor_parallel, data=data_parallel, expert=expert_parallel)
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

        settings, defaults = {**shares, **seconds}, {**EFFICIENCIES, **EXCHANGES}
        values = {**_ABSENT, **roofline_seconds(shape, card, layout, *formats, {**CONSTANTS, **settings})}
        arguments = [repr(shape.name), repr(card.name)]
        arguments += [
            f"{name}={count}"
            for name, count in (
                ("tensor_parallel", layout.tensor),
                ("expert_parallel", layout.expert),
                ("data_parallel", layout.data),
            )
            if count > 1
        ]
        checkpoint = weights_of(None, shape.checkpoint), kv_type_of(None, shape.checkpoint)
        arguments += [
            f"{name}={word!r}"
            for name, word, stored in zip(("weights", "kv_dtype"), formats, checkpoint, strict=True)
            if word != stored
        ]
        arguments += [f"{name}={value!r}" for name, value in settings.items() if value != defaults[name]]
        self._set(values, f"Roofline({', '.join(arguments)})")

    @classmethod
    def of_seconds(cls, **seconds: Any) -> Roofline:
        """Create a roofline from your own numbers, without a model and a GPU.

        Args:
            seconds: all fields in the formula of the class. Those of the all-reduce and of the optional parts
                may be missing.

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
        values = {**_ABSENT, **seconds}
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
        """The time to read the weights, with the experts of one token."""
        latency_s = self.all_reduce_latency_s + (self.exchange.latency_s if self.exchange else 0.0)
        experts_s = sum(
            part.base_s + part.weight_s * (1 - (1 - part.active / part.experts) ** part.ranks)
            for part in self.experts
        )
        return self.base_s + latency_s + self.linear_weight_s + experts_s

    def to_json(self) -> dict[str, Any]:
        """Return the seconds of every part, as the core reads them; absent parts are left out."""
        flat = fields_of(self)
        tables = in_tables(flat, _PARTS)
        if flat[_EXPANSION]:
            tables["chunk"][_EXPANSION.removeprefix("chunk_")] = flat[_EXPANSION]
        lists = {name: [part.to_json() for part in flat[name]] for name in _LISTS if flat[name]}
        singles = {name: flat[name] for name in _SINGLES if flat[name] is not None}
        return {"kind": "Roofline", **tables, "base_s": flat["base_s"], **lists, **singles}

    def __repr__(self) -> str:
        """The call that created it, or its numbers if it was read from a description."""
        if self.call:
            return self.call
        numbers = ", ".join(f"{name}={getattr(self, name)!r}" for name in field_names(type(self)))
        return f"Roofline.of_seconds({numbers})"

    @classmethod
    def written_fields(cls) -> list[str]:
        """The arguments of the class."""
        layout = ("tensor_parallel", "expert_parallel", "data_parallel")
        return ["model", "gpu", *layout, "weights", "kv_dtype", *EFFICIENCIES, *EXCHANGES]

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
        optional = (*_LISTS, *_SINGLES)
        with_expansion = {**_PARTS, "chunk": (*_PARTS["chunk"], _EXPANSION.removeprefix("chunk_"))}
        values = out_of_tables(path, table, with_expansion, ("base_s", *optional))
        for name, kind in _LISTS.items():
            if not isinstance(values.get(name, ()), Sequence):
                raise ConfigError(f"{path}.{name}", f"must be a list of tables, got {values[name]!r}")
            values[name] = [
                read_fields(f"{path}.{name}[{place}]", part, kind)
                for place, part in enumerate(values.get(name, ()))
            ]
        for name, single in _SINGLES.items():
            if values.get(name) is not None:
                values[name] = read_fields(f"{path}.{name}", values[name], single)
        try:
            return cls.of_seconds(**values)
        except ConfigError as error:
            raise error.within(path) from None


ROOFLINE_SECONDS = (
    *(f"{part}_{name}" for part, names in _PARTS.items() for name in names),
    "base_s",
    _EXPANSION,
    *_LISTS,
    *_SINGLES,
)
"""The fields of a `Roofline`, the arguments of `Roofline.of_seconds`."""
