#!/usr/bin/python3
"""Compares torch_k3.py's chunked KDA, whose backward pass is its own, with the plain recurrence
under autograd; and a loss over packed documents with the losses of the documents alone.

    /usr/bin/python3 bench/check_kda.py FIXTURES
"""

import os
import sys

import numpy as np
import torch

from torch_k3 import KdaChunks, Model, Packing, Rearrange

LENGTHS = [70, 17, 133, 1, 64, 128, 17]
HEADS, WIDTH = 3, 24


def recurrence(q, k, v, g, beta, lengths):
    """One document and one token after the other; all [tokens, heads, width]."""
    out, at = [], 0
    for n in lengths:
        s = q.new_zeros(HEADS, WIDTH, WIDTH)  # [head, key, value]
        for t in range(at, at + n):
            s = s * g[t].exp().unsqueeze(2)
            error = v[t] - torch.einsum("hkv,hk->hv", s, k[t])
            s = s + torch.einsum("hk,hv->hkv", k[t], beta[t].unsqueeze(1) * error)
            out.append(torch.einsum("hkv,hk->hv", s, q[t]))
        at += n
    return torch.stack(out)


def chunks(q, k, v, g, beta, lengths, chunk):
    packing = Packing(lengths, chunk)

    def fold(t):
        t = Rearrange.apply(t, packing.source, packing.slot, True)
        return t.view(packing.chunks, packing.chunk, HEADS, -1).transpose(1, 2).contiguous()

    o = KdaChunks.apply(fold(q), fold(k), fold(v), fold(g), fold(beta.unsqueeze(2)).squeeze(3),
                        packing.scan)
    o = o.transpose(1, 2).reshape(-1, HEADS, WIDTH)
    return Rearrange.apply(o, packing.slot, packing.source, False)


def check_recurrence():
    random = np.random.RandomState(1)
    tokens = sum(LENGTHS)

    def draw(*shape):
        return torch.from_numpy(random.standard_normal(shape))

    unit = torch.nn.functional.normalize
    q, k, v = (draw(tokens, HEADS, WIDTH) for _ in range(3))
    q, k = unit(q, dim=2) * WIDTH ** -0.5, unit(k, dim=2)
    beta = torch.sigmoid(2 * draw(tokens, HEADS))
    upstream = draw(tokens, HEADS, WIDTH)
    decays = {
        "bounded": -5 * torch.sigmoid(3 * draw(tokens, HEADS, WIDTH)),
        "all -5": torch.full((tokens, HEADS, WIDTH), -5.0, dtype=torch.float64),
        "none": torch.full((tokens, HEADS, WIDTH), -1e-4, dtype=torch.float64),
        "softplus": -torch.exp(1.5 * draw(tokens, HEADS, WIDTH)),
        "steep": -40 * torch.rand(tokens, HEADS, WIDTH, dtype=torch.float64),
    }
    for label, g in decays.items():
        grads = []
        for form in ("recurrence", 16, 64):
            for dtype in (torch.float64, torch.float32):
                inputs = [t.to(dtype).clone().requires_grad_() for t in (q, k, v, g, beta)]
                if form == "recurrence":
                    if dtype == torch.float32:
                        continue
                    o = recurrence(*inputs, LENGTHS)
                else:
                    o = chunks(*inputs, LENGTHS, form)
                o.backward(upstream.to(dtype))
                grads.append([o.detach().double()] + [t.grad.double() for t in inputs])
        worst = [max(((a - b).abs().max() / b.abs().max()).item()
                     for a, b in zip(other, grads[0])) for other in grads[1:]]
        finite = all(t.isfinite().all() for other in grads for t in other)
        print(f"KDA, decay {label}: chunks of 16 off by {worst[0]:.1e} of the largest entry "
              f"({worst[1]:.1e} in float32), of 64 by {worst[2]:.1e} ({worst[3]:.1e})"
              + ("" if finite else "; NOT FINITE"))


def check_packing(fixtures):
    for case in ("tiny-text", "tiny-linear", "tiny-odd"):
        model = Model.load(os.path.join(fixtures, case, "model"), torch.float64)
        vocab = model.config.vocab
        ids = torch.from_numpy(np.random.RandomState(2).randint(0, vocab - 10, sum(LENGTHS)))
        packing = Packing(LENGTHS, 64)
        together = model.logits(ids, packing).detach()
        model.loss(ids, packing).backward()
        packed = {n: g.clone() for n, g in model.released("grad")}
        model.zero_grad()
        apart, at, count = [], 0, sum(n - 1 for n in LENGTHS)
        for n in LENGTHS:
            piece = ids[at:at + n]
            apart.append(model.logits(piece, Packing([n], 32)).detach())
            if n > 1:
                (model.loss(piece, Packing([n], 32)) * ((n - 1) / count)).backward()
            at += n
        off = (torch.cat(apart) - together).abs().max().item()
        grads = dict(model.released("grad"))
        worst = max(((grads[n] - g).abs().max() / g.abs().max()).item()
                    for n, g in packed.items() if n in grads and g.abs().max() > 0)
        print(f"{case}: {len(LENGTHS)} documents packed against each alone: logits off by "
              f"{off:.1e}, gradients by {worst:.1e} of the largest entry")


if __name__ == "__main__":
    torch.set_num_threads(1)
    check_recurrence()
    check_packing(sys.argv[1])
