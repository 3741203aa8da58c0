"""Fields of a request carried by name into the question that the planners answer."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from plimsoll.service.requests.values import Wire


class Carried(Wire):
    """A part of a request with a counterpart in the question, whose fields have the same names."""

    counterpart: ClassVar[type[Any]]

    def to_counterpart(self) -> Any:
        """Return the question's part; what is omitted is left to its own defaults."""
        return self.counterpart(**carried(self, self.counterpart))


def carried(part: Wire, question: type[Any]) -> dict[str, Any]:
    """Return the fields of a part of a request as the question has them; of a list of choices the first.

    Raises TypeError where the part has a field that the question lacks: it would have no effect.
    """
    values = ((name, getattr(part, name)) for name in type(part).model_fields)
    without_effect = type(part).model_fields.keys() - {field.name for field in dataclasses.fields(question)}
    if without_effect:
        raise TypeError(f"{question.__name__} has no {', '.join(sorted(without_effect))}.")
    return {name: _value(value) for name, value in values if value is not None}


def _value(value: Any) -> Any:
    if isinstance(value, list):
        return value[0]
    return value.to_counterpart() if isinstance(value, Carried) else value
