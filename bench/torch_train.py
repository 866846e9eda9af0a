#!/usr/bin/python3
"""Times training steps of a snapshot in PyTorch, in float32.

    /usr/bin/python3 bench/torch_train.py --model DIR --ids tokens.i32 --rows 4 --length 512 \\
        --steps 12 --optimizer muon --lr 1e-3 --threads 2 [--end-id ID] [--json out.json]

--ids is raw little-endian int32. Row n reads the `length` ids from n * length on (from the beginning
again when they run out) and is asked for the one after each, so the row's last target is the next
row's first input; a step takes the next `rows` rows. A row is a document, or with --end-id each run
up to and with that id, which itself is asked for nothing. The loss is the mean over all targets of
the step, before its update.
"""

import argparse
import json
import statistics
import time

import numpy as np
import torch
import torch.nn.functional as F

from torch_k3 import Model, Optimizer, Packing

WARM_UP = 2


def batch(tokens, step, rows, length, end_id):
    """Inputs [rows, length], and the flat positions that are asked and what for."""
    first = np.arange(step * rows, (step + 1) * rows) * length
    window = tokens.take(first[:, None] + np.arange(length + 1), mode="wrap")
    inputs, targets = window[:, :-1], window[:, 1:].reshape(-1)
    asked = np.arange(rows * length) if end_id is None else \
        np.nonzero(inputs.reshape(-1) != end_id)[0]
    return inputs, torch.from_numpy(asked), torch.from_numpy(targets[asked])


def loss_of(model, ids, packing, asked, targets):
    hidden = model.hidden(ids, packing)
    if len(asked) < len(ids):
        hidden = hidden.index_select(0, asked)
    return F.cross_entropy(model.linear(hidden, "lm_head"), targets)


def document_lengths(rows, end_id):
    lengths = []
    for row in rows:
        cuts = [0, len(row)] if end_id is None else \
            sorted({0, len(row), *(np.nonzero(row == end_id)[0] + 1).tolist()})
        lengths += [b - a for a, b in zip(cuts, cuts[1:])]
    return lengths


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--ids", required=True)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--length", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--optimizer", choices=("adamw", "muon"), required=True)
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--end-id", type=int)
    parser.add_argument("--json")
    options = parser.parse_args()
    if options.steps <= WARM_UP:
        parser.error(f"--steps must exceed the {WARM_UP} of warm-up")

    torch.set_num_threads(options.threads)
    torch.set_flush_denormal(True)
    model = Model.load(options.model, torch.float32)
    optimizer = Optimizer(model, options.lr, options.optimizer == "muon")
    tokens = np.fromfile(options.ids, "<i4").astype(np.int64)
    size = options.rows * options.length
    count = sum(p.numel() for p in model.params.values())
    print(f"{count} parameters, {size} tokens a step, {options.threads} threads, "
          f"torch {torch.__version__}")

    losses, seconds, parts = [], [], []
    for step in range(options.steps):
        begin = time.perf_counter()
        rows, asked, targets = batch(tokens, step, options.rows, options.length, options.end_id)
        ids = torch.from_numpy(rows.reshape(-1))
        packing = Packing(document_lengths(rows, options.end_id), model.config.kda_chunk)
        model.zero_grad()
        loss = loss_of(model, ids, packing, asked, targets)
        forward = time.perf_counter()
        loss.backward()
        backward = time.perf_counter()
        optimizer.step()
        losses.append(loss.item())
        end = time.perf_counter()
        seconds.append(end - begin)
        parts.append((forward - begin, backward - forward, end - backward))
        print(f"step {step}: loss {losses[-1]:.8f}, {seconds[-1]:.4f} s "
              f"({parts[-1][0]:.3f} forward, {parts[-1][1]:.3f} backward, {parts[-1][2]:.3f} update)",
              flush=True)
    median = statistics.median(seconds[WARM_UP:])
    print(f"median {median:.4f} s a step, {size / median:.1f} tokens/s")
    if options.json:
        names = ("forward", "backward", "update")
        with open(options.json, "w") as file:
            json.dump({
                "losses": losses,
                "median_step_seconds": median,
                "tokens_per_second": size / median,
                "median_seconds": {n: statistics.median(p[i] for p in parts[WARM_UP:])
                                   for i, n in enumerate(names)},
                "step_seconds": seconds, "rows": options.rows, "length": options.length,
                "optimizer": options.optimizer, "learning_rate": options.lr,
                "end_id": options.end_id, "parameters": count,
                "torch": torch.__version__, "threads": options.threads,
            }, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
