"""Every program on a CUDA device that is not there: a tensor made on the wrong device is found without a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from helpers.bound import captured, empty_program
from torch import Tensor, fx
from torch.overrides import TorchFunctionMode

from specc.drafter import parse_drafter
from specc.errors import PassError
from specc.lower.exporting import export_lifted
from specc.passes import accept_draft, prefill_passes, run, step_passes
from specc.passes.graph import call
from specc.program import Program, WeightStore
from specc.tree import DraftTree

CHAIN, TREE, PLAIN = DraftTree.chain(3), DraftTree.from_widths((3, 2, 1)), DraftTree.chain(0)


class WithoutCuda(TorchFunctionMode):
    """What a build of torch without CUDA cannot do from Python, not even to a fake CUDA tensor, as aten ops."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is Tensor.__getitem__:
            return _index(*args)
        if func is Tensor.__invert__:
            return torch.ops.aten.bitwise_not.default(*args)
        if func is Tensor.to and args[1:] == (torch.device("cuda"),):
            return torch.ops.aten._to_copy.default(args[0], device=args[1])
        return func(*args, **(kwargs or {}))


def _index(x: Tensor, key: Any) -> Tensor:
    parts = list(key) if isinstance(key, tuple) else [key]
    for place in [i for i, part in enumerate(parts) if part is Ellipsis]:
        named = sum(part is not None and part is not Ellipsis for part in parts)
        parts[place : place + 1] = [slice(None)] * (x.ndim - named)
    dim = 0
    for part in parts:
        if part is None:
            x = x.unsqueeze(dim)
        elif isinstance(part, slice):
            if (part.start, part.stop, part.step) != (None, None, None):
                x = torch.ops.aten.slice.Tensor(x, dim, part.start, part.stop, part.step or 1)
        else:
            x, dim = x.select(dim, part), dim - 1
        dim += 1
    return x


@pytest.fixture(autouse=True)
def without_cuda() -> Iterator[None]:
    captured()
    with WithoutCuda():
        yield


@pytest.fixture
def store() -> WeightStore:
    """The pair's weights, on the CPU, apart from those of other tests."""
    made = WeightStore()
    for model in captured()[0].values():
        for name, tensor in model.weights.items():
            made.add(name, tensor)
    return made


def wrong_devices(graph: fx.Graph) -> list[str]:
    """Nodes whose value is not on CUDA, and devices in arguments that are not."""
    found = []
    for node in graph.nodes:
        values: list[object] = []
        if node.op != "output":
            fx.node.map_aggregate((node.meta["val"], node.args, node.kwargs), values.append)
        for value in values:
            device = value.device if isinstance(value, Tensor) else value
            if isinstance(device, torch.device) and device.type != "cuda":
                found.append(f"{node.format_node()}: {device}")
    return found


@pytest.mark.parametrize(
    ("tree", "rule", "drafter"),
    [
        (CHAIN, "greedy", "model"),
        (CHAIN, "coupled", "model"),
        (CHAIN, "rejection", "model"),
        (TREE, "greedy", "model"),
        (CHAIN, "greedy", "ngram"),
        (PLAIN, "coupled", "model"),
    ],
    ids=["chain", "coupled", "rejection", "tree", "ngram", "plain"],
)
def test_every_tensor_of_a_step(store: WeightStore, tree: DraftTree, rule: str, drafter: str) -> None:
    program = empty_program("step", device="cuda", store=store)
    run(program, step_passes(tree=tree, rule=rule, drafter=parse_drafter(drafter)))
    assert wrong_devices(program.graph) == []
    exported = export_lifted(program)  # checked by torch's verifier
    assert wrong_devices(exported.graph) == []


def test_functional_form_through_decompositions(store: WeightStore) -> None:
    """Every op is run again on fake CUDA tensors, as `torch.onnx` and Inductor do."""
    program = empty_program("step", device="cuda", store=store)
    run(program, step_passes(tree=CHAIN, rule="greedy", drafter=parse_drafter("model"), form="functional"))
    assert wrong_devices(export_lifted(program).run_decompositions().graph) == []


@pytest.mark.parametrize("model", ["target", "drafter"])
def test_every_tensor_of_prefill(store: WeightStore, model: str) -> None:
    program = empty_program("prefill", device="cuda", store=store)
    run(program, prefill_passes(model=model))
    assert wrong_devices(program.graph) == []


def test_capture_wrote_cpu_into_the_models() -> None:
    """What `call` must replace is there: else the tests above would show nothing."""
    graphs = [model.graph for model in captured()[0].values()]
    assert any(wrong_devices(graph) for graph in graphs)
    baked = _on_cpu(empty_program("step", device="cuda"))
    assert baked.kwargs["device"] == torch.device("cuda") and baked.meta["val"].device.type == "cuda"


def _on_cpu(program: Program) -> fx.Node:
    with program.graph.inserting_before(program.output):
        return call(program, None, torch.ops.aten.arange.default, 4, device=torch.device("cpu"))  # type: ignore[no-any-return]


def test_a_planted_tensor_without_device_is_found(store: WeightStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def offered(depths: Tensor, valid: Tensor, tokens: Tensor) -> Tensor:
        return (depths.expand_as(tokens) * valid.long()).amax(1) + torch.arange(1)

    monkeypatch.setattr(accept_draft, "_offered", offered)
    program = empty_program("step", device="cuda", store=store)
    with pytest.raises(PassError, match="accept_draft.*cpu"):
        run(program, step_passes(tree=PLAIN, rule="greedy", drafter=parse_drafter("model")))


def test_a_planted_tensor_nobody_adds_is_found(store: WeightStore) -> None:
    program = empty_program("step", device="cuda", store=store)
    run(program, step_passes(tree=PLAIN, rule="greedy", drafter=parse_drafter("model")))
    with program.graph.inserting_before(program.output), program.fake_mode:
        node = program.graph.call_function(torch.ops.aten.arange.default, (4,))
        node.meta["val"] = torch.arange(4)
    assert len(wrong_devices(program.graph)) == 1
