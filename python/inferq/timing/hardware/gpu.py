"""Gpu: compute rates, memory and links of a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from inferq.checks import flag, nearest, positive
from inferq.errors import ConfigError
from inferq.timing.hardware.catalog import entry

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
        link_bytes_per_s: bandwidth to other GPUs in one direction: half of the advertised value for NVLink.
        nvlink: whether that link is NVLink; otherwise PCIe.
        busy_watts: maximum power of the whole board; None if unknown.
        idle_watts: measured power of an idle board with a loaded model, which datasheets lack; None if
            unknown.
        name: name of the GPU.

    Raises:
        ConfigError: a number that is not positive, or looks like GB or TFLOPS.

    Example:
        >>> import inferq as iq
        >>> iq.timing.Gpu.of("a100-80gb").memory_bytes / 2**30
        80.0
        >>> gpu = iq.timing.Gpu(
        ...     memory_bytes=48e9, bandwidth_bytes_per_s=960e9, bf16_flops=120e12, link_bytes_per_s=32e9
        ... )
        >>> gpu.fp8_flops is None
        True
    """

    memory_bytes: float
    bandwidth_bytes_per_s: float
    bf16_flops: float
    link_bytes_per_s: float
    fp8_flops: float | None = None
    int8_flops: float | None = None
    nvlink: bool = False
    busy_watts: float | None = None
    idle_watts: float | None = None
    name: str = field(default="a GPU", compare=False)

    def __post_init__(self) -> None:
        """Reject impossible numbers."""
        for name in (datum.name for datum in fields(self)):
            value = getattr(self, name)
            is_number = name not in ("name", "nvlink", "busy_watts", "idle_watts")
            is_missing = value is None and name in ("fp8_flops", "int8_flops")
            if is_number and not is_missing and positive(f"gpu.{name}", value) < _LEAST:
                raise ConfigError(
                    f"gpu.{name}",
                    f"{value:g} looks like GB, GB/s or TFLOPS: use bytes, bytes per second, "
                    "operations per second",
                )
        flag("gpu.nvlink", self.nvlink)
        for name in ("busy_watts", "idle_watts"):
            if getattr(self, name) is not None:
                positive(f"gpu.{name}", getattr(self, name))

    @classmethod
    def of(cls, gpu: Gpu | str | Mapping[str, Any]) -> Gpu:
        """Return a GPU by its name in the catalog, or from your own numbers.

        Args:
            gpu: a name of `timing.known_gpus()`, a `Gpu`, or a table with its fields.

        Raises:
            ConfigError: an unknown name or field, with the nearest known one; a missing field.
        """
        if isinstance(gpu, Gpu):
            return gpu
        if isinstance(gpu, str):
            datasheet = entry("gpus", "gpu", gpu)
            numbers = {key: value for key, value in datasheet.items() if key != "source"}
            return cls(name=gpu.strip().lower(), **numbers)
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
