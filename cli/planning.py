"""`plimsoll plan`, `plimsoll validate` and `plimsoll emit`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from plimsoll.cli.artifact_files import list_artifacts, write_artifacts
from plimsoll.cli.asking import Answering, NoAnswer, answering
from plimsoll.cli.infer_options import INFER
from plimsoll.cli.options import RequestOption
from plimsoll.cli.refusing import refuse
from plimsoll.cli.request_files import UnreadableRequest, merged, read_request
from plimsoll.cli.screen import DOES_NOT_FIT, FITS, NO_ANSWER, print_json, print_text, progress_bar
from plimsoll.cli.train_options import TRAIN
from plimsoll.service.requests.training import ValidationLevel
from plimsoll.service.text.answers import job_text, plan_text

if TYPE_CHECKING:
    from plimsoll.cli.asking import Kind

REFUTED = "refuted"
OPTIONS: Mapping[Kind, Sequence[RequestOption]] = {"train": TRAIN, "infer": INFER}


def plan(
    kind: Kind,
    values: Mapping[str, Any],
    *,
    model: str | None,
    file: Path | None,
    assignments: Sequence[str] | None,
    url: str | None,
    as_json: bool,
    emit: Path | None,
) -> int:
    """Plan and print the answer; return 0 where it fits, 1 where it does not, 2 without an answer."""
    try:
        request = merged(read_request(file), values, assignments, model=model, on_server=url is not None)
        with answering(url) as asked, progress_bar("Planning") as show:
            body = asked.plan(kind, request, show)
        _print_plan(body, as_json=as_json)
        if emit is not None:
            write_artifacts(body["artifacts"], emit)
    except (NoAnswer, UnreadableRequest) as error:
        return refuse(error, OPTIONS[kind])
    return FITS if body["fits"] else DOES_NOT_FIT


def validate(plan_id: str | None, *, file: Path | None, level: str, url: str | None, as_json: bool) -> int:
    """Prove a stored plan, or the plan of a request on disk; return 0, 1 (refuted) or 2 (no proof)."""
    try:
        with answering(url) as asked, progress_bar("Proving") as show:
            if plan_id is not None:
                job = asked.validate(plan_id, _level(level), show)
            else:
                request = {**read_request(file), "validate": level}
                if "training" not in request:
                    raise NoAnswer("Name a plan's id (with --url), or a training request with --file.")
                job = _proof(asked.plan("train", request, show))
    except (NoAnswer, UnreadableRequest) as error:
        return refuse(error, TRAIN)
    if as_json:
        print_json(job)
    else:
        print_text(job_text(job), verdict=job["state"])
    if job["state"] != "succeeded":
        return NO_ANSWER
    return DOES_NOT_FIT if job["result"].get("verdict") == REFUTED else FITS


def emit(
    plan_id: str | None, *, file: Path | None, folder: Path, only_list: bool, url: str | None, as_json: bool
) -> int:
    """Write the launch files of a stored plan, or of a request on disk; return 0 or 2."""
    try:
        with answering(url) as asked:
            body = _planned(plan_id, file, asked)
        if only_list:
            list_artifacts(body["artifacts"], as_json=as_json)
        else:
            write_artifacts(body["artifacts"], folder)
    except (NoAnswer, UnreadableRequest) as error:
        return refuse(error, TRAIN)
    return FITS


def _print_plan(body: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(body)
        return
    print_text(plan_text(body), verdict=body["verdict"])
    if body.get("validation"):
        print_text("\n" + job_text(body["validation"]))
    elif body.get("validation_refusal"):
        print_text(f"\nNot validated: {body['validation_refusal']}\n")


def _level(text: str) -> ValidationLevel:
    known: tuple[ValidationLevel, ...] = get_args(ValidationLevel)
    for level in known:
        if level == text:
            return level
    raise NoAnswer("Refused.", [("--level", f"There are {', '.join(known)}.")])


def _proof(body: Mapping[str, Any]) -> dict[str, Any]:
    if not body.get("validation"):
        raise NoAnswer(f"The plan cannot be proved: {body.get('validation_refusal')}")
    job: dict[str, Any] = body["validation"]
    return job


def _planned(plan_id: str | None, file: Path | None, asked: Answering) -> dict[str, Any]:
    if plan_id is not None:
        return asked.stored_plan(plan_id)
    if file is None:
        raise NoAnswer("Name a plan's id (with --url), or a request with --file.")
    request = read_request(file)
    kind: Kind = "train" if "training" in request else "infer"
    with progress_bar("Planning") as show:
        return asked.plan(kind, request, show)
