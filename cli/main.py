"""The `plimsoll` command. Each command imports what it needs when it runs, so that starting is quick."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plimsoll.cli.help_text import GroupedCommand
from plimsoll.cli.infer_options import INFER
from plimsoll.cli.options import (
    URL_VARIABLE,
    command_of,
    file_option,
    json_option,
    model_argument,
    parameter,
    set_option,
    url_option,
)
from plimsoll.cli.quantize_options import QUANTIZE
from plimsoll.cli.train_options import TRAIN

if TYPE_CHECKING:
    from plimsoll.cli.asking import Kind

app = typer.Typer(
    name="plimsoll",
    no_args_is_help=True,
    add_completion=True,
    # Rich takes as long to load as everything else that help needs.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
database = typer.Typer(help="The database's schema.", no_args_is_help=True)
app.add_typer(database, name="db")
keys = typer.Typer(help="The API keys that callers need.", no_args_is_help=True)
app.add_typer(keys, name="keys")

plans = typer.Typer(help="Plan a training job or a deployment.", no_args_is_help=True)
app.add_typer(plans, name="plan")

DEFAULT_URL = "http://127.0.0.1:8000"

Url = Annotated[str | None, url_option()]
AsJson = Annotated[bool, json_option()]
Search = Annotated[str | None, typer.Option(help="Only those in whose id, aliases or name every word of this occurs.")]


def _tell_version(asked: bool) -> None:
    if asked:
        from plimsoll.planners import PLANNER_VERSION
        from plimsoll.planners.version import planner_version

        typer.echo(f"plimsoll {PLANNER_VERSION}, planner {planner_version()}")
        raise typer.Exit


@app.callback()
def plimsoll(
    version: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Plans LLM training jobs and sizes inference KV caches, and proves its plans."""


@app.command()
def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on; default 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Port to listen on; default 8000.")] = None,
    workers: Annotated[int, typer.Option(min=0, help="Worker processes; 0 serves the API alone.")] = 1,
) -> None:
    """Run database, API and workers together until Ctrl-C."""
    from plimsoll.service.ground.settings import Settings
    from plimsoll.service.running.starting import told_in_a_line
    from plimsoll.service.running.supervisor import Supervisor

    given = {"host": host, "port": port}
    with told_in_a_line():
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
    from plimsoll.service.ground.settings import Settings
    from plimsoll.service.running.starting import told_in_a_line
    from plimsoll.service.worker.main import run_worker

    with told_in_a_line():
        settings = Settings()
    run_worker(settings, queues.split(",") if queues else None, concurrency)


@database.command("upgrade")
def database_upgrade() -> None:
    """Bring the schema of the database in PLIMSOLL_DATABASE_URL, or of a running `plimsoll serve`, up to date.

    Many replicas may do so at once. Exit code 0 or 2.
    """
    from plimsoll.cli.database import upgrade_database

    raise typer.Exit(upgrade_database())


@keys.command("create")
def keys_create(
    name: Annotated[str, typer.Argument(help="Whose it is, for the list.")],
    scope: Annotated[
        list[str], typer.Option(help="What it may do: plan, quantize, validate, admin. One option for each.")
    ],
    days: Annotated[int | None, typer.Option(min=1, help="How long it is in force; default: until revoked.")] = None,
) -> None:
    """Make a key and print it, this once."""
    from plimsoll.cli.keys import create_key

    raise typer.Exit(create_key(name, scope, days))


@keys.command("list")
def keys_list() -> None:
    """List every key that was made."""
    from plimsoll.cli.keys import list_keys

    raise typer.Exit(list_keys())


@keys.command("revoke")
def keys_revoke(key_id: Annotated[str, typer.Argument(help="The key's id, as `list` shows it.")]) -> None:
    """Refuse a key from now on."""
    from plimsoll.cli.keys import revoke_key

    raise typer.Exit(revoke_key(key_id))


@app.command()
def demo(
    url: Annotated[str, typer.Option(envvar=URL_VARIABLE, help="Where the service listens.")] = DEFAULT_URL,
) -> None:
    """Plan, validate, size and quantize on a running service."""
    from plimsoll.cli.demo import run_demo

    raise typer.Exit(run_demo(url))


@app.command()
def admit(
    file: Annotated[
        Path, typer.Option("--file", "-f", help="A manifest, YAML or JSON, of one or more objects; - reads it.")
    ],
    policy: Annotated[Path | None, typer.Option(help="The policy file; default: the configured one.")] = None,
) -> None:
    """Say what the admission webhook would. Exit code 0, 1 (refused) or 2 (could not judge)."""
    from plimsoll.cli.admit import admit as admit_file

    raise typer.Exit(admit_file(file, policy))


