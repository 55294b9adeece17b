"""Parts of training that need no run: answers, files of chats, losses, first weights."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.models import tiny_model, tiny_tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from specc.errors import ConfigError
from specc.progress import Report
from specc.train.answers import Row, read_answers, write_answers
from specc.train.draft import small_llama
from specc.train.generate import continuations
from specc.train.losses import HeadLoss
from specc.train.read_data import answer_finder, chat_ids, read_rows
from specc.train.start_draft import start_draft

QUIET = Report(quiet=True)
SMALL = {"steps": 4, "batch_tokens": 200, "threads": 1}
SIZE, INNER, VOCAB, KEPT = 32, 64, 128, 48


def test_a_file_is_whole_or_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = Row(np.arange(5), 2, "chat", np.zeros((3, 4)), np.zeros((3, 4)))
    with monkeypatch.context() as patch:
        patch.setattr(np, "savez", lambda file, **_: file.write(b"half") and 1 / 0)
        with pytest.raises(ZeroDivisionError):
            write_answers(tmp_path / "a.npz", [row])
    assert not list(tmp_path.glob("*.npz"))
    write_answers(tmp_path / "a.npz", [row, row])
    back = read_answers(tmp_path / "a.npz", lambda ids: 1)
    assert [r.ids.tolist() for r in back] == [[0, 1, 2, 3, 4]] * 2 and back[1].top.shape == (3, 4)


def test_continuations_are_the_models_own() -> None:
    model, prompts = tiny_model(), [[5, 9, 7], [3], [8, 8, 1, 4, 60, 2]]
    ticks: list[int] = []
    rows = continuations(model, prompts, ["chat"] * 3, longest=12, ends=(), keep=4, tick=ticks.append)
    for prompt, row in zip(prompts, rows, strict=True):
        own = model.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False, eos_token_id=None)
        assert row.ids.tolist() == own[0].tolist() and row.skip == len(prompt) and row.top.shape == (12, 4)
        assert row.top[:, 0].tolist() == own[0, len(prompt) :].tolist()
    end = int(rows[0].ids[5])
    short = continuations(model, prompts, ["chat"] * 3, longest=12, ends=(end,), keep=4, tick=ticks.append)
    for row, whole in zip(short, rows, strict=True):
        answer = whole.ids[whole.skip :].tolist()
        cut = answer.index(end) + 1 if end in answer else 12
        assert row.ids[row.skip :].tolist() == answer[:cut]


def test_chats_are_read(tmp_path: Path) -> None:
    tokenizer, path = tiny_tokenizer(), tmp_path / "chats.jsonl"
    turns = [{"role": "user", "content": "the rain"}, {"role": "assistant", "content": "is wet"}]
    path.write_text(json.dumps({"prompt": "the rain", "answer": "is wet"}) + "\n" + json.dumps({"messages": turns}))
    one, two = read_rows(path, tokenizer)
    assert one.ids.tolist() == two.ids.tolist() == chat_ids(tokenizer, turns, opens=False)
    assert tokenizer.decode(one.ids[one.skip :]).startswith("is wet")
    assert answer_finder(tokenizer)(one.ids) == one.skip
    path.write_text('{"prompt": "only"}\n')
    with pytest.raises(ConfigError, match=r"chats.jsonl:1.*answer"):
        read_rows(path, tokenizer)


def test_head_loss_has_the_gradients_of_the_dense_one() -> None:
    torch.manual_seed(0)
    hidden, weight = torch.randn(700, 8, requires_grad=True), torch.randn(30, 8, requires_grad=True)
    index = torch.stack([torch.randperm(30)[:3] for _ in range(700)])
    share = torch.rand(700, 3).softmax(1)
    share[::7] = 0
    loss, choice = HeadLoss.apply(hidden, weight, index, share)
    got = torch.autograd.grad(loss, (hidden, weight))
    logits = hidden @ weight.T
    dense = (logits.logsumexp(1) * share.sum(1)).sum() - (logits.gather(1, index) * share).sum()
    torch.testing.assert_close(loss, dense, atol=1e-3, rtol=1e-5)
    torch.testing.assert_close(got, torch.autograd.grad(dense, (hidden, weight)), atol=1e-4, rtol=1e-4)
    assert torch.equal(choice, logits.argmax(1))


def test_copying_circuit() -> None:
    """Random tokens, then the same again: an untrained drafter already predicts the second half."""
    model = LlamaForCausalLM(small_llama(LlamaConfig(vocab_size=500), 192, 2))
    start_draft(model, torch.randn(500, 192, generator=torch.Generator().manual_seed(0)))
    ids = torch.randperm(500, generator=torch.Generator().manual_seed(1))[:40].repeat(2)[None]
    choice = model(ids).logits[0].argmax(-1)
    assert (choice[40:-1] == ids[0, 41:]).float().mean() > 0.9
