"""Chat requests with answers, as `k3 render` takes them, of eight kinds.

    example = make(random.Random(1), "sum", thinking=True)
    example.request   the whole conversation; example.prompt() the same without the last answer
    example.expect    what a right answer holds (see evaluate.py)
"""

import json
import random

import words
from heldout import (difference_withheld, fact_withheld, parameter_withheld, sort_withheld, sum_withheld, talk_withheld,
                     tool_withheld, unknown_withheld)
from items import article
from stories import BOYS, GIRLS, join_names, make_story, pick_items

KINDS = ("story", "sum", "difference", "sort", "passage", "tool", "unknown", "talk")


class Example:
    """messages alternate and end with the assistant's answer."""

    def __init__(self, kind, messages, expect, tools=()):
        self.kind, self.messages, self.expect, self.tools = kind, messages, expect, list(tools)
        self.thinking, self.effort = True, None

    @property
    def request(self):
        found = {"messages": self.messages}
        if self.tools:
            found["tools"] = self.tools
        if not self.thinking:
            found["reasoning_effort"] = "none"
        elif self.effort:
            found["reasoning_effort"] = self.effort
        return found

    def prompt(self):
        return {**self.request, "messages": self.messages[:-1]}


def user(text):
    return {"role": "user", "content": text}


def answer(thought, content, calls=()):
    message = {"role": "assistant", "reasoning_content": thought, "content": content}
    if calls:
        message["tool_calls"] = [{"id": f"call_{i}", "type": "function", "function": {"name": n, "arguments": json.dumps(a)}}
                                 for i, (n, a) in enumerate(calls)]
    return message


def until(make_one, good):
    """The first made thing that is good."""
    while True:
        made = make_one()
        if good(made):
            return made


# Stories -----------------------------------------------------------------------------------------------------------------

STORY_ASKS = """Tell me a story about {}.|Tell me a short story about {}.|Write a story about {}.|Can you tell a story about {}?
Please write a short story with {} in it.|A story about {}, please.|I would like a story about {}.|Make up a story about {}.
Tell me a story with {}.|Could you tell me a little story about {}?|Write a small tale about {}.|Story time! It should be about {}.
Please tell a tale of {}.|Give me a story about {}.""".replace("\n", "|").split("|")


def story(rng, held_out):
    asked = pick_items(rng, held_out)
    told = make_story(rng, asked)
    ask = rng.choice(STORY_ASKS).format(join_names([article(i) for i in asked]))
    thought = f"Items: {', '.join(asked)}. Plot: {told.plot}."
    return Example("story", [user(ask), answer(thought, told.text)], {"items": asked})


# Arithmetic --------------------------------------------------------------------------------------------------------------

COLUMNS = ("ones", "tens", "hundreds")
SUM_ASKS = ("What is {a} + {b}?|{a} + {b} = ?|Add {a} and {b}.|How much is {a} + {b}?|What is {a} plus {b}?|Work out {a} + {b}.|{a} + {b}|"
            "Please add {a} and {b}.|Can you work out {a} + {b}?|What do {a} and {b} make together?|Sum: {a} + {b}").split("|")
DIFFERENCE_ASKS = ("What is {a} - {b}?|{a} - {b} = ?|Take {b} from {a}.|How much is {a} - {b}?|What is {a} minus {b}?|Work out {a} - {b}.|"
                   "{a} - {b}|Please take {b} from {a}.|Can you work out {a} - {b}?|Subtract {b} from {a}.").split("|")


def worked_sum(a, b):
    """Column addition. Each line: the column, its two digits and the carry into it, their two-digit sum, the carry out of it,
    and the digits of the result so far."""
    lines, carry, result = [f"{a:03}+{b:03}"], 0, ""
    for place, column in enumerate(COLUMNS):
        p, q = a // 10 ** place % 10, b // 10 ** place % 10
        total = p + q + carry
        result = str(total % 10) + result
        lines.append(f"{column} {p}+{q}+{carry}={total:02} carry {total // 10}: {result}")
        carry = total // 10
    return "\n".join(lines + [f"so {a + b}"])


