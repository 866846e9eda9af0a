#!/usr/bin/env python3
"""Tests of the nano recipe: python3 test_recipe.py [-v]. With K3=PATH in the environment, requests are rendered too."""

import json
import os
import random
import re
import subprocess
import sys
import tempfile
import unittest
from itertools import combinations

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import conversations as chat
import evaluate
import heldout
import make_data
import prose
import stories
from items import ITEMS, article, past

PAIR = re.compile(r"(?<![\d+*-])(\d+) ?([+-]) ?(\d+)(?![\d+*])")
SPOKEN_SUMS = ((r"[Aa]dd (\d+) and (\d+)", "+"), (r"(\d+) plus (\d+)", "+"), (r"do (\d+) and (\d+) make", "+"),
               (r"(\d+) minus (\d+)", "-"))
TAKEN = re.compile(r"(?:[Tt]ake|Subtract) (\d+) from (\d+)")


def operand_pairs(text):
    """Every sum and difference that a text asks or works out."""
    found = [(int(a), sign, int(b)) for a, sign, b in PAIR.findall(text)]
    for pattern, sign in SPOKEN_SUMS:
        found += [(int(a), sign, int(b)) for a, b in re.findall(pattern, text)]
    return found + [(int(a), "-", int(b)) for b, a in TAKEN.findall(text)]


def whole_text(request):
    parts = []
    for message in request["messages"]:
        parts += [message.get("reasoning_content") or "", message.get("content") or ""]
        parts += [c["function"]["arguments"] for c in message.get("tool_calls", ())]
    return "\n".join(parts)


