"""The provider of the built-in model.

Its process is started by the first request and ended when it was idle for a while (child.py).
`protocol` encodes the requests and parses the answers.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

from holdfast.errors import Rejected
from holdfast.models.builtin.child import (
    Loading,
    ModelProcess,
    ProcessLimits,
    check_memory,
    gigabytes,
)
from holdfast.models.builtin.parts import NAME, ModelFolder
from holdfast.models.builtin.protocol import WINDOW, TurnParser, encode
from holdfast.models.model import Piece, Request
from holdfast.models.peer import Settings
from holdfast.models.transport import EncodedRequest, Server, Transport

STALL_S = 600.0  # it reads a long conversation in silence, on a slow machine for minutes
MEMORY_MB = 1_500  # of the process: 1.1 GB of the model's file, and 0.3 GB of its own
GET_IT = "run: holdfast models pull builtin"


class Builtin:
    """The built-in model."""

    name = NAME

    def __init__(self, folder: ModelFolder, process: ModelProcess) -> None:
        self._folder = folder
        self._process = process
        self._transport: Transport | None = None
        self._key = ""

    async def stream(self, request: Request) -> AsyncGenerator[Piece, None]:
        """Send the request. Yield pieces as they arrive, then the answer."""
        self._check_files()
        async with self._process.use() as address:
            transport = await self._connect(address.url, address.key)
            peer = transport.peer(request.model)
            outgoing = EncodedRequest(
                transport.url / "v1" / "chat" / "completions",
                {
                    "Content-Type": "application/json",
                    "Authorization": f"Bearer {address.key}",
                    "Connection": "close",  # the server would close it at a bad moment
                },
                encode(request),
            )
            parser = TurnParser(peer, request)
            async with aclosing(transport.stream(request, outgoing, parser, peer)) as pieces:
                async for piece in pieces:
                    yield piece

    async def check(self) -> str:
        """Look at the files and the free memory; start nothing."""
        self._check_files()
        check_memory(self._process.limits)
        size = gigabytes(self._folder.files.size)
        return f"{NAME}: {self._folder.files.id} is here ({size}) and runs on this machine"

    async def aclose(self) -> None:
        """End the process."""
        if self._transport is not None:
            await self._transport.aclose()
        await self._process.aclose()

    def _check_files(self) -> None:
        if not self._folder.is_complete:
            raise Rejected(f"the built-in model is not in {self._folder.path}; {GET_IT}")

    async def _connect(self, url: str, key: str) -> Transport:
        """Return the transport to the running process; each process has its own."""
        if self._transport is None or self._key != key:
            former, self._key = self._transport, key
            settings = Settings("the log", "the log", str(self._folder.log))
            self._transport = Transport(Server(NAME, url, key, settings, STALL_S))
            if former is not None:
                await former.aclose()
        return self._transport


def create(home: Path, idle_s: float, threads: int) -> Builtin:
    """Create the provider over the files in `home`. Nothing is started yet."""
    folder = ModelFolder(home)
    loading = Loading(
        str(folder.model),
        (str(folder.library),),
        WINDOW,
        threads,
    )
    return Builtin(folder, ModelProcess(loading, ProcessLimits(MEMORY_MB, idle_s), folder.log))
