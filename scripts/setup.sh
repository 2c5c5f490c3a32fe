#!/bin/sh
# Fill .venv with Holdfast and everything its development needs, pinned and checked by hash.
# Goes on from whatever an earlier, interrupted set-up left.
set -eu

python=.venv/bin/python
recent() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

if ! recent "$python"; then
  for candidate in python3 python3.13 python3.12 python3.11 python3.14 none; do
    if recent "$candidate"; then break; fi
  done
  if [ "$candidate" = none ]; then
    echo "Holdfast needs Python 3.11 or newer, and there is none on PATH." \
      "Install one (Debian: apt-get install python3 python3-venv) and try again."
    exit 1
  fi
  echo "Setting up .venv with $("$candidate" --version); this takes a minute, once."
  "$candidate" -m venv --clear .venv || {
    echo "Could not make .venv. On Debian: apt-get install python3-venv"
    exit 1
  }
fi
"$python" -c 'import pip' 2>/dev/null || "$python" -m ensurepip >/dev/null

pip() { "$python" -m pip --quiet --disable-pip-version-check "$@"; }
pip install --require-hashes -r requirements-dev.lock
pip install --no-deps --no-build-isolation -e .
"$python" -m compileall -q holdfast
