"""Draw docs/terminal.svg, the picture in the README, from a real screen.

`python -m scripts.picture` starts `holdfast` on a pseudo-terminal, types what a person would type
and writes the screen as SVG. The model is scripted (tests/fakes); everything else is real: the
engine, the tools, the sandbox and the approval.
"""

import html
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

import anyio
from pyte.screens import Char

from tests.fakes import model_server
from tests.fakes.emulator import FAINT, Emulator, screen
from tests.fakes.gateway import unstarted
from tests.fakes.model_server import ModelServer, serve

TARGET = Path(__file__).parent.parent / "docs" / "terminal.svg"
COLUMNS, ROWS = 92, 30
PROJECT = "garden"
MODEL = "openai/qwen3"
MAKEFILE = "deploy:\n\t./deploy beds.toml\n"
BEDS = "wall = { litres = 12, every_days = 2 }\ngate = { litres = 20, every_days = 7 }\n"
ANSWER = """\
The **wall** bed gets 12 litres every second day. That is too little in July.

| bed | now | better |
|---|---|---|
| wall | every 2 days | daily |
| gate | every 7 days | every 7 days |
"""
CELL_WIDTH, LINE_HEIGHT, FONT_SIZE = 8.43, 19, 14
MARGIN, TITLE_BAR = 18, 34
BACKGROUND, FOREGROUND = "#16181d", "#d7dae0"
COLOURS = {
    FAINT: "#868c98",
    "black": "#5c6370",
    "red": "#e5707a",
    "green": "#8fce7e",
    "brown": "#e2c07c",
    "blue": "#6cb6f5",
    "magenta": "#d08ae8",
    "cyan": "#5cc8d4",
    "white": "#d7dae0",
}


async def shot() -> list[list[Char]]:
    """Hold a short conversation and return the rows of the screen."""
    root = Path(tempfile.gettempdir()) / "demo"  # paths are on the screen: always the same ones
    work = root / PROJECT
    work.mkdir(parents=True)
    try:
        (work / "beds.toml").write_text(BEDS)
        (work / "Makefile").write_text(MAKEFILE)
        async with serve() as model, unstarted(root, model.base_url) as home:
            environment = {**home.environment, "HOLDFAST_MODEL": MODEL}
            async with screen(environment, work, columns=COLUMNS, rows=ROWS) as terminal:
                await terminal.until("/help")
                await _converse(terminal, model)
                return terminal.rows()
    finally:
        shutil.rmtree(root)


async def _converse(terminal: Emulator, model: ModelServer) -> None:
    read = model_server.call("read_file", json.dumps({"path": "beds.toml"}))
    model.then(model_server.calls(read), model_server.say(ANSWER, 40, prompt=1840))
    await terminal.say("is beds.toml right for July?")
    await terminal.until("every 7 days")
    edit = {"path": "beds.toml", "old": "every_days = 2", "new": "every_days = 1"}
    change = model_server.call("patch", json.dumps(edit))
    deploy = model_server.call("terminal", json.dumps({"command": "make deploy"}))
    model.then(model_server.calls(change), model_server.calls(deploy))
    await terminal.say("correct it and deploy")
    await terminal.until("[n] no")


def _rows(rows: Sequence[Sequence[Char]]) -> list[list[Char]]:
    """Leave out the empty rows at the top and at the end."""
    filled = [n for n, row in enumerate(rows) if any(cell.data.strip() for cell in row)]
    return [list(row) for row in rows[filled[0] : filled[-1] + 1]]


def _style(cell: Char) -> tuple[str, bool, bool, bool]:
    colour = COLOURS.get(cell.fg.removeprefix("bright"), FOREGROUND)
    return (colour, cell.bold, cell.italics, cell.underscore)


def _runs(row: Sequence[Char]) -> Iterator[tuple[int, str, str]]:
    """Cut a row into pieces of one style: column, SVG attributes, text."""
    column = 0
    for (colour, bold, italic, underline), cells in groupby(row, _style):
        piece = list(cells)
        text = "".join(cell.data for cell in piece)
        attributes = f'fill="{colour}"'
        attributes += ' font-weight="bold"' if bold else ""
        attributes += ' font-style="italic"' if italic else ""
        attributes += ' text-decoration="underline"' if underline else ""
        if text.strip():
            yield column + len(text) - len(text.lstrip()), attributes, text.strip()
        column += len(piece)


def draw(rows: Sequence[Sequence[Char]]) -> str:
    """Return the screen as an SVG document."""
    width = round(2 * MARGIN + COLUMNS * CELL_WIDTH)
    height = TITLE_BAR + len(rows) * LINE_HEIGHT + MARGIN
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img">',
        "<title>A conversation with Holdfast in a terminal</title>",
        f'<rect width="{width}" height="{height}" rx="9" fill="{BACKGROUND}"/>',
    ]
    for number, colour in enumerate(("#e5707a", "#e2c07c", "#8fce7e")):
        out.append(f'<circle cx="{22 + 19 * number}" cy="17" r="5.5" fill="{colour}"/>')
    out.append(
        f'<g font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, DejaVu Sans Mono, monospace" '
        f'font-size="{FONT_SIZE}" xml:space="preserve">'
    )
    for number, row in enumerate(rows):
        y = TITLE_BAR + number * LINE_HEIGHT + FONT_SIZE
        for column, attributes, text in _runs(row):
            x = MARGIN + column * CELL_WIDTH
            length = len(text) * CELL_WIDTH
            out.append(
                f'<text x="{x:.1f}" y="{y}" textLength="{length:.1f}" {attributes}>'
                f"{html.escape(text)}</text>"
            )
    return "\n".join([*out, "</g>", "</svg>", ""])


def main() -> int:
    """Write the picture."""
    TARGET.write_text(draw(_rows(anyio.run(shot))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
