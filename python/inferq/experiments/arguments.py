"""Checks of the seeds and run options of experiments."""

from __future__ import annotations

import inspect
import json
from collections.abc import Collection, Iterable, Mapping
from itertools import islice

from inferq.checks import nearest, whole
from inferq.errors import ConfigError
from inferq.progress import Progress, watched
from inferq.simulation.simulate import simulate
from inferq.workload.workload import Workload

MOST_SEEDS = 100_000
"""Maximum seeds of an experiment."""

MOST_SEED = 2**64 - 1

OPTIONS = tuple(
    name
    for name, parameter in inspect.signature(simulate).parameters.items()
    if parameter.kind is parameter.KEYWORD_ONLY
)
"""The options of `simulate`."""

_EXPERIMENT = ("seed", "threads", "progress")
"""Options that an experiment sets for each run."""


def seeds_of(seeds: object, most: int = MOST_SEEDS) -> tuple[int, ...]:
    """Check seeds.

    Args:
        seeds: integers from 0 to 2^64 − 1, or the number of seeds, which then count from 0.
        most: maximum number of seeds.

    Raises:
        ConfigError: no seeds, too many, an invalid one, or a duplicate.

    Example:
        >>> from inferq.experiments.arguments import seeds_of
        >>> seeds_of(range(3)) == seeds_of(3)
        True
    """
    if type(seeds) is int:
        seeds = range(whole("seeds", seeds, 1, most))
    if isinstance(seeds, (str, bytes, set, frozenset)) or not isinstance(seeds, Iterable):
        raise ConfigError("seeds", f"must be integers such as range(10), got {seeds!r}")
    items = tuple(islice(seeds, most + 1))
    if len(items) > most:
        raise ConfigError("seeds", f"has too many values; at most {most:,} are supported")
    numbers = tuple(whole("seeds", seed, 0, MOST_SEED) for seed in items)
    if not numbers:
        raise ConfigError("seeds", "must contain at least one seed")
    if len(set(numbers)) < len(numbers):
        raise ConfigError("seeds", "contains the same seed twice")
    return numbers


def looks_of(seeds: Iterable[int] | int, most: int | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """All seeds of a probe, and the numbers of seeds after which a verdict is tried, doubling each time.

    Args:
        seeds: seeds of the first look; further seeds are the next integers.
        most: maximum number of seeds. Default: four times the number of `seeds`.
    """
    first = seeds_of(seeds)
    last = (
        min(4 * len(first), MOST_SEEDS) if most is None else whole("most_seeds", most, len(first), MOST_SEEDS)
    )
    looks = [len(first)]
    while looks[-1] < last:
        looks.append(min(2 * looks[-1], last))
    further = range(max(first) + 1, max(first) + 1 + last - len(first))
    return (*first, *(whole("seeds", seed, 0, MOST_SEED) for seed in further)), tuple(looks)


def seeds_from(first: object, count: object, most: int = MOST_SEEDS) -> range:
    """Consecutive seeds from the seed of a scenario, for the command line.

    Raises:
        ConfigError: a number is out of range; it names `run.seed` or `--seeds`.
    """
    start = whole("run.seed", first, 0, MOST_SEED)
    return range(start, start + whole("--seeds", count, 1, most))


def check_options(
    options: Mapping[str, object], *, but: Collection[str] = (), field: str = ""
) -> dict[str, object]:
    """Check the options of all runs of an experiment.

    Args:
        options: keyword arguments for `simulate`.
        but: options that are accepted although experiments usually set them.
        field: prefix of names in errors.

    Raises:
        ConfigError: an option is unknown, or not supported in experiments.
    """
    names = [name for name in OPTIONS if name != "out" and (name not in _EXPERIMENT or name in but)]
    for name in options:
        if name == "out":
            raise ConfigError(
                f"{field}out", "is not supported in experiments: all runs would write to the same directory"
            )
        if name in _EXPERIMENT and name not in names:
            raise ConfigError(f"{field}{name}", "is not an option here; the experiment sets it for each run")
        if name not in names:
            raise ConfigError(f"{field}{name}", f"unknown option of simulate{nearest(str(name), names)}")
    return dict(options)


def recorded(workload: Workload, seeds: Iterable[int], options: Mapping[str, object], **what: object) -> str:
    """What an experiment ran, as JSON: the workload, the systems, the seeds and the options."""
    contents = {"workload": workload.to_json(), **what, "seeds": list(seeds), "options": options}
    return json.dumps(contents, indent=2, default=str)


def check_progress(progress: bool | Progress | None) -> bool | Progress | None:
    """Check a progress argument.

    Raises:
        ConfigError: it is not a callable, a bool or None.
    """
    with watched(progress):
        return progress


def check_log(log: object) -> None:
    """Check a callable that receives messages.

    Raises:
        ConfigError: it is neither callable nor None.
    """
    if log is not None and not callable(log):
        raise ConfigError("log", f"must be a callable that accepts a sentence, or None, got {log!r}")
