"""Published checkpoints in: every layout and variant computes what it should, and every fault is named with its fix."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import checkpoints, plain_drafter
from helpers.decoding import loaded
from helpers.imported import LAYERS, TEXT, logits, made, read, same, target

from specc.capture.feature_drafter import load_feature_drafter
from specc.drafter import parse_drafter
from specc.errors import CaptureError


class TestVariants:
    """What the layouts and settings mean."""

    @pytest.mark.parametrize("layers", [1, 2])
    def test_eagle(self, tmp_path: Path, layers: int) -> None:
        config, tensors = made("eagle", layers=layers)
        assert same(read(tmp_path, "eagle", config, tensors), config, tensors)

    def test_eagle_without_a_bias(self, tmp_path: Path) -> None:
        config, tensors = made("eagle")
        del tensors["fc.bias"]
        config["bias"] = False
        assert same(read(tmp_path, "eagle", config, tensors), config, tensors)

    def test_eagle_with_biases_that_its_configuration_does_not_name(self, tmp_path: Path) -> None:
        config, tensors = made("eagle")
        for n in "qkv":
            width = len(tensors[f"layers.0.self_attn.{n}_proj.weight"])
            tensors[f"layers.0.self_attn.{n}_proj.bias"] = torch.randn(width)
        assert same(read(tmp_path, "eagle", config, tensors), config, tensors)

    @pytest.mark.parametrize("kind", ["eagle", "eagle3"])
    def test_an_embedding_of_its_own(self, tmp_path: Path, kind: str) -> None:
        config, tensors = made(kind)
        tensors["embed_tokens.weight"] = torch.randn(128, 32)
        drafter = read(tmp_path, kind, config, tensors)
        assert same(drafter, config, tensors)
        (note,) = drafter.notes
        assert "embed_tokens are not the target's" in note and "delete embed_tokens.weight" in note
        tensors["embed_tokens.weight"] = target().get_input_embeddings().weight.detach().clone()
        again = read(tmp_path, kind, config, tensors)
        assert not again.notes and same(again, config, tensors)

    def test_a_head_that_is_the_targets_does_no_harm(self, tmp_path: Path) -> None:
        config, tensors = made("eagle")
        plain = dict(tensors)
        tensors["lm_head.weight"] = target().get_output_embeddings().weight.detach().clone()
        assert same(read(tmp_path, "eagle", config, tensors), config, plain)

    @pytest.mark.parametrize("vocab", [0, 80])
    def test_eagle3(self, tmp_path: Path, vocab: int) -> None:
        config, tensors = made("eagle3", draft_vocab=vocab)
        drafter = read(tmp_path, "eagle3", config, tensors)
        assert same(drafter, config, tensors)
        assert (drafter.column_of is None) == (not vocab)
        if drafter.column_of is not None:
            kept = tensors["t2d"].nonzero().squeeze(1)
            assert drafter.column_of[kept].tolist() == list(range(80))
            assert int((drafter.column_of < 0).sum()) == 48

    def test_the_norm_in_front_of_the_residual(self, tmp_path: Path) -> None:
        config, tensors = made("eagle3")
        plain = logits(read(tmp_path, "eagle3", config, tensors))
        config["norm_before_residual"] = True
        drafter = read(tmp_path, "eagle3", config, tensors)
        assert same(drafter, config, tensors) and not torch.allclose(logits(drafter), plain, atol=0.1)

    @pytest.mark.parametrize("form", ["each", "all"])
    def test_norms_in_front_of_fc(self, tmp_path: Path, form: str) -> None:
        config, tensors = made("eagle3")
        if form == "each":
            tensors |= {f"fc_norm.{i}.weight": torch.rand(32) + 0.5 for i in range(3)}
            config["fc_norm"] = True
        else:
            tensors["input_norm.weight"] = torch.rand(96) + 0.5
            config["eagle_config"] = {"norm_before_fc": True}
        assert same(read(tmp_path, "eagle3", config, tensors), config, tensors)

    def test_what_is_handed_on_may_be_normed(self, tmp_path: Path) -> None:
        config, tensors = made("eagle3")
        tensors["norm.weight"] = torch.rand(32) + 0.5
        given = torch.tensor([TEXT]), torch.arange(11)[None], torch.randn(1, 11, 32)
        before = read(tmp_path, "eagle3", config, tensors).module(*given)
        drafter = read(tmp_path, "eagle3", {**config, "norm_output": True}, tensors)
        after = drafter.module(*given)
        assert torch.equal(before[0], after[0])
        assert torch.allclose(after[1], drafter.module.norm(before[1]))

    def test_the_layout_of_speculators(self, tmp_path: Path) -> None:
        config, tensors = made("eagle3", draft_vocab=80)
        other = read(tmp_path, "eagle3", *checkpoints.speculators(config, tensors))
        assert same(other, {**config, "norm_before_residual": True}, tensors)

    @pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.safetensors"])
    def test_formats(self, tmp_path: Path, name: str) -> None:
        config, tensors = made("eagle3")
        tmp_path.joinpath("training_args.bin").write_bytes(b"no tensors")
        if name.endswith("pt"):
            (tmp_path / "training_args.bin").unlink()
        assert same(read(tmp_path, "eagle3", config, tensors, name=name), config, tensors)

    def test_a_file_instead_of_its_folder(self, tmp_path: Path) -> None:
        config, tensors = made("eagle")
        checkpoints.save(tmp_path, config, tensors)
        spec = parse_drafter(f"eagle:{tmp_path / 'model.safetensors'}")
        assert same(load_feature_drafter(spec, loaded(target()), dtype="float32"), config, tensors)

    def test_bfloat16_leaves_the_frequencies_alone(self, tmp_path: Path) -> None:
        exact = read(tmp_path, "eagle3", *made("eagle3"))
        rounded = read(tmp_path, "eagle3", *made("eagle3"), dtype="bfloat16")
        assert rounded.module.lm_head.weight.dtype == rounded.taps.fuse.fc.weight.dtype == torch.bfloat16
        assert torch.equal(rounded.module.rotary.inv_freq, exact.module.rotary.inv_freq)

    @pytest.mark.parametrize("heads, blocks", [(1, 1), (4, 1), (2, 3)])
    @pytest.mark.parametrize("prefix", ["", "medusa_head."])
    def test_medusa_heads_are_counted_in_the_file(self, tmp_path: Path, heads: int, blocks: int, prefix: str) -> None:
        config, tensors = made("medusa", heads=heads, blocks=blocks)
        named = {prefix + name: tensor for name, tensor in tensors.items()}
        if prefix:  # a full checkpoint holds the target too
            named |= {name: p.detach().clone() for name, p in target().named_parameters()}
        drafter = read(tmp_path, "medusa", config, named, name="medusa_lm_head.safetensors")
        assert drafter.depth == heads and config["medusa_num_heads"] == 2
        hidden = plain_drafter.states(target(), TEXT)[1][-2]
        plain = plain_drafter.medusa(target(), tensors, TEXT, heads, blocks)
        assert torch.allclose(drafter.module(hidden[None, None])[0], plain, atol=1e-4)

    def test_medusa_heads_beside_other_weights(self, tmp_path: Path) -> None:
        checkpoints.save(tmp_path, {}, {"model.embed_tokens.weight": torch.zeros(2, 2)})
        config, tensors = made("medusa")
        assert read(tmp_path, "medusa", config, tensors, name="medusa_lm_head.pt").depth == 3


class TestFiles:
    """What can be wrong before any tensor is looked at."""

    @pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin", "model.pt"])
    def test_cut_off(self, tmp_path: Path, name: str) -> None:
        checkpoints.save(tmp_path, *made("eagle"), name)
        content = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(content[: len(content) // 2])
        with pytest.raises(CaptureError, match=f"{name} cannot be read .*; fetch it again"):
            load_feature_drafter(parse_drafter(f"eagle:{tmp_path}"), loaded(target()), dtype="float32")

    @pytest.mark.parametrize("content", [[torch.zeros(2)], {"fc.weight": 3}, {"fc": {"weight": torch.zeros(2)}}])
    def test_no_tensors_by_name(self, tmp_path: Path, content: Any) -> None:
        torch.save(content, tmp_path / "model.pt")
        with pytest.raises(CaptureError, match="model.pt holds a .* and not tensors by name"):
            load_feature_drafter(parse_drafter(f"eagle:{tmp_path}"), loaded(target()), dtype="float32")

    def test_no_code_is_run(self, tmp_path: Path) -> None:
        torch.save({"fc.weight": Planted(tmp_path / "run")}, tmp_path / "model.pt")
        with pytest.raises(CaptureError, match="cannot be read"):
            load_feature_drafter(parse_drafter(f"eagle:{tmp_path}"), loaded(target()), dtype="float32")
        assert not (tmp_path / "run").exists()

    def test_one_name_in_two_files(self, tmp_path: Path) -> None:
        config, tensors = made("eagle3")
        checkpoints.save(tmp_path, config, {"lm_head.weight": tensors["lm_head.weight"]}, "head.safetensors")
        with pytest.raises(CaptureError, match="lm_head.weight stands in head.safetensors and in model.safetensors"):
            read(tmp_path, "eagle3", config, tensors)

    def test_shards(self, tmp_path: Path) -> None:
        config, tensors = made("eagle3")
        checkpoints.save(tmp_path, config, {"lm_head.weight": tensors["lm_head.weight"]}, "a.safetensors")
        rest = {name: tensor for name, tensor in tensors.items() if name != "lm_head.weight"}
        assert same(read(tmp_path, "eagle3", config, rest, name="b.safetensors"), config, tensors)

    @pytest.mark.parametrize("text, told", [("{", "is not JSON"), ("[1]", "holds a list where named settings")])
    def test_configuration(self, tmp_path: Path, text: str, told: str) -> None:
        checkpoints.save(tmp_path, *made("eagle"))
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(CaptureError, match=told):
            load_feature_drafter(parse_drafter(f"eagle:{tmp_path}"), loaded(target()), dtype="float32")

    def test_no_configuration(self, tmp_path: Path) -> None:
        checkpoints.save(tmp_path, *made("eagle"))
        (tmp_path / "config.json").unlink()
        with pytest.raises(CaptureError, match="has no config.json beside its weights"):
            load_feature_drafter(parse_drafter(f"eagle:{tmp_path}"), loaded(target()), dtype="float32")

    def test_no_weights(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text(json.dumps({}))
        with pytest.raises(CaptureError, match="holds no weights .*safetensors.*; fetch the drafter again"):
            load_feature_drafter(parse_drafter(f"eagle:{tmp_path}"), loaded(target()), dtype="float32")

    def test_nothing_there(self) -> None:
        with pytest.raises(CaptureError, match="nothing at /nowhere/at all; give a folder, a weight file or a hub id"):
            load_feature_drafter(parse_drafter("eagle:/nowhere/at all"), loaded(target()), dtype="float32")


class Planted:
    """Runs code where a pickle is believed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return Path.touch, (self.path,)


