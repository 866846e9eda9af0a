"""The withheld rules: what never appears in training data and only is asked of the finished model.

All rules are a CRC-32 of a canonical key, so that every program (and every language) can repeat them.
"""

import re
import zlib

SHARE = 30  # per cent of the keys that are withheld


def withheld(key):
    """True for about SHARE per cent of all keys, always the same ones."""
    return zlib.crc32(key.encode("utf-8")) % 100 < SHARE


def sum_withheld(a, b):
    """Sums: either order of the operands counts as one pair. One-digit pairs are the addition table: all seen."""
    low, high = sorted((a, b))
    return high > 9 and withheld(f"{low}+{high}")


def difference_withheld(a, b):
    """Differences a - b; those of two one-digit numbers are all seen."""
    return max(a, b) > 9 and withheld(f"{a}-{b}")


def sort_withheld(numbers):
    return withheld("sort " + " ".join(str(n) for n in sorted(numbers)))


def items_withheld(one, two):
    """Story items: is this pair one that training never combines?"""
    low, high = sorted((one, two))
    return withheld(f"items {low} {high}")


def fact_withheld(*words):
    """The asked fact of a passage, as its words (who, what, where)."""
    return withheld("fact " + " ".join(words))


def words_of(name):
    """fetchTideLevel, fetch_tide_level and fetch-tide-level are all ('fetch', 'tide', 'level')."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name)
    return tuple(w.lower() for w in re.split(r"[^A-Za-z]+", spaced) if w)


# Words that may stand in any tool's or parameter's name; the other words decide.
TOOL_VERBS = frozenset("get find look fetch show check read search list give tell ask load query pull see up lookup info finder "
                       "tool service api".split())
PARAMETER_AFFIXES = frozenset("name id the target my value of input".split())


def tool_withheld(name):
    """A tool is withheld when a word of its name besides the verb is."""
    return any(withheld("tool " + w) for w in words_of(name) if w not in TOOL_VERBS)


def parameter_withheld(name):
    return any(withheld("parameter " + w) for w in words_of(name) if w not in PARAMETER_AFFIXES)


def unknown_withheld(subject):
    return withheld("unknown " + subject)


def talk_withheld(text):
    return withheld("talk " + text)
