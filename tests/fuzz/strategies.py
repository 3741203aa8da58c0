"""What hostile files and requests are made of."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import strategies as st

# At and beyond what machines, formats and people hold.
HOSTILE_NUMBERS = (
    0, -1, 1, 2, 7, 2**31 - 1, 2**31, 2**53 + 1, 2**63 - 1, 2**63, 2**64, 10**30, 0.5, -0.0, 1e-300, 1e18, 1e300,
)  # fmt: skip
HOSTILE_TEXTS = ("", " ", "0", "-1", "null", "../../etc/passwd", "a" * 2_000, "\x7f", "\u202e", "\U0001f40b", "${x}")

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from(HOSTILE_NUMBERS),
    st.integers(-(2**65), 2**65),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(HOSTILE_TEXTS),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20),
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return where something stands in a JSON value: the path to every member of it."""
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = []
    for name, member in members:
        found += [(*path, name), *places(member, (*path, name))]
    return found


def changed(value: Any, path: tuple[Any, ...], new: Any, *, remove: bool) -> Any:
    """Return a copy of a JSON value with the member at a path replaced, or taken out."""
    result = copy.deepcopy(value)
    holder = result
    for name in path[:-1]:
        holder = holder[name]
    if remove:
        del holder[path[-1]]
    else:
        holder[path[-1]] = new
    return result


@st.composite
def spoiled(draw: st.DrawFn, originals: st.SearchStrategy[Any], *, most_changes: int = 4) -> Any:
    """Draw a sound JSON value with some of its members replaced or taken out."""
    value = draw(originals)
    for _ in range(draw(st.integers(0, most_changes))):
        found = places(value)
        if not found:
            break
        path = draw(st.sampled_from(found))
        value = changed(value, path, draw(values), remove=draw(st.booleans()))
    return value
