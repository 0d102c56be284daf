"""The namespace that one side of the connector works in: opened by what it is called now, opened anew when that changes."""

from __future__ import annotations

import logging

import kvist
from kvist._door import Link
from kvist.vllm.identity import Maker
from kvist.vllm.settings import Settings
from kvist.vllm.step import Name


class Names:
    """Holds the Link, which is one of a namespace whose identity is known: here it is known with the first name, which with a
    random hash seed comes after the first request, and names follow each other. One thread."""

    def __init__(self, maker: Maker, settings: Settings, who: str, log: logging.Logger) -> None:
        self.maker, self.link, self.name = maker, None, ("", "")  # type: Maker, Link | None, Name
        self._settings, self._who, self._log = settings, who, log

    def use(self, name: Name) -> Link:
        """The link to the namespace of this name."""
        if self.link is None:
            self.link = Link(self._settings, self.maker.identity(name), name=self._who, log=self._log)
        elif name != self.name:
            self.link.reopen(self.maker.identity(name))
        self.name = name
        return self.link

    def space(self) -> kvist.Space | None:
        """What to work with; None: nothing now."""
        return self.link.space() if self.link is not None else None

    def failed(self, error: kvist.Error) -> None:
        if self.link is not None:
            self.link.failed(error)

    def counts(self) -> dict[str, int] | None:
        return self.link.counts if self.link is not None else None

    def close(self) -> None:
        if self.link is not None:
            self.link.close()
