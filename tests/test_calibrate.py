"""Is what `inferq calibrate` times the work of a layer, and does it become a table that can be used?"""

import copy
import dataclasses
import json
import math
import re
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

import inferq as iq
from inferq.cli import app
from inferq.timing.calibration import calibrate as calibrate_module
from inferq.timing.calibration import survey as survey_module
from inferq.timing.calibration.calibrate import calibrate
from inferq.timing.calibration.layers import (
    Attention,
    Layer,
    LayerSizes,
    PagedCache,
    Routing,
    blocks_of,
    forward,
)
from inferq.timing.calibration.stopwatch import HostStopwatch
from inferq.timing.calibration.survey import Rig, Survey, Timed
from inferq.timing.hardware.model_shape import ModelShape

from .refusals import refused

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'inferq[calibrate]'")

CONFIG = {
    "model_type": "llama",
    "hidden_size": 32,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "vocab_size": 50,
}
MIXTURE = {**CONFIG, "num_local_experts": 6, "num_experts_per_tok": 2}
GUIDE = Path(__file__).parent.parent / "docs" / "guides" / "calibrate-timing.md"
COMMANDS = re.findall(r"^inferq calibrate .*$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE)
"""They need PyTorch, so they are run here and not with the commands of the other guides."""
GRIDS = {
    "tokens": [1, 8, 32],
    "chunk": [1, 16],
    "context": [0, 20, 64],
    "sequences": [1, 4],
    "mean_context": [0, 20, 64],
}
SIZES = {
    "as many heads of keys": LayerSizes(32, 4, 4, 8, 48),
    "grouped heads": LayerSizes(24, 6, 2, 8, 40),
    "one head of keys, norms and biases": LayerSizes(32, 4, 1, 8, 48, qkv_bias=True, qk_norm=True),
    "experts": LayerSizes(24, 6, 2, 8, 20, experts=5, active_experts=2),
}


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.inference_mode():
        yield
    torch.set_num_threads(before)


def drawing(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(shape, generator=generator, dtype=torch.float64)


# What a layer is, written from the formulas: one token and one head at a time, complex rotation, no cache.


def normed(row, weight):
    return row / math.sqrt(float((row**2).mean()) + 1e-6) * weight


def turned(head, position):
    half = len(head) // 2
    pairs = torch.complex(head[:half], head[half:])
    angles = torch.tensor([position * 500_000.0 ** (-i / half) for i in range(half)], dtype=torch.float64)
    pairs = pairs * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([pairs.real, pairs.imag])


def plain_mlp(layer, row, expert):
    width = layer.sizes.intermediate
    mixed = layer.gate_up[expert] @ row
    gate, up = mixed[:width], mixed[width:]
    return layer.down[expert] @ (gate / (1 + torch.exp(-gate)) * up)


def plain_layer(layer, rows):
    sizes = layer.sizes
    queries, keys, values = [], [], []
    for position, row in enumerate(rows):
        mixed = layer.qkv @ normed(row, layer.norm_attention)
        if layer.qkv_bias is not None:
            mixed = mixed + layer.qkv_bias
        heads = list(mixed.view(-1, sizes.head_size))
        mine, theirs = heads[: sizes.heads], heads[sizes.heads : sizes.heads + sizes.kv_heads]
        if sizes.qk_norm:
            mine = [normed(head, layer.norm_queries) for head in mine]
            theirs = [normed(head, layer.norm_keys) for head in theirs]
        queries.append([turned(head, position) for head in mine])
        keys.append([turned(head, position) for head in theirs])
        values.append(heads[sizes.heads + sizes.kv_heads :])
    answers = []
    for position, row in enumerate(rows):
        found = []
        for head in range(sizes.heads):
            group = head * sizes.kv_heads // sizes.heads
            scores = [
                float(queries[position][head] @ keys[before][group]) / math.sqrt(sizes.head_size)
                for before in range(position + 1)
            ]
            shares = [math.exp(score - max(scores)) for score in scores]
            found.append(
                sum(share / sum(shares) * values[before][group] for before, share in enumerate(shares))
            )
        row = row + layer.output @ torch.cat(found)
        inner = normed(row, layer.norm_mlp)
        if layer.router is None:
            answers.append(row + plain_mlp(layer, inner, 0))
            continue
        votes = [math.exp(float(vote)) for vote in layer.router @ inner]
        best = sorted(range(sizes.experts), key=lambda expert: -votes[expert])[: sizes.active_experts]
        whole = sum(votes[expert] for expert in best)
        answers.append(row + sum(votes[expert] / whole * plain_mlp(layer, inner, expert) for expert in best))
    return torch.stack(answers)


@pytest.mark.parametrize("paged", [True, False], ids=["paged", "contiguous"])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_chunks_then_decodes_over_the_cache_are_one_full_pass(sizes, paged):
    draw = drawing()
    layers = [Layer(sizes, draw) for _ in range(2)]
    sequences, tokens, chunks = 3, 37, (5, 16, 1, 11)  # ends of chunks lie inside blocks of 16 and on them
    hidden = draw(sequences, tokens, sizes.hidden)
    expected = hidden.clone()
    for layer in layers:
        expected = torch.stack([plain_layer(layer, rows) for rows in expected])

    order = torch.randperm(sequences * blocks_of(tokens), generator=torch.Generator().manual_seed(1))
    caches = [PagedCache(sequences, tokens, sizes, draw, order if paged else None) for _ in layers]
    found = torch.empty_like(hidden)
    for sequence in range(sequences):
        context = 0
        for chunk in chunks:
            alone = [copy.copy(cache) for cache in caches]
            for cache in alone:
                if paged:
                    cache.tables = cache.tables[sequence : sequence + 1]
                    continue
                mine = slice(sequence * blocks_of(tokens), (sequence + 1) * blocks_of(tokens))
                cache.keys, cache.values = cache.keys[mine], cache.values[mine]
                cache.tables = cache.tables[:1]
            attend = [Attention.of(cache, context, chunk, sizes.head_size, hidden.dtype) for cache in alone]
            rows = hidden[sequence, context : context + chunk]
            found[sequence, context : context + chunk] = forward(layers, rows, attend)
            context += chunk
    for position in range(sum(chunks), tokens):
        attend = [Attention.of(cache, position, 1, sizes.head_size, hidden.dtype) for cache in caches]
        found[:, position] = forward(layers, hidden[:, position], attend)
    # Router shares are single precision, as engines have them.
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 if sizes.experts > 1 else 1e-11)


@pytest.mark.parametrize(("tokens", "context"), [(5, 0), (5, 30), (16, 16)])
def test_the_mask_of_cuda_hides_what_that_of_the_processor_hides(tokens, context):
    from torch.nn.attention.bias import causal_lower_right

    sizes, draw = SIZES["grouped heads"], drawing(3)
    order = torch.arange(blocks_of(context + tokens))
    cache = PagedCache(1, context + tokens, sizes, draw, order)
    attend = Attention.of(cache, context, tokens, sizes.head_size, torch.float64)
    flagged = dataclasses.replace(attend, mask=causal_lower_right(tokens, context + tokens))
    rows = [draw(tokens, heads, sizes.head_size) for heads in (sizes.heads, sizes.kv_heads, sizes.kv_heads)]
    torch.testing.assert_close(flagged(*rows), attend(*rows), rtol=0, atol=1e-12)


def test_given_experts_are_visited_and_the_routers_own_change_nothing():
    sizes = SIZES["experts"]
    draw = drawing(2)
    layer, hidden, attention = (
        Layer(sizes, draw),
        draw(9, sizes.hidden),
        draw(9, sizes.heads, sizes.head_size),
    )
    torch.manual_seed(0)
    chosen = torch.rand(9, sizes.experts).topk(2, dim=-1).indices
    routing = Routing.of(chosen, sizes.experts)
    visits = [(int(row), expert) for expert, rows, _ in routing.groups for row in rows]
    assert sorted(visits) == sorted((row, int(expert)) for row in range(9) for expert in chosen[row])

    free = layer.finish(hidden, attention)
    entered = hidden + attention.flatten(1) @ layer.output.T
    votes = torch.stack([layer.router @ normed(row, layer.norm_mlp) for row in entered])
    own = Routing.of(votes.topk(2, dim=-1).indices, sizes.experts)
    torch.testing.assert_close(layer.finish(hidden, attention, own), free)
    assert not torch.allclose(layer.finish(hidden, attention, routing), free)


# How much work is timed: a stopwatch that counts multiplications and additions instead.


class Counter:
    cold = "nothing is timed"

    def seconds(self, work, repetitions):
        from torch.utils.flop_counter import FlopCounterMode

        with FlopCounterMode(display=False) as counted:
            work()
        return [float(counted.get_total_flops())] * repetitions


def rig(config, tensor_parallel=1):
    from inferq.timing.calibration.calibrate import layer_sizes

    shape = ModelShape.of(config)
    sizes = layer_sizes(shape, tensor_parallel)
    layers = (2, shape.layers)
    return shape, Rig(sizes, shape.vocab, layers, torch.device("cpu"), torch.float32, Counter(), 3)


@pytest.mark.parametrize("config", [CONFIG, MIXTURE], ids=["dense", "experts"])
@pytest.mark.parametrize("tokens", [1, 7, 64])
def test_linear_layers_multiply_each_token_with_each_weight_once_and_one_row_with_the_logits(config, tokens):
    shape, counting = rig(config)
    expected = 2 * tokens * shape.active_linear_weights + 2 * shape.output_weights
    assert counting.linear(tokens) == Timed(expected, 0)


def test_one_of_two_devices_does_half_of_the_linear_layers():
    shape, counting = rig(CONFIG, tensor_parallel=2)
    assert counting.linear(9).seconds == 9 * shape.linear_weights + 2 * shape.output_weights


@pytest.mark.parametrize(("sequences", "context"), [(1, 0), (1, 40), (5, 16)])
def test_decodes_attend_to_their_context_and_themselves_and_have_a_row_of_logits_each(sequences, context):
    shape, counting = rig(CONFIG)
    attention = shape.layers * 4 * sequences * shape.heads * shape.head_size * (context + 1)
    logits = (sequences - 1) * 2 * shape.output_weights
    assert counting.decode(sequences, context).seconds == attention + logits


@pytest.mark.parametrize(("tokens", "context"), [(1, 3), (8, 0), (8, 40)])
def test_a_chunk_attends_to_its_context_and_itself(tokens, context):
    shape, counting = rig(CONFIG)
    # Counted without the mask: a kernel may leave out what the mask hides.
    attention = shape.layers * 4 * tokens * shape.heads * shape.head_size * (context + tokens)
    assert counting.chunk(tokens, context).seconds == attention


# The grid, and where the memory ends.


def survey(measure, rows, columns):
    told = []
    found = Survey(told.append)
    column_axis = None if columns is None else ("context", columns)
    lattice = found.lattice("chunk", ("chunk", rows), column_axis, measure)
    total = len(rows) * len(columns or [0])
    assert told == sorted(told) and told[-1] == total
    return found, lattice


def fitting(most, error=torch.OutOfMemoryError):
    """A device with room for `most` tokens whose times are 1 + row·column."""
    asked = []

    def measure(row, column):
        asked.append((row, column))
        if row * column > most:
            raise error("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return Timed(1.0 + row * column, 0.5)

    return measure, asked


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, RuntimeError, MemoryError])
def test_rows_go_on_with_their_slope_where_the_memory_ends(error):
    measure, asked = fitting(80, error)
    found, lattice = survey(measure, [1, 4, 8, 16, 32], [0, 5, 10, 20, 40])
    assert lattice.rows == [1, 4, 8, 16] and lattice.columns == [0, 5, 10, 20, 40]
    assert lattice.seconds == [[1.0 + row * column for column in lattice.columns] for row in lattice.rows]
    assert [len(row) for row in found.spread["chunk"]] == [5, 4, 3, 2]  # what was measured
    assert len(found.notes) == 4 and "chunk 4 does not fit in memory beyond context 20" in found.notes[0]
    assert "chunk 32" in found.notes[-1] and "ends before it" in found.notes[-1]
    assert (8, 40) not in asked and (32, 10) not in asked  # no larger point than one that did not fit