def worked_difference(a, b):
    """Column subtraction of b from a >= b, in the same shape."""
    lines, borrow, result = [f"{a:03}-{b:03}"], 0, ""
    for place, column in enumerate(COLUMNS):
        p, q = a // 10 ** place % 10, b // 10 ** place % 10
        total = p - q - borrow
        result = str(total % 10) + result
        lines.append(f"{column} {p}-{q}-{borrow}={total % 10} borrow {int(total < 0)}: {result}")
        borrow = int(total < 0)
    return "\n".join(lines + [f"so {a - b}"])


def operand(rng, held_out):
    digits = 3 if held_out or rng.random() < 0.9 else rng.choice((1, 2))
    return rng.randrange(10 ** (digits - 1), 10 ** digits)


def operands(rng, rule, held_out=False, ordered=False):
    def pair():
        a, b = operand(rng, held_out), operand(rng, held_out)
        return (max(a, b), min(a, b)) if ordered else (a, b)
    return until(pair, lambda p: rule(*p) == held_out)


def sum_(rng, held_out):
    a, b = operands(rng, sum_withheld, held_out)
    return Example("sum", [user(rng.choice(SUM_ASKS).format(a=a, b=b)), answer(worked_sum(a, b), str(a + b))], {"number": a + b})


def difference(rng, held_out):
    a, b = operands(rng, difference_withheld, held_out, ordered=True)
    return Example("difference", [user(rng.choice(DIFFERENCE_ASKS).format(a=a, b=b)), answer(worked_difference(a, b), str(a - b))],
                   {"number": a - b})


SORT_ASKS = ("Sort these numbers: {}.|Sort {}.|Put these numbers in order: {}.|Sort from small to large: {}.|Order these numbers: {}.|"
             "Please sort {}.|Arrange {} from smallest to largest.").split("|")


def worked_sort(numbers):
    """The smallest of what is left, and what is left after it, line by line."""
    lines, left = ["sort " + " ".join(map(str, numbers))], list(numbers)
    while left:
        least = min(left)
        left.remove(least)
        lines.append(f"{least} left {' '.join(map(str, left)) or 'none'}")
    return "\n".join(lines)


def sort(rng, held_out):
    def numbers():
        top = rng.choice((10, 100, 100, 100, 100, 1000))
        return rng.sample(range(1, top), rng.randrange(3, 7))
    chosen = until(numbers, lambda n: sort_withheld(n) == held_out)
    text = ", ".join(map(str, chosen))
    return Example("sort", [user(rng.choice(SORT_ASKS).format(text)), answer(worked_sort(chosen), ", ".join(map(str, sorted(chosen))))],
                   {"numbers": sorted(chosen)})


# Questions on a passage --------------------------------------------------------------------------------------------------

def fact(rng, name):
    """(key words, sentence, [(question, answer)], [question on the same subject that the sentence does not answer])"""
    kind = rng.randrange(7)
    if kind in (0, 1):
        thing, (place, prep) = rng.choice(words.OBJECTS), rng.choice(words.LOCATIONS).split(":")
        return ((name, thing, place), f"{name} {rng.choice(('put', 'left', 'hid'))} the {thing} {prep} the {place}.",
                [(f"Where is the {thing}?", f"{prep.capitalize()} the {place}."), (f"What is {prep} the {place}?", f"The {thing}.")])
    if kind == 2:
        thing, colour = rng.choice(words.OBJECTS), rng.choice(words.COLOURS)
        return ((name, thing, colour), f"{name} has {article(colour)} {thing}.",
                [(f"What colour is the {thing} of {name}?", f"{colour.capitalize()}."), (f"Who has the {colour} {thing}?", f"{name}."),
                 (f"What does {name} have?", f"{article(colour).capitalize()} {thing}.")])
    if kind == 3:
        food = rng.choice(words.FOODS)
        return ((name, "likes", food), f"{name} likes {food}.",
                [(f"What does {name} like?", f"{food.capitalize()}."), (f"Who likes {food}?", f"{name}.")])
    if kind == 4:
        town = rng.choice(words.TOWNS)
        return ((name, "lives", town), f"{name} lives in {town}.",
                [(f"Where does {name} live?", f"In {town}."), (f"Who lives in {town}?", f"{name}.")])
    if kind == 5:
        many, things = rng.randrange(2, 100), rng.choice(words.PLURALS)
        return ((name, things, str(many)), f"{name} has {many} {things}.",
                [(f"How many {things} does {name} have?", f"{many}."), (f"Who has {many} {things}?", f"{name}.")])
    job = rng.choice(words.JOBS)
    return ((name, "job", job), f"{name} is {article(job)}.",
            [(f"What is the job of {name}?", f"{article(job).capitalize()}."), (f"Who is the {job}?", f"{name}.")])


