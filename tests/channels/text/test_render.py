"""Rendering: what a model wrote arrives whole, as Telegram takes it, and nothing else does."""

import html
import re
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.channels.text.links import defang, hosts
from holdfast.channels.text.render import RenderedText, telegram, utf16_length
from tests.fakes.telegram_markup import parse_html

NAMED = frozenset({"example.org"})

# Pieces that make markdown, break it, or look like Telegram's own markup.
PIECES = st.sampled_from(
    ["*", "**", "***", "_", "__", "~~", "`", "``", "```", "```py\n", "\n```\n", "~~~\n", "> ", "\n> ",
     "\n", "\n\n", " ", "- ", "\n- ", "\n1. ", "# ", "\n## ", "[", "]", "(", ")", "](", "![", "|",
     "\n|---|---|\n", "| a | b |", "\\", "<", ">", "&", '"', "'", "<b>", "</b>", "<a href=\"x\">",
     "</code>", "&lt;", "&#60;", "https://example.org/a_b", "https://evil.example/x?q=1", "evil.com",
     "www.evil.net/x", "[x](https://example.org/)", "[x](https://evil.example/)", "[x](src/a.py)",
     "word", "Zoë", "😀", "漢字", "e\u0301", "\u200d", "\u202e", "\x00", "\ud800", "a" * 30, "\t", "\r\n"]
)  # fmt: skip
TEXTS = st.lists(st.one_of(PIECES, st.text(max_size=8)), max_size=60).map("".join)


def render(text: str) -> RenderedText | None:
    return telegram(text, named_hosts=NAMED)


def shown(text: str) -> RenderedText:
    part = render(text)
    assert part is not None
    return part


def squeezed(text: str) -> str:
    """Without white space, which is lost where a text is cut."""
    return "".join(text.split())


@given(TEXTS)
@settings(max_examples=400, deadline=None)
def test_any_text_gives_what_telegram_takes(text: str) -> None:
    part = render(text)
    if part is None:
        return
    seen, entities = parse_html(part.html)
    assert seen.strip()
    assert utf16_length(seen) <= utf16_length(part.text)
    part.html.encode()
    code = [e for e in entities if e["type"] in ("code", "pre")]
    for inner in code:
        around = {e["type"] for e in entities if _overlap(e, inner)} - {"code", "pre"}
        assert around <= {"blockquote"}


@given(TEXTS)
@settings(max_examples=300, deadline=None)
def test_it_is_never_longer_than_where_no_host_is_named(text: str) -> None:
    """So a text can be cut before it is known who named what."""
    part, longest = render(text), telegram(text, named_hosts=())
    assert (part is None) == (longest is None)
    assert part is None or longest is None or len(part.text) <= len(longest.text)


def _overlap(one: dict[str, int], other: dict[str, int]) -> bool:
    return (
        one["offset"] < other["offset"] + other["length"]
        and other["offset"] < one["offset"] + one["length"]
    )


@given(TEXTS)
@settings(max_examples=400, deadline=None)
def test_no_word_of_the_input_is_lost(text: str) -> None:
    """It arrives as text, as a link's target or as a language."""
    part = render(text)
    readable = _readable(part.html) if part else ""
    assert [word for word in re.findall(r"[^\W_]+", text) if word not in readable] == []
    lost = Counter(filter(str.isalnum, text)) - Counter(readable)
    assert "](" in text or not lost  # neighbours with one target become one link


def _readable(markup: str) -> str:
    markup = re.sub(r'<a href="([^"]*)">(.*?)</a>', r"\2 \1", markup, flags=re.DOTALL)
    markup = re.sub(r'<pre><code class="language-([^"]*)">', r"\1 ", markup)
    return html.unescape(re.sub(r"<[^>]*>", "", markup))


@given(st.text(st.characters(exclude_characters="*_~`[]()|#>+-\\", exclude_categories=["Cs"])))
@settings(deadline=None)
def test_text_that_only_resembles_markdown_stays_text(text: str) -> None:
    text = re.sub(r"[\x00-\x1f\x7f\u2028-\u202e]", " ", text)
    text = re.sub(r"[.:]", " ", text)  # addresses have their own tests
    if part := render(text):
        assert parse_html(part.html) == (part.text, [])
        assert squeezed(part.text) == squeezed(text)


