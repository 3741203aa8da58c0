"""The command against a server that answers as the service does."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from plimsoll.cli.calibrate import report_text, run_calibrate

REPORT = {
    "gpu": "h100-sxm-80gb",
    "revision": "abc",
    "fractions": [
        {"name": "link_fraction", "shipped": 0.75, "fitted": 0.7, "resolution": 0.9, "is_identifiable": True},
        {"name": "network_fraction", "shipped": 0.75, "fitted": 0.75, "resolution": 0.0, "is_identifiable": False},
    ],
    "observations": [
        {
            "what": "A run", "measured_seconds": 2.0, "shipped_seconds": 1.0, "fitted_seconds": 1.9,
            "left_out_seconds": 1.5,
        }
    ],
    "error_shipped": {"mean_absolute": 0.5},
    "error_fitted": {"mean_absolute": 0.05},
    "error_left_out": {"mean_absolute": 0.25},
    "serving": [],
    "record": None,
}  # fmt: skip
ENGINE = {
    "engine": "vllm",
    "factors": [{"name": "first_token", "fitted": 1.25, "resolution": 0.6, "is_identifiable": True}],
    **{name: REPORT[name] for name in ("observations", "error_shipped", "error_fitted", "error_left_out")},
}


@contextmanager
def answering(status: int, body: object, kind: str = "application/json") -> Iterator[tuple[str, list[str]]]:
    """Yield a URL on loopback that gives one answer to all, and the paths it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            asked.append(self.path)
            self.rfile.read(int(self.headers["content-length"]))
            sent = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        def log_message(self, *_words: object) -> None:
            """Stay silent."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()
        thread.join()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "measured.json"
    path.write_text('{"microbenchmarks": []}')
    return path


def test_a_report_is_printed_as_tables(file: Path, capsys: pytest.CaptureFixture[str]):
    with answering(200, REPORT) as (url, asked):
        assert run_calibrate(url, "h100 sxm", file, as_json=False) == 0
    assert asked == ["/hardware/h100%20sxm/calibration"]
    text = capsys.readouterr().out
    assert "50.0 % before, 5.0 % after, 25.0 % on measurements left out" in text
    assert "mostly as shipped" in text


def test_a_refusal_names_the_measurement(file: Path, capsys: pytest.CaptureFixture[str]):
    problem = {
        "type": "urn:plimsoll:problem:invalid-question", "title": "Unprocessable Content", "status": 422,
        "detail": "It is absurd.", "code": "invalid-question",
        "errors": [{"pointer": "/microbenchmarks/0", "detail": "It is absurd."}],
    }  # fmt: skip
    with answering(422, problem, "application/problem+json") as (url, _):
        assert run_calibrate(url, "h100", file, as_json=False) == 2
    assert "/microbenchmarks/0: It is absurd." in capsys.readouterr().err


def test_a_server_that_is_another_is_quoted(file: Path, capsys: pytest.CaptureFixture[str]):
    with answering(500, "oh") as (url, _):
        assert run_calibrate(url, "h100", file, as_json=False) == 2
    assert "500" in capsys.readouterr().err


def test_a_file_that_is_not_there_is_said_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert run_calibrate("http://127.0.0.1:1", "h100", tmp_path / "none.json", as_json=False) == 2
    assert "none.json" in capsys.readouterr().err


def test_a_report_is_printed_as_json_where_asked(file: Path, capsys: pytest.CaptureFixture[str]):
    with answering(200, REPORT) as (url, _):
        assert run_calibrate(url, "h100", file, as_json=True) == 0
    assert json.loads(capsys.readouterr().out) == REPORT


def test_without_a_service_the_way_out_is_named(file: Path, capsys: pytest.CaptureFixture[str]):
    assert run_calibrate("http://127.0.0.1:1", "h100", file, as_json=False) == 2
    assert "make serve" in capsys.readouterr().err


def test_fractions_that_ship_are_told_from_those_that_were_measured():
    lines = report_text(REPORT).splitlines()
    assert next(line for line in lines if line.lstrip().startswith("link")).rstrip().endswith("0.90")


def test_an_engines_factors_are_printed_with_its_errors():
    text = report_text({**REPORT, "observations": [], "serving": [ENGINE]})
    assert "vllm: mean error 50.0 % before, 5.0 % after, 25.0 % on measurements left out" in text
    assert "first token" in text
    assert "1.250" in text
    # Nothing was measured of training, and so nothing of it is off by 0.0 %.
    assert "Training" not in text
    assert text.startswith("Calibration abc of h100-sxm-80gb\n\nvllm: ")


def test_a_fit_that_foretells_worse_than_what_ships_says_so():
    assert "predicted worse" not in report_text(REPORT)
    worse = report_text({**REPORT, "error_shipped": {"mean_absolute": 0.2}})
    assert "predicted worse by a fit to the others (25.0 %) than before (20.0 %)" in " ".join(worse.split())
    engine = {**ENGINE, "error_shipped": {"mean_absolute": 0.2}}
    assert "predicted worse" in report_text({**REPORT, "observations": [], "serving": [engine]})


def test_the_record_is_fitted_without_a_file(capsys: pytest.CaptureFixture[str]):
    record = {"used": [3, 5], "unused": [{"measurement_id": 4, "reason": "It names no plan."}]}
    with answering(200, {**REPORT, "record": record}) as (url, asked):
        assert run_calibrate(url, "h100", None, from_record=True, as_json=False) == 0
    assert asked == ["/hardware/h100/calibration"]
    told = capsys.readouterr().out
    assert "on record: 3, 5" in told
    assert "  4: It names no plan." in told


def test_neither_a_file_nor_the_record_is_refused(capsys: pytest.CaptureFixture[str]):
    assert run_calibrate("http://127.0.0.1:1", "h100", None, as_json=False) == 2
    assert "--from-record" in capsys.readouterr().err
