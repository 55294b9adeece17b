"""Everything that can be chosen about a training run, checked when it is made."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ..config import option
from ..errors import ConfigError
from .precision import PRECISIONS

EAGLE3, EAGLE, MEDUSA, DRAFT = FAMILIES = ("eagle3", "eagle", "medusa", "draft")
NARROWEST = 16  # width of a small model
ANSWERS, NEW_TOKENS, ROWS, UNROLL = 4000, 192, 48, 3
COUNTS = ("own_prompts", "answers")  # of prompts that are made, not given
LAYOUTS = ("published", "speculators")


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerConfig:
    """What is learnt from: answers that there are, or prompts that the target is to answer."""

    data: str | None = option(
        None, "answers: .jsonl of chats, .npz of ids, folders of these, separated by commas", metavar="FILES"
    )
    held: str | None = option(
        None, "held-out answers to measure on (default: every 16th row of --data)", metavar="FILES"
    )
    prompts: str | None = option(
        None, "prompts for the target to answer, one a line (default: put together from built-in lists)", metavar="FILE"
    )
    own_prompts: int | None = option(
        None, "prompts that the target writes itself, and then answers; its template must know chats", metavar="N"
    )
    answers: int | None = option(None, f"built-in prompts to answer, without --data (default {ANSWERS})", metavar="N")
    new_tokens: int | None = option(None, f"longest answer in tokens (default {NEW_TOKENS})", metavar="N")
    rows: int | None = option(None, f"answers written side by side (default {ROWS})", metavar="N")

    def __post_init__(self) -> None:
        for name, least in {"own_prompts": 1, "answers": 1, "new_tokens": 2, "rows": 1}.items():
            given = getattr(self, name)
            if given is not None:
                _check_numbers(self, **{name: least})
                if self.data is not None or (name in COUNTS and self.prompts is not None):
                    raise ConfigError(
                        f"--{name.replace('_', '-')} {given} is about answers that the target is to write; leave it "
                        f"out with --{'data' if self.data is not None else 'prompts'}"
                    )
        if self.own_prompts is not None and self.answers is not None:
            raise ConfigError(
                f"--own-prompts {self.own_prompts} and --answers {self.answers} both say which prompts are answered; "
                "give one of the two"
            )
        for name in ("data", "held"):
            if getattr(self, name) is not None and not self.paths(name):
                raise ConfigError(
                    f"--{name} {getattr(self, name)!r} names no file; give files or folders, or leave it out"
                )
        if self.data is not None and self.prompts is not None:
            raise ConfigError(
                f"--data {self.data} holds answers and --prompts {self.prompts} asks for new ones; give one of the two"
            )
        if self.held is not None and self.data is None:
            raise ConfigError(f"--held {self.held} goes with --data; without it, held-out prompts are answered as well")

    def paths(self, name: str) -> list[Path]:
        """The paths of `data` or `held`."""
        return [Path(part.strip()).expanduser() for part in (getattr(self, name) or "").split(",") if part.strip()]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """One training run."""

    family: str = option("", "kind of drafter", positional=True, choices=FAMILIES)
    target: str = option("", "target model: hub id, folder or GGUF file", positional=True)
    output: str = option("", "folder of the drafter", short="-o", metavar="DIR")
    what: AnswerConfig = field(default_factory=AnswerConfig)
    work: str | None = option(None, "folder for everything on the way (default: DIR.work)", metavar="DIR")
    layout: str = option("published", "form of the files of an eagle3 drafter", choices=LAYOUTS)
    init: str | None = option(None, "eagle3 drafter in the published layout to train on from", metavar="DIR")
    draft_vocab: int | None = option(
        None, "most frequent ids that eagle3 can draft and eagle learns from (default 8192)", metavar="N"
    )
    unroll: int | None = option(
        None, f"tokens drafted in a row while it learns, not for draft; medusa: heads (default {UNROLL})", metavar="N"
    )
    hidden: int | None = option(None, "width of the small model of draft (default 192)", metavar="N")
    layers: int | None = option(None, "layers of the small model of draft (default 4)", metavar="N")
    steps: int = option(2000, "training steps", metavar="N")
    minutes: int | None = option(None, "end after so many minutes of steps, the rate at zero by then", metavar="N")
    batch_tokens: int = option(3072, "tokens per step, prompts included", metavar="N")
    learning_rate: float = option(5e-4, "highest learning rate", metavar="X")
    hard: float = option(0.3, "weight of the token said against the target's distribution, 0..1", metavar="X")
    save_minutes: int = option(5, "minutes between checkpoints", metavar="N")
    threads: int | None = option(None, "CPU threads (default: torch's own choice)", metavar="N")
    precision: str | None = option(
        None,
        "numbers that products are computed in; weights stay float32 (default: bfloat16 where the CPU multiplies it)",
        choices=PRECISIONS,
    )

    def __post_init__(self) -> None:
        for name in ("family", "target", "output"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value or "\0" in value:
                raise ConfigError(f"{name}: expected a non-empty text without zero bytes, found {value!r}")
        for name, allowed in (("family", FAMILIES), ("layout", LAYOUTS)):
            if getattr(self, name) not in allowed:
                raise ConfigError(f"{name} {getattr(self, name)!r} is not one of {', '.join(allowed)}")
        if self.precision not in (None, *PRECISIONS):
            raise ConfigError(f"--precision {self.precision!r} is not one of {', '.join(PRECISIONS)}")
        if self.unroll is not None and self.family == DRAFT:
            raise ConfigError(f"--unroll {self.unroll}: a draft model learns from texts alone; leave it out")
        _check_numbers(self, steps=1, batch_tokens=1, save_minutes=1)
        _check_numbers(
            self,
            **{
                n: 1
                for n in ("draft_vocab", "hidden", "layers", "minutes", "threads", "unroll")
                if getattr(self, n) is not None
            },
        )
        if not 0 <= self.hard <= 1:
            raise ConfigError(f"--hard {self.hard} is outside 0..1; 1 learns from the tokens alone")
        if not 0 < self.learning_rate < 1:
            raise ConfigError(f"--learning-rate {self.learning_rate} is outside 0..1; try 5e-4")
        if self.layout != "published" and self.family != EAGLE3:
            raise ConfigError(f"--layout {self.layout} is for eagle3; leave it out for {self.family}")
        if self.init is not None and self.draft_vocab is not None:
            raise ConfigError(f"--draft-vocab {self.draft_vocab}: --init {self.init} has its own; leave one out")
        for name, families in (
            ("init", (EAGLE3,)),
            ("draft_vocab", (EAGLE3, EAGLE)),
            ("hidden", (DRAFT,)),
            ("layers", (DRAFT,)),
        ):
            if getattr(self, name) is not None and self.family not in families:
                flag = name.replace("_", "-")
                raise ConfigError(
                    f"--{flag} {getattr(self, name)} is for {' and '.join(families)}; leave it out for {self.family}"
                )
        if self.hidden is not None and (self.hidden < NARROWEST or self.hidden % 2):
            raise ConfigError(f"--hidden {self.hidden} must be an even number of at least {NARROWEST}")


def _check_numbers(config: object, **least: int) -> None:
    """Each of these fields is a whole number, and at least so large."""
    for name, lowest in least.items():
        value = getattr(config, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
            raise ConfigError(f"--{name.replace('_', '-')} {value!r} must be a whole number of at least {lowest}")
