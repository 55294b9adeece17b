"""The proof that a captured graph is the model: block by block with a cache, it decodes as the model's own generate.

A graph can agree on a whole text and still be wrong from the second block on, when some of the model's layers keep
state that has no marker (convolutions, recurrences). So the graph is run here as an engine runs it: in blocks of
changing length, where only markers see earlier rows.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor, fx

from ..errors import CaptureError
from ..program import Model
from .export import capture, telling
from .load import LoadedModel
from .reduced import VOCABULARY, reduced_models

REDUCED_TOKENS, REAL_TOKENS = 40, 16
DISTINCT = 8  # a text of fewer different tokens proves little
BLOCKS = (5, 1, 1, 3, 4, 1, 2)  # rows of the blocks in turn
# Of the largest logit. Measured with this proof: float32 at most 1.4e-5 (gemma) over 22 reduced families and 2.2e-6 on
# SmolLM2-135M; bfloat16 0.024 on SmolLM2-135M and at most 0.045 (bitnet) on 19 of 21 families. Random deepseek_v2 and
# deepseek_v3 need 0.089 and 0.35 there, where a router's near-tie falls the other way: those may be refused. float16 at
# most 0.007 on 43 of 47 families, 0.012 on granitemoe, 0.026 on granite, 0.028 on deepseek_v2 and 0.41 on deepseek_v3.
TOLERANCE = {torch.float32: 5e-5, torch.bfloat16: 8e-2, torch.float16: 3e-2}


def prove(loaded: LoadedModel, model: Model, *, family_too: bool = True) -> None:
    """Compare greedy decoding of `model` with the model's own, on a reduced random model and on the real weights.

    Args:
        loaded: the model as loaded.
        model: what `capture(loaded, ...)` returned.
        family_too: False leaves the reduced model out, for layers of a model that was proved.

    Raises:
        CaptureError: they differ, or no reduced model of this class can be made and run.
    """
    family = loaded.architecture
    with telling(model.name):
        if family_too:
            small, text, prompt = reduced_text(loaded.model.config, type(loaded.model))
            compare_decoding(small, capture(small, name=model.name), text, prompt, f"a reduced {family}")
        ids = loaded.tokenizer("The first thing to know about the sea is that", return_tensors="pt").input_ids
        text = own_text(loaded.model, ids, REAL_TOKENS)
        compare_decoding(loaded.model, model, text, ids.shape[1], f"{family} from {loaded.source}")


def reduced_text(config: Any, model_class: Any) -> tuple[Any, Tensor, int]:
    """A reduced random model, a text `[1, T]` that it generates with at least `DISTINCT` tokens, and its prompt's size.

    Raises:
        CaptureError: this class cannot be built small or cannot generate.
    """
    best: tuple[int, int] = (0, 0)
    prompt = torch.randint(2, VOCABULARY, (1, 12), generator=torch.Generator().manual_seed(0))
    try:
        for index, small in enumerate(reduced_models(config, model_class)):
            text = own_text(small, prompt, REDUCED_TOKENS)
            distinct = len(set(text[0, prompt.shape[1] :].tolist()))
            if distinct >= DISTINCT:
                return small, text, prompt.shape[1]
            best = max(best, (distinct, index))
    except Exception as e:  # noqa: BLE001  whatever the model's code raises
        reason = (str(e).strip() or type(e).__name__).splitlines()[0]
        raise CaptureError(f"no reduced {model_class.__name__} can be run to prove its capture: {reason}") from e
    raise CaptureError(f"random {model_class.__name__} models repeat {best[0]} tokens, which proves nothing")


def own_text(model: Any, prompt: Tensor, tokens: int) -> Tensor:
    """What the model's own `generate` writes greedily: `[1, T + tokens]`; end of text and its own options ignored."""
    from transformers import GenerationConfig

    before, model.generation_config = model.generation_config, GenerationConfig()  # no penalties, no sampling
    try:
        # Without a mask of ones, generate takes pad ids in the prompt for padding.
        return model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    finally:
        model.generation_config = before


