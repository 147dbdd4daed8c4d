# ./dev docs: the documentation as a site. Sourced by ./dev.

DOCS_VENV=$ROOT/.cache/docs
DOCS_WHEELS=(mkdocs==1.6.1 mkdocs-material==9.6.14)

need_docs_tools() {
  [ "$(cat "$DOCS_VENV/.wheels" 2>/dev/null)" != "${DOCS_WHEELS[*]}" ] || return 0
  rm -rf "$DOCS_VENV"
  mkdir -p "$ROOT/.cache"
  "$(find_python)" -m venv "$DOCS_VENV"
  retry "$DOCS_VENV/bin/python" -m pip install --quiet --no-input --disable-pip-version-check --timeout 60 "${DOCS_WHEELS[@]}" >&2 ||
    die "pip could not install MkDocs; see above, then run this again"
  echo "${DOCS_WHEELS[*]}" >"$DOCS_VENV/.wheels"
}

# A broken link is an error.
do_docs() {
  [ $# = 0 ] || die "docs takes no arguments, got: $*"
  local out=$ROOT/build/docs
  need_docs_tools
  mkdir -p "$out"
  python3 "$ROOT/tools/docs/site.py" "$ROOT" "$out" || die "the site's pages could not be laid out, see above"
  # With --quiet warnings would not count, and a broken link is one.
  "$DOCS_VENV/bin/mkdocs" build --strict --clean -f "$out/mkdocs.yml" >"$out/said" 2>&1 ||
    { cat "$out/said" >&2; die "the site could not be built, see above"; }
  say "the site: $out/site/index.html"
}
