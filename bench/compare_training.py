#!/usr/bin/python3
"""Trains one snapshot on the same rows in k3 and in PyTorch, in turn, and prints both speeds.

    /usr/bin/python3 bench/compare_training.py --k3 build/k3 --model DIR --text FILE [--rows 8]
        [--length 512] [--steps 8] [--rounds 3] [--optimizer muon] [--lr 1e-4] [--threads 2]

Both run in float32, on one long document cut into rows, with a constant learning rate and nothing
that only one of them has (clipping, Quantile Balancing). Medians; the losses of every step are compared.
"""

import argparse
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))


def write_shard(path, ids):
    header = json.dumps({
        "documents": {"dtype": "I64", "shape": [2], "data_offsets": [0, 16]},
        "tokens": {"dtype": "I32", "shape": [len(ids)], "data_offsets": [16, 16 + 4 * len(ids)]},
    }).encode()
    header += b" " * (-len(header) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header + struct.pack("<qq", 0, len(ids)))
        file.write(struct.pack(f"<{len(ids)}i", *ids))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--k3", "--model", "--text"):
        parser.add_argument(name, required=True)
    for name, default in (("--rows", 8), ("--length", 512), ("--steps", 8), ("--rounds", 3), ("--threads", 2)):
        parser.add_argument(name, type=int, default=default)
    parser.add_argument("--optimizer", default="muon", choices=("muon", "adamw"))
    parser.add_argument("--lr", type=float, default=1e-4)
    a = parser.parse_args()
    k3, model = os.path.abspath(a.k3), os.path.abspath(a.model)
    with tempfile.TemporaryDirectory() as folder:
        at = lambda name: os.path.join(folder, name)
        needed = a.rows * a.length * a.steps + 1
        with open(a.text, "rb") as source, open(at("text"), "wb") as part:
            part.write(source.read(16 * needed))
        ids = [int(i) for i in subprocess.check_output(
            [k3, "tokenize", "--tokenizer", model, "--file", at("text")]).split(b",")][:needed]
        if len(ids) < needed:
            sys.exit(f"compare_training.py: {a.text}: expected {needed} tokens, found {len(ids)}")
        write_shard(at("ids.safetensors"), ids)
        with open(at("ids.i32"), "wb") as file:
            file.write(struct.pack(f"<{len(ids)}i", *ids))
        with open(at("run.json"), "w") as file:
            json.dump({"data": [{"file": "ids.safetensors", "as": "tokens"}], "held_out": 0,
                       "length": a.length, "batch": a.rows, "micro_batch": a.rows, "steps": a.steps,
                       "precision": "f32", "quantile_balancing": False,
                       "optimizer": {"kind": a.optimizer, "clip": 0},
                       "schedule": {"form": "wsd", "peak": a.lr, "warmup": 0, "decay": 0}}, file)
        speeds, fractions, worst = {"k3": [], "torch": []}, [], 0
        for r in range(a.rounds):
            out = json.loads(subprocess.check_output(
                [k3, "train", "--config", at("run.json"), "--init", model, "--out", at(f"run{r}"),
                 "--threads", str(a.threads), "--quiet", "--json"]))
            with open(at(f"run{r}/metrics.jsonl")) as file:
                mine = [json.loads(line)["loss"] for line in file]
            subprocess.run(
                ["/usr/bin/python3", os.path.join(HERE, "torch_train.py"), "--model", model, "--ids",
                 at("ids.i32"), "--rows", str(a.rows), "--length", str(a.length), "--steps", str(a.steps),
                 "--optimizer", a.optimizer, "--lr", str(a.lr), "--threads", str(a.threads),
                 "--json", at("torch.json")], check=True, stdout=subprocess.DEVNULL)
            with open(at("torch.json")) as file:
                other = json.load(file)
            speeds["k3"].append(out["tokens_per_second"])
            speeds["torch"].append(other["tokens_per_second"])
            fractions.append(out["peak_fraction"])
            worst = max(worst, max(abs(x - y) for x, y in zip(mine, other["losses"])))
        medians = {name: statistics.median(values) for name, values in speeds.items()}
        for name, values in speeds.items():
            print(f"{name:6} {medians[name]:8.0f} tokens/s   ({', '.join(f'{v:.0f}' for v in values)})")
        print(f"ratio  {medians['k3'] / medians['torch']:8.2f}; k3 at {100 * statistics.median(fractions):.0f} % "
              f"of the machine's fp32 peak; losses of {a.steps} steps differ by at most {worst:.1e}")


if __name__ == "__main__":
    main()
