"""Token counters for texts: a tokenizer or a ratio of tokens to words."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from inferq.checks import positive
from inferq.errors import ConfigError
from inferq.inputs import hushed, is_panic, path_of, read_bytes

_BATCH_TEXTS = 4096
_MOST_BYTES = 256 << 20
"""Maximum size of a tokenizer file; large ones have 30 MB."""


class Counter(Protocol):
    """Token counter that describes its method."""

    def count(self, texts: list[str]) -> list[int]:
        """Return the tokens of each text."""
        ...

    def to_json(self) -> dict[str, Any]:
        """Return the method for the metadata of the workload."""
        ...


class WordRatio:
    """Token counts as words (separated by white space) times a ratio, rounded half to even.

    A text with a word has at least one token.
    """

    def __init__(self, tokens_per_word: object) -> None:
        """Check the ratio, a positive number."""
        self._ratio = positive("tokens_per_word", tokens_per_word)

    def count(self, texts: list[str]) -> list[int]:
        """Return the tokens of each text."""
        return [max(1, round(words * self._ratio)) if (words := len(text.split())) else 0 for text in texts]

    def to_json(self) -> dict[str, Any]:
        """Return the ratio."""
        return {"tokens_per_word": self._ratio}


class TokenizerFile:
    """Token counts of a `tokenizer.json`, without special tokens or chat template."""

    def __init__(self, path: object) -> None:
        """Load the file."""
        place = path_of("tokenizer", path, "tokenizer.json")
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise ConfigError(
                "tokenizer", "requires the tokenizers library: pip install inferq[tokenizers]"
            ) from None
        try:
            data = read_bytes(place, partial(ConfigError, f"tokenizer: {path}"), _MOST_BYTES)
        except OSError as error:
            raise ConfigError("tokenizer", f"{path}: {error.strerror or error}") from error
        self._path = path
        self._tokenizer = self._called(
            hushed()(lambda: Tokenizer.from_buffer(data)), "is not a tokenizer file"
        )
        # The file may configure truncation and padding, which would falsify counts.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._described = {"tokenizer": str(path), "tokenizer_sha256": hashlib.sha256(data).hexdigest()}

    def count(self, texts: list[str]) -> list[int]:
        """Return the tokens of each text."""
        counts: list[int] = []
        for start in range(0, len(texts), _BATCH_TEXTS):
            batch = texts[start : start + _BATCH_TEXTS]
            encodings = self._called(
                hushed()(partial(self._tokenizer.encode_batch, batch, add_special_tokens=False)),
                "cannot count the tokens of a text",
            )
            counts.extend(len(encoding.ids) for encoding in encodings)
        return counts

    def ids(self, text: str) -> list[int]:
        """Return the token ids of a text."""
        encode = partial(self._tokenizer.encode, text, add_special_tokens=False)
        ids: list[int] = self._called(encode, "cannot count the tokens of a text").ids
        return ids

    def spelled(self, most: int) -> list[str]:
        """Return the texts of the first `most` tokens."""
        decode = self._tokenizer.decode
        return [decode([token]) for token in range(min(self._tokenizer.get_vocab_size(), most))]

    def _called(self, call: Callable[[], Any], fails: str) -> Any:
        """Call the library. It raises bare exceptions, and panics on damaged files."""
        try:
            return call()
        except BaseException as error:
            if not isinstance(error, Exception) and not is_panic(error):
                raise
            message = " ".join(str(error).split()) or type(error).__name__
            raise ConfigError("tokenizer", f"{self._path}: {fails}: {message}") from None

    def to_json(self) -> dict[str, Any]:
        """Return the file and its SHA-256."""
        return dict(self._described)


def counter(tokenizer: object, tokens_per_word: object) -> Counter | None:
    """Return the counter for two arguments of `read_trace`; None if both are None."""
    if tokenizer is not None and tokens_per_word is not None:
        raise ConfigError("tokenizer, tokens_per_word: cannot be combined; set one of the two")
    if tokenizer is not None:
        return TokenizerFile(tokenizer)
    return None if tokens_per_word is None else WordRatio(tokens_per_word)
