"""What each address asks of its caller: one table, and whatever it does not name needs a key."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from plimsoll.service.persistence.records import KeyScope

Need = Literal["nothing", "any-key", "admission", "metrics"] | KeyScope
"""`any-key`: one of any scope. `admission`: a client's certificate, or `plan`. `metrics`: this machine, or `admin`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What requests need whose method and path match."""

    methods: frozenset[str] | None
    """None: any."""
    path: re.Pattern[str]
    need: Need


def _rule(methods: str, path: str, need: Need) -> Rule:
    # A dot that stops at a line's end would let `/hardware/h100%0A/calibration` by.
    return Rule(methods=frozenset(methods.split()) if methods else None, path=re.compile(path, re.DOTALL), need=need)


# The first that matches holds. Pages and documentation hold nobody's data: they ask for it with the visitor's key.
RULES = (
    _rule("GET", r"/(healthz|readyz)", "nothing"),
    _rule("GET", r"/(ui(/.*)?)?", "nothing"),
    _rule("GET", r"/assets/.+", "nothing"),
    _rule("GET", r"/(docs|openapi\.json)", "nothing"),
    _rule("GET", r"/metrics", "metrics"),
    _rule("POST", r"/admission/validate", "admission"),
    _rule("POST", r"/quantize", "quantize"),
    _rule("POST", r"/plans/[^/]+/validate", "validate"),
    _rule("PUT DELETE", r"/hardware/.*", "admin"),
    _rule("GET", r"/jobs(/.*)?", "any-key"),
    _rule("POST", r"/jobs/[^/]+/cancel", "any-key"),
    _rule("GET", r"/(models|hardware|formats|accuracy)(/.*)?", "any-key"),
    _rule("POST", r"/models/describe", "any-key"),
    _rule("", r"/plan/.*", "plan"),
    _rule("", r"/plans(/.*)?", "plan"),
    _rule("", r"/measurements", "plan"),
    _rule("DELETE", r"/measurements/[^/]+", "admin"),
)


def need_of(method: str, path: str) -> Need:
    """Return what a request needs; a key of any scope where no rule matches."""
    # A head is answered, or refused, like the whole.
    method = "GET" if method == "HEAD" else method
    for rule in RULES:
        if (rule.methods is None or method in rule.methods) and rule.path.fullmatch(path):
            return rule.need
    return "any-key"
