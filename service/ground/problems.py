"""Problem documents (RFC 9457): the one shape in which every refusal is told."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

MEDIA_TYPE = "application/problem+json"


class ProblemField(BaseModel):
    """One field that is wrong."""

    pointer: str = Field(description="JSON pointer into the request's body, or `/name` of a query parameter.")
    detail: str


class Problem(BaseModel):
    """What went wrong, and where in the request."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(description="`urn:plimsoll:problem:` and the code.")
    title: str
    status: int
    detail: str
    code: str = Field(description="Stable; clients may rely on it.")
    errors: list[ProblemField] = Field(default=[], description="The fields at fault, where there are any.")
