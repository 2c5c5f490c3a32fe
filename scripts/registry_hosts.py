"""No committed file names a package registry: where packages come from is the machine's own
business. Lock files hold names, versions and hashes, and neither an address nor an index option.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent

# In parts, so that this file passes its own check.
_HOSTS = ("pypi" + ".org", "python" + "hosted.org", "npm" + "js.org", "npm" + "js.com",
          "yarn" + "pkg.com", "ana" + "conda.org", "crates" + ".io", "jsdelivr" + ".net",
          "un" + "pkg.com")  # fmt: skip
_HOST = re.compile("|".join(map(re.escape, _HOSTS)).encode(), re.IGNORECASE)
_ADDRESS = re.compile(rb"://|^--(?!hash)|^-[fi]\b")


def offences(path: Path) -> list[str]:
    """Lines of one file that say where packages come from."""
    forbidden = _ADDRESS if path.suffix == ".lock" else _HOST
    return [
        f"{path}:{number}: {line.decode(errors='replace').strip()[:100]}"
        for number, line in enumerate(path.read_bytes().splitlines(), 1)
        if forbidden.search(line) or _HOST.search(line)
    ]


def main() -> int:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    files = [ROOT / name for name in listed.split("\0") if name]
    found = [line for path in files if path.is_file() for line in offences(path)]
    if found:
        print("these lines name a package registry; take them out:", *found, sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
