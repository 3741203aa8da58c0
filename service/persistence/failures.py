"""What the driver's errors are called beyond the stores, which let none of them out."""

from __future__ import annotations

import psycopg
from psycopg import errors

from plimsoll.service.ground.errors import DatabaseUnavailable, Unstorable


def failure_of(error: BaseException | None) -> DatabaseUnavailable | Unstorable | None:
    """Return what an error of the driver means to those who asked; None for a mistake of ours.

    What is the database's trouble becomes `DatabaseUnavailable`, what no database
    could hold becomes `Unstorable`.
    """
    if isinstance(error, errors.UndefinedTable | errors.UndefinedFunction):
        return DatabaseUnavailable("The database lacks our tables: run `plimsoll db upgrade` first.")
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError | psycopg.InternalError):
        return unavailable(error)
    return Unstorable() if isinstance(error, psycopg.DataError) else None


def unavailable(error: BaseException) -> DatabaseUnavailable:
    """Return that the database does not answer, with the first line of the reason."""
    reason = str(error).strip().partition("\n")[0]
    return DatabaseUnavailable(f"The database does not answer: {reason or type(error).__name__}.")
