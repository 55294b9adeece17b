"""From folders to text where something is odd: no transformers at run time, bfloat16, padded rows, other families."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers.models import save_tiny, tiny_drafter, tiny_model, tiny_tokenizer
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

import specc

PROMPT = [1, 40, 50, 60, 70, 33, 90]
BLOCKED = (
    "transformers",
    "rich",
    "onnxscript",
    "specc.passes",
    "specc.capture",
    "specc.lower",
    "specc.driver",
    "specc.program",
)


@pytest.mark.parametrize("engine", ("tiny_engine", "inductor_engine", "onnx_engine"))
def test_a_new_process_without_the_compiler_writes_the_same_text(engine: str, request: pytest.FixtureRequest) -> None:
    folder = request.getfixturevalue(engine)
    code = f"""
import json, sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.startswith({BLOCKED!r}):
            raise ImportError(name + " is not installed")
sys.meta_path.insert(0, Block())
import specc
engine = specc.load({str(folder)!r})
options = dict(max_new_tokens=20, eos_token_id=())
print(json.dumps([engine.generate({PROMPT}, **options).token_ids,
                  engine.generate({PROMPT}, temperature=0.8, seed=3, **options).token_ids]))
"""
    out = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert out.returncode == 0, out.stderr
    here = specc.load(folder)
    options = {"max_new_tokens": 20, "eos_token_id": ()}
    assert json.loads(out.stdout) == [
        here.generate(PROMPT, **options).token_ids,
        here.generate(PROMPT, temperature=0.8, seed=3, **options).token_ids,
    ]


def test_bfloat16_parts_from_the_plain_text_at_near_ties_only(tmp_path: Path, tiny_folders: tuple[Path, Path]) -> None:
    engine = specc.load(
        specc.compile(
            *tiny_folders, tmp_path / "e", backend="eager", dtype="bfloat16", context=80, chunk=16, fixed=True
        )
    )
    plain = engine.generate(PROMPT, max_new_tokens=24, eos_token_id=(), draft_length=0)
    fast = engine.generate(PROMPT, max_new_tokens=24, eos_token_id=())
    assert len(set(plain.token_ids)) >= 8
    assert 0 < fast.stats.accepted and fast.stats.steps < 24
    pairs = zip(plain.token_ids, fast.token_ids, strict=True)
    first = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    if first is not None:  # other kernels, 8 bits of mantissa: either of two equal logits may come
        model = AutoModelForCausalLM.from_pretrained(tiny_folders[0], dtype=torch.bfloat16)
        logits = model(torch.tensor([PROMPT + plain.token_ids[:first]])).logits[0, -1].float()
        best, ids = logits.topk(2)
        assert {plain.token_ids[first], fast.token_ids[first]} == set(ids.tolist())
        assert best[0] - best[1] <= 4 * 2**-7 * best[0].abs()


def test_padded_rows_are_never_drafted_or_emitted(tmp_path: Path) -> None:
    target = tiny_model(vocab_size=136)
    drafter = tiny_drafter(tiny_model(vocab_size=136), 0.03)
    with torch.no_grad():  # padded rows would win everywhere
        for model in (target, drafter):
            model.lm_head.weight[128:] = 20 * model.lm_head.weight[:8]
    folders = save_tiny(tmp_path / "t", model=target), save_tiny(tmp_path / "d", model=drafter)
    ids = torch.tensor([PROMPT])
    expected = target.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=20, do_sample=False, eos_token_id=-1,
        suppress_tokens=list(range(128, 136)),
    )[0, len(PROMPT) :].tolist()  # fmt: skip
    assert target(ids).logits[0, -1].argmax() >= 128
    engine = specc.load(specc.compile(*folders, tmp_path / "e", backend="eager", context=60, chunk=16, fixed=True))
    result = engine.generate(PROMPT, max_new_tokens=20, eos_token_id=())
    assert result.token_ids == expected
    assert result.stats.accepted > 0  # so no padded id was drafted either
    sampled = engine.generate(PROMPT, max_new_tokens=20, eos_token_id=(), temperature=1.5, seed=1)
    assert max(sampled.token_ids) < 128


FAMILIES = {
    "gemma2": {"tie_word_embeddings": False, "sliding_window": 8, "head_dim": 8, "query_pre_attn_scalar": 8},
    "gpt2": {"n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_windows_soft_caps_and_learned_positions_through_the_whole_step(tmp_path: Path, family: str) -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    shared = {"vocab_size": 128, "num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config = AutoConfig.for_model(family, **{**({} if family == "gpt2" else sizes), **shared, **FAMILIES[family]})
    config.initializer_range = 0.35
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    model.generation_config = GenerationConfig(bos_token_id=1, eos_token_id=2, pad_token_id=0)
    folder = tmp_path / "t"
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    ids = torch.tensor([PROMPT * 2])
    expected = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False, eos_token_id=-1
    )[0, ids.shape[1] :].tolist()
    engine = specc.load(
        specc.compile(folder, folder, tmp_path / "e", backend="eager", context=56, chunk=16, tree="2,1", fixed=True)
    )
    result = engine.generate(ids[0].tolist(), max_new_tokens=24, eos_token_id=())
    assert result.token_ids == expected and len(set(expected)) >= 4
    assert result.stats.accepted == result.stats.drafted > 0  # the drafter is the target
