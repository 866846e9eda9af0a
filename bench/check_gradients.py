#!/usr/bin/python3
"""Compares torch_k3.py with the training fixtures: loss, logits and every gradient.

    /usr/bin/python3 bench/check_gradients.py FIXTURES [float32]
"""

import json
import os
import sys

import torch

from torch_k3 import Model, Packing, read_safetensors


def main():
    folder = sys.argv[1]
    dtype = torch.float32 if "float32" in sys.argv else torch.float64
    torch.set_num_threads(1)
    for case in ("tiny-text", "tiny-linear"):
        model = Model.load(os.path.join(folder, case, "model"), dtype)
        with open(os.path.join(folder, case, "train.json")) as file:
            golden = json.load(file)
        expected = read_safetensors(os.path.join(folder, case, "train.safetensors"))
        ids = torch.tensor(golden["tokens"])
        packing = Packing([len(ids)], model.config.kda_chunk)
        logits = model.logits(ids, packing).detach()
        loss = model.loss(ids, packing)
        loss.backward()
        found = dict(model.released("grad"))
        worst, where, missing, extra = 0.0, "", [], []
        for name, value in expected.items():
            if not name.startswith("grad."):
                continue
            name, value = name[5:], torch.from_numpy(value.copy()).double()
            if name not in found:
                missing.append(name)
                continue
            error = (found[name].double() - value).abs().max() / value.abs().max()
            if error > worst:
                worst, where = error.item(), name
        for name, value in found.items():
            if "grad." + name not in expected and value.abs().max() > 0:
                extra.append(name)
        off = (logits.double() - torch.from_numpy(expected["logits"].copy())).abs().max().item()
        print(f"{case}: loss {loss.item():.12f}, off by {loss.item() - golden['loss']:.2e}; "
              f"logits off by {off:.2e}; worst gradient {worst:.2e} of its largest entry ({where}); "
              f"{len(missing)} missing, {len(extra)} unexpected")


if __name__ == "__main__":
    main()
