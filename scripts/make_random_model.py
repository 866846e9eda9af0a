#!/usr/bin/env python3
"""Write a small model with random weights in the released layout.

  make_random_model.py [OUT] [--seed N]        OUT defaults to models/random-bytes

Eight layers (KDA, KDA, KDA, MLA, KDA, KDA, MLA, MLA), 16 MXFP4 experts of which 4 are chosen, a
vocabulary of the 256 bytes and 256 special ids: 2.75 million parameters, 3.5 MB. It has learned
nothing (config.json says so: "k3_untrained": true); it is there so that every command has a model to
run on. The same seed gives the same bytes. Needs Python 3.9 and nothing else.
"""
import argparse
import array
import base64
import json
import math
import os
import random
import struct
import sys
from pathlib import Path

BYTES, SPECIALS = 256, 256
# The named special ids of the release, counted from the end of the ordinary vocabulary.
NAMES = {
    0: "[BOS]", 1: "[EOS]", 2: "<|end_of_msg|>", 3: "<|open|>", 4: "<|close|>", 5: "<|sep|>",
    6: "[start_header_id]", 7: "[end_header_id]", 9: "[EOT]", 18: "<|media_begin|>",
    19: "<|media_content|>", 20: "<|media_end|>", 21: "<|media_pad|>", 65: "<osagent_mode>",
    254: "[UNK]", 255: "[PAD]",
}
UNFLAGGED = ("<|open|>", "<|close|>", "<|sep|>")  # added tokens that are not flagged special
LAYERS, MLA_LAYERS = 8, (4, 7, 8)  # counted from 1
HIDDEN, HEADS, HEAD_DIM, CONV = 128, 4, 32, 4
Q_LORA, KV_LORA, NOPE, ROPE, V_DIM = 64, 32, 32, 16, 32
DENSE, INTER, LATENT, EXPERTS, CHOSEN, SHARED = 256, 64, 64, 16, 4, 2
FP4_RMS = math.sqrt(sum(v * v for v in (0, .5, 1, 1.5, 2, 3, 4, 6)) / 8)


def config():
    ids = {"bos_token_id": BYTES, "eos_token_id": BYTES + 2, "pad_token_id": BYTES + 255}
    weights = {"dynamic": False, "group_size": 32, "num_bits": 4, "scale_dtype": "torch.uint8",
               "strategy": "group", "symmetric": True, "type": "float"}
    text = {
        "activation_situ_beta": 4.0, "activation_situ_linear_beta": 25.0,
        "architectures": ["KimiLinearForCausalLM"], "attn_res_block_size": 4, "dtype": "bfloat16",
        "first_k_dense_replace": 1, "hidden_act": "situ", "hidden_size": HIDDEN,
        "intermediate_size": DENSE, "kv_lora_rank": KV_LORA, "latent_moe_use_norm": True,
        "linear_attn_config": {
            "full_attn_layers": list(MLA_LAYERS), "gate_lower_bound": -5.0, "head_dim": HEAD_DIM,
            "kda_layers": [i for i in range(1, LAYERS + 1) if i not in MLA_LAYERS],
            "num_heads": HEADS, "short_conv_kernel_size": CONV, "use_full_rank_gate": True},
        "max_position_embeddings": 1048576, "mla_use_nope": True, "mla_use_output_gate": True,
        "model_type": "kimi_linear", "moe_intermediate_size": INTER, "moe_layer_freq": 1,
        "moe_renormalize": True, "moe_router_activation_func": "sigmoid",
        "num_attention_heads": HEADS, "num_expert_group": 1, "num_experts": EXPERTS,
        "num_experts_per_token": CHOSEN, "num_hidden_layers": LAYERS, "num_key_value_heads": HEADS,
        "num_shared_experts": SHARED, "q_lora_rank": Q_LORA, "qk_nope_head_dim": NOPE,
        "qk_rope_head_dim": ROPE,
        "quantization_config": {
            "config_groups": {"group_0": {"format": "mxfp4-pack-quantized", "targets": ["Linear"],
                                          "weights": weights}},
            "format": "mxfp4-pack-quantized", "quant_method": "compressed-tensors",
            "ignore": ["re:.*self_attn.*", "re:.*shared_experts.*", "re:.*lm_head.*",
                       "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"]},
        "rms_norm_eps": 1e-5, "routed_expert_hidden_size": LATENT, "routed_scaling_factor": 1.0,
        "tie_word_embeddings": False, "topk_group": 1, "v_head_dim": V_DIM,
        "vocab_size": BYTES + SPECIALS, **ids,
    }
    return {"architectures": ["KimiK3ForConditionalGeneration"], "model_type": "kimi_k3",
            "k3_untrained": True, "dtype": "bfloat16", "media_placeholder_token_id": BYTES + 21,
            "text_config": text, "tie_word_embeddings": False, **ids}


