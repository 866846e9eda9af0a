#!/usr/bin/env python3
"""Fails when a floor of src/ includes a floor that does not lie below it (docs/design.md)."""
import re
import sys
from pathlib import Path

# From the ground up.
FLOORS = ["base", "weights", "kernels", "ops", "model", "text", "engine", "train", "swarm", "serve", "cli"]


def main():
    src = Path(sys.argv[1])
    level = {name: i for i, name in enumerate(FLOORS)}
    faults, files = [], 0
    for path in sorted(src.rglob("*")):
        if path.suffix not in (".h", ".cc"):
            continue
        files += 1
        floor = path.relative_to(src).parts[0]
        if floor not in level:
            faults.append(f"{path}: '{floor}' is not a floor; known: {', '.join(FLOORS)}")
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            match = re.match(r'\s*#include "([^"/]+)/', line)
            if not match:
                continue
            target = match.group(1)
            if target not in level or level[target] > level[floor]:
                faults.append(f"{path}:{number}: {floor}/ may not include {target}/")
    print("\n".join(faults) if faults else f"{files} files: every include points down")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
