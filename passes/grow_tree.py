"""A dynamic tree: the drafter grows it where it is sure, and the best of all candidates are verified."""

from __future__ import annotations

import torch
from torch import Tensor, fx

from ..errors import PassError
from ..program import Level, Program
from ..tree import DynamicTree
from . import inputs
from .accept.automaton import follow, forbid
from .accept.penalties import Paths
from .accept.processors import DRAFT_WIDTH, process_best
from .blocks import add_block
from .candidate_pool import Pool, ancestors_of, best_of_last, best_tree, expand, first_level
from .contract import Pass
from .count_tokens import CountTokens
from .drafter_rows import CatchUp, catch_up, give_caught_up, seen_rows
from .draw_noise import DrawNoise
from .graph import emit
from .process_logits import grammar_tables, penalized
from .read_root import ReadRoot
from .vocabulary import by_target_id


class GrowTree(Pass):
    """Draft k children of the root, then k levels of the k likeliest paths, and keep the N - 1 likeliest nodes of all.

    Scores are log-probabilities of whole paths, under `coupled` with the noise of each position, after all processors.
    Children are the drafter's best tokens and never drawn, so that choosing among them leaves the text's law alone.
    Sizes are fixed; tokens, parents and the mask are computed.

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
        begun = catch_up(program, self, rows=tree.depth + 1)
        states = None
        if self.grammar:
            states = emit(program, self, _column, inputs.vector(program, "grammar_state"))
        path = program.constant("grow.root", torch.zeros(1, 1, 1))
        scores, ids = self._children(program, begun.logits, root, path, states, depth=1)
        pool, count = Pool(*emit(program, self, _first, scores, ids)), tree.top_k
        levels = [1] * count
        logits, hidden, blocks = begun.logits, begun.hidden, [begun.block]
        grown: list[fx.Node] = []  # places in the pool of the rows that were run, level by level
        run_tokens: list[fx.Node] = [root]
        for depth in range(2, tree.depth + 1):
            frontier = emit(program, self, _frontier, *pool, count=count, width=tree.top_k)
            tokens, above = emit(program, self, _rows, *pool, frontier)
            if states is not None:
                states = self._states(program, states, above, grown, tokens)
            if hidden is not None:
                hidden = emit(program, self, _handed, hidden, above, *grown[-1:])
            grown.append(frontier)
            within = emit(program, self, _within, pool.parents, *grown, depth=depth)
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
            drafted = emit(program, self, _side_by_side, *run_tokens)
            path = emit(program, self, _on_path, within)
            scores, ids = self._children(program, logits, drafted, path, states, depth=depth)
            pool = Pool(*emit(program, self, _expanded, *pool, frontier, scores, ids))
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
            return emit(program, self, _best, logits, width=self.tree.top_k)
        width = max(self.tree.top_k, DRAFT_WIDTH)
        scores, ids = emit(program, self, process_best, logits, *inputs.sampling(program), width=width)
        if self.rule == "coupled":
            scores = emit(program, self, _with_noise, scores, ids, program.values["gumbel"], row=depth - 1)
        return emit(program, self, _best_of, scores, ids, width=self.tree.top_k)

    def _states(
        self, program: Program, states: fx.Node, above: fx.Node, grown: list[fx.Node], tokens: fx.Node
    ) -> fx.Node:
        states = emit(program, self, _of_parents, states, above, *grown[-1:])
        return emit(program, self, follow, states, tokens, *grammar_tables(program, self.grammar))

    def _give(self, program: Program, pool: Pool, levels: list[int], begun: CatchUp) -> None:
        depth, nodes = self.tree.depth, len(self.tree)
        constant = program.constant(f"grow.levels.{depth}.{self.tree.top_k}", torch.tensor([levels]))
        given = [inputs.forced(program, nodes), inputs.vector(program, "draft_limit"), program.values["tokens"]]
        vocab = program.models["target"].vocab_size
        tokens, parents, depths, ancestors, valid = emit(
            program, self, _tree, *pool, constant, *given, nodes=nodes, depth=depth, vocab=vocab
        )
        program.give(tokens=tokens, parents=parents, depths=depths, ancestors=ancestors)
        give_caught_up(program, self, begun, valid)


def _column(vector: Tensor) -> Tensor:
    return vector[:, None]


def _side_by_side(*parts: Tensor) -> Tensor:
    return torch.cat(parts, 1)


def _best(logits: Tensor, *, width: int) -> tuple[Tensor, Tensor]:
    scores, ids = logits.topk(width, -1)
    return scores - logits.logsumexp(-1, keepdim=True), ids


def _with_noise(scores: Tensor, ids: Tensor, gumbel: Tensor, *, row: int) -> Tensor:
    return scores + gumbel[:, row : row + 1].expand(-1, ids.shape[1], -1).gather(2, ids)


def _best_of(scores: Tensor, ids: Tensor, *, width: int) -> tuple[Tensor, Tensor]:
    best, place = scores.log_softmax(-1).topk(width, -1)
    return best, ids.gather(2, place)


def _first(scores: Tensor, ids: Tensor) -> tuple[Tensor, ...]:
    return tuple(first_level(scores, ids))


def _frontier(tokens: Tensor, scores: Tensor, parents: Tensor, *, count: int, width: int) -> Tensor:
    return best_of_last(Pool(tokens, scores, parents), count, width)


def _rows(tokens: Tensor, scores: Tensor, parents: Tensor, frontier: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens of the frontier, and the places of their parents."""
    return tokens.gather(1, frontier), parents.gather(1, frontier)


