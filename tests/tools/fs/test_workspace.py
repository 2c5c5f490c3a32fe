"""No path leads out of the workspace, with either resolver (F-37)."""

import errno
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from holdfast.core.approval import autorun
from holdfast.errors import ToolFailed
from holdfast.tools.fs.openat import Resolver, beneath, openat2, walk
from holdfast.tools.fs.workspace import REASONS, FileGate

SECRET = b"what lies outside"


def _works(resolve: Resolver) -> bool:
    root = os.open("/", os.O_RDONLY)
    try:
        os.close(resolve(root, ".", os.O_RDONLY))
    except OSError as error:
        assert error.errno in (errno.ENOSYS, errno.EPERM)
        return False
    finally:
        os.close(root)
    return True


RESOLVERS = [resolve for resolve in (openat2, walk) if _works(resolve)]


@pytest.fixture(params=RESOLVERS, ids=lambda resolve: resolve.__name__)
def resolve(request: pytest.FixtureRequest) -> Resolver:
    chosen: Resolver = request.param
    return chosen


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.txt").write_bytes(SECRET)
    return outside


@pytest.fixture
def workspace(tmp_path: Path, outside: Path) -> Path:
    root = tmp_path / "ws"
    (root / "sub").mkdir(parents=True)
    (root / "inside.txt").write_bytes(b"inside")
    (root / "sub" / "deep.txt").write_bytes(b"deep")
    (root / "link").symlink_to(outside / "secret.txt")
    (root / "near-link").symlink_to("../outside/secret.txt")
    (root / "dir-link").symlink_to(outside)
    (root / "near-dir-link").symlink_to("../outside")
    (root / "root-link").symlink_to("/proc/self/root")
    (root / "cwd-link").symlink_to("/proc/self/cwd")
    (root / "loop").symlink_to("loop")
    os.mkfifo(root / "fifo")
    with closing(socket.socket(socket.AF_UNIX)) as server:
        here = Path.cwd()
        os.chdir(root)  # a socket's path is short
        server.bind("socket")
        os.chdir(here)
    (tmp_path / "ws-beside").mkdir()
    (tmp_path / "ws-beside" / "secret.txt").write_bytes(SECRET)
    return root


@pytest.fixture
def gate(workspace: Path, resolve: Resolver) -> Iterator[FileGate]:
    with FileGate(workspace, resolve) as gate:
        yield gate


def read(gate: FileGate, path: str) -> bytes:
    with gate.open_file(path) as file:
        return file.read()


def write(gate: FileGate, path: str, data: bytes) -> None:
    with gate.place(path) as slot:
        slot.replace(data)


def change(gate: FileGate, path: str, data: bytes) -> None:
    with gate.existing(path) as slot:
        slot.replace(data)


def search(gate: FileGate, path: str) -> list[str]:
    with closing(gate.files(path, frozenset())) as files:
        return [name for name, file in files if file is not None]


