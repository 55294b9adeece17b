"""The drafter, level by level, in the step's graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, fx

from ..errors import PassError
from ..philox import DRAFT
from ..program import Level, Program
from ..tree import BEST, SAMPLED, DraftTree
from . import inputs
from .accept.automaton import follow, forbid
from .accept.noise import draw
from .accept.penalties import Paths
from .accept.processors import DRAFT_WIDTH, process_best
from .blocks import add_block
from .contract import Pass
from .count_tokens import CountTokens
from .drafter_rows import CatchUp, begin, give_caught_up, seen_rows
from .draw_noise import DrawNoise, positions_behind
from .graph import emit
from .process_logits import grammar_tables, path_constants, penalized
from .tree_mask import TreeMask, label
from .vocabulary import by_target_id


class Drafted(NamedTuple):
    """What one drafter gave: where it began, and level by level its tokens, which are possible, and their laws."""

    begun: CatchUp
    levels: list[fx.Node]
    possible: list[fx.Node]
    laws: list[fx.Node]


class UnrollDraft(Pass):
    """Catch the drafter up with the text, then draft the tree one level at a time.

    The catch-up rows (`history[drafter_length : target_length + 1]`, padded to D + 1) are known to be right and are the
    only ones that the drafter's caches get; rows of drafted tokens live within the step, so nothing is rolled back. A
    drafter that reads features gets the target's with the catch-up rows and its own with the drafted ones. One that is
    made of the target's layers begins with the root alone, over the target's caches, and has nothing to write. Several
    drafters draft a tree each, and the step's tree is theirs under one root (`DraftTree.times`): a sibling that repeats
    a token is harmless, for trees are compared with what the target says.

    Before: `tokens: i64[B, 1]`, `parents`, `depths`; for `rule="coupled"` also `gumbel`.
    After:  `tokens: i64[B, N]`, `valid: b8[B, N]` (within the request's draft length, and drafts of a law: a node
    whose parent's row forbids all that the drafter can say is not offered); for `rule="rejection"` on a
    chain also `q: f32[B, K, V]`, on a tree of `children="sampled"` `q_scores: f32[B, I, V]`, logits of q behind each of
    the I nodes with children; `drafter_length` and the drafter's caches as after the catch-up.
    Children: greedy and trees take the best tokens of their parent's row; `coupled` the best of logits + noise; a
    chain under `rejection` draws from q, and a tree of `children="sampled"` without replacement, in order.
    Source: SpecInfer (Miao et al. 2024), section 3; Leviathan et al. 2023; EAGLE (Li et al. 2024), section 4.1, for
    features; Sequoia (Chen et al. 2024), algorithm 2, for drawn children.
    """

    needs = (TreeMask, CountTokens)
    after = (DrawNoise,)
    reads = leaves = Level.CAPTURED
    preserves_outputs = False

    def __init__(
        self,
        *,
        tree: DraftTree,
        rule: str,
        grammar: int = 0,
        children: str = BEST,
        models: Sequence[str] = ("drafter",),
    ) -> None:
        self.tree = tree
        self.rule = rule
        self.grammar = grammar
        self.models = models
        self.drawn = rule == "rejection" and children == SAMPLED and not tree.is_chain

    def requires(self, program: Program) -> None:
        if not set(self.models) <= set(program.models):
            raise PassError(f"{program.name}: no drafter was captured; use LookupDraft or the plain step")

    def run(self, program: Program) -> int:
        if "valid" in program.values:
            return 0
        drafted = [self._draft(program, model, place) for place, model in enumerate(self.models)]
        levels = [level for one in drafted for level in one.levels]
        tokens = emit(program, self, _side_by_side, program.values["tokens"], *levels)
        can = emit(program, self, _side_by_side, *(part for one in drafted for part in one.possible))
        if len(drafted) > 1:
            places = [node for place in range(len(drafted)) for node in self._share(place)[1][1:]]
            order = [places.index(node) for node in range(1, len(self.tree))]
            tokens = emit(program, self, _columns, tokens, self._places(program, [0, *(place + 1 for place in order)]))
            can = emit(program, self, _columns, can, self._places(program, order))
        program.give(tokens=tokens)
        if laws := drafted[0].laws:
            program.give(**{"q_scores" if self.drawn else "q": emit(program, self, _side_by_side, *laws)})
        valid = self._valid(program, can)
        for one in drafted:  # each cuts it to what it could see
            give_caught_up(program, self, one.begun, program.values.get("valid", valid))
        return 1

    def _share(self, place: int) -> tuple[DraftTree, tuple[int, ...]]:
        """The tree of one of the drafters, and its nodes in the step's tree."""
        return self.tree.share(place, len(self.models))

    def _draft(self, program: Program, model: str, place: int) -> Drafted:
        """One drafter's share of the tree, level by level."""
        (tree, own), root = self._share(place), program.values["tokens"]
        forced = inputs.forced(program, len(self.tree))
        if len(self.models) > 1:
            forced = emit(program, self, _columns, forced, self._places(program, list(own)))
        begun = begin(program, self, rows=tree.depth + 1, model=model)
        logits, hidden = begun.logits, begun.hidden
        blocks, levels = [begun.block], [root]
        forwarded: list[int] = []
        laws: list[fx.Node] = []
        possible: list[fx.Node] = []
        frontier = [0]
        states = self._first_state(program)
        for depth in range(1, tree.depth + 1):
            logits = by_target_id(program, self, model, logits)
            logits = self._processed(program, tree, logits, levels, frontier, states)
            tokens = self._choose(program, tree, logits, depth, frontier, laws)
            tokens = self._force(program, tokens, forced, tree.level(depth)[0], laws)
            levels.append(tokens)
            nodes = list(tree.level(depth))
            rows = self._places(program, [frontier.index(tree.parents[node]) for node in nodes])
            possible.append(emit(program, self, _possible, laws[-1] if self.drawn else logits, tokens, rows))
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
            mask = seen_rows(program, self, begun, self._within(program, tree, forwarded, frontier))
            depths = program.constant(f"depth.{depth}.{len(frontier)}", torch.full((1, len(frontier)), depth))
            logits, block = add_block(
                program,
                self,
                model,
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
        return Drafted(begun, levels[1:], possible, laws)

    def _valid(self, program: Program, can: fx.Node) -> fx.Node:
        limits = [program.values["depths"], inputs.vector(program, "draft_limit")]
        ancestors, forced = program.values["ancestors"], inputs.forced(program, len(self.tree))
        if self.drawn:
            elders = program.constant(f"tree.{label(self.tree)}.elders", torch.tensor([_elders(self.tree)]))
            can = emit(program, self, _not_behind_given, can, forced, elders)
        return emit(program, self, _valid, *limits, can, ancestors, forced, vocab=self._vocab(program))

    def _vocab(self, program: Program) -> int:
        return program.models["target"].vocab_size

    def _places(self, program: Program, places: list[int]) -> fx.Node:
        return program.constant(f"rows.{_join(places)}", _index(places))

    def _choose(
        self,
        program: Program,
        tree: DraftTree,
        logits: fx.Node,
        depth: int,
        frontier: list[int],
        laws: list[fx.Node],
    ) -> fx.Node:
        """Tokens `[B, n]` of one level from the logits of its parents (`[B, len(frontier), V]`)."""
        widths = [len(tree.children(parent)) for parent in frontier]
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
        if self.drawn:
            key = [inputs.vector(program, n) for n in ("seed", "sample", "target_length")]
            sizes = {"depth": depth, "width": max(widths), "vocab": logits.meta["val"].shape[-1]}
            tokens, law = emit(program, self, _draw_children, scores, ids, index, *key, **sizes)
            laws.append(law)
            return tokens
        if self.rule == "coupled":
            scores = emit(program, self, _with_noise, scores, ids, program.values["gumbel"], row=depth - 1)
        return emit(program, self, _best_of, scores, ids, index, width=max(widths))

    def _processed(
        self,
        program: Program,
        tree: DraftTree,
        logits: fx.Node,
        levels: list[fx.Node],
        frontier: list[int],
        states: fx.Node | None,
    ) -> fx.Node:
        """The drafter's logits as the target's will be processed, which raises acceptance and nothing else."""
        tokens = emit(program, self, _side_by_side, *levels) if len(levels) > 1 else levels[0]
        drafted = range(tokens.meta["val"].shape[1])
        on_path, depths = path_constants(program, tree, frontier, drafted)
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

    def _force(self, program: Program, tokens: fx.Node, forced: fx.Node, start: int, laws: list[fx.Node]) -> fx.Node:
        """Tokens that the caller wants drafted in place of the drafter's own, from node `start` on; q is one-hot."""
        tokens = emit(program, self, _forced, tokens, forced, start=start, vocab=self._vocab(program))
        if laws and not self.drawn:
            laws[-1] = emit(program, self, _forced_law, laws[-1], forced, start=start)
        return tokens

    def _within(self, program: Program, tree: DraftTree, forwarded: list[int], frontier: list[int]) -> fx.Node:
        """`[1, T, P + T]`: ancestors among the drafted rows."""
        ancestors = [[tree.ancestors[node][other] for other in [*forwarded, *frontier]] for node in frontier]
        name = f"tree.{label(tree)}.{_join(forwarded)}.{_join(frontier)}"
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


def _draw_children(
    scores: Tensor,
    ids: Tensor,
    picks: Tensor,
    seed: Tensor,
    sample: Tensor,
    length: Tensor,
    *,
    depth: int,
    width: int,
    vocab: int,
) -> tuple[Tensor, Tensor]:
    """`width` draws of every parent without replacement, in order, then those that the tree has, `[B, n]`; and the
    logits of q, `[B, T, V]`.

    The best of log q + noise are such draws (Gumbel-top-k). Parents of one level share their noise: only one of them
    is ever on the accepted path.
    """
    position = positions_behind(length, depth)[:, depth - 1 :]
    noise = draw(seed, sample, position, stream=DRAFT, size=scores.shape[-1])
    best = (scores + noise).topk(width, -1).indices
    law = torch.full_like(scores[..., :1], float("-inf")).expand(-1, -1, vocab).scatter(2, ids, scores)
    return ids.gather(2, best).flatten(1).index_select(1, picks), law


def _elders(tree: DraftTree) -> list[list[bool]]:
    """`[i][j]`: j is a sibling of i that was drawn before it."""
    places = list(zip(tree.parents, range(len(tree)), strict=True))
    return [[0 < other < node and above == parent for above, other in places] for parent, node in places]


def _not_behind_given(possible: Tensor, forced: Tensor, elders: Tensor) -> Tensor:
    """`[B, N-1]`: of the drafted nodes not those that were drawn behind a sibling whose place a given token took: what
    they were drawn from is no longer known."""
    given = forced[:, : elders.shape[2]] >= 0
    return possible & ((elders & given[:, None, :]).long().sum(-1) == 0)[:, 1:]


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
