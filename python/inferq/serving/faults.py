"""Fault injection: cut streams, refused requests, slow, failing and draining replicas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from inferq.serving.requests import ApiError, whole, wrong

_COMMANDS = {"kill": "die", "drain": "drain", "start": "start"}
"""Commands to replicas, with their names in the run."""
_KINDS = ("cut", "refuse", "slow", *_COMMANDS)


@dataclass(slots=True)
class Faults:
    """The active faults.

    Draws depend only on the seed, the fault and the number of the request, so a repeated test sees the same
    faults.
    """

    seed: int
    cut_share: float = 0.0
    cut_after_tokens: int = 1
    refuse_share: float = 0.0
    refuse_status: int = 429
    slow_s: dict[int, float] = field(default_factory=dict)

    def cuts_after(self, number: int) -> int | None:
        """Tokens after which the connection of a request is cut; None: never."""
        return self.cut_after_tokens if self._happens("cut", self.cut_share, number) else None

    def refuses(self, number: int) -> ApiError | None:
        """The error with which a request is refused; None: it is accepted."""
        if not self._happens("refuse", self.refuse_share, number):
            return None
        return ApiError(self.refuse_status, "refused by fault injection", "fault_injected")

    def _happens(self, fault: str, share: float, number: int) -> bool:
        if share <= 0:
            return False
        drawn = blake2b(f"{self.seed} {fault} {number}".encode(), digest_size=7).digest()
        return int.from_bytes(drawn, "little") < share * 2**56

    def set(self, data: Mapping[str, Any], replicas: int) -> list[tuple[str, int]]:
        """Change faults; `serve` documents the format. Return the commands to replicas.

        Raises:
            ApiError: the fault is unknown, or a number is out of range.
        """
        for kind, fields in data.items():
            if kind not in _KINDS:
                raise wrong(kind, f"unknown fault; known faults: {', '.join(_KINDS)}")
            if not isinstance(fields, dict):
                raise wrong(kind, "must be an object")
        if "cut" in data:
            share = _share(data["cut"], "cut")
            after = whole(data["cut"], "after_tokens", 0)
            self.cut_share, self.cut_after_tokens = share, 1 if after is None else after
        if "refuse" in data:
            share = _share(data["refuse"], "refuse")
            status = whole(data["refuse"], "status", 400, 599)
            self.refuse_share, self.refuse_status = share, status or 429
        if "slow" in data:
            replica = _replica(data["slow"], "slow", replicas)
            self.slow_s[replica] = _number(data["slow"], "slow", "by_s", 3600.0)

        return [
            (command, _replica(data[kind], kind, replicas))
            for kind, command in _COMMANDS.items()
            if kind in data
        ]

    def to_json(self) -> dict[str, Any]:
        """The active faults as JSON."""
        return {
            "cut": {"share": self.cut_share, "after_tokens": self.cut_after_tokens},
            "refuse": {"share": self.refuse_share, "status": self.refuse_status},
            "slow": [{"replica": replica, "by_s": by_s} for replica, by_s in sorted(self.slow_s.items())],
        }


def _replica(fields: Mapping[str, Any], kind: str, replicas: int) -> int:
    replica = whole(fields, "replica", 0, replicas - 1)
    if replica is None:
        raise wrong(f"{kind}.replica", "must be an integer")
    return replica


def _share(fields: Mapping[str, Any], kind: str) -> float:
    return _number(fields, kind, "share", 1.0)


def _number(fields: Mapping[str, Any], kind: str, name: str, most: float) -> float:
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= most:
        raise wrong(f"{kind}.{name}", f"must be a number from 0 to {most:g}")
    return float(value)