def make_passage(rng, held_out):
    """(sentences, facts): two to four facts of different people, no word of one in another; the first is the one asked for."""
    facts, used = [], set()
    for name in rng.sample(BOYS + GIRLS, rng.choice((2, 3, 3, 4))):
        wanted = held_out and not facts
        one = until(lambda: fact(rng, name), lambda f: fact_withheld(*f[0]) == wanted and not used & (set(f[0]) - {"likes", "lives", "job"}))
        facts.append(one)
        used |= set(one[0])
    order = list(facts)
    rng.shuffle(order)
    return " ".join(f[1] for f in order), facts


PASSAGE_ASKS = ("{p} {q}|{p}\n{q}|Read this: {p} {q}|Text: {p}\nQuestion: {q}|Here is a text. {p} Now tell me: {q}|{q} The text says: {p}").split("|")


def passage(rng, held_out):
    text, facts = make_passage(rng, held_out)
    asked = facts[0]
    question, reply = rng.choice(asked[2])
    return Example("passage", [user(rng.choice(PASSAGE_ASKS).format(p=text, q=question)),
                               answer(f'The text says: "{asked[1]}"', reply)], {"answer": reply})


# What it cannot know -----------------------------------------------------------------------------------------------------

def made_up_word(rng, syllables=None):
    parts = []
    for _ in range(syllables or rng.choice((1, 2, 2, 2, 3))):
        parts.append(rng.choice(words.ONSETS) + rng.choice(words.NUCLEI))
    return "".join(parts) + rng.choice(words.CODAS)


NOT_SAID = ((lambda n, r: (f"Where does {n} live?", f"where {n} lives")), (lambda n, r: (f"What does {n} like?", f"what {n} likes")),
            (lambda n, r: (f"What is the job of {n}?", f"what the job of {n} is")), (lambda n, r: (f"How old is {n}?", f"how old {n} is")),
            (lambda n, r: (lambda o: (f"Where is the {o}?", f"where the {o} is"))(r.choice(words.OBJECTS))),
            (lambda n, r: (lambda o: (f"Who has the {o}?", f"who has the {o}"))(r.choice(words.OBJECTS))))


def unknown(rng, held_out):
    def question():
        which = rng.choice(("private", "made up", "made up", "not said", "not said"))
        if which == "private":
            ask, what = rng.choice(words.PRIVATE).split("|")
            return ask, what, "Nobody told me that."
        if which == "made up":
            ask, what = rng.choice(words.MADE_UP).split("|")
            fill = {"X": made_up_word(rng).capitalize(), "Y": made_up_word(rng).capitalize(), "x": made_up_word(rng)}
            name = f"{fill['X']} {fill['Y']}" if "{Y}" in ask else fill["X"] if "{X}" in ask else fill["x"]
            return ask.format(**fill), what.format(**fill), f"I have never heard of {name}."
        text, facts = make_passage(rng, held_out)
        ask, what = rng.choice(NOT_SAID)(facts[0][0][0], rng)
        subject = ask.rstrip("?").split()[-1]
        known = {q for f in facts for q, _ in f[2]}
        if ask in known or (ask.startswith(("Where is the", "Who has the")) and subject in text):
            return None
        return rng.choice(PASSAGE_ASKS).format(p=text, q=ask), what, f"The text does not say {what}."
    ask, what, thought = until(question, lambda q: q and unknown_withheld(q[1]) == held_out)
    return Example("unknown", [user(ask), answer(thought, f"I do not know {what}.")], {"contains": "do not know"})


