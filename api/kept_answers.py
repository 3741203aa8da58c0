"""What clients may keep: entity tags, `If-None-Match`, and who may keep what.

A stored plan never changes and neither do its files; a model, a GPU or a finished job changes with the version at most.
Such answers may be kept by the client that asked, who asks again whether they still hold: a key may have been revoked.
The tag is a digest of the bytes as they are sent, so that each format and each encoding has one of its own.
"""

from __future__ import annotations

import hashlib
import re
from http import HTTPStatus

from starlette.datastructures import MutableHeaders
from starlette.types import Message

KEPT_PATHS = re.compile(
    r"/plans/[^/]+(/question|/artifacts/[^/]+)?|/jobs/[^/]+|/models(/.+)?|/hardware(/[^/]+)?|/formats|/openapi\.json"
)
BY_ITS_CLIENT = "private, no-cache"
# The key decides whether there is an answer at all, and `Accept` in which form.
VARIES = "Accept, Authorization"
# 128 bits of BLAKE2: two answers of one address never share a tag by chance.
TAG_BYTES = 16


def may_be_kept(start: Message, path: str) -> bool:
    """Return whether an answer to GET may be kept, and say so in its headers where its route did not."""
    if start["status"] != HTTPStatus.OK:
        return False
    given = dict(start["headers"]).get(b"cache-control")
    if KEPT_PATHS.fullmatch(path):
        headers = MutableHeaders(raw=start["headers"])
        headers.add_vary_header(VARIES)
        headers.setdefault("cache-control", BY_ITS_CLIENT)
        return given != b"no-store"
    return given not in (None, b"no-store")


def tagged(start: Message, body: bytes, known_tags: str) -> bytes:
    """Tag an answer and return its body: none, and status 304, where the client knows it."""
    tag = f'"{hashlib.blake2b(body, digest_size=TAG_BYTES).hexdigest()}"'
    MutableHeaders(raw=start["headers"])["etag"] = tag
    if not _is_among(tag, known_tags):
        return body
    start["status"] = HTTPStatus.NOT_MODIFIED.value
    # All others stay: a browser replaces those of its copy with them, a page's own security policy among them.
    start["headers"] = [header for header in start["headers"] if header[0] != b"content-length"]
    return b""


def _is_among(tag: str, known_tags: str) -> bool:
    """Return whether a tag is listed, weak or strong (RFC 9110, section 13.1.2)."""
    listed = [each.strip().removeprefix("W/") for each in known_tags.split(",")]
    return tag in listed or listed == ["*"]
