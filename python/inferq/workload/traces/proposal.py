"""Which columns of a file look like those of a workload, for the error that asks for `columns`."""

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
"""How others call a column, without case, underscores and dots, the likeliest first."""


def likely(names: list[str]) -> dict[str, str]:
    """For each column of a workload the name that looks most like it; those with dots by their last part."""
    plain = {name: re.sub(r"[^a-z0-9]", "", name.rpartition(".")[2].lower()) for name in names}
    found = {}
    for ours, others in _NAMES.items():
        near = [name for other in others for name, word in plain.items() if word == other]
        if near:
            found[ours] = near[0]
    return found


def proposed(source: Source) -> str:
    """The `columns` that would fit a file, to go on with in an error."""
    found = likely(source.columns)
    if not {"prompt_tokens", "output_tokens"} & found.keys():
        return ", as in --columns arrival_s=THEIRS,prompt_tokens=THEIRS,output_tokens=THEIRS (columns={…})"
    pairs = ",".join(f"{ours}={theirs}" for ours, theirs in found.items())
    return f": --columns {pairs} (columns={found!r}) would fit"
