"""Which files a `.gitignore` leaves out: the same as git, whose word counts."""

import random
import subprocess
import time
from pathlib import Path

import pytest

from holdfast.tools.snapshot.ignore import ALWAYS, IgnoreRules, left_out

NAMES = ["a", "b", "ab", "a.txt", "b.log", "x y", "#x", "!x", "[z]", ".hidden", "c.d.log"]
PATTERNS = (
    "a b ab *.log *.txt !b.log !*.txt /a /b/ a/ a/b a/* a/** **/b **/ab a/**/b b/**/ab ?b ?? [ab] "
    "[!a] [^a] *.d.* \\#x \\!x #x !a .* ** * !*/ a*b *b* x\\ y /*/b [z] \\[z\\] a/*/ab /ab/a.txt "
    "!a/b **/a/** b/ [a-c] *.[lt]?? /** a//b //a"
).split()


def git(*words: str, cwd: Path) -> str:
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(cwd), "GIT_CONFIG_NOSYSTEM": "1"}
    done = subprocess.run(
        ["git", *words], cwd=cwd, env=environment, check=True, capture_output=True
    )
    return done.stdout.decode()


def seen(root: Path) -> set[str]:
    """The files that a snapshot would see."""
    found: set[str] = set()
    _see(root, "", None, found)
    return found


def _see(folder: Path, prefix: str, above: IgnoreRules | None, found: set[str]) -> None:
    file = folder / ".gitignore"
    rules = IgnoreRules.parse(file.read_bytes() if file.exists() else b"", prefix, above)
    for entry in folder.iterdir():
        path = prefix + entry.name
        if left_out(path, rules, is_folder=entry.is_dir()):
            continue
        if entry.is_dir():
            _see(entry, path + "/", rules, found)
        else:
            found.add(path)


def plant(folder: Path, chance: random.Random, depth: int) -> None:
    folder.mkdir(exist_ok=True)
    for name in chance.sample(NAMES, 6):
        if depth and chance.random() < 0.4:
            plant(folder / name, chance, depth - 1)
        else:
            (folder / name).write_text("")
    if depth == 3 or chance.random() < 0.2:
        rules = chance.sample(PATTERNS, chance.randrange(1, 6))
        (folder / ".gitignore").write_text("\n".join(["# rules", "", *rules]))


@pytest.mark.promise("SNAP-03")
@pytest.mark.parametrize("seed", range(40))
def test_git_leaves_out_the_same_files(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    plant(tmp_path / "tree", chance, 3)
    root = tmp_path / "tree"
    git("init", "-q", "--template=", cwd=root)
    told = git("ls-files", "--others", "--exclude-standard", "-z", cwd=root)
    expected = {path for path in told.split("\0") if path}
    rules = {
        str(f.relative_to(root)): f.read_text() for f in root.rglob(".gitignore") if f.is_file()
    }
    assert seen(root) == expected, rules


def test_a_hostile_pattern_takes_no_time() -> None:
    text = ("*a" * 60 + "\n" + "**/" * 60 + "b\n" + "a*" * 90 + "[").encode() * 20
    rules = IgnoreRules.parse(text, "", None)
    began = time.process_time()
    for n in range(20):
        left_out("/".join(["a" * 200] * 20) + f"/{n}", rules, is_folder=False)
    assert time.process_time() - began < 2


def test_what_is_always_left_out_and_what_never(tmp_path: Path) -> None:
    rules = IgnoreRules.parse(b"*\n", "", None)
    assert all(left_out(f"a/{name}", None, is_folder=True) for name in ALWAYS)
    assert not left_out("a/.env.local", rules, is_folder=False)
    assert left_out("a/b", rules, is_folder=False)
