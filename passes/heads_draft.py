"""Medusa's heads: the whole tree from one hidden state, with no model run for it."""

from __future__ import annotations

import torch
from torch import Tensor, fx

from ..errors import PassError
from ..program import Level, Program
from ..tree import DraftTree
from . import inputs
from .accept.penalties import Paths
from .accept.processors import DRAFT_WIDTH, process_best
from .blocks import feature_rows
from .contract import Pass
from .count_tokens import CountTokens
from .draw_noise import DrawNoise
from .graph import emit, inline
from .process_logits import penalized
from .tree_mask import TreeMask, label
from .vocabulary import by_target_id


class HeadsDraft(Pass):
    """Draft level d from the d-th head on the hidden state in front of the root.

    A node whose path ends in child c takes the c-th best token of its level's head, whatever its parent took, so that
    all siblings' children are alike. Under `coupled` best is by logits + noise; trees under `rejection` are one-hot.

    Before: `tokens: i64[B, 1]`, `depths`; for `rule="coupled"` also `gumbel`.
    After:  `tokens: i64[B, N]`, `valid: b8[B, N]`; nothing is offered behind a root in front of which nothing was seen.
    Source: Medusa (Cai et al. 2024), section 3.1.
    """

    needs = (TreeMask, CountTokens)
    after = (DrawNoise,)
    reads = leaves = Level.CAPTURED
    preserves_outputs = False

    def __init__(self, *, tree: DraftTree, rule: str) -> None:
        self.tree = tree
        self.rule = rule

    def requires(self, program: Program) -> None:
        if "drafter" not in program.models:
            raise PassError(f"{program.name}: no heads were captured; use another drafter or the plain step")
        heads = next(iter(program.models["drafter"].graph.find_nodes(op="output"))).args[0][0].meta["val"].shape[1]
        if self.tree.depth > heads:
            raise PassError(f"{program.name}: a tree of {self.tree.depth} levels and {heads} heads; draft fewer levels")

    def run(self, program: Program) -> int:
        if "valid" in program.values:
            return 0
        root, length = program.values["tokens"], inputs.vector(program, "target_length")
        slot = emit(program, self, _in_front, length)
        hidden = feature_rows(program, self, slot, rows=1)
        (logits,), _ = inline(program, self, program.models["drafter"].graph, [hidden], model="drafter")
        logits = emit(program, self, _levels, logits, depth=self.tree.depth)
        logits = by_target_id(program, self, "drafter", logits)
        logits = self._processed(program, logits, root)
        width = max(len(self.tree.children(node)) for node in range(len(self.tree)))
        ids = self._best(program, logits, width)
        picks = [
            (depth - 1) * width + path[-1]
            for depth, path in zip(self.tree.depths, self.tree.paths, strict=True)
            if path
        ]
        index = program.constant(f"heads.{label(self.tree)}", torch.tensor(picks))
        given = [
            inputs.forced(program, len(self.tree)),
            program.values["depths"],
            inputs.vector(program, "draft_limit"),
        ]
        vocab = program.models["target"].vocab_size
        tokens, valid = emit(program, self, _tree, ids, index, root, *given, length, vocab=vocab)
        program.give(tokens=tokens, valid=valid)
        return 1

    def _processed(self, program: Program, logits: fx.Node, root: fx.Node) -> fx.Node:
        """Penalties of the text so far; those of the path are left out, since a head does not know it."""
        depth = self.tree.depth
        on_path = program.constant(f"heads.path.{depth}", torch.zeros(1, depth, 1))
        depths = program.constant(f"heads.depths.{depth}", torch.arange(depth)[None])
        return penalized(program, self, logits, Paths(tokens=root, on_path=on_path, depths=depths))

    def _best(self, program: Program, logits: fx.Node, width: int) -> fx.Node:
        """`[B, D, width]` ids, best first."""
        if self.rule == "greedy":
            return emit(program, self, _top, logits, width=width)
        scores, ids = emit(
            program, self, process_best, logits, *inputs.sampling(program), width=max(width, DRAFT_WIDTH)
        )
        if self.rule == "coupled":
            scores = emit(program, self, _with_noise, scores, ids, program.values["gumbel"])
        return emit(program, self, _top_of, scores, ids, width=width)


def _in_front(length: Tensor) -> Tensor:
    """`[B]`, the last slot that the target has filled; 0 where there is none, which `_tree` does not offer."""
    return (length - 1).clamp(min=0)


def _levels(logits: Tensor, *, depth: int) -> Tensor:
    return logits[:, :depth]


def _top(logits: Tensor, *, width: int) -> Tensor:
    return logits.topk(width, -1).indices if width > 1 else logits.argmax(-1, keepdim=True)


def _with_noise(scores: Tensor, ids: Tensor, gumbel: Tensor) -> Tensor:
    return scores + gumbel[:, : ids.shape[1]].gather(2, ids)


def _top_of(scores: Tensor, ids: Tensor, *, width: int) -> Tensor:
    return ids.gather(2, scores.topk(width, -1).indices)


def _tree(
    ids: Tensor,
    picks: Tensor,
    root: Tensor,
    forced: Tensor,
    depths: Tensor,
    limit: Tensor,
    length: Tensor,
    *,
    vocab: int,
) -> tuple[Tensor, Tensor]:
    """`[B, N]` tokens, and which of them are offered."""
    tokens = torch.cat([root, ids.flatten(1).index_select(1, picks)], 1)
    wanted = forced[:, : tokens.shape[1]]
    valid = (depths <= limit[:, None]) & (wanted < vocab) & (length > 0)[:, None]
    drafted = (wanted >= 0) & (depths > 0)
    return torch.where(drafted, wanted.clamp(max=vocab - 1), tokens), valid
