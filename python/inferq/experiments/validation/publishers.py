"""Tables of publishers with their own columns, read as measured runs.

| table | detected by | rows |
|---|---|---|
| InferenceX | `isl`, `osl`, `precision_weights` | closed loops, one row per point |
| llm-d guides | `replicas`, `precision_weights`, `prompts_per_group` | open loops, one row per stage |

InferenceX: `concurrency` users, who all start together, send `requests` requests of random tokens in total.
With `uniform 80-100 %`, each length is an integer between 80 and 100 % of the nominal length, all with equal
probability. Before the measurement each user sends two warm-up requests. The measurement starts with an idle
server, and random prompts share no prefix, so the warm-up is not simulated.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Mapping

_INFERENCEX = frozenset(("isl", "osl", "precision_weights"))
_LLM_D = frozenset(("replicas", "precision_weights", "prompts_per_group"))
_UNIFORM = re.compile(r"uniform (\d+)-(\d+) %")
_FLAG = re.compile(r"(seats|budget|memory|prefix_cache|async|stream) (.+)")
_CHOICES = re.compile(r" or |\|")
"""Separators of alternatives in a script that depends on further settings."""
_SAME = ("engine", "model", "gpu", "tp", "pp", "ep", "concurrency", "disaggregated", "doubt", "fold")
_MEASURED = ("ttft_mean_s", "tpot_mean_s")


def translated(cells: Mapping[str, str]) -> tuple[Mapping[str, str], Mapping[str, str] | None]:
    """Return the cells of a row in the columns of a measured run, and the reasons for uncertain ones.

    Args:
        cells: texts by column; the columns show the publisher.

    Returns:
        Texts by column of `MeasuredRun`, and for each setting that the publisher does not state exactly the
        reason for the value used. A row of another table is returned unchanged, with None.
    """
    present = frozenset(cells)
    texts = {name: (text or "").strip() for name, text in cells.items()}
    if present >= _INFERENCEX:
        return _inferencex(texts)
    if present >= _LLM_D:
        return _llm_d(texts), {}
    return cells, None


def _inferencex(row: Mapping[str, str]) -> tuple[Mapping[str, str], Mapping[str, str]]:
    uncertain: dict[str, str] = {}
    cells = {name: row.get(name, "") for name in _SAME} | {name: row.get(name, "") for name in _MEASURED}
    cells |= {
        "id": row.get("where", ""),
        "source": row.get("publisher", ""),
        "engine_version": row.get("release", ""),
        "dtype": _weights(row.get("model", ""), row.get("precision_weights", "")),
        "kv_dtype": row.get("precision_kv", "").partition(" ")[0].replace("unknown", ""),
        "dp": row.get("attention_dp", ""),
        "speculation": row.get("spec", ""),
        "arrival": "closed loop",
        "n_requests": row.get("requests", ""),
    }
    if row.get("release_assumed"):
        uncertain["engine_version"] = f"release from the {row['release_assumed']}"
    for side, nominal in (("input", row.get("isl", "")), ("output", row.get("osl", ""))):
        law, mean = _lengths(row.get("length_law", ""), nominal)
        cells |= {f"{side}_law": law + (", ignore_eos" if side == "output" else ""), f"{side}_mean": mean}
    per_gpu, gpus = row.get("out_tok_s_per_gpu_derived", ""), row.get("gpus", "")
    if _is_number(per_gpu) and _is_number(gpus):
        cells["out_tok_s"] = f"{float(per_gpu) * float(gpus):.6g}"
    return cells | _flags(row, uncertain), uncertain


def _number(text: str) -> str:
    """The text if it is a number and not 0, else an empty text."""
    return text if _is_number(text) and float(text) else ""


def _is_number(text: str) -> bool:
    return re.fullmatch(r"\d+(\.\d+)?", text) is not None


def _weights(model: str, precision: str) -> str:
    """The weight format; `fp4` is the format of the checkpoint."""
    if precision == "fp4":
        return "mxfp4" if "gpt-oss" in model.lower() else "nvfp4"
    return precision


def _lengths(law: str, nominal: str) -> tuple[str, str]:
    """The distribution and the mean of lengths around a nominal length."""
    match = _UNIFORM.fullmatch(law)
    if match is None or not nominal.isdigit():
        return law, nominal
    # The benchmark client draws integers from int(nominal · ratio) to nominal, both included.
    low, high = (int(nominal) * int(share) // 100 for share in match.groups())
    return f"uniform {low}-{high}", f"{(low + high) / 2:g}"


def _flags(row: Mapping[str, str], uncertain: dict[str, str]) -> dict[str, str]:
    """The settings in `server_flags`: `seats $CONC; budget 8192; memory 0.9; … (commit:script)`."""
    columns = {"seats": "max_num_seqs", "budget": "max_num_batched_tokens", "memory": "gpu_mem_util"}
    variables = {"CONC": row.get("concurrency", ""), "ISL": row.get("isl", ""), "OSL": row.get("osl", "")}
    cells: dict[str, str] = {}
    text = re.sub(r"\s*\([0-9a-f]{12}:[^()]*\)$", "", row.get("server_flags", ""))
    for flag in filter(None, text.split("; ")):
        match = _FLAG.fullmatch(flag.strip())
        if match is None:
            uncertain["server_flags"] = f"{flag!r} is not understood and ignored"
            continue
        name, value = match.groups()
        if name == "prefix_cache":
            cells["prefix_cache"] = "none" if value == "off" else ""
        elif name == "async":
            cells["async_scheduling"] = "1" if value == "on" else "0"
        elif name == "stream":
            uncertain["stream_interval"] = f"{value} tokens per stream event in the run, not supported"
        else:
            first = _CHOICES.split(value)[0]
            number = _value(first, variables)
            if number is not None:
                cells[columns[name]] = f"{number:g}" if name == "memory" else f"{int(number)}"
            if number is None or first != value:
                reason = "the first is used" if number is not None else "not known"
                uncertain[columns[name]] = f"{value!r} in the server's script; {reason}"
    return cells


_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
}


def _value(text: str, variables: Mapping[str, str]) -> float | None:
    """The value of a number or of shell arithmetic such as `$((ISL * 2))`; None: not known."""
    for name, value in variables.items():
        text = re.sub(rf"\$?\b{name}\b", value, text)
    match = re.fullmatch(r"\$\(\((.*)\)\)", text.strip())
    expression = (match[1] if match else text).strip()
    if re.fullmatch(r"[0-9.+*/() -]{1,80}", expression) is None:
        return None
    try:
        return _arithmetic(ast.parse(expression, mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError):
        return None


def _arithmetic(node: ast.expr) -> float:
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return float(_OPERATORS[type(node.op)](_arithmetic(node.left), _arithmetic(node.right)))
    raise ValueError(ast.dump(node))


def _llm_d(row: Mapping[str, str]) -> Mapping[str, str]:
    """A stage of a load ladder: groups of prompts that share a system prompt."""
    same = ("id", "source", "model", "gpu", "tp", "engine", "replicas", "gpu_mem_util", "fold")
    load = ("rate_rps", "concurrency", "duration_s", "n_requests", "failures")
    measured = [name for name in row if re.fullmatch(r"(ttft|tpot|e2e)_(mean|p50|p90|p95|p99)_s", name)]
    # Rows of whole ladders have ranges such as 3-60 in these columns.
    cells = {name: row.get(name, "") for name in same}
    cells |= {name: _number(row.get(name, "")) for name in (*load, *measured, "req_s", "out_tok_s")}
    cells |= {
        "engine_version": row.get("release", ""),
        "dtype": _weights(row.get("model", ""), row.get("precision_weights", "")),
        "dp": row.get("decode_dp", ""),
        "ep": row.get("decode_ep", ""),
        "disaggregated": "1" if row.get("prefill_workers") else "",
        "kv_offload": "" if row.get("offload") == "none" else row.get("offload", ""),
        "arrival": row.get("arrival", ""),
        "speculation": row.get("spec", ""),
    }
    groups, each = row.get("prefix_groups", ""), row.get("prompts_per_group", "")
    shared, own = row.get("system_prompt_tokens", ""), row.get("question_tokens", "")
    if all(number.isdigit() for number in (groups, each, shared, own)):
        prompts = int(groups) * int(each)
        cells["input_law"] = f"{prompts} fixed prompts in rotation: {shared} shared by {each} + {own} own"
        cells["input_mean"] = f"{int(shared) + int(own)}"
    if row.get("output_tokens"):
        cells |= {"output_law": "fixed", "output_mean": row["output_tokens"]}
    if row.get("scope") not in ("", "stage"):
        cells["doubt"] = f"metrics of a whole {row['scope']}"
    return cells
