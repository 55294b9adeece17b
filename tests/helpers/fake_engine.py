"""An engine without a compiler: programs in plain Python that keep the contract of compiled ones and check the runtime.

The models are toys: the next token depends on the last three, and on every parameter (`toy_law`). They read the tokens
from the caches (a slot of a cache holds its token + 1), so a slot that the runtime did not fill, or a length that is
wrong, shows in the text. Every program leaves rubbish wherever the contract allows it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from helpers.toy_law import VOCAB, Law, ToyGrammar, choose, draft, processed, toy_logits
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from specc.manifest import EngineManifest, ModelSpec, ProgramSpec, TensorSpec
from specc.runtime.engine import Engine
from specc.runtime.text import Text
from specc.tree import DraftTree

PADDED = VOCAB + 2
RUBBISH = 777.0
UNREAD = [RUBBISH] * VOCAB
VECTORS = {
    **dict.fromkeys(("limit", "draft_limit", "seed", "sample", "top_k", "prompt_length", "min_length"), "int64"),
    **dict.fromkeys(("temperature", "top_p", "min_p", "repetition_penalty"), "float32"),
    **dict.fromkeys(("presence_penalty", "frequency_penalty"), "float32"),
}
SAMPLED = ("seed", "sample", "temperature", "top_p", "top_k", "min_p")
PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty", "prompt_length", "min_length", "bias")
GRAMMAR = ("grammar_class", "grammar_next", "grammar_classes", "grammar_state")


def toy_manifest(
    depth: int = 3,
    context: int = 60,
    chunk: int = 8,
    batch: int = 1,
    rules: Sequence[str] = ("coupled",),
    tree: Sequence[int] = (),
    ladder: Sequence[int] = (),
    grammar: int = 0,
    without: Sequence[str] = (),
    **changes: Any,
) -> EngineManifest:
    """A manifest for `FakePrograms`, and for real ones of the same signature.

    Args:
        tree: widths of the main tree; empty is a chain of `depth`.
        ladder: lengths of more chains.
        grammar: entries of the grammar's table; 0 has no grammar.
        without: inputs and outputs that its programs lack.
        changes: of the manifest's fields.
    """
    kind = changes.get("drafter_kind", "model")
    main = DraftTree.from_widths(tree) if tree else DraftTree.chain(depth)
    trees = [main, *map(DraftTree.chain, ladder)]
    slots = context + max(*(t.depth + 1 for t in trees), chunk) + 1
    roles = ("target", "drafter") if kind == "model" else ("target",)
    tensors = [t for t in _tensors(batch, slots, chunk, roles, trees, grammar) if t.name not in without]
    programs = {}
    for rows in sorted({1, batch}):
        for rule in ("greedy", *rules, *(["coupled"] if "coupled" not in rules else [])):
            drafts = trees if rule in ("greedy", *rules) else []
            for shape in [*([DraftTree.chain(0)] if rule != "rejection" else []), *drafts]:
                name = _name(rule, shape, main, rows)
                programs[name] = _step_spec(name, rule, shape, rows, {t.name for t in tensors}, without)
    for role in roles:
        own = tuple(t.name for t in tensors if t.role == "cache" and t.name.startswith(role))
        programs[f"prefill_{role}"] = ProgramSpec(
            file=f"programs/prefill_{role}.pt2",
            inputs=("tokens", "start", "bucket", *own),
            outputs=("next",),
            weights=(),
        )
    spec = ModelSpec(source="toy", architecture="Toy", digest="0", parameters=0, layers=1, max_positions=context)
    values: dict[str, Any] = {
        "engine_key": "0",
        "specc_version": "0",
        "torch_version": str(torch.__version__),
        "backend": "eager",
        "device": "cpu",
        "dtype": "float32",
        "processor": {},
        "target": spec,
        "drafter": spec if kind == "model" else None,
        "drafter_kind": kind,
        "batch": batch,
        "context": context,
        "slots": slots,
        "chunk": chunk,
        "vocab_size": VOCAB,
        "padded_vocab_size": PADDED,
        "eos_token_ids": (),
        "tree_paths": main.paths,
        "tensors": tuple(tensors),
        "programs": programs,
    }
    return EngineManifest(**{**values, **changes})


def _tensors(
    batch: int, slots: int, chunk: int, roles: Sequence[str], trees: Sequence[DraftTree], grammar: int
) -> list[TensorSpec]:
    caches = [f"{role}_{part}_0" for role in roles for part in "kv"]
    wide = {"eos": (8, "int64"), "bias": (VOCAB, "float32"), "forced": (max(map(len, trees)), "int64")}
    if grammar:
        wide |= {"grammar_class": (VOCAB, "int32"), "grammar_next": (grammar, "int32")}
    vectors = {**VECTORS, **({"grammar_classes": "int64"} if grammar else {})}
    state = {**{f"{role}_length": "int64" for role in roles}, "active": "bool"}
    state |= {"grammar_state": "int64"} if grammar else {}
    return [
        TensorSpec(name="history", shape=(batch, slots), dtype="int64", role="cache"),
        *(TensorSpec(name=n, shape=(batch, 1, slots, 1), dtype="float32", role="cache") for n in caches),
        *(TensorSpec(name=n, shape=(batch,), dtype=d, role="state") for n, d in state.items()),
        *(TensorSpec(name=n, shape=(batch,), dtype=d, role="parameter") for n, d in vectors.items()),
        *(TensorSpec(name=n, shape=(batch, w), dtype=d, role="parameter") for n, (w, d) in wide.items()),
        TensorSpec(name="bucket", shape=(slots,), dtype="uint8", role="bucket"),
        TensorSpec(name="tokens", shape=(1, chunk), dtype="int64", role="call"),
        TensorSpec(name="start", shape=(1,), dtype="int64", role="call"),
    ]


def _name(rule: str, tree: DraftTree, main: DraftTree, rows: int) -> str:
    """As `specc.plan` names programs."""
    if not tree.depth:
        name = "plain" if rule == "greedy" else "plain_sampled"
    else:
        name = f"step{'' if rule == 'greedy' else '_' + rule}{'' if tree == main else f'_k{tree.depth}'}"
    return f"{name}_b{rows}" if rows > 1 else name


def _step_spec(
    name: str, rule: str, tree: DraftTree, rows: int, tensors: set[str], without: Sequence[str]
) -> ProgramSpec:
    """A step program with the inputs that it needs."""
    names = ["history", "target_k_0", "target_v_0", "target_length", "limit", "eos", "active", "bucket", *PENALTIES]
    names += [*(SAMPLED if rule != "greedy" else ()), *GRAMMAR]
    outputs = ["report", "active", "target_length", "path", "logits", "processed", "grammar_state"]
    if tree.depth:
        names += ["drafter_k_0", "drafter_v_0", "drafter_length", "draft_limit", "forced"]
        outputs += ["drafter_length"]
    known = tensors | {"report", "path", "logits", "processed"}
    return ProgramSpec(
        file=f"programs/{name}.pt2",
        inputs=tuple(n for n in names if n in tensors),
        outputs=tuple(n for n in outputs if n in known and n not in without),
        weights=(),
        rule=rule,
        tree_paths=tree.paths,
        batch=rows,
    )


@dataclass
class FakePrograms:
    """The programs of `toy_manifest`.

    Attributes:
        calls: names of the programs called, in order.
        active: how many rows were active in each call of a step.
        buckets: cache slots read in each call of a step.
        interrupt: called with a name and the number of calls before and after each one; may raise.
    """

    manifest: EngineManifest
    calls: list[str] = field(default_factory=list)
    active: list[int] = field(default_factory=list)
    buckets: list[int] = field(default_factory=list)
    interrupt: Callable[[str, int], None] = lambda name, count: None

    def runners(self) -> dict[str, Callable[[list[Tensor]], Sequence[Tensor]]]:
        return {name: self._runner(name) for name in self.manifest.programs}

    def _runner(self, name: str) -> Callable[[list[Tensor]], Sequence[Tensor]]:
        spec = self.manifest.programs[name]

        def run(arguments: list[Tensor]) -> Sequence[Tensor]:
            named = dict(zip(spec.inputs, arguments, strict=True))
            assert all(t.is_contiguous() for t in arguments)
            assert 2 <= len(named["bucket"]) <= self.manifest.slots - 1
            self.calls.append(name)
            self.interrupt(name, len(self.calls))
            results = self._step(named, spec) if spec.rule else self._prefill(named)
            self.interrupt(name, len(self.calls))
            return [results[output] for output in spec.outputs]

        return run

    def _prefill(self, named: Mapping[str, Tensor]) -> dict[str, Tensor]:
        tokens, start = named["tokens"][0].tolist(), int(named["start"])
        assert len(tokens) == self.manifest.chunk
        for cache in named.values():
            if cache.ndim == 4:
                assert cache.shape[0] == 1
                _read(cache, 0, start, len(named["bucket"]))
                _write(cache, 0, start, tokens)
        return {"next": named["start"] + len(tokens)}

    def _step(self, named: Mapping[str, Tensor], spec: ProgramSpec) -> dict[str, Tensor]:
        assert all(t.shape[0] == spec.batch for n, t in named.items() if n != "bucket")
        self.active.append(int(named["active"].sum()))
        self.buckets.append(len(named["bucket"]))
        rows = [_Row(named, b, spec, self.manifest).step() for b in range(spec.batch)]
        return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


class _Row:
    """One row of a step: draft, verify, accept, commit."""

    def __init__(self, named: Mapping[str, Tensor], b: int, spec: ProgramSpec, manifest: EngineManifest) -> None:
        self.named, self.b, self.tree = named, b, DraftTree(spec.tree_paths)
        self.read, self.ngram = len(named["bucket"]), manifest.drafter_kind == "ngram"
        self.length = self.number("target_length")
        self.law = self._law(spec.rule)
        self.state = self.number("grammar_state")

    def number(self, name: str, default: float = 0) -> Any:
        return self.named[name][self.b].item() if name in self.named else default

    def _law(self, rule: str) -> Law:
        bias = self.named["bias"][self.b].tolist() if "bias" in self.named else [0.0] * VOCAB
        names = ("temperature", "top_k", "top_p", "min_p", "prompt_length", "min_length", "seed", "sample")
        known = {name: self.number(name) for name in names if name in self.named}
        penalties = {n: self.number(f"{n}_penalty", n == "repetition") for n in ("repetition", "presence", "frequency")}
        eos = tuple(token for token in self.named["eos"][self.b].tolist() if token >= 0)
        salt = (len(self.tree), self.tree.depth) if rule == "rejection" else ()
        if known.get("temperature") == 0.0:  # a greedy row in a program that samples
            known = {"prompt_length": known.get("prompt_length", 0), "min_length": known.get("min_length", 0)}
        return Law(**known, **penalties, bias=tuple(bias), eos=eos, salt=salt, grammar=self._grammar())

    def _grammar(self) -> ToyGrammar | None:
        if "grammar_next" not in self.named:
            return None
        classes = self.number("grammar_classes")
        assert classes >= 1
        return ToyGrammar(self.named["grammar_class"][self.b], self.named["grammar_next"][self.b], classes, 0)

    def step(self) -> dict[str, Tensor]:
        return self._active() if self.number("active") else self._idle()

    def _idle(self) -> dict[str, Tensor]:
        """A row that is not asked: rubbish where nobody reads, everything else as it was."""
        tree, rubbish = self.tree, [None] * (self.tree.depth + 1)
        for name, length in (("target", self.length), ("drafter", self.number("drafter_length"))):
            for part in "kv":
                if f"{name}_{part}_0" in self.named:
                    _write(self.named[f"{name}_{part}_0"], self.b, length, rubbish)
        self.named["history"][self.b, self.length + 1 : self.length + 2 + tree.depth] = VOCAB - 1
        report = [*[VOCAB - 1] * (tree.depth + 1), 0, 0, 0]
        return self._results(report, self.length, self.number("drafter_length"), False, self.state, [0], {})

    def _active(self) -> dict[str, Tensor]:
        history, length, depth = self.named["history"], self.length, self.tree.depth
        known = _read(self.named["target_k_0"], self.b, length, self.read) + [int(history[self.b, length])]
        tokens, levels = self._draft(known) if depth else ([known[-1]], 0)
        path, block, states = [0], [], [self.state]
        scores = {}
        while True:
            node, text = path[-1], known + [tokens[n] for n in path[1:]]
            scores[node] = (toy_logits(text), processed(text, self.law, states[-1]))
            block.append(choose(text, self.law, states[-1]))
            if self.law.grammar:
                states.append(self.law.grammar.next_state(states[-1], block[-1]))
            children = [c for c in self.tree.children(node) if tokens[c] == block[-1]] if len(path) <= levels else []
            if not children:
                break
            path.append(children[0])
        total, eos = length + 1, [i for i, token in enumerate(block) if token in self.law.eos]
        count = min(len(block), *([eos[0] + 1] if eos else []), self.number("limit") - total)
        for name in ("target_k_0", "target_v_0"):
            _write(self.named[name], self.b, length, [known[-1], *block[:-1], *[None] * (depth + 1 - len(block))])
        padded = block + [VOCAB - 1] * (depth + 1 - len(block))
        history[self.b, total : total + depth + 1] = torch.tensor(padded)
        going = total + count < self.number("limit") and not (eos and count == eos[0] + 1)
        report = [*padded, count, min(len(path) - 1, count), levels]
        state = states[count] if self.law.grammar else 0
        return self._results(report, length + count, length + 1, going, state, path, scores)

    def _draft(self, known: list[int]) -> tuple[list[int], int]:
        """Tokens of the tree's nodes, and how many of its levels are offered."""
        depth, levels, source = self.tree.depth, min(self.tree.depth, self.number("draft_limit")), known
        if not self.ngram:
            ahead = self.number("drafter_length")
            pending = self.named["history"][self.b, ahead : self.length + 1].tolist()
            assert ahead <= self.length, "the drafter is ahead of the target"
            if levels or len(pending) <= depth + 1:
                assert len(pending) <= depth + 1, "the drafter is too far behind"
                source = _read(self.named["drafter_k_0"], self.b, ahead, self.read) + pending
            rows = [*pending[: depth + 1], *[None] * (depth + 1 - len(pending))]
            for name in ("drafter_k_0", "drafter_v_0"):
                _write(self.named[name], self.b, ahead, rows)
        else:  # a look-up that finds nothing, or little
            levels = min(levels, sum(known) % (depth + 1))
        tokens, states = [known[-1]], [self.state]
        forced = self.named["forced"][self.b].tolist() if "forced" in self.named else [-1] * len(self.tree)
        for node in range(1, len(self.tree)):
            line = [n for n in range(1, node) if self.tree.ancestors[node][n]]
            parent = self.tree.parents[node]
            own = draft(source + [tokens[n] for n in line], self.law, states[parent])
            own = (own + self.tree.paths[node][-1]) % VOCAB  # later children are other tokens
            tokens.append(forced[node] if forced[node] >= 0 else own)
            grammar = self.law.grammar
            known_token = tokens[-1] < VOCAB
            states.append(grammar.next_state(states[parent], tokens[-1]) if grammar and known_token else -1)
        return tokens, levels

    def _results(
        self, report: list[int], target: int, drafter: int, active: bool, state: int, path: list[int], scores: Any
    ) -> dict[str, Tensor]:
        nodes, width = range(len(self.tree)), self.tree.depth + 1
        logits, cut = torch.tensor([[scores[n][part] if n in scores else UNREAD for n in nodes] for part in (0, 1)])
        return {
            "report": torch.tensor(report),
            "target_length": torch.tensor(target),
            "drafter_length": torch.tensor(drafter),
            "active": torch.tensor(active),
            "grammar_state": torch.tensor(state),
            "path": torch.tensor(path + [0] * (width - len(path))),
            "logits": logits,
            "processed": cut,
        }


