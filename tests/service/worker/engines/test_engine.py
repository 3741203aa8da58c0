from pathlib import Path

import plimsoll.service.worker.engines as folder
from plimsoll.planners.serving.releases.tables import engine_folders
from plimsoll.service.worker.engines.engine import FULL_ATTENTION, engines


def test_every_folder_is_an_engine_that_plans_know():
    names = {
        each.name.replace("_", "-") for each in Path(folder.__file__).parent.iterdir() if (each / "engine.py").is_file()
    }
    assert names == engines().keys() <= set(engine_folders())


def test_full_attention_is_run_of_every_engine():
    assert all(FULL_ATTENTION in engine.cached_kinds for engine in engines().values())


def test_kernels_that_are_stood_in_for_are_told():
    assert all(bool(engine.note) is engine.has_own_kernels for engine in engines().values())
