"""What is tried at night: fresh seeds, and more of them. `INFERQ_NIGHT` names the night, to have it again."""

import os
import random

NIGHT = os.environ.get("INFERQ_NIGHT", "")


def chance(scenario: str) -> random.Random:
    """The chance of a scenario: on a change always the same, at night another."""
    return random.Random(f"{NIGHT}{scenario}")


def seeds(count: int) -> range:
    """So many seeds on a change, eight times as many at night."""
    return range(8 * count if NIGHT else count)