def fake_engine(text: Text | None = None, **changes: Any) -> tuple[Engine, FakePrograms]:
    """An engine over fake programs, and those; `changes` are `toy_manifest`'s."""
    manifest = toy_manifest(**changes)
    programs = FakePrograms(manifest)
    return Engine(manifest, programs.runners(), text, torch.device("cpu")), programs


def letters(words: Mapping[int, str] | None = None) -> Text:
    """A tokenizer of one capital, digit or sign a token, `A` is 0; `words` gives ids other spellings."""
    spelled = dict(enumerate("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789!#$%")) | dict(words or {})
    assert len(set(spelled.values())) == VOCAB
    core = Tokenizer(models.BPE({word: i for i, word in spelled.items()}, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    return Text(core)


def _read(cache: Tensor, b: int, length: int, read: int) -> list[int]:
    """The tokens in a cache; none may be missing, and the bucket must cover them."""
    assert length <= read, f"{length} slots filled, {read} read"
    found = [int(value) - 1 for value in cache[b, 0, :length, 0].tolist()]
    assert all(0 <= token < VOCAB for token in found), f"cache holds {found}"
    return found


def _write(cache: Tensor, b: int, start: int, tokens: Sequence[int | None]) -> None:
    """Rows of a cache, a slot per token; None is a row that nobody may read."""
    assert start + len(tokens) <= cache.shape[2], "written past the end of the cache"
    values = [RUBBISH if token is None else token + 1.0 for token in tokens]
    cache[b, 0, start : start + len(tokens), 0] = torch.tensor(values)
