"""THE list: what happens to every program, in order, and why in that order."""

from __future__ import annotations

from ..drafter import LOOKAHEAD, MEDUSA, NGRAM, DrafterSpec
from ..tree import BEST, DraftTree, DynamicTree
from .accept_draft import AcceptDraft
from .bind_state import BindState
from .commit import Commit
from .contract import Pass
from .count_tokens import CountTokens
from .draw_noise import DrawNoise
from .expand_attention import Attends, ExpandAttention
from .fuse_linears import FuseLinears
from .give_draft import GiveDraft
from .grow_tree import GrowTree
from .heads_draft import HeadsDraft
from .inline_prefill import InlinePrefill
from .inline_verify import InlineVerify
from .lookahead_draft import LookaheadDraft
from .lookahead_update import LookaheadUpdate
from .lookup_draft import LookupDraft
from .lookup_first import LookupFirst
from .lower_attention import LowerAttention
from .normalize import Normalize
from .process_logits import ProcessLogits
from .quantise_draft import QuantiseDraft
from .quantise_weights import Quantise, QuantiseWeights
from .quantised_linears import QuantisedLinears
from .read_root import ReadRoot
from .read_rows import ReadRows
from .rotary_tables import RotaryTables
from .share_weights import ShareWeights
from .skinny_linears import IsSkinny, SkinnyLinears
from .take_draft import TakeDraft
from .tree_mask import TreeMask
from .unroll_draft import UnrollDraft

WHOLE, DRAFT, VERIFY = "", "draft", "verify"  # parts of a step


def step_passes(
    *,
    tree: DraftTree,
    rule: str,
    drafter: DrafterSpec,
    grammar: int = 0,
    draft_quant: str = "",
    pool: int = 0,
    children: str = BEST,
    part: str = WHOLE,
    form: str = "in_place",
    noise: str = "ops",
    skinny: IsSkinny | None = None,
    attends: Attends | None = None,
    quantise: Quantise | None = None,
) -> list[Pass]:
    """Passes of one step, or of that part of one which runs on a device of its own.

    Args:
        tree: what is drafted; a chain of 0 is the plain step.
        rule: `greedy`, `coupled`, `rejection` or `typical`.
        drafter: how the step drafts, as `drafter.parse_drafter` reads it.
        grammar: entries of a row's automaton table; 0 leaves constrained output out.
        draft_quant: `int8` or `int4` for the drafter's weights; empty leaves them as they are.
        pool: tokens of ended texts that n-gram lookup searches too.
        children: how siblings of a tree come about under `rejection`, `best` or `sampled`.
        part: what the program does of it: all, only draft, or only verify a draft that it is given.
        form, noise: how the back end takes cache writes and noise (`BindState`).
        skinny, attends: which products and attentions are native (`SkinnyLinears`, `ExpandAttention`); without, none.
        quantise: how the back end stores weights in bytes (`QuantiseWeights`); None leaves them as they are.
    """
    dynamic = tree if isinstance(tree, DynamicTree) else None
    drafts, verifies = tree.depth > 0 and part != VERIFY, part != DRAFT
    unrolled = drafts and drafter.by_level
    return [
        p
        for p in (
            # capture clean-up, on the models
            Normalize(),
            RotaryTables(),  # after Normalize: equal chains of positions have become one
            # speculation: the step's graph grows stage by stage
            ReadRoot(),
            not dynamic and TreeMask(tree=tree),
            CountTokens(),  # before drafting: drafter and target are penalized alike
            rule != "greedy" and DrawNoise(depth=tree.depth),  # before drafting: drafter and target share it
            unrolled
            and not dynamic
            and UnrollDraft(tree=tree, rule=rule, grammar=grammar, children=children, models=drafter.roles),
            unrolled and dynamic and GrowTree(tree=dynamic, rule=rule, grammar=grammar),
            drafts and drafter.kind == MEDUSA and HeadsDraft(tree=tree, rule=rule),
            drafts and drafter.kind == NGRAM and LookupDraft(tree=tree, longest=drafter.longest_suffix, pool=pool),
            drafts and drafter.kind == LOOKAHEAD and LookaheadDraft(tree=tree, window=drafter.numbers[0]),
            drafts and drafter.lookup and LookupFirst(tree=tree, longest=drafter.longest_suffix),
            part == VERIFY and TakeDraft(tree=tree),
            part == DRAFT and GiveDraft(),
            verifies and InlineVerify(mask=GrowTree if drafts and dynamic else TreeMask),
            verifies and ProcessLogits(tree=tree, rule=rule, grammar=grammar),
            verifies and AcceptDraft(rule=rule, tree=tree),
            drafts and drafter.kind == LOOKAHEAD and LookaheadUpdate(),
            verifies and Commit(grammar=grammar),
            # state
            LowerAttention(),  # first to replace nodes: it reads the blocks that the stages noted
            ReadRows(),
            # weights: alike in all programs, since they share the stored tensors
            ShareWeights(),
            FuseLinears(),  # after ShareWeights: joining hides a part's content
            drafts and draft_quant and QuantiseDraft(kind=draft_quant),  # FuseLinears joins weights as they are
            quantise and QuantiseWeights(quantise=quantise),
            *bound_passes(form=form, noise=noise, skinny=skinny, attends=attends),
        )
        if p
    ]


def prefill_passes(
    *,
    model: str,
    draft_quant: str = "",
    form: str = "in_place",
    skinny: IsSkinny | None = None,
    attends: Attends | None = None,
    quantise: Quantise | None = None,
) -> list[Pass]:
    """Passes of one model's prefill; arguments as in `step_passes`."""
    return [
        Normalize(),
        RotaryTables(),
        InlinePrefill(model=model),
        LowerAttention(),
        ShareWeights(),
        FuseLinears(),
        *([QuantiseDraft(kind=draft_quant)] if draft_quant else []),
        *([QuantiseWeights(quantise=quantise)] if quantise else []),
        *bound_passes(form=form, skinny=skinny, attends=attends),
    ]


def bound_passes(
    *, form: str = "in_place", noise: str = "ops", skinny: IsSkinny | None = None, attends: Attends | None = None
) -> list[Pass]:
    """The end of every list, the back end's own; engines keep the graph in front of it, for other back ends.

    Args as in `step_passes`.
    """
    return [
        BindState(form=form, noise=noise),  # writes stand behind every read
        SkinnyLinears(skinny=skinny),  # after FuseLinears and ReadRows: both change shapes and rows
        QuantisedLinears(skinny=skinny),
        ExpandAttention(attends=attends),
    ]
