"""Programs of a tiny pair, built once, and a host loop that runs them in eager mode."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from helpers.models import tiny_drafter, tiny_model
from torch import Tensor, fx

from specc.capture import capture
from specc.capture.feature_drafter import FeatureDrafter, capture_drafter
from specc.capture.load import LoadedModel
from specc.drafter import parse_drafter
from specc.passes import prefill_passes, run, step_passes
from specc.passes.contract import Pass
from specc.passes.lower_attention import LowerAttention
from specc.program import Level, Model, Program, Sizes, WeightStore, graph_module
from specc.tree import DraftTree

SLOTS, CHUNK = 96, 16
PLAIN = DraftTree.chain(0)


@dataclass(eq=False)
class Pair:
    """Target and drafter as transformers models, and their captured forms over one weight store."""

    target: Any
    drafter: Any
    vocab: int = 128
    store: WeightStore = field(default_factory=WeightStore)
    captured: dict[tuple[str, int], Model] = field(default_factory=dict)
    features: FeatureDrafter | None = None  # in place of `drafter`
    maps: dict[str, Tensor] = field(default_factory=dict)  # the drafter's `fed_as` and `column_of`
    kept: tuple[int, ...] = ()  # layers of the target that the drafter is made of
    second: Any = None  # another drafter beside it

    @property
    def roles(self) -> tuple[str, ...]:
        """Names of the drafters' models."""
        return ("drafter",) if self.second is None else ("drafter", "drafter2")

    def model(self, name: str, batch: int = 1) -> Model:
        """The captured model, exported once a batch size."""
        if (name, batch) not in self.captured:
            taps = self.features and self.features.taps
            if name == "target":
                model = capture(self.target, name=name, batch=batch, taps=taps)
            elif self.features is not None:
                model = capture_drafter(self.features, loaded(self.target), batch=batch)
            else:
                model = capture(self.drafter if name == "drafter" else self.second, name=name, batch=batch)
            if name == "drafter":
                model = dataclasses.replace(model.with_vocabulary(**self.maps), kept=self.kept)
            self.captured[name, batch] = model
            for key, weight in model.weights.items():
                self.store.add(key, weight)
        return self.captured[name, batch]


def loaded(target: Any) -> LoadedModel:
    """A tiny target as `load_model` gives it, as far as importers of drafters look."""
    config = target.config
    size, most = config.vocab_size, config.max_position_embeddings
    return LoadedModel(target, None, config, (2,), size, most, "tiny", "0", type(target).__name__, None)


@functools.lru_cache
def pair(kind: str = "near", vocab: int = 128) -> Pair:
    """A tiny pair: the drafter agrees often (`near`), always (`equal`), or is another model of the class (`other`)."""
    sizes = {} if vocab == 128 else {"vocab_size": vocab}
    target = tiny_model(**sizes)
    if kind == "other":
        return Pair(target, tiny_model(seed=9, num_hidden_layers=1, **sizes), vocab)
    return Pair(target, tiny_drafter(target, {"near": 0.03, "equal": 0.0}[kind]), vocab)


def fresh(
    models: Pair, *, batch: int = 1, slots: int = SLOTS, chunk: int = CHUNK, name: str = "step", own_store: bool = False
) -> Program:
    """An empty program over copies of the captured models; `own_store` keeps new weights out of the pair's store."""
    copies = {key: models.model(key, batch).copy() for key in ("target", *models.roles)}
    store = models.store
    if own_store:
        store = WeightStore()
        for model in copies.values():
            store.tensors.update(model.weights)
    return Program(name, copies, store, Sizes(batch, slots, chunk))


@dataclass(eq=False)
class Built:
    """A program at its last level, ready to be called with tensors by name."""

    program: Program
    module: fx.GraphModule
    inputs: dict[str, Tensor]
    outputs: tuple[str, ...]

    def __call__(self, state: dict[str, Tensor], **more: Tensor) -> dict[str, Tensor]:
        """Run; caches in `state` are written in place, results are returned by name."""
        given = {**state, **more}
        return self.module(*[given[name] for name in self.inputs])


def built(program: Program) -> Built:
    """The program as it stands, over a copy of its graph (so that passes may go on)."""
    return Built(program, module_of(program), example_inputs(program), tuple(program.values))


def module_of(program: Program) -> fx.GraphModule:
    """A module over a copy of the program's graph."""
    graph, env = fx.Graph(), {}
    graph.output(graph.graph_copy(program.graph, env))
    return graph_module(graph, {name: program.weights[name] for name in program.weight_names()})


@functools.lru_cache
def build(
    kind: str,
    *,
    tree: DraftTree = PLAIN,
    rule: str = "greedy",
    drafter: str = "model",
    models: Pair | None = None,
    batch: int = 1,
    slots: int = SLOTS,
    grammar: int = 0,
    children: str = "best",
) -> Built:
    """A bound program: `kind` is `step`, or `prefill_target` or `prefill_drafter` (one row, no rule)."""
    program = fresh(models or pair(), batch=batch, slots=slots, name=kind)
    if kind.startswith("prefill_"):
        run(program, prefill_passes(model=kind.removeprefix("prefill_")))
    else:
        spec = parse_drafter(drafter)
        run(program, step_passes(tree=tree, rule=rule, drafter=spec, grammar=grammar, children=children))
    return built(program)


