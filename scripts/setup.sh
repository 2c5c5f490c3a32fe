#!/bin/sh
# Fill .venv, pinned and checked by hash: `setup.sh run` with what running needs, `setup.sh dev`
# with what checking and testing need as well. Goes on from whatever an interrupted one left.
#
# .venv gets no pip of its own: that would be half of its size and most of the time. It is filled
# from outside, by uv if there is one, else by the pip of the Python below.
set -eu

case ${1-} in
  run) lock=requirements.lock ;;
  dev) lock=requirements-dev.lock ;;
  *) echo "usage: sh scripts/setup.sh run|dev" && exit 2 ;;
esac
python=.venv/bin/python
recent() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

if ! recent "$python" || ! [ -f .venv/pyvenv.cfg ]; then
  for candidate in python3 python3.13 python3.12 python3.11 python3.14 none; do
    if recent "$candidate"; then break; fi
  done
  if [ "$candidate" = none ]; then
    echo "Holdfast needs Python 3.11 or newer, and there is none on PATH." \
      "Install one (Debian: apt-get install python3 python3-venv) and try again."
    exit 1
  fi
  echo "Setting up .venv with $("$candidate" --version), once."
  "$candidate" -m venv --clear --without-pip .venv || {
    echo "Could not make .venv. On Debian: apt-get install python3-venv"
    exit 1
  }
fi

# Whoever was interrupted while installing a package left it without its record.
for package in .venv/lib/python3.*/site-packages/*.dist-info; do
  if [ -d "$package" ] && ! [ -f "$package/RECORD" ]; then rm -rf "$package"; fi
done

# The pip that Python brings along runs from where it lies.
brought='
import ensurepip, glob, os, sysconfig
own = os.path.join(os.path.dirname(ensurepip.__file__), "_bundled")
folders = (sysconfig.get_config_var("WHEEL_PKG_DIR") or own, own, "/usr/share/python-wheels")
found = [path for folder in folders for path in glob.glob(folder + "/pip-*.whl")]
print(found[0] + "/pip")'

# Most of pip's time goes into reading indexes: two of them, for half of the lock each, take half as
# long. The order does not matter, since the lock names everything.
in_halves='
import re, subprocess, sys
*pip, lock = sys.argv[1:]
with open(lock) as file:
    entries = re.split(r"\n(?=[^ #])", file.read())
running = []
for half in (0, 1):
    path = f".venv/half-{half}.txt"
    with open(path, "w") as file:
        file.write("\n".join(entries[half::2]) + "\n")
    options = ["--no-compile", "--no-deps", "--require-hashes", "-r", path]
    running.append(subprocess.Popen([*pip, "install", *options]))
failed = [process.wait() for process in running]
sys.exit(any(failed))'

with_pip() {
  base=$("$python" -c 'import sys; print(sys._base_executable)')
  if "$base" -m pip --python "$python" --version >/dev/null 2>&1; then
    set -- "$base" -m pip --python "$python"
  elif wheel=$("$base" -c "$brought" 2>/dev/null); then
    set -- "$python" "$wheel"
  else
    echo "There is no pip to fill .venv with. On Debian: apt-get install python3-venv"
    exit 1
  fi
  "$python" -c "$in_halves" "$@" --quiet --disable-pip-version-check "$lock"
}
if ! uv pip install --quiet --python "$python" --link-mode copy --require-hashes -r "$lock" 2>/dev/null
then
  with_pip
fi

# To run it, the package alone is on the path: the clone may be a workspace, and any module beside
# the package would be imported from there. Tests import what lies beside it, too.
"$python" - "$1" <<'END'
import os, sys, sysconfig
site, here = sysconfig.get_path("purelib"), os.getcwd()
package, clone = (os.path.join(site, name) for name in ("holdfast", "holdfast-clone.pth"))
if os.path.islink(package):
    os.unlink(package)
if sys.argv[1] == "dev":
    with open(clone, "w") as file:
        file.write(here + "\n")
elif not os.path.exists(clone):
    os.symlink(os.path.join(here, "holdfast"), package)
command = os.path.join(os.path.dirname(sys.executable), "holdfast")
with open(command + ".draft", "w") as file:
    file.write(
        "#!/bin/sh\n"
        f"'''exec' '{sys.executable}' \"$0\" \"$@\"\n"  # a path in a first line has no blanks
        "' '''\n"
        "import sys\n"
        "from holdfast.__main__ import main\n"
        "sys.exit(main())\n"
    )
os.chmod(command + ".draft", 0o755)
os.replace(command + ".draft", command)
END
# Once, and not in each process: where PYTHONDONTWRITEBYTECODE is set, none keeps what it compiled.
"$python" -m compileall -q -j 0 .venv/lib holdfast
