"""botocore's data files, read quickly: they are most of the time that making a client takes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import msgspec
from botocore.loaders import JSONFileLoader, Loader
from botocore.session import Session


class Files(JSONFileLoader):  # type: ignore[misc]  # botocore has no types
    """The files, decoded by msgspec in a third of the time that json needs."""

    def _load_file(self, full_path: str, open_method: Callable[..., Any]) -> Any:
        if not Path(full_path).is_file():
            return None
        with open_method(full_path, "rb") as file:
            return msgspec.json.decode(file.read())


class Models(Loader):  # type: ignore[misc]  # likewise
    """The models of the services: to see whether there is such a service, botocore would look into
    the folders of all four hundred."""

    FILE_LOADER_CLASS = Files

    @classmethod
    def of(cls, session: Session) -> Self:
        """The models where this session looks for them: in `AWS_DATA_PATH` too."""
        said = session.get_config_variable("data_path") or ""
        paths = [os.path.expanduser(os.path.expandvars(one)) for one in said.split(os.pathsep)]  # noqa: PTH111  as botocore does
        return cls(extra_search_paths=[path for path in paths if path])

    def list_available_services(self, type_name: str) -> list[str]:  # noqa: ARG002  botocore's signature
        """The folders that may be services. STS and SSO are among them, which a session asks for
        the credentials of its client."""
        folders = [Path(path) for path in self.search_paths]
        return [one.name for path in folders if path.is_dir() for one in path.iterdir()]
