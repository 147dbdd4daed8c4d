# ./dev package [DIR]: a tarball, a Debian package and a Python wheel of this version, each installed and used once. Sourced by ./dev.

PACKAGE_PACKAGES=(patchelf binutils)

version_of_project() { sed -n 's/^project(zero VERSION \([0-9.]*\).*/\1/p' "$ROOT/CMakeLists.txt"; }
version_of_libtorch() { echo "${TORCH_WHEELS[0]#torch==}"; }
fill_in() {
  sed -e "s/@VERSION@/$(version_of_project)/" -e "s/@LIBTORCH_VERSION@/$(version_of_libtorch)/" -e "s/@PYTHON@/${PYTHON_VERSION-}/" "$1"
}

# link_with RUNPATH FILE...: where the files look for libraries; they keep nothing of this build's folders.
link_with() {
  local runpath=$1
  shift
  patchelf --set-rpath "$runpath" "$@" || die "patchelf failed, see above"
}

# The libraries beside LibTorch and the system's own that a file of ours needs, as paths.
foreign_libraries() { ldd "$@" | awk '/lib(pcre2|xxhash|sentencepiece|z)[-.]/ && $3 ~ /^\// {print $3}' | sort -u; }

# The Debian package of a library, which may be on record below /lib where it lies in /usr/lib.
owner_of() {
  local path
  path=$(realpath "$1")
  { dpkg-query -S "$path" || dpkg-query -S "${path#/usr}"; } 2>/dev/null | head -n 1 | cut -d: -f1
}

# The prefix of the tarball and the Debian package: the program lies in lib/zero, bin/zero finds LibTorch for it.
stage_prefix() {
  local to=$1
  rm -rf "$to"
  cmake --install "$ROOT/build/$PRESET" --prefix "$to" --strip >/dev/null || die "nothing was installed, see above"
  mkdir -p "$to/lib/zero" "$to/share/doc/zero" "$to/share/zero"
  mv "$to/bin/zero" "$to/lib/zero/zero"
  fill_in "$ROOT/tools/package/zero.sh.in" >"$to/bin/zero"
  chmod 755 "$to/bin/zero"
  link_with '$ORIGIN/..' "$to/lib/zero/zero"
  link_with '$ORIGIN' "$to"/lib/libzero.so.*.*.* "$to/lib/libzero_sentencepiece.so"
  cp "$ROOT/LICENSE" "$ROOT/README.md" "$ROOT/CHANGELOG.md" "$to/share/doc/zero/"
  cp -r "$ROOT/configs" "$to/share/zero/"
}

make_tarball() {
  local folder=$1 name=$2 lib
  stage_prefix "$folder/stage/$name"
  for lib in $(foreign_libraries "$ROOT/build/$PRESET/libzero.so" "$ROOT/build/$PRESET/libzero_sentencepiece.so"); do
    cp -L "$lib" "$folder/stage/$name/lib/"
  done
  tar -C "$folder/stage" --owner=0 --group=0 --sort=name -czf "$folder/$name.tar.gz" "$name"
}

make_deb() {
  local folder=$1 name=$2 root=$1/stage/deb lib owner depends=
  stage_prefix "$root/usr"
  for lib in $(foreign_libraries "$ROOT/build/$PRESET/libzero.so" "$ROOT/build/$PRESET/libzero_sentencepiece.so"); do
    owner=$(owner_of "$lib")
    [ -n "$owner" ] || die "$lib belongs to no Debian package"
    depends+=", $owner"
  done
  mkdir -p "$root/DEBIAN"
  cat >"$root/DEBIAN/control" <<END
Package: zero
Version: $(version_of_project)
Architecture: $(dpkg --print-architecture)
Maintainer: the zero.cpp authors <zero@localhost>
Depends: libc6, libstdc++6$depends
Recommends: python3
Section: science
Priority: optional
Description: trains models that do not fit on one device
 The program zero, its library and headers. LibTorch $(version_of_libtorch) is not in it: pip install torch==$(version_of_libtorch),
 or ZERO_LIBTORCH=DIR.
END
  dpkg-deb --root-owner-group --build "$root" "$folder/$name.deb" >/dev/null || die "dpkg-deb failed, see above"
}