def test_a_single_axis_ends_where_the_memory_ends():
    measure, _ = fitting(80)
    found, lattice = survey(lambda row, _: measure(row, 10), [1, 4, 8, 16], None)
    assert lattice.rows == [1, 4, 8] and lattice.seconds == [[11.0], [41.0], [81.0]]
    assert found.spread["chunk"] == [0.5, 0.5, 0.5]


def test_a_row_does_not_fall_beyond_the_memory():
    seconds = {0: 3.0, 5: 2.0}

    def measure(row, column):
        if column > 5 and row > 1:
            raise MemoryError
        return Timed(seconds.get(column, 9.0), 0)

    _, lattice = survey(measure, [1, 2], [0, 5, 10])
    assert lattice.seconds[1] == [3.0, 2.0, 2.0]


def test_other_errors_come_back_untouched():
    def measure(row, column):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(RuntimeError, match="illegal"):
        survey(measure, [1, 2], [0, 5])


def test_an_error_of_a_capture_that_ran_out_of_memory_is_one():
    def measure(row, column):
        if row > 2:
            try:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            except RuntimeError:
                raise RuntimeError("operation failed due to a previous error during capture")  # noqa: B904
        return Timed(1, 0)

    _, lattice = survey(measure, [1, 2, 3], [0, 5])
    assert lattice.rows == [1, 2]


