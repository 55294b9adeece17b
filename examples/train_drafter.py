"""Train a small drafter for a target model, unattended and on a CPU if need be.

    python examples/train_drafter.py TARGET --work drafter-work --out my-drafter

TARGET is a folder, a hub id or a .gguf file. Everything on the way is kept in the work folder and a run that was killed
goes on where it stopped; give the same arguments again. Stages, in order (`--stages` picks some; `generate` and `train`
may run at the same time as two processes, training takes up new answers as they come):

    held      the target's greedy answers to held-out prompts, for measuring
    score     optional: the target's distributions on ready token ids (--text FILE.npz)
    generate  the target's greedy answers to prompts put together from lists, with its distributions
    train     a small Llama, started from the target's own embedding, distilled on these
    export    a folder that transformers loads: config, bfloat16 weights, tokenizer, figures

The model card figures (agreement by kind of prompt, size, predicted speed-up) are written to OUT/training.json.
Needs torch, transformers, numpy, safetensors, rich; for GGUF files also gguf and accelerate.
"""

import argparse
import json
import os
import shutil
import time
from pathlib import Path

import torch
from drafter import measure, shards, start, target, train

STAGES = ("held", "score", "generate", "train", "export")
DEFAULT = "(default: %(default)s)"


def parse(argv=None) -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("target", help="folder, hub id or .gguf file of the target")
    p.add_argument("--gguf", help="name of the GGUF file, if TARGET is a folder or hub id with several")
    p.add_argument(
        "--work", type=Path, default=Path("drafter-work"), help=f"folder for everything on the way {DEFAULT}"
    )
    p.add_argument("--out", type=Path, default=Path("drafter"), help=f"folder of the finished drafter {DEFAULT}")
    p.add_argument("--stages", default=",".join(STAGES), help="comma-separated (default: all)")
    p.add_argument("--threads", type=int, default=torch.get_num_threads(), help=f"CPU threads {DEFAULT}")
    p.add_argument(
        "--minutes", type=float, help="stop generating, or training, after so many minutes; run again to go on"
    )
    d = p.add_argument_group("data")
    d.add_argument(
        "--text", type=Path, help=".npz of int arrays [rows, tokens]: text to learn from besides the answers"
    )
    d.add_argument("--prompts", type=int, default=4000, help=f"training prompts to answer {DEFAULT}")
    d.add_argument("--held-prompts", type=int, default=64, help=f"held-out prompts {DEFAULT}")
    d.add_argument("--new-tokens", type=int, default=192, help=f"longest answer {DEFAULT}")
    d.add_argument("--rows", type=int, default=48, help=f"rows decoded at once {DEFAULT}")
    d.add_argument("--keep", type=int, default=32, help=f"likeliest tokens kept for each position {DEFAULT}")
    m = p.add_argument_group("drafter")
    m.add_argument(
        "--hidden", type=int, default=192, help=f"hidden size; the tied embedding costs vocabulary x hidden {DEFAULT}"
    )
    m.add_argument("--layers", type=int, default=4, help="default: %(default)s")
    m.add_argument("--inner", type=int, default=768, help=f"size of the MLPs {DEFAULT}")
    m.add_argument("--head", type=int, default=64, help=f"size of an attention head {DEFAULT}")
    m.add_argument("--no-circuit", action="store_true", help="start without the copying circuit")
    t = p.add_argument_group("training")
    t.add_argument("--steps", type=int, default=2000, help="default: %(default)s")
    t.add_argument("--batch-tokens", type=int, default=2048, help=f"tokens per step, prompts included {DEFAULT}")
    t.add_argument("--lr", type=float, default=0.01, help=f"of the layers' matrices, for Muon {DEFAULT}")
    t.add_argument("--table-lr", type=float, default=1e-3, help=f"of the embedding, for AdamW {DEFAULT}")
    t.add_argument("--warmup", type=int, default=50, help=f"steps {DEFAULT}")
    t.add_argument(
        "--cooldown", type=float, default=0.4, help=f"share of the steps over which the rate falls to zero {DEFAULT}"
    )
    t.add_argument(
        "--hard", type=float, default=0.5, help=f"weight of the target's choice against its distribution {DEFAULT}"
    )
    t.add_argument("--top", type=int, default=8, help=f"likeliest tokens learnt from {DEFAULT}")
    t.add_argument("--negatives", type=int, default=1024, help=f"other tokens sampled per step {DEFAULT}")
    t.add_argument("--save-minutes", type=float, default=5, help=f"minutes between checkpoints {DEFAULT}")
    a = p.parse_args(argv)
    unknown = set(a.stages.split(",")) - set(STAGES)
    if unknown:
        p.error(f"unknown stages {sorted(unknown)}; known: {', '.join(STAGES)}")
    if a.top > a.keep:
        p.error(f"--top {a.top} is larger than --keep {a.keep}, the number of tokens kept in the shards")
    return a


