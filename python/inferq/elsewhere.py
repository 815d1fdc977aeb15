"""What other programs call things that have another name here: the hint behind an unknown name."""

from __future__ import annotations

NAMES = {
    "max_num_batched_tokens": "token_budget",
    "max_num_seqs": "max_seqs",
    "max_running_requests": "max_seqs",
    "max_batch_size": "max_seqs",
    "chunked_prefill_size": "chunk_tokens",
    "tp": "tensor_parallel",
    "tp_size": "tensor_parallel",
    "tensor_parallel_size": "tensor_parallel",
    "dp": "replicas",
    "dp_size": "replicas",
    "data_parallel_size": "replicas",
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
"""In the words of vLLM, SGLang and load generators, with underscores where a command line has hyphens."""

VALUES = {
    "enable_prefix_caching": "blocks",
    "no_enable_prefix_caching": "none",
    "disable_radix_cache": "none",
    "ttft_slo": "ttft_s=0.5",
    "itl_slo": "itl_s=0.05",
    "goodput": "ttft_s=0.5",
}
"""What a switch without a value stands for."""


def name_of(name: str) -> str | None:
    """What `name` is called here; None where nothing is known of it.

    >>> name_of("max_num_seqs"), name_of("--max-num-seqs"), name_of("seeds")
    ('max_seqs', 'max_seqs', None)
    """
    return NAMES.get(name.strip().lstrip("-").replace("-", "_").lower())


def option_of(option: str) -> str | None:
    """What an option of another command line is here.

    >>> option_of("--tp"), option_of("--enable-prefix-caching")
    ('--tensor-parallel', '--prefix-cache blocks')
    """
    name = name_of(option)
    if name is None:
        return None
    value = VALUES.get(option.lstrip("-").replace("-", "_"))
    return f"--{name.replace('_', '-')}{f' {value}' if value else ''}"
