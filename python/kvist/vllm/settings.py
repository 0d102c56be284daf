"""What an operator can set in `kv_connector_extra_config`: the settings of every door, and those of this one."""

from __future__ import annotations

import dataclasses

from kvist import _door
from kvist._door import count, one_of, seconds, setting, text


@dataclasses.dataclass(frozen=True)
class Settings(_door.Settings):
    """load: "sync" fills the engine's blocks before the step that needs them, "async" between steps; "auto" is "sync" where
    that is safe (CPU, one worker, one KV group), else "async". max_loads: asynchronous loads under way at once. max_saves:
    blocks' stores under way at once, and save_deadline: seconds that a step may wait for room for them; beyond either they
    are dropped, which costs a later miss. model, revision: what names the weights instead of what was found out about them.
    epoch_file: a file whose first line names the weights of an engine that gets new ones while it runs."""

    load: str = setting("auto", one_of("auto", "sync", "async"))
    max_loads: int = setting(8, count)
    max_saves: int = setting(32, count)
    save_deadline: float = setting(0.2, seconds)
    model: str = setting("", text)
    revision: str = setting("", text)
    epoch_file: str | None = setting(None, text)

    def epoch(self) -> str:
        """The first line of epoch_file, "" without one. OSError, UnicodeDecodeError."""
        if self.epoch_file is None:
            return ""
        with open(self.epoch_file, encoding="utf-8") as file:
            return file.readline(4096).strip()
