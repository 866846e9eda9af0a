#!/usr/bin/env python3
"""Make the bundled model from nothing: data, vocabulary, pretraining, fine-tuning under MXFP4, export, scores.

    make_nano.py --k3 build/k3 --work WORK --out models/nano

The number of steps is fixed; called again, it goes on where it stopped. Python's standard library and the
program alone.
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
VOCABULARY = 6144
# Rows of packed documents: at most 4,096 tokens a step, fewer in fine-tuning, where documents stay whole. Twice the batch
# learnt less from as many tokens; half of it no more, at a lower speed.
PRETRAIN = {
    "data": [{"file": "data/pretrain.jsonl", "as": "documents"}],
    "length": 512, "batch": 8, "steps": 900, "held_out": 0.005, "seed": 1,
    "optimizer": {"kind": "muon", "clip": 1, "qk_clip": 100},
    "schedule": {"form": "wsd", "peak": 0.006, "last": 0.1, "warmup": 40, "decay": 250},
    "validation": {"every": 100, "rows": 16}, "checkpoint": {"every": 100},
    "samples": {"every": 300, "tokens": 80, "prompts": ["Once there was a fox", "It was a truth", "And the king said"]},
}
FINE_TUNE = {
    "data": [{"file": "data/sft.jsonl", "as": "chat"}],
    "length": 512, "whole_documents": True, "batch": 8, "steps": 4000, "held_out": 0.005, "seed": 2,
    "quantization": {"experts": "even"},
    "optimizer": {"kind": "muon", "clip": 1, "qk_clip": 100},
    "schedule": {"form": "wsd", "peak": 0.006, "last": 0.02, "warmup": 40, "decay": 1500},
    "validation": {"every": 100, "rows": 16}, "checkpoint": {"every": 100},
}


def run(*command, **options):
    print("+", *command, flush=True)
    begin = time.time()
    subprocess.run([str(c) for c in command], check=True, **options)
    print(f"  {time.time() - begin:.0f} s", flush=True)


def train(k3, work, name, config, init):
    out, path = work / name, work / f"{name}.json"
    path.write_text(json.dumps(config, indent=1) + "\n")
    begun = (out / "checkpoint.safetensors").exists()
    run(k3, "train", "--config", path, "--out", out, *(["--resume"] if begun else ["--init", init] if init else []))
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--k3", required=True)
    parser.add_argument("--work", required=True, type=Path)
    parser.add_argument("--out", required=True, type=Path)
    args = parser.parse_args()
    k3, work = Path(args.k3).resolve(), args.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    if args.out.exists():
        sys.exit(f"make_nano.py: {args.out} exists; move it away first")
    begin = time.time()
    if not (work / "data/heldout").exists():
        run(sys.executable, HERE / "make_data.py", work / "data")
    if not (work / "tokenizer").exists():
        run(k3, "tokenizer", "train", work / "data/tokenizer.txt", "--vocab-size", VOCABULARY, "--out", work / "tokenizer")
    shutil.copy(HERE / "config.json", work / "config.json")
    first = train(k3, work, "pretrain", {"model": "config.json", "tokenizer": "tokenizer", **PRETRAIN}, None)
    if not (work / "base").exists():
        run(k3, "export", "--from", first, "--out", work / "base", "--experts", "bf16")
    second = train(k3, work, "tune", {"tokenizer": "tokenizer", **FINE_TUNE}, work / "base")
    run(k3, "export", "--from", second, "--out", args.out, "--experts", "mxfp4", "--shard-size", "12M")
    for name, folder in (("pretrain", first), ("tune", second)):
        shutil.copy(folder / "loss.svg", args.out / f"{name}-loss.svg")
        shutil.copy(folder / "metrics.jsonl", args.out / f"{name}-metrics.jsonl")
    shutil.copy(HERE / "LICENCES.md", args.out / "LICENCES.md")
    run(sys.executable, HERE / "evaluate.py", "--k3", k3, "--model", args.out, "--heldout", work / "data/heldout",
        "--train-text", work / "data/pretrain.jsonl", "--train-text", work / "data/sft.jsonl",
        "--json", args.out / "scores.json")
    print(f"{args.out}: {(time.time() - begin) / 60:.0f} minutes in all")


if __name__ == "__main__":
    main()
