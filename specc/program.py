"""What passes rewrite: captured models, and the program that is built from them."""

from __future__ import annotations

import dataclasses
import hashlib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from . import ops as _ops  # noqa: F401  defines the ops that graphs hold
from .errors import PassError


class Level(IntEnum):
    """What a program's graph may hold (checked by `passes/levels.py`)."""

    CAPTURED = 0  # models as captured; the program's own graph grows block by block, markers inside
    FUSED = 1  # the whole step is one graph; markers, kv_update and noise inside
    STATIC = 2  # attention lowered: no markers
    ENGINE = 3  # state bound; after the last pass aten ops only (or what the back end asked to keep)


@dataclass
class Model:
    """One captured model: a stateless block of tokens with one `specc::attend` per attention layer.

    Attributes:
        name: `target` or `drafter`; prefix of every weight's name.
        graph: placeholders `tokens` and `positions` (`[B, T]` int64, T symbolic); returns `(logits,)`, `[B, T, V]`.
            Weights are `get_attr` nodes whose target is a key of `weights`; every node has `meta["val"]`.
        weights: parameters, buffers and constants that the graph reads, by full name.
        vocab_size: ids that the tokenizer knows; the rows of V above it are padding.
        max_positions: positions the model was made for (tokens of context).
        features: F, size of the hidden states `[B, T, F]` that a target hands on behind its logits, and that a drafter
            takes as a third placeholder `hidden` and hands on in turn; 0 for models without.
        fed_as: weight, `i64[V of the target]`: the id under which the model is fed a token of the target; empty where
            their ids are the same.
        column_of: weight, `i64[V of the target]`: the column of the model's logits that stands for a token of the
            target, -1 for one that it cannot draft; empty where they are the same.
        kept: the layers of the target that a drafter is made of, ascending: its layer i reads the caches of the
            target's layer `kept[i]` and has none of its own; empty for models with caches.
    """

    name: str
    graph: fx.Graph
    weights: dict[str, Tensor]
    vocab_size: int
    max_positions: int
    features: int = 0
    fed_as: str = ""
    column_of: str = ""
    kept: tuple[int, ...] = ()

    @property
    def takes_hidden(self) -> bool:
        """Whether it reads hidden states beside its tokens, as drafters do, or only hands its own on."""
        return any(node.target == "hidden" for node in self.graph.find_nodes(op="placeholder"))

    def handed_on(self) -> tuple[int, torch.dtype]:
        """Size and dtype of the hidden states that the graph returns behind its logits."""
        value = next(iter(self.graph.find_nodes(op="output"))).args[0][1].meta["val"]
        return value.shape[-1], value.dtype

    def module(self) -> fx.GraphModule:
        """The block as a module that runs in eager mode."""
        return graph_module(self.graph, self.weights)

    def copy(self) -> Model:
        """The same model with a graph and a list of weights of its own; the tensors are shared."""
        graph = fx.Graph()
        env: dict[fx.Node, fx.Node] = {}
        result = graph.graph_copy(self.graph, env)
        graph.output(result)
        return dataclasses.replace(self, graph=graph, weights=dict(self.weights))

    def with_vocabulary(self, *, fed_as: Tensor | None = None, column_of: Tensor | None = None) -> Model:
        """The same model with maps from the target's ids (`fed_as`, `column_of`); None leaves a map as it is."""
        weights, names = dict(self.weights), [self.fed_as, self.column_of]
        for place, (kind, tensor) in enumerate({"fed_as": fed_as, "column_of": column_of}.items()):
            if tensor is not None:
                names[place] = f"{self.name}.{kind}"
                weights[names[place]] = tensor
        return dataclasses.replace(self, weights=weights, fed_as=names[0], column_of=names[1])


@dataclass(frozen=True)
class Sizes:
    """Sizes that the programs of an engine share: B rows, S cache slots, C tokens of a prefill chunk, N nodes of the
    widest draft tree."""

    batch: int
    slots: int
    chunk: int
    nodes: int = 1


