"""The pages' scripts: what they load, what they must never do, and that every one is a program."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from plimsoll.api.pages import assets as assets_module
from plimsoll.service.requests.training import ComparedLayout

STATIC = Path(assets_module.__file__).parent / "static"
SCRIPTS = sorted(path.name for path in STATIC.glob("*.js"))
# Each would read text as markup or as a program.
FORBIDDEN = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "DOMParser")
NODE = shutil.which("node")


@pytest.mark.parametrize("name", SCRIPTS)
def test_no_script_reads_text_as_markup_or_as_a_program(name: str):
    text = (STATIC / name).read_text()
    assert [word for word in FORBIDDEN if word in text] == []


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_import_names_a_script_that_is_there_and_exports_it(name: str):
    for names, source in re.findall(r'import \{ ([^}]+) \} from "\./([^"]+)"', (STATIC / name).read_text()):
        exported = (STATIC / source).read_text()
        for imported in names.split(", "):
            assert re.search(rf"export (async )?(function\*?|const|class) {imported}\b", exported), (name, imported)


def test_every_field_of_a_layout_that_is_compared_is_one_of_the_request():
    text = (STATIC / "alternatives.js").read_text()
    compared = re.search(r"COMPARED = \[(.*?)\];", text, re.DOTALL)
    assert compared is not None
    assert set(re.findall(r'"(\w+)"', compared[1])) <= set(ComparedLayout.model_fields)


def test_every_field_that_an_alternative_fills_is_in_the_form():
    text = (STATIC / "alternatives.js").read_text()
    fields = re.search(r"FIELDS = \{(.*?)\};", text, re.DOTALL)
    assert fields is not None
    form = (STATIC.parent / "templates" / "train.html").read_text()
    assert [name for name in re.findall(r': "([\w.]+)"', fields[1]) if f'"{name}"' not in form] == []


@pytest.mark.skipif(NODE is None, reason="Node.js, which only checks the scripts' syntax here, is not installed.")
@pytest.mark.parametrize("name", SCRIPTS)
def test_every_script_is_a_program(name: str):
    checked = subprocess.run(
        [str(NODE), "--input-type=module", "--check"],
        input=(STATIC / name).read_bytes(),
        capture_output=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr.decode()
