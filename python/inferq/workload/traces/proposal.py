"""Likely matches between columns of a file and of a workload, for readers and errors."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inferq.workload.traces.source import Source

_NAMES = {
    "arrival_s": (
        *("arrivals", "arrivaltime", "arrivedat", "arrived", "requesttime", "requestedat", "starttime"),
        *(
            "startedat",
            "start",
            "timestamp",
            "ts",
            "datetime",
            "time",
            "createdat",
            "date",
            "created",
            "when",
            "t",
        ),
    ),
    "prompt_tokens": (
        *("prompttokens", "inputtokens", "inputlen", "inputlens", "inputlength", "promptlen", "promptlength"),
        *("numinputtokens", "numprompttokens", "numprefilltokens", "contexttokens", "requesttokens", "isl"),
        *("prompttokencount", "inputtokencount", "tokensin", "nprompttokens", "inputsequencelength"),
    ),
    "output_tokens": (
        *("outputtokens", "completiontokens", "generatedtokens", "outputlen", "outputlens", "outputlength"),
        *("responsetokens", "numoutputtokens", "numgeneratedtokens", "numdecodetokens", "gentokens", "osl"),
        *(
            "completiontokencount",
            "outputtokencount",
            "tokensout",
            "completionlength",
            "outputsequencelength",
        ),
    ),
    "session_id": ("sessionid", "conversationid", "chatid", "session", "conversation", "threadid"),
    "turn": ("turn", "turnindex", "turnid", "round"),
}
"""Common names of columns, in lower case without separators, most likely first."""


def likely(names: list[str]) -> dict[str, str]:
    """Return the most likely name for each column of a workload. Only the part after the last dot counts."""
    plain = {name: re.sub(r"[^a-z0-9]", "", name.rpartition(".")[2].lower()) for name in names}
    likely_names = {}
    for column, common in _NAMES.items():
        matches = [name for known in common for name, word in plain.items() if word == known]
        if matches:
            likely_names[column] = matches[0]
    return likely_names


def proposed(source: Source) -> str:
    """Return a proposal of `columns` for a file, as the end of an error."""
    matches = likely(source.columns)
    if not {"prompt_tokens", "output_tokens"} & matches.keys():
        return ", as in --columns arrival_s=NAME,prompt_tokens=NAME,output_tokens=NAME (columns={…})"
    pairs = ",".join(f"{column}={name}" for column, name in matches.items())
    return f": try --columns {pairs} (columns={matches!r})"
