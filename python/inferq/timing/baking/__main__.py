"""Bake all shipped tables into the archive of the package: `python -m inferq.timing.baking`."""

from inferq.timing.baking.rebuild import rebuild
from inferq.timing.tables.shipped import ARCHIVE

if __name__ == "__main__":
    rebuild(ARCHIVE)
