"""The process of the built-in model: llama.cpp's server over one model file, on loopback.

It runs standalone and imports nothing of ours. The first line on stdin is its settings, as JSON.
It prints one line of JSON on stdout: its address once the model is loaded, or an error. Its parent
keeps stdin open. When stdin ends, the parent is gone, even if it was killed, and this process ends.
"""

import importlib
import json
import os
import sys
import threading
from typing import Any


def main() -> None:
    """Load the model, serve it, and end with the parent."""
    settings = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.path[:0] = settings["libraries"]
    try:
        server = _serve(settings)
    except (ImportError, RuntimeError, ValueError, OSError) as error:
        _tell({"error": f"{type(error).__name__}: {error}"})
        return
    _tell({"address": server.listening_address})
    threading.Event().wait()


def _serve(settings: dict[str, Any]) -> Any:
    xllamacpp = importlib.import_module("xllamacpp")  # found by the path above
    params = xllamacpp.CommonParams()
    params.model.path = settings["model"]
    params.api_keys = [settings["key"]]
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.n_ctx = settings["window"]
    params.n_parallel = 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = settings["threads"]
    params.no_extra_bufts = True  # no second copy of the weights: 0.6 GB less, as fast
    params.cache_ram_mib = settings["cache_mb"]
    params.warmup = False
    params.ui = False
    params.endpoint_slots = False
    return xllamacpp.Server(params)


def _end_with_parent() -> None:
    while os.read(0, 4096):
        pass
    os._exit(0)


def _tell(what: dict[str, str]) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main()
