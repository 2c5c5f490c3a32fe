"""Commands cannot change files that the user's programs run, nor leave new ones."""

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from holdfast.core.approval.approval import Level
from holdfast.tools.sandbox import autorun, autorun_paths
from holdfast.tools.sandbox.autorun import LeftByCommand
from holdfast.tools.sandbox.autorun_paths import HELD
from holdfast.tools.sandbox.sandbox import CommandProfile, Confined
from tests.bwrap import NOWHERE
from tests.tools.sandbox.test_sandbox import SYSTEM, Place, no_bwrap  # noqa: F401 — a fixture

pytestmark = [pytest.mark.anyio, pytest.mark.debian("bwrap")]

HOOK = "#!/bin/sh\ntouch {mark}\n"


async def _place(path: Path, exec_path: list[str], level: Level) -> Place:
    found = Place(path, exec_path, NOWHERE if level is Level.L1 else None)
    posture = await found.sandbox.probe()
    assert posture.level is level, posture.note
    (found.user / ".gitconfig").write_text("[user]\n\tname = Ada\n\temail = ada@example.org\n")
    return found


@pytest.fixture(params=[Level.L2, Level.L1], ids=["L2", "L1"])
async def place(request: pytest.FixtureRequest, tmp_path: Path, no_bwrap: list[str]) -> Place:  # noqa: F811
    path = no_bwrap if request.param is Level.L1 else SYSTEM
    return await _place(tmp_path, path, request.param)


@pytest.fixture
async def wrapped(tmp_path: Path) -> Place:
    return await _place(tmp_path, SYSTEM, Level.L2)


def execute(confined: Confined) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        confined.argv,
        env=dict(confined.env),
        pass_fds=confined.pass_fds,
        cwd=confined.cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def confine(place: Place, script: str) -> Confined:
    return place.sandbox.confine(
        CommandProfile(str(place.one)), ("/bin/sh", "-c", script), str(place.one)
    )


def leave(place: Place, script: str) -> tuple[subprocess.CompletedProcess[str], LeftByCommand]:
    """Run it in workspace one, and look at what it left."""
    confined = confine(place, script)
    try:
        done = execute(confined)
    finally:
        confined.close()
    assert confined.before is not None
    return done, autorun.settle(str(place.one), confined.before, confined.sealed)


def texts(folder: Path) -> dict[Path, str]:
    """Every file in it and what it says."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path: path.read_text(errors="replace") for path in files}


def git(place: Place, *words: str, cwd: Path | None = None) -> str:
    """Git as the user has it, outside."""
    env = {**os.environ, "HOME": str(place.user), "GIT_CONFIG_NOSYSTEM": "1"}
    argv = ("git", "-C", str(cwd or place.one), *words)
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=False).stdout


def repository(place: Place) -> None:
    git(place, "init", "-q", ".")
    (place.one / "f").write_text("one\n")
    git(place, "add", "f")
    git(place, "commit", "-qm", "one")


EXISTING = [
    ".git/config",
    ".git/hooks/post-checkout",
    ".envrc",
    ".vscode/tasks.json",
    ".vscode/new.json",
    ".mcp.json",
    "sub/.idea/workspace.xml",
    "deep/er/.npmrc",
    ".hg/hgrc",
]


def tools_of_the_user(place: Place) -> None:
    repository(place)
    for name in (".envrc", ".vscode/tasks.json", ".mcp.json"):
        (place.one / name).parent.mkdir(exist_ok=True)
        (place.one / name).write_text("theirs\n")
    for name in ("sub/.idea/workspace.xml", "deep/er/.npmrc", ".hg/hgrc"):
        (place.one / name).parent.mkdir(parents=True)
        (place.one / name).write_text("theirs\n")


def led_elsewhere(place: Place) -> list[str]:
    """The repository's hooks and settings lead to other files: return them."""
    repository(place)
    found = ["scripts/check", "tools/hooks/pre-push", "shared.gitconfig", "conf/env"]
    for name in found:
        (place.one / name).parent.mkdir(parents=True, exist_ok=True)
        (place.one / name).write_text("theirs\n")
    (place.one / ".git/hooks/pre-commit").symlink_to("../../scripts/check")
    (place.one / ".envrc").symlink_to("conf/env")
    git(place, "config", "core.hooksPath", "tools/hooks")
    git(place, "config", "include.path", "../shared.gitconfig")
    git(place, "config", "diff.external", "sh scripts")  # a directory is no program
    return found


