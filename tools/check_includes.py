#!/usr/bin/env python3
"""Checks that a folder of src/ includes only what it may: public headers, its own, and the folders it USES.

The folders, their TORCH mark and their USES are read from the zero_folder() lines of CMakeLists.txt. Also checked:
folders without TORCH reach no torch header (not through a public header either), no folder includes the public header
of a folder that is built on it, public headers include only public headers, examples only public headers, zero/zero.h
leads to all of them, the headers of Gloo and NCCL stay in their transports, and no two files of a folder keep a name of
their own that is the same. Usage: check_includes.py [REPOSITORY]
"""
import re
import sys
from pathlib import Path

TORCH = ("torch/", "ATen/", "c10/", "caffe2/")
# Headers of the transports' libraries, and the only folder each may be used in.
TRANSPORTS = {"gloo/": "src/mesh/gloo/", "nccl.h": "src/mesh/nccl/"}
# Public headers that stand beside a folder's others but that every folder may use: shapes only.
SHARED_HEADERS = {"zero/gpt2_shape.h", "zero/gpt_neox_shape.h", "zero/llama_shape.h", "zero/model_shape.h"}
# What a file keeps to itself: types, constants and variables of its unnamed namespace.
UNNAMED = re.compile(r"^namespace \{\n(.*?)^\}  // namespace$", re.MULTILINE | re.DOTALL)
OWN_NAME = re.compile(r"^(?:class|struct|enum class) (\w+)[^;(]*\{|^(?:static |inline )*constexpr [\w:<>, ]+? (k\w+)\b"
                      r"|^(?:thread_local|const|static) [^()\n]*?\b(\w+)(?: = |\{|;)", re.MULTILINE)
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)


def folders_of(cmake):
    """{folder: (uses torch, [folders it uses])} in the order of the file."""
    folders = {}
    for arguments in re.findall(r"^zero_folder\(([^)]*)\)", cmake, re.MULTILINE):
        words = arguments.split()
        uses, reading = [], False
        for word in words[1:]:
            if word in ("USES", "LIBS", "TORCH"):
                reading = word == "USES"
            elif reading:
                uses.append(word)
        folders[words[0]] = ("TORCH" in words, uses)
    return folders


def built_on(folder, folders):
    """All folders below this one."""
    below, todo = set(), list(folders[folder][1])
    while todo:
        name = todo.pop()
        if name not in below:
            below.add(name)
            todo += folders[name][1]
    return below


