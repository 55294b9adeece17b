"""Every family of drafters on one target, in one table: `python examples/drafters [NAME ...]`."""

from __future__ import annotations

import importlib
from pathlib import Path

from family import Family, arguments, show

SHARED = ("__main__", "family")


def families() -> dict[str, Family]:
    """The families of this folder by the names of their scripts."""
    names = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem not in SHARED)
    return {name: importlib.import_module(name).FAMILY for name in names}


if __name__ == "__main__":
    found, given = families(), arguments(__doc__, drafter=False)
    unknown = set(given.names) - set(found)
    if unknown:
        raise SystemExit(f"no such script here: {', '.join(sorted(unknown))}; there are {', '.join(found)}")
    show(found, given, given.names)
