#!/usr/bin/env python3
"""No library that libzero.so loads exports a name that LibTorch exports too, nor does libzero.so itself: the loader
would give both the first one's, and the constructors of one would write over the variables of the other.

What LibTorch loads itself (libstdc++ and libc among it) is LibTorch's affair. Weak names of the standard library and
of LibTorch are what templates and inline functions of their headers become in every library that uses them: the same
code, of which the loader may take any copy. The plugin with SentencePiece exports its one function and nothing else.
Usage: symbols_test.py LIBZERO PLUGIN LIBTORCH_LIB_FOLDER
"""
import re
import subprocess
import sys

SAME_CODE = {"std", "__gnu_cxx", "c10", "at", "torch"}
WEAK = "WVu"
SCOPE = re.compile(r"^_Z(?:GV|T[VIST])?[PFv]*Z?N?[VKRO]*(S[tasbiod]|\d+)(\w*)")


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def symbols_of(library):
    """{name: nm's letter} of what a library defines for others."""
    lines = [line.split() for line in run("nm", "-D", "--defined-only", library).splitlines()]
    return {words[-1].split("@")[0]: words[-2] for words in lines}


def loaded_by(library):
    """The files of all libraries that one needs, and those need."""
    return {path for path in re.findall(r"=> (/\S+)", run("ldd", library))}


def scope_of(name):
    """The outermost namespace of a mangled name; None for a name of C."""
    found = SCOPE.match(name)
    if not found:
        return None
    return found[2][: int(found[1])] if found[1].isdigit() else "std"


def main():
    library, plugin, torch_folder = sys.argv[1:]
    torch = [f"{torch_folder}/libtorch_cpu.so", f"{torch_folder}/libc10.so"]
    theirs = {name for part in torch for name in symbols_of(part)}
    if len(theirs) < 10000 or "FLAGS_minloglevel" not in theirs:
        sys.exit(f"{len(theirs)} names in {torch_folder}: is that LibTorch?")
    ours = loaded_by(library) - set().union(*(loaded_by(part) for part in torch))
    problems = []
    for other in sorted(path for path in ours | {library} if not path.startswith(torch_folder)):
        for name, letter in symbols_of(other).items():
            if name in theirs and not (letter in WEAK and scope_of(name) in SAME_CODE):
                problems.append(f"{other}: {name} ({letter}) is LibTorch's too")
    extra = set(symbols_of(plugin)) - {"zero_sentencepiece_model_1"}
    problems += [f"{plugin}: exports {name}" for name in sorted(extra)]
    print("\n".join(problems) or f"{len(ours)} libraries keep apart from LibTorch: {' '.join(sorted(ours))}")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