class Checker:
    def __init__(self, root):
        self.root = root
        self.folders = folders_of((root / "CMakeLists.txt").read_text())
        self.below = {name: built_on(name, self.folders) for name in self.folders}
        self.problems = []

    def includes(self, path):
        """(line, name, quoted) of each include."""
        text = path.read_text(encoding="utf-8")
        return [(text.count("\n", 0, m.start(2)) + 1, m.group(2), m.group(1) == '"') for m in INCLUDE.finditer(text)]

    def owner(self, header):
        """The folder whose source implements a public header (zero/plan.h by src/plan/plan.cpp), or None."""
        stem = Path(header).stem
        for name in self.folders:
            if (self.root / "src" / name / f"{stem}.cpp").exists():
                return name
        return None

    def torch_chain(self, header, seen=()):
        """Why a public header needs torch: the chain of includes, or None."""
        path = self.root / "include" / header
        if header in seen or not path.exists():
            return None
        for _, name, _ in self.includes(path):
            if name.startswith(TORCH):
                return [header, name]
            chain = self.torch_chain(name, (*seen, header)) if name.startswith("zero/") else None
            if chain:
                return [header, *chain]
        return None

    def report(self, path, line, problem):
        self.problems.append(f"{path.relative_to(self.root)}:{line}: {problem}")

    def check_folder(self, folder):
        torch, uses = self.folders[folder]
        for path in sorted((self.root / "src" / folder).rglob("*")):
            if path.suffix not in (".cpp", ".h", ".cu"):
                continue
            relative = str(path.relative_to(self.root))
            for line, name, quoted in self.includes(path):
                if name.startswith(TORCH) and not torch:
                    self.report(path, line, f"src/{folder} is built without torch but includes {name}")
                for prefix, place in TRANSPORTS.items():
                    if name.startswith(prefix) and not relative.startswith(place):
                        self.report(path, line, f"{name} belongs into {place} alone")
                if name.startswith("zero/"):
                    self.check_public(path, line, folder, name)
                elif quoted:
                    self.check_private(path, line, folder, uses, name)

    def check_own_names(self, folder):
        """Files are compiled several at a time, where unnamed namespaces become one."""
        first = {}
        for path in sorted((self.root / "src" / folder).rglob("*.cpp")):
            text = path.read_text(encoding="utf-8")
            for unnamed in UNNAMED.finditer(text):
                around = re.findall(r"^namespace ([\w:]+) \{", text[:unnamed.start()], re.MULTILINE)[-1:]
                for found in OWN_NAME.finditer(unnamed[1]):
                    name = next(filter(None, found.groups()))
                    other = first.setdefault((*around, name), path)
                    if other != path:
                        line = text.count("\n", 0, unnamed.start(1) + found.start()) + 1
                        self.report(path, line, f"{name} is {other.relative_to(self.root)}'s, too: give it another name")

    def check_public(self, path, line, folder, header):
        if not (self.root / "include" / header).exists():
            return self.report(path, line, f"there is no public header {header}")
        chain = None if self.folders[folder][0] else self.torch_chain(header)
        if chain:
            self.report(path, line, f"src/{folder} is built without torch: {' -> '.join(chain)}")
        owner = self.owner(header)
        if owner and folder in self.below[owner] and header not in SHARED_HEADERS:
            self.report(path, line, f"{header} is src/{owner}'s, which is built on src/{folder}")
        if folder == "models" and owner in ("plan", "engine") and header not in SHARED_HEADERS:
            self.report(path, line, f"a model knows nothing of src/{owner}, but includes {header}")

    def check_private(self, path, line, folder, uses, name):
        if (path.parent / name).exists():
            target = (path.parent / name).resolve()
        elif (self.root / "src" / name).exists():
            target = (self.root / "src" / name).resolve()
        else:
            return  # a library's header in quotes; the compiler knows
        other = target.relative_to((self.root / "src").resolve()).parts[0]
        if other != folder and other not in uses:
            allowed = ", ".join([folder, *uses])
            self.report(path, line, f"src/{folder} may include src/ folders {allowed}; {name} is src/{other}'s")

    def check_public_only(self, place, rule):
        for path in sorted((self.root / place).rglob("*.h")) + sorted((self.root / place).rglob("*.cpp")):
            for line, name, quoted in self.includes(path):
                if (quoted and not name.startswith("zero/")) or name.split("/")[0] in self.folders:
                    self.report(path, line, f"{rule}, not {name}")

    def check_umbrella(self):
        """zero/zero.h leads to every public header: a header that no user needs belongs into src/."""
        reached, todo = set(), ["zero/zero.h"]
        while todo:
            header = todo.pop()
            if header not in reached and (self.root / "include" / header).exists():
                reached.add(header)
                todo += [name for _, name, _ in self.includes(self.root / "include" / header)]
        for path in sorted((self.root / "include").rglob("*.h")):
            if str(path.relative_to(self.root / "include")) not in reached:
                self.report(path, 1, "zero/zero.h does not lead to this public header")

    def check(self):
        for folder in self.folders:
            if folder in self.below[folder]:
                self.problems.append(f"CMakeLists.txt: src/{folder} is built on itself")
            self.check_folder(folder)
            self.check_own_names(folder)
        self.check_public_only("include", "public headers include only public headers")
        self.check_public_only("examples", "examples use only public headers")
        self.check_umbrella()
        return self.problems


def main():
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent).resolve()
    checker = Checker(root)
    if not checker.folders:
        sys.exit("check_includes: no zero_folder() line in CMakeLists.txt")
    problems = checker.check()
    print("\n".join(problems) if problems else f"include rule kept by {len(checker.folders)} folders")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