def tree(root: Path) -> dict[str, bytes]:
    """Every regular file below `root`, links not followed."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob("*")
        if stat.S_ISREG(path.lstat().st_mode)
    }


ESCAPES = [
    "../outside/secret.txt",
    "sub/../../outside/secret.txt",
    "sub/../../ws/inside.txt",
    "..",
    "sub/../..",
    "{outside}/secret.txt",
    "{workspace}/../outside/secret.txt",
    "{workspace}-beside/secret.txt",
    "/",
    "//etc/passwd",
    "link",
    "near-link",
    "sub/../link",
    "dir-link/secret.txt",
    "near-dir-link/secret.txt",
    "dir-link/../outside/secret.txt",
    "/proc/self/root{outside}/secret.txt",
    "root-link{outside}/secret.txt",
    "cwd-link/pyproject.toml",
    "{workspace}/root-link/etc/passwd",
    "loop",
    "fifo",
    "socket",
    "LINK",
    "Dir-Link/secret.txt",
    "{WORKSPACE}/inside.txt",
    "",
    "\0",
    "inside.txt\0/../../outside/secret.txt",
    "x" * 5000,
    "a/" * 3000 + "b",
    "\ud800",
    "inside.txt/../../outside/secret.txt",
    "inside.txt/x",
]


@pytest.mark.fault("F-37")
@pytest.mark.parametrize("act", [read, search, FileGate.entries, change])
@pytest.mark.parametrize("path", ESCAPES, ids=lambda path: ascii(path[:40]))
def test_a_path_that_leads_elsewhere_is_refused_by_name(
    gate: FileGate, workspace: Path, outside: Path, path: str, act: Callable[..., object]
) -> None:
    path = path.format(workspace=workspace, outside=outside, WORKSPACE=str(workspace).upper())
    before = tree(workspace.parent)
    with pytest.raises(ToolFailed) as refused:
        act(gate, path, b"overwritten") if act is change else act(gate, path)
    assert str(refused.value).startswith(ascii(path[:40])[1:-1] if path else "(empty)")
    str(refused.value).encode()
    assert tree(workspace.parent) == before


ELSEWHERE = [path for path in ESCAPES if path not in {"LINK", "Dir-Link/secret.txt"}]


@pytest.mark.fault("F-37")
@pytest.mark.parametrize("path", ELSEWHERE, ids=lambda path: ascii(path[:40]))
def test_nothing_is_written_elsewhere(
    gate: FileGate, workspace: Path, outside: Path, path: str
) -> None:
    path = path.format(workspace=workspace, outside=outside, WORKSPACE=str(workspace).upper())
    before = tree(workspace.parent)
    with pytest.raises(ToolFailed):
        write(gate, path, b"overwritten")
    assert tree(workspace.parent) == before


@pytest.mark.fault("F-37")
@pytest.mark.parametrize("path", ["LINK", "Dir-Link/secret.txt"])
def test_a_case_variant_of_a_link_never_reaches_what_the_link_does(
    gate: FileGate, outside: Path, path: str
) -> None:
    try:
        write(gate, path, b"new")  # another name where case counts, the same link where not
    except ToolFailed:
        pass
    assert tree(outside) == {"secret.txt": SECRET}


@pytest.mark.fault("F-37")
def test_a_link_is_refused_on_write_even_if_it_stays_inside(
    gate: FileGate, workspace: Path
) -> None:
    (workspace / "alias").symlink_to("inside.txt")
    (workspace / "dangling").symlink_to("not-there.txt")
    for path in ("alias", "dangling"):
        with pytest.raises(ToolFailed, match="link"):
            write(gate, path, b"overwritten")
    assert (workspace / "inside.txt").read_bytes() == b"inside"
    assert not (workspace / "not-there.txt").exists()


@pytest.mark.fault("F-37")
def test_a_hard_link_is_not_written(gate: FileGate, workspace: Path, outside: Path) -> None:
    (workspace / "hard").hardlink_to(outside / "secret.txt")
    for act in (write, change):
        with pytest.raises(ToolFailed, match="hard link"):
            act(gate, "hard", b"overwritten")
    assert (outside / "secret.txt").read_bytes() == SECRET
    assert (workspace / "hard").samefile(outside / "secret.txt")


@pytest.mark.fault("F-37")
def test_magic_links_are_not_followed_even_with_slash_as_workspace(resolve: Resolver) -> None:
    with FileGate(Path("/"), resolve) as gate:
        for path in ("proc/self/root/etc/passwd", "/proc/self/cwd/pyproject.toml"):
            with pytest.raises(ToolFailed):
                read(gate, path)


@pytest.mark.fault("F-37")
def test_a_device_is_neither_read_nor_written(resolve: Resolver) -> None:
    with FileGate(Path("/dev"), resolve) as gate:
        for act in (read, search):
            with pytest.raises(ToolFailed, match="not a regular file"):
                act(gate, "zero")
        with pytest.raises(ToolFailed, match="not a regular file"):
            write(gate, "null", b"x")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


@pytest.mark.fault("F-37")
def test_a_search_follows_no_link_and_opens_only_files(gate: FileGate) -> None:
    assert search(gate, ".") == ["inside.txt", "sub/deep.txt"]


SWAPPER = """
import ctypes, os, sys
os.chdir(sys.argv[1])
libc = ctypes.CDLL(None)
if sys.platform == "linux":
    swap = lambda: libc.renameat2(-100, b"spot", -100, b"link", 2)