class Data(unittest.TestCase):
    """What the generators write, by reading the text again."""

    @classmethod
    def setUpClass(cls):
        rng = random.Random(3)
        cls.examples = [chat.make(rng, kind, rng.random() < 0.65) for kind in chat.KINDS for _ in range(500)]
        cls.plain = [(kind, make_data.plain(rng, kind)) for kind in make_data.PRETRAIN for _ in range(500)]
        cls.held = {kind: make_data.held_out(kind) for kind in chat.KINDS}

    def every_text(self):
        return [whole_text(e.request) for e in self.examples] + [text for _, text in self.plain]

    def test_no_withheld_sum_or_difference(self):
        seen = 0
        for text in self.every_text():
            for a, sign, b in operand_pairs(text):
                seen += 1
                rule = heldout.sum_withheld if sign == "+" else heldout.difference_withheld
                self.assertFalse(rule(a, b), f"{a} {sign} {b} in: {text}")
        self.assertGreater(seen, 5000)

    def test_held_out_sums_are_withheld_and_found_by_the_reader(self):
        for kind, sign, rule in (("sum", "+", heldout.sum_withheld), ("difference", "-", heldout.difference_withheld)):
            for row in self.held[kind]:
                pairs = operand_pairs(row["request"]["messages"][0]["content"])
                self.assertEqual(len(pairs), 1, row)
                a, found, b = pairs[0]
                self.assertEqual((found, rule(a, b)), (sign, True))
                self.assertEqual(row["expect"]["number"], a + b if sign == "+" else a - b)
                self.assertTrue(100 <= min(a, b) and max(a, b) <= 999)

    def test_no_withheld_items_together(self):
        for text in [t for k, t in self.plain if k == "story"] + [e.messages[-1]["content"] for e in self.examples if e.kind == "story"]:
            self.assertFalse(stories.breaks_rule(stories.mentions(text)), text)
        for e in self.examples:
            if e.kind == "story":
                self.assertFalse(stories.breaks_rule(stories.mentions(e.messages[0]["content"])), e.messages[0])
        for row in self.held["story"]:
            items = row["expect"]["items"]
            self.assertTrue(all(heldout.items_withheld(a, b) for a, b in combinations(items, 2)))
            self.assertEqual(sorted(stories.mentions(row["request"]["messages"][0]["content"])), sorted(items))

    def test_no_withheld_tool_or_parameter(self):
        def declared(request):
            return [t["function"] for t in request.get("tools", ())]
        for e in self.examples:
            for f in declared(e.request):
                self.assertFalse(heldout.tool_withheld(f["name"]), f)
                self.assertFalse(any(map(heldout.parameter_withheld, f["parameters"]["properties"])), f)
        seen = {f["name"] for e in self.examples for f in declared(e.request)}
        for row in self.held["tool"]:
            for f in declared(row["request"]):
                self.assertTrue(heldout.tool_withheld(f["name"]), f)
                self.assertTrue(all(map(heldout.parameter_withheld, f["parameters"]["properties"])), f)
                self.assertNotIn(f["name"], seen)

    def test_held_out_prompts_are_new_and_different(self):
        seen = {e.messages[0]["content"] for e in self.examples}
        for kind, rows in self.held.items():
            self.assertEqual(len(rows), 200)
            self.assertEqual(len({json.dumps(r["request"]) for r in rows}), 200)
            asked = [r["request"]["messages"][-1]["content"] for r in rows]
            self.assertFalse(seen & set(asked), kind)
            self.assertTrue(all(r["request"]["messages"][-1]["role"] == "user" for r in rows))

    def test_worked_arithmetic(self):
        rng = random.Random(8)
        for _ in range(3000):
            a, b = sorted((rng.randrange(1000), rng.randrange(1000)), reverse=True)
            for text, result in ((chat.worked_sum(a, b), a + b), (chat.worked_difference(a, b), a - b)):
                lines = text.splitlines()
                self.assertEqual(len(lines), 5)
                kept = 0
                for place, line in enumerate(lines[1:4]):
                    p, q, c, total, word, out, so_far = re.fullmatch(
                        r"\w+ (\d)[+-](\d)[+-](\d)=(\d+) (carry|borrow) (\d): (\d+)", line).groups()
                    self.assertEqual((int(p), int(q), int(c)), (a // 10 ** place % 10, b // 10 ** place % 10, kept))
                    kept = int(out)
                    value = int(p) + int(q) + int(c) if word == "carry" else int(p) - int(q) - int(c)
                    self.assertEqual(int(total), value if word == "carry" else value % 10)
                    self.assertEqual(int(so_far), result % 10 ** (place + 1))
                    self.assertEqual(kept, value // 10 if word == "carry" else int(value < 0))
                self.assertEqual(lines[4], f"so {result}")

    def test_answers_are_those_expected(self):
        """Every scorer accepts the training answer of its kind."""
        for e in self.examples:
            scorer = {"number": evaluate.number_right, "numbers": evaluate.sort_right, "items": evaluate.story_right,
                      "answer": evaluate.passage_right, "name": evaluate.tool_right, "contains": evaluate.contains_right}
            key = next(k for k in ("name", "number", "numbers", "items", "answer", "contains") if k in e.expect)
            self.assertTrue(scorer[key](e.messages[-1], e.expect), e.request)

    def test_thinking_is_all_or_nothing(self):
        for e in self.examples:
            replies = [m for m in e.messages if m["role"] == "assistant"]
            self.assertEqual({bool(m.get("reasoning_content")) for m in replies}, {e.thinking})
            self.assertEqual(e.request.get("reasoning_effort") == "none", not e.thinking)

    def test_stories(self):
        for e in self.examples:
            if e.kind != "story":
                continue
            text = e.messages[-1]["content"]
            self.assertEqual(evaluate.form_faults(text), [])
            self.assertNotRegex(text, r"[\[\]{}|~]")
            self.assertTrue(60 <= len(text.split()) <= 125)
            for item in e.expect["items"]:
                self.assertIn(item, stories.mentions(text))

    def test_no_digit_runs_for_the_vocabulary(self):
        sample = make_data.vocabulary_sample([t for _, t in self.plain], self.examples, 0.2)
        self.assertNotRegex(sample, r"\d\d")
        self.assertGreater(len(sample), 100000)


class Pieces(unittest.TestCase):
    def test_articles(self):
        for phrase, right in (("owl", "an owl"), ("fox", "a fox"), ("old fox", "an old fox"), ("small owl", "a small owl"),
                              ("hour", "an hour"), ("umbrella", "an umbrella"), ("useful thing", "a useful thing")):
            self.assertEqual(article(phrase), right)

    def test_past(self):
        for base, right in (("fly the kite", "flew the kite"), ("carry it", "carried it"), ("bake a pie", "baked a pie"),
                            ("play", "played"), ("try on the hat", "tried on the hat"), ("shout and listen", "shouted and listened")):
            self.assertEqual(past(base), right)

    def test_items(self):
        self.assertTrue(150 <= len(ITEMS) <= 250)
        pairs = list(combinations(sorted(ITEMS), 2))
        self.assertAlmostEqual(sum(heldout.items_withheld(*p) for p in pairs) / len(pairs), 0.3, delta=0.02)

    def test_mentions(self):
        self.assertEqual(stories.mentions("All was well. The small fox slept well by the well, as well as a kite."), ["fox", "well", "kite"])

    def test_withheld_share_and_order(self):
        rng = random.Random(1)
        pairs = [(rng.randrange(100, 1000), rng.randrange(100, 1000)) for _ in range(20000)]
        self.assertAlmostEqual(sum(heldout.sum_withheld(*p) for p in pairs) / len(pairs), 0.3, delta=0.02)
        self.assertTrue(all(heldout.sum_withheld(a, b) == heldout.sum_withheld(b, a) for a, b in pairs))
        self.assertEqual(heldout.words_of("fetchTide_level-now"), ("fetch", "tide", "level", "now"))

    def test_prose_reader(self):
        try:
            texts = list(prose.documents())
        except prose.Missing as error:
            self.skipTest(str(error))
        self.assertGreater(len(texts), 4000)
        self.assertIn("a single man in possession", " ".join(t for s, t in texts if s == "prideprejudice"))
        self.assertFalse(any("CHAPTER" in t for _, t in texts))

    def test_missing_prose_names_the_package(self):
        with self.assertRaisesRegex(prose.Missing, "bible-kjv"):
            prose.need("/nowhere/at/all", "bible-kjv")


class Scorers(unittest.TestCase):
    def test_numbers(self):
        right = evaluate.number_right
        self.assertTrue(right({"content": "347 + 285 is 632."}, {"number": 632}))
        self.assertTrue(right({"content": "1,132"}, {"number": 1132}))
        for wrong in ("", None, "63", "632 or 633", "six"):
            self.assertFalse(right({"content": wrong}, {"number": 632}))

    def test_sort(self):
        self.assertTrue(evaluate.sort_right({"content": "3, 14, 159"}, {"numbers": [3, 14, 159]}))
        self.assertFalse(evaluate.sort_right({"content": "3, 159, 14"}, {"numbers": [3, 14, 159]}))
        self.assertFalse(evaluate.sort_right({"content": "3, 14"}, {"numbers": [3, 14, 159]}))

    def test_passage(self):
        right = evaluate.passage_right
        self.assertTrue(right({"content": "It is in the kitchen."}, {"answer": "In the kitchen."}))
        self.assertFalse(right({"content": "In the garden."}, {"answer": "In the kitchen."}))
        self.assertFalse(right({"content": "In the kitchen. " + "Or in the garden. " * 5}, {"answer": "In the kitchen."}))

    def test_story(self):
        expect = {"items": ["fox", "well"]}
        self.assertTrue(evaluate.story_right({"content": "The fox sat by the Well."}, expect))
        self.assertFalse(evaluate.story_right({"content": "The foxglove sat by the well."}, expect))

    def test_tool(self):
        call = lambda name, arguments: {"tool_calls": [{"function": {"name": name, "arguments": arguments}}]}
        expect = {"name": "get_tide", "arguments": {"harbour": "Bell", "day": 5}}
        self.assertTrue(evaluate.tool_right(call("get_tide", '{"day": 5.0, "harbour": "Bell"}'), expect))
        for wrong in (call("get_tides", '{"day": 5, "harbour": "Bell"}'), call("get_tide", '{"day": "5", "harbour": "Bell"}'),
                      call("get_tide", '{"harbour": "Bell"}'), call("get_tide", '{"day": 5, "harbour": "Bell", "x": 1}'),
                      call("get_tide", "{"), call("get_tide", "[1]"), {"content": "no call"}, {"tool_calls": None},
                      {"tool_calls": call("get_tide", '{"day": 5, "harbour": "Bell"}')["tool_calls"] * 2}):
            self.assertFalse(evaluate.tool_right(wrong, expect), wrong)

    def test_form(self):
        good = "The old fox sat by the well and sang. " * 6
        self.assertEqual(evaluate.form_faults(good), [])
        for bad in ("A owl. ", "he said an fox. ", "so. then ", "the the ", 'He said "no. '):
            self.assertTrue(evaluate.form_faults(good + bad + "It ended."), bad)

    def test_overlap(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "train.jsonl")
            with open(path, "w") as f:
                f.write(json.dumps({"text": "one two three four five six seven eight nine"}) + "\n")
                f.write(json.dumps({"messages": [{"content": "a b c d e f g h"}, {"content": None}]}) + "\n")
            found = evaluate.overlap(["One two three four five six seven eight x", "a b c d e f g h"], [path])
        self.assertAlmostEqual(found["runs_seen"], 2 / 3)
        self.assertAlmostEqual(found["stories_copied"], 1 / 2)

    def test_whole_evaluation_with_fake_answers(self):
        rng = random.Random(4)
        made = [chat.make(rng, kind, True, held_out=True) for kind in chat.KINDS for _ in range(4)]
        questions = [{"id": f"{e.kind}-{n}", "kind": e.kind, "request": e.prompt(), "expect": e.expect} for n, e in enumerate(made)]
        rows = list(evaluate.requests_of(questions))
        self.assertEqual(len(rows), 2 * len(made))
        self.assertEqual([r["request"].get("reasoning_effort") for r in rows[:2]], [None, "none"])
        answers = {}
        for q, e in zip(questions, made):
            answers[q["id"] + "/think"] = {"message": e.messages[-1], "finish_reason": "tool_calls" if e.kind == "tool" else "stop"}
            answers[q["id"] + "/off"] = {"message": {"content": ""}, "finish_reason": "length"}
        report = evaluate.score(questions, answers)
        for kind in chat.KINDS:
            self.assertEqual([report[kind][m]["right"] for m in evaluate.MODES], [1.0, 0.0], kind)
            self.assertEqual([report[kind][m]["stops"] for m in evaluate.MODES], [1.0, 0.0], kind)
        self.assertLess(report["sum"]["think"]["chance"], 1)
        self.assertIn("| sum | 4 | 100.0 % | 0.0 % |", evaluate.table(report))


class Whole(unittest.TestCase):
    def test_same_bytes_every_time(self):
        """Two processes with different hash seeds write the same files."""
        here = os.path.dirname(os.path.abspath(__file__))
        code = ("import random, json, hashlib, conversations as c, make_data as m\n"
                "r = random.Random(1)\n"
                "rows = [c.make(r, k, r.random() < .6).request for k in c.KINDS for _ in range(40)] + [m.plain(r, k) for k in m.PRETRAIN]\n"
                "rows += m.held_out('tool')[:20]\n"
                "print(hashlib.sha256(json.dumps(rows).encode()).hexdigest())")
        sums = {subprocess.run([sys.executable, "-c", code], cwd=here, env={**os.environ, "PYTHONHASHSEED": seed}, check=True,
                               capture_output=True, text=True).stdout for seed in ("1", "2")}
        self.assertEqual(len(sums), 1)

    def test_make_data_small(self):
        try:
            list(prose.documents())
        except prose.Missing as error:
            self.skipTest(str(error))
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([sys.executable, make_data.__file__, folder, "--scale", "0.002"], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            with open(os.path.join(folder, "sft.jsonl"), encoding="utf-8") as f:
                self.assertTrue(all(json.loads(line)["messages"][-1]["role"] == "assistant" for line in f))
            self.assertEqual(len(os.listdir(os.path.join(folder, "heldout"))), len(chat.KINDS))

    @unittest.skipUnless(os.environ.get("K3"), "K3 does not name the program")
    def test_requests_render(self):
        k3, rng = os.environ["K3"], random.Random(6)
        with tempfile.TemporaryDirectory() as folder:
            sample = os.path.join(folder, "sample.txt")
            examples = [chat.make(rng, kind, rng.random() < 0.6) for kind in chat.KINDS for _ in range(30)]
            with open(sample, "w", encoding="utf-8") as f:
                f.write(make_data.vocabulary_sample([], examples, 1))
            subprocess.run([k3, "tokenizer", "train", sample, "--vocab-size", "1024", "--out", folder, "--quiet"], check=True,
                           capture_output=True)
            for e in examples[::3]:
                done = subprocess.run([k3, "render", "--tokenizer", folder, "--quiet"], input=json.dumps(e.request), capture_output=True, text=True)
                self.assertEqual(done.returncode, 0, done.stderr + json.dumps(e.request))
                self.assertIn(e.messages[-1]["content"], done.stdout)
                self.assertEqual("<|open|>think" in done.stdout, e.thinking)


if __name__ == "__main__":
    unittest.main()
