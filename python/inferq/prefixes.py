"""With what does each prompt begin that somebody else has said too?

A prompt begins with a chain of contents and goes on with its own. The core knows contents by number and never
sees a token: two prompts begin alike for as long as their chains do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from inferq.errors import TraceError

if TYPE_CHECKING:
    import polars as pl
    from numpy.typing import NDArray

OWN = 1 << 63
"""Added to the number of a row: what that row alone says, the rest of its prompt and its output."""

COLUMNS = ("prefix_hashes", "prefix_parts", "continues", "session_id")
"""The columns that say with what prompts begin."""

Chain = tuple[tuple[int, int], ...]
"""Contents and how many tokens of each."""


def contents(frame: pl.DataFrame) -> dict[str, NDArray[Any]]:
    """The chains of all rows, in the form that the core reads.

    A row says with what its prompt begins in one way at most: `prefix_hashes`, `prefix_parts` or `continues`.
    Where the frame has none of these columns, a turn of a session (`session_id` and `turn`) goes on from the
    turn before it, if its prompt is long enough to begin with that turn's prompt and output: one that is
    shorter has forgotten its beginning.

    Args:
        frame: the requests, canonical.

    Returns:
        `content_start`, one more than rows; `content_id` and `content_tokens`, one for each part of a chain;
        nothing where no prompt begins like another.

    Raises:
        TraceError: naming the row.
    """
    said = [name for name in COLUMNS[:3] if name in frame.columns]
    filled = [name for name in said if frame[name].null_count() < frame.height]
    if len(filled) > 1:
        _only_one(frame, filled)
    if filled == ["prefix_hashes"]:
        return _of_hashes(frame)
    if filled:
        return _flat(_of_rows(frame, filled))
    if not said and "session_id" in frame.columns and "turn" in frame.columns:
        return _flat(_of_links(frame, _before(frame)))
    return {}


def _only_one(frame: pl.DataFrame, names: list[str]) -> None:
    import polars as pl

    told = frame.select(pl.sum_horizontal(pl.col(names).is_not_null()).alias("told"))["told"].to_numpy()
    if (told > 1).any():
        at = int((told > 1).argmax())
        raise TraceError(f"row {at}: {' and '.join(names)} both say with what its prompt begins")


def _of_hashes(frame: pl.DataFrame) -> dict[str, NDArray[Any]]:
    """Every hash is a content of a block's tokens; the last may be a part of a block."""
    import numpy as np

    hashes, block = frame["prefix_hashes"], _block(frame)
    lengths = hashes.list.len().fill_null(0).to_numpy().astype(np.int64)
    prompts = frame["prompt_tokens"].to_numpy().astype(np.int64)
    there = hashes.is_not_null().to_numpy()
    wrong = there & (lengths != -(-prompts // block)) & (lengths != prompts // block)
    if wrong.any():
        at = int(wrong.argmax())
        raise TraceError(
            f"row {at}: has {lengths[at]} prefix_hashes for a prompt of {prompts[at]} tokens; "
            f"blocks of {block} tokens are {-(-prompts[at] // block)}"
        )
    codes = hashes.filter(hashes.list.len() > 0).explode()
    if codes.null_count():
        at = int(hashes.list.contains(None).fill_null(False).to_numpy().argmax())
        raise TraceError(f"row {at}: a null is among its prefix_hashes")
    start = np.concatenate([[0], np.cumsum(lengths)])
    tokens = np.full(int(start[-1]), block, dtype=np.uint32)
    last = start[1:][lengths > 0] - 1
    whole = lengths[lengths > 0]
    tokens[last] = np.minimum(prompts[lengths > 0] - (whole - 1) * block, block)
    return _columns(start, np.unique(codes.to_numpy(), return_inverse=True)[1], tokens)


def _block(frame: pl.DataFrame) -> int:
    """The tokens of a block, which are the same in every row."""
    if "prefix_block_tokens" not in frame.columns:
        raise TraceError(
            "workload: there are prefix_hashes, and no prefix_block_tokens that says of what blocks"
        )
    block, hashes = frame["prefix_block_tokens"], frame["prefix_hashes"]
    missing = (block.is_null() & hashes.is_not_null()).to_numpy()
    if missing.any():
        raise TraceError(f"row {int(missing.argmax())}: has prefix_hashes, and prefix_block_tokens is null")
    first = block.drop_nulls()[0]
    mixed = (block != first).fill_null(False).to_numpy()
    if mixed.any():
        at = int(mixed.argmax())
        raise TraceError(
            f"row {at}: prefix_block_tokens is {block[at]}, and {first} in rows before it; one size for all"
        )
    return int(first)


def _of_rows(frame: pl.DataFrame, names: list[str]) -> list[Chain]:
    """Rows of lists of parts, of hashes, and of earlier rows."""
    texts: dict[object, int] = {}
    chains: list[Chain] = [()] * frame.height
    if "prefix_parts" in names:
        for at, parts in enumerate(frame["prefix_parts"].to_list()):
            if parts is not None:
                chains[at] = _parts(at, parts, frame["prompt_tokens"][at], texts)
    if "prefix_hashes" in names:
        flat = _of_hashes(frame)
        for at in range(frame.height):
            here = slice(int(flat["content_start"][at]), int(flat["content_start"][at + 1]))
            hashes, tokens = flat["content_id"][here].tolist(), flat["content_tokens"][here].tolist()
            if hashes:
                # below 2^62 are hashes, from there on texts
                chains[at] = tuple(zip(hashes, tokens, strict=True))
    if "continues" in names:
        return _of_links(frame, frame["continues"].to_list(), chains, strict=True)
    return chains


def _parts(at: int, parts: Iterable[Any], prompt: int, texts: dict[object, int]) -> Chain:
    chain = []
    for part in parts:
        text, tokens = part.values() if isinstance(part, Mapping) else part
        if text is None:
            raise TraceError(f"row {at}: prefix_parts has {tokens} tokens of an unknown text (null)")
        if tokens is None or tokens < 1:
            raise TraceError(
                f"row {at}: prefix_parts has {tokens} tokens of text {text!r}, must be at least 1"
            )
        chain.append(((1 << 62) | texts.setdefault(text, len(texts)), int(tokens)))
    total = sum(tokens for _, tokens in chain)
    if total > prompt:
        raise TraceError(f"row {at}: prefix_parts has {total} tokens, and prompt_tokens is {prompt}")
    return tuple(chain)


def _before(frame: pl.DataFrame) -> list[int | None]:
    """For each row the row of the same session before it."""
    import polars as pl

    rows = frame.select("session_id", "turn", pl.int_range(pl.len(), dtype=pl.Int64).alias("row"))
    before = rows.with_columns(
        pl.when(pl.col("session_id").is_not_null())
        .then(pl.col("row").shift(1).over("session_id"))
        .alias("before"),
        pl.col("turn").shift(1).over("session_id").alias("last"),
    )
    wrong = (before["before"].is_not_null() & (before["turn"] <= before["last"])).fill_null(False).to_numpy()
    if wrong.any():
        at = int(wrong.argmax())
        session, turn, last = before["session_id"][at], before["turn"][at], before["last"][at]
        raise TraceError(f"row {at}: turn {turn} of session {session!r} comes after its turn {last}")
    found: list[int | None] = before["before"].to_list()
    return found


def _of_links(
    frame: pl.DataFrame, links: list[int | None], chains: list[Chain] | None = None, strict: bool = False
) -> list[Chain]:
    """Rows that begin with the prompt and the output of the row that they are linked to."""
    chains = [()] * frame.height if chains is None else chains
    prompts, outputs = frame["prompt_tokens"].to_list(), frame["output_tokens"].to_list()
    for at, link in enumerate(links):
        if link is None:
            continue
        said = prompts[link] + outputs[link]
        if said > prompts[at]:
            if strict:
                raise TraceError(
                    f"row {at}: continues row {link} with its {said} tokens in a prompt of {prompts[at]}"
                )
            continue
        shared = sum(tokens for _, tokens in chains[link])
        chains[at] = (*chains[link], (OWN | link, said - shared))
    return chains


def _flat(chains: list[Chain]) -> dict[str, NDArray[Any]]:
    import numpy as np

    start = np.concatenate([[0], np.cumsum([len(chain) for chain in chains])])
    parts = [part for chain in chains for part in chain]
    if not parts:
        return {}
    return _columns(
        start,
        np.fromiter((content for content, _ in parts), dtype=np.uint64, count=len(parts)),
        np.fromiter((tokens for _, tokens in parts), dtype=np.uint32, count=len(parts)),
    )


def _columns(start: NDArray[Any], content: NDArray[Any], tokens: NDArray[Any]) -> dict[str, NDArray[Any]]:
    import numpy as np

    return {
        "content_start": start.astype(np.uint64),
        "content_id": content.astype(np.uint64),
        "content_tokens": tokens.astype(np.uint32),
    }