else:
    swap = lambda: libc.renamex_np(b"spot", b"link", 2)
assert swap() == 0
print("ready", flush=True)
while swap() == 0:
    pass
"""


@contextmanager
def swapping(root: Path) -> Iterator[None]:
    """A process that swaps `spot` for a link that leads out, and back, without pause."""
    command = [sys.executable, "-I", "-S", "-c", SWAPPER, str(root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as swapper:
        try:
            assert swapper.stdout is not None
            assert swapper.stdout.readline() == b"ready\n"
            yield
            assert swapper.poll() is None
        finally:
            swapper.kill()


def outcomes(times: int, enough: int, act: Callable[[], object]) -> tuple[int, int]:
    """How often `act` worked and was refused in `times` tries, or until it worked `enough`."""
    worked = refused = 0
    while worked + refused < times and worked < enough:
        try:
            act()
            worked += 1
        except ToolFailed:
            refused += 1
    return worked, refused


@pytest.mark.fault("F-37")
def test_a_directory_swapped_for_a_link_in_a_race_lets_no_read_out(
    gate: FileGate, workspace: Path, outside: Path
) -> None:
    (workspace / "spot").mkdir()
    (workspace / "spot" / "secret.txt").write_bytes(b"inside")
    (workspace / "link").unlink()
    (workspace / "link").symlink_to(outside)
    seen = set()
    with swapping(workspace):
        worked, refused = outcomes(10_000, 10_000, lambda: seen.add(read(gate, "spot/secret.txt")))
    assert seen == {b"inside"}
    assert worked
    assert refused


@pytest.mark.fault("F-37")
def test_a_file_swapped_for_a_link_in_a_race_lets_no_read_out(
    gate: FileGate, workspace: Path
) -> None:
    (workspace / "spot").write_bytes(b"inside")
    seen = set()
    with swapping(workspace):
        worked, refused = outcomes(10_000, 10_000, lambda: seen.add(read(gate, "spot")))
    assert seen == {b"inside"}
    assert worked
    assert refused


@pytest.mark.fault("F-37")
@pytest.mark.parametrize("path", ["spot/secret.txt", "spot/new/x.txt"])
def test_a_directory_swapped_for_a_link_in_a_race_lets_no_write_out(
    gate: FileGate, workspace: Path, outside: Path, path: str
) -> None:
    (workspace / "spot").mkdir()
    (workspace / "link").unlink()
    (workspace / "link").symlink_to(outside)
    with swapping(workspace):
        worked, refused = outcomes(10_000, 500, lambda: write(gate, path, b"overwritten"))
    assert worked
    assert refused
    assert tree(outside) == {"secret.txt": SECRET}


@pytest.mark.fault("F-37")
def test_a_file_swapped_for_a_link_in_a_race_lets_no_write_out(
    gate: FileGate, workspace: Path, outside: Path
) -> None:
    (workspace / "spot").write_bytes(b"inside")
    with swapping(workspace):
        _, refused = outcomes(300, 300, lambda: write(gate, "spot", b"overwritten"))
    assert refused
    assert tree(outside) == {"secret.txt": SECRET}


def test_a_file_inside_is_read_by_every_spelling_of_its_path(
    gate: FileGate, workspace: Path
) -> None:
    for path in ("inside.txt", "./inside.txt", "sub/../inside.txt", f"{workspace}//inside.txt"):
        assert read(gate, path) == b"inside"
    assert [entry.name for entry in gate.entries(str(workspace))[0]] == [
        entry.name for entry in gate.entries("sub/..")[0]
    ]


def test_the_kernel_follows_a_link_that_stays_inside(workspace: Path) -> None:
    (workspace / "alias").symlink_to("sub/deep.txt")
    with FileGate(workspace, openat2) as gate:
        assert read(gate, "alias") == b"deep"


def test_the_default_works_wherever_we_are(workspace: Path) -> None:
    with FileGate(workspace) as gate:
        assert read(gate, "sub/deep.txt") == b"deep"


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EPERM])
def test_without_openat2_the_walk_is_used(workspace: Path, code: int) -> None:
    script = FORBIDDEN.format(code=code, root=str(workspace))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert (done.stdout, done.stderr) == (b"b'deep' refused\n", b"")


FORBIDDEN = """
import ctypes, os, struct
from pathlib import Path
from holdfast.core.approval import autorun
from holdfast.errors import ToolFailed
from holdfast.tools.fs.workspace import FileGate

