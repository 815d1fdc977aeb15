"""Engines by name on one model and GPU, for a comparison without scenarios."""

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
    """Engines for a model on a GPU, as made by `Engine.on`.

    Args:
        names: a server version, `"vllm-0.33"`; a server, `"vllm"`, for its latest version; or a scheduler,
            `"sarathi"`, with its defaults and the latest vLLM.
        model: as for `Engine.on`.
        gpu: as for `Engine.on`.
        tensor_parallel: as for `Engine.on`, the same for all.

    Raises:
        ConfigError: no names, an unknown or duplicate name, no model or no GPU; and as for `Engine.on`.

    Example:
        >>> from inferq.experiments.comparison.engines import engines_on
        >>> {name: type(engine.scheduler).__name__
        ...  for name, engine in engines_on(["vllm", "sarathi"], "llama-3.1-8b", "h100-80gb").items()}
        {'vllm': 'VllmV1', 'sarathi': 'Sarathi'}
    """
    stripped = [str(name).strip() for name in names]
    if not stripped or "" in stripped:
        raise ConfigError("engines", "contains an empty name" if stripped else "must contain a name")
    for place, name in enumerate(stripped):
        if name in stripped[:place]:
            raise ConfigError("engines", f"contains {name} twice")
    if model is None or gpu is None:
        raise ConfigError("engines", "requires model and gpu")
    card = Gpu.of(gpu)
    return {
        name: Engine.on(model, card, tensor_parallel=tensor_parallel, **_options(name, card))
        for name in stripped
    }


def _options(name: str, card: Gpu) -> dict[str, Any]:
    """The arguments of `Engine.on` for a name."""
    releases = [release for release in Server.known() if release.startswith(f"{name.lower()}-")]
    if releases:
        return {"server": releases[-1]}
    kind = kind_of(name, SCHEDULERS)
    if kind is not None:
        try:
            return {"scheduler": kind()}
        except TypeError:
            raise ConfigError("engines", f"{name} has fields without a default; use a scenario") from None
    try:
        return {"server": Server.of(name, card).name}
    except ConfigError:
        servers = Server.known()
        programs = dict.fromkeys(server.partition("-")[0] for server in servers)
        known = [*programs, *servers, *(kind.__name__ for kind in SCHEDULERS)]
        raise ConfigError("engines", f"unknown engine {name!r}{nearest(name, known)}") from None
