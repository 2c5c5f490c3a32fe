"""A process in place of the built-in model's: the same lines on stdin and stdout, the same wire.

It answers by the last message: `hang` sends the beginning of an answer and no more, `environment`
is its environment, and anything else is said back. With `--relay URL` it names another server. With
`--die` it ends while loading, with `--fail` it says that it cannot load.
"""

import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from typing_extensions import override


class Handler(BaseHTTPRequestHandler):
    key = ""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.headers["Authorization"] != f"Bearer {self.key}":
            self.send_error(401)
            return
        text = asked["messages"][-1]["content"]
        if text == "environment":
            text = json.dumps(dict(os.environ))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        whole = json.dumps({"answer": text})
        self._send(whole[:13])
        if text == "hang":
            threading.Event().wait()
        self._send(whole[13:])
        self.wfile.write(
            b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
        )

    def _send(self, text: str) -> None:
        chunk = json.dumps({"choices": [{"delta": {"content": text}}]})
        self.wfile.write(f"data: {chunk}\n\n".encode())

    @override
    def log_message(self, format: str, *args: object) -> None:
        pass


def _tell(what: dict[str, str]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def main(argv: list[str]) -> None:
    Handler.key = json.loads(sys.stdin.readline())["key"]
    if argv[:1] == ["--die"]:
        os.kill(os.getpid(), 9)
    if argv[:1] == ["--fail"]:
        _tell({"error": "no such file"})
        return
    if argv[:1] == ["--relay"]:
        address = argv[1]
    else:
        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
    _tell({"address": address})
    while os.read(0, 4096):
        pass
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