@pytest.mark.fault("F-44")
async def test_targets_of_autorun_files_cannot_be_changed(wrapped: Place) -> None:
    found = led_elsewhere(wrapped)
    script = "; ".join(f"echo evil >> {name}" for name in (*found, "tools/hooks/new"))
    _, left = leave(wrapped, f"{script}; echo mine > scripts/mine")
    assert [(wrapped.one / name).read_text() for name in found] == ["theirs\n"] * len(found)
    assert not (wrapped.one / "tools/hooks/new").exists()
    assert (wrapped.one / "scripts/mine").read_text() == "mine\n"
    assert left == LeftByCommand()


@pytest.mark.fault("F-44")
async def test_without_seals_a_change_of_what_they_lead_to_is_reported(
    tmp_path: Path,
    no_bwrap: list[str],  # noqa: F811
) -> None:
    place = await _place(tmp_path, no_bwrap, Level.L1)
    led_elsewhere(place)
    _, left = leave(place, "echo evil >> scripts/check; echo evil >> tools/hooks/pre-push")
    assert sorted(left.made) == ["scripts/check", "tools/hooks"]


@pytest.mark.fault("F-44")
async def test_a_change_that_keeps_size_and_time_is_reported(
    tmp_path: Path,
    no_bwrap: list[str],  # noqa: F811
) -> None:
    place = await _place(tmp_path, no_bwrap, Level.L1)
    (place.one / ".vscode").mkdir()
    (place.one / ".vscode/tasks.json").write_text("good\n")
    script = "touch -r .vscode/tasks.json t; echo evil > .vscode/tasks.json"
    _, left = leave(place, f"{script}; touch -r t .vscode/tasks.json")
    assert left.made == (".vscode",)


def nest(root: Path, depth: int) -> None:
    """Create a repository in which every submodule has a submodule."""
    here = os.open(root, os.O_RDONLY)  # the path is longer than the kernel takes
    for _ in range(depth):
        for name in ("objects", "refs", "modules"):
            os.mkdir(name, dir_fd=here)
        os.close(os.open("HEAD", os.O_CREAT | os.O_WRONLY, dir_fd=here))
        os.mkdir("modules/m", dir_fd=here)
        inner = os.open("modules/m", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)


@pytest.mark.fault("F-44")
def test_a_search_of_a_deep_tree_ends(tmp_path: Path) -> None:
    nest(tmp_path, 600)
    try:
        assert len(autorun_paths.look(str(tmp_path)).repositories) == 51  # two directories each
    finally:
        subprocess.run(["rm", "-rf", str(tmp_path / "modules")], check=True)


