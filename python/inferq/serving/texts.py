"""Texts and tokens: how many tokens a prompt has, which they are, and words for the answers."""

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
"""Different words in answers."""
_TOKENS_LOOKED_AT = 50_000


class Texts(Protocol):
    """Takes texts apart, and has words that are one token each, also behind one another."""

    words: list[str]

    def ids(self, text: str) -> list[int]:
        """The tokens of a text, by numbers: two are the same iff their texts are."""
        ...


class Characters:
    """So many characters are a token: a stated ratio, where no tokenizer is at hand."""

    def __init__(self, per_token: int) -> None:
        """Take the number of characters, 1 or above."""
        self._size = whole("characters_per_token", per_token, 1, 1024)
        letters = "abcdefghijklmnopqrstuvwxyz"

        def word(number: int) -> str:
            size = self._size - 1
            spelled = "".join(letters[(number // 26**place) % 26] for place in range(size))
            return f" {spelled}" if size else letters[number % 26]

        self.words = [word(number) for number in range(_WORDS)]

    def ids(self, text: str) -> list[int]:
        """Each piece of so many characters is a token; the last may be shorter."""
        size = self._size
        pieces = (text[at : at + size] for at in range(0, len(text), size))
        return [_number(piece.encode()) for piece in pieces]


def _number(piece: bytes) -> int:
    """A number for a piece: itself, or where it is too long a hash."""
    short = piece if len(piece) < 8 else blake2b(piece, digest_size=7).digest() + b"\x7f"
    return int.from_bytes(short, "little")


class Tokenizer:
    """Tokens as a `tokenizer.json` has them, without special tokens or chat template.

    Args:
        path: the file, or a folder with a `tokenizer.json` in it.

    Raises:
        ConfigError: no such file, or one in which no words are found that stay one token side by side.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        place = os.path.join(path, "tokenizer.json") if os.path.isdir(path) else path
        self._file = TokenizerFile(place)
        self.words = self._found()

    def ids(self, text: str) -> list[int]:
        """The tokens of a text."""
        return self._file.ids(text)

    def _found(self) -> list[str]:
        """Words of a space and letters, each one token, in any order."""
        spelled = self._file.spelled(_TOKENS_LOOKED_AT)
        texts = (text if text.startswith(" ") else f" {text}" for text in spelled)
        plain = (text for text in texts if len(text) > 2 and text[1:].isascii() and text[1:].isalpha())
        found = list(islice((text for text in plain if len(self.ids(text)) == 1), _WORDS))
        if not found or len(self.ids("".join(found[::-1] + found))) != 2 * len(found):
            raise ConfigError(
                "tokenizer", "has no words of a space and letters that are one token each in any text"
            )
        return found


def packed(ids: list[int]) -> bytes:
    """Tokens as bytes, eight each."""
    return array("q", ids).tobytes()


class Vocabulary:
    """The words of all answers: they depend on the request and their place alone.

    Args:
        texts: has the words.
    """

    def __init__(self, texts: Texts) -> None:
        self.words = [word.encode() for word in texts.words]
        self._ids = [texts.ids(word)[0] for word in texts.words]

    def word(self, request: int, place: int) -> bytes:
        """A word of an answer."""
        return self.words[self._at(request, place)]

    def ids(self, request: int, tokens: int) -> list[int]:
        """The tokens of an answer."""
        return [self._ids[self._at(request, place)] for place in range(tokens)]

    def _at(self, request: int, place: int) -> int:
        return (request * 2_654_435_761 + (place + 1) * (place * 40_503 + 7_919)) % len(self.words)
