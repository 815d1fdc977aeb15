"""Tokenization of prompts, and words for answers."""

from __future__ import annotations

import os
from array import array
from hashlib import blake2b
from itertools import islice
from typing import Protocol

from inferq.checks import whole
from inferq.errors import ConfigError
from inferq.workload.traces.token_counters import TokenizerFile

_WORDS = 256
"""Number of distinct words in answers."""
_TOKENS_LOOKED_AT = 50_000


class Texts(Protocol):
    """A tokenizer with words that are one token each, also in sequence."""

    words: list[str]
    token_characters: int | None
    """Upper limit of characters per token; None if unknown."""

    def ids(self, text: str) -> list[int]:
        """Tokens of a text as numbers, equal if and only if their texts are equal."""
        ...


class Characters:
    """A fixed number of characters per token, if there is no tokenizer."""

    def __init__(self, per_token: int) -> None:
        """Set the number of characters, at least 1."""
        self._size = whole("characters_per_token", per_token, 1, 1024)
        self.token_characters: int | None = self._size
        letters = "abcdefghijklmnopqrstuvwxyz"

        def word(number: int) -> str:
            size = self._size - 1
            spelled = "".join(letters[(number // 26**place) % 26] for place in range(size))
            return f" {spelled}" if size else letters[number % 26]

        self.words = [word(number) for number in range(_WORDS)]

    def ids(self, text: str) -> list[int]:
        """Split a text into pieces of the fixed length; the last may be shorter."""
        size = self._size
        pieces = (text[at : at + size] for at in range(0, len(text), size))
        return [_number(piece.encode()) for piece in pieces]


def _number(piece: bytes) -> int:
    """The number of a piece: its bytes, or a hash if it is long."""
    short = piece if len(piece) < 8 else blake2b(piece, digest_size=7).digest() + b"\x7f"
    return int.from_bytes(short, "little")


class Tokenizer:
    """The tokenizer of a `tokenizer.json`, without special tokens or chat template.

    Args:
        path: the file, or a directory that contains it.

    Raises:
        ConfigError: the file does not exist, or it has no words that remain single tokens in sequence.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        place = os.path.join(path, "tokenizer.json") if os.path.isdir(path) else path
        self._file = TokenizerFile(place)
        self.token_characters: int | None = None  # normalizers and unknown words have no limit
        self.words = self._single_token_words()

    def ids(self, text: str) -> list[int]:
        """Tokens of a text."""
        return self._file.ids(text)

    def _single_token_words(self) -> list[str]:
        """Words (a space and letters) that are single tokens in any order."""
        spelled = self._file.spelled(_TOKENS_LOOKED_AT)
        texts = (text if text.startswith(" ") else f" {text}" for text in spelled)
        plain = (text for text in texts if len(text) > 2 and text[1:].isascii() and text[1:].isalpha())
        words = list(islice((text for text in plain if len(self.ids(text)) == 1), _WORDS))
        if not words or len(self.ids("".join(words[::-1] + words))) != 2 * len(words):
            raise ConfigError(
                "tokenizer", "has no words of a space and letters that are single tokens in any text"
            )
        return words


def packed(ids: list[int]) -> bytes:
    """Tokens as bytes, eight per token."""
    return array("q", ids).tobytes()


class Vocabulary:
    """The words of answers, a function of the request and the position.

    Args:
        texts: source of the words.
    """

    def __init__(self, texts: Texts) -> None:
        self.words = [word.encode() for word in texts.words]
        self._ids = [texts.ids(word)[0] for word in texts.words]

    def word(self, request: int, place: int) -> bytes:
        """The word of an answer at a position."""
        return self.words[self._at(request, place)]

    def ids(self, request: int, tokens: int) -> list[int]:
        """Tokens of an answer."""
        return [self._ids[self._at(request, place)] for place in range(tokens)]

    def _at(self, request: int, place: int) -> int:
        return (request * 2_654_435_761 + (place + 1) * (place * 40_503 + 7_919)) % len(self.words)
