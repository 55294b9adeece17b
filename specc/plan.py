"""Which programs an engine has, and the pass list of each."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from .config import CompileConfig
from .drafter import DrafterSpec
from .passes import Pass, prefill_passes, step_passes
from .passes.expand_attention import Attends
from .passes.pipeline import DRAFT, VERIFY, WHOLE
from .passes.quantise_weights import Quantise
from .passes.skinny_linears import IsSkinny
from .program import Model, Program, Sizes, WeightStore
from .tree import BEST, DraftTree


@dataclass(frozen=True)
class ProgramPlan:
    """One program to be built: `rule`, `tree`, `batch`, `grammar`, `pool` and `children` for a step, `prefill` for that
    of a model, `draft_quant` for the drafter's weights in both; `part` of a step whose drafter is on a device of its
    own, and then `draft`, the name of the program that drafts for it."""

    name: str
    tree: DraftTree | None = None
    rule: str = ""
    prefill: str = ""
    batch: int = 1
    grammar: int = 0
    draft_quant: str = ""
    pool: int = 0
    children: str = BEST
    part: str = WHOLE
    draft: str = ""

    @property
    def drafts(self) -> bool:
        """Whether it runs a drafter and no target."""
        return self.part == DRAFT or self.prefill not in ("", "target")

    def passes(
        self,
        *,
        drafter: DrafterSpec,
        form: str = "in_place",
        noise: str = "ops",
        skinny: IsSkinny | None = None,
        attends: Attends | None = None,
        quantise: Quantise | None = None,
    ) -> list[Pass]:
        """The pass list; arguments as in `passes.pipeline`."""
        if self.tree is None:
            return prefill_passes(
                model=self.prefill,
                draft_quant=self.draft_quant,
                form=form,
                skinny=skinny,
                attends=attends,
                quantise=quantise,
            )
        return step_passes(
            tree=self.tree,
            rule=self.rule,
            drafter=drafter,
            grammar=self.grammar,
            draft_quant=self.draft_quant,
            pool=self.pool,
            children=self.children,
            part=self.part,
            form=form,
            noise=noise,
            skinny=skinny,
            attends=attends,
            quantise=quantise,
        )

    def models(self, models: Mapping[str, Model]) -> dict[str, Model]:
        """Copies of the models that this program runs."""
        if self.tree is None:
            wanted = {self.prefill}
        else:
            wanted = set(models) if self.tree.depth and self.part != VERIFY else {"target"}
        return {name: model.copy() for name, model in models.items() if name in wanted}

    def program(self, models: Mapping[str, Model], weights: WeightStore, sizes: Sizes, device: str) -> Program:
        """An empty program, ready for the passes; `models` were captured for its rows."""
        return Program(self.name, self.models(models), weights, dataclasses.replace(sizes, batch=self.batch), device)


def plan_programs(config: CompileConfig) -> Iterator[ProgramPlan]:
    """The programs of an engine, longest to compile first, so that two workers end together."""
    plain = DraftTree.chain(0)
    draft = config.draft
    draft_quant, siblings = draft.draft_quant or "", draft.children
    step = functools.partial(
        ProgramPlan, grammar=config.grammar, draft_quant=draft_quant, pool=config.ngram_pool, children=siblings
    )
    for batch in sorted({1, config.batch}, reverse=True):
        rows = f"_b{batch}" if batch > 1 else ""
        for place, tree in enumerate(config.shapes()):
            length = f"_k{tree.depth}" if place else ""
            for rule in (*config.rules(), "greedy"):
                name = f"{'' if rule == 'greedy' else '_' + rule}{length}{rows}"
                if config.draft_device is None:
                    yield step(f"step{name}", tree, rule, batch=batch)
                else:
                    yield step(f"draft{name}", tree, rule, batch=batch, part=DRAFT)
                    yield step(f"step{name}", tree, rule, batch=batch, part=VERIFY, draft=f"draft{name}")
        yield step(f"plain_sampled{rows}", plain, "coupled", batch=batch)
        yield step(f"plain{rows}", plain, "greedy", batch=batch)
    yield ProgramPlan("prefill_target", prefill="target")
    for model in config.drafting().roles if config.drafting().has_cache else ():
        yield ProgramPlan(f"prefill_{model}", prefill=model, draft_quant=config.draft.draft_quant or "")
