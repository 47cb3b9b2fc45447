"""The lowest versions that pyproject.toml allows, as constraints for pip: `make floors`."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path


def constraints(pyproject: str) -> list[str]:
    """One line for each dependency of the package and its extras: exactly its floor."""
    project = tomllib.loads(pyproject)["project"]
    asked = [*project["dependencies"]]
    for extra, names in project["optional-dependencies"].items():
        asked += [] if extra == "testing" else names
    floors = [re.fullmatch(r"([\w-]+)(?:\[.*\])?>=([\d.]+)", one) for one in asked]
    return sorted({f"{floor[1]}=={floor[2]}" for floor in floors if floor})


if __name__ == "__main__":
    file = Path(__file__).parent.parent / "pyproject.toml"
    sys.stdout.write("\n".join(constraints(file.read_text())) + "\n")
