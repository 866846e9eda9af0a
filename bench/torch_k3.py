"""The Kimi K3 text model (and its Kimi-Linear form) in PyTorch, with the optimisers that train it.

It shares no code with the C++ engine. It is an independent check of gradients and updates, and the
program whose speed the engine's training is compared with; so the operations that are hot are
written for speed: KDA in chunks over all documents and heads at once with its own backward pass,
one matrix product an expert, norms and mixes as single autograd nodes.

    model = Model.load("path/to/snapshot", torch.float32)
    packing = Packing([17, 23], model.config.kda_chunk)      # lengths of the documents, on end
    loss = model.loss(ids, packing)                          # ids: [40]
    loss.backward()
    optimizer = Muon(model, lr=1e-3); optimizer.step()
"""

import glob
import json
import math
import os
import struct

import numpy as np
import torch
import torch.nn.functional as F

TILE = 16
# Above this decay a step, exp() of a tile's whole span stays inside float32.
STEEPEST = -5.5


# ---------------------------------------------------------------- checkpoint


class Config:
    def __init__(self, folder):
        with open(os.path.join(folder, "config.json")) as file:
            top = json.load(file)
        self.nested = "text_config" in top
        c = top["text_config"] if self.nested else top
        kda = c["linear_attn_config"]
        self.prefix = "language_model." if self.nested else ""
        self.vocab = c["vocab_size"]
        self.hidden = c["hidden_size"]
        self.layers = c["num_hidden_layers"]
        self.eps = c["rms_norm_eps"]
        self.block = c.get("attn_res_block_size")
        self.is_kda = [i + 1 in kda["kda_layers"] for i in range(self.layers)]
        first, freq = c["first_k_dense_replace"], c.get("moe_layer_freq", 1)
        self.is_moe = [
            bool(c.get("num_experts")) and i >= first and i % freq == 0 for i in range(self.layers)
        ]
        self.kda_heads, self.kda_dim = kda["num_heads"], kda["head_dim"]
        self.lower = kda.get("gate_lower_bound")
        self.full_gate = bool(kda.get("use_full_rank_gate"))
        self.heads = c["num_attention_heads"]
        self.nope, self.rope, self.v_dim = (
            c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"])
        self.q_lora, self.kv_lora = c.get("q_lora_rank"), c["kv_lora_rank"]
        self.mla_gate = bool(c.get("mla_use_output_gate"))
        self.experts, self.top_k = c.get("num_experts") or 0, c.get("num_experts_per_token")
        self.groups = c.get("num_expert_group") or 1
        self.kept_groups = c.get("topk_group") or 1
        self.renormalize = bool(c.get("moe_renormalize", True))
        self.scaling = c.get("routed_scaling_factor") or 1.0
        self.softmax_router = c.get("moe_router_activation_func", "sigmoid") == "softmax"
        self.latent = c.get("routed_expert_hidden_size")
        self.latent_norm = bool(self.latent and c.get("latent_moe_use_norm"))
        self.shared = bool(c.get("num_shared_experts"))
        self.situ = c["hidden_act"] == "situ"
        self.situ_beta = c.get("activation_situ_beta") or 1.0
        self.situ_linear = c.get("activation_situ_linear_beta")
        self.kda_chunk = 64


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
STORED = {"F32": np.float32, "F64": np.float64, "U8": np.uint8, "BF16": np.uint16,
          "I32": np.int32, "I64": np.int64}


def read_safetensors(path):
    """name -> array; bfloat16 is widened to float32."""
    out = {}
    with open(path, "rb") as file:
        size, = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
        base = 8 + size
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            begin, end = entry["data_offsets"]
            file.seek(base + begin)
            raw = np.frombuffer(file.read(end - begin), STORED[entry["dtype"]])
            if entry["dtype"] == "BF16":
                raw = (raw.astype(np.uint32) << 16).view(np.float32)
            out[name] = raw.reshape(entry["shape"])
    return out


def unpack_mxfp4(packed, scale):
    codes = np.stack([packed & 15, packed >> 4], axis=-1).reshape(packed.shape[0], -1)
    factor = np.ldexp(np.float32(1), scale.astype(np.int32) - 127).astype(np.float32)
    return E2M1[codes] * np.repeat(factor, 32, axis=1)


def read_text_tensors(folder, config):
    """The text model's float tensors, without `language_model.`; packed ones unpacked."""
    raw = {}
    for path in sorted(glob.glob(os.path.join(folder, "*.safetensors"))):
        raw.update(read_safetensors(path))
    out = {}
    for name, value in raw.items():
        if not name.startswith(config.prefix + "model.") and \
           not name.startswith(config.prefix + "lm_head."):
            continue
        name = name[len(config.prefix):]
        if name.endswith("_scale"):
            continue
        if name.endswith("_packed"):
            full = config.prefix + name
            value = unpack_mxfp4(value, raw[full[: -len("_packed")] + "_scale"])
            name = name[: -len("_packed")]
        out[name] = value
    return out


# ---------------------------------------------------------------- where documents lie


class Packing:
    """Documents on end in one row of tokens, and the tables that KDA, the convolution and
    attention need to keep them apart.

    KDA sees whole chunks: chunk 0 of every document, then chunk 1 of those that have one, ...; the
    longest document first, so that step i of the scan is over a prefix of the states.
    """

    def __init__(self, lengths, chunk):
        self.lengths = list(lengths)
        longest = max(self.lengths)
        self.chunk = c = min(chunk, -(-longest // TILE) * TILE)
        starts = np.cumsum([0] + self.lengths)
        self.tokens = int(starts[-1])
        where = np.concatenate([np.arange(n) for n in self.lengths])
        self.first_positions = torch.from_numpy(where)
        self.reset_masks = {}

        order = sorted(range(len(self.lengths)), key=lambda d: -self.lengths[d])
        counts = [-(-self.lengths[d] // c) for d in order]
        self.scan = []  # (first chunk, one past the last) of each step
        slot = np.empty(self.tokens, np.int64)
        at = 0
        for i in range(counts[0]):
            live = sum(n > i for n in counts)
            for rank in range(live):
                d = order[rank]
                begin, end = i * c, min((i + 1) * c, self.lengths[d])
                slot[starts[d] + begin:starts[d] + end] = (at + rank) * c + np.arange(end - begin)
            self.scan.append((at, at + live))
            at += live
        self.chunks = at
        source = np.full(at * c, self.tokens, np.int64)
        source[slot] = np.arange(self.tokens)
        self.plain = at * c == self.tokens and bool((slot == np.arange(self.tokens)).all())
        self.slot, self.source = torch.from_numpy(slot), torch.from_numpy(source)

        # Attention: documents of one length are one batch.
        self.attention = []
        for n in sorted(set(self.lengths)):
            docs = [d for d in range(len(self.lengths)) if self.lengths[d] == n]
            rows = np.concatenate([np.arange(starts[d], starts[d + 1]) for d in docs])
            self.attention.append((n, len(docs), torch.from_numpy(rows)))
        back = np.empty(self.tokens, np.int64)
        back[np.concatenate([rows.numpy() for _, _, rows in self.attention])] = np.arange(self.tokens)
        self.unbatch = torch.from_numpy(back)

        # Every position but a document's last predicts its successor.
        last = np.zeros(self.tokens, bool)
        last[starts[1:] - 1] = True
        self.predicting = torch.from_numpy(np.nonzero(~last)[0])

    def reset_mask(self, shift, dtype):
        """[tokens - shift, 1]: one where the token `shift` earlier is of the same document."""
        key = shift, dtype
        if key not in self.reset_masks:
            self.reset_masks[key] = (self.first_positions[shift:] >= shift).to(dtype).unsqueeze(1)
        return self.reset_masks[key]


# ---------------------------------------------------------------- operations with their gradients


class RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, eps):
        n = x.shape[-1]
        r = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(n).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, r)
        return (x * r).mul_(weight)

    @staticmethod
    def backward(ctx, dy):
        x, weight, r = ctx.saved_tensors
        n = x.shape[-1]
        unit = x * r
        dw = (dy * unit).reshape(-1, n).sum(0)
        dunit = dy * weight
        along = (dunit * unit).sum(-1, keepdim=True).div_(n)
        return dunit.sub_(unit.mul_(along)).mul_(r), dw, None


class Unit(torch.autograd.Function):
    """x / sqrt(sum x^2 + 1e-6), times a constant."""

    @staticmethod
    def forward(ctx, x, scale):
        r = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().add_(1e-6).rsqrt_()
        y = x * r
        ctx.scale = scale
        ctx.save_for_backward(y, r)
        return y * scale if scale != 1 else y

    @staticmethod
    def backward(ctx, dy):
        y, r = ctx.saved_tensors
        along = (dy * y).sum(-1, keepdim=True)
        return (dy - y * along).mul_(r * ctx.scale), None


class ShortConv(torch.autograd.Function):
    """silu of a causal depthwise convolution that starts anew in every document."""

    @staticmethod
    def forward(ctx, x, weight, packing):
        taps = weight.shape[-1]
        w = weight.reshape(-1, taps).t().contiguous()
        y = x * w[taps - 1]
        for s in range(1, min(taps, x.shape[0])):
            mask = packing.reset_mask(s, x.dtype)
            y[s:].addcmul_(x[:-s] * mask, w[taps - 1 - s])
        ctx.packing, ctx.shape = packing, weight.shape
        ctx.save_for_backward(x, w, y)
        return F.silu(y)

    @staticmethod
    def backward(ctx, dout):
        x, w, y = ctx.saved_tensors
        taps = w.shape[0]
        s = torch.sigmoid(y)
        dy = (1 - s).mul_(y).add_(1).mul_(s).mul_(dout)
        dx = dy * w[taps - 1]
        dw = torch.zeros_like(w)
        dw[taps - 1] = (dy * x).sum(0)
        for s in range(1, min(taps, x.shape[0])):
            masked = dy[s:] * ctx.packing.reset_mask(s, x.dtype)
            dx[:-s].addcmul_(masked, w[taps - 1 - s])
            dw[taps - 1 - s] = masked.mul_(x[:-s]).sum(0)
        return dx, dw.t().reshape(ctx.shape), None


class Situ(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gate, up, beta, linear):
        ctx.constants = beta, linear
        ctx.save_for_backward(gate, up)
        out = torch.tanh(gate / beta).mul_(torch.sigmoid(gate)).mul_(beta)
        return out.mul_(up if linear is None else torch.tanh(up / linear).mul_(linear))

    @staticmethod
    def backward(ctx, dy):
        gate, up = ctx.saved_tensors
        beta, linear = ctx.constants
        t, s = torch.tanh(gate / beta), torch.sigmoid(gate)
        a = (t * s).mul_(beta)
        da = (1 - t * t).mul_(s).add_((1 - s).mul_(a))
        if linear is None:
            return da.mul_(up).mul_(dy), a.mul_(dy), None, None
        w = torch.tanh(up / linear)
        dup = (1 - w * w).mul_(a).mul_(dy)
        return da.mul_(w).mul_(linear).mul_(dy), dup, None, None


class SiluGate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gate, up):
        ctx.save_for_backward(gate, up)
        return F.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx, dy):
        gate, up = ctx.saved_tensors
        s = torch.sigmoid(gate)
        dup = (gate * s).mul_(dy)
        return (1 - s).mul_(gate).add_(1).mul_(s).mul_(up).mul_(dy), dup


class Mix(torch.autograd.Function):
    """Attention Residuals: each token's softmax over its sources, weighed by a learned query."""

    @staticmethod
    def forward(ctx, eps, norm, query, *sources):
        u = norm * query.reshape(-1)
        n = u.numel()
        inverse = [torch.linalg.vector_norm(v, dim=-1).square_().div_(n).add_(eps).rsqrt_()
                   for v in sources]
        scores = torch.stack([(v @ u).mul_(r) for v, r in zip(sources, inverse)], dim=1)
        p = torch.softmax(scores, dim=1)
        h = sources[0] * p[:, :1]
        for j in range(1, len(sources)):
            h.addcmul_(sources[j], p[:, j:j + 1])
        ctx.save_for_backward(norm, query, p, scores, torch.stack(inverse, dim=1), *sources)
        return h

    @staticmethod
    def backward(ctx, dh):
        norm, query, p, scores, inverse, *sources = ctx.saved_tensors
        n = norm.numel()
        u = norm * query.reshape(-1)
        t = torch.stack([(dh * v).sum(-1) for v in sources], dim=1)
        ds = (t - (p * t).sum(1, keepdim=True)).mul_(p)
        du = torch.zeros_like(u)
        out = []
        along = ds * inverse
        radial = ds * scores * inverse * inverse / -n
        for j, v in enumerate(sources):
            du += along[:, j] @ v
            dv = dh * p[:, j:j + 1]
            dv.addcmul_(along[:, j:j + 1], u)
            dv.addcmul_(radial[:, j:j + 1], v)
            out.append(dv)
        return (None, du * query.reshape(-1), (du * norm).reshape(query.shape), *out)


class Rearrange(torch.autograd.Function):
    """Into whole chunks (pads=True: the longer side is the result) or back out of them. `there`
    indexes rows of x, `back` rows of the result; one past the end stands for a row of zeros."""

    @staticmethod
    def forward(ctx, x, there, back, pads):
        ctx.save_for_backward(back)
        ctx.pads = pads
        return Rearrange.take(x, there, pads)

    @staticmethod
    def backward(ctx, dy):
        back, = ctx.saved_tensors
        return Rearrange.take(dy, back, not ctx.pads), None, None, None

    @staticmethod
    def take(x, rows, pads):
        if pads:
            x = torch.cat([x, x.new_zeros((1,) + x.shape[1:])])
        return x.index_select(0, rows)


class Dispatch(torch.autograd.Function):
    """Each token's row once for each expert it goes to, in the experts' order."""

    @staticmethod
    def forward(ctx, x, token, inverse, k):
        ctx.save_for_backward(inverse)
        ctx.k = k
        return x.index_select(0, token)

    @staticmethod
    def backward(ctx, dy):
        inverse, = ctx.saved_tensors
        return dy.index_select(0, inverse).view(-1, ctx.k, dy.shape[1]).sum(1), None, None, None


class Combine(torch.autograd.Function):
    """The weighted sum of a token's experts."""

    @staticmethod
    def forward(ctx, y, weights, token, inverse):
        tokens, k = weights.shape
        ctx.save_for_backward(y, weights, token, inverse)
        out = y.index_select(0, inverse).view(tokens, k, -1)
        return out.mul_(weights.unsqueeze(2)).sum(1)

    @staticmethod
    def backward(ctx, dout):
        y, weights, token, inverse = ctx.saved_tensors
        tokens, k = weights.shape
        dy = dout.index_select(0, token)
        dw = (dy * y).sum(1).index_select(0, inverse).view(tokens, k)
        ordered = torch.empty_like(y[:, 0])
        ordered[inverse] = weights.reshape(-1)
        return dy.mul_(ordered.unsqueeze(1)), dw, None, None


class GroupedLinear(torch.autograd.Function):
    """x's rows lie expert by expert; `bounds` says where. weight: [experts, out, in]."""

    @staticmethod
    def forward(ctx, x, weight, bounds):
        ctx.bounds = bounds
        ctx.save_for_backward(x, weight)
        y = x.new_empty(x.shape[0], weight.shape[1])
        for e, a, b in bounds:
            torch.mm(x[a:b], weight[e].t(), out=y[a:b])
        return y

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        dy = dy.contiguous()
        dx, dw = torch.empty_like(x), torch.zeros_like(weight)
        for e, a, b in ctx.bounds:
            torch.mm(dy[a:b], weight[e], out=dx[a:b])
            torch.mm(dy[a:b].t(), x[a:b], out=dw[e])
        return dx, dw, None


class KdaChunks(torch.autograd.Function):
    """The delta rule in chunks. q (scaled), k, v, g: [chunks, heads, C, d]; beta: [chunks, heads, C].

    With b the running sum of g in a chunk, Khat = k exp(b), Ktail = k exp(b_end - b):
        L_ij = sum k_i k_j exp(b_i - b_j) (i > j),  A_ij = sum q_i k_j exp(b_i - b_j) (i >= j)
        (I + L diag(beta)) E = v - Khat S,   R = beta E,   o = Qhat S + A R,
        S <- exp(b_end) S + Ktail' R
    L and A are made a strip of 16 rows at a time. Decay is split at the middle of the strip's own
    tile, which float32 bears while 16 steps decay by less than exp(88); steeper than that, the
    tile on the diagonal is summed pair by pair.
    """

    @staticmethod
    def factors(b):
        """Per tile: exp(b - mid), exp(mid - b) and, between tiles r >= s, exp(mid_r - mid_s)."""
        n, h, c, d = b.shape
        tiles = b.view(n, h, c // TILE, TILE, d)
        mid = tiles[:, :, :, TILE // 2 - 1]
        delta = tiles - mid.unsqueeze(3)
        return delta.exp(), delta.neg_().exp_(), mid

    @staticmethod
    def strip_columns(kc, mid, r):
        """Columns 0 .. 16(r+1) of k with the decay from their place to the middle of tile r."""
        n, h, _, _, d = kc.shape
        if r == 0:
            return kc[:, :, 0]
        hop = (mid[:, :, r:r + 1] - mid[:, :, :r + 1]).exp_().unsqueeze(3)
        return (kc[:, :, :r + 1] * hop).view(n, h, (r + 1) * TILE, d)

    @staticmethod
    def steep_strip(b, k, r):
        """The same for decay of any size, as (columns before the tile, row factor, pairs)."""
        i = r * TILE
        rows = b[:, :, i:i + TILE]
        pairs = (rows.unsqueeze(3) - rows.unsqueeze(2)).clamp_(max=0).exp_()
        if r == 0:
            return None, None, None, pairs
        start = b[:, :, i - 1:i]
        column_factor = (start - b[:, :, :i]).exp_()
        return k[:, :, :i] * column_factor, column_factor, (rows - start).exp_(), pairs

    @staticmethod
    def forward(ctx, q, k, v, g, beta, scan):
        n, h, c, d = q.shape
        b = g.cumsum(2)
        steep = bool(g.min() < STEEPEST)
        left = q.new_zeros(n, h, c, c)  # L
        across = q.new_zeros(n, h, c, c)  # A
        if not steep:
            row_factor, column_factor, mid = KdaChunks.factors(b)
            kr = k.view_as(row_factor) * row_factor
            qr = q.view_as(row_factor) * row_factor
            kc = k.view_as(row_factor) * column_factor
        for r in range(c // TILE):
            i, e = r * TILE, (r + 1) * TILE
            if not steep:
                rows = torch.cat([kr[:, :, r], qr[:, :, r]], dim=2)
                strip = rows @ KdaChunks.strip_columns(kc, mid, r).transpose(2, 3)
                left[:, :, i:e, :e] = strip[:, :, :TILE]
                across[:, :, i:e, :e] = strip[:, :, TILE:]
                continue
            columns, _, factor, pairs = KdaChunks.steep_strip(b, k, r)
            if r:
                left[:, :, i:e, :i] = (k[:, :, i:e] * factor) @ columns.transpose(2, 3)
                across[:, :, i:e, :i] = (q[:, :, i:e] * factor) @ columns.transpose(2, 3)
            reach = pairs.mul_(k[:, :, i:e].unsqueeze(2))
            left[:, :, i:e, i:e] = (reach @ k[:, :, i:e].unsqueeze(4)).squeeze(4)
            across[:, :, i:e, i:e] = (reach @ q[:, :, i:e].unsqueeze(4)).squeeze(4)
        left.tril_(-1)
        across.tril_()
        eye = torch.eye(c, dtype=q.dtype).expand(n, h, c, c)
        inverse = torch.linalg.solve_triangular(
            left * beta.unsqueeze(2), eye, upper=False, unitriangular=True)
        decay = b.exp()
        khat = k * decay
        end = b[:, :, -1:]
        ktail = (end - b).exp_().mul_(k)
        error, from_state = inverse @ v, inverse @ khat
        reached = decay[:, :, -1].unsqueeze(3)
        states = q.new_zeros(n, h, d, d)
        beta_column = beta.unsqueeze(3)
        s = None
        for step, (x, y) in enumerate(scan):
            if step:
                s = s[:y - x]
                states[x:y] = s
                error[x:y] -= from_state[x:y] @ s
            if step + 1 < len(scan):
                write = ktail[x:y].transpose(2, 3) @ (error[x:y] * beta_column[x:y])
                s = write if s is None else write.addcmul_(reached[x:y], s)
        write = error * beta_column
        out = across @ write
        out += (q * decay) @ states
        ctx.scan, ctx.steep = scan, steep
        ctx.save_for_backward(q, k, b, beta, left, across, inverse, error, states)
        return out

    @staticmethod
    def backward(ctx, dout):
        q, k, b, beta, left, across, inverse, error, states = ctx.saved_tensors
        n, h, c, d = q.shape
        beta_column = beta.unsqueeze(3)
        decay, tail = b.exp(), (b[:, :, -1:] - b).exp_()
        khat, ktail = k * decay, k * tail
        write = error * beta_column
        reached = decay[:, :, -1].unsqueeze(3)

        dwrite = across.transpose(2, 3) @ dout
        dx = inverse.transpose(2, 3) @ (dwrite * beta_column)
        dx_of_state = inverse.transpose(2, 3) @ (ktail * beta_column)
        dstate_of_out = (q * decay).transpose(2, 3) @ dout
        dstates = torch.zeros_like(states)  # of the state that leaves each chunk
        ds = None
        for step in range(len(ctx.scan) - 1, -1, -1):
            x, y = ctx.scan[step]
            if ds is not None:
                dstates[x:x + ds.shape[0]] = ds
                dx[x:y] += dx_of_state[x:y] @ dstates[x:y]
            if step:
                into = dstate_of_out[x:y] - khat[x:y].transpose(2, 3) @ dx[x:y]
                if ds is not None:
                    into.addcmul_(reached[x:y], dstates[x:y])
                ds = into
        dwrite += ktail @ dstates
        z = dwrite - left.transpose(2, 3) @ dx
        dbeta = (z * error).sum(3)
        dleft = (dx @ write.transpose(2, 3)).neg_().tril_(-1)
        dacross = (dout @ write.transpose(2, 3)).tril_()

        dq = (dout @ states.transpose(2, 3)).mul_(decay)
        dk_read = (dx @ states.transpose(2, 3)).mul_(decay).neg_()
        dk_write = (write @ dstates.transpose(2, 3)).mul_(tail)
        db_end = (k * dk_write).sum(2).addcmul_(
            decay[:, :, -1], (states * dstates).sum(3))
        if not ctx.steep:
            row_factor, column_factor, mid = KdaChunks.factors(b)
            kr = k.view_as(row_factor) * row_factor
            qr = q.view_as(row_factor) * row_factor
            kc = k.view_as(row_factor) * column_factor
            dcolumns = torch.zeros_like(kc)
        for r in range(c // TILE):
            i, e = r * TILE, (r + 1) * TILE
            if not ctx.steep:
                dstrip = torch.cat([dleft[:, :, i:e, :e], dacross[:, :, i:e, :e]], dim=2)
                drows = dstrip @ KdaChunks.strip_columns(kc, mid, r)
                dk_read[:, :, i:e].addcmul_(drows[:, :, :TILE], row_factor[:, :, r])
                dq[:, :, i:e].addcmul_(drows[:, :, TILE:], row_factor[:, :, r])
                rows = torch.cat([kr[:, :, r], qr[:, :, r]], dim=2)
                dcol = (dstrip.transpose(2, 3) @ rows).view(n, h, r + 1, TILE, d)
                hop = (mid[:, :, r:r + 1] - mid[:, :, :r + 1]).exp_().unsqueeze(3)
                dcolumns[:, :, :r + 1].addcmul_(dcol, hop)
                continue
            columns, column_factor, factor, pairs = KdaChunks.steep_strip(b, k, r)
            ki, qi = k[:, :, i:e], q[:, :, i:e]
            if r:
                dl, da = dleft[:, :, i:e, :i], dacross[:, :, i:e, :i]
                dk_read[:, :, i:e].addcmul_(dl @ columns, factor)
                dq[:, :, i:e].addcmul_(da @ columns, factor)
                dcol = dl.transpose(2, 3) @ (ki * factor) + da.transpose(2, 3) @ (qi * factor)
                dk_write[:, :, :i].addcmul_(dcol, column_factor)
            dl, da = dleft[:, :, i:e, i:e].unsqueeze(4), dacross[:, :, i:e, i:e].unsqueeze(4)
            weighed = pairs * ki.unsqueeze(2)
            dk_read[:, :, i:e] += (weighed * dl).sum(3)
            dq[:, :, i:e] += (weighed * da).sum(3)
            dk_write[:, :, i:e] += (
                (dl * ki.unsqueeze(3)).add_(da * qi.unsqueeze(3)).mul_(pairs).sum(2))
        if not ctx.steep:
            dk_write += dcolumns.mul_(column_factor).view_as(k)
        db = (q * dq).addcmul_(k, dk_read - dk_write)
        db[:, :, -1] += db_end
        # The sum over what follows, as a product: where nothing follows it is exactly zero, which a
        # total less the sum so far would not be, and AdamW makes steps of such noise.
        dg = torch.ones(c, c, dtype=q.dtype).triu_() @ db
        return dq, dk_read.add_(dk_write), dx, dg, dbeta, None


# ---------------------------------------------------------------- the model


class Model:
    def __init__(self, config, tensors, dtype):
        """Takes float arrays by released name (without `language_model.`). A layer's experts are
        kept as three stacked parameters, named `...experts.w1.weight` [experts, out, in]."""
        self.config, self.dtype = config, dtype
        self.params, self.buffers = {}, {}
        stacks = {}
        for name, value in tensors.items():
            tensor = torch.from_numpy(np.array(value)).to(dtype)
            if name.endswith("e_score_correction_bias"):
                self.buffers[name] = tensor
            elif ".experts." in name:
                head, tail = name.split(".experts.")
                number, tail = tail.split(".", 1)
                stacks.setdefault(f"{head}.experts.{tail}", {})[int(number)] = tensor
            else:
                self.params[name] = tensor
        for name, parts in stacks.items():
            self.params[name] = torch.stack([parts[e] for e in range(len(parts))])
        for p in self.params.values():
            p.requires_grad_()
        self.routing_margin = math.inf
        self.watch_margin = False

    @classmethod
    def load(cls, folder, dtype):
        config = Config(folder)
        return cls(config, read_text_tensors(folder, config), dtype)

    def released(self, values=None):
        """(released name, tensor) of every parameter, or of its gradient with values='grad'."""
        for name, p in self.params.items():
            value = p if values is None else p.grad
            if value is None:
                continue
            if ".experts." in name:
                head, tail = name.split(".experts.")
                for e in range(p.shape[0]):
                    yield f"{self.config.prefix}{head}.experts.{e}.{tail}", value[e]
            else:
                yield self.config.prefix + name, value

    def zero_grad(self):
        for p in self.params.values():
            p.grad = None

    def linear(self, x, name):
        return F.linear(x, self.params[name + ".weight"])

    def norm(self, x, name, eps=None):
        return RmsNorm.apply(x, self.params[name + ".weight"], eps or self.config.eps)

    def activation(self, gate, up):
        c = self.config
        if c.situ:
            return Situ.apply(gate, up, c.situ_beta, c.situ_linear)
        return SiluGate.apply(gate, up)

    def kda(self, x, at, packing):
        c = self.config
        h, d, tokens = c.kda_heads, c.kda_dim, x.shape[0]

        def short(which):
            y = ShortConv.apply(self.linear(x, at + which + "_proj"),
                                self.params[f"{at}{which}_conv1d.weight"], packing)
            return y.view(tokens, h, d)

        q, k = Unit.apply(short("q"), d ** -0.5), Unit.apply(short("k"), 1)
        v = short("v")
        z = self.linear(self.linear(x, at + "f_a_proj"), at + "f_b_proj")
        z = (z + self.params[at + "dt_bias"]).view(tokens, h, d)
        rate = self.params[at + "A_log"].reshape(-1)[:h].exp().view(h, 1)
        if c.lower is not None:
            g = torch.sigmoid(z * rate) * c.lower
        else:
            g = F.softplus(z) * -rate
        beta = torch.sigmoid(self.linear(x, at + "b_proj"))

        def chunked(t):
            if not packing.plain:
                t = Rearrange.apply(t, packing.source, packing.slot, True)
            return t.view(packing.chunks, packing.chunk, h, -1).transpose(1, 2).contiguous()

        o = KdaChunks.apply(chunked(q), chunked(k), chunked(v), chunked(g),
                            chunked(beta).squeeze(3), packing.scan)
        o = o.transpose(1, 2).reshape(-1, h, d)
        if not packing.plain:
            o = Rearrange.apply(o, packing.slot, packing.source, False)
        if c.full_gate:
            gate = self.linear(x, at + "g_proj")
        else:
            gate = self.linear(self.linear(x, at + "g_a_proj"), at + "g_b_proj")
        o = self.norm(o, at + "o_norm").view(tokens, h * d) * torch.sigmoid(gate)
        return self.linear(o, at + "o_proj")

    def mla(self, x, at, packing):
        c = self.config
        h, tokens, wide = c.heads, x.shape[0], c.nope + c.rope
        if c.q_lora:
            q = self.linear(self.norm(self.linear(x, at + "q_a_proj"), at + "q_a_layernorm", 1e-6),
                            at + "q_b_proj")
        else:
            q = self.linear(x, at + "q_proj")
        latent, rope = self.linear(x, at + "kv_a_proj_with_mqa").split([c.kv_lora, c.rope], dim=1)
        kv = self.linear(self.norm(latent, at + "kv_a_layernorm", 1e-6), at + "kv_b_proj")
        k, v = kv.view(tokens, h, -1).split([c.nope, c.v_dim], dim=2)
        k = torch.cat([k, rope.unsqueeze(1).expand(tokens, h, c.rope)], dim=2)
        q = q.view(tokens, h, wide) * wide ** -0.5
        pieces = []
        for length, count, rows in packing.attention:
            whole = length * count == tokens

            def batch(t):
                if not whole:
                    t = t.index_select(0, rows)
                return t.reshape(count, length, h, -1).transpose(1, 2).contiguous()

            pieces.append(self.attend(batch(q), batch(k), batch(v)).transpose(1, 2)
                          .reshape(count * length, h * c.v_dim))
        o = pieces[0] if len(pieces) == 1 else torch.cat(pieces).index_select(0, packing.unbatch)
        if c.mla_gate:
            o = o * torch.sigmoid(self.linear(x, at + "g_proj"))
        return self.linear(o, at + "o_proj")

    @staticmethod
    def attend(q, k, v, step=256):
        """Causal; rows in groups, so that what lies ahead of a group is not computed."""
        length = q.shape[2]
        out = []
        for a in range(0, length, step):
            b = min(a + step, length)
            scores = q[:, :, a:b] @ k[:, :, :b].transpose(2, 3)
            ahead = torch.ones(b - a, b, dtype=torch.bool).triu_(a + 1)
            out.append(torch.softmax(scores.masked_fill_(ahead, -math.inf), dim=3) @ v[:, :, :b])
        return out[0] if len(out) == 1 else torch.cat(out, dim=2)

    def mlp(self, x, at):
        return self.linear(
            self.activation(self.linear(x, at + "gate_proj"), self.linear(x, at + "up_proj")),
            at + "down_proj")

    def route(self, x, at):
        c = self.config
        logits = self.linear(x, at + "gate")
        score = torch.softmax(logits, 1) if c.softmax_router else torch.sigmoid(logits)
        with torch.no_grad():
            pick = score + self.buffers[at + "gate.e_score_correction_bias"]
            if c.groups > c.kept_groups and c.groups > 1:
                grouped = pick.view(-1, c.groups, c.experts // c.groups)
                best = grouped.topk(2, dim=2).values.sum(2).topk(c.kept_groups, dim=1).indices
                shut = torch.ones(pick.shape[0], c.groups, dtype=torch.bool).scatter_(1, best, False)
                pick = grouped.masked_fill(shut.unsqueeze(2), -math.inf).view_as(pick)
            if self.watch_margin:
                top = pick.topk(c.top_k + 1, dim=1).values
                self.routing_margin = min(self.routing_margin,
                                          (top[:, -2] - top[:, -1]).min().item())
            chosen = pick.topk(c.top_k, dim=1, sorted=False).indices
        weights = score.gather(1, chosen)
        if c.renormalize and c.top_k > 1:
            weights = weights / (weights.sum(1, keepdim=True) + 1e-20)
        return chosen, weights * c.scaling

    def moe(self, x, at):
        c = self.config
        chosen, weights = self.route(x, at)
        order = chosen.view(-1).argsort(stable=True)
        inverse = torch.empty_like(order)
        inverse[order] = torch.arange(order.numel())
        token = torch.div(order, c.top_k, rounding_mode="floor")
        ends = torch.bincount(chosen.view(-1), minlength=c.experts).cumsum(0).tolist()
        bounds = [(e, a, b) for e, (a, b) in enumerate(zip([0] + ends, ends)) if a < b]
        inner = self.linear(x, at + "routed_expert_down_proj") if c.latent else x
        rows = Dispatch.apply(inner, token, inverse, c.top_k)
        gate = GroupedLinear.apply(rows, self.params[at + "experts.w1.weight"], bounds)
        up = GroupedLinear.apply(rows, self.params[at + "experts.w3.weight"], bounds)
        y = GroupedLinear.apply(self.activation(gate, up),
                                self.params[at + "experts.w2.weight"], bounds)
        y = Combine.apply(y, weights, token, inverse)
        if c.latent_norm:
            y = self.norm(y, at + "routed_expert_norm")
        if c.latent:
            y = self.linear(y, at + "routed_expert_up_proj")
        return y + self.mlp(x, at + "shared_experts.") if c.shared else y

    def mix(self, closed, s, at):
        return Mix.apply(self.config.eps, self.params[at + "_norm.weight"],
                         self.params[at + "_proj.weight"], *closed, s)

    def hidden(self, ids, packing):
        """The rows that the head reads."""
        c = self.config
        s = F.embedding(ids, self.params["model.embed_tokens.weight"])
        closed = []
        for i in range(c.layers):
            at = f"model.layers.{i}."
            h = self.mix(closed, s, at + "self_attention_res") if closed else s
            opens = c.block is not None and i % c.block == 0
            if opens:
                closed.append(s)
            attention = self.kda if c.is_kda[i] else self.mla
            a = attention(self.norm(h, at + "input_layernorm"), at + "self_attn.", packing)
            s = a if opens else s + a
            h = self.mix(closed, s, at + "mlp_res") if c.block else s
            h = self.norm(h, at + "post_attention_layernorm")
            s = s + (self.moe(h, at + "block_sparse_moe.") if c.is_moe[i]
                     else self.mlp(h, at + "mlp."))
        if c.block:
            s = self.mix(closed, s, "model.output_attn_res")
        return self.norm(s, "model.norm")

    def logits(self, ids, packing):
        return self.linear(self.hidden(ids, packing), "lm_head")

    def loss(self, ids, packing):
        """Mean over every position that has a successor in its document."""
        rows = self.hidden(ids, packing).index_select(0, packing.predicting)
        return F.cross_entropy(self.linear(rows, "lm_head"), ids[packing.predicting + 1])


# ---------------------------------------------------------------- optimisers


def muon_blocks(config, name):
    """None: AdamW. Otherwise a list of (first row, rows) that repeats down the matrix, each block
    orthogonalised on its own; [] is the whole matrix (of each expert)."""
    matrix = name.endswith(("_proj.weight", "_proj_with_mqa.weight", ".gate.weight",
                            ".w1.weight", ".w2.weight", ".w3.weight"))
    if not matrix or name.endswith((".b_proj.weight", "_res_proj.weight")):
        return None
    if ".self_attn." not in name:
        return []
    kda = config.is_kda[int(name.split("layers.")[1].split(".")[0])]
    if kda and name.endswith((".q_proj.weight", ".k_proj.weight", ".v_proj.weight")):
        return [config.kda_dim]
    if not kda and name.endswith((".q_proj.weight", ".q_b_proj.weight")):
        return [config.nope + config.rope]
    if name.endswith(".kv_b_proj.weight"):
        return [config.nope, config.v_dim]
    return []


def orthogonalize(x, steps=5):
    """x: [matrices, rows, cols]."""
    x = x / (torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True) + 1e-7)
    tall = x.shape[1] > x.shape[2]
    for _ in range(steps):
        y = x.transpose(1, 2) @ x if tall else x @ x.transpose(1, 2)
        z = torch.baddbmm(y, y, y, beta=-4.7750, alpha=2.0315)
        x = torch.baddbmm(x, x, z, beta=3.4445) if tall else torch.baddbmm(x, z, x, beta=3.4445)
    return x


class Optimizer:
    """AdamW for everything, or with muon=True Per-Head Muon for the matrices. A parameter that has
    no gradient in a step moves as with a gradient of zero."""

    betas, eps, decay = (0.9, 0.95), 1e-8, 0.1
    momentum = 0.95

    def __init__(self, model, lr, muon):
        self.lr, self.steps = lr, 0
        self.items = []
        for name, p in model.params.items():
            blocks = muon_blocks(model.config, name) if muon else None
            decay = 0.0 if name.endswith(("A_log", "dt_bias")) else self.decay
            first = torch.zeros_like(p, requires_grad=False)
            second = torch.zeros_like(first) if blocks is None else None
            self.items.append((p, blocks, decay, first, second))

    @torch.no_grad()
    def step(self):
        self.steps += 1
        for p, blocks, decay, first, second in self.items:
            g = p.grad if p.grad is not None else torch.zeros_like(p)
            if blocks is None:
                self.adamw(p, g, decay, first, second)
            else:
                self.muon(p, g, blocks, decay, first)

    def adamw(self, p, g, decay, m, v):
        b1, b2 = self.betas
        m.lerp_(g, 1 - b1)
        v.mul_(b2).addcmul_(g, g, value=1 - b2)
        root = (v / (1 - b2 ** self.steps)).sqrt_().add_(self.eps)
        p.mul_(1 - self.lr * decay)
        p.addcdiv_(m, root, value=-self.lr / (1 - b1 ** self.steps))

    def muon(self, p, g, blocks, decay, m):
        m.mul_(self.momentum).add_(g)
        x = torch.add(g, m, alpha=self.momentum)
        p.mul_(1 - self.lr * decay)
        if not blocks:
            parts = [(x if x.dim() == 3 else x.unsqueeze(0), p if p.dim() == 3 else p.unsqueeze(0))]
        else:
            shape = (-1, sum(blocks), x.shape[1])
            parts, at = [], 0
            for rows in blocks:
                parts.append((x.view(shape)[:, at:at + rows], p.view(shape)[:, at:at + rows]))
                at += rows
        for piece, target in parts:
            factor = 0.2 * math.sqrt(max(piece.shape[1:]))
            target.sub_(orthogonalize(piece), alpha=self.lr * factor)


def AdamW(model, lr):
    return Optimizer(model, lr, muon=False)


def Muon(model, lr):
    return Optimizer(model, lr, muon=True)
