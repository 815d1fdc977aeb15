"""Far more wrong inputs than a night tries, by hand, with the seeds of any night:

    INFERQ_NIGHT=wide python -m tests.scan_inputs 2000

Each is a command in a process that is forked from one which has loaded all there is: no abort, no panic, no
traceback, no hang beyond ten seconds, no gigabyte. A fault is told with the number that draws it again
(`python -m tests.scan_inputs 1 NUMBER`).
"""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
import time
from collections import Counter
from importlib import import_module
from pathlib import Path

from inferq.cli import COMMANDS, app

from .damaged import TRACEBACK, Ended, bounded, waited
from .night import chance
from .wrong_inputs import wrong

EVERY_S = 20.0
"""So often the scan says how far it is."""

PATIENCE_S = 600.0
"""What waits so long is ended: a scan beside all else gets little of the machine."""


def attempt(number: int, folder: Path) -> Ended:
    """Draw a command, and what becomes of it in a process of its own."""
    said = folder / "said.txt"
    child = os.fork()
    if child == 0:
        status = 70
        try:
            with said.open("w") as file, open(os.devnull, "r+b") as null:
                bounded()
                for number_of, stream in ((0, null), (1, null), (2, file)):
                    os.dup2(stream.fileno(), number_of)
                os.chdir(folder)
                arguments = [str(word) for word in wrong(chance(f"input {number}"), folder)]
                (folder / "command.txt").write_text(shlex.join(arguments))
                try:
                    app(arguments, prog_name="inferq")
                except SystemExit as error:
                    status = error.code if isinstance(error.code, int) else 1
        except BaseException:
            import traceback

            said.write_text(traceback.format_exc())
        finally:
            os._exit(status)
    used, status = waited(child)
    return Ended(
        status, said.read_text("utf-8", "replace"), used.ru_utime + used.ru_stime, used.ru_maxrss * 1024
    )


def main() -> None:
    """Try so many, and tell how many had a fault."""
    for command in COMMANDS:
        import_module(f"inferq.cli.{command}")
    os.environ |= {TRACEBACK: "1", "POLARS_MAX_THREADS": "2"}
    count, first = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    faults, ends, told = 0, Counter[str](), time.monotonic()
    for number in range(first, first + count):
        with tempfile.TemporaryDirectory() as folder:
            end = attempt(number, Path(folder))
            line = Path(folder, "command.txt")
            command = line.read_text() if line.exists() else "nothing drawn"
            ends[f"{command.partition(' ')[0]} {end.status}"] += 1
            if end.fault:
                faults += 1
                print(f"FAULT {number}: {end.fault}: {command}\n{end.said[-2000:]}", flush=True)
        if time.monotonic() - told > EVERY_S:
            told = time.monotonic()
            print(f"{number + 1 - first} tried, {faults} with a fault", flush=True)
    print(f"{count} tried, {faults} with a fault: all\n{dict(sorted(ends.items()))}")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
