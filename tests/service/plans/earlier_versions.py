"""Plans as commits of this repository stored them, by the commit's name and the question's.

Each file holds rows of `plans` that the commit's own service stored for the same few questions; of long lists (launch
files, alternatives, weights, moments) the first items are left.
"""

from __future__ import annotations

import json
from pathlib import Path

from plimsoll.service.persistence.records import StoredPlan

FOLDER = Path(__file__).parent / "stored_by_earlier_versions"


def _plans() -> list[tuple[str, StoredPlan]]:
    found = []
    for file in sorted(FOLDER.glob("*.json")):
        for row in json.loads(file.read_text()):
            name = f"{file.stem}-{row.pop('name')}"
            found.append((name, StoredPlan(**{**row, "answer": json.dumps(row["answer"])})))
    return found


EARLIER = _plans()
