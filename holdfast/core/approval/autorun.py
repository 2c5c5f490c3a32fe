"""Autorun paths: files in a workspace that make the user's own programs run code.

A path is in the table if its content runs although the user does not deliberately run code of
the project: the user only enters the directory, uses git in it, opens it in an editor, or asks a
tool for its version. Files that run when the user builds, tests, installs or starts the project
(Makefile, package.json, conftest.py, build.rs, .bazelrc, .cargo/config.toml) are project code and
not in the table. .gitattributes and .gitmodules name no programs: they choose among those that
git's settings define. .editorconfig names none either.

The file tools ask before they write to any of these, in every mode. For commands, the `sealed`
ones are read-only where the sandbox can do that. The others stay writable for commands, because
installing into them is ordinary work.

Names are compared as the least strict file system would: ignoring case, width, invisible
characters and trailing dots, and with NTFS's short name of `.git`.
"""

import re
import unicodedata
from collections.abc import Iterator

from holdfast.core.types import Value


class Autorun(Value):
    """Names that have the same effect, anywhere in the workspace."""

    why: str  # for the user who is asked
    directories: frozenset[str] = frozenset()  # and everything in them
    files: frozenset[str] = frozenset()
    sealed: bool = True


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_LEFTHOOK = frozenset(
    f"{dot}lefthook{local}.{form}"
    for dot in ("", ".")
    for local in ("", "-local")
    for form in ("yml", "yaml", "toml", "json", "jsonc")
)

TABLE: tuple[Autorun, ...] = (
    Autorun(
        "git reads it whenever it is used in this directory, and it can name programs to run",
        _names(".git"),
    ),
    Autorun(
        "it turns its directory into a git repository, whose settings can name programs to run",
        files=_names("head"),
        sealed=False,  # the settings of a new repository are checked after the command
    ),
    Autorun(
        "direnv runs it when a shell enters the directory",
        _names(".direnv"),
        _names(".envrc .envrc.local .envrc.private .autoenv .autoenv.zsh"),
    ),
    Autorun(
        "direnv evaluates it when a shell enters the directory, once its .envrc is trusted",
        files=_names("flake.nix shell.nix devenv.nix devbox.json"),
        sealed=False,  # it also defines how the project is built
    ),
    Autorun(
        "its settings and hooks run whenever this version control is used in the directory",
        _names(".hg .sl .jj .bzr"),
        sealed=False,  # commits are stored in it; its settings files are sealed by name
    ),
    Autorun(
        "hg reads it whenever it is used in this directory, and it names programs to run",
        files=_names("hgrc"),
    ),
    Autorun(
        "it chooses the programs that a version manager starts when you call them by name",
        _names(".mise"),
        _names(
            ".mise.toml mise.toml .mise.local.toml mise.local.toml .rtx.toml .tool-versions "
            "rust-toolchain rust-toolchain.toml .prototools .bazelversion .bazeliskrc "
            "aqua.yaml aqua.yml .aqua.yaml .aqua.yml"
        ),
    ),
    Autorun(
        "it runs when you commit, merge or check out with git",
        _names(".husky .githooks .git-hooks"),
        _names(
            ".pre-commit-config.yaml .pre-commit-config.yml prek.toml .overcommit.yml "
            ".local-overcommit.yml captainhook.json .huskyrc .huskyrc.json .huskyrc.js "
            ".huskyrc.cjs .huskyrc.yaml .huskyrc.yml"
        )
        | _LEFTHOOK,
    ),
    Autorun(
        "your editor runs what it names when it opens the directory",
        _names(".vscode .idea .zed .helix .fleet .nova .theia"),
        _names(".exrc .vimrc .nvimrc .nvim.lua .lvimrc .lazy.lua .dir-locals.el .dir-locals-2.el"),
    ),
    Autorun(
        "a shell or a program reads it at its start, if this directory is a home",
        _names(".ssh .emacs.d .vim"),
        _names(
            ".bashrc .bash_profile .bash_login .bash_logout .bash_aliases .profile .inputrc "
            ".zshrc .zshenv .zprofile .zlogin .zlogout .cshrc .tcshrc .login .kshrc .xprofile "
            ".xinitrc .xsession .emacs .emacs.el .gvimrc .ideavimrc .tmux.conf .screenrc .gitconfig"
        ),
    ),
    Autorun(
        "it runs on a build server, with the secrets of the project, as soon as it is pushed",
        _names(".github .gitea .forgejo .circleci .buildkite .woodpecker .semaphore"),
        _names(
            ".gitlab-ci.yml .gitlab-ci.yaml .travis.yml azure-pipelines.yml azure-pipelines.yaml "
            "bitbucket-pipelines.yml jenkinsfile .drone.yml .cirrus.yml appveyor.yml .appveyor.yml "
            ".woodpecker.yml .woodpecker.yaml"
        ),
    ),
    Autorun(
        "the editor starts a container from it, and runs its commands on your machine",
        _names(".devcontainer"),
        _names(".devcontainer.json"),
    ),
    Autorun(
        "agents and editors start the programs that it names",
        _names(
            ".claude .cursor .codex .gemini .continue .opencode .kiro .windsurf .roo .qwen .crush "
            ".amazonq .junie .trae .augment .cline .kilocode .factory .amp .goose"
        ),
        _names(".mcp.json opencode.json opencode.jsonc crush.json .crush.json .aider.conf.yml"),
    ),
    Autorun(
        "an interpreter or debugger runs it when it is started in the directory",
        files=_names(
            ".rprofile .renviron .irbrc .pryrc .iex.exs .ghci .ocamlinit .octaverc .pdbrc "
            ".gdbinit .lldbinit"
        ),
    ),
    Autorun(
        "Python runs it at every start with its directory on the path",
        files=_names("sitecustomize.py usercustomize.py"),
    ),
    Autorun("mvn reads it at every call, even if you only ask for the version", _names(".mvn")),
    Autorun(
        "npm, yarn and pnpm read it at every call, even if no project code is to run",
        files=_names(".npmrc .yarnrc .yarnrc.yml .pnpmfile.cjs .pnpmfile.mjs"),
    ),
    Autorun("yarn runs its content at every call", _names(".yarn"), sealed=False),
    Autorun(
        "in an activated environment its programs run instead of those you call",
        _names(".venv venv"),
        sealed=False,
    ),
)
_WORKSPACES = ".code-workspace"  # the suffix of VS Code's workspace files
_EDITOR = "your editor runs what it names when it opens it"

