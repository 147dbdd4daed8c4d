# ./dev demo [TEXT...]: from real text to a trained model, in runs/demo, by `zero fit`. Sourced by ./dev.
# A finished run of the same text is reused, any other one is moved aside.

RUN=$ROOT/runs/demo
DEMO_MINUTES=4
DOC_PACKAGE=linux-doc-6.1

# The kernel documentation's sources, from the installed package or from its file; sets TEXTS.
need_kernel_documentation() {
  local installed=/usr/share/doc/$DOC_PACKAGE/html/_sources kept=$ROOT/.cache/linux-doc package=$DOC_PACKAGE
  if [ -d "$installed" ]; then TEXTS=("$installed"); return; fi
  TEXTS=("$kept/_sources")
  [ ! -d "$kept" ] || return 0
  local work=$ROOT/.cache/linux-doc.part
  rm -rf "$work"
  mkdir -p "$work"
  command -v apt-get >/dev/null || die "the default text is a Debian package; without apt-get give your own: ./dev demo TEXT..."
  if ! apt-cache show $DOC_PACKAGE >/dev/null 2>&1; then
    package=$(apt-cache depends linux-doc 2>/dev/null | awk '/Depends:/ {print $2; exit}')
    [ -n "$package" ] ||
      die "apt knows no $DOC_PACKAGE; run apt-get update as root, or give your own text: ./dev demo TEXT..."
  fi
  need_space "$ROOT" 300 "the text"
  say "fetching the kernel documentation ($package, 37 MB)"
  (cd "$work" && retry apt-get -q download "$package" >&2) ||
    die "apt-get could not download $package; see above, or give your own text: ./dev demo TEXT..."
  dpkg-deb --fsys-tarfile "$work"/*.deb | tar -x -C "$work" --wildcards --strip-components=6 './usr/share/doc/*/html/_sources/*' ||
    die "$package holds no html/_sources; give your own text: ./dev demo TEXT..."
  rm "$work"/*.deb
  mv "$work" "$kept"
}

# What the model is made from: every file's path, size and time.
fingerprint() {
  find -L "$@" -type f -printf '%p %s %T@\n' 2>/dev/null | LC_ALL=C sort | sha256sum | cut -c1-16
}

# Moves an existing run aside, never over another; sets ASIDE.
set_aside() {
  local number=1
  while [ -e "$RUN-$number" ]; do number=$((number + 1)); done
  ASIDE=$RUN-$number
  mv "$RUN" "$ASIDE"
}

# Trains on TEXTS. A text that cannot be used leaves what was in runs/demo there.
fit() {
  local options=()
  ASIDE=
  [ "$DEFAULT_TEXT" = no ] || options=(--extensions .txt)
  [ ! -e "$RUN" ] || set_aside
  if ! "$ZERO" fit "${TEXTS[@]}" --minutes $DEMO_MINUTES --ranks 2 --out runs/demo "${options[@]+"${options[@]}"}"; then
    [ -e "$RUN" ] || [ -z "$ASIDE" ] || mv "$ASIDE" "$RUN"
    exit 1
  fi
  fingerprint "${TEXTS[@]}" >"$RUN/made-from"
  [ -z "$ASIDE" ] || say "kept the earlier run as ${ASIDE#"$ROOT/"}"
}

do_demo() {
  local text
  TEXTS=()
  for text; do
    [ -s "$text" ] || die "$text: no such file or folder, or empty; give text files or folders of them"
    TEXTS+=("$(realpath -- "$text")")
  done
  DEFAULT_TEXT=no
  set_up
  build zero_tool
  ZERO=$ROOT/build/$PRESET/zero
  if [ $# = 0 ]; then
    DEFAULT_TEXT=yes
    need_kernel_documentation
  fi
  cd "$ROOT"
  if [ "$(cat "$RUN/made-from" 2>/dev/null)" = "$(fingerprint "${TEXTS[@]}")" ]; then
    say "reusing the trained model in runs/demo"
  else
    fit
  fi
  "$ZERO" generate runs/demo --prompt "The kernel" --tokens 80 --temperature 0.8 --seed 1
  say "all of it is in runs/demo; to start anew: rm -r runs/demo"
}
