"""The bench that checks work at: the engine, short prompts, plain texts (each made once), and what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from ..bench.prompts import PROMPTS
from ..errors import ConfigError
from ..runtime import Engine
from ..runtime.programs import StepProgram
from .modes import TOP, Mode
from .texts import ALLOWED, Comparison, Text

PROMPT_TOKENS = 24
LENGTHS = (12, 3, 24, 17)  # of made-up prompts


@dataclass(slots=True)
class Lab:
    """An engine under test.

    Attributes:
        prompts: ids, each at least one token.
        tokens: of a text.
        noise: the largest difference of logits seen so far behind equal texts.
        accepted, offered: levels of drafts by rule, over all texts that speculated freely.
        quick: fewer texts and lengths.
    """

    engine: Engine
    prompts: list[list[int]]
    tokens: int
    quick: bool
    noise: float = 0.0
    accepted: dict[str, int] = field(default_factory=dict)
    offered: dict[str, int] = field(default_factory=dict)
    _plain: dict[tuple[object, ...], Text] = field(default_factory=dict)

    @classmethod
    def make(cls, engine: Engine, quick: bool) -> Lab:
        """Short prompts and texts that fit the engine's context.

        Raises:
            ConfigError: its context holds too little to verify anything.
        """
        context, depth = engine.manifest.context, engine.machine.programs.depth
        tokens = min(16 if quick else 32, context // 2)
        if tokens < depth + 2:
            raise ConfigError(
                f"the engine's context of {context} tokens is too short to verify drafts of {depth}; "
                f"compile it with --context {2 * depth + 4} or more"
            )
        room = min(PROMPT_TOKENS, context - tokens)
        prompts = [ids[:room] for ids in _prompts(engine)]
        return cls(engine, prompts[: 2 if quick else 4], tokens, quick)

    @property
    def allowed(self) -> float:
        """The most that two programs' logits may differ behind the same text."""
        return ALLOWED[self.dtype]

    @property
    def dtype(self) -> str:
        """Of the engine's weights and caches."""
        return self.engine.manifest.dtype

    def steps(self, rule: str) -> list[tuple[int, StepProgram]]:
        """Draft lengths to try under a rule, and the program of each: every program, and but for `quick` every length
        between, which a program serves by offering less than its tree."""
        programs = self.engine.machine.programs
        found = [(n, programs.find(rule, n, 1)) for n in range(1, programs.longest(rule) + 1)]
        steps = [(n, program) for n, program in found if program is not None]
        return [(n, program) for n, program in steps if not self.quick or n == program.depth]

    def plain(self, prompt: Sequence[int], mode: Mode, tokens: int) -> Text:
        """The plain step's text."""
        key = (tuple(prompt), mode.name, tokens)
        if key not in self._plain:
            self._plain[key] = self.write(prompt, mode, 0, tokens)
        return self._plain[key]

    def write(
        self,
        prompt: Sequence[int],
        mode: Mode,
        draft_length: int | None,
        tokens: int,
        draft: Sequence[int] | None = None,
    ) -> Text:
        """A text with its scores; `draft` is what its first step drafts at nodes 1, 2, ..."""
        # The plain step has no draft to accept or to reject.
        options = {k: v for k, v in mode.options.items() if draft_length != 0 or k != "acceptance"}
        with self.engine.session() as session:
            job = session.add(
                list(prompt),
                max_new_tokens=tokens,
                draft_length=draft_length,
                eos_token_id=(),
                logprobs=TOP,
                logprobs_mode="processed",
                reuse=True,
                **options,
            )
            blocks: list[int] = []
            drafted = accepted = 0  # the last step is not counted: the end of the text may have cut its block
            while job.result is None:
                drafted, accepted = job.stats.drafted, job.stats.accepted
                before = len(job.token_ids)
                session.step(draft if draft and not blocks else ())
                blocks.append(len(job.token_ids) - before)
        assert job.logprobs is not None
        if draft is None and draft_length:
            self.offered[mode.rule] = self.offered.get(mode.rule, 0) + drafted
            self.accepted[mode.rule] = self.accepted.get(mode.rule, 0) + accepted
        return Text(job.logprobs, blocks)

    def compare(self, comparison: Comparison, plain: Text, other: Text, mode: Mode, prompt: int, where: str) -> None:
        """Add a text to a comparison, and remember the difference of logits."""
        comparison.add(plain, other, mode, prompt, self.allowed, where)
        if not comparison.faults:
            self.noise = max(self.noise, comparison.noise)


def same_text(
    lab: Lab, prompt: Sequence[int], mode: Mode, draft_length: int | None, where: str, tokens: int | None = None
) -> Comparison:
    """Compare the speculative text of a prompt with the plain one; behind a float tie, both begin anew."""
    found, prompt, left = Comparison(), list(prompt), tokens or lab.tokens
    while left:
        plain = lab.plain(prompt, mode, left)
        lab.compare(found, plain, lab.write(prompt, mode, draft_length, left), mode, len(prompt), where)
        if found.faults or found.stopped is None:
            break
        prompt, left = [*prompt, *plain.ids[: found.stopped + 1]], left - found.stopped - 1
    return found


def _prompts(engine: Engine) -> list[list[int]]:
    """Beginnings of the built-in prompts, longest kinds last; ids by chance where the engine has no tokenizer."""
    vocab = engine.manifest.vocab_size
    if engine.text is not None:
        texts = dict(reversed([(prompt.kind, prompt.text) for prompt in PROMPTS]))  # one of each kind
        encoded = [[i for i in engine.encode(text) if i < vocab] for text in texts.values()]
        if any(encoded):
            return [ids for ids in encoded if ids]
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(vocab, (length,), generator=generator).tolist() for length in LENGTHS]