def _expanded(
    tokens: Tensor, scores: Tensor, parents: Tensor, frontier: Tensor, added: Tensor, ids: Tensor
) -> tuple[Tensor, ...]:
    return tuple(expand(Pool(tokens, scores, parents), frontier, added, ids))


def _row_of(above: Tensor, grown: Tensor) -> Tensor:
    """`[B, k]`, the row of the level before at which each parent stands."""
    return (grown[:, None] == above[:, :, None]).long().argmax(2)


def _of_parents(states: Tensor, above: Tensor, *grown: Tensor) -> Tensor:
    """States of the parents; without `grown` the root's, for all."""
    return states.gather(1, _row_of(above, grown[0])) if grown else states.expand_as(above)


def _handed(hidden: Tensor, above: Tensor, *grown: Tensor) -> Tensor:
    """What the parents' rows handed on, `[B, k, F]`."""
    if not grown:
        return hidden.expand(-1, above.shape[1], -1)
    row = _row_of(above, grown[0])
    return hidden.gather(1, row[:, :, None].expand(-1, -1, hidden.shape[2]))


def _within(parents: Tensor, *grown: Tensor, depth: int) -> Tensor:
    """`[B, k, (depth - 1) * k]`: which of the drafted rows are on the path of each row of the last level."""
    places = torch.cat(grown, 1)
    climb = grown[-1]
    seen = climb[:, :, None] == places[:, None]
    for _ in range(depth - 2):
        climb = parents.gather(1, climb)  # level by level: it ends at the first, before the root
        seen = seen | (climb[:, :, None] == places[:, None])
    return seen


def _on_path(within: Tensor) -> Tensor:
    """The same over the root, which the counts hold already, and the drafted rows, as numbers."""
    return torch.cat([torch.zeros_like(within[:, :, :1]), within], 2).float()


def _tree(
    tokens: Tensor,
    scores: Tensor,
    parents: Tensor,
    levels: Tensor,
    forced: Tensor,
    limit: Tensor,
    root: Tensor,
    *,
    nodes: int,
    depth: int,
    vocab: int,
) -> tuple[Tensor, ...]:
    places, drafted, above, depths = best_tree(Pool(tokens, scores, parents), levels, nodes=nodes)
    possible = torch.cat([torch.ones_like(root, dtype=torch.bool), scores.gather(1, places) > float("-inf")], 1)
    wanted = forced[:, :nodes]
    drafted = torch.cat([root, drafted], 1)
    changed = torch.where((wanted >= 0) & (depths > 0), wanted.clamp(max=vocab - 1), drafted)
    valid = (depths <= limit[:, None]) & (wanted < vocab) & (possible | (wanted >= 0))
    return changed, above, depths, ancestors_of(above, depth=depth), valid
