"""The documentation as a site: lays out the sources of MkDocs from the repository's own files, with a page for each public header.

usage: site.py REPOSITORY OUT   writes OUT/mkdocs.yml and OUT/pages; `mkdocs build --strict` does the rest, and fails on a broken link
"""
import json
import os
import re
import shutil
import sys

# (title, path) in the order of a reader.
NAVIGATION = [
    ("Home", "README.md"),
    ("Tutorial", ["docs/tutorial/1-first-run.md", "docs/tutorial/2-configuration.md", "docs/tutorial/3-your-module.md",
                  "docs/tutorial/4-memory.md", "docs/tutorial/5-parallel.md"]),
    ("How to", ["docs/training.md", "docs/models.md", "docs/tiers.md", "docs/tensor_parallel.md", "docs/pipeline.md", "docs/hosts.md",
                "docs/precision.md", "docs/zero_redundancy_optimizer.md", "docs/python.md",
                "docs/simulate.md", "docs/cluster.md",
                "docs/cuda.md"]),
    ("Reference", ["docs/configuration.md", "docs/formats.md", "docs/checkpoint_format.md", "HEADERS"]),
    ("Design", ["docs/design.md", "docs/memory_model.md", "docs/performance.md", "bench/results/REPORT.md"]),
    ("Project", ["CONTRIBUTING.md", "CHANGELOG.md"]),
]
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)#\s]+)[^)]*\)|!\[[^\]]*\]\(([^)\s]+)\)")


def header_page(path):
    """A header as a page: what its comment says, then the declarations as they stand."""
    with open(path, encoding="utf-8") as file:
        lines = file.read().splitlines()
    name = "zero/" + os.path.basename(path)
    comment = []
    for line in lines[1:]:
        if not line.startswith("//"):
            break
        comment.append(line[2:].removeprefix(" "))
    text = "\n".join(comment)
    # Code in a comment is indented by two.
    text = re.sub(r"(?m)^  (?=\S)", "    ", text)
    first = re.split(r"(?<=[.:;])\s", " ".join(comment))[0] if comment else ""
    return f"# {name}\n\n{text}\n\n```cpp\n" + "\n".join(lines) + "\n```\n", first.rstrip(":;")


def copy(root, pages, path):
    target = os.path.join(pages, path)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    shutil.copyfile(os.path.join(root, path), target)


def copy_linked(root, pages, page):
    """Files that a page links to and that are no pages: code, figures, data. Links to folders become links to nothing: refused."""
    with open(os.path.join(pages, page), encoding="utf-8") as file:
        text = file.read()
    for match in LINK.finditer(text):
        link = match.group(1) or match.group(2)
        if re.match(r"[a-z]+:", link):
            continue
        path = os.path.normpath(os.path.join(os.path.dirname(page), link))
        source = os.path.join(root, path)
        if os.path.isdir(source):
            listing = "\n".join(f"- [{name}]({name})" for name in sorted(os.listdir(source)) if os.path.isfile(os.path.join(source, name)))
            for name in sorted(os.listdir(source)):
                if os.path.isfile(os.path.join(source, name)):
                    copy(root, pages, os.path.join(path, name))
            with open(os.path.join(pages, path, "index.md"), "w", encoding="utf-8") as file:
                file.write(f"# {path}\n\n{listing}\n")
            text = text.replace(f"]({link})", f"]({link}/index.md)")
        elif os.path.isfile(source) and not os.path.exists(os.path.join(pages, path)):
            copy(root, pages, path)
    with open(os.path.join(pages, page), "w", encoding="utf-8") as file:
        file.write(text)


def main():
    root, out = sys.argv[1], sys.argv[2]
    pages = os.path.join(out, "pages")
    shutil.rmtree(pages, ignore_errors=True)
    navigation, all_pages = [], []
    for title, paths in NAVIGATION:
        if isinstance(paths, str):
            copy(root, pages, paths)
            all_pages.append(paths)
            navigation.append({title: paths})
            continue
        part = []
        for path in paths:
            if path != "HEADERS":
                copy(root, pages, path)
                all_pages.append(path)
                part.append(path)
                continue
            headers, rows = [], []
            for name in sorted(os.listdir(os.path.join(root, "include", "zero"))):
                text, first = header_page(os.path.join(root, "include", "zero", name))
                page = f"reference/{name[:-2]}.md"
                os.makedirs(os.path.join(pages, "reference"), exist_ok=True)
                with open(os.path.join(pages, page), "w", encoding="utf-8") as file:
                    file.write(text)
                headers.append({f"zero/{name}": page})
                rows.append(f"| [zero/{name}]({name[:-2]}.md) | {first.replace('|', chr(92) + '|')} |")
            with open(os.path.join(pages, "reference", "index.md"), "w", encoding="utf-8") as file:
                file.write("# Headers\n\n| header | |\n|---|---|\n" + "\n".join(rows) + "\n")
            part.append({"Headers": ["reference/index.md", *headers]})
        navigation.append({title: part})
    missing = {os.path.join("docs", name) for name in os.listdir(os.path.join(root, "docs")) if name.endswith(".md")} - set(all_pages)
    if missing:
        sys.exit(f"pages that the site's navigation lacks: {', '.join(sorted(missing))}; add them to tools/docs/site.py")
    for page in all_pages:
        copy_linked(root, pages, page)
    config = {
        "site_name": "zero.cpp", "docs_dir": "pages", "site_dir": "site", "use_directory_urls": False, "nav": navigation,
        "theme": {"name": "material", "font": False, "features": ["navigation.sections", "navigation.top", "content.code.copy"],
                  "palette": [{"media": "(prefers-color-scheme: light)", "scheme": "default"},
                              {"media": "(prefers-color-scheme: dark)", "scheme": "slate"}]},
        "markdown_extensions": ["tables", "toc", "pymdownx.superfences", "pymdownx.highlight"],
        "validation": {"links": {"anchors": "warn", "not_found": "warn"}}, "plugins": ["search"],
    }
    with open(os.path.join(out, "mkdocs.yml"), "w", encoding="utf-8") as file:
        json.dump(config, file, indent=1)  # JSON is YAML


main()
