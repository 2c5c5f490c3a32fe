"""The bare path: POST → SQLite → model stream → SSE, and nothing else.

It is what this machine can do with the same libraries and the same durability: a run is
committed (FULL) before its 202, every token is a row and a frame that is sent after its
commit (NORMAL), the end is committed (FULL) before it is told. No machines, no checks, no
keys, no sessions, no recovery: it wants a fresh directory. Every figure of the bench is also
a ratio to this.
"""

import argparse
import asyncio
import itertools
import queue
import sqlite3
import threading
import time
import uuid
from functools import partial
from pathlib import Path

import anyio
import anyio.abc
import msgspec
from aiohttp import ClientSession, ClientTimeout, TCPConnector, web

SCHEMA = """
PRAGMA journal_mode=WAL;
CREATE TABLE IF NOT EXISTS runs (run INTEGER PRIMARY KEY, run_id TEXT UNIQUE, input TEXT, output TEXT);
CREATE TABLE IF NOT EXISTS events (run INTEGER, seq INTEGER, frame BLOB);
CREATE INDEX IF NOT EXISTS events_by_run ON events (run);
"""
READ = "SELECT frame FROM events JOIN runs USING (run) WHERE run_id = ? ORDER BY seq"
STARTED, COMPLETED = "run.started", "run.completed"
SSE = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}


class Run:
    """A run that is not over: its committed frames, and a bell for its readers."""

    numbers = itertools.count(1)

    def __init__(self, text: str) -> None:
        self.number = next(self.numbers)
        self.run_id = "run_" + uuid.uuid4().hex
        self.text = text
        self.output = ""
        self.seq = 0
        self.frames: list[bytes] = []
        self.over = False
        self.changed = asyncio.Event()


Row = tuple[Run, int, str, bytes]  # seq and event; the frame is sent when it is committed


def row(run: Run, event: str, **fields: str) -> Row:
    """The next event of a run."""
    run.seq += 1
    body = {"event": event, "run_id": run.run_id, "timestamp": time.time(), "seq": run.seq}
    frame = b"id: %d\ndata: %s\n\n" % (run.seq, msgspec.json.encode(body | fields))
    return run, run.seq, event, frame


class Journal:
    """One writer thread; what waits for the same commit shares it."""

    def __init__(self, path: Path, loop: asyncio.AbstractEventLoop) -> None:
        self._rows: queue.SimpleQueue[Row] = queue.SimpleQueue()
        self._loop = loop
        self.put = self._rows.put
        self._reader = sqlite3.connect(path)
        self._reader.executescript(SCHEMA)
        threading.Thread(target=self._write, args=(path,), daemon=True).start()

    def read(self, run_id: str) -> bytes:
        """The frames of a run that is over."""
        return b"".join(found[0] for found in self._reader.execute(READ, (run_id,)))

    def _write(self, path: Path) -> None:
        db = sqlite3.connect(path, isolation_level=None)
        while True:
            rows = [self._rows.get()]
            while not self._rows.empty():
                rows.append(self._rows.get())
            new = [(r.number, r.run_id, r.text) for r, _, what, _ in rows if what == STARTED]
            ended = [(r.output, r.number) for r, _, what, _ in rows if what == COMPLETED]
            events = [(r.number, seq, frame) for r, seq, _, frame in rows]
            db.execute(f"PRAGMA synchronous={'FULL' if new or ended else 'NORMAL'}")
            db.execute("BEGIN")
            db.executemany("INSERT INTO runs VALUES (?, ?, ?, NULL)", new)
            db.executemany("INSERT INTO events VALUES (?, ?, ?)", events)
            db.executemany("UPDATE runs SET output = ? WHERE run = ?", ended)
            db.execute("COMMIT")
            self._loop.call_soon_threadsafe(publish, rows)


def publish(rows: list[Row]) -> None:
    """Give committed frames to the readers."""
    for run, _, event, frame in rows:
        run.frames.append(frame)
        run.over = event == COMPLETED
        run.changed.set()


def texts_of(part: bytes) -> list[str]:
    """The text in one event of a model's stream."""
    if not part.startswith(b"data: {"):
        return []
    choices = msgspec.json.decode(part[6:])["choices"]
    return [text for choice in choices if (text := choice["delta"].get("content"))]


class Floor:
    """The three routes and the one task per run."""

    def __init__(self, journal: Journal, client: ClientSession, model: str) -> None:
        self._journal, self._client, self._url = journal, client, model + "/chat/completions"
        self._live: dict[str, Run] = {}

    async def post(self, tasks: anyio.abc.TaskGroup, request: web.Request) -> web.Response:
        run = Run(msgspec.json.decode(await request.read())["input"])
        self._live[run.run_id] = run
        self._journal.put(row(run, STARTED))
        await run.changed.wait()
        tasks.start_soon(self._drive, run)
        body = msgspec.json.encode({"run_id": run.run_id, "status": "started"})
        return web.Response(status=202, body=body, content_type="application/json")

    async def _drive(self, run: Run) -> None:
        messages = [{"role": "user", "content": run.text}]
        body = msgspec.json.encode({"model": "bench", "messages": messages, "stream": True})
        headers = {"Content-Type": "application/json"}
        rest = b""
        async with self._client.post(self._url, data=body, headers=headers) as answer:
            answer.raise_for_status()
            async for data in answer.content.iter_any():
                *parts, rest = (rest + data).split(b"\n\n")
                for part in parts:
                    for text in texts_of(part):
                        run.output += text
                        self._journal.put(row(run, "message.delta", delta=text))
        self._journal.put(row(run, COMPLETED, output=run.output))
        while not run.over:
            run.changed.clear()
            await run.changed.wait()
        del self._live[run.run_id]

    async def events(self, request: web.Request) -> web.StreamResponse:
        run_id = request.match_info["run_id"]
        run = self._live.get(run_id)
        reply = web.StreamResponse(headers=SSE)
        await reply.prepare(request)
        if run is None:
            await reply.write(self._journal.read(run_id))
        else:
            sent = 0
            while sent < len(run.frames) or not run.over:
                if sent == len(run.frames):
                    run.changed.clear()
                    await run.changed.wait()
                for data in run.frames[sent:]:
                    sent += 1
                    await reply.write(data)
        await reply.write(b": stream closed\n\n")
        return reply


async def health(_: web.Request) -> web.Response:
    return web.json_response({"status": "ready"})


async def serve(port: int, home: Path, model: str) -> None:
    """Serve until killed."""
    journal = Journal(home / "floor.db", asyncio.get_running_loop())
    connector = TCPConnector(limit=0)
    async with (
        ClientSession(connector=connector, timeout=ClientTimeout(total=None)) as client,
        anyio.create_task_group() as tasks,
    ):
        floor = Floor(journal, client, model)
        app = web.Application()
        app.router.add_get("/health/ready", health)
        app.router.add_post("/v1/runs", partial(floor.post, tasks))
        app.router.add_get("/v1/runs/{run_id}/events", floor.events)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port, backlog=2048).start()
        await anyio.sleep_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--db", type=Path, required=True)
    parser.add_argument("--model", required=True)
    args = parser.parse_args()
    anyio.run(serve, args.port, args.db, args.model)