# Small talk and small facts ----------------------------------------------------------------------------------------------

def talk(rng, held_out):
    if rng.random() < 0.4:  # facts are few: all of them are in training, so only the wording is new
        ask, pairs = rng.choice(sorted(words.FACTS.items()))
        key, value = rng.choice(pairs.split(";")).split()
        prefix = rng.choice(("", "", "Tell me: ", "Do you know? ", "Quick question. ", "A question: ", "Please answer. ", "Say: "))
        text = prefix + ask.format(key)
        if talk_withheld(text) != held_out:
            return talk(rng, held_out)
        return Example("talk", [user(text), answer("This I know.", f"{value.capitalize()}.")], {"contains": value.lower()})
    asks, reply, key = rng.choice(words.TALK).split("|")
    text = rng.choice(asks.split(";"))
    prefix = rng.choice(("", "", "", "Hello! ", "Hi, k3. ", "Well. ", "One more thing. ", "Okay. ", "So. ", "Hm. "))
    text = prefix + text
    if talk_withheld(text) != held_out:
        return talk(rng, held_out)
    return Example("talk", [user(text), answer("Small talk.", reply)], {"contains": key})


# Tools -------------------------------------------------------------------------------------------------------------------

def spell(rng, parts):
    """One of the ways to write a name of several words."""
    style = rng.choice(("snake", "snake", "snake", "camel", "kebab"))
    if style == "camel":
        return parts[0] + "".join(p.capitalize() for p in parts[1:])
    return ("_" if style == "snake" else "-").join(parts)


def value_of(rng, kind):
    if kind == "number":
        return rng.randrange(1, rng.choice((10, 100, 1000)))
    style = rng.random()
    if style < 0.35:
        return rng.choice(words.VALUE_WORDS)
    if style < 0.5:
        return rng.choice(BOYS + GIRLS)
    if style < 0.85:
        return made_up_word(rng, rng.choice((2, 2, 3))).capitalize()
    return f"{rng.choice(words.VALUE_WORDS)} {made_up_word(rng).capitalize()}"


def declaration(tool):
    """The JSON that a client would send."""
    properties = {p["name"]: {"type": p["kind"], **({"description": f"The {p['word']}."} if p["described"] else {})}
                  for p in tool.parameters}
    return {"type": "function", "function": {"name": tool.name, "description": tool.description, "parameters": {
        "type": "object", "properties": properties, "required": sorted(properties)}}}


class Tool:
    """A declared function about one topic with one to three parameters."""

    def __init__(self, rng, held_out):
        topic = lambda: made_up_word(rng, 2) if rng.random() < 0.2 else rng.choice(words.TOPICS)
        self.topic = until(topic, lambda t: tool_withheld(t) == held_out)
        verb = rng.choice(words.VERBS).split("_")
        shape = rng.random()
        self.name = self.topic if shape < 0.1 else spell(rng, [self.topic, rng.choice(("lookup", "info", "finder"))]) if shape < 0.25 \
            else spell(rng, verb + [self.topic])
        self.parameters = []
        for _ in range(rng.choice((1, 1, 1, 1, 2, 2, 3))):
            bare = lambda: made_up_word(rng, 2) if rng.random() < 0.2 else rng.choice(words.PARAMETERS)
            word = until(bare, lambda w: parameter_withheld(w) == held_out and w != self.topic
                         and w not in [p["word"] for p in self.parameters])
            affix = rng.random()
            name = word if affix < 0.7 else spell(rng, [word, rng.choice(("name", "id", "value"))]) if affix < 0.85 \
                else spell(rng, [rng.choice(("target", "my", "the", "input")), word])
            kind = "number" if word in words.NUMBER_PARAMETERS or rng.random() < 0.1 else "string"
            self.parameters.append({"word": word, "name": name, "kind": kind, "described": rng.random() < 0.4})
        self.parameters.sort(key=lambda p: p["name"])  # as K3's rendering sorts the declared ones
        self.description = rng.choice(("Gives the {}.", "Get the {}.", "Finds the {}.", "The {}.", "Looks up the {}.")).format(self.topic)

    def declaration(self):
        return declaration(self)

    def request(self, rng):
        """(what the user says, the arguments)"""
        arguments = {p["name"]: value_of(rng, p["kind"]) for p in self.parameters}
        order = list(self.parameters)
        if rng.random() < 0.3:
            rng.shuffle(order)
        pairs = [(p["word"], arguments[p["name"]]) for p in order]
        if len(pairs) == 1 and rng.random() < 0.4:
            value = pairs[0][1]
            return rng.choice(("What is the {t} for {v}?", "Give me the {t} for {v}.", "{t} for {v}, please.", "I need the {t} of {v}.",
                               "Find the {t} of {v}.", "Can you tell me the {t} for {v}?")).format(t=self.topic, v=value), arguments
        join = lambda texts: texts[0] if len(texts) == 1 else ", ".join(texts[:-1]) + " and " + texts[-1]
        shape = rng.randrange(4)
        if shape == 0:
            return f"What is the {self.topic}? " + "The " + join([f"{w} is {v}" for w, v in pairs]) + ".", arguments
        if shape == 1:
            return f"Please find the {self.topic} for {join([f'{w} {v}' for w, v in pairs])}.", arguments
        if shape == 2:
            return f"I want to know the {self.topic}: {', '.join(f'{w} {v}' for w, v in pairs)}.", arguments
        return f"Use {join([f'{w} {v}' for w, v in pairs])} and tell me the {self.topic}.", arguments


