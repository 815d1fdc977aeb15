"""`benches/device/measure.py`: its references, and the whole script on a CPU with small sizes."""

import csv
import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType

import pytest

from inferq.timing.hardware.gpu import Gpu


@pytest.fixture(scope="module")
def script() -> ModuleType:
    file = Path(__file__).parent.parent / "benches" / "device" / "measure.py"
    spec = importlib.util.spec_from_file_location("measure", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["measure"] = module
    spec.loader.exec_module(module)
    return module


def test_the_reference_of_a_product_is_computing_or_reading(script: ModuleType) -> None:
    h100 = Gpu.of("h100-80gb")
    # One row of 4,096 by 4,096 weights: 4,096² weights, 4,096 inputs and outputs, of two bytes, at 3.35 TB/s.
    read = 2 * (4096**2 + 2 * 4096) / 3.35e12
    assert script.datasheet_s(h100, 1, 4096, 4096, "bf16") == pytest.approx(read)
    # 8,192 rows: 2 · 8,192 · 4,096² operations at 989 TFLOP/s, or twice that in FP8.
    computed = 2 * 8192 * 4096**2 / 989e12
    assert script.datasheet_s(h100, 8192, 4096, 4096, "bf16") == pytest.approx(computed)
    assert script.datasheet_s(h100, 8192, 4096, 4096, "fp8") == pytest.approx(computed * 989 / 1979)
    assert script.datasheet_s(h100, 1, 4096, 4096, "bf16", matrices=128) == pytest.approx(128 * read)


def test_the_script_runs_on_a_cpu(script: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'inferq[calibrate]'")
    out = tmp_path / "cpu.csv"
    script.main(["--out", str(out), "--device", "cpu", "--tiny"])
    with out.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    sizes = script.TINY
    sections = [row["section"] for row in rows]
    assert sections.count("decodes") == len(sizes.models) * 2 * 2
    assert sections.count("chunk") == len(sizes.models) * 2
    assert sections.count("sustained") == len(sizes.batch_tokens)
    assert sections.count("experts") == 2 * len(sizes.expert_tokens)
    assert sections.count("gemm float32") == len(sizes.gemms) * len(sizes.gemm_tokens)
    for row in rows:
        assert math.isfinite(float(row["measured_s"])) and float(row["measured_s"]) > 0
        assert row["device"] == "cpu" and row["reference_s"] == ""  # no table and no datasheet of a CPU
    assert all(float(row["late_s"]) > 0 for row in rows if row["section"] == "sustained")