def test_a_model_of_which_nothing_fits_is_refused():
    measure, _ = fitting(-1)
    with pytest.raises(iq.ConfigError, match="grids: chunk: no two points of chunk fit"):
        survey(measure, [1, 2], [0, 5])


# The whole.


def calibrated(model=CONFIG, **options):
    return calibrate(model, **{"device": "cpu", "grids": GRIDS, "repetitions": 2, "layers": 2, **options})


@pytest.fixture(scope="module")
def table():
    return calibrated()


def numbers(value):
    return [one for inner in value for one in numbers(inner)] if isinstance(value, tuple) else [value]


def test_a_table_has_the_grids_and_only_positive_times(table):
    assert list(table.linear.tokens) == GRIDS["tokens"]
    assert (list(table.chunk.chunk), list(table.chunk.context)) == (GRIDS["chunk"], GRIDS["context"])
    assert list(table.decode.sequences) == GRIDS["sequences"]
    assert list(table.decode.mean_context) == GRIDS["mean_context"]
    for part in (table.linear, table.chunk, table.decode):
        assert min(numbers(part.seconds)) > 0


def test_the_provenance_says_what_was_timed(table):
    said = table.provenance
    assert "inferq calibrate" in said["source"] and torch.__version__ in said["version"]
    assert len(said["date"]) == 10 and "your own" in said["license"]
    assert said["gpu"] and said["driver"] is None and said["threads"] == 1 and said["dtype"] == "float32"
    assert (said["layers_timed"], said["shape"]["layers"], said["repetitions"]) == (2, 6, 2)
    assert said["cuda_graphs"] is False and said["cold_cache"].startswith("no")
    assert {part: len(numbers(said["spread"][part])) for part in said["spread"]} == {
        "linear": 3,
        "chunk": 6,
        "decode": 6,
    }
    assert min(numbers(tuple(said["spread"].values()))) >= 0
    assert any("gathers" in note for note in said["notes"])
    other = calibrated(cache="contiguous").provenance
    assert "contiguous" in other["attention"] and any("in place" in note for note in other["notes"])


