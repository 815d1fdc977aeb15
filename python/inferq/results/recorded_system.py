"""Systems rebuilt from the records of runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferq.errors import ConfigError
from inferq.systems.engine import Engine
from inferq.systems.system import SYSTEMS, System


def recorded_system(record: Mapping[str, Any]) -> System | None:
    """The system in the record of a run. None if a user-defined class prevents it."""
    for kind in SYSTEMS:
        if kind.name_of_kind in record:
            try:
                system: System = kind.from_json(record[kind.name_of_kind])
            except ConfigError:
                return None
            return system
    return None


def system_from(description: Mapping[str, Any]) -> System:
    """The system of a description.

    Raises:
        ConfigError: the system has a user-defined class, of which only the name is recorded.
    """
    kind = next((kind for kind in SYSTEMS if kind.__name__ == description.get("kind")), Engine)
    return kind.from_json(description)
