"""Everything that can be chosen at compile time, checked when it is made."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any

from .drafter import FORMS, MODEL, NGRAM, SELF, DrafterSpec, parse_drafter
from .errors import ConfigError
from .fixed_draft import fix_draft
from .manifest import LOSSY, LOSSY_DRAFTERS, MAX_BATCH
from .published_trees import PUBLISHED
from .tree import BEST, CHILDREN, MAX_DEPTH, SAMPLED, DraftTree, DynamicTree

BACKENDS = ("inductor", "eager", "onnx", "tensorrt")
BITS = {"int8": 8, "int4": 4}  # of a drafter's stored weights
QUANTS = ("int8",)
DTYPES = ("float32", "bfloat16", "float16")
MAX_GRAMMAR = 2**28
MAX_POOL = 2**20
DEFAULT_DRAFT_LENGTH = 3  # 4 rows with the root: the most that cost no more than one on a CPU


def option(default: Any, help: str, **more: Any) -> Any:
    """A field that the command line makes a flag of: its help, and `metavar`, `choices`, `short` or `positional`."""
    return field(default=default, metadata={"help": help, **more})


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftConfig:
    """What is drafted in one step."""

    draft_length: int | None = option(
        None, f"tokens drafted per step, 1..{MAX_DEPTH} (default {DEFAULT_DRAFT_LENGTH})", metavar="K"
    )
    tree: str | tuple[tuple[int, ...], ...] | None = option(
        None,
        f"children per level as 4,2,1, a JSON list of paths, a published list ({', '.join(PUBLISHED)}), or "
        "dynamic:NODES,DEPTH,TOP_K",
        metavar="TREE",
    )
    children: str = option(
        BEST,
        "siblings of a tree under rejection: the drafter's best tokens, or draws from it without replacement",
        choices=CHILDREN,
    )
    ladder: str | None = option(
        None, "more draft lengths to compile, as 1,7: the runtime picks by measured acceptance", metavar="LENGTHS"
    )
    tune: bool = option(
        False, "choose the tree or draft length by the drafter's acceptance and by what passes cost here"
    )
    prompts: str | None = option(
        None, "file of prompts, one a line, to measure acceptance on (default: built-in ones)", metavar="FILE"
    )
    draft_vocab: str | None = option(
        None,
        "cut the drafter's head to N frequent ids (counted in --prompts and the built-in ones), or to those of a file",
        metavar="N|FILE",
    )
    draft_quant: str | None = option(
        None, "store the drafter's weights in 8 or 4 bits; the target's stay as they are", choices=tuple(BITS)
    )
    fixed: bool = option(
        False, "do not time the programs: the engine drafts its own length unless it is told otherwise"
    )

    def __post_init__(self) -> None:
        for name in ("tune", "fixed"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"--{name} must be True or False, not {getattr(self, name)!r}")
        if self.prompts is not None and not isinstance(self.prompts, str):
            raise ConfigError(f"--prompts must be the path of a file, not {self.prompts!r}")
        for name in ("draft_length", "tree"):
            if self.tune and getattr(self, name) is not None:
                raise ConfigError(
                    f"--tune chooses what --{name.replace('_', '-')} {getattr(self, name)} fixes; give one of the two"
                )
        wanted: Any = self.draft_vocab  # a number from Python, its digits from a command line
        if wanted is not None and (isinstance(wanted, bool) or not isinstance(wanted, str | int) or wanted == ""):
            raise ConfigError(f"--draft-vocab must be a number of ids or a file of them, not {wanted!r}")
        if isinstance(wanted, int) and wanted < 1 or wanted == "0":
            raise ConfigError(f"--draft-vocab {wanted}: give at least 1 id")
        if self.children not in CHILDREN:
            raise ConfigError(f"--children {self.children!r} is not one of {', '.join(CHILDREN)}")
        if self.draft_quant not in (None, *BITS):
            raise ConfigError(f"--draft-quant {self.draft_quant!r} is not one of {', '.join(BITS)}")
        counts = str(wanted).isdecimal()
        if self.prompts is not None and self.fixed and not self.tune and not counts:
            raise ConfigError(
                f"--prompts {self.prompts} would not be read: --fixed measures no acceptance; leave one of them out"
            )
        if self.draft_length is not None and self.tree is not None:
            raise ConfigError(
                f"--draft-length {self.draft_length} and --tree {self.tree} contradict each other; give one"
            )
        length = self.draft_length
        if length is not None and (isinstance(length, bool) or not isinstance(length, int)):
            raise ConfigError(f"--draft-length must be a whole number, not {length!r}")
        if length is not None and not 1 <= length <= MAX_DEPTH:
            raise ConfigError(f"--draft-length {length} is outside 1..{MAX_DEPTH}; try --draft-length 3")
        self.shapes()

    def shapes(self) -> tuple[DraftTree, ...]:
        """What steps may draft: the tree of `shape`, then the other lengths of the ladder."""
        if self.ladder is None:
            return (self.shape(),)
        try:
            lengths = [int(part) for part in self.ladder.split(",")]
        except (ValueError, AttributeError) as e:
            raise ConfigError(f"--ladder {self.ladder!r} is not a list of draft lengths, as 1,3,7") from e
        for length in lengths:
            if not 1 <= length <= MAX_DEPTH:
                raise ConfigError(f"--ladder {self.ladder}: {length} is outside 1..{MAX_DEPTH}")
        return tuple(dict.fromkeys([self.shape(), *map(DraftTree.chain, lengths)]))

    def shape(self) -> DraftTree:
        """The tree that the options describe."""
        if self.tree is None:
            return DraftTree.chain(self.draft_length or DEFAULT_DRAFT_LENGTH)
        if isinstance(self.tree, str) and self.tree.startswith("dynamic"):
            return DynamicTree.parse(self.tree)
        try:
            if not isinstance(self.tree, str):
                tree = DraftTree.from_paths([tuple(path) for path in self.tree])
            elif self.tree in PUBLISHED:
                tree = PUBLISHED[self.tree]
            elif self.tree.strip().startswith("["):
                tree = DraftTree.from_paths([tuple(path) for path in json.loads(self.tree)])
            else:
                tree = DraftTree.from_widths([int(width) for width in self.tree.split(",")])
        except (ValueError, TypeError, RecursionError) as e:
            raise ConfigError(
                f"--tree {str(self.tree)[:80]!r} is neither children per level (4,2,1), a list of paths, "
                f"{', '.join(PUBLISHED)} nor dynamic:NODES,DEPTH,TOP_K"
            ) from e
        if not tree.depth:
            raise ConfigError("--tree [] drafts nothing; give at least one path, as --tree '[[0]]'")
        return tree


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileConfig:
    """One engine: which models, for what device, and how far they may go."""

    target: str = option("", "target model: hub id, folder or GGUF file", positional=True)
    drafter: str = option("", f"drafter: {FORMS}", positional=True)
    output: str = option("", "folder of the engine", short="-o", metavar="ENGINE")
    draft: DraftConfig = field(default_factory=DraftConfig)
    dtype: str = option("float32", "dtype of weights and caches", choices=DTYPES)
    device: str = option("cpu", "device the engine runs on")
    draft_device: str | None = option(
        None, "device that a drafting model runs on, if it shall be apart from the target's", metavar="DEVICE"
    )
    backend: str = option("inductor", "what carries the programs", choices=BACKENDS)
    quant: str | None = option(
        None,
        "with --backend onnx: weights of all products in 8 bits, by ONNX Runtime's quantiser; the text is then that of "
        "the model with such weights",
        choices=QUANTS,
    )
    context: int | None = option(
        None, "longest text in tokens, prompt included (default: the model's own, at most 2048)", metavar="TOKENS"
    )
    acceptance: str = option(
        "coupled",
        "sampled rules to compile, of coupled,rejection, and for medusa: also typical, which is LOSSY",
        metavar="RULES",
    )
    chunk: int = option(64, "tokens per prefill call", metavar="TOKENS")
    grammar: int = option(
        0,
        "constrained output: entries of an automaton's table, 4 bytes each, e.g. 1000000 (default: none)",
        metavar="SIZE",
    )
    ngram_pool: int = option(
        0,
        "tokens of ended texts that ngram searches too, whoever asked for them, e.g. 4096 (default: none)",
        metavar="SIZE",
    )
    batch: int = option(1, f"texts decoded side by side, 1..{MAX_BATCH}", metavar="ROWS")

    def __post_init__(self) -> None:
        for name in ("target", "drafter", "output"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value or "\0" in value:
                raise ConfigError(f"{name}: expected a non-empty text without zero bytes, found {value!r}")
        for name, allowed in (("dtype", DTYPES), ("backend", BACKENDS)):
            if getattr(self, name) not in allowed:
                raise ConfigError(f"--{name} {getattr(self, name)!r} is not one of {', '.join(allowed)}")
        for name in ("device", "acceptance"):
            if not isinstance(getattr(self, name), str):
                raise ConfigError(f"--{name} must be a text, not {getattr(self, name)!r}")
        if self.context is not None and not (isinstance(self.context, int) and self.context >= 2):
            raise ConfigError(f"--context {self.context!r} must be a whole number of at least 2 tokens")
        if isinstance(self.chunk, bool) or not (isinstance(self.chunk, int) and 1 <= self.chunk <= 1024):
            raise ConfigError(f"--chunk {self.chunk!r} must be a whole number in 1..1024")
        if isinstance(self.grammar, bool) or not (isinstance(self.grammar, int) and 0 <= self.grammar <= MAX_GRAMMAR):
            raise ConfigError(f"--grammar {self.grammar!r} must be a whole number in 0..{MAX_GRAMMAR}")
        if isinstance(self.batch, bool) or not (isinstance(self.batch, int) and 1 <= self.batch <= MAX_BATCH):
            raise ConfigError(f"--batch {self.batch!r} must be a whole number in 1..{MAX_BATCH}")
        if self.backend == "onnx" and self.dtype == "bfloat16":
            raise ConfigError(
                "--backend onnx takes --dtype float32 or float16, not bfloat16; leave it out, or use --backend inductor"
            )
        if self.backend == "tensorrt" and self.draft.draft_quant is not None:
            raise ConfigError(
                f"--draft-quant {self.draft.draft_quant}: TensorRT takes no weights packed in bits; leave it out"
            )
        if self.backend == "tensorrt" and self.acceptance != "coupled":
            raise ConfigError(
                f"--acceptance {self.acceptance}: --backend tensorrt is given its noise before a step, and only "
                "coupled knows where it will be needed; leave it out"
            )
        if self.quant not in (None, *QUANTS):
            raise ConfigError(f"--quant {self.quant!r} is not one of {', '.join(QUANTS)}")
        if self.quant is not None and (self.dtype, self.device) != ("float32", "cpu"):
            raise ConfigError(
                f"--quant {self.quant} is for float32 on the CPU, not {self.dtype} on {self.device}; leave --dtype and "
                "--device out"
            )
        if self.quant is not None and self.backend != "onnx":
            raise ConfigError(
                f"--quant {self.quant}: only --backend onnx multiplies by such weights; add it, or leave --quant out "
                "(--draft-quant is for the drafter's weights alone, on every back end but tensorrt)"
            )
        self._check_drafter()
        self._check_several()
        self.rules()
        self._check_children()
        self._check_placement()

    def drafting(self) -> DrafterSpec:
        """What `drafter` says."""
        return parse_drafter(self.drafter)

    def shapes(self) -> tuple[DraftTree, ...]:
        """What steps draft, the main tree first: those of `draft`, once for each of several drafters."""
        count = max(1, len(self.drafting().sources))
        return tuple(tree.times(count) if count > 1 else tree for tree in self.draft.shapes())

    def _check_several(self) -> None:
        """Refuse what several drafters cannot do side by side, and trees that become too large."""
        count, draft = len(self.drafting().sources), self.draft
        if count < 2:
            return
        given = {
            "--tune": draft.tune,
            f"--tree {draft.tree}": isinstance(draft.shape(), DynamicTree),
            "--children sampled": draft.children == SAMPLED,
            "ngram,": bool(self.drafting().lookup),
        }
        for name, value in given.items():
            if value:
                raise ConfigError(f"{name} is for one drafter, and {self.drafter!r} names {count}; leave one out")
        self.shapes()

    def _check_drafter(self) -> None:
        """Refuse what the drafter has no part in; numbers of it that say what is drafted become the draft's."""
        drafter = self.drafting()
        for name, what in {"draft_vocab": "cuts the head", "draft_quant": "stores the weights"}.items():
            flag = f"--{name.replace('_', '-')}"
            if getattr(self.draft, name) is not None and drafter.kind == SELF:
                raise ConfigError(
                    f"{flag} {what} of a drafter, and {self.drafter} reads the target's own, which stay as they are; "
                    "leave it out"
                )
            if getattr(self.draft, name) is not None and not drafter.sources:
                raise ConfigError(f"{flag} {what} of a drafting model, and {self.drafter} has none; leave it out")
        pool = self.ngram_pool
        if isinstance(pool, bool) or not (isinstance(pool, int) and 0 <= pool <= MAX_POOL):
            raise ConfigError(f"--ngram-pool {pool!r} must be a whole number in 0..{MAX_POOL}")
        if pool and drafter.kind != NGRAM:
            raise ConfigError(f"--ngram-pool {pool} is searched by the drafter ngram alone, not by {self.drafter!r}")
        object.__setattr__(self, "draft", fix_draft(self.drafter, drafter, self.draft))

    def _check_children(self) -> None:
        """Refuse drawn siblings where none are drawn, or where drawing them would change the text's law."""
        draft, drafter = self.draft, self.drafting()
        if draft.children != SAMPLED:
            return
        if "rejection" not in self.rules():
            raise ConfigError("--children sampled is a matter of rejection; add --acceptance coupled,rejection")
        if draft.tune or draft.shape().is_chain:
            raise ConfigError("--children sampled needs a tree, as --tree 3,2: the tokens of a chain are drawn anyway")
        if isinstance(draft.shape(), DynamicTree):
            raise ConfigError(
                f"--children sampled and --tree {draft.tree} contradict each other: to choose among drawn tokens would "
                "change the law of the text; use a tree of fixed shape, as --tree 3,2"
            )
        if not drafter.by_level or drafter.lookup:
            raise ConfigError(f"--children sampled draws level by level, which {self.drafter} does not; leave it out")

    def _check_placement(self) -> None:
        """Refuse a drafter apart from the target where more than ids would have to go between them."""
        if self.draft_device is None:
            return
        told, drafter = f"--draft-device {self.draft_device}", self.drafting()
        if not isinstance(self.draft_device, str):
            raise ConfigError(f"--draft-device must be a text, not {self.draft_device!r}")
        if self.backend in ("onnx", "tensorrt"):
            raise ConfigError(f"{told}: --backend {self.backend} runs all on one device; leave one of the two out")
        if drafter.kind != MODEL:
            raise ConfigError(
                f"{told} is for a drafter that is a model of its own, and {self.drafter} reads what the target has; "
                "leave it out"
            )
        if self.draft.tune or any(isinstance(tree, DynamicTree) for tree in self.shapes()):
            raise ConfigError(
                f"{told} takes a chain or a tree of fixed shape, as --tree 3,1; --tune measures one device"
            )
        if "rejection" in self.rules() and (self.shapes()[0].is_chain or self.draft.children == SAMPLED):
            raise ConfigError(
                f"{told} hands on ids, and rejection needs the law they were drawn from; leave --acceptance out"
            )

    def devices(self) -> tuple[str, ...]:
        """Where the target is, and the drafter if it is apart."""
        return (self.device,) if self.draft_device is None else (self.device, self.draft_device)

    def rules(self) -> tuple[str, ...]:
        """Sampled acceptance rules to compile, without repetition."""
        rules = tuple(dict.fromkeys(part.strip() for part in self.acceptance.split(",")))
        for rule in rules:
            if rule not in ("coupled", "rejection", *LOSSY):
                raise ConfigError(f"--acceptance {rule!r} is not one of coupled, rejection (or coupled,rejection)")
        if set(rules) <= set(LOSSY):
            raise ConfigError(
                f"--acceptance {self.acceptance} is lossy, and so never what a request gets unasked; add a rule that "
                f"is not, as --acceptance coupled,{self.acceptance}"
            )
        if set(rules) & set(LOSSY) and self.drafting().kind not in LOSSY_DRAFTERS:
            raise ConfigError("--acceptance typical is Medusa's; leave it out, or give medusa:PATH as the drafter")
        return rules

    def to_json(self) -> dict[str, Any]:
        """The choices as plain JSON values, for the manifest and the engine's key."""
        return json.loads(json.dumps(dataclasses.asdict(self)))