COMMON = (  # tools as one meets them: (names, parameter names of each value, description, what is asked, kinds of the values)
    ("get_weather weather weather_now current_weather", "city town place location", "The weather in a city.",
     "What is the weather in {0}?|How is the weather in {0}?|Will it rain in {0}?", ("string",)),
    ("calculator calculate compute calc", "expression formula sum", "Works out a sum.",
     "What is {0}?|Calculate {0}.|Work out {0}.|How much is {0}?", ("sum",)),
    ("find_word dictionary define explain_word", "word term entry", "Explains a word.",
     "What does {0} mean?|Look up {0}.|Explain the word {0}.", ("string",)),
    ("set_timer timer start_timer countdown", "minutes time duration", "Starts a timer.",
     "Set a timer for {0} minutes.|Wake me in {0} minutes.|Start a timer of {0} minutes.", ("number",)),
    ("web_search find_page search_engine browse", "query text topic", "Searches the web.",
     "Search for {0}.|Find something about {0}.|Look for {0} on the web.", ("string",)),
    ("send_message message send_text write_to", "to recipient receiver|text body content", "Sends a message.",
     "Send {0} the message {1}.|Tell {0}: {1}.|Write {1} to {0}.", ("string", "string")),
    ("translate translator translation", "text phrase sentence|language into tongue", "Translates a text.",
     "Translate {0} into {1}.|How do you say {0} in {1}?", ("string", "string")),
    ("play_song play music_player jukebox", "song title track", "Plays a song.",
     "Play {0}.|I want to hear {0}.|Please play the song {0}.", ("string",)),
    ("book_table reserve_table reserve", "place restaurant inn|people guests seats", "Books a table.",
     "Book a table at {0} for {1}.|A table for {1} at {0}, please.", ("string", "number")),
    ("add_note save_note write_down remember", "text content remark", "Saves a note.",
     "Note this: {0}.|Save the note {0}.|Write down {0}.", ("string",)),
)


def seen_common():
    """COMMON without the names and parameters that the rules withhold."""
    found = []
    for names, parameters, *rest in COMMON:
        names = [n for n in names.split() if not tool_withheld(n)]
        groups = [[p for p in group.split() if not parameter_withheld(p)] for group in parameters.split("|")]
        if names and all(groups):
            found.append((names, groups, *rest))
    return found


SEEN_COMMON = seen_common()


