from __future__ import annotations

import pytest

from plimsoll.api.errors import STATUS_OF_CODE
from plimsoll.client import errors
from plimsoll.service.ground.problems import Problem


@pytest.mark.parametrize(
    ("status", "kind"),
    [(401, errors.NotAllowed), (404, errors.NotFound), (409, errors.Conflict), (422, errors.WrongQuestion),
     (405, errors.WrongQuestion), (429, errors.TryLater), (501, errors.NotYetAvailable), (500, errors.ServiceFailed),
     (504, errors.ServiceFailed)],
)  # fmt: skip
def test_each_status_has_its_exception(status: int, kind: type[errors.Refused]):
    problem = Problem(type="t", title="t", status=status, detail="The reason.", code="c")
    error = errors.refusal(problem, retry_after_seconds=None)
    assert type(error) is kind
    assert str(error) == "The reason."


def test_every_error_of_the_service_becomes_one_of_these():
    for code, status in STATUS_OF_CODE.items():
        problem = Problem(type="t", title="t", status=status, detail="d", code=code)
        assert errors.refusal(problem, retry_after_seconds=None).problem.code == code
