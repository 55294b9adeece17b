"""check_pass: what every pass promises, asserted on one program."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from helpers.decoding import built, example_inputs
from torch import Tensor, fx

from specc.errors import PassError
from specc.passes.contract import Pass
from specc.passes.dump import dump, line, operator_name
from specc.passes.manager import _run_one, check_order
from specc.program import Program, graph_module


def check_pass(
    make: Callable[[], Program],
    pass_: Pass,
    *,
    gone: Iterable[str] = (),
    rewrites: int,
    atol: float | None,
    new_inputs: Iterable[str] = (),
    new_outputs: Iterable[str] = (),
    lost_outputs: Iterable[str] = (),
    new_weights: int = 0,
    declined: int = 0,
) -> Program:
    """Run a pass on a new program and assert its contract.

    Args:
        gone: ops, in the dump's spelling, that stand in the graph before and not after.
        rewrites: what `run` must return.
        atol: largest difference of floating point results and caches before and after; integers must be equal. None
            where the pass changes what the program computes: the test then compares numbers itself.
        new_inputs, new_outputs, lost_outputs: declared changes of the signature; anything else is an error.
        new_weights: weights that the pass adds to the store.
        declined: sites at which the pass must say that it does not fire.

    Returns:
        The program after the pass.
    """
    program = make()
    inputs, outputs, stored = _inputs(program), set(program.values), dict(program.weights.tensors)
    ops, count, before = _ops(program), len(program.declined), None
    if atol is not None:
        before = _numbers(program)
    for name in gone:
        assert ops[name] > 0, f"{name} is not there before the pass: the test proves nothing"

    assert _run_one(program, pass_) == rewrites

    for name in gone:
        assert _ops(program)[name] == 0, f"{name} is still there"
    assert len(program.declined) - count == declined, program.declined[count:]
    assert _inputs(program) == inputs | set(new_inputs)
    assert set(program.values) == (outputs | set(new_outputs)) - set(lost_outputs)
    _assert_weights(program, stored, new_weights)
    for graph in _graphs(program):
        assert_shapes(graph)
    if before is not None:
        _assert_equal(before, _numbers(program), atol)
    _assert_second_run(program, pass_)
    return program


def must_not_fire(make: Callable[[], Program], pass_: Pass, *, reason: str | None = None) -> None:
    """The pass leaves the graph as it is; `reason` is part of what it says about the site, if it should say it."""
    program = make()
    before = [dump(graph) for graph in _graphs(program)]
    count = len(program.declined)
    assert _run_one(program, pass_) == 0
    assert [dump(graph) for graph in _graphs(program)] == before
    if reason is not None:
        assert any(reason in site.reason for site in program.declined[count:]), program.declined[count:]


def assert_golden(graph: fx.Graph, expected: str) -> None:
    """The graph in the dump's form equals the text, indentation aside."""
    found = dump(graph)
    assert found.strip() == textwrap.dedent(expected).strip(), f"the graph is now\n{found}"


def assert_shapes(graph: fx.Graph) -> None:
    """Every node's shape and dtype, computed again on fake tensors, are those that it carries."""
    env: dict[fx.Node, Any] = {}
    mode = None
    for node in graph.nodes:
        if node.op in ("placeholder", "get_attr"):
            env[node] = node.meta["val"]
            mode = node.meta["val"].fake_mode
        elif node.op == "call_function":
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), env.__getitem__)
            with mode:
                env[node] = node.target(*args, **kwargs)
            assert _form(env[node]) == _form(node.meta["val"]), f"wrong meta['val'] at {line(node)}"


def _form(value: Any) -> Any:
    if isinstance(value, Tensor):
        return str(value.dtype), str(tuple(value.shape)), str(value.device)
    return tuple(map(_form, value)) if isinstance(value, (tuple, list)) else str(value)


def _assert_weights(program: Program, stored: dict[str, Tensor], new: int) -> None:
    for name, tensor in stored.items():
        assert program.weights[name] is tensor, f"weight {name} was exchanged"
    assert len(program.weights.tensors) == len(stored) + new, sorted(set(program.weights.tensors) - set(stored))
    for name in program.weight_names():
        assert name in program.weights


def _assert_second_run(program: Program, pass_: Pass) -> None:
    if pass_.reads == pass_.leaves:
        text = [dump(graph) for graph in _graphs(program)]
        declined = len(program.declined)
        assert pass_.run(program) == 0, "a second run must not find anything"
        assert [dump(graph) for graph in _graphs(program)] == text
        del program.declined[declined:]
    else:
        with pytest.raises(PassError, match=f"reads {pass_.reads.name} but finds {pass_.leaves.name}"):
            check_order([pass_], program.level)


def _graphs(program: Program) -> list[fx.Graph]:
    """The program's graph, or those of its models while it is still empty."""
    return [program.graph] if program.values else [model.graph for model in program.models.values()]


def _ops(program: Program) -> Counter[str]:
    nodes = [node for graph in _graphs(program) for node in graph.nodes if node.op == "call_function"]
    return Counter(operator_name(node.target) for node in nodes)


def _inputs(program: Program) -> set[str]:
    return {str(node.target) for node in program.graph.find_nodes(op="placeholder")}


def _numbers(program: Program) -> dict[str, Tensor]:
    """Results by name, and the inputs as the program leaves them (a cache may be written in place)."""
    if not program.values:
        return {name: _logits(model) for name, model in program.models.items()}
    state = {name: value.clone() for name, value in example_inputs(program).items()}
    results = built(program)(state)
    return {**state, **results}


def _logits(model: Any) -> Tensor:
    graph, env = fx.Graph(), {}
    graph.output(graph.graph_copy(model.graph, env))
    batch, length = next(iter(model.graph.nodes)).meta["val"].shape
    length = length if isinstance(length, int) else 9
    tokens = torch.arange(batch * length).view(batch, length) % model.vocab_size
    positions = torch.arange(length).expand(batch, length) + 2
    with torch.no_grad():
        return graph_module(graph, model.weights)(tokens, positions)[0]


def _assert_equal(before: dict[str, Tensor], after: dict[str, Tensor], atol: float) -> None:
    for name in before.keys() & after.keys():
        old, new = before[name], after[name]
        assert old.dtype == new.dtype and old.shape == new.shape, name
        if old.is_floating_point():
            torch.testing.assert_close(new, old, rtol=0, atol=atol, msg=lambda m, name=name: f"{name}: {m}")
        else:
            assert torch.equal(old, new), name
