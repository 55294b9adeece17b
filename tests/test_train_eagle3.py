"""EAGLE-3 in training: the packed unrolling is the plain loop of drafting, and what is learnt is what was meant."""

from __future__ import annotations

import copy

import pytest
import torch
from helpers.models import tiny_model
from torch.nn import functional as F

from specc.train.acceptance import chain_acceptance
from specc.train.batches import collate
from specc.train.eagle3 import Eagle3
from specc.train.features import Reader, Sample
from specc.train.shape import DrafterShape
from specc.train.start_eagle3 import start_eagle3
from specc.train.vocabulary import likely_ids, offsets

STEPS = 3


class Kept:
    """States in memory that are read as those of a file."""

    def __init__(self, states: torch.Tensor) -> None:
        self.states = states

    def get_slice(self, name: str) -> torch.Tensor:
        return self.states


@pytest.fixture(scope="module")
def target():
    return tiny_model(num_hidden_layers=7)


def samples_of(target, lengths: list[tuple[int, int]], layers: tuple[int, ...] = (2, 3, 4)) -> list[Sample]:
    """Greedy answers of the target to random prompts of `skip` tokens, `n` tokens in all."""
    reader, samples = Reader(target, layers), []
    for seed, (n, skip) in enumerate(lengths):
        ids = torch.randint(3, 128, (skip,), generator=torch.Generator().manual_seed(seed))
        with torch.no_grad():
            while len(ids) < n:
                ids = torch.cat([ids, target(ids[None]).logits[0, -1].argmax()[None]])
        states, top, logp = reader.read(ids, skip=skip, keep=4)
        samples.append(Sample(ids, skip, "chat", top.long(), logp.float(), Kept(states.clone()), 0))
    return samples


def drafter(target, samples: list[Sample], size: int = 40, seed: int = 0, **changes: int) -> Eagle3:
    torch.manual_seed(seed)
    shape = DrafterShape.of(target.config)
    shape = type(shape)(**{**{name: getattr(shape, name) for name in shape.__dataclass_fields__}, **changes})
    model = Eagle3(shape, target.get_input_embeddings().weight.detach(), likely_ids(samples, size, 128))
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return model


def plain(model: Eagle3, sample: Sample, t: int, steps: int) -> list[torch.Tensor]:
    """Drafting from pair t as an engine does it: one row after the other, each over all rows before it."""
    layer, shape = model.midlayer, model.shape
    heads, size = shape.heads, shape.head_dim
    feature = F.linear(sample.states()[: t + 1], model.fc.weight)
    token = list(range(1, t + 2))
    outputs = []
    for step in range(steps):
        embedded = model.embedding[sample.ids[token]]
        x = torch.cat([norm(embedded, layer.input_layernorm), norm(feature, layer.hidden_norm)], -1)
        again = heads // shape.kv_heads
        q = turn(F.linear(x[-1:], layer.self_attn.q_proj.weight).view(1, heads, size), t + step, shape.rope_theta)
        k = F.linear(x, layer.self_attn.k_proj.weight).view(-1, shape.kv_heads, size)
        k = torch.cat([turn(k[i : i + 1], i, shape.rope_theta) for i in range(len(k))]).repeat_interleave(again, 1)
        v = F.linear(x, layer.self_attn.v_proj.weight).view(-1, shape.kv_heads, size).repeat_interleave(again, 1)
        weight = (torch.einsum("qhd,khd->hqk", q, k) / size**0.5).softmax(-1)
        gathered = torch.einsum("hqk,khd->qhd", weight, v).reshape(1, -1)
        out = feature[-1:] + F.linear(gathered, layer.self_attn.o_proj.weight)
        y = norm(out, layer.post_attention_layernorm)
        y = F.silu(F.linear(y, layer.mlp.gate_proj.weight)) * F.linear(y, layer.mlp.up_proj.weight)
        out = out + F.linear(y, layer.mlp.down_proj.weight)
        outputs.append(norm(out, model.norm)[0])
        feature = torch.cat([feature, out])
        token.append(t + 2 + step)
    return outputs


def norm(x: torch.Tensor, module: torch.nn.Module) -> torch.Tensor:
    return x / (x.square().mean(-1, keepdim=True) + module.eps).sqrt() * module.weight


def turn(x: torch.Tensor, position: int, theta: float) -> torch.Tensor:
    """Rotation of the complex numbers that the halves of a head make."""
    half = x.shape[-1] // 2
    angle = position * theta ** (-torch.arange(half) / half)
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones(half), angle)
    return torch.cat([turned.real, turned.imag], -1)


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_unrolling_is_the_plain_loop(target, kv_heads: int) -> None:
    samples = samples_of(target, [(14, 5), (9, 2), (12, 1)])
    model = drafter(target, samples, kv_heads=kv_heads)
    batch = collate(samples, 0.5)
    with torch.no_grad():
        found = list(model.unroll(batch, STEPS))
        for step, (base, hidden) in enumerate(found):
            wanted = [(b, t) for b, s in enumerate(samples) for t in range(s.skip - 1, len(s.ids) - 2 - step)]
            assert base.tolist() == [b * batch.width + t for b, t in wanted]
            reference = torch.stack([plain(model, samples[b], t, step + 1)[step] for b, t in wanted])
            torch.testing.assert_close(hidden, reference, atol=1e-4, rtol=1e-4)


