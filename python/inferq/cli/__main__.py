"""The command line, for `python -m inferq.cli`."""

from inferq.cli import app

app(prog_name="inferq")
