"""Bake a timing table from aiconfigurator's kernel database: `python -m tools.baking MODEL GPU`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from inferq.errors import ConfigError

from .sampling import bake


def main(arguments: list[str] | None = None) -> None:
    """Sample the kernels of a model on a GPU and write them as a table.

    Example: python -m tools.baking qwen3-8b h200 --out qwen3-8b.parquet
    """
    parser = argparse.ArgumentParser(prog="python -m tools.baking", description=main.__doc__.split("\n")[0])
    parser.add_argument("model", help="name of a model, or a folder with its config.json")
    parser.add_argument("gpu", help="name of a GPU")
    parser.add_argument("--tensor-parallel", type=int, default=1, metavar="N", help="GPUs of the replica")
    parser.add_argument("--backend", default="vllm", help="vllm, sglang or trtllm")
    parser.add_argument("--version", help="version of the backend (default: the current one)")
    parser.add_argument(
        "--quantization", action="append", default=[], metavar="MODE=NAME", help="such as gemm_quant_mode=fp8"
    )
    parser.add_argument("--out", type=Path, help="file (default: MODEL_GPU_tpN_BACKEND.parquet)")
    options = parser.parse_args(arguments)
    if wrong := [pair for pair in options.quantization if "=" not in pair]:
        parser.error(f"--quantization: {wrong[0]!r} must have the form gemm_quant_mode=fp8")
    size = f"tp{options.tensor_parallel}"
    name = f"{Path(options.model).resolve().name}_{options.gpu}_{size}_{options.backend}.parquet"
    out = options.out or Path(name)
    if not out.resolve().parent.is_dir():
        parser.error(f"--out: no such folder: {str(out.parent)!r}")
    try:
        table = bake(
            options.model,
            options.gpu,
            options.backend,
            version=options.version,
            tensor_parallel=options.tensor_parallel,
            quantization=dict(pair.split("=", 1) for pair in options.quantization) or None,
        )
    except ConfigError as error:
        parser.error(str(error))
    table.write(out)
    print(f"{table!r}\nwritten to {out}; to show it: inferq timing show {out}")


if __name__ == "__main__":
    sys.exit(main())
