"""Addresses in a text: find the hosts that it names, and defang an address. Pure.

An address of a host that the user never named could carry away what the agent knows as soon as a
person or a preview opens it. So it is written in a form that nothing opens (`defang`). An address
is what clients turn into a link: a scheme, a host with a path, a bare name with an ending that may
be a top-level domain. This is a second line of defence; the sender switches previews off.

Everything takes time in proportion to the text: every repetition is possessive, and no match begins
inside text that another attempt has read. Of a very long text, only the beginning is searched for
named hosts; later ones do not count as named, so their addresses are defanged.
"""

import re
import unicodedata
from collections.abc import Collection

# Clients end a path at a bracket or a quote: what follows may be an address of its own.
_PATH = r"[/\\?\#][^\s<>()\[\]{}\"'«»\u2000-\u206f]*"
_ENDS = r"(?<![.,:;!?)\]}'\"*_~])"  # as a sentence does, not an address
ADDRESS = re.compile(
    rf"""(?<![a-z0-9+.\-])[a-z0-9+.\-]*+:[/\\]{{2,}}[^\s<>/\\?\#]*(?:{_PATH})?{_ENDS}
    |(?<![\w@./\\+\-])[\w.+\-]++@(?:[\w\-]++[.。．｡])++[^\W\d_]{{2,}}+(?::\d++)?
       (?=[/\\?\#]\S){_PATH}{_ENDS}
    |(?<![\w@./\\\-])\.*+(?:[\w\-]++[.。．｡])++[^\W\d_]{{2,}}+(?::\d++)?
       (?=[/\\?\#]\S){_PATH}{_ENDS}
    |(?<![\w@.\-])\.*+[\w\-]++(?:[.。．｡][\w\-]++)++(?:(?<=[a-z][a-z])|(?<=рф)|(?<=中国))
       (?![\w\-]|[.。．｡]\w|:[/\\]{{2}})""",
    re.IGNORECASE | re.VERBOSE,
)
_NAME = re.compile(r"(?<![\w\-])[\w\-]++(?:\.[\w\-]++)++|\blocalhost\b|\[[0-9a-fA-F:.]++\]")
LOOKED_AT = 16_384  # characters of a text for the hosts it names

# Endings of files that are no top-level domain, and those that are both.
_FILES = frozenset(
    "bat bmp cfg conf cpp css csv dll exe gif gz hpp html htm ini ipynb java jpeg jpg js json jsonl "
    "jsx kt lock log lua map mjs mp3 mp4 pdf pem php png pyc rb rtf scss so sql sqlite svg swift "
    "tar tex toml ts tsv tsx txt vue wasm wav webp whl xls xlsx xml yaml yml".split()
)
_FILES_OR_DOMAINS = frozenset("md py rs sh pl ps cc go zip mov bz".split())
_BARE = re.compile(r"[\w\-.。．｡]+")
_SCHEME = re.compile(r":[/\\]{2,}")


def defang(text: str, named_hosts: Collection[str]) -> str:
    """Write every address of another host as `https[:]//host[.]example/path`."""
    named = frozenset(map(normal, named_hosts))
    return ADDRESS.sub(lambda m: m[0] if harmless(m[0], named) else bracketed(m[0]), text)


def hosts(text: str) -> frozenset[str]:
    """Return every host that `text` names; from the user's text it is `named_hosts`."""
    text = text[:LOOKED_AT]
    bare = (normal(m[0]) for m in _NAME.finditer(text))
    full = (host for m in ADDRESS.finditer(text) for host in _hosts_of(m[0]))
    return frozenset({*bare, *full} - {""})


def _hosts_of(address: str) -> list[str]:
    """Return each host that an address names, also in its path or query."""
    rests = _SCHEME.split(address)
    return [normal(_host(rest)) for rest in (rests[1:] or rests)]


def _host(rest: str) -> str:
    authority = re.split(r"[/\\?#]", rest, maxsplit=1)[0]
    return re.sub(r":\d*$", "", authority.rpartition("@")[2])


def normal(host: str) -> str:
    return unicodedata.normalize("NFKC", host).casefold().strip(".").removeprefix("www.")


def harmless(address: str, named: Collection[str]) -> bool:
    """Tell whether it leads only to `named` hosts and is not joined to another word by a dot."""
    if _is_file(address):
        return True
    scheme, *rests = _SCHEME.split(address)
    glued = bool(rests) and "." in scheme
    return not glued and all(host in named for host in _hosts_of(address))


def _is_file(address: str) -> bool:
    """Tell whether a bare name is that of a file: `notes.txt`, `README.md`, not `x.evil.md`."""
    stem, _, ending = address.casefold().rpartition(".")
    if not stem or not _BARE.fullmatch(address):
        return False
    return ending in _FILES or (ending in _FILES_OR_DOMAINS and "." not in stem.lstrip("."))


def bracketed(address: str) -> str:
    return re.sub("[.。．｡:]", r"[\g<0>]", address)
