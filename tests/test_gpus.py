"""GPUs of the catalog: their names, rates per number format, and links."""

from typing import Any

import pytest

import inferq as iq
from inferq.timing.hardware.catalog import entries, gpu_name
from inferq.timing.hardware.gpu import Gpu

from .refusals import refused

WORKLOAD = {"arrival_s": [0.0], "prompt_tokens": [8], "output_tokens": [2]}
OWN = {
    "memory_bytes": 96e9,
    "bandwidth_bytes_per_s": 2e12,
    "bf16_flops": 200e12,
    "link_bytes_per_s": 64e9,
    "name": "mine",
}


def kinds(engine: iq.Engine) -> list[str]:
    return [finding.kind for finding in iq.simulate(WORKLOAD, engine).findings]


@pytest.mark.parametrize(
    ("name", "known"),
    [
        *(("a100_sxm", "a100-80gb"), ("h100_sxm", "h100-80gb"), ("h200_sxm", "h200"), ("b200_sxm", "b200")),
        *(("b300_sxm", "b300"), ("gb200", "gb200"), ("gb300", "gb300"), ("l40s", "l40s")),
        *(("rtx_pro_6000_server", "rtx-pro-6000"), ("A100_PCIe", "a100-80gb-pcie"), ("GB10", "dgx-spark")),
    ],
)
def test_names_of_the_table_database_are_names_of_the_catalog(name: str, known: str) -> None:
    assert Gpu.of(name) == Gpu.of(known) and Gpu.of(name).name == known
    assert iq.Engine.on("llama-3.1-8b", name).on_card["gpu"] == known
    assert iq.Engine.from_json({"model": "llama-3.1-8b", "gpu": name}).on_card["gpu"] == known
    assert iq.Prices(gpu_hour={name: 2.5}).of_gpu(known) == 2.5
    assert iq.Prices(gpu_hour={known: 2.5}).of_gpu(name) == 2.5


def test_a_shipped_table_is_found_by_an_alias() -> None:
    by_name = iq.TimingTable.shipped("llama-3.1-8b", "h100-80gb")
    assert iq.TimingTable.shipped("llama-3.1-8b", "H100_SXM") == by_name


def test_the_name_of_a_gpu_of_your_own_stays() -> None:
    assert gpu_name("My_GPU") == "My_GPU"
    prices = iq.Prices(gpu_hour={"My_GPU": 1.0}, card="My_GPU")
    assert prices.of_gpu("My_GPU") == 1.0 and prices.card == "My_GPU"


@refused(
    ({"h100_sxm": 2.0, "h100-80gb": 3.0}, r"gpu_hour.h100_sxm: h100-80gb has a value already; set one"),
)
def test_a_gpu_has_one_price(gpu_hour: dict[str, float]) -> None:
    iq.Prices(gpu_hour=gpu_hour)


@pytest.mark.parametrize(
    "name", ["gb100", "h30", "b20", "l40", "mi350x", "mi300a", "rtx-6000", "h200-nvl", "gb20"]
)
def test_no_hint_offers_another_machine(name: str) -> None:
    with pytest.raises(iq.ConfigError) as error:
        Gpu.of(name)
    assert "did you mean" not in str(error.value) and "describe your own GPU" in str(error.value)


FALLBACKS: dict[str, dict[str, str]] = {
    "a100-80gb": {"fp8": "bf16", "fp8-block": "bf16", "nvfp4": "bf16", "mxfp4": "bf16", "int8": "int8"},
    "h100-80gb": {"fp8": "fp8", "fp8-block": "fp8", "nvfp4": "bf16", "mxfp4": "bf16", "int8": "int8"},
    "b200": {"fp8": "fp8", "fp8-block": "fp8", "nvfp4": "fp4", "mxfp4": "bf16", "int8": "int8"},
    "mi300x": {"fp8": "fp8", "nvfp4": "bf16", "mxfp4": "bf16"},
    "mi355x": {"fp8": "fp8", "nvfp4": "fp4", "mxfp4": "bf16"},
}


@pytest.mark.parametrize("name", FALLBACKS)
def test_weights_in_a_format_that_a_gpu_lacks_are_computed_in_16_bits(name: str) -> None:
    gpu = Gpu.of(name)
    for weights, used in (FALLBACKS[name] | {"bf16": "bf16", "int4": "bf16"}).items():
        assert gpu.computed_in(weights) == used
        assert gpu.flops(weights) == getattr(gpu, f"{used}_flops")


def test_rates_are_dense_and_follow_the_ratios_of_the_tensor_cores() -> None:
    # Half the bits, twice the rate, except FP4 of Blackwell Ultra (three times) and a rounded datasheet.
    for name, gpu in ((name, Gpu.of(name)) for name in entries("gpus")):
        if gpu.fp8_flops is not None:
            assert gpu.fp8_flops == pytest.approx(2 * gpu.bf16_flops, rel=0.02), name
        if gpu.fp4_flops is not None:
            assert gpu.fp8_flops is not None
            times = 3 if name in ("b300", "gb300") else 2
            assert gpu.fp4_flops == pytest.approx(times * gpu.fp8_flops, rel=0.01), name
    assert {name for name in entries("gpus") if Gpu.of(name).domain == 72} == {"gb200", "gb300"}


def test_a_format_that_a_gpu_lacks_is_a_finding() -> None:
    for weights in ("fp8", "nvfp4"):
        engine = iq.Engine.on("llama-3.1-8b", OWN, weights=weights)
        (finding,) = (f for f in iq.simulate(WORKLOAD, engine).findings if f.kind == "number-format")
        assert finding.data == {"gpu": "mine", "weights": weights, "computed_in": "bf16"}
        assert f"{weights} weights are computed in bf16: mine lacks" in engine.explain()
    assert "number-format" in kinds(iq.Engine.on("llama-3.1-8b", "h200", weights="nvfp4"))
    for engine in (
        iq.Engine.on("llama-3.1-8b", {**OWN, "fp8_flops": 400e12}, weights="fp8"),
        iq.Engine.on("llama-3.1-8b", OWN, weights="int4"),
        iq.Engine.on("llama-3.1-8b", OWN, weights="fp8", timing=iq.Constant(0.01)),
        iq.Engine.on("llama-3.1-8b", "b200", weights="nvfp4"),
    ):
        assert "number-format" not in kinds(engine)


def test_more_gpus_than_a_link_joins_are_a_finding() -> None:
    engine = iq.Engine.on("llama-3.1-70b", "h100-80gb", tensor_parallel=16)
    (finding,) = (f for f in iq.simulate(WORKLOAD, engine).findings if f.kind == "across-servers")
    assert finding.data == {"gpus": 16, "linked_gpus": 8}
    assert "across-servers" not in kinds(iq.Engine.on("llama-3.1-70b", "gb200", tensor_parallel=16))


@refused(
    ({"domain": 0}, "gpu.domain: must be"),
    ({"domain": 2.5}, "gpu.domain: must be"),
    ({"fp4_flops": 10}, "gpu.fp4_flops: 10 looks like GB"),
    ({"fp5_flops": 1e15}, "unknown field 'fp5_flops'; did you mean fp8_flops|unknown field 'fp5_flops'"),
)
def test_impossible_numbers_are_errors(given: dict[str, Any]) -> None:
    Gpu.of({**OWN, **given})
