"""What is done with a judgement in each namespace, from a TOML file that is read again when it changes."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

import structlog
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from plimsoll.planners.ground.errors import PlimsollError

Mode: TypeAlias = Literal["enforce", "warn", "off"]
log = structlog.get_logger(__name__)


class InvalidPolicy(PlimsollError):
    """The policy file is not TOML, or not of the form that is documented."""

    code = "invalid-policy"


class Policy(BaseModel):
    """One namespace's policy. `on_error` decides what cannot be judged because the service itself is in trouble."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    mode: Mode = "enforce"
    on_error: Literal["allow", "deny"] = "allow"
    gpu: str | None = Field(default=None, description="The GPU where no selector or affinity of the pod names one.")


class PolicyFile(BaseModel):
    """The default, and what namespaces set otherwise."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    default: Policy = Policy()
    namespaces: Mapping[str, Mapping[str, Any]] = Field(default={})

    def of(self, namespace: str) -> Policy:
        """Return a namespace's policy: its own entries over the default's."""
        own = self.namespaces.get(namespace, {})
        return Policy.model_validate({**self.default.model_dump(), **own})


def read_policies(text: str) -> PolicyFile:
    """Return the policies of a file's text; raises InvalidPolicy with the place."""
    try:
        policies = PolicyFile.model_validate(tomllib.loads(text))
        for namespace in policies.namespaces:
            policies.of(namespace)
    except tomllib.TOMLDecodeError as error:
        raise InvalidPolicy(f"The policy file is not TOML: {error}.") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = "/" + "/".join(str(step) for step in first["loc"])
        raise InvalidPolicy(f"The policy file, at {where}: {first['msg']}.") from error
    return policies


class Policies:
    """The policies in force. A change that cannot be read leaves those before it in force, and is logged."""

    def __init__(self, file: Path | None) -> None:
        """Read the file; raises InvalidPolicy, and OSError where it cannot be opened."""
        self._file = file
        self._changed_at_ns = 0
        self._policies = PolicyFile() if file is None else read_policies(file.read_text())
        if file is not None:
            self._changed_at_ns = file.stat().st_mtime_ns

    def of(self, namespace: str) -> Policy:
        """Return a namespace's policy as the file has it now."""
        self._read_again()
        return self._policies.of(namespace)

    def _read_again(self) -> None:
        if self._file is None:
            return
        try:
            changed_at_ns = self._file.stat().st_mtime_ns
            if changed_at_ns == self._changed_at_ns:
                return
            self._changed_at_ns = changed_at_ns
            self._policies = read_policies(self._file.read_text())
            log.info("admission policy read", file=str(self._file))
        except (OSError, UnicodeDecodeError, InvalidPolicy) as error:
            log.error("admission policy not read", file=str(self._file), error=str(error))
