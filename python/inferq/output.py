"""How is a file written so that an earlier one is lost only once the new one is whole?"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """The name under which to write a file, which takes its place at the end; after an error it is removed.

    Raises:
        OSError: it cannot be written, or cannot take its place.

    Example:
        >>> import pathlib, tempfile
        >>> from inferq.output import replacing
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     page = pathlib.Path(folder) / "page.html"
        ...     with replacing(page) as part:
        ...         characters = part.write_text("whole")
        ...     page.read_text(), part.exists()
        ('whole', False)
    """
    place = Path(path)
    part = place.with_name(f".{place.name}.part")
    try:
        yield part
        part.replace(place)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
