"""Engines by their names, on one model and card, for a comparison without a scenario."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from inferq.checks import nearest
from inferq.description import kind_of
from inferq.errors import ConfigError
from inferq.scheduler import SCHEDULERS
from inferq.systems.engine import Engine
from inferq.systems.servers import Server
from inferq.timing.hardware.gpu import Gpu
from inferq.timing.hardware.model_shape import ModelShape


def engines_on(
    names: Iterable[str],
    model: ModelShape | str | Path | Mapping[str, Any] | None,
    gpu: Gpu | str | Mapping[str, Any] | None,
    *,
    tensor_parallel: int | None = None,
) -> dict[str, Engine]:
    """The engines of some names that serve a model on a GPU, each as `Engine.on` makes it.

    Args:
        names: a server in a version, `"vllm-0.33"`; without one, `"vllm"`, the newest that is known; or a
            scheduler in any spelling, `"sarathi"`, with its defaults beside all else of the newest vLLM.
        model: as of `Engine.on`.
        gpu: as of `Engine.on`.
        tensor_parallel: as of `Engine.on`, the same for all.

    Raises:
        ConfigError: no or one name, an unknown one, one twice, no model or no GPU; and as of `Engine.on`.

    Example:
        >>> from inferq.experiments.comparison.engines import engines_on
        >>> {name: type(one.scheduler).__name__
        ...  for name, one in engines_on(["vllm", "sarathi"], "llama-3.1-8b", "h100-80gb").items()}
        {'vllm': 'VllmV1', 'sarathi': 'Sarathi'}
    """
    asked = [str(name).strip() for name in names]
    if not asked or "" in asked:
        raise ConfigError("engines", "a name is empty" if asked else "none is named")
    for place, name in enumerate(asked):
        if name in asked[:place]:
            raise ConfigError("engines", f"{name} is there twice")
    if model is None or gpu is None:
        raise ConfigError("engines", "serve which model on which GPU? Give model and gpu too")
    card = Gpu.of(gpu)
    return {
        name: Engine.on(model, card, tensor_parallel=tensor_parallel, **_made(name, card)) for name in asked
    }


def _made(name: str, card: Gpu) -> dict[str, Any]:
    """The arguments of `Engine.on` that a name stands for."""
    releases = [one for one in Server.known() if one.startswith(f"{name.lower()}-")]
    if releases:
        return {"server": releases[-1]}
    kind = kind_of(name, SCHEDULERS)
    if kind is not None:
        try:
            return {"scheduler": kind()}
        except TypeError:
            raise ConfigError("engines", f"{name} has settings without a default: write a scenario") from None
    try:
        return {"server": Server.of(name, card).name}
    except ConfigError:
        servers = Server.known()
        programs = dict.fromkeys(one.partition("-")[0] for one in servers)
        known = [*programs, *servers, *(one.__name__ for one in SCHEDULERS)]
        raise ConfigError("engines", f"unknown engine {name!r}{nearest(name, known)}") from None
