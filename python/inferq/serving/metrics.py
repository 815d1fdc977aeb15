"""Prometheus metrics under vLLM's names, in simulated time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

_LATENCIES_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_FIRST_S = (*_LATENCIES_S, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0)
_GAPS_S = (
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.4,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
)
_WHOLE_S = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_TOKENS = tuple(mantissa * 10**power for power in range(6) for mantissa in (1, 2, 5))


class Histogram:
    """A Prometheus histogram."""

    def __init__(self, name: str, about: str, bounds: Sequence[float]) -> None:
        self._name, self._about, self._bounds = name, about, bounds
        self._counts, self._sum = [0] * (len(bounds) + 1), 0.0

    def note(self, value: float) -> None:
        """Add a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def lines(self, labels: str) -> Iterable[str]:
        """The histogram in the Prometheus text format."""
        yield from _about(self._name, "histogram", self._about)
        below = 0
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            below += count
            yield f'{self._name}_bucket{{{labels},le="{bound}"}} {below}'
        yield f"{self._name}_count{{{labels}}} {below}"
        yield f"{self._name}_sum{{{labels}}} {self._sum}"


def _about(name: str, kind: str, about: str) -> Iterable[str]:
    return (f"# HELP {name} {about}", f"# TYPE {name} {kind}")


class Metrics:
    """Metrics since the start of the server."""

    def __init__(self, model: str, kv_tokens: Sequence[int | None]) -> None:
        self._model, self._kv_tokens = _escaped(model), kv_tokens
        self.first_s = Histogram("vllm:time_to_first_token_seconds", "Time to first token.", _FIRST_S)
        self.gap_s = Histogram("vllm:inter_token_latency_seconds", "Time between two tokens.", _GAPS_S)
        self.whole_s = Histogram("vllm:e2e_request_latency_seconds", "Time to the last token.", _WHOLE_S)
        self.prompt = Histogram("vllm:request_prompt_tokens", "Tokens of a prompt.", _TOKENS)
        self.answer = Histogram("vllm:request_generation_tokens", "Tokens of an answer.", _TOKENS)
        self.ended = dict.fromkeys(("stop", "length", "abort", "error"), 0)
        self.prompt_tokens = self.hit_tokens = 0

    def text(self, replicas: Sequence[Sequence[int]]) -> str:
        """All metrics in the Prometheus text format, with the state of each replica (`Live.replicas`)."""
        lines: list[str] = []

        def each(name: str, kind: str, about: str, values: Iterable[float]) -> None:
            lines.extend(_about(name, kind, about))
            for engine, value in enumerate(values):
                lines.append(f'{name}{{model_name="{self._model}",engine="{engine}"}} {value}')

        used = [
            0.0 if size is None else replica[2] / size
            for replica, size in zip(replicas, self._kv_tokens, strict=True)
        ]
        each("vllm:num_requests_running", "gauge", "Running requests.", (state[1] for state in replicas))
        each("vllm:num_requests_waiting", "gauge", "Waiting requests.", (state[0] for state in replicas))
        each("vllm:kv_cache_usage_perc", "gauge", "Share of the KV cache in use.", used)
        each(
            "vllm:prompt_tokens_total", "counter", "Prompt tokens computed.", (state[3] for state in replicas)
        )
        each("vllm:generation_tokens_total", "counter", "Tokens generated.", (state[4] for state in replicas))
        each(
            "vllm:prefix_cache_hits_total",
            "counter",
            "Prompt tokens cached.",
            (state[5] for state in replicas),
        )
        each(
            "vllm:prefix_cache_queries_total",
            "counter",
            "Prompt tokens computed or cached.",
            (state[3] + state[5] for state in replicas),
        )
        lines.extend(_about("vllm:request_success_total", "counter", "Finished requests."))
        for reason, count in self.ended.items():
            labels = f'model_name="{self._model}",engine="0",finished_reason="{reason}"'
            lines.append(f"vllm:request_success_total{{{labels}}} {count}")
        for histogram in (self.first_s, self.gap_s, self.whole_s, self.prompt, self.answer):
            lines.extend(histogram.lines(f'model_name="{self._model}",engine="0"'))
        return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
