"""Every family of drafters on one target: compile it, write a text with and without it, say what it did.

    python examples/drafters.py demo/SmolLM2-135M-Instruct.Q4_1.gguf                 # all of them
    python examples/drafters.py demo/SmolLM2-135M-Instruct.Q4_1.gguf ngram eagle3    # these
    python examples/drafters.py TARGET medusa=PATH --backend inductor                # with a checkpoint of yours

Run in the repository: the drafters in `models/` are for SmolLM2-135M-Instruct. Those that nobody has stored there,
medusa and eagle, are trained first, for a few minutes and so for a poor one (`--minutes`). The back end is eager unless
told, so what counts here are tokens a step, not seconds.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import specc

SMALL, HEAD = "models/smollm2-drafter", "models/smollm2-eagle3"
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {  # drafter (or what to train), and options of `specc compile`
    "model": (SMALL, {"draft_length": 3}),
    "several": (f"{SMALL}+{SMALL}", {"draft_length": 2}),
    "sampled": (SMALL, {"tree": "3,2", "children": "sampled", "acceptance": "coupled,rejection"}),
    "medusa": ("train medusa", {"tree": "medusa_63"}),
    "eagle": ("train eagle", {"tree": "3,2,1"}),
    "eagle2": ("train eagle", {"tree": "dynamic:16,4,4"}),
    "eagle3": (f"eagle3:{HEAD}", {"tree": "3,1"}),
    "lookahead": ("lookahead:5,4,5", {}),
    "ngram": ("ngram:3,4", {}),
    "self": ("self:8", {"draft_length": 3}),
    "pruned": (SMALL, {"draft_vocab": 2000, "draft_length": 3}),
    "quantised": (SMALL, {"draft_quant": "int8", "draft_length": 3}),
    "combined": (f"ngram,eagle3:{HEAD}", {"tree": "3,1"}),
}
PROMPT = "Write the numbers from one to ten as words, then write them again."


def trained(family: str, target: str, folder: Path, minutes: int) -> str:
    """A drafter for the target, trained if it is not there."""
    if not (folder / family / "config.json").exists():
        command = [sys.executable, "-m", "specc", "train", family, target, "-o", str(folder / family)]
        subprocess.run([*command, "--minutes", str(minutes)], check=True)
    return f"{family}:{folder / family}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target")
    parser.add_argument("families", nargs="*", metavar="FAMILY", help=f"of {', '.join(FAMILIES)}; as FAMILY=PATH")
    parser.add_argument("--engines", type=Path, default=Path("demo/drafters"), help="folder for engines and drafters")
    parser.add_argument("--backend", default="eager")
    parser.add_argument("--minutes", type=int, default=5, help="to train what has to be trained")
    parser.add_argument("--tokens", type=int, default=48)
    given = parser.parse_args()
    table = Table(title=given.target)
    for column in ("family", "drafter", "tokens a step", "acceptance", "greedy text"):
        table.add_column(column)
    for name in given.families or FAMILIES:
        family, _, path = name.partition("=")
        if family not in FAMILIES:
            parser.error(f"{family!r} is not one of {', '.join(FAMILIES)}")
        drafter, options = FAMILIES[family]
        kind = drafter.removeprefix("train ")
        if path:
            drafter = f"{kind}:{path}" if drafter != kind else path
        elif drafter != kind:
            drafter = trained(kind, given.target, given.engines, given.minutes)
        folder = specc.compile(
            given.target, drafter, given.engines / family, quiet=False, backend=given.backend, fixed=True, **options
        )
        engine = specc.load(folder)
        ids = engine.chat(PROMPT) if engine.has_chat_template else engine.encode(PROMPT)
        fast, plain = (engine.generate(ids, max_new_tokens=given.tokens, draft_length=length) for length in (None, 0))
        same = "the target's" if fast.token_ids == plain.token_ids else "ANOTHER: see specc verify"
        stats = fast.stats
        table.add_row(family, drafter, f"{stats.block_efficiency:.2f}", f"{stats.acceptance_rate:.0%}", same)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
