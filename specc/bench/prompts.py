"""The prompts of a bench run: several kinds, because what is easy to guess differs between them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from ..errors import ConfigError


class Prompt(NamedTuple):
    """One prompt; `kind` groups the results."""

    kind: str
    text: str


_HARBOUR = (
    "The harbour of Kelm was built by salt traders who needed a safe place to wait for the spring winds. For two "
    "hundred years its quays were busy from March to October and empty for the rest of the year. When the railway "
    "came, the traders sold their ships and the warehouses stood open to the rain. A school of boat building moved "
    "into the largest of them forty years ago. It began with six pupils and one borrowed lathe. Today ninety people "
    "learn there, the roofs are whole again, and every May the town watches a new boat slide into the water."
)
_BEES = (
    "Bees find their way home by the sun. They see a pattern in the light of the sky that people cannot see, so a "
    "small patch of blue is enough for them on a cloudy day. A bee that has found a good field returns to the hive "
    "and dances on the comb. The angle of the dance tells the others the direction, and its length tells them the "
    "distance. The others follow the dancer in the dark, touching her with their feelers, and then fly out on their "
    "own."
)
_FUNCTION = (
    "def total_price(items, discount):\n"
    "    total = 0\n"
    "    for item in items:\n"
    "        total = total + item.price * item.count\n"
    "    if discount > 0:\n"
    "        total = total - total * discount\n"
    "    return total\n"
)
_LETTER = (
    "Dear Ms Okafor, thank you for your order of 24 March. The three oak shelves were sent on Tuesday and should "
    "reach you by Friday. The brass hooks are out of stock until 12 April. We will send them as soon as they "
    "arrive, at no further cost. Kind regards, the workshop."
)

PROMPTS = (
    Prompt("chat", "What should I think about before I adopt a dog from a shelter?"),
    Prompt("chat", "Why does bread dough rise, and what happens if I leave it too long?"),
    Prompt("code", "Write a Python function that returns the n-th Fibonacci number, with a short explanation."),
    Prompt("code", "Write a Python class for a stack with push, pop and peek."),
    Prompt("summary", f"Summarize this text in two sentences.\n\n{_HARBOUR}"),
    Prompt("summary", f"Summarize this text in one short paragraph.\n\n{_BEES}"),
    Prompt("list", "List ten things to pack for a week of camping in the mountains."),
    Prompt("list", "Give me a numbered list of eight ways to save water at home."),
    Prompt("repeat", f"Repeat this code exactly, then say what it does.\n\n{_FUNCTION}"),
    Prompt("repeat", f"Copy this letter word for word.\n\n{_LETTER}"),
)


def read_prompts(path: str | None) -> tuple[Prompt, ...]:
    """The built-in prompts, or those of a file, one a line; empty lines are skipped.

    Raises:
        ConfigError: the file cannot be read or holds no prompt.
    """
    if path is None:
        return PROMPTS
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"--prompts {path}: cannot be read ({e}); give a text file with one prompt a line") from e
    prompts = tuple(Prompt("file", line.strip()) for line in lines if line.strip())
    if not prompts:
        raise ConfigError(f"--prompts {path}: holds no prompt; write one a line")
    return prompts
