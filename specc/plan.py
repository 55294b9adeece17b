"""Which programs an engine has, and the pass list of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .config import CompileConfig
from .passes import Pass, prefill_passes, step_passes
from .passes.skinny_linears import ChooseForm
from .program import Model, Program, Sizes, WeightStore
from .tree import DraftTree


@dataclass(frozen=True)
class ProgramPlan:
    """One program to be built: `rule` and `tree` for a step, `prefill` for the prefill of a model."""

    name: str
    tree: DraftTree | None = None
    rule: str = "greedy"
    prefill: str = ""

    def passes(self, *, drafter: str, choose: ChooseForm | None, form: str = "in_place") -> list[Pass]:
        """The pass list; `drafter` is `model` or `ngram`, the rest as in `passes.pipeline`."""
        if self.tree is None:
            return prefill_passes(model=self.prefill, form=form, choose=choose)
        return step_passes(tree=self.tree, rule=self.rule, drafter=drafter, form=form, choose=choose)

    def models(self, models: dict[str, Model]) -> dict[str, Model]:
        """Copies of the models that this program runs."""
        if self.tree is None:
            wanted = {self.prefill}
        else:
            wanted = {"target", "drafter"} if self.tree.depth else {"target"}
        return {name: model.copy() for name, model in models.items() if name in wanted}

    def program(self, models: dict[str, Model], weights: WeightStore, sizes: Sizes, device: str) -> Program:
        """An empty program, ready for the passes."""
        batch = sizes.batch if self.tree is not None else 1  # prefill takes one row at a time
        return Program(self.name, self.models(models), weights, Sizes(batch, sizes.slots, sizes.chunk), device)


def plan_programs(config: CompileConfig, drafter: str) -> Iterator[ProgramPlan]:
    """The programs of an engine, longest to compile first, so that two workers end together."""
    tree, plain = config.draft.shape(), DraftTree.chain(0)
    for rule in config.rules():
        yield ProgramPlan(f"step_{rule}", tree, rule)
    yield ProgramPlan("step", tree)
    yield ProgramPlan("plain_sampled", plain, "coupled")
    yield ProgramPlan("plain", plain)
    yield ProgramPlan("prefill_target", prefill="target")
    if drafter == "model":
        yield ProgramPlan("prefill_drafter", prefill="drafter")
