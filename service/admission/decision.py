"""What the policy makes of the findings: the answer to a review."""

from __future__ import annotations

from collections.abc import Sequence

from plimsoll.service.admission.findings import Finding
from plimsoll.service.admission.policy import Policy
from plimsoll.service.admission.review import Answer

UNJUDGED = "Plimsoll did not judge this:"


def decided(policy: Policy, findings: Sequence[Finding]) -> Answer:
    refusals = [finding.text for finding in findings if finding.weight == "refuse"]
    warnings = [finding.text for finding in findings if finding.weight == "warn"]
    warnings += [f"{UNJUDGED} {finding.text}" for finding in findings if finding.weight == "unjudged"]
    said = "; ".join(finding.text for finding in findings if finding.weight != "unjudged")
    annotations = {"plimsoll": said} if said else {}
    if refusals and policy.mode == "enforce":
        return Answer(
            is_allowed=False, message=" ".join(refusals), warnings=tuple(warnings), audit_annotations=annotations
        )
    is_judged = bool(refusals) or all(finding.weight != "unjudged" for finding in findings)
    return Answer(is_allowed=True, is_judged=is_judged, warnings=(*refusals, *warnings), audit_annotations=annotations)


def unjudged(reason: str) -> Answer:
    return Answer(is_allowed=True, is_judged=False, warnings=(f"{UNJUDGED} {reason}",))


def in_trouble(policy: Policy, error: Exception) -> Answer:
    reason = (
        "Plimsoll could not judge this in time."
        if isinstance(error, TimeoutError)
        else "Plimsoll failed to judge this."
    )
    if policy.on_error == "deny":
        return Answer(
            is_allowed=False,
            is_judged=False,
            message=f"{reason} The policy of this namespace refuses what was not judged.",
        )
    return Answer(
        is_allowed=True, is_judged=False, warnings=(f"{reason} The policy of this namespace lets it through.",)
    )
