"""What the API listens with: each thing that is wrong is named, with its path or port."""

import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from plimsoll.service.ground.settings import Settings
from plimsoll.service.running.listening import check_address, check_listening
from plimsoll.service.running.starting import CannotStart

OPENSSL = shutil.which("openssl")


def test_a_free_port_may_be_listened_on_right_after():
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = used.getsockname()[1]
        with pytest.raises(CannotStart) as refused:
            check_address("127.0.0.1", port)
    assert str(refused.value) == (
        f"Port {port} of 127.0.0.1 is in use. Stop what listens there, or choose another port with --port or "
        "PLIMSOLL_PORT."
    )
    check_address("127.0.0.1", port)
    socket.create_server(("127.0.0.1", port)).close()


@pytest.mark.parametrize(
    ("host", "told"),
    [
        # TEST-NET-3 of RFC 5737: no machine has it.
        ("203.0.113.7", "203.0.113.7 (PLIMSOLL_HOST) is no address of this machine."),
        ("no such name", "no such name (PLIMSOLL_HOST) is no host name or address:"),
    ],
)
def test_a_host_that_is_not_this_machine_is_named(host: str, told: str):
    with pytest.raises(CannotStart) as refused:
        check_address(host, 0)
    assert str(refused.value).startswith(told)


@pytest.fixture
def pair(tmp_path: Path) -> dict[str, Path]:
    if OPENSSL is None:
        pytest.skip("certificates are made by openssl")
    command = [OPENSSL, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-subj", "/CN=x", "-keyout", "x.key", "-out", "x.crt"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    return {"tls_certificate_file": tmp_path / "x.crt", "tls_key_file": tmp_path / "x.key"}


def test_a_certificate_with_its_key_is_served(pair: dict[str, Path]):
    check_listening(Settings(port=0, **pair, tls_client_ca_file=pair["tls_certificate_file"]))


@pytest.mark.parametrize("setting", ["tls_certificate_file", "tls_key_file", "tls_client_ca_file"])
def test_a_missing_file_is_named_with_its_setting(pair: dict[str, Path], tmp_path: Path, setting: str):
    missing = tmp_path / "none.pem"
    with pytest.raises(CannotStart) as refused:
        check_listening(Settings(port=0, **{**pair, setting: missing}))
    assert str(refused.value) == f"{missing} (PLIMSOLL_{setting.upper()}) cannot be read: No such file or directory."


def test_what_is_no_certificate_is_named(pair: dict[str, Path], tmp_path: Path):
    text = tmp_path / "text.pem"
    text.write_text("not a certificate")
    for setting in ("tls_certificate_file", "tls_key_file", "tls_client_ca_file"):
        with pytest.raises(CannotStart, match=f"{text} \\(PLIMSOLL_{setting.upper()}\\)"):
            check_listening(Settings(port=0, **{**pair, setting: text}))


def test_a_key_with_a_password_is_refused_and_not_asked_for(pair: dict[str, Path], tmp_path: Path):
    locked = tmp_path / "locked.key"
    command = [str(OPENSSL), "ec", "-in", str(pair["tls_key_file"]), "-aes256", "-passout", "pass:abcd", "-out"]
    subprocess.run([*command, str(locked)], check=True, capture_output=True)
    with pytest.raises(CannotStart, match="without a password"):
        check_listening(Settings(port=0, **{**pair, "tls_key_file": locked}))
