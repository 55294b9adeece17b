"""The training script on a tiny random target: every stage runs, a second run goes on, the result loads."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("rich")
tokenizers = pytest.importorskip("tokenizers")

EXAMPLES = Path(__file__).parents[1] / "examples"
SMALL = (
    "--hidden 96 --layers 2 --inner 64 --head 32 --batch-tokens 128 --negatives 64 --prompts 6 --held-prompts 4 "
    "--rows 3 --new-tokens 8 --threads 1"
).split()


@pytest.fixture(scope="module")
def script():
    sys.path.insert(0, str(EXAMPLES))
    import train_drafter

    yield train_drafter
    sys.path.remove(str(EXAMPLES))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    """A random Llama with a byte tokenizer."""
    folder = tmp_path_factory.mktemp("tiny")
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    ids = {"<end>": 0} | {c: i + 1 for i, c in enumerate(letters)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(ids, []))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>").save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(letters) + 1, hidden_size=48, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=2048, tie_word_embeddings=True, bos_token_id=0, eos_token_id=0,
        initializer_range=0.3,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def test_all_stages_then_go_on(script, tiny, tmp_path):
    work, out = tmp_path / "work", tmp_path / "out"
    arguments = [str(tiny), "--work", str(work), "--out", str(out), *SMALL]
    script.main([*arguments, "--stages", "held,generate,train", "--steps", "6"])
    first = torch.load(work / "checkpoint.pt", weights_only=True)
    assert first["step"] == 6
    shards = {p: p.stat().st_mtime_ns for p in work.rglob("*.npz")}
    assert len(shards) == 4

    script.main([*arguments, "--steps", "9"])
    second = torch.load(work / "checkpoint.pt", weights_only=True)
    assert second["step"] == 9 and second["minutes"] > first["minutes"]
    assert {p: p.stat().st_mtime_ns for p in work.rglob("*.npz")} == shards  # nothing was generated twice
    assert not list(work.rglob("*.part"))

    drafter = transformers.AutoModelForCausalLM.from_pretrained(out)
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    assert drafter.dtype == torch.bfloat16 and drafter.config.tie_word_embeddings
    text = "def f(x): return x"
    assert tokenizer(text)["input_ids"] == transformers.AutoTokenizer.from_pretrained(tiny)(text)["input_ids"]
    assert drafter(torch.tensor([tokenizer(text)["input_ids"]])).logits.isfinite().all()
    figures = json.loads((out / "training.json").read_text())
    assert figures["steps"] == 9 and 0 <= figures["agreement"]["all"] <= 1


def test_a_killed_run_leaves_whole_files(tiny, tmp_path):
    work = tmp_path / "work"
    command = [sys.executable, str(EXAMPLES / "train_drafter.py"), str(tiny), "--work", str(work), *SMALL]
    command += "--stages held,generate,train --steps 100000 --save-minutes 0.005".split()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    for line in process.stdout:
        if line.startswith("{"):
            break
    process.kill()
    process.communicate()
    # The line is printed just before the checkpoint is renamed into place: there may be none; what there is, is whole.
    if (work / "checkpoint.pt").exists():
        assert torch.load(work / "checkpoint.pt", weights_only=True)["step"] > 0


def test_greedy_rows_are_the_models_own(script, tiny):
    from drafter import target

    model, _ = target.load_target(str(tiny))
    prompts = [[5, 9, 7], [3], [8, 8, 1, 4, 60, 2]]
    rows = target.greedy_rows(model, prompts, 12, set(), 4)
    plain = transformers.AutoModelForCausalLM.from_pretrained(tiny)
    for prompt, (answer, top, logp) in zip(prompts, rows, strict=True):
        own = plain.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False, eos_token_id=None)
        assert answer == own[0, len(prompt) :].tolist() and len(top) == len(logp) == 12 and top[0].shape == (4,)


def test_sparse_loss_has_the_gradients_of_the_dense_one(script):
    from drafter.train import SparseCE

    torch.manual_seed(0)
    hidden, table = torch.randn(700, 8, requires_grad=True), torch.randn(30, 8, requires_grad=True)
    index = torch.stack([torch.randperm(30)[:3] for _ in range(700)])
    p = torch.rand(700, 3).softmax(1)
    bias = torch.randn(30)
    loss, _ = SparseCE.apply(hidden, table, bias, index, p)
    got = torch.autograd.grad(loss, (hidden, table))
    logits = hidden @ table.T
    dense = (logits + bias).logsumexp(1).sum() - (logits.gather(1, index) * p).sum()
    torch.testing.assert_close(loss, dense)
    torch.testing.assert_close(got, torch.autograd.grad(dense, (hidden, table)), atol=1e-4, rtol=1e-4)


def test_copying_circuit(script):
    """Random tokens, then the same again: an untrained drafter already predicts the second half."""
    from drafter import start

    config = start.make_config(transformers.LlamaConfig(vocab_size=500), 192, 2, 64)
    model, _, _ = start.make_drafter(config, torch.randn(500, 192))
    ids = torch.randperm(500)[:40].repeat(2)[None]
    choice = model(ids).logits[0].argmax(-1)
    assert (choice[40:-1] == ids[0, 41:]).float().mean() > 0.9
