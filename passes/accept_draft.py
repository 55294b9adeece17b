"""Acceptance: which drafted tokens are the target's."""

from __future__ import annotations

import torch
from torch import Tensor, fx

from ..philox import COIN, RESIDUAL
from ..program import Level, Program
from ..tree import DraftTree
from . import inputs
from .accept import coupled, greedy, recursive, rejection, typical
from .accept.noise import draw
from .accept.processors import only_best
from .accept.walk import path_to, walk
from .contract import Pass
from .draw_noise import DrawNoise, positions_behind
from .graph import emit
from .process_logits import ProcessLogits
from .tree_mask import label


class AcceptDraft(Pass):
    """Decide the accepted path and the tokens of the block by one rule.

    Before: `processed: f32[B, N, V]`, `tokens`, `parents`, `depths`, `valid` (absent in a plain step); `gumbel` for
    sampled rules; `q` for rejection on a chain, `q_scores` on a tree whose children were drawn.
    After:  `path: i64[B, D+1]`, `accepted: i64[B]`, `block: i64[B, D+1]`, `offered: i64[B]` (levels drafted).
    Rules: `greedy`; `coupled`; `rejection`, which is p/q on drafts drawn from q, sibling by sibling on trees of such,
    and sample-and-compare (lossless for any draft) where the drafts are one-hot: other trees, and lookup. `typical` is
    lossy. Source: reference in `accept/`, one rule a file.
    """

    needs: tuple[type[Pass], ...] = (ProcessLogits,)
    after = (DrawNoise,)
    reads = leaves = Level.CAPTURED
    preserves_outputs = False

    def __init__(self, *, rule: str, tree: DraftTree) -> None:
        self.rule = rule
        self.tree = tree
        if rule != "greedy":
            self.needs = (ProcessLogits, DrawNoise)

    def run(self, program: Program) -> int:
        if "block" in program.values:
            return 0
        values, depth = program.values, self.tree.depth
        scores, tokens, depths, parents = (values[n] for n in ("processed", "tokens", "depths", "parents"))
        valid = values.get("valid")
        if valid is None:
            valid = program.constant("valid.none", torch.zeros(1, 1, dtype=torch.bool))
        if self.rule != "greedy":
            scores = emit(program, self, only_best, scores, inputs.vector(program, "temperature"))
        if self.rule == "typical":
            choices = self._choices(program, scores, depths)
            results = emit(program, self, _typical, scores, choices, tokens, parents, depths, valid, depth=depth)
        elif self.rule == "rejection" and "q_scores" in values:
            results = self._recursive(program, scores, valid)
        elif self.rule == "rejection" and "q" in values:
            key = [inputs.vector(program, n) for n in ("seed", "sample", "target_length")]
            results = emit(program, self, _reject, scores, values["q"], tokens, valid, parents, depths, *key)
        else:
            choices = self._choices(program, scores, depths)
            results = emit(program, self, walk, choices, tokens, parents, depths, valid, depth=depth)
        path, accepted, block = results
        offered = emit(program, self, _offered, depths, valid, tokens)
        program.give(path=path, accepted=accepted, block=block, offered=offered)
        program.drop("q", "q_scores", "gumbel", "ancestors")
        return 1

    def _recursive(self, program: Program, scores: fx.Node, valid: fx.Node) -> tuple[fx.Node, fx.Node, fx.Node]:
        """Drawn siblings in the order of their draw."""
        values, tree, name = program.values, self.tree, f"tree.{label(self.tree)}"
        below = [tree.children(node) for node in range(len(tree))]
        widest = max(map(len, below))
        inner = [node for node, found in enumerate(below) if found]
        children = torch.tensor([[*found, *[0] * (widest - len(found))] for found in below])
        rows = torch.tensor([inner.index(node) if node in inner else 0 for node in range(len(tree))])
        given = [
            *(values[n] for n in ("q_scores", "tokens")),
            valid,
            *(values[n] for n in ("parents", "depths")),
            inputs.forced(program, len(tree)),
            program.constant(f"{name}.child_nodes", children),
            program.constant(f"{name}.inner", rows),
            *(inputs.vector(program, n) for n in ("seed", "sample", "target_length")),
        ]
        widths = tuple(max(len(below[node]) for node in tree.level(depth)) for depth in range(tree.depth))
        found: tuple[fx.Node, fx.Node, fx.Node] = emit(program, self, _reject_siblings, scores, *given, widths=widths)
        return found

    def _choices(self, program: Program, scores: fx.Node, depths: fx.Node) -> fx.Node:
        if self.rule == "greedy":
            return emit(program, self, greedy.choose, scores)
        return emit(program, self, coupled.choose, scores, program.values["gumbel"], depths)


def _reject(
    scores: Tensor,
    q: Tensor,
    tokens: Tensor,
    valid: Tensor,
    parents: Tensor,
    depths: Tensor,
    seed: Tensor,
    sample: Tensor,
    length: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    drafts = q.shape[1]
    coins = torch.ops.specc.noise(seed, sample, positions_behind(length, drafts), COIN, 1).squeeze(2)
    accepted, law = rejection.accept(scores, q, tokens, valid, coins)
    position = (length + 1 + accepted)[:, None]
    noise = draw(seed, sample, position, stream=RESIDUAL, size=law.shape[-1])
    bonus = (law.log()[:, None] + noise).argmax(-1)
    batch, nodes = tokens.shape
    parents, depths = parents.expand(batch, nodes), depths.expand(batch, nodes)
    return path_to(accepted[:, None], bonus, tokens, parents, depths, depth=drafts)


def _typical(
    scores: Tensor, choices: Tensor, tokens: Tensor, parents: Tensor, depths: Tensor, valid: Tensor, *, depth: int
) -> tuple[Tensor, Tensor, Tensor]:
    batch, nodes = tokens.shape
    parents, depths = parents.expand(batch, nodes), depths.expand(batch, nodes)
    end = typical.accept(scores, tokens, parents, depths, valid, depth=depth)
    return path_to(end, choices.gather(1, end), tokens, parents, depths, depth=depth)


def _reject_siblings(
    scores: Tensor,
    q_scores: Tensor,
    tokens: Tensor,
    valid: Tensor,
    parents: Tensor,
    depths: Tensor,
    forced: Tensor,
    children: Tensor,
    rows: Tensor,
    seed: Tensor,
    sample: Tensor,
    length: Tensor,
    *,
    widths: tuple[int, ...],
) -> tuple[Tensor, Tensor, Tensor]:
    batch, nodes = tokens.shape
    parents, depths = parents.expand(batch, nodes), depths.expand(batch, nodes)
    coins = torch.ops.specc.noise(seed, sample, positions_behind(length, len(widths)), COIN, max(widths))
    alone = forced[:, :nodes] >= 0
    end, law = recursive.accept(scores, q_scores, tokens, valid, alone, coins, children, rows, widths=widths)
    noise = draw(seed, sample, length[:, None] + 1 + depths.gather(1, end), stream=RESIDUAL, size=law.shape[-1])
    bonus = (law.log()[:, None] + noise).argmax(-1)
    return path_to(end, bonus, tokens, parents, depths, depth=len(widths))


def _offered(depths: Tensor, valid: Tensor, tokens: Tensor) -> Tensor:
    return (depths.expand_as(tokens) * valid.long()).amax(1)
