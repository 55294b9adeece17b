"""`specc train` on tiny targets: every family to its published files, kills, resumption, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from helpers.models import save_tiny, tiny_model
from helpers.training import QUIET, SMALL, run, save_target, write_some_answers
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from specc.capture.feature_drafter import load_feature_drafter
from specc.capture.load import LoadedModel, load_model
from specc.cli import main
from specc.drafter import parse_drafter
from specc.errors import ConfigError
from specc.train import loop
from specc.train.answers import Row, read_answers
from specc.train.batches import collate
from specc.train.config import AnswerConfig, TrainConfig
from specc.train.data import Data, one_in
from specc.train.draft import Draft, small_llama
from specc.train.eagle import Eagle
from specc.train.eagle3 import Eagle3
from specc.train.features import Reader, Sample, read_features, write_features
from specc.train.medusa import Medusa
from specc.train.precision import PRECISIONS
from specc.train.run import train
from specc.train.shape import DrafterShape

SIZE, INNER, VOCAB, KEPT = 32, 64, 128, 48


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def data(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_some_answers(target, tmp_path_factory.mktemp("answers"))


def shapes(path: Path) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in load_file(path).items()}


EAGLE3_SHAPES = {
    "fc.weight": (SIZE, 3 * SIZE),
    "midlayer.hidden_norm.weight": (SIZE,),
    "midlayer.input_layernorm.weight": (SIZE,),
    "midlayer.post_attention_layernorm.weight": (SIZE,),
    "midlayer.self_attn.q_proj.weight": (SIZE, 2 * SIZE),
    "midlayer.self_attn.k_proj.weight": (SIZE, 2 * SIZE),
    "midlayer.self_attn.v_proj.weight": (SIZE, 2 * SIZE),
    "midlayer.self_attn.o_proj.weight": (SIZE, SIZE),
    "midlayer.mlp.gate_proj.weight": (INNER, SIZE),
    "midlayer.mlp.up_proj.weight": (INNER, SIZE),
    "midlayer.mlp.down_proj.weight": (SIZE, INNER),
    "norm.weight": (SIZE,),
    "lm_head.weight": (KEPT, SIZE),
    "d2t": (KEPT,),
    "t2d": (VOCAB,),
}


def test_eagle3_has_the_published_form(target: Path, data: Path, tmp_path: Path) -> None:
    out = run("eagle3", target, data, tmp_path / "out", draft_vocab=KEPT)
    assert shapes(out / "model.safetensors") == EAGLE3_SHAPES
    weights = load_file(out / "model.safetensors")
    assert weights["d2t"].dtype == torch.int64 and weights["t2d"].dtype == torch.bool
    assert torch.equal(weights["t2d"].nonzero()[:, 0], torch.arange(KEPT) + weights["d2t"])
    assert weights["fc.weight"].dtype == torch.bfloat16
    config = json.loads((out / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert config["eagle_aux_hidden_state_layer_ids"] == [2, 3, 4]
    assert config["draft_vocab_size"] == KEPT and config["vocab_size"] == VOCAB and config["num_hidden_layers"] == 1
    log = json.loads((out / "training.json").read_text())
    assert log[-1]["step"] == 4 and len(log[-1]["held"]["steps"]) == 3


@pytest.mark.parametrize("layout", ["published", "speculators"])
def test_a_compiled_eagle3_drafts_as_it_learnt(target: Path, data: Path, tmp_path: Path, layout: str) -> None:
    out = run("eagle3", target, data, tmp_path / "out", draft_vocab=KEPT, layout=layout)
    loaded = load_model(str(target), role="target", dtype="float32")
    ids = torch.arange(3, 23)
    found = load_feature_drafter(parse_drafter(f"eagle3:{out}"), loaded, dtype="float32")
    logits = found.first_drafts(loaded.model, ids[None])[1:]
    weights = {name.replace("layers.0.", "midlayer."): w for name, w in load_file(out / "model.safetensors").items()}
    kept = torch.arange(KEPT) + weights.pop("d2t")
    assert torch.equal(found.column_of[kept], torch.arange(KEPT))
    del weights["t2d"]
    model = Eagle3(DrafterShape.of(loaded.config), loaded.model.get_input_embeddings().weight.detach(), kept)
    model.load_state_dict({name: w.float() for name, w in weights.items()})
    path = tmp_path / "features.safetensors"
    write_features(path, [Row(ids.numpy(), 1)], Reader(loaded.model, (2, 3, 4)), 4, lambda n: None)
    with torch.no_grad():
        base, hidden = next(iter(model.unroll(collate(read_features(path), 1.0), 1)))
        torch.testing.assert_close(logits[base], hidden @ model.head(0).T, atol=2e-2, rtol=2e-2)  # float16 on disk


def last_states(loaded: LoadedModel, path: Path, ids: torch.Tensor) -> list[Sample]:
    """One row as training reads it, with the input of the LM head."""
    write_features(path, [Row(ids.numpy(), 1)], Reader(loaded.model, (7,)), 4, lambda n: None)
    return read_features(path)


def test_a_compiled_eagle_drafts_as_it_learnt(target: Path, data: Path, tmp_path: Path) -> None:
    out = run("eagle", target, data, tmp_path / "out")
    loaded = load_model(str(target), role="target", dtype="float32")
    found = load_feature_drafter(parse_drafter(f"eagle:{out}"), loaded, dtype="float32")
    table, head = (
        get().weight.detach() for get in (loaded.model.get_input_embeddings, loaded.model.get_output_embeddings)
    )
    model = Eagle(DrafterShape.of(loaded.config), table, head, torch.arange(VOCAB))
    model.load_state_dict({name: w.float() for name, w in load_file(out / "model.safetensors").items()})
    ids = torch.arange(3, 23)
    logits = found.first_drafts(loaded.model, ids[None])[1:]
    rows = last_states(loaded, tmp_path / "features.safetensors", ids)
    with torch.no_grad():
        base, hidden = next(iter(model.unroll(collate(rows, 1.0), 1)))
        torch.testing.assert_close(logits[base], hidden @ head.T, atol=2e-2, rtol=2e-2)  # float16 on disk
    assert not found.notes


def test_compiled_medusa_heads_draft_as_they_learnt(target: Path, data: Path, tmp_path: Path) -> None:
    """Every head in its place; a rate that tears them apart."""
    out = run("medusa", target, data, tmp_path / "out", unroll=3, learning_rate=0.05)
    loaded = load_model(str(target), role="target", dtype="float32")
    found = load_feature_drafter(parse_drafter(f"medusa:{out}"), loaded, dtype="float32")
    ids = torch.arange(3, 23)
    rows = last_states(loaded, tmp_path / "features.safetensors", ids)
    states = rows[0].states()
    model = Medusa(3, loaded.model.get_output_embeddings().weight.detach(), "t")
    stored = load_file(out / "medusa_lm_head.safetensors")
    model.load_state_dict({f"heads.{name}": w.float() for name, w in stored.items()})
    with torch.no_grad():
        wanted = [hidden @ model.head(step).T for step, (_, hidden) in enumerate(model.unroll(collate(rows, 1.0), 3))]
        logits = [head(states)[: len(one)] for head, one in zip(found.module.heads, wanted, strict=True)]
    for one, other in zip(logits, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=2e-2, rtol=2e-2)
    assert not torch.allclose(wanted[0][: len(wanted[2])], wanted[2], atol=0.1) and not found.notes


def test_a_work_folder_is_of_one_run(target: Path, data: Path, tmp_path: Path) -> None:
    run("eagle", target, data, tmp_path / "out")
    with pytest.raises(ConfigError, match="belongs to a run with family eagle"):
        run("eagle3", target, data, tmp_path / "other", work=str(tmp_path / "out.work"))


def test_speculators_form_holds_the_same_weights(target: Path, data: Path, tmp_path: Path) -> None:
    work = str(tmp_path / "work")
    one = load_file(run("eagle3", target, data, tmp_path / "a", draft_vocab=KEPT, work=work) / "model.safetensors")
    out = run("eagle3", target, data, tmp_path / "b", draft_vocab=KEPT, work=work, layout="speculators")
    two = load_file(out / "model.safetensors")
    assert set(two) == {name.replace("midlayer.", "layers.0.") for name in EAGLE3_SHAPES}
    assert all(torch.equal(two[name.replace("midlayer.", "layers.0.")], tensor) for name, tensor in one.items())
    config = json.loads((out / "config.json").read_text())
    assert config["speculators_model_type"] == "eagle3" and config["draft_vocab_size"] == KEPT
    assert config["transformer_layer_config"]["hidden_size"] == SIZE
    assert config["speculators_config"]["verifier"]["architectures"] == ["LlamaForCausalLM"]


def test_eagle_has_the_published_form(target: Path, data: Path, tmp_path: Path) -> None:
    out = run("eagle", target, data, tmp_path / "out")
    assert shapes(out / "model.safetensors") == {
        "fc.weight": (SIZE, 2 * SIZE),
        "fc.bias": (SIZE,),
        "layers.0.self_attn.q_proj.weight": (SIZE, SIZE),
        "layers.0.self_attn.k_proj.weight": (SIZE, SIZE),
        "layers.0.self_attn.v_proj.weight": (SIZE, SIZE),
        "layers.0.self_attn.o_proj.weight": (SIZE, SIZE),
        "layers.0.post_attention_layernorm.weight": (SIZE,),
        "layers.0.mlp.gate_proj.weight": (INNER, SIZE),
        "layers.0.mlp.up_proj.weight": (INNER, SIZE),
        "layers.0.mlp.down_proj.weight": (SIZE, INNER),
    }
    assert json.loads((out / "config.json").read_text())["bias"] is True


def test_medusa_has_the_published_form(target: Path, data: Path, tmp_path: Path) -> None:
    out = run("medusa", target, data, tmp_path / "out", unroll=2)
    assert shapes(out / "medusa_lm_head.safetensors") == {
        f"{k}.{name}": shape
        for k in range(2)
        for name, shape in {
            "0.linear.weight": (SIZE, SIZE),
            "0.linear.bias": (SIZE,),
            "1.weight": (VOCAB, SIZE),
        }.items()
    }
    config = json.loads((out / "config.json").read_text())
    assert config["medusa_num_heads"] == 2 and config["base_model_name_or_path"] == str(target)


def test_draft_is_a_model_of_transformers(target: Path, data: Path, tmp_path: Path) -> None:
    out = run("draft", target, data, tmp_path / "out", hidden=96, layers=2)
    model = AutoModelForCausalLM.from_pretrained(out)
    assert model.dtype == torch.bfloat16 and model.config.tie_word_embeddings
    assert model(torch.tensor([[5, 6, 7]])).logits.isfinite().all()
    assert load_model(str(out), role="drafter", dtype="float32").vocab_size == VOCAB


@pytest.mark.parametrize("family", ["eagle3", "eagle", "medusa", "draft"])
def test_loss_falls(family: str, target: Path, data: Path, tmp_path: Path) -> None:
    changes = {"steps": 160, "learning_rate": 3e-3, "hidden": 32 if family == "draft" else None}
    out = run(family, target, data, tmp_path / "out", **changes)
    trained = json.loads((out / "training.json").read_text())[-1]
    out = run(family, target, data, tmp_path / "short", **{**changes, "steps": 1})
    assert trained["loss"] < 0.9 * json.loads((out / "training.json").read_text())[-1]["loss"]


def trainer_of(
    target: Path, data: Path, work: Path, steps: int, **changes: object
) -> tuple[loop.Trainer, list[Sample]]:
    loaded = load_model(str(target), role="target", dtype="float32").model
    made = work / "features.safetensors"
    if not made.exists():
        rows = read_answers(sorted(data.glob("*.npz"))[0], lambda ids: 1)
        write_features(made, rows, Reader(loaded, (2, 3, 4)), 4, lambda n: None)
    samples = read_features(made)
    torch.manual_seed(0)
    model = Eagle3(DrafterShape.of(loaded.config), loaded.get_input_embeddings().weight.detach(), torch.arange(3, 60))
    config = TrainConfig(
        family="eagle3", target=str(target), output=str(work / "out"), **{**SMALL, "steps": steps, **changes}
    )
    return loop.Trainer(model, work, config), samples


def test_a_resumed_run_ends_with_the_same_weights(target: Path, data: Path, tmp_path: Path) -> None:
    ends = []
    for parts in ((6,), (2, 4)):
        work = tmp_path / f"in-{len(parts)}"
        work.mkdir()
        for i, steps in enumerate(parts):
            trainer, samples = trainer_of(target, data, work, 6)
            assert trainer.resume() == (i > 0)
            for _ in range(steps):
                trainer.train_step(samples, 6.0)
            trainer.save()
        ends.append(trainer)
    one, two = ends
    assert one.step == two.step == 6 and len(list((tmp_path / "in-2").glob("checkpoint-*"))) == 1
    for name, weight in one.model.state_dict().items():
        assert torch.equal(weight, two.model.state_dict()[name]), name
    assert all(torch.equal(one.average[name], two.average[name]) for name in one.average)


def test_a_run_that_has_ended_by_the_clock_stays_ended(target: Path, data: Path, tmp_path: Path) -> None:
    """The rate of every step follows the time that is left, of the first one behind a restart too."""
    trainer, samples = trainer_of(target, data, tmp_path, 1000, minutes=1)
    trainer.train_step(samples, 1000.0)
    trainer.seconds, trainer.pace = 50.0, 2.0
    trainer.save()
    again, _ = trainer_of(target, data, tmp_path, 1000, minutes=1)
    assert again.resume() and again.planned() == 1 + 5
    again.seconds = 61.0
    again.save()
    last, _ = trainer_of(target, data, tmp_path, 1000, minutes=1)
    assert last.resume()
    before = {name: weight.clone() for name, weight in last.model.state_dict().items()}
    last.run(samples, lambda: samples, lambda model: {}, lambda line: None, lambda *given: None)
    assert last.step == 1
    assert all(torch.equal(weight, before[name]) for name, weight in last.model.state_dict().items())


def test_a_kill_while_saving_leaves_the_checkpoint_before(
    target: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, samples = trainer_of(target, data, tmp_path, 6)
    trainer.train_step(samples, 6.0)
    trainer.save()
    trainer.train_step(samples, 6.0)
    with monkeypatch.context() as patch:
        patch.setattr(loop.os, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            trainer.save()
    again, _ = trainer_of(target, data, tmp_path, 6)
    assert again.resume() and again.step == 1


@pytest.mark.parametrize("precision", PRECISIONS)
def test_either_precision_learns(target: Path, data: Path, tmp_path: Path, precision: str) -> None:
    """On every processor, fast or not: weights and gradients are float32, and a step is nearly the same."""
    trainer, samples = trainer_of(target, data, tmp_path, 6, precision=precision)
    assert trainer.mixed == (precision == "bfloat16")
    losses = [trainer.train_step(samples, 6.0)[0] for _ in range(6)]
    assert all(p.dtype == torch.float32 for p in trainer.model.parameters())
    exact, _ = trainer_of(target, data, tmp_path, 6, precision="float32")
    assert losses[0] == pytest.approx(exact.train_step(samples, 6.0)[0], rel=0.01)
    assert losses[-1] < losses[0]


def test_new_files_are_taken_up(target: Path, data: Path, tmp_path: Path) -> None:
    loaded = load_model(str(target), role="target", dtype="float32")
    first, second = sorted(data.glob("*.npz"))
    folder = tmp_path / "answers"
    folder.mkdir()
    (folder / first.name).write_bytes(first.read_bytes())

    def rows() -> Data:
        reader = Reader(loaded.model, (7,))
        return Data([folder], tmp_path / "features", loaded.tokenizer, reader, 512, QUIET, apart=one_in(4))

    one = rows()
    count, held = len(one.refresh()), said(one.held())
    assert count > 0 and held and not held & said(one.refresh())
    (folder / f"0{second.name}").write_bytes(second.read_bytes())  # sorts before the file that was there
    assert len(one.refresh()) > count and not held & said(one.refresh())
    again = rows()
    again.refresh()
    assert held <= said(again.held()), "what was held out is learnt from after a restart"


def said(samples: list[Sample]) -> set[tuple[int, ...]]:
    return {tuple(sample.ids.tolist()) for sample in samples}


def test_prompts_are_answered_and_held_out(target: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("\n".join(f"the other {i}" for i in range(20)))
    what = AnswerConfig(prompts=str(prompts), rows=10, new_tokens=12)
    out = tmp_path / "out"
    train(TrainConfig(family="eagle", target=str(target), output=str(out), what=what, **SMALL), QUIET)
    answers = [
        row for path in (tmp_path / "out.work" / "answers").glob("*.npz") for row in read_answers(path, lambda ids: 1)
    ]
    assert len(answers) == 18 and len(list((tmp_path / "out.work" / "held").glob("*.npz"))) == 1
    assert (out / "training.png").exists()


def test_a_draft_reads_the_tokens_before(target: Path, data: Path) -> None:
    """Its choice for x_{t + 2 + step} comes from the position before it."""
    torch.manual_seed(0)
    model = Draft(small_llama(tiny_model().config, 32, 1))
    path = sorted(data.glob("*.npz"))[0]
    rows = read_answers(path, lambda ids: 1)[:3]
    loaded = load_model(str(target), role="target", dtype="float32").model
    write_features(path.parent.parent / "none.safetensors", rows, Reader(loaded, ()), 4, lambda n: None)
    batch = collate(read_features(path.parent.parent / "none.safetensors"), 0.5)
    with torch.no_grad():
        for step, (base, hidden) in enumerate(model.unroll(batch, 3)):
            choices = model.choices(hidden, step)
            for at, choice in zip(base.tolist(), choices.tolist(), strict=True):
                b, t = divmod(at, batch.width)
                assert model.llama(batch.ids[b : b + 1, : t + 2 + step]).logits[0, -1].argmax() == choice


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["eagle2", "T", "-o", "O"], "eagle2"),
        (["eagle", "T", "-o", "O", "--data", "a.npz", "--prompts", "p"], "one of the two"),
        (["eagle", "T", "-o", "O", "--held", "a.npz"], "--held a.npz goes with --data"),
        (["eagle", "T", "-o", "O", "--layout", "speculators"], "--layout speculators is for eagle3"),
        (["medusa", "T", "-o", "O", "--draft-vocab", "9"], "--draft-vocab 9 is for eagle3 and eagle"),
        (["eagle", "T", "-o", "O", "--hidden", "9"], "--hidden 9 is for draft"),
        (["eagle", "T", "-o", "O", "--hard", "2"], "--hard 2.0 is outside 0..1"),
        (["eagle", "T", "-o", "O", "--steps", "0"], "--steps 0 must be a whole number of at least 1"),
    ],
)
def test_what_contradicts_itself_is_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_target_of_few_layers_is_refused(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = save_tiny(tmp_path / "small")
    assert main(["train", "eagle3", str(small), "-o", str(tmp_path / "o"), "--data", str(data), "--quiet"]) == 2
    assert "2 layers" in capsys.readouterr().err
