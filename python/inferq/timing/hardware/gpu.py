"""Gpu: compute rates, memory and links of a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from inferq.checks import flag, nearest, positive, whole
from inferq.errors import ConfigError
from inferq.timing.hardware.catalog import DOMAIN, entry, gpu_name

RATES: Mapping[str, tuple[str, ...]] = {
    "bf16": ("bf16",),
    "fp8": ("fp8", "bf16"),
    "fp8-block": ("fp8", "bf16"),
    "nvfp4": ("fp4", "bf16"),
    "mxfp4": ("bf16",),
    "int8": ("int8", "bf16"),
    "int4": ("bf16",),
}
"""The formats in which weights are computed, in order: the first that the GPU has. Engines expand weights in
a format that the GPU lacks to 16 bits, also FP4 on GPUs with FP8 (vLLM's Marlin kernels). INT4 and MXFP4 are
always expanded: their activations have 16 bits in vLLM and SGLang (gpt-oss), also on GPUs with FP4."""

_FORMATS = ("fp8", "int8", "fp4")
"""Number formats that a GPU may lack."""

_LEAST = 1e6
"""Every number of a GPU is larger, unless it is in GB, GB/s or TFLOPS."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """The datasheet of a GPU.

    Args:
        memory_bytes: memory as `nvidia-smi` shows it (a little less than 2³⁰ times the GB of the name).
        bandwidth_bytes_per_s: bandwidth of that memory.
        bf16_flops: dense operations per second with 16-bit numbers: without the factor 2 of sparsity.
        fp8_flops: the same with 8-bit floating point; None if the GPU lacks it.
        int8_flops: the same with 8-bit integers; None if the GPU lacks it.
        fp4_flops: the same with 4-bit floating point (NVFP4, MXFP4); None if the GPU lacks it.
        link_bytes_per_s: bandwidth to other GPUs in one direction: half of the advertised value for NVLink.
        nvlink: whether that link is NVLink or AMD's Infinity Fabric; otherwise PCIe.
        domain: number of GPUs that this link joins: 8 in most servers, 72 in a GB200 NVL72.
        busy_watts: maximum power of the whole board; None if unknown.
        idle_watts: measured power of an idle board with a loaded model, which datasheets lack; None if
            unknown.
        name: name of the GPU.

    Raises:
        ConfigError: a number that is not positive, or looks like GB or TFLOPS; a domain below 1.

    Example:
        >>> import inferq as iq
        >>> iq.timing.Gpu.of("a100-80gb").memory_bytes / 2**30
        80.0
        >>> gpu = iq.timing.Gpu(
        ...     memory_bytes=48e9, bandwidth_bytes_per_s=960e9, bf16_flops=120e12, link_bytes_per_s=32e9
        ... )
        >>> gpu.fp8_flops is None, gpu.computed_in("fp8")
        (True, 'bf16')
    """

    memory_bytes: float
    bandwidth_bytes_per_s: float
    bf16_flops: float
    link_bytes_per_s: float
    fp8_flops: float | None = None
    int8_flops: float | None = None
    fp4_flops: float | None = None
    nvlink: bool = False
    domain: int = DOMAIN
    busy_watts: float | None = None
    idle_watts: float | None = None
    name: str = field(default="a GPU", compare=False)

    def __post_init__(self) -> None:
        """Reject impossible numbers."""
        for name in (datum.name for datum in fields(self)):
            value = getattr(self, name)
            is_number = name not in ("name", "nvlink", "domain", "busy_watts", "idle_watts")
            is_missing = value is None and name.removesuffix("_flops") in _FORMATS
            if is_number and not is_missing and positive(f"gpu.{name}", value) < _LEAST:
                raise ConfigError(
                    f"gpu.{name}",
                    f"{value:g} looks like GB, GB/s or TFLOPS: use bytes, bytes per second, "
                    "operations per second",
                )
        flag("gpu.nvlink", self.nvlink)
        whole("gpu.domain", self.domain, 1, 2**20)
        for name in ("busy_watts", "idle_watts"):
            if getattr(self, name) is not None:
                positive(f"gpu.{name}", getattr(self, name))

    @classmethod
    def of(cls, gpu: Gpu | str | Mapping[str, Any]) -> Gpu:
        """Return a GPU by its name in the catalog, or from your own numbers.

        Args:
            gpu: a name of `timing.known_gpus()` or an alias (`b200_sxm`), a `Gpu`, or a table of its fields.

        Raises:
            ConfigError: an unknown name or field, with the nearest known one; a missing field.
        """
        if isinstance(gpu, Gpu):
            return gpu
        if isinstance(gpu, str):
            datasheet = entry("gpus", "gpu", gpu)
            numbers = {key: value for key, value in datasheet.items() if key != "source"}
            return cls(name=gpu_name(gpu), **numbers)
        if not isinstance(gpu, Mapping):
            raise ConfigError("gpu", f"must be a name of timing.known_gpus() or a Gpu(…), got {gpu!r}")
        names = [datum.name for datum in fields(cls)]
        for key in gpu:
            if key not in names:
                raise ConfigError("gpu", f"unknown field {key!r}{nearest(str(key), names)}")
        needed = ("memory_bytes", "bandwidth_bytes_per_s", "bf16_flops", "link_bytes_per_s")
        if missing := [name for name in needed if name not in gpu]:
            raise ConfigError("gpu", f"missing {', '.join(missing)}")
        return cls(**gpu)

    def computed_in(self, weights: str) -> str:
        """The number format in which weights of a format are computed: the first of its `RATES` that exists.

        Example:
            >>> Gpu.of("h100-80gb").computed_in("nvfp4"), Gpu.of("b200").computed_in("nvfp4")
            ('bf16', 'fp4')
        """
        return next(rate for rate in RATES[weights] if getattr(self, f"{rate}_flops") is not None)

    def flops(self, weights: str) -> float:
        """Dense operations per second with weights of a format, in the format in which they are computed.

        Example:
            >>> Gpu.of("a100-80gb").flops("fp8") == Gpu.of("a100-80gb").bf16_flops
            True
        """
        rate: float = getattr(self, f"{self.computed_in(weights)}_flops")
        return rate
