"""The target's logits through every processor that comes before temperature, node by node."""

from __future__ import annotations

import torch
from torch import Tensor, fx

from ..program import Level, Program
from ..tree import DraftTree, DynamicTree
from . import inputs
from .accept.automaton import follow_tree, forbid
from .accept.penalties import Counts, Paths, Penalties, penalize
from .accept.processors import process
from .contract import Pass
from .count_tokens import CountTokens
from .graph import emit
from .inline_verify import InlineVerify
from .tree_mask import label

GRAMMAR = ("grammar_next", "grammar_class", "grammar_classes")


class ProcessLogits(Pass):
    """Bias, penalties, least length and grammar, each along the node's own path; then the sampled law.

    Before: `logits: f32[B, N, V]`, `tokens`, `parents`, `depths`, `in_text`, `generated`, `ends`.
    After:  `processed: f32[B, N, V]`, what the choice is made from; `states: i64[B, N]` where there is a grammar. A
    greedy program stops before temperature. `logits` stays as the model gave it.
    """

    needs = (InlineVerify, CountTokens)
    reads = leaves = Level.CAPTURED
    preserves_outputs = False

    def __init__(self, *, tree: DraftTree, rule: str, grammar: int = 0) -> None:
        self.tree = tree
        self.rule = rule
        self.grammar = grammar

    def run(self, program: Program) -> int:
        if "processed" in program.values:
            return 0
        values = program.values
        scores = penalized(program, self, values["logits"], self._paths(program))
        if self.grammar:
            table = grammar_tables(program, self.grammar)
            start = inputs.vector(program, "grammar_state")
            states = emit(
                program, self, follow_tree, start, values["tokens"], values["parents"], *table, depth=self.tree.depth
            )
            scores = emit(program, self, forbid, scores, states, *table)
            program.give(states=states)
        if self.rule != "greedy":
            scores = emit(program, self, process, scores, *inputs.sampling(program))
        program.give(processed=scores)
        program.drop("in_text", "generated", "ends")
        return 1

    def _paths(self, program: Program) -> Paths:
        """Who is on whose path; as `path_constants` has it where the tree is known beforehand."""
        values, every = program.values, range(len(self.tree))
        if isinstance(self.tree, DynamicTree):
            on_path, depths = emit(program, self, _drafted, values["ancestors"]), values["depths"]
        else:
            on_path, depths = path_constants(program, self.tree, every, every)
        return Paths(tokens=values["tokens"], on_path=on_path, depths=depths)


def _drafted(ancestors: Tensor) -> Tensor:
    """`[B, N, N]` float32, the root on no path: the counts hold it."""
    return torch.cat([torch.zeros_like(ancestors[:, :, :1]), ancestors[:, :, 1:]], 2).float()


def penalized(program: Program, maker: object, logits: fx.Node, paths: Paths) -> fx.Node:
    """`penalize` with the request's parameters; the target's and the drafter's side of it."""
    counts = Counts(**{name: program.values[name] for name in Counts._fields})
    asked = Penalties(
        repetition=inputs.vector(program, "repetition_penalty"),
        presence=inputs.vector(program, "presence_penalty"),
        frequency=inputs.vector(program, "frequency_penalty"),
        min_length=inputs.vector(program, "min_length"),
        bias=inputs.bias(program),
    )
    return emit(program, maker, penalize, logits, inputs.vector(program, "target_length"), counts, paths, asked)


def grammar_tables(program: Program, size: int) -> list[fx.Node]:
    """The automaton's inputs: its table, the class of each token, the number of classes."""
    vocab = program.models["target"].vocab_size
    return [
        inputs.grammar_next(program, size),
        inputs.grammar_class(program, vocab),
        inputs.vector(program, "grammar_classes"),
    ]


def path_constants(
    program: Program, tree: DraftTree, nodes: range | list[int], columns: range | list[int]
) -> tuple[fx.Node, fx.Node]:
    """Which of the drafted `columns` are on the path of each of `nodes` (`[1, T, P]` float32, the root on none), and
    the depths of `nodes` (`[1, T]` int64)."""
    name = f"{label(tree)}.{_join(nodes)}.{_join(columns)}"
    on_path = [[float(column > 0 and tree.ancestors[node][column]) for column in columns] for node in nodes]
    depths = torch.tensor([[tree.depths[node] for node in nodes]])
    return (
        program.constant(f"path.{name}", torch.tensor([on_path])),
        program.constant(f"path_depths.{name}", depths),
    )


def _join(numbers: range | list[int]) -> str:
    return f"{numbers[0]}-{numbers[-1]}" if isinstance(numbers, range) else "_".join(map(str, numbers))