class Tensors:
    """The tensors of one shard: (name, dtype, shape, bytes)."""

    def __init__(self, seed):
        self.seed, self.all = seed, []

    def rng(self, name):  # by name, so that no tensor's values depend on the others
        return random.Random(f"{self.seed}/{name}")

    def add(self, name, dtype, shape, data):
        self.all.append((name, dtype, list(shape), data))

    def bf16(self, name, shape, values):
        bits = array.array("I", array.array("f", values).tobytes())
        if sys.byteorder == "big":
            sys.exit("needs a little-endian machine")
        rounded = array.array("H", [(u + 0x7FFF + (u >> 16 & 1)) >> 16 for u in bits])
        self.add(name, "BF16", shape, rounded.tobytes())

    def f32(self, name, shape, values):
        self.add(name, "F32", shape, array.array("f", values).tobytes())

    def matrix(self, name, rows, cols, gain=1.0):
        gauss, std = self.rng(name).gauss, gain / math.sqrt(cols)
        self.bf16(name, (rows, cols), [gauss(0.0, std) for _ in range(rows * cols)])

    def norm(self, name, size):
        gauss = self.rng(name).gauss
        self.bf16(name, (size,), [gauss(1.0, 0.05) for _ in range(size)])

    def expert(self, name, rows, cols):
        rng = self.rng(name)
        self.add(name + ".weight_packed", "U8", (rows, cols // 2), rng.randbytes(rows * cols // 2))
        exponent = round(math.log2(1 / math.sqrt(cols) / FP4_RMS)) + 127
        scales = bytes(exponent + rng.randrange(-1, 2) for _ in range(rows * cols // 32))
        self.add(name + ".weight_scale", "U8", (rows, cols // 32), scales)


def kda(t, p):
    width = HEADS * HEAD_DIM
    for x in "qkvg":
        t.matrix(f"{p}{x}_proj.weight", width, HIDDEN)
    for x in "qkv":
        gauss = t.rng(f"{p}{x}_conv1d.weight").gauss
        t.f32(f"{p}{x}_conv1d.weight", (width, 1, CONV),
              [gauss(0.0, 0.5) for _ in range(width * CONV)])
    t.matrix(p + "f_a_proj.weight", HEAD_DIM, HIDDEN)
    t.matrix(p + "f_b_proj.weight", width, HEAD_DIM)
    t.matrix(p + "b_proj.weight", HEADS, HIDDEN)
    rng = t.rng(p + "A_log")  # one value a head, padded with zeros to head_dim as the release does
    t.f32(p + "A_log", (HEAD_DIM,),
          [math.log(rng.uniform(1, 4)) if i < HEADS else 0.0 for i in range(HEAD_DIM)])
    gauss = t.rng(p + "dt_bias").gauss
    t.f32(p + "dt_bias", (width,), [gauss(-2.0, 0.5) for _ in range(width)])
    gauss = t.rng(p + "o_norm.weight").gauss
    t.f32(p + "o_norm.weight", (HEAD_DIM,), [gauss(1.0, 0.05) for _ in range(HEAD_DIM)])
    t.matrix(p + "o_proj.weight", HIDDEN, width)


def mla(t, p):
    t.matrix(p + "q_a_proj.weight", Q_LORA, HIDDEN)
    t.norm(p + "q_a_layernorm.weight", Q_LORA)
    t.matrix(p + "q_b_proj.weight", HEADS * (NOPE + ROPE), Q_LORA)
    t.matrix(p + "kv_a_proj_with_mqa.weight", KV_LORA + ROPE, HIDDEN)
    t.norm(p + "kv_a_layernorm.weight", KV_LORA)
    t.matrix(p + "kv_b_proj.weight", HEADS * (NOPE + V_DIM), KV_LORA)
    t.matrix(p + "g_proj.weight", HEADS * V_DIM, HIDDEN)
    t.matrix(p + "o_proj.weight", HIDDEN, HEADS * V_DIM)


def mlp(t, p, width):
    t.matrix(p + "gate_proj.weight", width, HIDDEN)
    t.matrix(p + "up_proj.weight", width, HIDDEN)
    t.matrix(p + "down_proj.weight", HIDDEN, width)


def moe(t, p):
    t.matrix(p + "gate.weight", EXPERTS, HIDDEN)
    gauss = t.rng(p + "gate.e_score_correction_bias").gauss
    t.f32(p + "gate.e_score_correction_bias", (EXPERTS,), [gauss(0, 0.01) for _ in range(EXPERTS)])
    t.matrix(p + "routed_expert_down_proj.weight", LATENT, HIDDEN)
    t.norm(p + "routed_expert_norm.weight", LATENT)
    t.matrix(p + "routed_expert_up_proj.weight", HIDDEN, LATENT)
    mlp(t, p + "shared_experts.", SHARED * INTER)
    for e in range(EXPERTS):
        t.expert(f"{p}experts.{e}.w1", INTER, LATENT)
        t.expert(f"{p}experts.{e}.w2", LATENT, INTER)
        t.expert(f"{p}experts.{e}.w3", INTER, LATENT)


def layer(t, i):
    p = f"language_model.model.layers.{i}."
    t.norm(p + "input_layernorm.weight", HIDDEN)
    t.norm(p + "post_attention_layernorm.weight", HIDDEN)
    for x in ("self_attention_res", "mlp_res"):
        t.norm(f"{p}{x}_norm.weight", HIDDEN)
        t.matrix(f"{p}{x}_proj.weight", 1, HIDDEN)
    (mla if i + 1 in MLA_LAYERS else kda)(t, p + "self_attn.")
    if i == 0:
        mlp(t, p + "mlp.", DENSE)
    else:
        moe(t, p + "block_sparse_moe.")


def shards(seed):
    parts = [Tensors(seed) for _ in range(3)]
    for i in range(LAYERS):
        layer(parts[i // 3], i)
    top, last = parts[0], parts[-1]
    top.matrix("language_model.model.embed_tokens.weight", BYTES + SPECIALS, HIDDEN, math.sqrt(HIDDEN) * 0.5)
    last.norm("language_model.model.output_attn_res_norm.weight", HIDDEN)
    last.matrix("language_model.model.output_attn_res_proj.weight", 1, HIDDEN)
    last.norm("language_model.model.norm.weight", HIDDEN)
    last.matrix("language_model.lm_head.weight", BYTES + SPECIALS, HIDDEN)
    return [p.all for p in parts]


def put(path, data):
    """Whole or not at all."""
    part = path.with_name(path.name + ".part")
    try:
        part.write_bytes(data)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def put_shard(path, tensors):
    tensors = sorted(tensors, key=lambda x: ("F32", "BF16", "U8").index(x[1]))  # wide types first
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, dtype, shape, data in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    put(path, struct.pack("<Q", len(text)) + text + b"".join(x[3] for x in tensors))
    return offset


def tokenizer_files(out):
    # GPT-2's order: the printable bytes first, then the others.
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    order = printable + [b for b in range(256) if b not in printable]
    lines = [f"{base64.b64encode(bytes([b])).decode()} {rank}\n" for rank, b in enumerate(order)]
    put(out / "tiktoken.model", "".join(lines).encode())
    added = {str(BYTES + k): {"content": name, "lstrip": False, "normalized": False, "rstrip": False,
                              "single_word": False, "special": name not in UNFLAGGED}
             for k, name in NAMES.items()}
    tokenizer = {"added_tokens_decoder": added, "bos_token": "[BOS]", "eos_token": "[EOS]",
                 "pad_token": "[PAD]", "unk_token": "[UNK]",
                 "clean_up_tokenization_spaces": False, "tokenizer_class": "TikTokenTokenizer"}
    put(out / "tokenizer_config.json", json.dumps(tokenizer, indent=2).encode())
    put(out / "generation_config.json",
        json.dumps({"max_length": 1048576, "eos_token_id": BYTES + 2}, indent=2).encode())


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("out", type=Path, nargs="?",
                    default=Path(__file__).resolve().parent.parent / "models" / "random-bytes")
    ap.add_argument("--seed", type=int, default=1)
    args = ap.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    parts, total, weight_map, count = shards(args.seed), 0, {}, 0
    for i, tensors in enumerate(parts, 1):
        name = f"model-{i:05d}-of-{len(parts):06d}.safetensors"
        total += put_shard(args.out / name, tensors)
        weight_map.update({tensor[0]: name for tensor in tensors})
        count += sum(math.prod(t[2]) * (2 if t[0].endswith("packed") else 1)
                     for t in tensors if not t[0].endswith("scale"))
    tokenizer_files(args.out)
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    put(args.out / "model.safetensors.index.json", json.dumps(index, indent=2).encode())
    put(args.out / "config.json", json.dumps(config(), indent=2).encode())
    print(f"{args.out}: {count / 1e6:.2f} M parameters, {total / 1e6:.2f} MB, {len(weight_map)} tensors")


if __name__ == "__main__":
    main()
