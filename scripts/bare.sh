#!/bin/sh
# Run a command as on a new machine, which has Python, git, make and little else:
#   sh scripts/bare.sh make test
# For root, the programs named here are covered in a mount namespace of the command's own. Others
# get a PATH with links to all programs but those; there Holdfast asks before every command,
# since no program lies where the system keeps it, and tests that expect otherwise fail.
set -eu

hidden="bwrap strace tmux chromium chromium-browser psql postgres initdb pg_ctl node npm npx podman docker crun uv"

if [ "${1-}" = --covered ]; then
  shift
  for name in $hidden; do
    while program=$(command -v "$name"); do mount --bind /dev/null "$(readlink -f "$program")"; done
  done
  exec "$@"
fi
if [ "$(id -u)" = 0 ] && unshare --mount true 2>/dev/null; then
  exec unshare --mount sh "$0" --covered "$@"
fi

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
IFS=:
for place in $PATH; do
  [ -d "$place" ] || continue
  ln -s "$place"/* "$folder" 2>/dev/null || true  # the first on PATH wins
done
unset IFS
for name in $hidden; do rm -f "$folder/$name"; done
PATH=$folder "$@"