def test_a_written_table_is_read_and_serves(table, tmp_path):
    table.write(tmp_path / "here.parquet")
    again = iq.TimingTable.read(tmp_path / "here.parquet")
    assert again == table and dict(again.provenance) == dict(table.provenance)
    workload = {"arrival_s": [0.0, 0.0], "prompt_tokens": [16, 8], "output_tokens": [3, 3]}
    engine = iq.Engine(timing=again, scheduler=iq.Sarathi(), kv=iq.KvCache.unlimited())
    finish = iq.simulate(workload, engine).requests["finish_s"].to_list()
    first = iq.timing.iteration_s(table, chunks=[(16, 0), (8, 0)])
    second = iq.timing.iteration_s(table, decodes=[16, 8])
    third = iq.timing.iteration_s(table, decodes=[17, 9])
    assert finish == pytest.approx([first + second + third] * 2, rel=1e-12)


def test_a_model_can_be_a_path_a_mapping_or_a_shape(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(MIXTURE), encoding="utf-8")
    for model in (path, str(path), ModelShape.of(MIXTURE)):
        said = calibrated(model, repetitions=1).provenance
        assert said["shape"]["experts"] == 6
        assert any("experts" in note for note in said["notes"])


def test_a_share_of_a_model_says_what_it_lacks():
    said = calibrated(tensor_parallel=2, dtype="bfloat16").provenance
    assert (said["shape"]["heads"], said["shape"]["kv_heads"], said["shape"]["intermediate"]) == (2, 1, 24)
    assert said["dtype"] == "bfloat16"
    assert any("communication" in note for note in said["notes"])