@pytest.mark.parametrize(
    ("markdown", "rendered"),
    [
        ("plain", "plain"),
        ("**bold** and *it*, __so bold__ and _it_", "<b>bold</b> and <i>it</i>, <b>so bold</b> and <i>it</i>"),
        ("__init__", "__init__"),  # a name, as in a terminal
        ("***both***", "<b><i>both</i></b>"),
        ("**a *b* c**", "<b>a <i>b</i> c</b>"),
        ("~~gone~~ but ~5 to ~6", "<s>gone</s> but ~5 to ~6"),
        ("2 * 3 * 4, snake_case_name, **open", "2 * 3 * 4, snake_case_name, **open"),
        (r"\*not\* \`code\`", "*not* `code`"),
        ("`a < b && **c**`", "<code>a &lt; b &amp;&amp; **c**</code>"),
        ("`` a`b ``", "<code>a`b</code>"),
        ("**`x` y**", "<code>x</code><b> y</b>"),
        ("<b>no</b> &amp; <script>", "&lt;b&gt;no&lt;/b&gt; &amp;amp; &lt;script&gt;"),
        ("# Title *x*\ntext", "<b>Title <i>x</i></b>\ntext"),
        ("- one\n  * two\n+ three\n1. four", "• one\n  • two\n• three\n1. four"),
        ("> a\n> **b**\n\nc", "<blockquote>a\n<b>b</b></blockquote>\n\nc"),
        ("> > deep", "<blockquote>deep</blockquote>"),
        ("a\n\n\n\nb", "a\n\nb"),
        ("```\na < b\n  c\n```", "<pre>a &lt; b\n  c</pre>"),
        ("```c++\nx\n```", '<pre><code class="language-c++">x</code></pre>'),
        ("```py title=a.txt\nx\n```", 'title=a.txt\n<pre><code class="language-py">x</code></pre>'),
        ("1. do\n   ```sh\n   ls\n   ```\n2. done",
         '1. do\n<pre><code class="language-sh">ls</code></pre>\n2. done'),
        ("```\nnever closed", "<pre>never closed</pre>"),
        ("~~~~\n```\n~~~~", "<pre>```</pre>"),
        ("[x](https://example.org/a_(b)?c=1&d)",
         '<a href="https://example.org/a_(b)?c=1&amp;d">x</a>'),
        ("[**x** y](https://example.org/)",
         '<a href="https://example.org/"><b>x</b> y</a>'),
        ("[`x`](https://example.org/)", '<a href="https://example.org/">x</a>'),
        ("![cat](https://example.org/c.png)", '<a href="https://example.org/c.png">cat</a>'),
        ("[file](src/a_b_c.py)", "file (src/a_b_c.py)"),
        ("[me](tg://user?id=1)", "me (tg[:]//user?id=1)"),
        ("[x](javascript:alert`1`)", "x (javascript:alert`1`)"),
        ('[x](https://example.org/"><b>)', '[x](https://example.org/"&gt;&lt;b&gt;)'),
        ("**https://example.org/a_b_**.", "<b>https://example.org/a_b_</b>."),
        ("see https://example.org/a_b_c_d.", "see https://example.org/a_b_c_d."),
        ("| a | b |\n|:--|--:|\n| `x` | **y** z |", "<pre>a | b\n- | ---\nx | y z</pre>"),
        ("a | b\n--|--\n漢字 | \\| |\nafter", "<pre>a    | b\n---- | -\n漢字 | |</pre>\nafter"),
        ("a | b\nno table", "a | b\nno table"),
    ],
)  # fmt: skip
def test_markdown_looks_as_it_is_meant(markdown: str, rendered: str) -> None:
    assert shown(markdown).html == rendered


def test_the_fallback_says_where_links_lead() -> None:
    part = shown("**see** [the docs](https://example.org/d) or `x`")
    assert part.text == "see the docs (https://example.org/d) or x"


@pytest.mark.parametrize("blank", ["", " \n\n ", "```\n\n```", "\x00", "\u200b", ">"])
def test_nothing_to_see_is_nothing_to_send(blank: str) -> None:
    assert render(blank) is None


def test_markup_that_outgrows_its_text_is_left_out() -> None:
    part = shown("***~~a~~*** " * 2000)
    assert part.html == part.text == ("a " * 2000).strip()
    assert "<b>" in shown("***~~a~~*** " * 100).html


def test_indented_code_keeps_its_indent_and_nothing_blank_comes_first() -> None:
    assert shown("\n \n```\n\n    x\n```").html == "<pre>    x</pre>"


