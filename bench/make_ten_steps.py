#!/usr/bin/python3
"""Writes tests/fixtures/train/ten_steps.json: ten training steps of the tiny models in float64.

    /usr/bin/python3 bench/make_ten_steps.py FIXTURES tests/fixtures/train/ten_steps.json

Rates and odd ids were chosen so that no expert choice comes near to flipping (a flip would part a
float32 run from this one): tiny-text is steep, its gradient's norm is 3372 at the start, so its
rate is small. The losses still move thousands of times as far as float32 runs deviate.
"""

import json
import os
import sys

import numpy as np
import torch

from torch_k3 import Model, Optimizer, Packing

STEPS = 10
BORDER = 17
RATES = {"tiny-text": 1e-6, "tiny-linear": 1e-4}
SEEDS = {"tiny-text": 3, "tiny-linear": 3}
WATCHED = {
    "tiny-text": [
        "layers.1.self_attn.q_proj.weight",                  # Muon, a block a head
        "layers.3.self_attn.kv_b_proj.weight",               # Muon, K and V part of each head
        "layers.2.block_sparse_moe.experts.0.w1.weight",     # Muon, whole
        "layers.1.block_sparse_moe.gate.weight",             # Muon, whole
        "layers.0.self_attn.A_log",                          # AdamW without decay; padded
        "layers.4.input_layernorm.weight",                   # AdamW
        "layers.5.mlp_res_proj.weight",                      # AdamW
        "embed_tokens.weight",                               # AdamW
        "layers.0.self_attention_res_norm.weight",           # no gradient: decay alone
    ],
    "tiny-linear": [
        "layers.0.self_attn.k_proj.weight",
        "layers.3.self_attn.q_proj.weight",
        "layers.3.self_attn.kv_b_proj.weight",
        "layers.2.block_sparse_moe.experts.0.w2.weight",
        "layers.0.self_attn.A_log",
        "layers.0.self_attn.dt_bias",
        "layers.0.self_attn.k_conv1d.weight",
        "layers.4.self_attn.g_a_proj.weight",
        "layers.4.input_layernorm.weight",
        "embed_tokens.weight",
    ],
}
OPTIONS = {
    "steps": STEPS,
    "batches": "even steps: the tokens of the model's train.json as one document; odd steps: "
               "ids_odd as two documents, the second from `border` on, where attention, KDA state "
               "and convolution start anew",
    "loss": "mean of -log softmax(logits[t])[ids[t+1]] over every t whose successor is in the same "
            "document; losses[i] is before update i, final_loss after the last on the even batch",
    "weights": "start at the checkpoint's widened values (experts dequantized), stay unrounded",
    "schedule": "constant rate, no gradient clipping, no QK-Clip",
    "routing": "top-k with the checkpoint's e_score_correction_bias, which stays",
    "adamw": {"beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": 0.1,
              "bias_correction": True, "no_decay": ["A_log", "dt_bias"]},
    "muon": {"momentum": 0.95, "nesterov": True, "newton_schulz_steps": 5,
             "coefficients": [3.4445, -4.7750, 2.0315], "frobenius_epsilon": 1e-7,
             "weight_decay": 0.1, "factor": "0.2 * sqrt(max(rows, cols)) of the block",
             "per_head": ["KDA q, k, v", "MLA q_b or q", "MLA kv_b: K rows and V rows apart"],
             "adamw_for": ["b_proj", "A_log", "dt_bias", "conv1d", "norms", "_res_proj",
                           "embed_tokens", "lm_head"]},
    "without_gradient": "a parameter that got none in a step moves as with a gradient of zero",
    "tensors": "after the tenth update; `first` are the first four values, row-major",
    "float32_run_max_abs_error": "the largest deviation among the eleven losses of float32 runs "
                                 "with KDA chunks of 64 and of 16; for a tensor, of its values",
}


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
    out = {"about": "Ten optimizer steps in float64, made by bench/make_ten_steps.py.",
           "options": OPTIONS, "ids_odd": {}, "border": BORDER, "cases": []}
    for variant in RATES:
        folder = os.path.join(fixtures, variant, "model")
        with open(os.path.join(fixtures, variant, "train.json")) as file:
            even = json.load(file)["tokens"]
        odd = np.random.RandomState(SEEDS[variant]).randint(0, 502, 40).tolist()
        out["ids_odd"][variant] = odd

        def batches(chunk):
            return [(torch.tensor(even), Packing([len(even)], chunk)),
                    (torch.tensor(odd), Packing([BORDER, len(odd) - BORDER], chunk))]

        for kind in ("adamw", "muon"):
            rate, muon = RATES[variant], kind == "muon"
            losses, weights, margin = train(folder, torch.float64, rate, muon, batches(64))
            low = [train(folder, torch.float32, rate, muon, batches(c)) for c in (64, 16)]
            error = max(float(np.abs(np.array(losses) - np.array(x[0])).max()) for x in low)
            tensors = []
            for name in WATCHED[variant]:
                name = ("language_model." if variant == "tiny-text" else "") + "model." + name
                w = weights[name].reshape(-1)
                tensors.append({
                    "name": name,
                    "mean": w.mean().item(),
                    "rms": w.square().mean().sqrt().item(),
                    "first": w[:4].tolist(),
                    "float32_run_max_abs_error":
                        max((weights[name] - x[1][name]).abs().max().item() for x in low),
                })
            out["cases"].append({
                "model": variant, "optimizer": kind, "rate": rate,
                "losses": losses[:STEPS], "final_loss": losses[STEPS],
                "float32_run_max_abs_error": error,
                "smallest_routing_margin": margin,
                "tensors": tensors,
            })
            print(f"{variant} {kind}: even {losses[0]:.4f} to {losses[STEPS]:.4f}, odd "
                  f"{losses[1]:.4f} to {losses[9]:.4f}; float32 off by {error:.1e}; "
                  f"margin {margin:.1e}; tensors off by "
                  f"{max(t['float32_run_max_abs_error'] for t in tensors):.1e}")
    with open(target, "w") as file:
        json.dump(out, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