def until(stem: str | None, passes: Iterable[Pass], **sizes: Any) -> Program:
    """A new program after every pass in front of the one called `stem` (None: after all of them)."""
    models = sizes.pop("models", None) or pair()
    program, done = fresh(models, own_store=True, **sizes), []
    for pass_ in passes:
        if pass_.stem() == stem:
            break
        done.append(pass_)
    run(program, done)
    return program


def lowered(program: Program) -> Built:
    """A part of a step with its attention lowered, so that its numbers mean something."""
    program.level = Level.FUSED
    LowerAttention().run(program)
    return built(program)


def example_inputs(program: Program, seed: int = 0) -> dict[str, Tensor]:
    """Random inputs that a step may get: lengths inside the cache, ids inside the vocabulary, every row active."""
    generator = torch.Generator().manual_seed(seed)
    slots, batch = program.sizes.slots, program.sizes.batch
    vocab = min([model.vocab_size for model in program.models.values()], default=16)
    length = torch.full((batch,), slots // 3)
    known = {
        "target_length": length,
        "drafter_length": length - 1,
        "active": torch.ones(batch, dtype=torch.bool),
        "limit": torch.full((batch,), slots // 2),
        "draft_limit": torch.full((batch,), 16),
        "eos": torch.full((batch, 8), -1),
        "seed": torch.arange(batch) + 7,
        "sample": torch.zeros(batch, dtype=torch.long),
        "temperature": torch.full((batch,), 0.8),
        "top_k": torch.full((batch,), 20),
        "top_p": torch.full((batch,), 0.9),
        **neutral(program),
        "start": torch.tensor([3]),
        "bucket": torch.zeros(slots // 2, dtype=torch.uint8),
    }
    made = {}
    for node in program.graph.find_nodes(op="placeholder"):
        value = node.meta["val"]
        if node.target in known:
            made[node.target] = known[node.target].clone()
        elif value.dtype == torch.long:
            made[node.target] = torch.randint(3, vocab, tuple(value.shape), generator=generator)
        elif value.dtype == torch.bool:
            made[node.target] = torch.ones(tuple(value.shape), dtype=torch.bool)
        else:
            made[node.target] = torch.randn(tuple(value.shape), generator=generator, dtype=torch.float32).to(
                value.dtype
            )
    return made


def neutral(program: Program) -> dict[str, Tensor]:
    """Parameters that change nothing, for every input of that kind that the program has."""
    values = {"min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    values |= {"bias": 0.0, "prompt_length": 0, "min_length": 0, "forced": -1}
    values |= {"grammar_classes": 1, "grammar_class": 0, "grammar_next": 0, "grammar_state": 0}
    placeholders = {str(node.target): node.meta["val"] for node in program.graph.find_nodes(op="placeholder")}
    return {
        name: torch.full(tuple(placeholders[name].shape), value, dtype=placeholders[name].dtype)
        for name, value in values.items()
        if name in placeholders
    }


class Session:
    """The host's side of an engine: texts, prefill, steps, and the drafter's catch-up."""

    def __init__(
        self,
        models: Pair | None = None,
        *,
        tree: DraftTree = PLAIN,
        rule: str = "greedy",
        drafter: str = "model",
        batch: int = 1,
        slots: int = SLOTS,
        grammar: int = 0,
        children: str = "best",
        step: Built | None = None,
        edit: Callable[[dict[str, Tensor]], None] | None = None,
    ) -> None:
        self.models, self.tree, self.rule, self.slots = models or pair(), tree, rule, slots
        self.batch = batch
        same = {"rule": rule, "models": self.models, "batch": batch, "slots": slots, "grammar": grammar}
        self.step_program = step or build("step", tree=tree, drafter=drafter, children=children, **same)
        self.plain_program = functools.partial(build, "step", **same)
        self.has_drafter = "drafter_length" in self.step_program.inputs
        self.shift = 1 if self.has_drafter and self.models.model("drafter").features else 0
        self.edit = edit  # a planted fault in the state before each step
        self.stats = {"steps": 0, "accepted": 0, "offered": 0}

    def start(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        new: int = 40,
        eos: Sequence[int] = (),
        draft_limit: int = 16,
        seeds: Sequence[int] = (5,),
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        context: int | None = None,
        **parameters: Any,
    ) -> Session:
        """Take the prompts, one a row (one prompt or seed serves all rows), and prefill.

        `parameters` are other inputs of the program, by name: a number for all rows, or the whole tensor.
        """
        rows, programs = self.batch, [self.step_program]
        if not self.step_program.program.values.get("report"):
            raise ValueError("not a step program")
        prompts = [list(p) for p in prompts] * (rows if len(prompts) == 1 else 1)
        seeds = list(seeds) * (rows if len(seeds) == 1 else 1)
        self.texts, self.prompts = [list(p) for p in prompts], [len(p) for p in prompts]
        self.state = {
            name: torch.zeros(value.shape, dtype=value.dtype) for b in programs for name, value in b.inputs.items()
        }
        self._set(**neutral(self.step_program.program))
        for name, value in parameters.items():
            own = self.state[name]
            self._set(**{name: value if isinstance(value, Tensor) else torch.full(own.shape, value, dtype=own.dtype)})
        context = min(self.slots - max(self.tree.depth + 1, CHUNK), context or self.slots)
        lengths = torch.tensor(self.prompts)
        self._set(prompt_length=lengths)
        self._set(limit=(lengths + new).clamp(max=context), seed=torch.tensor(seeds), sample=torch.zeros(rows).long())
        self._set(active=torch.ones(rows, dtype=torch.bool), draft_limit=torch.full((rows,), draft_limit))
        self._set(eos=torch.tensor([[*eos, *[-1] * (8 - len(eos))]] * rows), top_k=torch.full((rows,), top_k))
        self._set(temperature=torch.full((rows,), temperature), top_p=torch.full((rows,), top_p))
        self._set(target_length=lengths - 1, drafter_length=torch.zeros(rows).long())
        for row, prompt in enumerate(prompts):
            self.state["history"][row, : len(prompt)] = torch.tensor(prompt)
        for model in ("target", *self.models.roles) if self.has_drafter else ("target",):
            for row in range(rows):
                self.prefill(model, row, 0, len(prompts[row]) - 1 - (self.shift if model == "drafter" else 0))
        if self.has_drafter:
            self._set(drafter_length=(lengths - 1 - self.shift).clamp(min=0))
        return self

    def prefill(self, model: str, row: int, start: int, end: int) -> None:
        """Fill slots `start..end - 1` of one row's caches from its text."""
        shift = self.shift if model == "drafter" else 0
        for first in range(start, end, CHUNK):
            program = build(f"prefill_{model}", models=self.models, slots=self.slots)
            part = self.texts[row][first + shift : min(first + CHUNK, end) + shift]
            tokens = torch.tensor([part + [0] * (CHUNK - len(part))])
            own = {k: v[row : row + 1] for k, v in self.state.items() if k in program.inputs and v.ndim == 4}
            missing = {k: v for k, v in program.inputs.items() if k not in own}
            program({**missing, **own}, tokens=tokens, start=torch.tensor([first]), bucket=self._bucket())

    def step(self, plain: bool = False) -> list[list[int]]:
        """One call; the tokens that each row emitted."""
        program = self.plain_program(tree=PLAIN) if plain else self.step_program
        if self.edit is not None:
            self.edit(self.state)
        if not plain and self.has_drafter:
            self.catch_up()
        results = program(self.state, bucket=self._bucket())
        for name, value in results.items():
            if name in self.state:
                assert value.shape == self.state[name].shape and value.dtype == self.state[name].dtype
                self.state[name] = value
        block = results["report"].shape[1] - 3
        emitted = []
        for row, report in enumerate(results["report"].tolist()):
            tokens, (count, accepted, offered) = report[:block], report[block:]
            self.texts[row] += tokens[:count]
            emitted.append(tokens[:count])
            self.stats["accepted"] += accepted
            self.stats["offered"] += offered
        self.stats["steps"] += 1
        self.last = results["report"]
        return emitted

    def catch_up(self) -> None:
        """Run the drafter's prefill where more is pending than a step takes."""
        for row in range(self.batch):
            target, drafter = (int(self.state[f"{m}_length"][row]) for m in ("target", "drafter"))
            if target - self.shift - drafter > self.tree.depth:
                for model in self.models.roles:
                    self.prefill(model, row, drafter, target - self.shift)
                self.state["drafter_length"][row] = target - self.shift

    def run(self, most: int = 400) -> list[list[int]]:
        """Steps until no row is active; the new tokens of each row."""
        while bool(self.state["active"].any()):
            self.step()
            most -= 1
            assert most, "the rows do not come to an end"
        return self.new()

    def new(self) -> list[list[int]]:
        """The tokens behind each row's prompt."""
        return [text[n:] for text, n in zip(self.texts, self.prompts, strict=True)]

    def _set(self, **values: Tensor) -> None:
        self.state.update(values)  # parameters that a rule does not read are kept: the plain program may

    def _bucket(self) -> Tensor:
        lengths = [int(self.state[n].max()) for n in ("target_length", "drafter_length") if n in self.state]
        return torch.zeros(max(2, *lengths) if len(lengths) > 1 else max(2, lengths[0]), dtype=torch.uint8)


def decode(
    prompt: Sequence[int],
    *,
    models: Pair | None = None,
    tree: DraftTree = PLAIN,
    rule: str = "greedy",
    drafter: str = "model",
    slots: int = SLOTS,
    **request: Any,
) -> list[int]:
    """The new tokens of one prompt."""
    session = Session(models, tree=tree, rule=rule, drafter=drafter, slots=slots)
    return session.start([prompt], **request).run()[0]


def prompt(length: int = 20, seed: int = 0, vocab: int = 128) -> list[int]:
    """Random ids, none of them special."""
    return torch.randint(3, vocab, (length,), generator=torch.Generator().manual_seed(seed)).tolist()