_MISE = "it chooses the programs that mise starts when you call them by name"

SETTINGS = {".hg": ("hgrc", "sharedpath"), ".sl": ("config",), ".jj": ("repo/config.toml",)}
"""The files that can name programs in a repository of another version control system."""

GIT_PARTS = ("config", "config.worktree", "commondir", "hooks")
"""The parts of a git repository, worktree or submodule that can name programs."""

BARE = "the directory is a git repository, and this is one of its settings that can name programs"

LED_TO = "a link that your programs follow by themselves, or git's settings, lead to it"

OURS = "it is a part of the running Holdfast, which runs it outside the sandbox"

ON_PATH = "its directory is on your PATH: it runs when you call it by name"

HOOKS = _names(
    "applypatch-msg pre-applypatch post-applypatch pre-commit pre-merge-commit prepare-commit-msg "
    "commit-msg post-commit pre-rebase post-checkout post-merge pre-push pre-receive update "
    "proc-receive post-receive post-update reference-transaction push-to-checkout pre-auto-gc "
    "post-rewrite sendemail-validate fsmonitor-watchman post-index-change"
)

_DIRECTORIES = {name: row for row in TABLE for name in row.directories}
_FILES = {name: row for row in TABLE for name in row.files}
EXACT = frozenset(
    (
        *_DIRECTORIES,
        *_FILES,
        *GIT_PARTS,
        *HOOKS,
        "HEAD",
        "objects",
        "refs",
        ".Rprofile",
        ".Renviron",
        "Jenkinsfile",
    )
)
"""The names to look for in a directory that is too big to list."""

_SHORT = re.compile(r"git~[0-9]+")


def normalize(name: str) -> str:
    """Return the form of `name` in which names are compared."""
    text = unicodedata.normalize("NFKC", name).partition(":")[0]
    text = "".join(c for c in text if unicodedata.category(c) not in ("Cf", "Cc"))
    text = unicodedata.normalize("NFKC", text.casefold()).rstrip(". ")
    return ".git" if _SHORT.fullmatch(text) else text


def why_asked(path: str) -> str:
    """Return why a file tool must ask before it writes to `path`; empty if it need not.

    `path` is relative to the workspace and has no links.
    """
    names = [normalize(part) for part in path.split("/")]
    for name in names:
        if row := _DIRECTORIES.get(name):
            return row.why
    if row := _FILES.get(names[-1]):
        return row.why
    if "mise" in names[:-1] and names[-1].endswith(".toml"):
        return _MISE
    return _EDITOR if names[-1].endswith(_WORKSPACES) else ""


def is_sealed(name: str) -> bool:
    """Tell if a file or directory of this name is read-only for commands.

    Of `.git`, only the parts that can name programs are.
    """
    plain = normalize(name)
    row = _DIRECTORIES.get(plain) or _FILES.get(plain)
    return row.sealed if row else plain.endswith(_WORKSPACES)


