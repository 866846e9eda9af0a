#!/usr/bin/python3
"""Writes tests/fixtures/train/ten_steps.json: ten training steps of the tiny models in float64.

    /usr/bin/python3 bench/make_ten_steps.py FIXTURES tests/fixtures/train/ten_steps.json
"""

import json
import os
import sys

import numpy as np
import torch

from torch_k3 import Model, Optimizer, Packing

STEPS = 10
BORDER = 17
# (learning rate, seed of the second batch). The models are random and steep (the norm of tiny-text's
# gradient is 3372 at the start): an expert that flips in float32 moves the loss by more than a step
# does. These cases stay clear of every flip.
CASES = {("tiny-text", "adamw"): (1e-6, 10), ("tiny-text", "muon"): (3e-6, 8),
         ("tiny-linear", "adamw"): (1e-4, 4), ("tiny-linear", "muon"): (3e-4, 4)}
WATCHED = {
    "tiny-text": [
        "language_model.model.layers.1.self_attn.q_proj.weight",
        "language_model.model.layers.3.self_attn.kv_b_proj.weight",
        "language_model.model.layers.2.block_sparse_moe.experts.0.w1.weight",
        "language_model.model.layers.4.input_layernorm.weight",
        "language_model.model.layers.0.self_attn.A_log",
        "language_model.model.embed_tokens.weight",
        "language_model.model.layers.5.mlp_res_proj.weight",
        "language_model.model.layers.0.self_attention_res_norm.weight",
    ],
    "tiny-linear": [
        "model.layers.3.self_attn.q_proj.weight",
        "model.layers.3.self_attn.kv_b_proj.weight",
        "model.layers.2.block_sparse_moe.experts.0.w1.weight",
        "model.layers.4.input_layernorm.weight",
        "model.layers.0.self_attn.A_log",
        "model.layers.0.self_attn.k_conv1d.weight",
        "model.embed_tokens.weight",
        "model.layers.4.self_attn.g_a_proj.weight",
    ],
}


def other_ids(state, vocab):
    """40 fixed ids below the special ones, from a linear congruential generator."""
    out = []
    for _ in range(40):
        state = (state * 1103515245 + 12345) % 2 ** 31
        out.append(state // 65536 % (vocab - 16))
    return out


def train(folder, dtype, rate, muon, batches):
    model = Model.load(folder, dtype)
    model.watch_margin = True
    optimizer = Optimizer(model, rate, muon)
    losses = []
    for step in range(STEPS + 1):
        ids, packing = batches[step % 2 if step < STEPS else 0]
        model.zero_grad()
        loss = model.loss(ids, packing)
        losses.append(loss.item())
        if step < STEPS:
            loss.backward()
            optimizer.step()
    return losses, {n: p.detach().double() for n, p in model.released()}, model.routing_margin


def main():
    fixtures, target = sys.argv[1:3]
    torch.set_num_threads(1)
    out = {
        "about": "Ten optimizer steps in float64 from the checkpoint's widened weights, which stay "
                 "in full precision: nothing is rounded or packed again. Made by "
                 "bench/make_ten_steps.py.",
        "steps": STEPS,
        "loss": "mean of -log softmax(logits[t])[ids[t+1]] over every position t whose successor "
                "is in the same document; losses[i] is before update i, losses[10] after all, on "
                "batch 0. Update i uses batch i mod 2.",
        "documents": "`documents` are their lengths; attention, KDA state and convolution start "
                     "anew in each.",
        "options": {
            "schedule": "constant",
            "gradient_clipping": None,
            "routing": "top-k with the checkpoint's bias, which stays",
            "adamw": {"beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": 0.1,
                      "bias_correction": True, "no_decay": ["A_log", "dt_bias"]},
            "muon": {"momentum": 0.95, "nesterov": True, "newton_schulz_steps": 5,
                     "coefficients": [3.4445, -4.7750, 2.0315], "weight_decay": 0.1,
                     "factor": "0.2 * sqrt(max(rows, cols)) of the block", "frobenius_epsilon": 1e-7,
                     "per_head": ["KDA q, k, v", "MLA q (q_b or q)", "kv_b: K and V part apart"],
                     "others": "adamw with the same rate"},
            "parameters_without_gradient": "move as with a gradient of zero (decay, momentum)",
        },
        "cases": [],
    }
    for variant in ("tiny-text", "tiny-linear"):
        folder = os.path.join(fixtures, variant, "model")
        with open(os.path.join(fixtures, variant, "train.json")) as file:
            first = json.load(file)["tokens"]
        start = dict(Model.load(folder, torch.float64).released())
        for kind in ("adamw", "muon"):
            rate, seed = CASES[variant, kind]
            second = other_ids(seed, 512)
            layout = [(first, [len(first)]), (second, [BORDER, len(second) - BORDER])]
            batches = [(torch.tensor(ids), Packing(docs, 64)) for ids, docs in layout]
            losses, weights, margin = train(folder, torch.float64, rate, kind == "muon", batches)
            low, low_weights, _ = train(folder, torch.float32, rate, kind == "muon", batches)
            error = float(np.abs(np.array(losses) - np.array(low)).max())
            tensors = {}
            for name in WATCHED[variant]:
                w = weights[name].reshape(-1)
                off = (weights[name] - low_weights[name]).abs().max().item()
                tensors[name] = {
                    "shape": list(weights[name].shape),
                    "mean": w.mean().item(),
                    "rms": w.square().mean().sqrt().item(),
                    "first": w[:4].tolist(),
                    "update_rms": (w - start[name].detach().reshape(-1)).square().mean().sqrt()
                    .item(),
                    "float32_run_max_abs_error": off,
                }
            out["cases"].append({
                "model": variant, "optimizer": kind, "learning_rate": rate,
                "batches": [{"ids": ids, "documents": docs} for ids, docs in layout],
                "losses": losses,
                "float32_run_max_abs_error": error,
                "smallest_routing_margin": margin,
                "tensors": tensors,
            })
            print(f"{variant} {kind}: {losses[0]:.4f} to {losses[STEPS]:.4f}; float32 off by "
                  f"{error:.1e}; margin {margin:.1e}")
    with open(target, "w") as file:
        json.dump(out, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
