"""A GPU: how fast it computes, reads its memory, and talks to the next one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from inferq.checks import flag, nearest, positive
from inferq.errors import ConfigError
from inferq.timing.hardware.catalog import entry

_LEAST = 1e6
"""No number of a card is below it, unless it is in GB, GB/s or TFLOPS."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """What a datasheet says of a GPU.

    Args:
        memory_bytes: memory as `nvidia-smi` shows it (a little less than 2³⁰ times the GB of the name).
        bandwidth_bytes_per_s: of that memory.
        bf16_flops: dense operations per second with 16-bit numbers: without the factor 2 of sparsity.
        fp8_flops: the same with 8-bit floating point; None where the card has none.
        int8_flops: the same with 8-bit integers; None where the card has none.
        link_bytes_per_s: to the other GPUs, in one direction: half of what is advertised for NVLink.
        nvlink: is that link NVLink? Else it is PCIe.
        busy_watts: power of the whole board at most; None where it is not known.
        idle_watts: of a board that waits with a model loaded, as somebody measured it, since no datasheet
            says it; None where it is not known.
        name: what it is called.

    Raises:
        ConfigError: a number that is not above 0, or looks like GB or TFLOPS.

    Example:
        >>> import inferq as iq
        >>> iq.timing.Gpu.of("a100-80gb").memory_bytes / 2**30
        80.0
        >>> card = iq.timing.Gpu(
        ...     memory_bytes=48e9, bandwidth_bytes_per_s=960e9, bf16_flops=120e12, link_bytes_per_s=32e9
        ... )
        >>> card.fp8_flops is None
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
        """Refuse numbers that no card has."""
        for one in fields(self):
            value = getattr(self, one.name)
            is_number = one.name not in ("name", "nvlink", "busy_watts", "idle_watts")
            is_left_out = value is None and one.name in ("fp8_flops", "int8_flops")
            if is_number and not is_left_out and positive(f"gpu.{one.name}", value) < _LEAST:
                raise ConfigError(
                    f"gpu.{one.name}",
                    f"{value:g} looks like GB, GB/s or TFLOPS: give bytes, bytes a second, "
                    "operations a second",
                )
        flag("gpu.nvlink", self.nvlink)
        for name in ("busy_watts", "idle_watts"):
            if getattr(self, name) is not None:
                positive(f"gpu.{name}", getattr(self, name))

    @classmethod
    def of(cls, gpu: Gpu | str | Mapping[str, Any]) -> Gpu:
        """A GPU by its name in the catalog, or of numbers of your own.

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
            raise ConfigError("gpu", f"must be a name of timing.known_gpus() or a Gpu(…), is {gpu!r}")
        names = [one.name for one in fields(cls)]
        for key in gpu:
            if key not in names:
                raise ConfigError("gpu", f"unknown field {key!r}{nearest(str(key), names)}")
        needed = ("memory_bytes", "bandwidth_bytes_per_s", "bf16_flops", "link_bytes_per_s")
        if missing := [name for name in needed if name not in gpu]:
            raise ConfigError("gpu", f"missing {', '.join(missing)}")
        return cls(**gpu)
