"""The seeds, the confidence and the options of a run that an experiment may be given."""

from __future__ import annotations

import inspect
import json
from collections.abc import Collection, Iterable, Mapping
from itertools import islice

from inferq.checks import finite, nearest, whole
from inferq.errors import ConfigError
from inferq.progress import Progress, watched
from inferq.simulation.simulate import simulate
from inferq.workload.workload import Workload

MOST_SEEDS = 100_000
"""As many as an experiment may be given."""

MOST_SEED = 2**64 - 1

OPTIONS = tuple(
    name
    for name, parameter in inspect.signature(simulate).parameters.items()
    if parameter.kind is parameter.KEYWORD_ONLY
)
"""The options of `simulate`."""

_EXPERIMENT = ("seed", "threads", "progress")
"""Those that an experiment gives to each run itself."""


def seeds_of(seeds: object, most: int = MOST_SEEDS) -> tuple[int, ...]:
    """The seeds of runs, each once.

    Args:
        seeds: whole numbers from 0 to 2^64 − 1; no more than `most` are looked at. One number alone is how
            many there are, from 0 on.
        most: how many there may be.

    Raises:
        ConfigError: there are none, too many, one that is no such number, or one that is there twice.

    Example:
        >>> from inferq.experiments.arguments import seeds_of
        >>> seeds_of(range(3)) == seeds_of(3)
        True
    """
    if type(seeds) is int:
        seeds = range(whole("seeds", seeds, 1, most))
    if isinstance(seeds, (str, bytes, set, frozenset)) or not isinstance(seeds, Iterable):
        raise ConfigError("seeds", f"must be whole numbers such as range(10), is {seeds!r}")
    items = tuple(islice(seeds, most + 1))
    if len(items) > most:
        raise ConfigError("seeds", f"are more than {most:,}")
    numbers = tuple(whole("seeds", seed, 0, MOST_SEED) for seed in items)
    if not numbers:
        raise ConfigError("seeds", "there are none")
    if len(set(numbers)) < len(numbers):
        raise ConfigError("seeds", "one is there twice")
    return numbers


def looks_of(seeds: Iterable[int] | int, most: int | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """All seeds that a probe may take, and after how many of them a verdict is tried: twice as many each.

    Args:
        seeds: those of the first look; the others are the next whole numbers.
        most: how many there may be; None: four times as many as `seeds`.
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
    """So many seeds from that of a scenario file on, as a command line asks for them.

    Raises:
        ConfigError: a number outside its range; it names `run.seed` or `--seeds`.
    """
    start = whole("run.seed", first, 0, MOST_SEED)
    return range(start, start + whole("--seeds", count, 1, most))


def check_options(
    options: Mapping[str, object], *, but: Collection[str] = (), field: str = ""
) -> dict[str, object]:
    """The options that every run of an experiment shall have.

    Args:
        options: keyword arguments for `simulate`.
        but: those that may be among them although an experiment usually sets them.
        field: what an error puts before the name of one.

    Raises:
        ConfigError: one is unknown, or not for an experiment; it names it.
    """
    names = [name for name in OPTIONS if name != "out" and (name not in _EXPERIMENT or name in but)]
    for name in options:
        if name == "out":
            raise ConfigError(
                f"{field}out", "is for one run; the runs of an experiment would all go to one directory"
            )
        if name in _EXPERIMENT and name not in names:
            raise ConfigError(f"{field}{name}", "no option here, the experiment sets it for each run")
        if name not in names:
            raise ConfigError(f"{field}{name}", f"unknown option of simulate{nearest(str(name), names)}")
    return dict(options)


def recorded(workload: Workload, seeds: Iterable[int], options: Mapping[str, object], **what: object) -> str:
    """What an experiment ran, as JSON: the workload, the system or the systems, the seeds and the options."""
    told = {"workload": workload.to_json(), **what, "seeds": list(seeds), "options": options}
    return json.dumps(told, indent=2, default=str)


def check_progress(progress: bool | Progress | None) -> bool | Progress | None:
    """What shall be told how far an experiment is.

    Raises:
        ConfigError: it is no callable, truth or None.
    """
    with watched(progress):
        return progress
