"""Which paths make the user's own programs run code, and which settings of git name no program."""

import pytest

from holdfast.core.approval import autorun

ASKED = """
.git .git/config .git/hooks/pre-commit sub/.git/modules/x/config .GIT/config .Git/config
git~1/config GIT~2 .git./config .git\u200d/config .g\u200cit/config .git::$INDEX_ALLOCATION/config
\uff0egit/config .envrc a/b/.envrc .ENVRC .vscode/tasks.json .vscode/settings.json
.vscode/anything a.code-workspace .idea/workspace.xml .devcontainer/devcontainer.json
.devcontainer.json .claude/settings.json .cursor/mcp.json .mcp.json .direnv/bin/x .mise.toml
mise.toml .tool-versions .husky/pre-commit .pre-commit-config.yaml .npmrc .yarnrc.yml
.yarn/releases/yarn.cjs .venv/bin/python venv/bin/activate HEAD bare/HEAD .exrc .dir-locals.el
.hg/hgrc .hg/sharedpath .HG/hgrc hgrc .sl/config .jj/repo/config.toml .envrc.local flake.nix
.config/mise/config.toml mise/config.toml .config/mise/conf.d/a.toml .config/mise.toml
lefthook-local.yml .lefthook-local.toml .git-hooks/pre_commit/a.rb .huskyrc.js .bazeliskrc
.github/workflows/ci.yml .github/actions/x/action.yml .gitlab-ci.yml .circleci/config.yml Jenkinsfile
.bashrc a/.zshrc .profile .emacs .emacs.d/init.el .vim/vimrc .tmux.conf .ssh/config .gitconfig .travis.yml
sitecustomize.py .Rprofile .irbrc .iex.exs .ghci .mvn/jvm.config .lazy.lua crush.json .qwen/settings.json
""".split()

ORDINARY = """
a.txt src/main.py Makefile package.json README.md .gitignore .gitattributes .gitmodules
github/x .bazelrc .cargo/config.toml git/config config hooks/x gitconfig .gitx
envrc vscode/tasks.json AGENTS.md CLAUDE.md .env .editorconfig header ahead digit~1 ...
mise/main.py .config/x.toml nix/x.nix pom.xml bin/mise .rspec .hgignore .python-version .nvmrc
""".split()


@pytest.mark.parametrize("path", ASKED)
def test_a_write_to_an_autorun_file_is_asked_about(path: str) -> None:
    assert autorun.why_asked(path)


@pytest.mark.parametrize("path", ORDINARY)
def test_ordinary_work_is_not(path: str) -> None:
    assert autorun.why_asked(path) == ""


def test_every_row_says_why_and_every_name_is_in_the_form_that_is_compared() -> None:
    for row in autorun.TABLE:
        assert row.why
        for name in row.directories | row.files:
            assert autorun.normalize(name) == name


def test_commands_may_install_where_file_tools_have_to_ask() -> None:
    assert autorun.is_sealed(".vscode")
    assert autorun.is_sealed(".envrc")
    assert autorun.is_sealed("my.code-workspace")
    assert not autorun.is_sealed(".venv")
    assert not autorun.is_sealed("src")
    assert autorun.is_asked_within(".venv")
    assert not autorun.is_asked_within("HEAD")
    assert autorun.is_git(".GIT")
    assert autorun.is_hook("pre-commit")
    assert not autorun.is_hook("pre-commit.sample")


CLONED = """\
[core]
\trepositoryformatversion = 0
\tfilemode = true
\tbare = false
# a comment \\
[remote "origin"]
\turl = https://example.org/a.git
\tfetch = +refs/heads/*:refs/remotes/origin/*
[branch "main"]
\tremote = origin
\tmerge = refs/heads/main
[extensions]
\tworktreeConfig
"""


@pytest.mark.parametrize(
    ("text", "depth"),
    [
        ("", 1),
        (CLONED, 1),
        (CLONED.replace("\n", "\r\n"), 1),
        ("[core]\n\tworktree = ../../../sub\n", 3),
    ],
)
def test_settings_that_git_writes_itself_are_plain(text: str, depth: int) -> None:
    assert autorun.is_plain_config(text, depth)


@pytest.mark.parametrize(
    "text",
    [
        "[core]\n\tfsmonitor = ./x\n",
        "[core] fsmonitor = ./x\n",
        "[CORE]\n\tFsMonitor\n",
        "[core]\n\tfilemode = true\\\n\tpager = x\n",
        "[core]\n\tfilemode = true\\\r\n\tpager = x\n",
        "[core]\rfsmonitor = x\n",
        "\ufeff[core]\n\tfsmonitor = x\n",
        "[include]\n\tpath = x\n",
        '[includeIf "gitdir:/"]\n\tpath = x\n',
        '[filter "x"]\n\tclean = x\n',
        '[diff "x"]\n\ttextconv = x\n',
        "[alias]\n\tst = !x\n",
        "[core.x]\n\tfilemode = true\n",
        '[remote "x"]\n\turl = ext::sh -c x\n',
        '[remote "x"]\n\tuploadpack = x\n',
        '[submodule "x"]\n\tupdate = !x\n',
        "[core]\n\tworktree = /home/me\n",
        "[core]\n\tworktree = ../../x\n",
        "[core]\n\tworktree = x/../../../y\n",
        '[core]\n\tworktree = "../x"\n',
        "fsmonitor = x\n",
    ],
)
def test_settings_that_may_name_a_program_are_not(text: str) -> None:
    assert not autorun.is_plain_config(text, 1)


def test_a_worktree_belongs_to_the_repository_above_it() -> None:
    assert autorun.is_plain_commondir("../..\n")
    assert not autorun.is_plain_commondir("../../../evil\n")


def test_the_nearest_and_exactly_named_is_sealed_first() -> None:
    found = ["a/b/.envrc", ".ENVRC", ".envrc", "sub/.git/hooks/x", ".git/hooks", ".git/config"]
    assert sorted(found, key=autorun.rank) == [
        ".envrc",
        ".git/hooks",
        ".git/config",
        ".ENVRC",
        "sub/.git/hooks/x",
        "a/b/.envrc",
    ]


def test_the_paths_in_gits_settings_are_found() -> None:
    text = """
[core] hooksPath = scripts/hooks
    fsmonitor = "tools/watch --fast"
    bare = false
[include]
    path=../shared.gitconfig
[alias]
    x = !sh tools/x.sh
[filter "one"]
    clean
    smudge = sh -c 'tools/smudge'; true
"""
    assert list(autorun.named_paths(text)) == [
        ("scripts/hooks", True),
        ("tools/watch", False),
        ("--fast", False),
        ("../shared.gitconfig", False),
        ("sh", False),
        ("-c", False),
        ("tools/smudge", False),
        ("true", False),
    ]
