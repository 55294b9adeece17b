"""The drafter, level by level, in the step's graph."""

from __future__ import annotations

import torch
from torch import Tensor, fx

from ..errors import PassError
from ..program import Level, Program
from ..tree import DraftTree
from . import inputs
from .accept.automaton import follow, forbid
from .accept.noise import DRAFT, draw
from .accept.penalties import Paths
from .accept.processors import DRAFT_WIDTH, process_best
from .blocks import add_block
from .contract import Pass
from .count_tokens import CountTokens
from .drafter_rows import catch_up, give_caught_up, seen_rows
from .draw_noise import DrawNoise, positions_behind
from .graph import emit
from .process_logits import grammar_tables, path_constants, penalized
from .tree_mask import TreeMask, label
from .vocabulary import by_target_id


class UnrollDraft(Pass):
    """Catch the drafter up with the text, then draft the tree one level at a time.

    The catch-up rows (`history[drafter_length : target_length + 1]`, padded to D + 1) are known to be right and are the
    only ones that the drafter's caches get; rows of drafted tokens live within the step, so nothing is rolled back. A
    drafter that reads features gets the target's with the catch-up rows and its own with the drafted ones.

    Before: `tokens: i64[B, 1]`, `parents`, `depths`; for `rule="coupled"` also `gumbel`.
    After:  `tokens: i64[B, N]`, `valid: b8[B, N]` (within the request's draft length, and drafts of a law: a node
    whose parent's row forbids all that the drafter can say is not offered); for `rule="rejection"` on a
    chain also `q: f32[B, K, V]`; `drafter_length` and the drafter's caches as after the catch-up.
    Children: greedy and trees take the best tokens of their parent's row; `coupled` the best of logits + noise; a
    chain under `rejection` draws from q. Source: SpecInfer (Miao et al. 2024), section 3; Leviathan et al. 2023;
    EAGLE (Li et al. 2024), section 4.1, for features.
    """

    needs = (TreeMask, CountTokens)
    after = (DrawNoise,)
    reads = leaves = Level.CAPTURED
    preserves_outputs = False

    def __init__(self, *, tree: DraftTree, rule: str, grammar: int = 0) -> None:
        self.tree = tree
        self.rule = rule
        self.grammar = grammar

    def requires(self, program: Program) -> None:
        if "drafter" not in program.models:
            raise PassError(f"{program.name}: no drafter was captured; use LookupDraft or the plain step")

    def run(self, program: Program) -> int:
        if "valid" in program.values:
            return 0
        tree, root = self.tree, program.values["tokens"]
        begun = catch_up(program, self, rows=tree.depth + 1)
        logits, hidden = begun.logits, begun.hidden
        blocks, levels = [begun.block], [root]
        forwarded: list[int] = []
        laws: list[fx.Node] = []
        possible: list[fx.Node] = []
        frontier = [0]
        states = self._first_state(program)
        for depth in range(1, tree.depth + 1):
            logits = by_target_id(program, self, "drafter", logits)
            logits = self._processed(program, logits, levels, frontier, states)
            tokens = self._choose(program, logits, depth, frontier, laws)
            tokens = self._force(program, tokens, depth, laws)
            levels.append(tokens)
            nodes = list(tree.level(depth))
            rows = self._places(program, [frontier.index(tree.parents[node]) for node in nodes])
            possible.append(emit(program, self, _possible, logits, tokens, rows))
            states = self._next_states(program, states, tokens, rows)
            parents, frontier = frontier, [node for node in nodes if tree.children(node)]
            if not frontier:
                break
            if hidden is not None:  # a node goes on from what its parent's row handed on
                places = [parents.index(tree.parents[node]) for node in frontier]
                hidden = emit(program, self, _columns, hidden, self._places(program, places))
            rows = self._places(program, [node - nodes[0] for node in frontier])
            tokens = emit(program, self, _columns, tokens, rows)
            states = states and emit(program, self, _columns, states, rows)
            mask = seen_rows(program, self, begun, self._within(program, forwarded, frontier))
            depths = program.constant(f"depth.{depth}.{len(frontier)}", torch.full((1, len(frontier)), depth))
            logits, block = add_block(
                program,
                self,
                "drafter",
                tokens,
                length=begun.drafted,
                start=begun.root_slot,
                offsets=depths,
                mask=mask,
                prior=blocks,
                hidden=hidden,
            )
            hidden = block.features
            blocks = [*blocks, block]
            forwarded = [*forwarded, *frontier]
        program.give(tokens=emit(program, self, _side_by_side, *levels))
        if laws:
            program.give(q=emit(program, self, _side_by_side, *laws))
        give_caught_up(program, self, begun, self._valid(program, possible))
        return 1

    def _valid(self, program: Program, possible: list[fx.Node]) -> fx.Node:
        limits = [program.values["depths"], inputs.vector(program, "draft_limit")]
        can = emit(program, self, _side_by_side, *possible)
        ancestors, forced = program.values["ancestors"], inputs.forced(program, len(self.tree))
        return emit(program, self, _valid, *limits, can, ancestors, forced, vocab=self._vocab(program))

    def _vocab(self, program: Program) -> int:
        return program.models["target"].vocab_size

    def _places(self, program: Program, places: list[int]) -> fx.Node:
        return program.constant(f"rows.{_join(places)}", _index(places))

    def _choose(
        self, program: Program, logits: fx.Node, depth: int, frontier: list[int], laws: list[fx.Node]
    ) -> fx.Node:
        """Tokens `[B, n]` of one level from the logits of its parents (`[B, len(frontier), V]`)."""
        widths = [len(self.tree.children(parent)) for parent in frontier]
        picks = [row * max(widths) + rank for row, width in enumerate(widths) for rank in range(width)]
        index = program.constant(f"picks.{_join(picks)}", _index(picks))
        if self.rule == "greedy":
            if max(widths) == 1:
                return emit(program, self, _best, logits)
            return emit(program, self, _best_children, logits, index, width=max(widths))
        width = max(DRAFT_WIDTH, *widths)
        scores, ids = emit(program, self, process_best, logits, *inputs.sampling(program), width=width)
        if self.rule == "rejection" and self.tree.is_chain:
            key = [inputs.vector(program, n) for n in ("seed", "sample", "target_length")]
            vocab = logits.meta["val"].shape[-1]
            tokens, law = emit(program, self, _draw_draft, scores, ids, *key, depth=depth, vocab=vocab)
            laws.append(law)
            return tokens
        if self.rule == "coupled":
            scores = emit(program, self, _with_noise, scores, ids, program.values["gumbel"], row=depth - 1)
        return emit(program, self, _best_of, scores, ids, index, width=max(widths))

    def _processed(
        self, program: Program, logits: fx.Node, levels: list[fx.Node], frontier: list[int], states: fx.Node | None
    ) -> fx.Node:
        """The drafter's logits as the target's will be processed, which raises acceptance and nothing else."""
        tokens = emit(program, self, _side_by_side, *levels) if len(levels) > 1 else levels[0]
        drafted = range(tokens.meta["val"].shape[1])
        on_path, depths = path_constants(program, self.tree, frontier, drafted)
        logits = penalized(program, self, logits, Paths(tokens=tokens, on_path=on_path, depths=depths))
        if states is not None:
            logits = emit(program, self, forbid, logits, states, *grammar_tables(program, self.grammar))
        return logits

    def _first_state(self, program: Program) -> fx.Node | None:
        if not self.grammar:
            return None
        return emit(program, self, _column, inputs.vector(program, "grammar_state"))

    def _next_states(self, program: Program, states: fx.Node | None, tokens: fx.Node, rows: fx.Node) -> fx.Node | None:
        """`[B, n]` states of the automaton behind one level's tokens, from those of the parents at `rows`."""
        if states is None:
            return None
        states = emit(program, self, _columns, states, rows)
        return emit(program, self, follow, states, tokens, *grammar_tables(program, self.grammar))

    def _force(self, program: Program, tokens: fx.Node, depth: int, laws: list[fx.Node]) -> fx.Node:
        """Tokens that the caller wants drafted in place of the drafter's own; their q is one-hot."""
        forced, start = inputs.forced(program, len(self.tree)), self.tree.level(depth)[0]
        tokens = emit(program, self, _forced, tokens, forced, start=start, vocab=self._vocab(program))
        if laws:
            laws[-1] = emit(program, self, _forced_law, laws[-1], forced, start=start)
        return tokens

    def _within(self, program: Program, forwarded: list[int], frontier: list[int]) -> fx.Node:
        """`[1, T, P + T]`: ancestors among the drafted rows."""
        ancestors = [[self.tree.ancestors[node][other] for other in [*forwarded, *frontier]] for node in frontier]
        name = f"tree.{label(self.tree)}.{_join(forwarded)}.{_join(frontier)}"
        return program.constant(name, torch.tensor([ancestors]))