def fresh_start(model, data: train.Data, a) -> tuple:
    """The drafter's first weights; the target's basis [V, E] is kept in the work folder."""
    path = a.work / "basis.pt"
    if not path.exists():
        counts = torch.zeros(model.config.vocab_size)
        for row in data.rows:
            counts += torch.bincount(torch.from_numpy(row["top"][:, 0]).long(), minlength=len(counts))
        rows = [torch.from_numpy(r["ids"]).long() for r in data.rows[:: max(1, len(data.rows) // 48)]]
        torch.save(start.basis(model, rows, counts), path.with_suffix(".part"))
        os.replace(path.with_suffix(".part"), path)
    config = start.make_config(model.config, a.hidden, a.layers, a.inner, a.head)
    return start.make_drafter(config, torch.load(path, weights_only=True), not a.no_circuit)


def export(drafter, tokenizer, figures: dict, out: Path) -> None:
    """Written beside the final name; the files then replace older ones one by one, so a README there stays."""
    aside = out.with_name(out.name + ".part")
    shutil.rmtree(aside, ignore_errors=True)
    drafter.to(torch.bfloat16).save_pretrained(aside)
    tokenizer.save_pretrained(aside)
    (aside / "training.json").write_text(json.dumps(figures, indent=1) + "\n")
    out.mkdir(parents=True, exist_ok=True)
    for path in aside.iterdir():
        os.replace(path, out / path.name)
    aside.rmdir()


def main(argv=None) -> None:
    a = parse(argv)
    stages = a.stages.split(",")
    torch.set_num_threads(a.threads)
    a.work.mkdir(parents=True, exist_ok=True)
    model, tokenizer = target.load_target(a.target, a.gguf)
    held, answers = a.work / "held", a.work / "answers"
    limit = 60 * a.minutes if a.minutes else float("inf")
    if "held" in stages:
        shards.generate(model, tokenizer, held, a.held_prompts, a.rows, a.new_tokens, a.keep, True)
    if "score" in stages and a.text:
        shards.score(model, tokenizer, a.text, answers, a.keep)
    if "generate" in stages:
        shards.generate(model, tokenizer, answers, a.prompts, a.rows, a.new_tokens, a.keep, False, limit)
    if not {"train", "export"} & set(stages):
        return
    data, kept = train.Data(answers), measure.held_rows(held)
    drafter, base, mix = fresh_start(model, data, a)
    target_size = measure.numbers(model)
    c = measure.numbers(drafter) / target_size
    size = f"{measure.numbers(drafter) / 1e6:.1f}M weights, {c:.3f} of the target"
    print(f"drafter {size}; {len(data.rows)} rows, {data.tokens} tokens to learn")
    del model
    trainer = train.Trainer(drafter, base, mix, a.work, a)
    if trainer.resume():
        print(f"going on at step {trainer.step}")
    if "train" in stages:
        trainer.run(data, lambda m: measure.agreement(m, kept), time.time() + limit)
    if "export" in stages:
        drafter = trainer.averaged().to(torch.bfloat16).float()  # measured as it will be saved
        shares = measure.agreement(drafter, kept)
        figures = dict(
            agreement=shares, weights=measure.numbers(drafter), cost_ratio=round(c, 4),
            predicted_speedup=round(measure.predicted_speedup(shares["all"], c), 3), steps=trainer.step,
            minutes=round(trainer.minutes, 1), rows=len(data.rows), tokens=data.tokens,
            held_tokens=sum(len(r["top"]) for r in kept), log=trainer.log[-1:],
        )  # fmt: skip
        export(drafter, tokenizer, figures, a.out)
        print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
