"""A dynamic tree: the drafter grows it where it is sure, and the best of all candidates are verified."""

from __future__ import annotations

import torch
from torch import fx

from ..errors import PassError
from ..program import Level, Program
from ..tree import DynamicTree
from . import inputs
from .accept.automaton import follow, forbid
from .accept.penalties import Paths
from .accept.processors import DRAFT_WIDTH, process_best
from .blocks import add_block
from .candidate_pool import Pool
from .contract import Pass
from .count_tokens import CountTokens
from .drafter_rows import CatchUp, begin, give_caught_up, seen_rows
from .draw_noise import DrawNoise
from .graph import emit
from .grown_rows import (
    as_column,
    best_greedy,
    best_sampled,
    chosen_tree,
    expanded_pool,
    first_pool,
    frontier_rows,
    handed_rows,
    next_frontier,
    offered_tree,
    on_path_weights,
    parent_states,
    path_rows,
    side_by_side,
    with_noise,
)
from .process_logits import grammar_tables, penalized
from .read_root import ReadRoot
from .vocabulary import by_target_id


class GrowTree(Pass):
    """Draft k children of the root, then k levels of the k likeliest paths, and keep the N - 1 likeliest nodes of all.

    Scores are log-probabilities of whole paths, under `coupled` with the noise of each position, after all processors.
    Children are the drafter's best tokens and never drawn, so that choosing among them leaves the text's law alone.
    Sizes are fixed; tokens, parents and the mask are computed. Where the caller says what to draft, nodes stand as in
    the outline (`DynamicTree.paths`), since nobody could know where the drafter would have them.

    Before: `tokens: i64[B, 1]`; for `rule="coupled"` also `gumbel`.
    After:  `tokens`, `parents`, `depths: i64[B, N]`, `ancestors: b8[B, N, N]`, `valid: b8[B, N]`; `drafter_length` and
    the drafter's caches as after the catch-up. Source: EAGLE-2 (Li et al. 2024), section 4.
    """

    needs = (ReadRoot, CountTokens)
    after = (DrawNoise,)
    reads = leaves = Level.CAPTURED
    preserves_outputs = False

    def __init__(self, *, tree: DynamicTree, rule: str, grammar: int = 0) -> None:
        self.tree = tree
        self.rule = rule
        self.grammar = grammar

    def requires(self, program: Program) -> None:
        if "drafter" not in program.models:
            raise PassError(f"{program.name}: a dynamic tree needs a drafter with weights; use --tree 3 or a chain")

    def run(self, program: Program) -> int:
        if "valid" in program.values:
            return 0
        tree, root = self.tree, program.values["tokens"]
        begun = begin(program, self, rows=tree.depth + 1)
        states = None
        if self.grammar:
            states = emit(program, self, as_column, inputs.vector(program, "grammar_state"))
        path = program.constant("grow.root", torch.zeros(1, 1, 1))
        scores, ids = self._children(program, begun.logits, root, path, states, depth=1)
        pool, count = Pool(*emit(program, self, first_pool, scores, ids)), tree.top_k
        levels = [1] * count
        logits, hidden, blocks = begun.logits, begun.hidden, [begun.block]
        grown: list[fx.Node] = []  # places in the pool of the rows that were run, level by level
        run_tokens: list[fx.Node] = [root]
        for depth in range(2, tree.depth + 1):
            frontier = emit(program, self, next_frontier, *pool, count=count, width=tree.top_k)
            tokens, above = emit(program, self, frontier_rows, *pool, frontier)
            if states is not None:
                states = self._states(program, states, above, grown, tokens)
            if hidden is not None:
                hidden = emit(program, self, handed_rows, hidden, above, *grown[-1:])
            grown.append(frontier)
            within = emit(program, self, path_rows, pool.parents, *grown, depth=depth)
            mask = seen_rows(program, self, begun, within)
            offsets = program.constant(f"grow.{depth}.{tree.top_k}", torch.full((1, tree.top_k), depth - 1))
            logits, block = add_block(
                program,
                self,
                "drafter",
                tokens,
                length=begun.drafted,
                start=begun.root_slot,
                offsets=offsets,
                mask=mask,
                prior=blocks,
                hidden=hidden,
            )
            hidden, blocks = block.features, [*blocks, block]
            run_tokens.append(tokens)
            drafted = emit(program, self, side_by_side, *run_tokens)
            path = emit(program, self, on_path_weights, within)
            scores, ids = self._children(program, logits, drafted, path, states, depth=depth)
            pool = Pool(*emit(program, self, expanded_pool, *pool, frontier, scores, ids))
            count = tree.top_k * tree.top_k
            levels += [depth] * count
        self._give(program, pool, levels, begun)
        return 1

    def _children(
        self,
        program: Program,
        logits: fx.Node,
        drafted: fx.Node,
        on_path: fx.Node,
        states: fx.Node | None,
        *,
        depth: int,
    ) -> tuple[fx.Node, fx.Node]:
        """Log-probabilities and ids `[B, T, k]` of each row's best children."""
        logits = by_target_id(program, self, "drafter", logits)
        rows = logits.meta["val"].shape[1]
        depths = program.constant(f"grow.depth.{depth}.{rows}", torch.full((1, rows), depth - 1))
        logits = penalized(program, self, logits, Paths(tokens=drafted, on_path=on_path, depths=depths))
        if states is not None:
            logits = emit(program, self, forbid, logits, states, *grammar_tables(program, self.grammar))
        if self.rule == "greedy":
            return emit(program, self, best_greedy, logits, width=self.tree.top_k)
        width = max(self.tree.top_k, DRAFT_WIDTH)
        scores, ids = emit(program, self, process_best, logits, *inputs.sampling(program), width=width)
        if self.rule == "coupled":
            scores = emit(program, self, with_noise, scores, ids, program.values["gumbel"], row=depth - 1)
        return emit(program, self, best_sampled, scores, ids, width=self.tree.top_k)

    def _states(
        self, program: Program, states: fx.Node, above: fx.Node, grown: list[fx.Node], tokens: fx.Node
    ) -> fx.Node:
        states = emit(program, self, parent_states, states, above, *grown[-1:])
        return emit(program, self, follow, states, tokens, *grammar_tables(program, self.grammar))

    def _give(self, program: Program, pool: Pool, levels: list[int], begun: CatchUp) -> None:
        depth, nodes = self.tree.depth, len(self.tree)
        constant = program.constant(f"grow.levels.{depth}.{self.tree.top_k}", torch.tensor([levels]))
        best = emit(program, self, chosen_tree, *pool, constant, program.values["tokens"], nodes=nodes)
        outline = program.constant(f"grow.outline.{depth}.{nodes}", torch.tensor([self.tree.parents, self.tree.depths]))
        given = [outline, inputs.forced(program, nodes), inputs.vector(program, "draft_limit")]
        vocab = program.models["target"].vocab_size
        tokens, parents, depths, ancestors, valid = emit(
            program, self, offered_tree, *best, *given, depth=depth, vocab=vocab
        )
        program.give(tokens=tokens, parents=parents, depths=depths, ancestors=ancestors)
        give_caught_up(program, self, begun, valid)
