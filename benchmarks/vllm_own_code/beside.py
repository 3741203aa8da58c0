"""Let this environment import what another has: `python -m benchmarks.vllm_own_code.beside PATH`.

A path file names the other's packages. This environment's own come first, so that
vLLM's few small packages lie here and all else is the other's.
"""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

NAME = "beside.pth"


def let_in(environment: Path, packages: Path) -> Path:
    """Write the path file into a folder of packages and return it."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    written = packages / NAME
    written.write_text(f"{environment / 'lib' / version / 'site-packages'}\n", encoding="utf-8")
    return written


if __name__ == "__main__":
    let_in(Path(sys.argv[1]), Path(sysconfig.get_paths()["purelib"]))
