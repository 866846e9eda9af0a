#!/usr/bin/env python3
"""Writes the training and held-out data of the nano recipe: make_data.py OUT_DIR [--scale X]

    pretrain.jsonl    {"text": ...}: stories, public-domain prose, worked sums, passages with questions
    sft.jsonl         one chat request a line, with the assistant's answers
    tokenizer.txt     a sample of all of it to learn the vocabulary from, without digit runs
    heldout/KIND.jsonl {"id", "kind", "request", "expect"}: nothing of it is in the training data (heldout.py)
    heldout/plain.txt the same kinds as plain text, without prose, to measure a perplexity on

The same command writes the same bytes everywhere.
"""

import argparse
import json
import os
import random
import re
import sys
import time

import conversations as chat
from prose import Missing, documents
from stories import make_story, pick_items

SEED = 2026
HELD_OUT = 200
PRETRAIN = {"story": 39000, "sum": 7000, "difference": 4000, "sort": 3000, "passage": 6000}
SFT = {"story": 10000, "sum": 9500, "difference": 5000, "sort": 4500, "passage": 7500, "tool": 9000, "unknown": 3000, "talk": 3000}
THINKING = 0.65
NOTE = ("`thinking_effort` guides on how much to think in your thinking channel (not including the response channel), supported values include "
        "`low`, `medium`, `high`, and `max`.\nNow the system is invoked with `thinking_effort=max`.")
MARKUP = ("message call argument think response tools json user system assistant tool string number boolean object array null tool-declare "
          "thinking-effort").split() + [" role", " name", " type", " tool", " index", " key", '="']
TOOLS_NOTE = "# Tools\nHere are the available tools, described in JSONSchema.\n\n```json\n"


def plain(rng, kind, held_out=False):
    """A document of plain text for pretraining."""
    if kind == "story":
        told = make_story(rng, pick_items(rng, held_out))
        return f"{told.title}\n\n{told.text}"
    if kind == "passage":
        text, facts = chat.make_passage(rng, held_out)
        pairs = [pair for f in facts for pair in f[2]]
        chosen = rng.sample(pairs, min(len(pairs), rng.choice((1, 2, 3))))
        return text + "".join(f"\nQuestion: {q}\nAnswer: {a}" for q, a in chosen)
    worked = []
    for _ in range(rng.choice((1, 1, 2, 3)) if kind == "sort" else 1):
        made = chat.MAKERS[kind](rng, held_out)
        worked.append(f"{made.messages[0]['content']}\n{made.messages[1]['reasoning_content']}")
    return "\n".join(worked)


def counted(counts, scale):
    """Every kind as often as wanted, in a fixed order."""
    return [kind for kind in sorted(counts) for _ in range(max(1, round(counts[kind] * scale)))]


def pretraining(scale):
    rng = random.Random(SEED)
    texts = [plain(rng, kind) for kind in counted(PRETRAIN, scale)]
    prose = [text for _, text in documents()]
    texts += prose if scale >= 1 else rng.sample(prose, round(len(prose) * scale))
    rng.shuffle(texts)
    return texts


def fine_tuning(scale):
    rng = random.Random(SEED + 1)
    examples = [chat.make(rng, kind, rng.random() < THINKING) for kind in counted(SFT, scale)]
    rng.shuffle(examples)
    return examples


def held_out(kind):
    """HELD_OUT different prompts."""
    rng = random.Random(f"{SEED} held out {kind}")
    found = {}
    while len(found) < HELD_OUT:
        made = chat.make(rng, kind, True, held_out=True)
        prompt = made.prompt()
        found.setdefault(json.dumps(prompt, sort_keys=True), {"request": prompt, "expect": made.expect})
    return [{"id": f"{kind}-{n}", "kind": kind, **one} for n, one in enumerate(found.values())]


def held_out_text(each=40):
    """Documents of every plain kind, of withheld pairs."""
    rng = random.Random(f"{SEED} held out text")
    return "\n\n".join(plain(rng, kind, held_out=True) for _ in range(each) for kind in sorted(PRETRAIN)) + "\n"


def without_digit_runs(text):
    """Every run of digits becomes its first digit, so that no token of several digits can be learnt."""
    return re.sub(r"(\d)\d+", r"\1", text)


def vocabulary_sample(texts, examples, scale, limit=5_000_000):
    """Text as the renderer cuts it: the contents, the notes and tool declarations, one piece a line."""
    rng = random.Random(SEED + 2)
    pieces, size = [], 0
    for example in examples:
        parts = [NOTE] if example.thinking and rng.random() < 0.2 else []
        if example.tools:
            parts.append(TOOLS_NOTE + json.dumps(example.tools, sort_keys=True, separators=(",", ":")) + "\n```")
        for message in example.messages:
            parts += [message.get("reasoning_content", ""), message["content"]]
        pieces.append("\n".join(p for p in parts if p))
        size += len(pieces[-1])
        if size > limit * scale / 2:
            break
    pieces += ["\n".join(MARKUP)] * max(1, round(200 * scale))
    for text in texts:
        pieces.append(text)
        size += len(text)
        if size > limit * scale:
            break
    return without_digit_runs("\n".join(pieces) + "\n")


def write_lines(path, rows):
    with open(path, "w", encoding="utf-8") as f:
        for row in rows:
            f.write(json.dumps(row, ensure_ascii=False) + "\n")
    print(f"{path}: {len(rows)} lines, {os.path.getsize(path):,} bytes")


def main(arguments=None):
    parser = argparse.ArgumentParser(description="write the data of the nano recipe")
    parser.add_argument("out_dir")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full size (default 1)")
    args = parser.parse_args(arguments)
    if not 0 < args.scale <= 100:
        parser.error("--scale must be above 0 and at most 100")
    began = time.monotonic()
    try:
        os.makedirs(os.path.join(args.out_dir, "heldout"), exist_ok=True)
        texts = pretraining(args.scale)
    except (Missing, OSError) as error:
        sys.exit(f"make_data.py: {error}")
    examples = fine_tuning(args.scale)
    inside = lambda name: os.path.join(args.out_dir, name)
    write_lines(inside("pretrain.jsonl"), [{"text": t} for t in texts])
    write_lines(inside("sft.jsonl"), [e.request for e in examples])
    with open(inside("tokenizer.txt"), "w", encoding="utf-8") as f:
        f.write(vocabulary_sample(texts, examples, args.scale))
    with open(inside("heldout/plain.txt"), "w", encoding="utf-8") as f:
        f.write(held_out_text())
    for kind in chat.KINDS:
        write_lines(inside(f"heldout/{kind}.jsonl"), held_out(kind))
    print(f"{time.monotonic() - began:.1f} s")


if __name__ == "__main__":
    main()
