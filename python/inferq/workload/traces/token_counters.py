"""Token counters for texts: a tokenizer, or a stated ratio; never a guess."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from inferq.checks import positive
from inferq.errors import ConfigError
from inferq.inputs import hushed, is_panic, path_of, read_bytes

_TEXTS_AT_ONCE = 4096
_MOST_BYTES = 256 << 20
"""Of a tokenizer; large ones have 30 million."""


class Counter(Protocol):
    """Counts the tokens of texts, and says how."""

    def count(self, texts: list[str]) -> list[int]:
        """Tokens of each text."""
        ...

    def to_json(self) -> dict[str, Any]:
        """How the tokens were counted, for the metadata of the workload."""
        ...


class WordRatio:
    """Tokens as words (runs of characters without white space) times a ratio, to the nearest whole number.

    A text with a word has at least one token. Halves go to the even number.
    """

    def __init__(self, tokens_per_word: object) -> None:
        """Take the ratio: a number above 0."""
        self._ratio = positive("tokens_per_word", tokens_per_word)

    def count(self, texts: list[str]) -> list[int]:
        """Tokens of each text."""
        return [max(1, round(words * self._ratio)) if (words := len(text.split())) else 0 for text in texts]

    def to_json(self) -> dict[str, Any]:
        """The ratio."""
        return {"tokens_per_word": self._ratio}


class TokenizerFile:
    """Tokens by the `tokenizers` library and a `tokenizer.json`, without special tokens or chat template."""

    def __init__(self, path: object) -> None:
        """Load the file."""
        place = path_of("tokenizer", path, "tokenizer.json")
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise ConfigError(
                "tokenizer", "needs the tokenizers library: pip install inferq[tokenizers]"
            ) from None
        try:
            data = read_bytes(place, partial(ConfigError, f"tokenizer: {path}"), _MOST_BYTES)
        except OSError as error:
            raise ConfigError("tokenizer", f"{path}: {error.strerror or error}") from error
        self._path = path
        self._tokenizer = self._called(hushed()(lambda: Tokenizer.from_buffer(data)), "is no tokenizer file")
        # a file may cut or fill texts to the length of a model; a count must not
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._described = {"tokenizer": str(path), "tokenizer_sha256": hashlib.sha256(data).hexdigest()}

    def count(self, texts: list[str]) -> list[int]:
        """Tokens of each text."""
        counts: list[int] = []
        for start in range(0, len(texts), _TEXTS_AT_ONCE):
            some = texts[start : start + _TEXTS_AT_ONCE]
            batch = self._called(
                hushed()(partial(self._tokenizer.encode_batch, some, add_special_tokens=False)),
                "cannot count the tokens of a text",
            )
            counts.extend(len(encoding.ids) for encoding in batch)
        return counts

    def ids(self, text: str) -> list[int]:
        """The tokens of a text, by their numbers."""
        encode = partial(self._tokenizer.encode, text, add_special_tokens=False)
        ids: list[int] = self._called(encode, "cannot count the tokens of a text").ids
        return ids

    def spelled(self, most: int) -> list[str]:
        """The texts of the first so many tokens."""
        decode = self._tokenizer.decode
        return [decode([token]) for token in range(min(self._tokenizer.get_vocab_size(), most))]

    def _called(self, call: Callable[[], Any], fails: str) -> Any:
        """What the library returns; it raises bare exceptions, and panics where a file is badly wrong."""
        try:
            return call()
        except BaseException as error:
            if not isinstance(error, Exception) and not is_panic(error):
                raise
            said = " ".join(str(error).split()) or type(error).__name__
            raise ConfigError("tokenizer", f"{self._path}: {fails}: {said}") from None

    def to_json(self) -> dict[str, Any]:
        """The file and its SHA-256."""
        return dict(self._described)


def counter(tokenizer: object, tokens_per_word: object) -> Counter | None:
    """The counter that the two arguments of `read_trace` ask for; None when neither is given."""
    if tokenizer is not None and tokens_per_word is not None:
        raise ConfigError("tokenizer, tokens_per_word: give one of the two")
    if tokenizer is not None:
        return TokenizerFile(tokenizer)
    return None if tokens_per_word is None else WordRatio(tokens_per_word)
