"""ApiContext: what every route of one server shares."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from ..errors import NotFound
from ..processes.engine_client import EngineClient
from ..server_args import ServerArgs
from .generation import OpenBodies
from .metrics import ServerMetrics
from .sampling_defaults import SamplingDefaults

_ANY_MODEL = frozenset({"", "default"})


@dataclass(frozen=True, slots=True)
class ApiContext:
    """The engine, the settings and the few things that requests share."""

    client: EngineClient
    args: ServerArgs
    metrics: ServerMetrics
    sampling_defaults: SamplingDefaults
    open_bodies: OpenBodies = field(default_factory=OpenBodies)
    started_unix_seconds: int = field(default_factory=lambda: int(time.time()))

    @property
    def model_name(self) -> str:
        """The name that answers carry."""
        return self.args.model_name

    def check_model(self, name: str | None) -> None:
        """Raise NotFound unless name means the one served model.

        Accepted: the served name, the model or tokenizer path, a path or hub id with the same last
        part as one of these, and what clients send that have no name to give: nothing, "" and
        "default".
        """
        if name is None or name in _ANY_MODEL or _last_part(name) in self._known_names():
            return
        shown = name if len(name) <= 100 else name[:100] + "..."
        raise NotFound(
            f"the model {shown!r} does not exist; this server has {self.model_name!r}",
            param="model",
            code="model_not_found",
        )

    def _known_names(self) -> set[str]:
        args = self.args
        paths = (self.model_name, args.model_path, args.tokenizer_path)
        return {_last_part(path) for path in paths if path is not None}


def _last_part(path: str) -> str:
    return re.sub(r"\.gguf$", "", PurePosixPath(path).name.lower())