def _join(numbers: object) -> str:
    return "_".join(map(str, numbers)) or "none"  # type: ignore[call-overload]


def _index(numbers: object) -> Tensor:
    return torch.tensor(list(numbers))  # type: ignore[call-overload]


def _column(vector: Tensor) -> Tensor:
    return vector[:, None]


def _forced(tokens: Tensor, forced: Tensor, *, start: int, vocab: int) -> Tensor:
    """An id of a padded row is drafted as the last known one, and not offered (`_valid`)."""
    wanted = forced[:, start : start + tokens.shape[1]].clamp(max=vocab - 1)
    return torch.where(wanted >= 0, wanted, tokens)


def _forced_law(law: Tensor, forced: Tensor, *, start: int) -> Tensor:
    wanted = forced[:, start : start + 1, None]
    one_hot = (torch.arange(law.shape[-1], device=law.device) == wanted).float()
    return torch.where(wanted >= 0, one_hot, law)


def _columns(tokens: Tensor, columns: Tensor) -> Tensor:
    return tokens.index_select(1, columns)


def _best(logits: Tensor) -> Tensor:
    return logits.argmax(-1)


def _best_children(logits: Tensor, picks: Tensor, *, width: int) -> Tensor:
    """The best `width` tokens of every parent, then those that the tree has."""
    return logits.topk(width, -1).indices.flatten(1).index_select(1, picks)