class CommonTool:
    def __init__(self, rng):
        names, groups, self.description, self.asks, self.kinds = rng.choice(SEEN_COMMON)
        self.name, self.topic = rng.choice(names), "answer"
        self.parameters = [{"name": rng.choice(group), "kind": "string" if kind == "sum" else kind, "described": False}
                           for group, kind in zip(groups, self.kinds)]

    def declaration(self):
        return declaration(self)

    def request(self, rng):
        values = []
        for kind in self.kinds:
            if kind == "sum":
                sign = rng.choice("+-*")
                rule = {"+": sum_withheld, "-": difference_withheld, "*": lambda *_: False}[sign]
                a, b = operands(rng, rule, ordered=True)
                values.append(f"{a} {sign} {b}")
            else:
                values.append(value_of(rng, kind))
        pairs = sorted((p["name"], v) for p, v in zip(self.parameters, values))
        return rng.choice(self.asks.split("|")).format(*values), dict(pairs)


def result_of(rng, tool, arguments):
    """(the tool's result, what follows from it, the answer)"""
    if isinstance(tool, CommonTool):
        value = str(eval_sum(next(iter(arguments.values())))) if tool.kinds == ("sum",) else rng.choice(("done", *words.RESULT_WORDS))
    else:
        value = rng.choice(words.RESULT_WORDS) if rng.random() < 0.5 else str(rng.randrange(1, 1000)) if rng.random() < 0.6 \
            else made_up_word(rng).capitalize()
    content = value if rng.random() < 0.4 else json.dumps({rng.choice(("result", tool.topic)): value})
    return content, f"The tool says {value}.", f"The {tool.topic} is {value}."


def eval_sum(text):
    a, sign, b = text.split()
    return int(a) + int(b) if sign == "+" else int(a) - int(b) if sign == "-" else int(a) * int(b)


def tool(rng, held_out):
    count = rng.choice((1, 1, 1, 1, 2, 2, 2, 2, 3))
    tools = []
    while len(tools) < count:
        one = CommonTool(rng) if not held_out and rng.random() < 0.2 else Tool(rng, held_out)
        if all(one.name != t.name and (one.topic != t.topic or one.description != t.description) for t in tools):
            tools.append(one)
    chosen = rng.choice(tools)
    declared = [t.declaration() for t in tools]
    if not held_out and rng.random() < 0.08:
        spare = rng.choice((talk, sum_))(rng, False)
        if spare.kind == "talk" or not any(isinstance(t, CommonTool) for t in tools):
            return Example("tool", spare.messages, spare.expect, declared)
    ask, arguments = chosen.request(rng)
    said = ", ".join(f"{k} {v}" for k, v in arguments.items())
    messages = [user(ask), answer(f"I call {chosen.name} with {said}.", "", [(chosen.name, arguments)])]
    expect = {"name": chosen.name, "arguments": arguments}
    if not held_out and rng.random() < 0.35:
        content, thought, reply = result_of(rng, chosen, arguments)
        messages += [{"role": "tool", "tool_call_id": "call_0", "content": content}, answer(thought, reply)]
        expect = {"contains": reply.split(" is ", 1)[1].rstrip(".")}
    return Example("tool", messages, expect, declared)


# All together ------------------------------------------------------------------------------------------------------------

MAKERS = {"story": story, "sum": sum_, "difference": difference, "sort": sort, "passage": passage, "tool": tool, "unknown": unknown,
          "talk": talk}


def make(rng, kind, thinking=True, held_out=False):
    """One conversation. Without thinking the answers have no reasoning at all."""
    made = MAKERS[kind](rng, held_out)
    if not held_out and kind not in ("tool", "story") and rng.random() < 0.1:
        second = MAKERS[rng.choice(("sum", "passage", "talk", "sort", "unknown"))](rng, False)
        made.messages += second.messages
        made.expect = second.expect
    made.thinking = thinking
    if not thinking:
        for message in made.messages:
            message.pop("reasoning_content", None)
    elif rng.random() < 0.15 and not held_out:
        made.effort = rng.choice(("low", "high"))
    return made


if __name__ == "__main__":
    import sys
    rng = random.Random(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
    for kind in KINDS:
        for thinking in (True, False):
            print(kind, json.dumps(make(rng, kind, thinking).request, indent=None)[:1200], "\n")
