"""Public-domain prose out of installed Debian packages; LICENCES.md says which and under what terms.

    python3 prose.py            prints what there is
    documents(max_words)        the cleaned documents, in a fixed order
"""

import bz2
import gzip
import lzma
import os
import re
import struct
import subprocess
import sys
import zlib

AUSTEN = "/usr/lib/R/site-library/janeaustenr/data/Rdata"
SAWYER = "/usr/share/gocode/src/github.com/klauspost/compress/testdata/Mark.Twain-Tom.Sawyer.txt"
BIBLE = "/usr/bin/bible"
BIBLE_DATA = "/usr/lib/bible.data"


class Missing(Exception):
    pass


def need(path, package):
    if not os.path.exists(path):
        raise Missing(f"{path} is missing: install the Debian package {package}")
    return path


# R data ------------------------------------------------------------------------------------------------------------------

def unpacked(data):
    """Whatever of gzip, xz, bzip2, zlib the bytes are packed with, undone."""
    if data[:2] == b"\x1f\x8b":
        return gzip.decompress(data)
    if data[:6] == b"\xfd7zXZ\0":
        return lzma.decompress(data)
    if data[:3] == b"BZh":
        return bz2.decompress(data)
    if data[:1] == b"\x78":
        return zlib.decompress(data)
    return data


class Xdr:
    """Reads R's serialisation (XDR, versions 2 and 3): vectors, lists, pairlists, symbols, attributes."""

    def __init__(self, data):
        if data[:5] in (b"RDX2\n", b"RDX3\n"):
            data = data[5:]
        if data[:2] != b"X\n":
            raise ValueError("not R's XDR serialisation")
        self.data, self.at, self.references = data, 2, []
        version = self.int()
        self.at += 8
        if version == 3:
            native = self.int()  # the length of the encoding's name
            self.at += native

    def int(self):
        value = struct.unpack_from(">i", self.data, self.at)[0]
        self.at += 4
        return value

    def array(self, code, size):
        count = self.int()
        values = list(struct.unpack_from(f">{count}{code}", self.data, self.at))
        self.at += count * size
        return values

    def pairlist(self, flags):
        found, kind = {}, flags & 255
        while kind == 2:
            if flags & 512:
                self.item()
            tag = self.item() if flags & 1024 else len(found)
            found[tag] = self.item()
            flags = self.int()
            kind = flags & 255
        return found

    def item(self):
        flags = self.int()
        kind, attributes = flags & 255, bool(flags & 512)
        if kind in (254, 253, 242, 241, 251):  # NULL, the global and empty environments, a missing argument
            return None
        if kind == 255:
            return self.references[(flags >> 8 or self.int()) - 1]
        if kind == 1:
            self.references.append(self.item())
            return self.references[-1]
        if kind == 2:
            return self.pairlist(flags)
        if kind == 9:
            size = self.int()
            if size < 0:
                return None
            self.at += size
            return self.data[self.at - size:self.at].decode("latin-1" if flags >> 12 & 4 else "utf-8")
        if kind in (10, 13):
            value = self.array("i", 4)
        elif kind == 14:
            value = self.array("d", 8)
        elif kind in (16, 19, 20):
            value = [self.item() for _ in range(self.int())]
        else:
            raise ValueError(f"R type {kind} is not read here")
        if attributes:
            names = (self.item() or {}).get("names")
            if kind == 19 and names:
                value = dict(zip(names, value))
        return value


def lazy_data(stem):
    """The variables of a package's lazy-load database: name -> value."""
    with open(stem + ".rdx", "rb") as f:
        index = Xdr(unpacked(f.read())).item()["variables"]
    with open(stem + ".rdb", "rb") as f:
        database = f.read()
    found = {}
    for name, (offset, length) in sorted(index.items()):
        piece = database[offset:offset + length]
        mark = piece[4:5]  # four bytes of length, then '2' for bzip2, 'Z' for xz; plain zlib has no mark
        body = lzma.decompress(piece[5:]) if mark == b"Z" else unpacked(piece[5:] if mark in b"20" else piece[4:])
        found[name] = Xdr(body).item()
    return found


# Cleaning ----------------------------------------------------------------------------------------------------------------

HEADING = re.compile(r"^\W*(CHAPTER|VOLUME|Chapter|Volume|BOOK|FINIS|THE END|Produced by|End of)\b.*$|^[^a-z]*$")


def paragraphs(lines):
    """Paragraphs of text, one line each, without headings and marks of emphasis."""
    block, found = [], []
    for line in list(lines) + [""]:
        line = line.strip()
        if line:
            block.append(line)
            continue
        if block and not HEADING.match(" ".join(block)):
            text = re.sub(r"\s+", " ", " ".join(block)).replace("_", "")
            text = re.sub(r"(?<=[,;:.!?])--", " ", text).replace("--", ", ").replace(" ,", ",")
            if len(text) > 1 and re.search(r"[.!?\"',;:]$", text):
                found.append(text)
        block = []
    return found


def grouped(parts, max_words, joint="\n"):
    """Documents of whole paragraphs of at most about max_words; a longer paragraph is cut at ends of sentences."""
    document, count = [], 0
    for part in parts:
        for piece in [part] if len(part.split()) <= max_words else re.split(r"(?<=[.!?]) ", part):
            size = len(piece.split())
            if document and count + size > max_words:
                yield joint.join(document)
                document, count = [], 0
            document.append(piece)
            count += size
    if document:
        yield joint.join(document)


def austen():
    for suffix in (".rdx", ".rdb"):
        need(AUSTEN + suffix, "r-cran-janeaustenr")
    return [(name, paragraphs(lines[1:])) for name, lines in lazy_data(AUSTEN).items()]


def sawyer():
    with open(need(SAWYER, "golang-github-klauspost-compress-dev"), encoding="ascii") as f:
        text = f.read()
    return [("tomsawyer", paragraphs(text[text.index("CHAPTER I\n"):text.rindex("End of the Project")].splitlines()))]


def bible():
    need(BIBLE, "bible-kjv")
    need(BIBLE_DATA, "bible-kjv-text")
    out = subprocess.run([BIBLE, "-f", "gen1:1-rev22:21"], stdin=subprocess.DEVNULL, capture_output=True, check=True, text=True)
    chapters = {}
    for line in out.stdout.splitlines():
        match = re.match(r"(\S+?)(\d+):\d+ (.*)", line)
        if match:
            chapters.setdefault((match[1], match[2]), []).append(match[3])
    return [(book + chapter, [re.sub(r"\s+", " ", v).strip() for v in verses]) for (book, chapter), verses in chapters.items()]


def documents(max_words=400):
    """(source, text) of every document."""
    for source, parts in austen() + bible() + sawyer():
        for text in grouped(parts, max_words, " " if source[-1].isdigit() else "\n"):
            if len(text.split()) > 20:
                yield source, text


if __name__ == "__main__":
    try:
        totals = {}
        for name, text in documents():
            key = "bible" if re.search(r"\d$", name) else name
            n, c = totals.get(key, (0, 0))
            totals[key] = (n + 1, c + len(text))
        for key, (n, c) in totals.items():
            print(f"{key:18} {n:5} documents {c:9,} characters")
    except Missing as error:
        sys.exit(f"prose.py: {error}")
