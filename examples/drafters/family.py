"""What the scripts of this folder share: one family of drafters on one target, compiled and shown at work.

Run them in the repository: the target is the one that `make demo` fetches, and `models/` holds drafters for it. Those
that are not stored there are trained first, for a few minutes, and so are poor. The back end is eager unless told
(`--backend inductor`), so what counts here are tokens a step, not seconds.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import specc

TARGET = "demo/SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL, EAGLE3 = "models/smollm2-drafter", "models/smollm2-eagle3"
PROMPTS = (
    "Why is the sky blue?",
    "List five animals that live in the sea, with a sentence on each.",
    "Write the numbers from one to ten as words, then write them again.",
)


class Family:
    """A family of drafters.

    Args:
        drafter: as `specc compile` takes it.
        train: what `specc train` makes instead, where nothing is stored: `medusa`, `eagle`.
        options: of `specc.compile`.
    """

    def __init__(self, drafter: str = "", train: str = "", **options: Any) -> None:
        self.drafter, self.train, self.options = drafter, train, options

    def find(self, given: argparse.Namespace) -> str:
        """The drafter: the one given, the stored one, or one that is trained for it now."""
        if given.drafter or not self.train:
            return str(given.drafter or self.drafter)
        folder = given.engines / "trained" / self.train
        if not (folder / "config.json").exists():
            command = [sys.executable, "-m", "specc", "train", self.train, given.target, "-o", str(folder)]
            subprocess.run([*command, "--minutes", str(given.minutes)], check=True)
        return f"{self.train}:{folder}"

    def row(self, name: str, given: argparse.Namespace) -> tuple[str, ...]:
        """Compile it, write a text with and without it, and tell what it did."""
        drafter, options = self.find(given), {"backend": given.backend, "fixed": True, **self.options}
        engine = specc.load(specc.compile(given.target, drafter, given.engines / name, quiet=False, **options))
        same, tokens, steps, accepted, drafted = True, 0, 0, 0, 0
        for prompt in PROMPTS:
            ids = engine.chat(prompt) if engine.has_chat_template else engine.encode(prompt)
            fast, plain = (engine.generate(ids, max_new_tokens=given.tokens, draft_length=k) for k in (None, 0))
            same = same and fast.token_ids == plain.token_ids
            tokens, steps = tokens + fast.stats.tokens, steps + fast.stats.steps
            accepted, drafted = accepted + fast.stats.accepted, drafted + fast.stats.drafted
        text = "the target's" if same else "ANOTHER: see specc verify"
        return name, drafter, f"{tokens / steps:.2f}", f"{accepted / max(1, drafted):.0%}", text

    def main(self, script: str) -> None:
        """Run it as a script."""
        show({Path(script).stem: self}, arguments(sys.modules["__main__"].__doc__ or "", drafter=True))


def arguments(about: str, drafter: bool) -> argparse.Namespace:
    """What the command line says; `drafter`, whether it may name another one."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("--target", default=TARGET)
    parser.add_argument("--engines", type=Path, default=Path("demo/drafters"), help="folder for what is made")
    parser.add_argument("--backend", default="eager")
    parser.add_argument("--minutes", type=int, default=5, help="to train what has to be trained")
    parser.add_argument("--tokens", type=int, default=48)
    if drafter:
        parser.add_argument("--drafter", help="another one, as specc compile takes it")
    else:
        parser.set_defaults(drafter=None)
        parser.add_argument("names", nargs="*", help="scripts of this folder (default: all)")
    return parser.parse_args()


def show(families: dict[str, Family], given: argparse.Namespace, names: Sequence[str] = ()) -> None:
    """A table with a row for each family."""
    table = Table(title=given.target)
    for column in ("family", "drafter", "tokens a step", "taken of what was drafted", "greedy text"):
        table.add_column(column)
    for name in names or families:
        table.add_row(*families[name].row(name, given))
    Console(width=120).print(table)