def rank(path: str) -> tuple[int, bool, int]:
    """Return the sort key for sealing: the nearest paths first, exact names before similar ones.

    A command can create any number of paths with names that are only similar to one in the table.
    """
    parts = path.split("/")
    at = next((at for at, part in enumerate(parts) if is_git(part)), len(parts) - 1)
    name = parts[at]
    exact = name in _DIRECTORIES or name in _FILES or name in GIT_PARTS
    return at, not exact, len(parts)


def is_asked_within(name: str) -> bool:
    """Tell if file tools ask before they write to anything in a directory of this name."""
    return normalize(name) in _DIRECTORIES


def is_git(name: str) -> bool:
    """Tell if a file or directory of this name is a git repository, or points to one."""
    return normalize(name) == ".git"


# Settings that git or people write and that name no program. Any other setting is refused.
_PLAIN: dict[str, frozenset[str]] = {
    "core": _names(
        "repositoryformatversion filemode bare logallrefupdates ignorecase precomposeunicode "
        "symlinks autocrlf eol safecrlf sharedrepository compression quotepath longpaths "
        "protecthfs protectntfs abbrev sparsecheckout sparsecheckoutcone untrackedcache worktree"
    ),
    "remote": _names("url pushurl fetch push mirror tagopt prune promisor partialclonefilter"),
    "branch": _names("remote merge rebase pushremote description"),
    "user": _names("name email signingkey"),
    "extensions": _names("objectformat partialclone preciousobjects refstorage worktreeconfig"),
    "submodule": _names("url active branch"),
    "init": _names("defaultbranch"),
    "pull": _names("rebase ff"),
    "push": _names("default autosetupremote followtags"),
    "merge": _names("ff conflictstyle"),
    "fetch": _names("prune"),
    "gc": _names("auto"),
    "color": _names("ui"),
    "lfs": _names("repositoryformatversion access"),
}
_HEADER = re.compile(r'\[([A-Za-z][A-Za-z0-9-]*)(?: +"[^"\\]*")?\]')
_SETTING = re.compile(r"([A-Za-z][A-Za-z0-9-]*)(?:[ \t]*=[ \t]*(.*))?")
_PATH = re.compile(r"(?!/)[\w./ -]+")


def is_plain_config(text: str, depth: int) -> bool:
    """Tell if no line of a git configuration names a program. A line not understood may name one.

    `depth` is the number of directories from the workspace down to the repository: its files may
    be elsewhere (`core.worktree`), but not outside the workspace.
    """
    keys: frozenset[str] = frozenset()
    section = ""
    for line in (raw.strip(" \t\r") for raw in text.split("\n")):
        if not line or line[0] in "#;":
            continue
        if header := _HEADER.fullmatch(line):
            section = header[1].lower()
            keys = _PLAIN.get(section, frozenset())
            continue
        setting = _SETTING.fullmatch(line)
        if line.endswith("\\") or not setting or setting[1].lower() not in keys:
            return False
        if not _is_plain_value(section, setting[1].lower(), setting[2] or "", depth):
            return False
    return True


def _is_plain_value(section: str, key: str, value: str, depth: int) -> bool:
    if key == "worktree":
        parts = value.split("/")
        up = parts.count("..")
        return bool(_PATH.fullmatch(value)) and parts[:up] == [".."] * up and up <= depth
    if section == "remote" and key.endswith("url"):
        return "::" not in value  # git would run a remote helper of that name
    return True


_ANY_HEADER = re.compile(r"\s*\[\s*([A-Za-z0-9-]+)[^\]]*\]")
_WORD = re.compile(r"[^\s\"'`;|&<>()!=,]+")
_TREE = "hookspath"  # names a directory, of which every file may run


def named_paths(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the words of a git configuration that may be programs or settings, as paths.

    The second value tells if the path is a directory whose content runs. An alias runs only
    if the user calls it.
    """
    section = ""
    for line in text.split("\n"):
        if header := _ANY_HEADER.match(line):
            section, line = header[1].lower(), line[header.end() :]
        key, _, value = line.strip().partition("=")
        key = key.strip().lower()
        if section != "alias" and key not in _PLAIN.get(section, ()):
            for word in _WORD.findall(value):
                yield word, key == _TREE


def is_plain_commondir(text: str) -> bool:
    """Tell if a worktree's `commondir` is what git writes: the path of its own repository."""
    return text.strip() == "../.."


def is_hook(name: str) -> bool:
    """Tell if git would run a file of this name in the hooks directory."""
    return not normalize(name).endswith(".sample")
