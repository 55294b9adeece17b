"""Programs: which program of an engine serves what, found by rule, tree and rows, never by name."""

from __future__ import annotations

from typing import NamedTuple

from ..errors import EngineFormatError
from ..manifest import LOSSY, EngineManifest

Paths = tuple[tuple[int, ...], ...]  # of a tree, as `DraftTree` has them
RULES = ("coupled", "rejection", *LOSSY)  # those that sample; the first that is compiled and not lossy is the default
BY_DRAFT = ("rejection", *LOSSY)  # those under which a text depends on what is drafted


class StepProgram(NamedTuple):
    """A program that makes a step: `nodes` tokens are verified, `depth` levels of them drafted, for `batch` rows."""

    name: str
    rule: str
    paths: Paths
    batch: int

    @property
    def depth(self) -> int:
        """Levels that it drafts; 0 is a plain step."""
        return len(self.paths[-1])

    @property
    def nodes(self) -> int:
        """Nodes of its tree, the root included."""
        return len(self.paths)

    @property
    def family(self) -> Paths:
        """Steps whose levels are accepted alike: a tree is on its own, chains are parts of one another."""
        return () if self.nodes == self.depth + 1 else self.paths


class Programs:
    """The step programs of an engine.

    Attributes:
        steps: all of them.
        depth: the deepest draft of any program; sets the slack behind the context.
    """

    def __init__(self, manifest: EngineManifest) -> None:
        self._manifest = manifest
        self.steps = [
            StepProgram(name, spec.rule, spec.tree_paths, spec.batch)
            for name, spec in manifest.programs.items()
            if spec.rule
        ]
        self.depth = max([len(manifest.tree_paths[-1]), *(step.depth for step in self.steps)])

    def find(self, rule: str, length: int, rows: int, tree: Paths | None = None) -> StepProgram | None:
        """The program that drafts `length` levels or more with the fewest nodes, the main tree before others.

        Args:
            rule: `greedy`, `coupled`, `rejection` or `typical`.
            length: levels to draft; 0 is a plain step.
            rows: 1, or the engine's.
            tree: the one that is wanted before all others, if it drafts so many levels.
        """
        fitting = [
            step
            for step in self.steps
            if (step.rule, step.batch) == (rule, rows) and (step.depth >= length if length else not step.depth)
        ]
        main = len(self._manifest.tree_paths[-1]) == length
        order = {
            step: (step.paths != tree, main and step.paths != self._manifest.tree_paths, step.nodes) for step in fitting
        }
        return min(fitting, key=order.__getitem__, default=None)

    def shapes(self, rule: str) -> list[StepProgram]:
        """What a rule can draft: its programs of one row, those of the fewest nodes first."""
        return sorted((s for s in self.steps if (s.rule, s.batch) == (rule, 1)), key=lambda s: s.nodes)

    def rules(self) -> list[str]:
        """Rules by which this engine speculates when it samples, the default first."""
        return [rule for rule in RULES if any(step.rule == rule and step.depth for step in self.steps)]

    def longest(self, rule: str) -> int:
        """The most levels that can be drafted under a rule."""
        return max((step.depth for step in self.steps if step.rule == rule), default=0)

    def all_read(self, tensor: str, sampled: bool = False) -> bool:
        """Whether every step program (or every one that samples) has this input."""
        return all(self.reads(step, tensor) for step in self.steps if step.rule in RULES or not sampled)

    def reads(self, step: StepProgram, tensor: str) -> bool:
        """Whether a program, or the one that drafts for it, has this input."""
        programs = self._manifest.programs
        spec = programs[step.name]
        return tensor in spec.inputs or (bool(spec.draft) and tensor in programs[spec.draft].inputs)

    def all_return(self, tensor: str) -> bool:
        """Whether every step program has this output."""
        return all(tensor in self._manifest.programs[step.name].outputs for step in self.steps)

    def check(self) -> None:
        """Every step must be there for one row and for all; and the slots behind the context must hold its padding.

        Native code does not check where it writes, so the room is checked here.

        Raises:
            EngineFormatError: a program is missing, or caches are too small.
        """
        manifest = self._manifest
        for step in self.steps:
            other = 1 if step.batch > 1 else manifest.batch
            if not any(s.rule == step.rule and s.paths == step.paths and s.batch == other for s in self.steps):
                raise EngineFormatError(
                    f"program {step.name} has none like it for {other} rows; compile the engine again"
                )
        needed = max(self.depth + 1, manifest.chunk)
        short = [
            f"{spec.name} {spec.shape}"
            for spec in manifest.tensors
            if spec.role == "cache" and spec.shape[2 if len(spec.shape) == 4 else 1] != manifest.slots
        ]
        if manifest.slots < manifest.context + needed or short:
            raise EngineFormatError(
                f"caches of {manifest.slots} slots ({', '.join(short) or 'all'}) do not fit a context of "
                f"{manifest.context} with {needed} slots behind it; compile the engine again"
            )