def _best_of(scores: Tensor, ids: Tensor, picks: Tensor, *, width: int) -> Tensor:
    """The same among the best tokens, whose ids stand beside the scores."""
    best = scores.topk(width, -1).indices
    return ids.gather(2, best).flatten(1).index_select(1, picks)


def _with_noise(scores: Tensor, ids: Tensor, gumbel: Tensor, *, row: int) -> Tensor:
    noise = gumbel[:, row : row + 1].expand(-1, ids.shape[1], -1)
    return scores + noise.gather(2, ids)


def _draw_draft(
    scores: Tensor, ids: Tensor, seed: Tensor, sample: Tensor, length: Tensor, *, depth: int, vocab: int
) -> tuple[Tensor, Tensor]:
    """A draw from q by its own stream of noise `[B, 1]`, and q itself `[B, 1, V]`."""
    position = positions_behind(length, depth)[:, depth - 1 :]
    noise = draw(seed, sample, position, stream=DRAFT, size=scores.shape[-1])
    token = ids.gather(2, (scores + noise).argmax(-1, keepdim=True)).squeeze(2)
    shares = torch.where(scores > float("-inf"), scores.softmax(-1), 0.0)  # not NaN where nothing may be drafted
    law = torch.zeros_like(scores[..., :1]).expand(-1, -1, vocab).scatter(2, ids, shares)
    return token, law


def _possible(logits: Tensor, tokens: Tensor, rows: Tensor) -> Tensor:
    """Whether each token `[B, n]` may follow its parent, whose logits are one of the rows of `[B, T, V]`."""
    return logits.flatten(1).gather(1, rows * logits.shape[2] + tokens) > float("-inf")


def _valid(
    depths: Tensor, draft_limit: Tensor, possible: Tensor, ancestors: Tensor, forced: Tensor, *, vocab: int
) -> Tensor:
    """Nodes that may be accepted; the root, and a token that the caller wants, need no law of the drafter's."""
    forced = forced[:, : depths.shape[1]]
    alone = (forced < vocab) & (torch.cat([torch.ones_like(possible[:, :1]), possible], 1) | (forced >= 0))
    broken = (ancestors & ~alone[:, None, :]).long().sum(-1)  # on the node's path, itself included
    return (depths <= draft_limit[:, None]) & (broken == 0)


def _side_by_side(*parts: Tensor) -> Tensor:
    return torch.cat(parts, 1)
