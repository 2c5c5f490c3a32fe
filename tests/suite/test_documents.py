"""Every file that a document names exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "adr").glob("*.md")]
)
PATH = re.compile(r"`((?:[a-z_0-9]+/)+[a-z_0-9]+\.(?:py|sql|sh|md|toml|yaml|txt))`")
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_the_files_that_a_document_names_exist(document: Path) -> None:
    text = document.read_text()
    roots = (ROOT, ROOT / "holdfast")
    paths = [name for name in PATH.findall(text) if not any((r / name).exists() for r in roots)]
    links = [name for name in LINK.findall(text) if not (document.parent / name).exists()]
    assert (paths, links) == ([], [])
