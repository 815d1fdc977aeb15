r"""The binary archive of the shipped tables: exact times in nanoseconds, and provenance.

    16 bytes    b"inferq.tables.1\n"
    8 bytes     length of the index, a little-endian integer
    index       JSON, compressed with zlib: {"dictionary": "…", "tables": [[…key, offset, 2 lengths], …]}
    blocks      of each table two, at its offset after the index, compressed with zlib: facts and numbers

A key is model, GPU, tensor, expert and data parallelism, backend, format of weights, format of the KV cache.
Facts are JSON, {"sizes": [5 counts], "provenance": {…}}, compressed with the dictionary of the index. Numbers
are little-endian integers of 8 bytes, of which all first bytes precede all second bytes, and so on. Each is
the difference from the one before:

    axes        tokens; tokens and context of chunks; sequences and mean context of decodes (the five sizes)
    times       nanoseconds: linear, chunk by rows, decode by rows, and the part that chunks share
"""

from __future__ import annotations

import json
import os
import sys
import zlib
from array import array
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from inferq.errors import ConfigError
from inferq.files import replacing
from inferq.timing.tables.parts import ChunkPart, DecodePart, Grids, LinearPart
from inferq.timing.tables.provenance import thawed

MAGIC = b"inferq.tables.1\n"
_WIDTH = 8
_NANOSECONDS = 1e9
_LONGEST_DICTIONARY = 32_000
"""zlib looks back 32 KiB."""


class Key(NamedTuple):
    """What a table was measured for."""

    model: str
    gpu: str
    tensor_parallel: int
    expert_parallel: int
    data_parallel: int
    backend: str
    weights: str
    kv_dtype: str

    @property
    def parallelism(self) -> str:
        """Tensor parallelism, with expert and data parallelism if there is any: `8`, `8 (ep 8)`."""
        more = {"ep": self.expert_parallel, "dp": self.data_parallel}
        words = ", ".join(f"{name} {size}" for name, size in more.items() if size != 1)
        return f"{self.tensor_parallel}{f' ({words})' if words else ''}"


class Archive:
    """An archive that is open for reading; blocks are read when they are used.

    Raises:
        ConfigError: the file is not an archive of tables.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        with file.open("rb") as stream:
            if stream.read(len(MAGIC)) != MAGIC:
                raise ConfigError("file", f"{file} is not an archive of tables")
            length = int.from_bytes(stream.read(_WIDTH), "little")
            index = json.loads(zlib.decompress(stream.read(length)))
        start = len(MAGIC) + _WIDTH + length
        self._dictionary = index["dictionary"].encode()
        self._places = {
            Key(*values): (start + offset, facts, numbers)
            for *values, offset, facts, numbers in index["tables"]
        }

    def keys(self) -> tuple[Key, ...]:
        """The keys of all tables, in the order of the file."""
        return tuple(self._places)

    def read(self, key: Key) -> tuple[Grids, dict[str, Any]]:
        """The parts of a table and its provenance."""
        offset, size, numbers = self._places[key]
        facts = self._facts(key)
        with self._file.open("rb") as stream:
            stream.seek(offset + size)
            body = zlib.decompress(stream.read(numbers))
        return _grids(facts["sizes"], _integers(body)), facts["provenance"]

    def provenance(self, key: Key) -> dict[str, Any]:
        """The provenance of a table."""
        provenance: dict[str, Any] = self._facts(key)["provenance"]
        return provenance

    def _facts(self, key: Key) -> dict[str, Any]:
        offset, size, _ = self._places[key]
        with self._file.open("rb") as stream:
            stream.seek(offset)
            unpack = zlib.decompressobj(zdict=self._dictionary)
            facts: dict[str, Any] = json.loads(unpack.decompress(stream.read(size)))
        return facts


def write(file: str | os.PathLike[str], tables: Mapping[Key, tuple[Grids, Mapping[str, Any]]]) -> None:
    """Write an archive atomically.

    Raises:
        ConfigError: a time is not a whole number of nanoseconds.
        OSError: the file cannot be written.
    """
    keys = sorted(tables)
    facts = {
        key: _json({"sizes": [len(axis) for axis in _axes(grids)], "provenance": thawed(provenance)})
        for key, (grids, provenance) in tables.items()
    }
    of_models = {key.model: facts[key] for key in keys}
    dictionary = b"".join(of_models.values()).decode()[-_LONGEST_DICTIONARY:]
    blocks, places, offset = [], [], 0
    for key in keys:
        pack = zlib.compressobj(9, zdict=dictionary.encode())
        packed = pack.compress(facts[key]) + pack.flush()
        numbers = zlib.compress(_bytes(_numbers(tables[key][0])), 9)
        places.append([*key, offset, len(packed), len(numbers)])
        blocks += [packed, numbers]
        offset += len(packed) + len(numbers)
    index = zlib.compress(_json({"dictionary": dictionary, "tables": places}), 9)
    with replacing(file) as place:
        place.write_bytes(b"".join([MAGIC, len(index).to_bytes(_WIDTH, "little"), index, *blocks]))


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=True, separators=(",", ":")).encode()


def _axes(grids: Grids) -> list[Sequence[int]]:
    linear, chunk, decode = grids
    return [linear.tokens, chunk.chunk, chunk.context, decode.sequences, decode.mean_context]


def _numbers(grids: Grids) -> list[int]:
    """The axes, and the times in nanoseconds."""
    linear, chunk, decode = grids
    rows = [linear.seconds, *chunk.seconds, *decode.seconds, [chunk.shared_s]]
    numbers = [number for axis in _axes(grids) for number in axis]
    for seconds in (time_s for row in rows for time_s in row):
        numbers.append(round(seconds * _NANOSECONDS))
        if numbers[-1] / _NANOSECONDS != seconds:
            raise ConfigError("seconds", f"must be whole numbers of nanoseconds, got {seconds!r}")
    return numbers


def _grids(sizes: Sequence[int], numbers: list[int]) -> Grids:
    tokens, chunk, context, sequences, mean_context = sizes
    rest = iter(numbers)

    def axis(size: int) -> list[int]:
        return [next(rest) for _ in range(size)]

    def times(size: int) -> list[float]:
        return [next(rest) / _NANOSECONDS for _ in range(size)]

    axes = [axis(size) for size in sizes]
    linear_s = times(tokens)
    chunk_s = [times(context) for _ in range(chunk)]
    decode_s = [times(mean_context) for _ in range(sequences)]
    return Grids(
        LinearPart(axes[0], linear_s),
        ChunkPart(axes[1], axes[2], chunk_s, shared_s=next(rest) / _NANOSECONDS),
        DecodePart(axes[3], axes[4], decode_s),
    )


def _bytes(numbers: Sequence[int]) -> bytes:
    """Differences as integers, with the bytes of equal significance next to each other."""
    differences = [after - before for before, after in zip([0, *numbers], numbers, strict=False)]
    raw = _little_endian(array("q", differences)).tobytes()
    return b"".join(raw[byte::_WIDTH] for byte in range(_WIDTH))


def _integers(data: bytes) -> list[int]:
    """The inverse of `_bytes`."""
    count = len(data) // _WIDTH
    raw = bytearray(len(data))
    for byte in range(_WIDTH):
        raw[byte::_WIDTH] = data[byte * count : (byte + 1) * count]
    return list(accumulate(_little_endian(array("q", bytes(raw)))))


def _little_endian(numbers: array[int]) -> array[int]:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