class TestNotes:
    """What costs acceptance alone is said, and not refused."""

    def test_rotary(self, tmp_path: Path) -> None:
        config, tensors = made("eagle")
        config["rope_theta"] = 5e5
        drafter = read(tmp_path, "eagle", config, tensors)
        assert same(drafter, config, tensors)
        (note,) = drafter.notes
        assert "rope_theta is 500000.0, the target's 10000.0" in note and "config.json" in note

    @pytest.mark.parametrize("layers, note", [([2, 4, 5], ""), ([1, 3, 4], "before"), ([3, 5, 6], "behind")])
    def test_layers_one_beside_the_usual(self, tmp_path: Path, layers: list[int], note: str) -> None:
        config, tensors = checkpoints.eagle3(target(8))
        config[LAYERS] = layers
        drafter = read(tmp_path, "eagle3", config, tensors, layers=8)
        assert drafter.taps.layers == tuple(layers)
        assert len(drafter.notes) == bool(note) and all(f"{note} the usual [2, 4, 5]" in told for told in drafter.notes)

    def test_the_usual_layers_need_not_be_named(self, tmp_path: Path) -> None:
        config, tensors = checkpoints.eagle3(target(8))
        assert LAYERS not in config
        assert read(tmp_path, "eagle3", config, tensors, layers=8).taps.layers == (2, 4, 5)