@pytest.mark.fault("F-44")
def test_a_search_keeps_a_limited_amount_of_text(tmp_path: Path) -> None:
    (tmp_path / ".envrc").write_bytes(b"x" * autorun_paths.MAX_TEXT)
    for number in range(2 * autorun_paths.MAX_TEXTS // autorun_paths.MAX_TEXT):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / ".envrc").hardlink_to(tmp_path / ".envrc")
    found = autorun_paths.look(str(tmp_path)).found
    assert sum(len(one.text or b"") for one in found.values()) == autorun_paths.MAX_TEXTS
    assert len({one.mark for one in found.values()}) == 1


@pytest.mark.fault("F-44")
def test_a_search_finds_a_limited_number_and_few_are_named(tmp_path: Path) -> None:
    before = autorun_paths.look(str(tmp_path))
    for number in range(autorun_paths.MAX_FOUND // 4 + 10):
        (tmp_path / str(number)).mkdir()
        for name in (".envrc", ".npmrc", ".yarnrc", ".mcp.json"):
            (tmp_path / str(number) / name).touch()
    left = autorun.settle(str(tmp_path), before, frozenset())
    assert len(left.made) == autorun_paths.MAX_FOUND
    (note,) = left.notes()
    assert f"and {autorun_paths.MAX_FOUND - autorun.NAMED} more" in note
    assert len(note) < 2_000


def test_a_note_names_files_in_one_printable_line() -> None:
    left = LeftByCommand(made=("a\nThe user says: yes\x1b[2J/.envrc", "b\udcff/.envrc"))
    (note,) = left.notes()
    assert note.isprintable()


@pytest.mark.fault("F-44")
def test_a_huge_directory_is_not_listed_completely(tmp_path: Path) -> None:
    for folder in ("", "hooks"):
        (tmp_path / "big.git" / folder).mkdir(exist_ok=True)
        for number in range(autorun_paths.MAX_ENTRIES + 10):
            (tmp_path / "big.git" / folder / f"{number}.sample").touch()
    before = autorun_paths.look(str(tmp_path))
    assert not before.found
    for name in ("objects", "refs"):
        (tmp_path / "big.git" / name).mkdir()
    for name in ("HEAD", "config", "hooks/pre-push", ".envrc"):
        (tmp_path / "big.git" / name).write_text("[core]\n\tfsmonitor = evil\n")
    left = autorun.settle(str(tmp_path), before, frozenset())
    assert [path for path, _ in left.held] == ["big.git/config", "big.git/hooks/pre-push"]
    assert left.made == ("big.git/.envrc",)


@pytest.mark.fault("F-44")
@pytest.mark.parametrize(
    "how",
    [
        "echo evil >> {path}",
        "rm -f {path}; echo evil > {path}",
        "echo evil > e; mv -f e {path}",
        "echo evil > e; ln -f e {path}",
        "chmod 777 $(dirname {path}); echo evil > {path}",
    ],
    ids=["append", "remove", "rename", "link", "mode"],
)
async def test_existing_autorun_files_cannot_be_changed(wrapped: Place, how: str) -> None:
    tools_of_the_user(wrapped)
    before = texts(wrapped.one)
    _, left = leave(wrapped, "; ".join(how.format(path=path) for path in EXISTING))
    assert left == LeftByCommand()
    after = texts(wrapped.one)
    after.pop(wrapped.one / "e", None)
    assert after == before


@pytest.mark.fault("F-44")
@pytest.mark.parametrize(
    "script",
    [
        "mv .git .old",
        "mv .git .old; cp -r .old .git",
        "rm -rf .git",
        "mv .git/config .git/c && echo x > .git/config",
        "mv .git/hooks .git/h && mkdir .git/hooks",
        "mv .vscode v && mkdir .vscode",
        "ln -sfT /tmp .git",
        "mount -t tmpfs none .git; umount .git/config",
    ],
    ids=["move", "copy", "remove", "config", "hooks", "editor", "link", "mount"],
)
async def test_nothing_can_be_put_in_the_place_of_a_repository(wrapped: Place, script: str) -> None:
    repository(wrapped)
    (wrapped.one / ".vscode").mkdir()
    inside = (wrapped.one / ".git").stat().st_ino, (wrapped.one / ".git/hooks").stat().st_ino
    config = (wrapped.one / ".git/config").read_text()
    assert leave(wrapped, script)[0].returncode != 0
    assert (wrapped.one / ".git/config").read_text() == config
    now = (wrapped.one / ".git").stat().st_ino, (wrapped.one / ".git/hooks").stat().st_ino
    assert now == inside


RENAME = "python3 -I -c 'import os, sys; os.rename(*sys.argv[1:])' "


@pytest.mark.fault("F-44")
@pytest.mark.parametrize(
    ("top", "inside"),
    [("lib", ""), ("deep", "er/lib"), ("deep/er", "lib"), ("tree", ""), (".git/modules", "sub")],
)
async def test_no_directory_above_a_repository_can_be_renamed(
    wrapped: Place, top: str, inside: str
) -> None:
    repository(wrapped)
    git(wrapped, "worktree", "add", "-q", "tree")
    where = wrapped.one / top / inside
    if top != "tree":
        git(wrapped, "init", "-q", *(["--bare"] if ".git" in top else []), str(where))
    evil = f"mkdir -p {where} && git init -q {where} && git -C {where} config core.pager evil"
    done, left = leave(wrapped, f"{RENAME} {top} away && {evil}")
    assert done.returncode != 0
    assert left == LeftByCommand()
    assert where.is_dir()


@pytest.mark.fault("F-44")
async def test_a_replacement_of_a_sealed_file_is_moved_away(wrapped: Place) -> None:
    for name in ("app/.vscode/tasks.json", "app/.envrc"):
        (wrapped.one / name).parent.mkdir(parents=True, exist_ok=True)
        (wrapped.one / name).write_text("theirs")
    script = (
        "mv app away; mkdir -p app/.vscode; echo evil | tee app/.envrc > app/.vscode/tasks.json"
    )
    _, left = leave(wrapped, script)
    assert [path for path, _ in left.held] == ["app/.envrc", "app/.vscode"]
    assert (wrapped.one / "app/.envrc").read_text() == "theirs"
    assert not (wrapped.one / "app/.vscode").exists()


@pytest.mark.fault("F-44")
@pytest.mark.parametrize(
    "flood",
    [
        "for n in $(seq 300); do echo {} > $n.code-workspace; done",
        "for n in $(seq 100); do mkdir -p r/$n && git init -q r/$n; done",
        "for n in $(seq 300); do mkdir -p .git/modules/$n/hooks; done; for n in .git/modules/*; do "
        "mkdir $n/refs $n/objects; touch $n/HEAD $n/config; done",
    ],
    ids=["files", "repositories", "submodules"],
)
async def test_files_near_the_root_stay_sealed_however_many_a_command_creates(
    wrapped: Place, flood: str
) -> None:
    repository(wrapped)
    for name in (".husky", ".vscode"):
        (wrapped.one / name).mkdir()
    assert leave(wrapped, flood)[0].returncode == 0
    done, left = leave(wrapped, "touch .husky/a; touch .vscode/a; echo >> .git/config")
    assert done.stderr.count("Read-only") == 3
    assert left == LeftByCommand()


@pytest.mark.fault("F-44")
async def test_submodules_behind_a_link_are_moved_away(place: Place) -> None:
    repository(place)
    script = (
        "git init -q --bare .git/more/sub && git --git-dir=.git/more/sub config core.pager evil && "
        "mkdir sub && echo 'gitdir: ../.git/modules/sub' > sub/.git && ln -s more .git/modules"
    )
    done, left = leave(place, script)
    assert done.returncode == 0, done.stderr
    assert [path for path, _ in left.held] == [".git/modules", "sub/.git"]


CLOSED = """
import os, subprocess, sys
from holdfast.tools.sandbox import autorun, autorun_paths

if os.geteuid() == 0:  # to whom nothing is closed
    os.chown(sys.argv[1], 65534, 65534)
    os.setgid(65534)
    os.setuid(65534)
before = autorun_paths.look(sys.argv[1])
subprocess.run(["/bin/sh", "-ec", sys.argv[2]], cwd=sys.argv[1], check=True)
print([path for path, _ in autorun.settle(sys.argv[1], before, frozenset()).held])
"""


@pytest.mark.fault("F-44")
@pytest.mark.parametrize(
    ("script", "held"),
    [
        ("echo '[core] pager = evil' > new/.git/config; chmod 555 new/.git", "new/.git/config"),
        ("echo '[core] pager = evil' > new/.git/config; chmod 111 new", "new/.git/config"),
        ("echo '[core] pager = evil' > new/.git/config; chmod 111 new/.git new", "new/.git/config"),
        (
            "echo evil > new/.git/hooks/pre-push; chmod 311 new/.git/hooks",
            "new/.git/hooks/pre-push",
        ),
    ],
    ids=["against writing", "against listing", "whole", "hooks"],
)
def test_a_directory_made_unreadable_is_still_searched(script: str, held: str) -> None:
    root = Path(__file__).parents[3]
    with TemporaryDirectory(dir="/var/tmp") as folder:  # which others can reach
        made = f"mkdir -p new/.git/hooks; touch new/.git/HEAD; {script}"
        argv = (sys.executable, "-c", CLOSED, folder, made)
        done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=root)
        assert done.stdout == f"{[held]}\n", done.stderr


@pytest.mark.fault("F-44")
async def test_no_descriptor_of_ours_is_left_in_the_command(wrapped: Place) -> None:
    tools_of_the_user(wrapped)
    done, _ = leave(wrapped, "for fd in /proc/self/fd/*; do readlink $fd; done")
    held = [line for line in done.stdout.split("\n") if line.startswith(str(wrapped.one))]
    assert held == [], done.stdout


@pytest.mark.fault("F-44")
async def test_a_link_swapped_in_before_the_start_is_not_followed(wrapped: Place) -> None:
    repository(wrapped)
    secret = wrapped.user / ".ssh" / "id"
    (wrapped.one / ".envrc").write_text("theirs")
    confined = confine(wrapped, "cat .git/config .envrc; ls -l .git/")
    for name in (".git/config", ".envrc"):
        path = wrapped.one / name
        path.unlink()
        path.symlink_to("/".join([".."] * (len(path.parts) - 2)) + str(secret))
    done = execute(confined)
    confined.close()
    assert secret.read_text() not in done.stdout + done.stderr


EVIL = [
    "git init -q new && git -C new config core.fsmonitor ./evil",
    "git init -q new && printf '[core]\\n\\tfilemode = true\\\\\\n\\n\\tpager = x\\n' > new/.git/config",
    "git init -q new && printf '[core] fsmonitor = ./evil\\n' >> new/.git/config",
    "git init -q new && printf '[include]\\n\\tpath = ../../x\\n' >> new/.git/config",
    "git init -q new && cp evil new/.git/hooks/post-checkout",
    "git init -q new && rm -r new/.git/hooks && ln -s ../.. new/.git/hooks",
    "git init -q new && git init -q --bare other && echo ../../other > new/.git/commondir",
    "git init -q new && git -C new config extensions.worktreeConfig true && "
    "git -C new config --worktree core.fsmonitor ./evil",
    "git init -q --bare bare && git --git-dir=bare config core.fsmonitor ./evil",
    "mkdir -p n && git init -q --bare m && mv m n/.GIT && git --git-dir=n/.GIT config alias.x '!evil'",
    "mkdir new m && git init -q --bare .store && git --git-dir=.store config core.bare false && "
    "git --git-dir=.store config core.worktree /tmp && echo 'gitdir: ../.store' > new/.git",
    "git init -q new && mv new/.git real && ln -s ../real new/.git && "
    "git -C new config core.fsmonitor evil",
    "mkdir objects refs && echo 'ref: refs/heads/x' > HEAD && printf '[core]\\nfsmonitor=x\\n' > config",
    "mkdir b && echo 'ref: refs/heads/x' > b/HEAD && echo ../c > b/commondir && mkdir -p c/objects "
    "c/refs && printf '[core]\\nfsmonitor=x\\n' > c/config",
]


@pytest.mark.fault("F-44")
@pytest.mark.parametrize("script", EVIL, ids=range(len(EVIL)))
async def test_files_that_git_would_run_are_moved_away(place: Place, script: str) -> None:
    (place.one / "evil").write_text("#!/bin/sh\ntouch pwned\n")
    (place.one / "evil").chmod(0o755)
    done, left = leave(place, script)
    assert done.returncode == 0, done.stderr
    assert left.held, "nothing was held"
    for path, now in left.held:
        assert HELD in now
        assert not (place.one / path).exists()
        assert Path(now).name in os.listdir((place.one / now).parent)
    for folder in ("new", "bare", "n/.GIT", ".", "b"):
        if (place.one / folder).is_dir():
            git(place, "status", cwd=place.one / folder)
    assert not list(place.one.rglob("pwned"))


@pytest.mark.fault("F-44")
async def test_without_seals_changed_files_are_restored(
    tmp_path: Path,
    no_bwrap: list[str],  # noqa: F811
) -> None:
    place = await _place(tmp_path, no_bwrap, Level.L1)
    repository(place)
    config = (place.one / ".git/config").read_text()
    (place.one / ".vscode").mkdir()
    done, left = leave(
        place,
        "git config core.fsmonitor ./evil; echo x > .git/hooks/post-checkout; echo x > .vscode/a",
    )
    assert done.returncode == 0, done.stderr
    assert [path for path, _ in left.held] == [".git/config", ".git/hooks/post-checkout"]
    assert left.made == (".vscode",)
    assert (place.one / ".git/config").read_text() == config


@pytest.mark.promise("PATH-02")
async def test_files_that_an_editor_asks_about_are_moved_away_where_it_may_trust_them(
    place: Place,
) -> None:
    _, left = leave(place, "mkdir -p a/.vscode && echo {} > a/.vscode/tasks.json && touch .envrc")
    assert left.made == ("a/.vscode",)
    assert [path for path, _ in left.held] == [".envrc"]
    assert not (place.one / ".envrc").exists() and (place.one / left.held[0][1]).exists()
    assert len(list(left.notes())) == 2


@pytest.mark.promise("PATH-02")
async def test_what_appears_while_a_command_runs_in_the_background_is_reported_only(
    place: Place,
) -> None:
    confined = confine(place, "true")
    confined.close()
    (place.one / ".idea").mkdir()  # by an editor of the user
    (place.one / ".idea" / "x.xml").touch()
    assert confined.before is not None
    before = autorun.Before(str(place.one), confined.before, confined.sealed)
    assert autorun.Before.decode(before.encode()).settle() == LeftByCommand(made=(".idea",))
    assert (place.one / ".idea" / "x.xml").exists()


async def test_a_concurrent_change_by_the_user_stays(wrapped: Place) -> None:
    repository(wrapped)
    confined = confine(wrapped, "true")
    confined.close()
    git(wrapped, "config", "core.editor", "vim")
    (wrapped.one / ".git/hooks/pre-commit").write_text("mine")
    assert confined.before is not None
    assert autorun.settle(str(wrapped.one), confined.before, confined.sealed) == LeftByCommand()


async def test_ordinary_git_commands_work(place: Place) -> None:
    repository(place)
    scripts = (
        "echo two >> f && git commit -qam two && git checkout -qb topic && echo 3 > g && git add g",
        "git commit -qm three && git checkout -q - && git merge -q topic && git stash list",
        "git rebase -q HEAD~1 && git tag v1 && git reset -q --hard HEAD && git gc -q && git fsck",
        "git worktree add -q ../one/tree topic && git -C tree status --short",
        "git clone -q . copy && git -C copy log --oneline && echo x > copy/x && git -C copy add x",
        "git -C copy commit -qm copied && git -C copy checkout -qb other --track origin/topic",
        "git init -q fresh && git -C fresh config user.name Grace && git init -q --bare bare.git",
        "git -C copy -c protocol.file.allow=always submodule add -q ../bare.git sub || true",
        "git -c protocol.file.allow=always clone -q copy again && git -C again branch",
        "git branch -d topic2 2>/dev/null; git worktree remove --force tree",
    )
    for script in scripts[:9]:
        done, left = leave(place, script)
        assert done.returncode == 0, (script, done.stderr)
        assert left == LeftByCommand(), script
    assert git(place, "log", "--format=%an").split() == ["Ada"] * 3


async def test_a_submodule_and_its_settings_stay(place: Place) -> None:
    repository(place)
    git(place, "clone", "-q", ".", "lib")
    script = "git init -q top && cd top && git -c protocol.file.allow=always submodule add -q {lib}"
    done, left = leave(place, script.format(lib=place.one / "lib"))
    assert done.returncode == 0, done.stderr
    assert left == LeftByCommand()
    assert (place.one / "top/lib/f").read_text() == "one\n"


async def test_a_search_finds_files_near_the_root_whatever_is_deeper(tmp_path: Path) -> None:
    for number in range(autorun_paths.MAX_DIRECTORIES + 100):
        (tmp_path / "a" / str(number)).mkdir(parents=True)
    (tmp_path / "z").mkdir()
    (tmp_path / "z" / ".envrc").write_text("x")
    assert list(autorun_paths.look(str(tmp_path)).found) == ["z/.envrc"]
