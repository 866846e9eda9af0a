#!/usr/bin/env python3
"""Scores a model on the held-out questions of make_data.py, with thinking and without.

    evaluate.py --k3 build/k3 --model DIR --heldout DATA/heldout [--limit N] [--train-text FILE]... [--json OUT]

The model runs once, by `k3 generate --requests FILE --output FILE --model DIR`: one JSON object a line in
({"id", "request", "max_tokens", "temperature"}) and out ({"id", "message", "finish_reason"}).
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile

MAX_TOKENS = {"story": 320, "sum": 160, "difference": 160, "sort": 240, "passage": 120, "tool": 200, "unknown": 120, "talk": 120}
MODES = ("think", "off")
RUN = 8  # words of a run that may stand in the training text


# Scorers: message, expect -> right or wrong -------------------------------------------------------------------------------

def text_of(message):
    return message.get("content") or ""


def integers(text):
    return [int(n) for n in re.findall(r"-?\d+", re.sub(r"(?<=\d),(?=\d{3}\b)", "", text))]


def plain_words(text):
    return re.findall(r"[a-z0-9]+", text.lower())


def items_present(message, expect):
    found = set(plain_words(text_of(message)))
    return [item for item in expect["items"] if item in found or item + "s" in found]


def story_right(message, expect):
    return len(items_present(message, expect)) == len(expect["items"])


def number_right(message, expect):
    found = integers(text_of(message))
    return bool(found) and found[-1] == expect["number"]


def sort_right(message, expect):
    return [int(n) for n in re.findall(r"\d+", text_of(message))] == expect["numbers"]


def passage_right(message, expect):
    """The answer's words, with at most some words around them and no other claim of length."""
    said, wanted = plain_words(text_of(message)), plain_words(expect["answer"])
    if len(said) > len(wanted) + 8:
        return False
    return any(said[i:i + len(wanted)] == wanted for i in range(len(said) - len(wanted) + 1))


def calls_of(message):
    """[(name, arguments)]; arguments that are no JSON object count as none."""
    found = []
    for call in message.get("tool_calls") or []:
        function = call.get("function", call)
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except ValueError:
                arguments = None
        found.append((function.get("name"), arguments))
    return found


def same_value(one, two):
    """Equal and of one type; 5 and 5.0 are the same number, "5" is not, true is not 1."""
    if isinstance(one, bool) or isinstance(two, bool) or isinstance(one, str) or isinstance(two, str):
        return type(one) is type(two) and one == two
    return one == two


def tool_right(message, expect):
    calls = calls_of(message)
    if len(calls) != 1 or calls[0][0] != expect["name"] or not isinstance(calls[0][1], dict):
        return False
    given, wanted = calls[0][1], expect["arguments"]
    return set(given) == set(wanted) and all(same_value(given[k], wanted[k]) for k in wanted)


def tool_name_right(message, expect):
    return [name for name, _ in calls_of(message)] == [expect["name"]]


def contains_right(message, expect):
    return expect["contains"].lower() in text_of(message).lower()


SCORERS = {"story": story_right, "sum": number_right, "difference": number_right, "sort": sort_right, "passage": passage_right,
           "tool": tool_right, "unknown": contains_right, "talk": contains_right}


def stopped(answer):
    return answer.get("finish_reason") in ("stop", "tool_calls")


def form_faults(text):
    """What a reader would mark in a story without understanding it."""
    faults = []
    for word, after in re.findall(r"\b([Aa]n?) ([a-z]+)", text):
        if (word.lower() == "an") != (after[0] in "aeiou") and not after.startswith(("one", "once", "us", "hour", "honest")):
            faults.append(f"{word} {after}")
    if not re.search(r"[.!?]\"?$", text.strip()):
        faults.append("no full stop at the end")
    if text.count('"') % 2:
        faults.append("an open quotation")
    faults += re.findall(r"[.] [a-z]\w*", text)
    faults += [m.group(0) for m in re.finditer(r"\b([a-z]+) \1\b", text) if m.group(1) not in ("had", "that")]
    if not 40 <= len(text.split()) <= 160:
        faults.append(f"{len(text.split())} words")
    return faults


# The training text ---------------------------------------------------------------------------------------------------------

def training_texts(path):
    """The texts of a file: JSON lines with a text or messages, or plain text by lines."""
    with open(path, encoding="utf-8") as f:
        for line in f:
            if not line.startswith("{"):
                yield line
                continue
            row = json.loads(line)
            if "text" in row:
                yield row["text"]
            for message in row.get("messages", ()):
                yield message.get("content") or ""


def runs(text):
    words = text.lower().split()
    return [" ".join(words[i:i + RUN]) for i in range(len(words) - RUN + 1)]


def overlap(stories, paths):
    """Share of the stories' runs of RUN words that stand in the training text, and the share of stories that do entirely."""
    mine = {r for s in stories for r in runs(s)}
    seen = set()
    for path in paths:
        for text in training_texts(path):
            seen.update(r for r in runs(text) if r in mine)
    total = sum(len(runs(s)) for s in stories)
    known = sum(r in seen for s in stories for r in runs(s))
    copied = sum(bool(runs(s)) and all(r in seen for r in runs(s)) for s in stories)
    return {"runs_seen": known / total if total else 0.0, "stories_copied": copied / len(stories) if stories else 0.0}


# Running and reporting -----------------------------------------------------------------------------------------------------

def load_questions(folder, limit):
    questions = []
    for kind in SCORERS:
        path = os.path.join(folder, kind + ".jsonl")
        if os.path.exists(path):
            with open(path, encoding="utf-8") as f:
                questions += [json.loads(line) for line in f][:limit]
    if not questions:
        sys.exit(f"evaluate.py: no questions in {folder}")
    return questions