make_wheel() {
  local folder=$1 stage=$1/stage/wheel to=$1/stage/wheel/zero version lib tag
  version=$(version_of_project)
  PYTHON_VERSION=$("$VENV/bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  tag=cp${PYTHON_VERSION/./}
  mkdir -p "$stage"
  cp -r "$ROOT/build/$PRESET/python/zero" "$stage/"
  rm -rf "$to/__pycache__"
  cmake --install "$ROOT/build/$PRESET" --prefix "$to" --strip >/dev/null || die "nothing was installed, see above"
  strip --strip-unneeded "$to"/_zero*.so
  cp "$ROOT/tools/package/tool.py" "$to/"
  for lib in $(foreign_libraries "$ROOT/build/$PRESET/libzero.so" "$ROOT/build/$PRESET/libzero_sentencepiece.so"); do cp -L "$lib" "$to/lib/"; done
  # A wheel holds no links: one file of each library, under the name that it is asked for by.
  find "$to/lib" -type l -delete
  mv "$to/lib/libzero.so.$version" "$to/lib/libzero.so.${version%%.*}"
  link_with '$ORIGIN/../lib:$ORIGIN/../../torch/lib' "$to/bin/zero"
  link_with '$ORIGIN/lib:$ORIGIN/../torch/lib' "$to"/_zero*.so
  link_with '$ORIGIN:$ORIGIN/../../torch/lib' "$to/lib/libzero.so.${version%%.*}" "$to/lib/libzero_sentencepiece.so"
  rm -rf "$to/lib/cmake"  # programs in C++ build against the tarball or the Debian package
  mkdir -p "$stage/zero_cpp-$version.dist-info"
  { fill_in "$ROOT/tools/package/METADATA.in"; cat "$ROOT/README.md"; } >"$stage/zero_cpp-$version.dist-info/METADATA"
  printf '[console_scripts]\nzero = zero.tool:main\n' >"$stage/zero_cpp-$version.dist-info/entry_points.txt"
  cp "$ROOT/LICENSE" "$stage/zero_cpp-$version.dist-info/"
  printf 'Wheel-Version: 1.0\nGenerator: ./dev package\nRoot-Is-Purelib: false\nTag: %s-%s-linux_%s\n' "$tag" "$tag" "$(uname -m)" \
    >"$stage/zero_cpp-$version.dist-info/WHEEL"
  "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps wheel packaging >&2 || die "pip could not install wheel, see above"
  "$VENV/bin/python" -m wheel pack --dest-dir "$folder" "$stage" >/dev/null || die "the wheel could not be packed, see above"
}

# use_package WHAT COMMAND...: what a user does first: the version, a plan, and training on two ranks.
use_package() {
  local what=$1 work
  shift
  work=$(mktemp -d)
  for _ in $(seq 40); do echo "The quick brown fox jumps over the lazy dog; the dog sleeps, and the fox goes on."; done >"$work/text.txt"
  echo '{"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 3}, "optimizer": {"params": {"lr": 1e-2}},
    "model": {"vocab_size": 704, "context_length": 16, "layers": 2, "width": 16, "heads": 2}, "data": {"train": "train.tokens",
    "sequence_length": 16}, "run": {"directory": "run", "steps": 3}}' >"$work/config.json"
  (cd "$work" && "$@" --version | grep -qx "zero $(version_of_project)" &&
    "$@" tokenize text.txt --out train.tokens --tokenizer "$ROOT/tests/golden/sentencepiece/bpe.model" &&
    "$@" plan config.json --ranks 2 && "$@" train config.json --ranks 2 && "$@" verify run) >"$work/said" 2>&1 ||
    { cat "$work/said" >&2; die "$what does not work, see above"; }
  rm -rf "$work"
  say "$what: installed and used"
}

test_tarball() {
  local folder=$1 name=$2 to
  to=$(mktemp -d)
  tar -C "$to" -xzf "$folder/$name.tar.gz"
  mv "$to/$name" "$to/moved"
  if env ZERO_LIBTORCH="$to" "$to/moved/bin/zero" --version >"$to/said" 2>&1 || ! grep -q "holds no lib/libtorch_cpu.so" "$to/said"; then
    die "$name.tar.gz takes a folder without LibTorch for one"
  fi
  use_package "$name.tar.gz" env ZERO_LIBTORCH="$LIBTORCH" "$to/moved/bin/zero"
  cmake -G Ninja -S "$ROOT/tests/consumer" -B "$to/build" -DCMAKE_PREFIX_PATH="$to/moved" -DLIBTORCH_DIR="$LIBTORCH" >"$to/said" 2>&1 &&
    cmake --build "$to/build" >>"$to/said" 2>&1 && "$to/build/consumer" >>"$to/said" 2>&1 ||
    { cat "$to/said" >&2; die "a program could not be built against $name.tar.gz, see above"; }
  rm -rf "$to"
}

test_deb() {
  local folder=$1 name=$2 root
  root=$(mktemp -d)
  mkdir -p "$root/var/lib/dpkg/updates" "$root/var/lib/dpkg/info" "$root/var/log"
  touch "$root/var/lib/dpkg/status"
  dpkg --root="$root" --force-depends --force-not-root --force-script-chrootless --log="$root/log" -i "$folder/$name.deb" >"$root/said" 2>&1 ||
    { cat "$root/said" >&2; die "dpkg could not install $name.deb, see above"; }
  use_package "$name.deb" env ZERO_LIBTORCH="$LIBTORCH" "$root/usr/bin/zero"
  rm -rf "$root"
}

test_wheel() {
  local wheel=$1
  need_python_torch
  "$PYTHON_VENV/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall "$wheel" >&2 &&
    "$PYTHON_VENV/bin/python" -m pip check >&2 || die "pip could not install $wheel, see above"
  use_package "${wheel##*/}" "$PYTHON_VENV/bin/zero"
  (cd / && env -u PYTHONPATH ZERO_TOOL="$PYTHON_VENV/bin/zero" "$PYTHON_VENV/bin/python" "$ROOT/tests/python/test_zero.py") ||
    die "the wheel's module failed its tests, see above"
}

do_package() {
  [ $# -le 1 ] || die "package takes one DIR, got: $*"
  local folder=${1:-$ROOT/build/packages} name
  need_packages "${PACKAGE_PACKAGES[@]}"
  build_python
  mkdir -p "$folder"
  folder=$(realpath "$folder")
  rm -rf "$folder/stage"
  name=zero-$(version_of_project)-linux-$(uname -m)
  make_tarball "$folder" "$name"
  make_deb "$folder" "$name"
  make_wheel "$folder"
  rm -rf "$folder/stage"
  test_tarball "$folder" "$name"
  test_deb "$folder" "$name"
  test_wheel "$(ls -t "$folder"/zero_cpp-*.whl | head -n 1)"
  say "packages: $(cd "$folder" && du -h --apparent-size "$name".* zero_cpp-*.whl | tr '\t\n' '  ')in $folder"
}