@pytest.mark.parametrize(
    ("text", "defanged"),
    [
        ("https://evil.example/a.b?q=s.", "https[:]//evil[.]example/a[.]b?q=s."),
        ("HTTPS://EVIL.example/", "HTTPS[:]//EVIL[.]example/"),
        ("https://example.org@evil.example/x", "https[:]//example[.]org@evil[.]example/x"),
        (r"https://evil.example\@example.org/", r"https[:]//evil[.]example\@example[.]org/"),
        ("https://example.org.evil.example", "https[:]//example[.]org[.]evil[.]example"),
        ("https://sub.example.org/", "https[:]//sub[.]example[.]org/"),
        ("https://example.org/?to=https://evil.example/",
         "https[:]//example[.]org/?to=https[:]//evil[.]example/"),
        ("evil.com+https://example.org/", "evil[.]com+https[:]//example[.]org/"),
        ("1https://evil.example/x", "1https[:]//evil[.]example/x"),
        ("_evil.comhttps://evil.example/x", "_evil[.]comhttps[:]//evil[.]example/x"),
        ("http://10.0.0.1:8080/x", "http[:]//10[.]0[.]0[.]1[:]8080/x"),
        ("https://example.org/)evil.com/x", "https://example.org/)evil[.]com/x"),
        ("https://example.org(@evil.example/", "https[:]//example[.]org(@evil[.]example/"),
        ("..evil.com and a/evil.com", "[.][.]evil[.]com and a/evil[.]com"),
        ("http://[::1]/x", "http[:]//[[:][:]1]/x"),
        ("tg://resolve?domain=evil", "tg[:]//resolve?domain=evil"),
        ("evil.example/path", "evil[.]example/path"),
        ("evil。example/path", "evil[。]example/path"),
        ("see secret.evil.com, now", "see secret[.]evil[.]com, now"),
        ("https://example.org/a.b and http://www.EXAMPLE.org:8080/x", None),
        ("example.org/x and example.org", None),
        ("main.py:12, src/a.py, README.md, v1.2/v1.3, e.g. this and/or that, mail a@b.com", None),
    ],
)  # fmt: skip
def test_addresses_of_unnamed_hosts_are_defanged(text: str, defanged: str | None) -> None:
    expected = text if defanged is None else defanged
    assert defang(text, NAMED) == expected
    assert defang(expected, NAMED) == expected


@given(TEXTS)
@settings(max_examples=300, deadline=None)
def test_no_foreign_address_is_live_in_any_message(text: str) -> None:
    if part := render(text):
        seen, entities = parse_html(part.html)
        assert all(e["url"].startswith("https://example.org/") for e in entities if "url" in e)
        raw = seen.encode("utf-16-le")
        for entity in entities:  # nothing is opened in code
            if entity["type"] in ("code", "pre"):
                start, end = 2 * entity["offset"], 2 * (entity["offset"] + entity["length"])
                raw = raw[:start] + " ".encode("utf-16-le") * entity["length"] + raw[end:]
        for readable in (raw.decode("utf-16-le"), part.text):
            others = re.sub(
                r"https://example\.org(?![\w.@:\-])[^\s<>()\[\]{}\"'«»]*", "x", readable
            )
            assert not re.search(r"https?://\w|(?<![@.\-])\bevil\.(com|net)(?![\w.\-])", others)


def test_markup_cannot_hide_an_address() -> None:
    text = r"evil.c**om**/x https://ev*il*.example/y evil\.com/z [https://example.org](https://evil.example)"
    part = shown(text)
    assert "evil.com" not in part.text
    assert "evil.example" not in part.html
    assert "<a " not in part.html


def test_code_is_shown_as_it_is_but_defanged_where_it_is_not_code() -> None:
    part = shown("`curl https://evil.example/x`")
    assert part.html == "<code>curl https://evil.example/x</code>"
    assert part.text == "curl https[:]//evil[.]example/x"


def test_hosts_are_what_a_user_named() -> None:
    said = (
        "look at https://Docs.Example.org:8443/a?b=c.d, intranet.local, http://box/x and localhost"
    )
    assert hosts(said) >= {"docs.example.org", "intranet.local", "box", "localhost"}
    assert defang("https://docs.example.org/x http://box/y", hosts(said)).count("[") == 0


@pytest.mark.timeout(40)
def test_a_hostile_text_costs_little() -> None:
    """Each takes well under a second; a quadratic pass would run into the limit."""
    for piece in (
        "*a_",
        "[",
        "`",
        "` ",
        "> ",
        "a.",
        "https://",
        "~~a",
        "[a](",
        "a@",
        "```\n",
        "|a|\n|-|\n",
    ):
        render(piece * (60_000 // len(piece)))


@pytest.mark.promise("CHAT-06")
@pytest.mark.parametrize(
    "text",
    [
        "evil.example",
        "go to c2VjcmV0.evil.sh now",
        "evil.travel.",
        "(a.evil.zip)",
        "пример.рф",
        "x+evil.example/y",
    ],
)
def test_a_bare_name_that_a_client_may_open_is_disarmed(text: str) -> None:
    shown = telegram(text, named_hosts=())
    assert shown is not None
    assert "[.]" in shown.html and "[.]" in shown.text
    named = telegram(text, named_hosts=hosts(text))
    assert named is not None and "[.]" not in named.html


@pytest.mark.promise("CHAT-06")
@pytest.mark.parametrize(
    "text",
    ["README.md", "see main.py, notes.txt", "package.lock.json", "3.14", "e.g. this", "好。好的"],
)
def test_names_of_files_numbers_and_sentences_stay(text: str) -> None:
    shown = telegram(text, named_hosts=())
    assert shown is not None and shown.html == text