def requests_of(questions):
    for q in questions:
        for mode in MODES:
            request = dict(q["request"])
            if mode == "off":
                request["reasoning_effort"] = "none"
            yield {"id": f"{q['id']}/{mode}", "request": request, "max_tokens": MAX_TOKENS[q["kind"]], "temperature": 0}


def generate(k3, model, questions, folder):
    source, target = os.path.join(folder, "requests.jsonl"), os.path.join(folder, "answers.jsonl")
    with open(source, "w", encoding="utf-8") as f:
        for row in requests_of(questions):
            f.write(json.dumps(row) + "\n")
    done = subprocess.run([k3, "generate", "--requests", source, "--output", target, "--model", model])
    if done.returncode:
        sys.exit(f"evaluate.py: {k3} generate ended with {done.returncode}")
    return read_answers(target)


def read_answers(path):
    with open(path, encoding="utf-8") as f:
        return {row["id"]: row for row in map(json.loads, f)}


def share(values):
    values = list(values)
    return sum(map(bool, values)) / len(values) if values else 0.0


def score(questions, answers, train_texts=()):
    """{kind: {mode: {right, chance, stops, ...}}, "all": {mode: {stops}}}. Chance: the answers, each held against the
    next question of its kind instead of its own."""
    missing = [f"{q['id']}/{m}" for q in questions for m in MODES if f"{q['id']}/{m}" not in answers]
    if missing:
        sys.exit(f"evaluate.py: {len(missing)} answers are missing, the first is {missing[0]}")
    report = {}
    for kind, scorer in SCORERS.items():
        asked = [q for q in questions if q["kind"] == kind]
        if not asked:
            continue
        report[kind] = {}
        for mode in MODES:
            given = [answers[f"{q['id']}/{mode}"] for q in asked]
            messages = [a.get("message") or {} for a in given]
            row = {"count": len(asked), "right": share(scorer(m, q["expect"]) for m, q in zip(messages, asked)),
                   "chance": share(scorer(m, q["expect"]) for m, q in zip(messages, asked[1:] + asked[:1])), "stops": share(map(stopped, given))}
            if kind == "story":
                texts = [text_of(m) for m in messages]
                row["items_present"] = (sum(len(items_present(m, q["expect"])) for m, q in zip(messages, asked))
                                        / sum(len(q["expect"]["items"]) for q in asked))
                row["well_formed"] = share(not form_faults(t) for t in texts)
                row["mean_words"] = sum(len(t.split()) for t in texts) / len(texts)
                if train_texts:
                    row.update(overlap(texts, train_texts))
            if kind == "tool":
                row["name_right"] = share(tool_name_right(m, q["expect"]) for m, q in zip(messages, asked))
            if kind == "passage":
                row["says_does_not_know"] = share("do not know" in text_of(m) for m in messages)
            report[kind][mode] = row
    report["all"] = {mode: {"stops": share(stopped(answers[f"{q['id']}/{mode}"]) for q in questions), "count": len(questions)} for mode in MODES}
    return report


def table(report):
    lines = ["| kind | count | right, thinking | right, not thinking | chance | stops, thinking | stops, not |", "|---|---:|---:|---:|---:|---:|---:|"]
    percent = lambda x: f"{100 * x:.1f} %"
    for kind, modes in report.items():
        think, off = modes["think"], modes["off"]
        right = [percent(m["right"]) if "right" in m else "" for m in (think, off)]
        chance = percent(max(think["chance"], off["chance"])) if "chance" in think else ""
        lines.append(f"| {kind} | {think['count']} | {right[0]} | {right[1]} | {chance} | {percent(think['stops'])} | {percent(off['stops'])} |")
    notes = []
    for kind, modes in report.items():
        for mode in MODES:
            extra = {k: v for k, v in modes[mode].items() if k not in ("count", "right", "chance", "stops")}
            if extra:
                notes.append(f"* {kind}, {mode}: " + ", ".join(f"{k} {v:.1f}" if k == "mean_words" else f"{k} {percent(v)}" for k, v in extra.items()))
    return "\n".join(lines + ([""] + notes if notes else []))


def main(arguments=None):
    parser = argparse.ArgumentParser(description="score a model on held-out questions")
    parser.add_argument("--k3", help="the k3 program")
    parser.add_argument("--model", help="model folder")
    parser.add_argument("--heldout", required=True, help="folder with KIND.jsonl of make_data.py")
    parser.add_argument("--limit", type=int, help="so many questions of each kind only")
    parser.add_argument("--train-text", action="append", default=[], help="training text to compare stories with (repeat)")
    parser.add_argument("--answers", help="score these answers instead of running a model")
    parser.add_argument("--keep", help="folder for the requests and answers (default: a temporary one)")
    parser.add_argument("--json", help="write the scores here too")
    args = parser.parse_args(arguments)
    if not args.answers and not (args.k3 and args.model):
        parser.error("--k3 and --model are needed, or --answers")
    questions = load_questions(args.heldout, args.limit)
    if args.answers:
        answers = read_answers(args.answers)
    elif args.keep:
        os.makedirs(args.keep, exist_ok=True)
        answers = generate(args.k3, args.model, questions, args.keep)
    else:
        with tempfile.TemporaryDirectory() as folder:
            answers = generate(args.k3, args.model, questions, folder)
    report = score(questions, answers, args.train_text)
    print(table(report))
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump(report, f, indent=2)
            f.write("\n")


if __name__ == "__main__":
    main()