def test_loss_is_the_cross_entropy_within_the_draft_vocabulary(target) -> None:
    samples = samples_of(target, [(12, 4), (8, 3)])
    model = drafter(target, samples, size=20)
    batch = collate(samples, 0.3)
    loss, right = model.loss(batch, STEPS)
    total = 0.0
    kept = {int(token): i for i, token in enumerate(model.kept)}
    for step in range(STEPS):
        parts, hits = [], []
        for s in samples:
            for t in range(s.skip - 1, len(s.ids) - 2 - step):
                at = t + 2 + step
                wish = torch.zeros(len(kept))
                said = [
                    *zip(s.top[at - s.skip].tolist(), (0.7 * s.logp[at - s.skip].softmax(-1)).tolist(), strict=True)
                ]
                for token, share in [*said, (int(s.ids[at]), 0.3)]:
                    if token in kept:
                        wish[kept[token]] += share
                logits = model.lm_head(plain(model, s, t, step + 1)[step])
                whole = wish.sum()
                parts.append(F.cross_entropy(logits, wish / whole) if whole > 0.05 else torch.zeros(()))
                hits.append(int(model.kept[logits.argmax()]) == int(s.ids[at]))
        total += 0.8**step * torch.stack(parts).mean()
        assert right[step] == pytest.approx(sum(hits) / len(hits))
    torch.testing.assert_close(loss, total, atol=1e-4, rtol=1e-4)


def test_acceptance_counts_chains(target) -> None:
    samples = samples_of(target, [(16, 4), (13, 3)])
    model = drafter(target, samples)
    start_eagle3(model, target, [(s.ids, Reader(target, (2, 3, 4, 7)).read(s.ids, skip=1)[0]) for s in samples])
    found = chain_acceptance(model, samples, STEPS, rows=1)
    lengths = []
    for s in samples:
        for t in range(s.skip - 1, len(s.ids) - 1 - STEPS):
            outputs = plain(model, s, t, STEPS)
            drafts = [int(model.kept[model.lm_head(out).argmax()]) for out in outputs]
            wrong = [i for i, token in enumerate(drafts) if token != int(s.ids[t + 2 + i])]
            lengths.append(wrong[0] if wrong else STEPS)
    for step in range(STEPS):
        reached = sum(n >= step for n in lengths)
        assert found["steps"][step] == pytest.approx(sum(n > step for n in lengths) / max(1, reached), abs=1e-4)
    assert found["tokens"] == pytest.approx(1 + sum(lengths) / len(lengths), abs=1e-3)
    assert max(lengths) > 0


def test_taps_are_what_enters_the_layers(target) -> None:
    ids = torch.arange(3, 20)
    states, top, logp = Reader(target, (2, 3, 7)).read(ids, skip=5, keep=3)
    with torch.no_grad():
        out = target(ids[None], output_hidden_states=True)
    torch.testing.assert_close(states, torch.cat([out.hidden_states[i][0] for i in (2, 3, 7)], -1))
    value, index = out.logits[0, 4:-1].log_softmax(-1).topk(3)
    assert torch.equal(top.long(), index)
    torch.testing.assert_close(logp.float(), value, atol=2e-3, rtol=2e-3)


def test_offsets_are_those_of_the_published_format() -> None:
    kept = torch.tensor([0, 3, 4, 9])
    d2t, t2d = offsets(kept, 12)
    assert (torch.arange(4) + d2t).tolist() == [0, 3, 4, 9] and d2t.dtype == torch.int64
    assert t2d.nonzero()[:, 0].tolist() == [0, 3, 4, 9] and t2d.dtype == torch.bool and len(t2d) == 12


def test_the_start_drafts_well_where_layers_add_little(target) -> None:
    """Before any training: the state of a token is then about linear in its embedding and the state before.

    Embeddings share a direction, as those of trained models do: by it the rows are told to look at themselves.
    """
    target = copy.deepcopy(target)
    target.get_input_embeddings().weight.data[:, 0] = 3.0
    for layer in target.model.layers:
        for product in (layer.self_attn.o_proj, layer.mlp.down_proj):
            product.weight.data *= 0.1
    lengths = [(40, 4)] * 40
    samples = samples_of(target, lengths)
    model = drafter(target, samples, size=128)
    before = chain_acceptance(model, samples[:8], 3)["steps"][0]
    reader = Reader(target, (2, 3, 4, 7))
    start_eagle3(model, target, [(s.ids, reader.read(s.ids, skip=1)[0]) for s in samples])
    after = chain_acceptance(model, samples[:8], 3)["steps"][0]
    assert before < 0.1 and after > 0.4
