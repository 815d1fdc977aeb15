"""Names that other tools use for parameters and options of this package, for hints in errors."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

NAMES = {
    "max_num_batched_tokens": "token_budget",
    "max_num_seqs": "max_seqs",
    "max_running_requests": "max_seqs",
    "max_batch_size": "max_seqs",
    "chunked_prefill_size": "chunk_tokens",
    "tp": "tensor_parallel",
    "tp_size": "tensor_parallel",
    "tensor_parallel_size": "tensor_parallel",
    "ep": "expert_parallel",
    "ep_size": "expert_parallel",
    "expert_parallel_size": "expert_parallel",
    "enable_expert_parallel": "expert_parallel",
    "dp": "data_parallel",
    "dp_size": "data_parallel",
    "data_parallel_size": "data_parallel",
    "enable_dp_attention": "data_parallel",
    "pp": "pipeline_parallel",
    "pp_size": "pipeline_parallel",
    "pipeline_parallel_size": "pipeline_parallel",
    "enforce_eager": "eager",
    "disable_cuda_graph": "eager",
    "num_replicas": "replicas",
    "mem_fraction_static": "gpu_memory_utilization",
    "utilization": "gpu_memory_utilization",
    "kv_cache_dtype": "kv_dtype",
    "quantization": "weights",
    "dtype": "weights",
    "block_size": "block",
    "page_size": "block",
    "enable_prefix_caching": "prefix_cache",
    "no_enable_prefix_caching": "prefix_cache",
    "disable_radix_cache": "prefix_cache",
    "num_gpu_blocks": "kv_tokens",
    "num_gpu_blocks_override": "kv_tokens",
    "max_concurrency": "concurrency",
    "num_prompts": "head",
    "num_requests": "head",
    "ttft_slo": "slo",
    "itl_slo": "slo",
    "goodput": "slo",
    "qps": "rate",
    "rps": "rate",
    "device": "gpu",
    "hardware": "gpu",
    "load_balancing": "router",
    "schedule_policy": "policy",
    "scheduling_policy": "policy",
    "input_len": "prompt_tokens",
    "output_len": "output_tokens",
    "arrivals": "rate",
    "max_tokens": "max_output_tokens",
    "num_scheduler_steps": "async_scheduling",
}
"""Names in vLLM, SGLang and load generators, with underscores in place of hyphens, and ours."""

PARAMETERS = {"kv_tokens": "tokens", "slo": "objective", "data_parallel": "replicas"}
"""Parameters that have another name on the command line, or in a fleet."""

VALUES = {
    "enable_prefix_caching": "blocks",
    "no_enable_prefix_caching": "none",
    "disable_radix_cache": "none",
    "enable_expert_parallel": "all",
    "ttft_slo": "ttft_s=0.5",
    "itl_slo": "itl_s=0.05",
    "goodput": "ttft_s=0.5",
}
"""The value that corresponds to a switch without a value."""

IN_BLOCKS = ("num_gpu_blocks", "num_gpu_blocks_override")
"""Names whose values count blocks; ours count tokens."""


def name_of(name: str) -> str | None:
    """Return our name for a name of another tool, or None if it is unknown.

    >>> name_of("max_num_seqs"), name_of("--max-num-seqs"), name_of("seeds")
    ('max_seqs', 'max_seqs', None)
    """
    return NAMES.get(name.strip().lstrip("-").replace("-", "_").lower())


def option_of(option: str) -> str | None:
    """Return our option for an option of another command line, or None if it is unknown.

    >>> option_of("--tp"), option_of("--enable-prefix-caching")
    ('--tensor-parallel', '--prefix-cache blocks')
    """
    name = name_of(option)
    if name is None:
        return None
    value = VALUES.get(option.lstrip("-").replace("-", "_"))
    return f"--{name.replace('_', '-')}{f' {value}' if value else ''}"


def check_names(what: str, given: Mapping[str, Any], known: Iterable[str]) -> None:
    """Reject a keyword argument that is known under another name.

    Raises:
        TypeError: the first such argument, with our name and the call that uses it.

    >>> check_names("VllmV1", {"max_num_seqs": 3}, ["token_budget", "max_seqs"])
    Traceback (most recent call last):
    TypeError: max_num_seqs is called max_seqs here: VllmV1(max_seqs=3)
    """
    names = list(known)
    for name in given:
        ours = None if name in names else name_of(name)
        ours = PARAMETERS.get(ours or "", ours) if ours not in names else ours
        if ours is not None and ours in names:
            value = f"{given[name]!r} * block" if name in IN_BLOCKS else repr(VALUES.get(name, given[name]))
            raise TypeError(f"{name} is called {ours} here: {what}({ours}={value})")


def names_of_other_tools(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function so that a keyword argument of another tool raises an error with our name."""

    @functools.wraps(function)
    def checked(*arguments: P.args, **named: P.kwargs) -> R:
        try:
            return function(*arguments, **named)
        except TypeError:
            check_names(
                function.__qualname__.removesuffix(".__init__"), named, inspect.signature(function).parameters
            )
            raise

    return checked
