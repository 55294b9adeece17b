"""specc: a compiler for speculative decoding.

`specc.compile(target, drafter, output)` writes an engine; `specc.load(path)` runs one, and
`specc.verify(path)` checks that it keeps its promises. The names load on first use, so that `import specc.runtime`
brings in neither transformers nor the passes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["__version__", "compile", "load", "verify"]

if TYPE_CHECKING:
    from .driver import compile
    from .runtime import load
    from .verifier import verify


def __getattr__(name: str) -> Any:
    if name == "load":
        from .runtime import load

        return load
    if name == "compile":
        from .driver import compile

        return compile
    if name == "verify":
        from .verifier import verify

        return verify
    raise AttributeError(f"module 'specc' has no attribute {name!r}")
