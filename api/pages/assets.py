"""The files that the pages load, addressed by their content so that browsers keep them for good."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

PREFIX = "/assets"
# 64 bits of the SHA-256: they tell versions apart and keep nobody out.
DIGEST_DIGITS = 16

_MEDIA_TYPES = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8"}
# The package that carries Swagger UI, and what it calls the files.
_SWAGGER_PACKAGE = "fastapi_swagger"
_SWAGGER_FILES = ("swagger-ui-bundle.js", "swagger-ui.css")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asset:
    """A file as it is sent."""

    media_type: str
    content: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Assets:
    """All files by name, and the digest of all their contents that stands in their addresses."""

    digest: str
    by_name: dict[str, Asset]

    def url(self, name: str) -> str:
        """Return the address of a file; raises KeyError for one that is not there."""
        self.by_name[name]
        return f"{PREFIX}/{self.digest}/{name}"


@cache
def assets() -> Assets:
    """Return the files, read once."""
    sources = sorted(_sources(), key=lambda source: source.name)
    digest = hashlib.sha256()
    by_name = {}
    for source in sources:
        content = source.read_bytes()
        digest.update(f"{source.name}\0{len(content)}\0".encode())
        digest.update(content)
        by_name[source.name] = Asset(
            media_type=_MEDIA_TYPES[source.name[source.name.rindex(".") :]],
            content=content,
        )
    return Assets(digest=digest.hexdigest()[:DIGEST_DIGITS], by_name=by_name)


@cache
def gzipped(name: str) -> bytes:
    """Return a file compressed, which is done when someone first asks for it; raises KeyError for none such."""
    return gzip.compress(assets().by_name[name].content, mtime=0)


def _sources() -> list[Traversable]:
    own = files(__package__) / "static"
    swagger = files(_SWAGGER_PACKAGE) / "resources"
    return [*own.iterdir(), *(swagger / name for name in _SWAGGER_FILES)]
