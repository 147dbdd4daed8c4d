"""Runs what the tutorial says: a fenced block of sh is run, one that follows a line "`NAME`:" becomes the file NAME, page after page in
one folder.

usage: run_tutorial.py FOLDER PAGE...   (PATH has zero; ZERO_PREFIX names an installed package)
"""
import os
import re
import subprocess
import sys

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
FILE = re.compile(r"^`([\w.]+)`:\n\n$", re.M)


def blocks(text):
    """(kind, name or None, content) of each fenced block."""
    for match in FENCE.finditer(text):
        named = FILE.search(text[:match.start()][-60:])
        yield match.group(1), named.group(1) if named and text[:match.start()].endswith(named.group(0)) else None, match.group(2)


def main():
    folder, pages = sys.argv[1], sys.argv[2:]
    os.makedirs(folder, exist_ok=True)
    ran = 0
    for page in pages:
        with open(page, encoding="utf-8") as file:
            text = file.read()
        for kind, name, content in blocks(text):
            if name:
                with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                    file.write(content)
            elif kind == "sh":
                done = subprocess.run(["bash", "-euo", "pipefail", "-c", content], cwd=folder, capture_output=True, text=True, timeout=600)
                if done.returncode != 0:
                    sys.exit(f"{page}:\n{content}\nended with {done.returncode}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
                ran += 1
    print(f"{ran} blocks of {len(pages)} pages ran")
    if ran == 0:
        sys.exit("the pages hold no commands")


main()