rules = [(0x20, 0, 0, 0), (0x15, 0, 1, 437), (6, 0, 0, 0x50000 | {code}), (6, 0, 0, 0x7FFF0000)]
program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *rule) for rule in rules))
filter = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(rules), ctypes.addressof(program)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, filter, 0, 0) == 0, os.strerror(ctypes.get_errno())
with FileGate(Path({root!r})) as gate:
    with gate.open_file("sub/deep.txt") as file:
        print(file.read(), end=" ")
    try:
        with gate.open_file("link"):
            print("escaped")
    except ToolFailed:
        print("refused")
"""


def test_a_write_keeps_the_mode_and_gives_new_files_a_plain_one(
    gate: FileGate, workspace: Path
) -> None:
    (workspace / "script").write_bytes(b"old")
    (workspace / "script").chmod(0o750)
    write(gate, "script", b"new")
    write(gate, "fresh/deep/file", b"made")
    assert (workspace / "script").read_bytes() == b"new"
    assert stat.S_IMODE((workspace / "script").stat().st_mode) == 0o750
    assert (workspace / "fresh/deep/file").read_bytes() == b"made"
    assert stat.S_IMODE((workspace / "fresh/deep/file").stat().st_mode) == 0o644


def test_a_file_that_changed_since_it_was_looked_at_is_not_replaced(
    gate: FileGate, workspace: Path
) -> None:
    changed = REASONS[errno.ESTALE]
    with pytest.raises(ToolFailed, match=changed), gate.place("inside.txt") as slot:
        (workspace / "inside.txt").write_bytes(b"somebody else's")
        slot.replace(b"ours")
    with pytest.raises(ToolFailed, match=changed), gate.place("later.txt") as slot:
        (workspace / "later.txt").write_bytes(b"somebody else's")
        slot.replace(b"ours")
    assert (workspace / "inside.txt").read_bytes() == b"somebody else's"
    assert not list(workspace.glob(".holdfast-*"))


def test_a_directory_is_not_a_place_for_a_file(gate: FileGate, workspace: Path) -> None:
    before = tree(workspace)
    for path in (".", "sub", "sub/", "new/", "sub/.."):
        with pytest.raises(ToolFailed, match="directory"):
            write(gate, path, b"x")
    assert tree(workspace) == before
    assert not (workspace / "new").exists()


def test_no_directory_is_made_only_to_be_left_again(gate: FileGate, workspace: Path) -> None:
    with pytest.raises(ToolFailed):
        write(gate, "ghost/../x.txt", b"x")
    assert not (workspace / "ghost").exists()


def test_a_missing_workspace_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ToolFailed, match="workspace"):
        FileGate(tmp_path / "gone")


def test_beneath_refuses_what_the_other_resolvers_refuse(workspace: Path) -> None:
    with (
        FileGate(workspace, beneath) as gate,
        pytest.raises(ToolFailed, match=REASONS[errno.EXDEV]),
    ):
        read(gate, "../outside/secret.txt")


@pytest.mark.fault("F-37")
def test_a_workspace_that_became_a_link_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "real" / "inner").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real")
    for path in ("link", "link/inner"):
        with pytest.raises(ToolFailed):
            FileGate(tmp_path / path)
    with FileGate(tmp_path / "real" / "inner"):
        pass


@pytest.mark.parametrize("umask", [0o022, 0o002, 0o077])
def test_new_files_obey_the_users_umask_and_not_the_gateways(workspace: Path, umask: int) -> None:
    ours = os.umask(0o077)
    try:
        with FileGate(workspace, umask=umask) as gate, gate.place("a/b/c.txt") as slot:
            slot.replace(b"x")
    finally:
        os.umask(ours)
    for path in ("a", "a/b"):
        assert (workspace / path).stat().st_mode & 0o777 == 0o777 & ~umask
    assert (workspace / "a/b/c.txt").stat().st_mode & 0o777 == 0o666 & ~umask


def test_a_write_to_holdfasts_own_code_needs_an_approval() -> None:
    clone = Path(__file__).parents[3]
    with FileGate(clone) as opened:
        for path in ("holdfast/tools/exec/shim.py", "holdfast/new.py", "holdfast/a/b.py"):
            assert opened.why_asked(path) == (path, autorun.OURS)
        assert opened.why_asked("README.md") == ("README.md", "")
    with FileGate(clone / "holdfast") as inside:
        assert inside.why_asked("app.py") == ("app.py", autorun.OURS)


def test_a_write_to_a_folder_on_path_is_asked_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "bin").symlink_to("scripts")
    monkeypatch.setenv("PATH", f"{tmp_path}/tools:{tmp_path}/bin:/usr/bin", prepend=":")
    with FileGate(tmp_path) as opened:
        for path, real in (
            ("bin/x", "scripts/x"),
            ("scripts/x", "scripts/x"),
            ("tools/x", "tools/x"),
        ):
            assert opened.why_asked(path) == (real, autorun.ON_PATH)
        assert opened.why_asked("src/x") == ("src/x", "")


@pytest.fixture
def led(workspace: Path) -> Path:
    """A project whose hooks, settings and autorun files are elsewhere in it."""
    for folder in (".git/hooks", "sub", "lib/.real/hooks", "scripts", "conf/vscode", "plain"):
        (workspace / folder).mkdir(parents=True, exist_ok=True)
    (workspace / ".git/hooks/pre-commit").symlink_to("../../scripts/check")
    (workspace / ".git/hooks/post-merge").symlink_to("/usr/bin/true")
    (workspace / ".git/config").write_text(
        "[core]\n\thooksPath = tools/hooks\n\tbare = false\n"
        "[include]\n\tpath = ../shared.gitconfig\n"
        "[diff]\n\texternal = sh scripts/diff\n[alias]\n\tx = !sh scripts/alias\n"
        f'[remote "a"]\n\turl = plain\n[gpg]\n\tprogram = {workspace}/scripts/gpg\n'
    )
    (workspace / ".envrc").symlink_to("conf/env")
    (workspace / ".vscode").symlink_to("conf/vscode")
    (workspace / "sub/.git").write_text("gitdir: ../lib/.real\n")
    (workspace / "lib/.real/config").write_text("[core]\n\tfsmonitor = watch\n")
    return workspace


@pytest.mark.fault("F-44")
def test_a_write_to_what_an_autorun_file_leads_to_is_asked_about(led: Path) -> None:
    with FileGate(led) as opened:
        for path in (
            *("scripts/check", "tools/hooks/pre-push", "shared.gitconfig", "scripts/diff"),
            *("scripts/gpg", "conf/env", "conf/vscode/tasks.json", "sub/watch"),
        ):
            assert opened.why_asked(path) == (path, autorun.LED_TO), path
        for path in ("scripts/other", "scripts/alias", "tools/x", "conf/x", "plain/x", "watch"):
            assert opened.why_asked(path) == (path, ""), path