def prove_rows(model: Model, wide: Model, batch: int) -> None:
    """Compare the graph captured for `batch` rows with the proved one for a single row, row by row.

    Raises:
        CaptureError: a row's logits depend on how many there are.
    """
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, model.vocab_size, (batch, max(BLOCKS)), generator=generator)
    positions = torch.arange(tokens.shape[1]).expand(batch, -1)
    with torch.no_grad():
        ours = wide.module()(tokens, positions)[0]
        alone = torch.cat([model.module()(tokens[i : i + 1], positions[:1])[0] for i in range(batch)])
    gap, scale = (ours - alone).float().abs().max(), alone.float().abs().max()
    if not gap <= TOLERANCE[alone.dtype] * scale:
        raise CaptureError(f"{model.name}: a batch of {batch} computes other logits than its rows alone ({gap:.2g})")


def compare_decoding(own: Any, model: Model, text: Tensor, prompt: int, what: str) -> None:
    """Check that the graph, run in blocks over `text`, chooses each next token and has the model's own logits.

    Given the same tokens before, an equal choice at every place is equal greedy decoding. A choice may differ only
    where the two best logits are closer than the two ways of computing them.

    Raises:
        CaptureError: names the first place where they differ.
    """
    with torch.no_grad():
        ours = decode_in_blocks(model, text[:, :-1])
        theirs = own(input_ids=text[:, :-1], use_cache=False).logits.float()
    scale = theirs.abs().max()
    allowed = TOLERANCE[own.dtype] * scale
    gap = (ours - theirs).abs().amax((0, 2))
    for place in range(prompt - 1, text.shape[1] - 1):
        row, token = ours[0, place], int(text[0, place + 1])
        if row.max() - row[token] > allowed or gap[place] > allowed:
            raise CaptureError(
                f"{what} does not decode as its own generate does: at new token {place + 2 - prompt} the graph says "
                f"{int(row.argmax())}, the model {token} (logits differ by {gap[place]:.2g} of {scale:.3g})"
            )


def decode_in_blocks(model: Model, text: Tensor) -> Tensor:
    """Logits `[1, T, V]` float32 of the graph over `text` `[1, T]`, run in blocks of `BLOCKS` rows with a cache."""
    cached, start = CachedRun(model), 0
    out: list[Tensor] = []
    for rows in itertools.cycle(BLOCKS):
        if start >= text.shape[1]:
            return torch.cat(out, 1)
        out.append(cached.block(text[:, start : start + rows]).float())
        start += rows
    raise AssertionError("unreachable")


class CachedRun(fx.Interpreter):  # type: ignore[misc]
    """Runs a captured graph block by block, its markers attending to all rows so far.

    The plainest possible engine, and the oracle for the others.
    """

    def __init__(self, model: Model) -> None:
        super().__init__(model.module())
        self.length = 0
        self.cache: dict[int, tuple[Tensor, Tensor]] = {}

    def block(self, tokens: Tensor) -> Tensor:
        """Logits `[B, T, V]` of the next T tokens `[B, T]`."""
        positions = self.length + torch.arange(tokens.shape[1]).expand(tokens.shape)
        logits = self.run(tokens, positions)[0]
        self.length += tokens.shape[1]
        return logits

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Markers attend to the cache and to their own rows; all else is run as it is."""
        if target is not torch.ops.specc.attend.default:
            return super().call_function(target, args, kwargs)
        q, k, v, layer, *rest = args
        if layer in self.cache:
            k, v = (torch.cat([old, new], 2) for old, new in zip(self.cache[layer], (k, v), strict=True))
        self.cache[layer] = (k, v)
        # The eager marker is square and causal: ask it for all rows and keep the last ones.
        before = k.shape[2] - q.shape[2]
        padded = torch.cat([q.new_zeros(*q.shape[:2], before, q.shape[3]), q], 2)
        return torch.ops.specc.attend(padded, k, v, layer, *rest, **kwargs)[:, :, before:]
