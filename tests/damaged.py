"""Files with something wrong in them: how mutations are drawn, and what must become of a command over one."""

import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TRACEBACK = "INFERQ_TRACEBACK"
"""In the environment: an error that no command foresees shows its traceback, as the fault that it is."""
MOST_SECONDS = 25
MOST_BYTES = 1 << 30

ODD: tuple[Any, ...] = (
    *(
        None,
        True,
        "no",
        "",
        [],
        {},
        -1,
        0,
        1,
        3,
        10**13,
        2**70,
        0.5,
        1e300,
        "\x01",
        "../../x",
        [[]],
        {"a": 1},
    ),
)
"""Values in the place of another."""
WORDS = (
    "",
    "-1",
    "0",
    "1e308",
    "nan",
    "-inf",
    "9" * 40,
    "0.1",
    '"',
    '"x"',
    "true",
    "[]",
    "{}",
    "\x01",
    "2023-01-01",
    ",",
)
"""Words in the place of another."""


def in_bytes(content: bytes, chance: random.Random) -> bytes:
    """A file cut, doubled, with bits turned, with bytes of another or none."""
    at = chance.randrange(len(content) + 1)
    end = min(len(content), at + chance.choice((1, 1, 2, 8, 100)))
    kind = chance.randrange(6)
    if kind == 0:
        return content[:at]
    if kind == 1:
        return content[:at] + content[end:]
    if kind == 2:
        return content[:end] + content[at:]
    if kind == 3 and at < len(content):
        return content[:at] + bytes([content[at] ^ (1 << chance.randrange(8))]) + content[at + 1 :]
    if kind == 4:
        return content[:at] + bytes(chance.randrange(256) for _ in range(end - at)) + content[end:]
    odd = (b"\0", b"\xff\xfe", b"\xed\xa0\x80", b"\x1b[2J", b'"', b"{", b"[" * 3000, b"9" * 5000, b"\r", b"-")
    return content[:at] + chance.choice(odd) + content[at:]


def in_text(text: str, kind: str, chance: random.Random) -> bytes:
    """A text of lines or of JSON in which one value is another, or a line is gone, doubled or elsewhere."""
    lines = text.splitlines(keepends=True)
    at = chance.randrange(len(lines))
    if kind in (".json", ".jsonl") and chance.random() < 0.8:
        if kind == ".json":
            return json.dumps(in_json(json.loads(text), chance)).encode()
        lines[at] = json.dumps(in_json(json.loads(lines[at]), chance)) + "\n"
    elif chance.random() < 0.7:
        values = list(re.finditer(r"[^,=\s\[\]{}]+", lines[at])) or [re.match("", "")]
        begin, end = chance.choice([value.span() for value in values if value])
        lines[at] = lines[at][:begin] + chance.choice(WORDS) + lines[at][end:]
    else:
        lines.insert(chance.randrange(len(lines)), lines[at] if chance.random() < 0.5 else lines.pop(at))
    return "".join(lines).encode()


def in_json(value: Any, chance: random.Random) -> Any:
    """A value in which one field is another, is gone, or is there under another name."""
    places = list(_places(value, ()))
    path = chance.choice(places)
    return _changed(value, path, chance)


def _places(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, one in inner:
        yield (*path, name)
        yield from _places(one, (*path, name))
    if not path:
        yield path


def _changed(value: Any, path: tuple[Any, ...], chance: random.Random) -> Any:
    if not path:
        return chance.choice([one for one in ODD if json.dumps(one) != json.dumps(value)])
    name, *rest = path
    whole: Any = dict(value) if isinstance(value, dict) else list(value)
    kind = chance.randrange(8)
    if rest or kind > 2:
        whole[name] = _changed(value[name], tuple(rest), chance)
    elif kind == 0:
        del whole[name]
    elif isinstance(whole, dict):
        whole[f"{name}_"] = whole.pop(name) if kind == 1 else whole[name]
    else:
        whole.insert(name, whole[name])
    return whole


@dataclass(frozen=True)
class Ended:
    """How a process ended."""

    status: int | None
    said: str
    seconds: float
    most_bytes: int

    @property
    def fault(self) -> str:
        """What is wrong with that; empty where nothing is."""
        if self.status is None:
            return "hangs"
        if self.status < 0:
            return f"is ended by signal {-self.status}"
        if "Traceback (most recent" in self.said or "panicked" in self.said:
            return "shows a traceback or a panic"
        if self.status not in (0, 1, 2):
            return f"ends with {self.status}"
        if self.status == 2 and not self.said.strip().splitlines()[-1:]:
            return "says nothing"
        if self.seconds > 10:
            return f"takes {self.seconds:.0f} s"
        if self.most_bytes > MOST_BYTES:
            return f"takes {self.most_bytes >> 20} MiB"
        return ""


def bounded() -> None:
    """Bounds on time and memory of this process, above those that are a fault."""
    resource.setrlimit(resource.RLIMIT_CPU, (2 * MOST_SECONDS, 2 * MOST_SECONDS))
    resource.setrlimit(resource.RLIMIT_DATA, (2 * MOST_BYTES, 2 * MOST_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def ended(arguments: list[str], folder: Path) -> Ended:
    """A command in a process of its own, with bounds on time and memory."""
    environment = {**os.environ, "POLARS_MAX_THREADS": "2", "PYTHONDONTWRITEBYTECODE": "1", TRACEBACK: "1"}
    with (folder / "said.txt").open("w+b") as said:
        process = subprocess.Popen(
            arguments, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said, cwd=folder,
            env=environment, preexec_fn=bounded,
        )  # fmt: skip
        used, status = waited(process.pid)
        process.returncode = status
        said.seek(0)
        text = said.read().decode("utf-8", "replace")
    return Ended(status, text, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024)


def waited(child: int, most_seconds: float = 4 * MOST_SECONDS) -> tuple[Any, int | None]:
    """What a process used, and its status; None where it had to be ended."""
    # Of a loaded machine a process gets little: its own time is bounded where it begins.
    killed = threading.Timer(most_seconds, os.kill, (child, signal.SIGKILL))
    killed.start()
    try:
        _, status, used = os.wait4(child, 0)
    finally:
        late = not killed.is_alive()
        killed.cancel()
    code = os.waitstatus_to_exitcode(status)
    return used, None if late and code == -9 else code


def command(*arguments: object) -> list[str]:
    """A command line of inferq."""
    return [sys.executable, "-m", "inferq.cli", *map(str, arguments)]
