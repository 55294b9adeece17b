"""Programs of the tiny pair, and a step loop over anything that runs them."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from specc.capture import capture
from specc.drafter import parse_drafter
from specc.passes import prefill_passes, run, step_passes
from specc.program import Model, Program, Sizes, WeightStore
from specc.tree import DraftTree

from .models import tiny_drafter, tiny_model

SIZES = Sizes(batch=1, slots=120, chunk=16)
Step = Callable[[dict[str, Tensor]], dict[str, Tensor]]


@functools.cache
def captured() -> tuple[dict[str, Model], WeightStore]:
    """The tiny pair, captured once, and the store of its weights."""
    target = tiny_model()
    models = {"target": capture(target, name="target"), "drafter": capture(tiny_drafter(target, 0.03), name="drafter")}
    store = WeightStore()
    for model in models.values():
        for name, tensor in model.weights.items():
            store.add(name, tensor)
    return models, store


def empty_program(name: str, *, device: str = "cpu", store: WeightStore | None = None) -> Program:
    """A program over copies of the pair's models, before any pass."""
    models, weights = captured()
    return Program(name, {n: m.copy() for n, m in models.items()}, store or weights, SIZES, device)


@functools.cache
def step_program(tree: DraftTree, rule: str, form: str = "in_place", drafter: str = "model") -> Program:
    """A bound step; a chain of 0 is the plain one."""
    program = empty_program("step" if tree.depth else "plain")
    run(program, step_passes(tree=tree, rule=rule, drafter=parse_drafter(drafter), form=form))
    return program


@functools.cache
def prefilled(prompt: tuple[int, ...]) -> dict[str, Tensor]:
    """State of both models behind `prompt[:-1]`, by the prefill programs in eager mode. Copy it before use."""
    state = {"history": torch.zeros(1, SIZES.slots, dtype=torch.long)}
    state["history"][0, : len(prompt)] = torch.tensor(prompt)
    for model in ("target", "drafter"):
        program = empty_program(f"prefill_{model}")
        run(program, prefill_passes(model=model))
        step = eager_step(program)
        for start in range(0, len(prompt) - 1, SIZES.chunk):
            part = torch.tensor(prompt[start : min(start + SIZES.chunk, len(prompt) - 1)])
            state["tokens"] = torch.zeros(1, SIZES.chunk, dtype=torch.long)
            state["tokens"][0, : len(part)] = part
            state["start"] = torch.tensor([start])
            for node in program.graph.find_nodes(op="placeholder"):
                if "_k_" in str(node.target) or "_v_" in str(node.target):
                    value = node.meta["val"]
                    state.setdefault(str(node.target), torch.zeros(value.shape, dtype=value.dtype))
            state["bucket"] = torch.zeros(64, dtype=torch.uint8)
            step(state)
    known = torch.tensor([len(prompt) - 1])
    return {**state, "target_length": known, "drafter_length": known.clone(), "active": torch.tensor([True])}


def eager_step(program: Program) -> Step:
    """The program as it stands, run by PyTorch; caches are written in place where the program does so."""
    module = program.module()
    names = [str(n.target) for n in program.graph.find_nodes(op="placeholder")]

    def step(state: dict[str, Tensor]) -> dict[str, Tensor]:
        with torch.no_grad():
            return dict(module(*[state[name] for name in names]))

    return step


def neutral(prompt: int, nodes: int) -> dict[str, Tensor]:
    """Parameters that change nothing, for a prompt of so many tokens and a tree of so many nodes."""
    state = {"bias": torch.zeros(1, 128), "min_p": torch.zeros(1), "repetition_penalty": torch.ones(1)}
    state |= {name: torch.zeros(1) for name in ("presence_penalty", "frequency_penalty")}
    state |= {"prompt_length": torch.tensor([prompt]), "min_length": torch.tensor([0])}
    return {**state, "forced": torch.full((1, nodes), -1)}


def generated(
    step: Step, prompt: tuple[int, ...], count: int, depth: int, slots: int = 80, nodes: int | None = None
) -> tuple[list[int], int]:
    """`count` tokens behind `prompt` by calls of `step`, and how many drafts were accepted.

    Args:
        step: takes the state by name, returns results by the name of what they replace, and `report`.
        depth: D of the program.
        slots: cache slots read, the length of the bucket.
        nodes: N of the program, where it drafts no chain.
    """
    state = {name: tensor.clone() for name, tensor in prefilled(prompt).items()}
    state |= {"limit": torch.tensor([len(prompt) + count]), "eos": torch.full((1, 8), -1), "seed": torch.tensor([5])}
    state |= {"draft_limit": torch.tensor([depth]), "sample": torch.tensor([0]), "top_k": torch.tensor([20])}
    state |= {"temperature": torch.tensor([0.8]), "top_p": torch.tensor([0.9])}
    state["bucket"] = torch.zeros(slots, dtype=torch.uint8)
    state |= neutral(len(prompt), nodes or depth + 1)
    tokens: list[int] = []
    accepted = 0
    while len(tokens) < count:
        results = step(state)
        report = results.pop("report")[0].tolist()
        state.update(results)
        emitted, taken = report[depth + 1 : depth + 3]
        assert emitted > 0
        tokens += report[:emitted]
        accepted += taken
    return tokens, accepted