@app.command()
def calibrate(
    gpu: Annotated[str, typer.Option(help="The GPU that was measured, by id or alias.")],
    file: Annotated[
        Path | None, typer.Argument(help="Measurements as JSON: the body of PUT /hardware/{id}/calibration.")
    ] = None,
    from_record: Annotated[
        bool, typer.Option("--from-record", help="Fit the speeds that were reported of stored plans.")
    ] = False,
    url: Annotated[str, typer.Option(envvar=URL_VARIABLE, help="Where the service listens.")] = DEFAULT_URL,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Fit a GPU's efficiencies to a site's own measurements."""
    from plimsoll.cli.calibrate import run_calibrate

    raise typer.Exit(run_calibrate(url, gpu, file, from_record=from_record, as_json=as_json))


@app.command()
def validate(
    plan_id: Annotated[str | None, typer.Argument(help="A plan that the service stored; needs --url.")] = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="A training request, JSON or YAML.")] = None,
    level: Annotated[str, typer.Option(help="count compares weights, trace and device run a rank.")] = "trace",
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Prove a plan. Exit code 0 where it agrees, 1 where it is refuted, 2 without a proof."""
    from plimsoll.cli.planning import validate as validate_plan

    raise typer.Exit(validate_plan(plan_id, file=file, level=level, url=url, as_json=as_json))


@app.command()
def emit(
    plan_id: Annotated[str | None, typer.Argument(help="A plan that the service stored; needs --url.")] = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="A request, JSON or YAML.")] = None,
    folder: Annotated[Path, typer.Option("--to", help="The folder to write to.")] = Path("launch"),
    only_list: Annotated[bool, typer.Option("--list", help="Only name the files.")] = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Write a plan's launch files into a folder. No file is written over."""
    from plimsoll.cli.planning import emit as emit_files

    raise typer.Exit(emit_files(plan_id, file=file, folder=folder, only_list=only_list, url=url, as_json=as_json))


@app.command()
def models(
    name: Annotated[str | None, typer.Argument(help="A model to describe: as `plan` takes it.")] = None,
    search: Search = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List the models that requests may name, or describe one."""
    from plimsoll.cli.catalogues import models as show_models

    raise typer.Exit(show_models(name, search=search, url=url, as_json=as_json))


@app.command()
def hardware(
    name: Annotated[str | None, typer.Argument(help="A GPU to show, by id or alias.")] = None,
    search: Search = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List the GPUs and clusters that requests may name, or one."""
    from plimsoll.cli.catalogues import hardware as show_hardware

    raise typer.Exit(show_hardware(name, search=search, url=url, as_json=as_json))


@app.command()
def accuracy(
    url: Url = None,
    as_json: AsJson = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print a line for each measurement on record.")] = False,
) -> None:
    """Say how far off a service's predictions on record were."""
    from plimsoll.cli.catalogues import accuracy as show_accuracy

    raise typer.Exit(show_accuracy(url=url, as_json=as_json, as_csv=as_csv))


def _plan(kind: Kind, values: Mapping[str, Any], **others: Any) -> int:
    from plimsoll.cli.planning import plan as plan_request

    return plan_request(kind, values, **others)


def _plan_train(values: Mapping[str, Any], **others: Any) -> int:
    return _plan("train", values, **others)


def _plan_infer(values: Mapping[str, Any], **others: Any) -> int:
    return _plan("infer", values, **others)


def _quantize(values: Mapping[str, Any], **others: Any) -> int:
    from plimsoll.cli.quantizing import quantize

    return quantize(values, **others)


_EMIT = parameter(
    "emit",
    Path | None,
    None,
    typer.Option(help="Also write the plan's launch files into this folder."),
)
EXAMPLE_ASSIGNMENTS = {
    "train": "training.evaluation.samples=64",
    "infer": "serving.input_length.p99=6000",
    "quantize": "model.config.num_hidden_layers=4",
}
"""A field without an option of its own, for the help of each command."""


def _asked(command: str) -> tuple[inspect.Parameter, ...]:
    """Return the parameters that every command with a request has."""
    return (
        model_argument(),
        file_option(),
        set_option(EXAMPLE_ASSIGNMENTS[command]),
        parameter("url", str | None, None, url_option()),
        parameter("as_json", bool, False, json_option()),
    )


plans.command(
    "train",
    cls=GroupedCommand,
    help="Plan a training job. Exit code 0 where it fits, 1 where it does not, 2 without an answer.",
)(command_of(_plan_train, TRAIN, *_asked("train"), _EMIT))
plans.command(
    "infer",
    cls=GroupedCommand,
    help="Size a serving deployment. Exit code 0 where it fits, 1 where it does not, 2 without an answer.",
)(command_of(_plan_infer, INFER, *_asked("infer"), _EMIT))
app.command(
    "quantize",
    cls=GroupedCommand,
    help="Quantize a model, dry or for real, and measure the error. Exit code 0 or 2.",
)(command_of(_quantize, QUANTIZE, *_asked("quantize")))


def main() -> None:
    """Run the command line."""
    app()


if __name__ == "__main__":
    main()
