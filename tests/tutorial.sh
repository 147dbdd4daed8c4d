#!/usr/bin/env bash
# The tutorial's commands, with an installed package. usage: tutorial.sh REPOSITORY BUILD SCRATCH
set -euo pipefail
repository=$1 build=$2 scratch=$3
rm -rf "$scratch"
mkdir -p "$scratch"
cmake --install "$build" --prefix "$scratch/prefix" >/dev/null
export ZERO_PREFIX=$scratch/prefix PATH=$scratch/prefix/bin:$PATH
python3 "$repository/tools/docs/run_tutorial.py" "$scratch/work" "$repository"/docs/tutorial/*.md
rm -rf "$scratch"
