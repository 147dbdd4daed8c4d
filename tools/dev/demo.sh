# ./dev demo [TEXT...]: from real text to a trained GPT-2, in runs/demo. Sourced by ./dev.
# runs/demo/data is made before anything else there and names what it was made from; a run of other text is moved aside.

RUN=$ROOT/runs/demo
CONFIG=configs/gpt2-demo.json
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

# What the data is made from: every file's path, size and time.
fingerprint() {
  find -L "$@" -type f -printf '%p %s %T@\n' 2>/dev/null | LC_ALL=C sort | sha256sum | cut -c1-16
}

# Moves an existing run aside, never over another.
set_aside() {
  local number=1
  while [ -e "$RUN-$number" ]; do number=$((number + 1)); done
  mv "$RUN" "$RUN-$number"
  say "kept the earlier run as runs/demo-$number"
}

# Makes runs/demo/data from TEXTS. A text that cannot be used stops here, before anything in runs is touched.
prepare_data() {
  local key made options=()
  key=$(fingerprint "${TEXTS[@]}")
  if [ "$(cat "$RUN/data/made-from" 2>/dev/null)" = "$key" ]; then
    say "reusing the tokens in runs/demo/data"
    return
  fi
  made=$ROOT/.cache/demo-data
  say "making runs/demo/data"
  rm -rf "$made"
  mkdir -p "$made/tokenizer" "$ROOT/runs"
  cp "$ROOT/.cache/gpt2/vocab.json" "$ROOT/.cache/gpt2/merges.txt" "$made/tokenizer/"
  [ "$DEFAULT_TEXT" = no ] || options=(--extensions .txt)
  "$ZERO" tokenize "${TEXTS[@]}" --tokenizer "$made/tokenizer" --out "$made/train.tokens" \
    --held-out "$made/eval.tokens" --held-out-fraction 0.01 "${options[@]+"${options[@]}"}" || exit 1
  echo "$key" >"$made/made-from"
  [ ! -e "$RUN" ] || set_aside
  mkdir -p "$RUN"
  mv "$made" "$RUN/data"
}

# Trains, goes on with an interrupted training, or leaves a finished one; another configuration starts anew.
train() {
  local config
  config=$(sha256sum <"$CONFIG")
  if [ -e "$RUN/trained-by" ] && [ "$(cat "$RUN/trained-by")" != "$config" ]; then
    say "$CONFIG has changed since runs/demo was trained"
    cp -a "$RUN/data" "$ROOT/.cache/demo-data"
    set_aside
    mkdir "$RUN"
    mv "$ROOT/.cache/demo-data" "$RUN/data"
  fi
  if [ -e "$RUN/trained" ]; then
    say "reusing the trained model in runs/demo"
    return
  fi
  [ ! -e "$RUN/checkpoints" ] || say "going on from the newest checkpoint in runs/demo, if there is one"
  echo "$config" >"$RUN/trained-by"
  "$ZERO" train $CONFIG --ranks 2 --run-dir runs/demo --resume auto
  touch "$RUN/trained"
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
  need_vocabulary
  if [ $# = 0 ]; then
    DEFAULT_TEXT=yes
    need_kernel_documentation
  fi
  prepare_data
  cd "$ROOT"
  train
  "$ZERO" eval runs/demo --data runs/demo/data/eval.tokens
  "$ZERO" generate runs/demo --prompt "The kernel" --tokens 60 --seed 1
  say "all of it is in runs/demo; to start anew: rm -r runs/demo"
}
