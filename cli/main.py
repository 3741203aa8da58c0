"""The `plimsoll` command. Each command imports what it needs when it runs, so that starting is quick."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="plimsoll",
    help="Plans LLM training jobs and sizes inference KV caches, and proves its plans.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)
database = typer.Typer(help="The database's schema.", no_args_is_help=True)
app.add_typer(database, name="db")
keys = typer.Typer(help="The API keys that callers need.", no_args_is_help=True)
app.add_typer(keys, name="keys")

DEFAULT_URL = "http://127.0.0.1:8000"


@app.command()
def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on; default 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Port to listen on; default 8000.")] = None,
    workers: Annotated[int, typer.Option(min=0, help="Worker processes; 0 serves the API alone.")] = 1,
) -> None:
    """Run database, API and workers together until Ctrl-C."""
    from service.settings import Settings
    from service.supervisor import Supervisor

    given = {"host": host, "port": port}
    settings = Settings().model_copy(update={name: value for name, value in given.items() if value is not None})
    raise typer.Exit(Supervisor(settings, worker_count=workers).run())


@app.command()
def worker(
    queues: Annotated[
        str | None, typer.Option(help="Queues to serve, comma-separated; default: what this machine can do.")
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Jobs to run at once.")] = 1,
) -> None:
    """Run one worker against the configured database."""
    from service.settings import Settings
    from service.worker.main import run_worker

    run_worker(Settings(), queues.split(",") if queues else None, concurrency)


@database.command("upgrade")
def database_upgrade() -> None:
    """Bring the configured database's schema up to date; safe to run from many replicas at once."""
    from service.persistence.upgrade import upgrade
    from service.settings import Settings

    url = Settings().database_url
    if url is None:
        typer.echo("PLIMSOLL_DATABASE_URL is not set; `plimsoll serve` upgrades its own database by itself.", err=True)
        raise typer.Exit(2)
    upgrade(str(url))
    typer.echo("The schema is up to date.")


@keys.command("create")
def keys_create(
    name: Annotated[str, typer.Argument(help="Whose it is, for the list.")],
    scope: Annotated[
        list[str], typer.Option(help="What it may do: plan, quantize, validate, admin. One option for each.")
    ],
    days: Annotated[int | None, typer.Option(min=1, help="How long it is in force; default: until revoked.")] = None,
) -> None:
    """Make a key and print it, this once."""
    from cli.keys import create_key

    raise typer.Exit(create_key(name, scope, days))


@keys.command("list")
def keys_list() -> None:
    """List every key that was made."""
    from cli.keys import list_keys

    raise typer.Exit(list_keys())


@keys.command("revoke")
def keys_revoke(key_id: Annotated[str, typer.Argument(help="The key's id, as `list` shows it.")]) -> None:
    """Refuse a key from now on."""
    from cli.keys import revoke_key

    raise typer.Exit(revoke_key(key_id))


@app.command()
def demo(
    url: Annotated[str, typer.Option(help="Where the service listens.")] = DEFAULT_URL,
) -> None:
    """Plan, validate, size and quantize one model each against a running service."""
    from cli.demo import run_demo

    raise typer.Exit(run_demo(url))


@app.command()
def admit(
    file: Annotated[Path, typer.Option("--file", "-f", help="A manifest, YAML or JSON, of one or more objects.")],
    policy: Annotated[Path | None, typer.Option(help="The policy file; default: the configured one.")] = None,
) -> None:
    """Say what the admission webhook would: exit code 0, 1 (refused) or 2 (could not judge)."""
    from cli.admit import admit as admit_file

    raise typer.Exit(admit_file(file, policy))


@app.command()
def calibrate(
    file: Annotated[Path, typer.Argument(help="Measurements as JSON: the body of PUT /hardware/{id}/calibration.")],
    gpu: Annotated[str, typer.Option(help="The GPU that was measured, by id or alias.")],
    url: Annotated[str, typer.Option(help="Where the service listens.")] = DEFAULT_URL,
) -> None:
    """Fit the efficiencies of a GPU to a site's own measurements, for the plans to come."""
    from cli.calibrate import run_calibrate

    raise typer.Exit(run_calibrate(url, gpu, file))


def main() -> None:
    """Run the command line."""
    app()


if __name__ == "__main__":
    main()