@dataclass
class Block:
    """One inlined run of a model over T rows, and what its rows may attend to.

    Attributes:
        model: name of the model.
        length: node, `[B]` int64: how many cache slots are filled.
        positions: node, `[B, T]` int64.
        mask: node, `[B or 1, T, P + T]` bool: rows of this step that each row sees, `prior` blocks first.
        prior: earlier blocks of this step whose rows (not yet in the cache) are attended to.
        markers: the block's `specc::attend` nodes, by layer; their k and v are the rows to be written.
        features: node, `[B, T, F]`: hidden states that the model hands on; None where it has none.
    """

    model: str
    length: fx.Node
    positions: fx.Node
    mask: fx.Node
    prior: list[Block] = field(default_factory=list)
    markers: list[fx.Node] = field(default_factory=list)
    features: fx.Node | None = None


@dataclass(frozen=True)
class Declined:
    """A place where a pass could have fired and did not, with the reason."""

    pass_name: str
    node: str
    reason: str


class WeightStore:
    """Every tensor that the programs of one engine read, once, by name.

    Passes that make new weights (side-by-side products, tables) make them here, under a name that says what they are,
    so that all programs get the same tensor.
    """

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._joined: dict[str, tuple[str, ...]] = {}
        self._digests: dict[str, str] = {}
        self._canonical: dict[tuple[str, torch.dtype, tuple[int, ...]], str] = {}
        self._placed: dict[tuple[str, torch.device], Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def add(self, name: str, tensor: Tensor) -> str:
        """Store a tensor, contiguous as the engine keeps it; the same name again must mean the same content.

        Raises:
            PassError: another tensor has that name.
        """
        known = self.tensors.get(name)
        if known is None:
            self.tensors[name] = tensor.detach().contiguous()  # code is compiled for the strides it will be lent
        elif known.dtype != tensor.dtype or not torch.equal(known, tensor):
            raise PassError(
                f"weight {name} is stored as {known.dtype} {tuple(known.shape)} and given as {tensor.dtype} "
                f"{tuple(tensor.shape)} with other content: one name, two tensors"
            )
        return name

    def join(self, name: str, parts: tuple[str, ...]) -> str:
        """Store tensors one below the other under `name`, once: equal names of parts are equal content.

        Raises:
            PassError: another tensor has that name.
        """
        if self._joined.get(name) != parts:
            self.add(name, torch.cat([self.tensors[part] for part in parts], 0))
            self._joined[name] = parts
        return name

    def on(self, device: torch.device, name: str) -> Tensor:
        """A tensor on a device, taken there once for all programs; `forget_placed` frees what was."""
        if self.tensors[name].device == device:
            return self.tensors[name]
        if (name, device) not in self._placed:
            self._placed[name, device] = self.tensors[name].to(device)
        return self._placed[name, device]

    def forget_placed(self) -> None:
        """Free the copies that `on` made."""
        self._placed.clear()

    def digest(self, name: str) -> str:
        """SHA-256 of a tensor's bytes."""
        if name not in self._digests:
            flat = self.tensors[name].contiguous().view(-1).view(torch.uint8)
            self._digests[name] = hashlib.sha256(memoryview(flat.cpu().numpy())).hexdigest()
        return self._digests[name]

    def canonical(self, name: str) -> str:
        """The first name under which this content was asked for: equal tensors get one name."""
        tensor = self.tensors[name]
        key = (self.digest(name), tensor.dtype, tuple(tensor.shape))
        return self._canonical.setdefault(key, name)


class Program:
    """One graph of an engine on its way from captured models to a bound step.

    Attributes:
        name: `step`, `plain`, `prefill_target`, ...
        models: captured models by name, the program's own copies.
        sizes: B, S, C and N.
        graph: the program's graph; placeholders are state, parameters and tokens.
        weights: the engine's weight store.
        blocks: inlined model runs, in order; read by `LowerAttention`, meaningless after it.
        declined: sites where passes did not fire.
        unbound: the graph before `BindState`, from which the form of any back end can be made; None before it ran.
    """

    def __init__(
        self, name: str, models: dict[str, Model], weights: WeightStore, sizes: Sizes, device: str = "cpu"
    ) -> None:
        self.name = name
        self.sizes = sizes
        self.models = models
        self.weights = weights
        self.device = torch.device(device)
        self.graph = fx.Graph()
        self.level = Level.CAPTURED
        self.output = self.graph.output({})
        self.blocks: list[Block] = []
        self.declined: list[Declined] = []
        self.unbound: fx.Graph | None = None
        self.kept: frozenset[object] = frozenset()  # ops of ours that the back end runs itself; set by `BindState`
        self.traces: dict[object, fx.Graph] = {}  # of tensor functions, kept by `passes.graph.emit`
        self.fake_mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)

    def input(self, name: str, shape: tuple[int | torch.SymInt, ...], dtype: torch.dtype) -> fx.Node:
        """The placeholder of that name, made at first use; placeholders stand before all other nodes."""
        for node in self.graph.find_nodes(op="placeholder"):
            if node.target == name:
                return node
        first = next(n for n in self.graph.nodes if n.op != "placeholder")
        with self.graph.inserting_before(first), self.fake_mode:
            node = self.graph.placeholder(name)
            node.meta["val"] = torch.empty(shape, dtype=dtype, device=self.device)
        return node

    def weight(self, name: str) -> fx.Node:
        """A `get_attr` node for a stored weight, made at first use."""
        for node in self.graph.find_nodes(op="get_attr"):
            if node.target == name:
                return node
        first = next(n for n in self.graph.nodes if n.op != "placeholder")
        with self.graph.inserting_before(first), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the graph has no owning module until `module()` makes one
            node = self.graph.get_attr(name)
        node.meta["val"] = self.fake(self.weights[name])
        return node

    def constant(self, name: str, tensor: Tensor) -> fx.Node:
        """A small constant tensor (a mask, parents) as a weight of the program; back ends take it to the device."""
        return self.weight(self.weights.add(name, tensor))

    def fake(self, tensor: Tensor) -> FakeTensor:
        """A fake tensor of the same shape and dtype on the program's device."""
        with self.fake_mode:
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=self.device)

    @property
    def values(self) -> dict[str, fx.Node]:
        """Results by name, read from the output node (so they follow every rewrite)."""
        return dict(self.output.args[0])

    def give(self, **results: fx.Node) -> None:
        """Name results for later stages, or as the program's outputs."""
        self.output.args = ({**self.values, **results},)

    def drop(self, *names: str) -> None:
        """Forget results that no later stage needs."""
        self.output.args = ({k: v for k, v in self.values.items() if k not in names},)

    def decline(self, pass_: object, node: fx.Node, reason: str) -> None:
        """Note that a pass looked at a site and left it, and why."""
        self.declined.append(Declined(type(pass_).__name__, node.name, reason))

    def module(self) -> fx.GraphModule:
        """The program as a module; placeholders in order are its arguments."""
        return graph_module(self.graph, {name: self.weights[name] for name in self.weight_names()})

    def weight_names(self) -> list[str]:
        """Names of the weights that the graph reads, in the order of their first use."""
        return list(dict.fromkeys(str(n.target) for n in self.graph.find_nodes(op="get_attr")))


def graph_module(graph: fx.Graph, weights: dict[str, Tensor]) -> fx.GraphModule:
    """A `GraphModule` over a graph whose `get_attr` targets are keys of `weights` (dotted names allowed)."""
    root = torch.nn.Module()
    for node in graph.find_nodes(op="get_attr"):
        owner, (*parents, leaf) = root, str(node.target).split(".")
        for part in parents:
            if not hasattr(owner, part):
                owner.add_module(part, torch.nn.Module())
            owner = getattr(owner, part)
        if leaf not in owner._buffers:
            owner.register_buffer(leaf, weights[str(node.target)])
    return fx.GraphModule(root, graph)
