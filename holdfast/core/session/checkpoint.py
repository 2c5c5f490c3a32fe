"""A checkpoint: a session as one of its facts left it, so that loading it need not read earlier ones.

It is made when the history is compacted, and holds what goes on from there: the session, and of its
transcript what the model reads. What people read (earlier messages, undone ones) stays in the
journal. A checkpoint may be lost: the facts from the first one on give the same session.

Its data begins with a digest of the shapes of everything in it. A program in which one of them
differs does not read it. `MEANING` is part of the digest: raise it when the same facts lead to
another session or transcript of the same shape.
"""

from functools import cache
from hashlib import sha256

import msgspec
from msgspec.structs import replace

from holdfast.core.session.history import Excerpt, Transcript
from holdfast.core.session.session import Session
from holdfast.core.types import RunId, Value

MEANING = 1
MOST = 8 * 1024 * 1024  # bytes; a bigger one is not kept
_DIGEST = 32


class Checkpoint(Value):
    session: Session
    excerpt: Excerpt


def encode(session: Session, transcript: Transcript) -> bytes | None:
    """Return the data of a checkpoint; None if it is too big to be worth it."""
    made = Checkpoint(replace(session, ended=None), transcript.excerpt(session.runs.keys()))
    data = _shape() + msgspec.msgpack.encode(made)
    return data if len(data) <= MOST else None


def decode(data: bytes) -> Checkpoint | None:
    """Return the checkpoint; None if another version made it, or if it is damaged."""
    if data[:_DIGEST] != _shape():
        return None
    try:
        return msgspec.msgpack.decode(data[_DIGEST:], type=Checkpoint)
    except msgspec.DecodeError:
        return None


def with_runs(session: Session, unfinished: frozenset[RunId]) -> Session:
    """Return the session of a checkpoint without the runs that have ended since."""
    if unfinished >= session.runs.keys():
        return session
    return replace(
        session,
        runs={k: r for k, r in session.runs.items() if k in unfinished},
        inputs={k: i for k, i in session.inputs.items() if i.admitted.run_id in unfinished},
        approvals={k: a for k, a in session.approvals.items() if a.requested.run_id in unfinished},
    )


@cache
def _shape() -> bytes:
    """Return the digest of the shapes. It takes 3 ms, so it is made at the first use."""
    shapes = msgspec.json.encode((MEANING, msgspec.json.schema(Checkpoint)), order="sorted")
    return sha256(shapes).digest()
