"""How much more memory may a process take before the system ends it?"""

from __future__ import annotations

from pathlib import Path

_KEPT = 16
"""One part in so many stays free, for the copies that are made of what was taken."""


def room_bytes(system: Path = Path("/proc/meminfo"), group: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Bytes that can still be taken; None where that is unknown, as outside Linux.

    Linux promises memory that it does not have, and ends the process that touches it: there a large array is
    no `MemoryError`, so that it must be asked before.

    Args:
        system: where Linux says what is available.
        group: where it says the limit of a container.
    """
    try:
        lines = [line.split() for line in system.read_text(encoding="utf-8").splitlines()]
        bytes_of = {words[0].rstrip(":"): 1024 * int(words[1]) for words in lines if len(words) > 1}
        total, room = bytes_of["MemTotal"], bytes_of["MemAvailable"]
    except (OSError, ValueError, KeyError):
        return None
    try:
        limit = int((group / "memory.max").read_text(encoding="utf-8"))
        used = int((group / "memory.current").read_text(encoding="utf-8"))
        lines = [line.split() for line in (group / "memory.stat").read_text(encoding="utf-8").splitlines()]
        cached = next((int(words[1]) for words in lines if words[:1] == ["inactive_file"]), 0)
        total, room = min(total, limit), min(room, limit - used + cached)
    except (OSError, ValueError):
        pass  # no container, or one without a limit
    return max(0, room - total // _KEPT)
