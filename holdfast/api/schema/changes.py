"""Changed files, with their diffs."""

import msgspec


class FileDiffObject(msgspec.Struct, frozen=True):
    """The net change of one file: from before the run or session to its last change."""

    path: str  # below the workspace
    kind: str  # "created", "replaced", "patched" or "deleted"
    added: int  # lines
    removed: int
    before: str  # sha256 of the content; empty: there was no file
    after: str  # empty: there is no file
    mode_before: int  # st_mode: type and permissions; 0: no file
    mode_after: int
    binary: bool
    diff: str  # as git writes it; known secrets are removed
    cut: bool  # the diff is not whole: it is too long
    pruned: bool  # a version is no longer kept, so there is no diff
    run_id: str = ""  # only with `?each=true`
    call_id: str = ""


class DiffResponse(msgspec.Struct, frozen=True, tag_field="object", tag="list"):
    """The answer to GET /v1/runs/{run_id}/diff and GET /api/sessions/{session_id}/diff."""

    data: tuple[FileDiffObject, ...]
    added: int  # lines of all files
    removed: int
