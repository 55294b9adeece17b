"""Forced drafts: the right tokens along any path of the tree are taken, wrong ones refused right there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..runtime.programs import StepProgram
from ..tree import DraftTree
from .lab import Lab
from .modes import Mode
from .report import Check
from .same_texts import conclude, modes_of
from .texts import Comparison, Text

PENALTIES = {"repetition_penalty": 1.3, "presence_penalty": 0.6, "frequency_penalty": 0.8}
FOLLOWING = 12  # tokens behind the forced block: they show what it left in the caches
MOST_PATHS = 8


class Case(NamedTuple):
    """Tokens to draft at nodes 1, 2, ..., and how many levels of them must be accepted."""

    label: str
    draft: list[int]
    accepted: int


def forced_drafts(lab: Lab) -> Check:
    """The plain text's own tokens along every path, and a wrong token at every level."""
    found, cases = _force_all(lab, modes_of(lab))
    modes = ", ".join(mode.name for mode in modes_of(lab))
    return conclude(
        "forced drafts", found, f"{cases} drafts ({modes}): levels accepted, and {found.tokens} tokens", lab.dtype
    )


def penalties(lab: Lab) -> Check:
    """With all penalties on, speculative texts equal the plain one; drafted tokens count on their own path only.

    The wrong siblings that are drafted here are tokens that the text will hold soon: counted by mistake, they show.
    """
    modes = [mode.with_options("penalties", **PENALTIES) for mode in modes_of(lab)]
    found, cases = _force_all(lab, modes)
    for mode in modes:
        for length, program in lab.steps(mode.rule):
            if length == program.depth:
                plain = lab.plain(lab.prompts[0], mode, lab.tokens)
                text = lab.write(lab.prompts[0], mode, length, lab.tokens)
                where = f"{mode.name}, draft length {length} ({program.name})"
                lab.compare(found, plain, text, mode, len(lab.prompts[0]), where)
    told = ", ".join(f"{name} {value}" for name, value in PENALTIES.items())
    return conclude(
        "penalties", found, f"{told}: {cases} forced drafts and free ones, {found.tokens} tokens", lab.dtype
    )


def cases_of(program: StepProgram, right: Sequence[int], vocab: int) -> Iterator[Case]:
    """What to draft.

    Args:
        right: the plain text, longer than the tree is deep.
        vocab: ids that there are.
    """
    tree = DraftTree(program.paths)
    leaves = [node for node in range(1, len(tree)) if not tree.children(node)]
    apart = max(1.0, (len(leaves) - 1) / (MOST_PATHS - 1))  # of a wide tree, the first, the last and some between
    for leaf in dict.fromkeys(leaves[round(i * apart)] for i in range(min(len(leaves), MOST_PATHS))):
        path = tree.paths[leaf]
        draft = _drafted(tree, right, vocab, path)
        yield Case(f"right along {'.'.join(map(str, path))}", draft, len(path))
    longest = tree.paths[-1]
    for level in range(1, tree.depth + 1):
        draft = _drafted(tree, right, vocab, longest[: level - 1])
        yield Case(f"wrong from level {level} on", draft, level - 1)


def _drafted(tree: DraftTree, right: Sequence[int], vocab: int, path: tuple[int, ...]) -> list[int]:
    """Right tokens along `path`; elsewhere tokens that the text will hold later, or any other."""
    draft = []
    for other in tree.paths[1:]:
        depth = len(other)
        if other == path[:depth]:
            draft.append(right[depth - 1])
            continue
        wrong = [token for token in dict.fromkeys(right[depth:]) if token != right[depth - 1]]
        wrong = wrong or [(right[depth - 1] + 1) % vocab]
        draft.append(wrong[other[-1] % len(wrong)])
    return draft


def _force_all(lab: Lab, modes: Sequence[Mode]) -> tuple[Comparison, int]:
    found, cases, prompt = Comparison(), 0, lab.prompts[0]
    for mode in modes:
        for length, program in lab.steps(mode.rule):
            if length != program.depth:
                continue
            tokens = min(length + 1 + FOLLOWING, lab.tokens)
            plain = lab.plain(prompt, mode, tokens)
            for case in cases_of(program, plain.ids, lab.engine.manifest.vocab_size):
                cases += 1
                where = f"{mode.name}, {program.name}, {case.label}"
                text = lab.write(prompt, mode, length, tokens, case.draft)
                lab.compare(found, plain, text, mode, len(prompt), where)
                _count_levels(found, text, case, where)
    return found, cases


def _count_levels(found: Comparison, text: Text, case: Case, where: str) -> None:
    """The first step emits what it accepted and one token more, unless the texts parted within it."""
    parted = found.stopped is not None and found.stopped <= case.accepted
    if not parted and text.blocks[0] != case.accepted + 1:
        found.faults.append(f"{where}: {text.blocks[0] - 1} levels accepted, expected {case.accepted}")
