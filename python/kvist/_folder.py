"""The private folder of a Node's socket, and what becomes of it when its process is killed.

Who made a folder holds a lock on it for as long as it lives, so one without a holder belonged to a process that could not
remove it. The next Node of the same user does that, once the node has taken its socket away: only empty folders go.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile

_PREFIX = "kvist-python-node-"


class Folder:
    """A new folder that only this user may enter."""

    def __init__(self) -> None:
        _remove_left(tempfile.gettempdir())
        while True:
            self.path = tempfile.mkdtemp(prefix=_PREFIX)
            try:
                self._fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
            except FileNotFoundError:  # another process came before the lock, and took it for left
                continue
            fcntl.flock(self._fd, fcntl.LOCK_SH)
            if os.fstat(self._fd).st_nlink > 0:
                return
            os.close(self._fd)  # it came between the two

    def remove(self) -> None:
        """With what is in it. May be called again."""
        if self._fd >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._fd)
            self._fd = -1


def _remove_left(parent: str) -> None:
    try:
        with os.scandir(parent) as entries:
            left = [entry.path for entry in entries if entry.name.startswith(_PREFIX)]
    except OSError:
        return
    for path in left:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:  # another user's, or gone
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.rmdir(path)
        except OSError:  # its process lives, or its node has not ended yet
            pass
        finally:
            os.close(fd)