def test_progress_counts_every_point():
    told = []
    calibrated(progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (15, 15) and sorted(told) == told


def test_grids_that_are_not_given_suit_the_device_and_quick_keeps_their_ends():
    full = calibrated(grids=None, repetitions=1)
    quick = calibrated(grids={"tokens": [1, 2]}, quick=True, repetitions=None)
    assert quick.provenance["repetitions"] < 5
    assert list(quick.linear.tokens) == [1, 2]
    for part, axis in (("chunk", "chunk"), ("chunk", "context"), ("decode", "mean_context")):
        points, fewer = getattr(getattr(full, part), axis), getattr(getattr(quick, part), axis)
        assert set(fewer) < set(points) and (fewer[0], fewer[-1]) == (points[0], points[-1])


def test_where_the_memory_ends_so_does_the_grid_and_the_run_goes_on(monkeypatch):
    measured = Rig.decode

    def decode(self, sequences, context):
        if sequences * context > 100:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return measured(self, sequences, context)

    monkeypatch.setattr(Rig, "decode", decode)
    table = calibrated()
    assert list(table.decode.sequences) == [1, 4] and list(table.decode.mean_context) == [0, 20, 64]
    assert "decode: sequences 4 does not fit in memory beyond mean_context 20" in table.provenance["notes"][0]
    assert [len(row) for row in table.provenance["spread"]["decode"]] == [3, 2]


def test_weights_that_do_not_fit_name_the_layers(monkeypatch):
    def draw(self, *shape):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(Rig, "_draw", draw)
    with pytest.raises(
        iq.ConfigError, match="layers: the weights of 2 layers do not fit in the memory of cpu"
    ):
        calibrated()


def test_what_the_host_has_no_room_for_is_not_drawn(monkeypatch):
    """Linux would give the memory, and end the process that uses it."""
    monkeypatch.setattr(survey_module, "room_bytes", lambda: 4 * 20_000)
    with pytest.raises(
        iq.ConfigError, match="layers: the weights of 2 layers do not fit in the memory of cpu"
    ):
        calibrated({**CONFIG, "vocab_size": 400})
    # Keys of 1,008 tokens are 1,008 × 2 × 8 numbers of 4 bytes: one sequence fits, four do not.
    table = calibrated(grids={**GRIDS, "mean_context": [0, 64, 1000]})
    assert "decode: sequences 4 does not fit in memory beyond mean_context 64" in table.provenance["notes"][0]
    table = calibrated(grids={**GRIDS, "chunk": [1, 16, 200]})  # 200 × 264 truth values in each layer
    assert "chunk: chunk 200 does not fit in memory" in table.provenance["notes"][0]
    monkeypatch.setattr(survey_module, "room_bytes", lambda: None)
    assert "memory" not in "".join(calibrated().provenance["notes"])


@pytest.mark.parametrize(
    "sizes", [*SIZES.values(), LayerSizes(16, 4, 2, 8, 12, experts=3)], ids=[*SIZES, "two"]
)
def test_the_matrices_of_a_layer_are_counted(sizes):
    drawn = []

    def draw(*shape):
        drawn.append(shape)
        return torch.zeros(shape)

    Layer(sizes, draw)
    assert sizes.matrix_weights == sum(math.prod(shape) for shape in drawn if len(shape) == 2)


@refused(
    ({"device": "tpu"}, "device: must be 'cuda', 'cuda:N' or 'cpu'"),
    ({"device": "cuda:x"}, "device: must be"),
    ({"device": 3}, "device: must be text"),
    ({"dtype": "int8"}, "dtype: must be one of bfloat16"),
    ({"tensor_parallel": 3}, "tensor_parallel: 3"),
    ({"tensor_parallel": 0}, "tensor_parallel: must be an integer"),
    ({"cache": "flat"}, "cache: must be one of paged, contiguous"),
    ({"layers": 7}, "layers: must be an integer from 1 to 6"),
    ({"repetitions": 0}, "repetitions: must be"),
    ({"quick": 1}, "quick: must be True or False"),
    ({"grids": [1, 2]}, "grids: must be a mapping"),
    ({"grids": {"token": [1, 2]}}, "grids: unknown axis 'token'.*tokens"),
    ({"grids": {"tokens": 5}}, "grids.tokens: must be a list"),
    ({"grids": {"tokens": "12"}}, "grids.tokens: must be a list"),
    ({"grids": {"tokens": [4]}}, "grids.tokens: must have at least two points, ascending"),
    ({"grids": {"context": [0, 8, 8]}}, "grids.context: must have at least two points, ascending"),
    ({"grids": {"chunk": [0, 8]}}, r"grids.chunk\[0\]: must be an integer from 1"),
    ({"grids": {"sequences": [1, 2.5]}}, r"grids.sequences\[1\]: must be an integer"),
    ({"progress": 1}, "progress: must be"),
    ({"model": {"hidden_size": 32}}, "missing"),
)
def test_a_wrong_argument_is_named(options):
    calibrated(**options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_device_that_is_not_there_is_named():
    with pytest.raises(iq.ConfigError, match="device: PyTorch found no CUDA device"):
        calibrated(device="cuda")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
def test_a_table_on_cuda():
    with torch.inference_mode(False):
        table = calibrated(MIXTURE, device="cuda", dtype=None)
    said = table.provenance
    assert (
        said["cuda_graphs"] is True and said["dtype"] == "bfloat16" and said["cold_cache"].startswith("yes")
    )
    assert min(numbers(table.decode.seconds)) > 0


def test_repetitions_that_do_not_agree_are_noted(monkeypatch):
    monkeypatch.setattr(Rig, "chunk", lambda self, chunk, context: Timed(1.0, 0.3 if chunk == 16 else 0.1))
    monkeypatch.setattr(Rig, "decode", lambda self, sequences, context: Timed(1.0, 0.1))
    notes = [note for note in calibrated().provenance["notes"] if "busy" in note and "linear" not in note]
    assert notes == ["chunk: the spread of a point is up to 30%; the machine may have been busy"]


def test_the_spread_is_the_middle_half_over_the_median():
    assert Timed.of([5.0, 1.0, 4.0, 2.0, 3.0]) == Timed(3.0, round(2 / 3, 4))
    assert Timed.of([7.0]) == Timed(7.0, 0.0)


@pytest.mark.parametrize("at", range(len(COMMANDS)))
def test_the_commands_of_the_guide_run_on_a_small_model(at, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    program, name, model, *options = COMMANDS[at].split()
    assert (program, name) == ("inferq", "calibrate") and ModelShape.of(model).layers > 1
    done = CliRunner().invoke(app, [name, "config.json", *options, "--device", "cpu", "--repetitions", "1"])
    assert done.exit_code == 0, done.output


def test_what_is_asked_of_a_cuda_device_is_written_down(monkeypatch):
    class Cuda(HostStopwatch):
        cold = "yes"

        def __init__(self, module, device):
            assert module is torch and device == torch.device("cpu")

    # The processor in the role of the device: all but the stopwatch is the same code.
    monkeypatch.setattr(calibrate_module, "_device", lambda device: ("cuda", "cpu"))
    monkeypatch.setattr(calibrate_module, "CudaStopwatch", Cuda)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA of the test")
    answer = SimpleNamespace(stdout="570.86.10\n570.86.10\n")
    monkeypatch.setattr(calibrate.subprocess, "run", lambda command, **options: answer)
    said = calibrated(device=None, dtype=None, repetitions=None).provenance
    assert (said["gpu"], said["driver"], said["cuda"]) == (
        "NVIDIA of the test",
        "570.86.10",
        torch.version.cuda,
    )
    assert (said["dtype"], said["repetitions"], said["threads"]) == ("bfloat16", 20, None)
    assert said["cuda_graphs"] is True and said["cold_cache"] == "yes"


def test_a_driver_that_nobody_tells_is_unknown(monkeypatch):
    def run(command, **options):
        raise FileNotFoundError(command[0])

    monkeypatch.setattr(calibrate.subprocess, "run", run)
    assert calibrate._driver("cuda") is None


def test_a_slow_machine_is_told_how_to_read_its_seconds(tmp_path, monkeypatch):
    monkeypatch.setattr(Rig, "linear", lambda self, tokens: Timed(3.0 * tokens, 0.0))
    out, config = tmp_path / "here.parquet", tmp_path / "config.json"
    config.write_text(json.dumps(CONFIG), encoding="utf-8")
    command = ["calibrate", str(config), "--out", str(out), "--device", "cpu", "--quick"]
    done = CliRunner().invoke(app, command)
    assert "check_units=False" in done.output and "check_units = false" in done.output
    with pytest.raises(iq.ConfigError, match="check_units=False"):
        iq.TimingTable.read(out)
    assert iq.TimingTable.read(out, check_units=False).linear.seconds[0] == 3.0


def test_an_old_pytorch_is_named(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.4.1+cpu")
    with pytest.raises(iq.ConfigError, match=r"requires PyTorch 2.5 or newer, got 2.4.1\+cpu"):
        calibrated()


def test_the_command_writes_a_table_and_says_how_to_use_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    command = "calibrate config.json --out here.parquet --device cpu --layers 2 --repetitions 1 --quick"
    done = CliRunner().invoke(app, command.split())
    assert done.exit_code == 0, done.output
    table = iq.TimingTable.read("here.parquet")
    assert table.provenance["layers_timed"] == 2
    for text in (
        "2 of 6 layers",
        "spread",
        "1 decode at context",
        "written to here.parquet",
        'TimingTable.read("here',
    ):
        assert text in done.output
    Path("here.toml").write_text(
        """
[workload]
requests = 3
arrivals = { kind = "Poisson", rate = 1.0 }
prompt = { kind = "Lognormal", mean = 20, median = 10, cap = 30 }
output = { kind = "Lognormal", mean = 5, median = 4, cap = 9 }

[engine]
timing = { kind = "TimingTable", file = "here.parquet" }
scheduler = { kind = "Sarathi" }
kv = { tokens = 10000 }
""",
        encoding="utf-8",
    )
    served = CliRunner().invoke(app, ["simulate", "here.toml"])
    assert served.exit_code == 0, served.output
