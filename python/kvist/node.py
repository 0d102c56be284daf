"""A node of one's own: the bundled `kvist node` as a child process that ends with this one."""

from __future__ import annotations

import logging
import os
import re
import signal
import threading
import weakref
from collections import deque
from types import TracebackType
from typing import Any, Sequence

from kvist import _binary
from kvist._folder import Folder
from kvist._kvist import Client, spawn
from kvist._types import DeadlineExceeded, Error, FailedPrecondition, InvalidArgument, ResourceExhausted

_log = logging.getLogger("kvist.node")
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warn": logging.WARNING, "error": logging.ERROR}


class Node:
    """Starts a node and waits until clients can connect.

        with kvist.Node(memory="4GiB") as node:
            client = node.client()                     # here; other processes: kvist.Client(node.socket)

    memory: for blocks; tables come on top, about 100 bytes a block. socket: path; None: one in a new private folder.
    admin: HOST:PORT of the admin HTTP, port 0: a free one; None: no HTTP. block_bytes: the length that most blocks will
    have, which sets how many the tables have room for. arguments: further ones of `kvist node` (see `kvist node --help`).
    timeout: seconds to wait for its start.

    It is stopped by close(), by leaving the ``with`` block, at the interpreter's exit, when this object and the clients
    that client() made are gone, and when this process dies of whatever (the kernel then sends SIGTERM). A forked child has
    no part in it. A node that must outlive this process is started by `kvist node` or systemd instead. The private folder
    of a process that was killed stays in the temporary folder, empty, until the user's next Node.

    What it logs goes to the logger "kvist.node". Errors of a node that ended at once, with its own text: InvalidArgument (a
    wrong setting), FailedPrecondition (the socket's folder is missing, another node serves it, the admin address is taken),
    ResourceExhausted (memory). DeadlineExceeded: it was not ready in time.
    """

    def __init__(
        self,
        memory: int | str = "1GiB",
        *,
        socket: str | os.PathLike[str] | None = None,
        admin: str | None = "127.0.0.1:0",
        block_bytes: int | str | None = None,
        log_level: str = "warn",
        arguments: Sequence[str] = (),
        timeout: float = 30.0,
    ) -> None:
        program = _binary.path()
        folder = None
        if socket is None:
            folder = Folder()
            socket = os.path.join(folder.path, "node.sock")
        self.socket: str = os.fspath(socket)  #: path of the socket that clients connect to
        argv = [program, "node", "--memory", str(memory), "--socket", self.socket, "--admin", admin or "none"]
        argv += ["--log-level", log_level]
        if block_bytes is not None:
            argv += ["--block-bytes", str(block_bytes)]
        self._process = _Process(argv + list(arguments), folder)
        self._used = _Used()
        # Keeps the process, not this object; runs at the interpreter's exit too.
        self._finalizer = weakref.finalize(self._used, self._process.stop)
        try:
            ready = self._process.wait_ready(timeout)
        except BaseException:
            self.close()
            raise
        found = re.search(r" admin=(\S+)", ready)
        #: address of the admin HTTP as HOST:PORT; None: there is none
        self.admin: str | None = found.group(1) if found and found.group(1) != "none" else None

    @property
    def pid(self) -> int:
        """The node's process id."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether its process is there."""
        return self._process.running

    @property
    def returncode(self) -> int | None:
        """How it ended: the exit code, or minus the signal's number; None: it runs."""
        return self._process.returncode

    def client(self, **options: Any) -> Client:
        """A Client of this node; options as of kvist.Client. Until it is closed it keeps the node, as its Spaces do."""
        made = Client(self.socket, **options)
        made._keep(self._used)
        return made

    def close(self, timeout: float = 10.0) -> int | None:
        """Ends the node: SIGTERM, and SIGKILL after `timeout` seconds. Returns its exit code, or None where it has not ended
        as long after that. May be called again.

        Clients go on reading what they have pinned; everything else of theirs raises Unavailable."""
        self._finalizer.detach()
        return self._process.stop(timeout)

    def __enter__(self) -> Node:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = f"pid {self.pid}" if self.running else f"ended with {self.returncode}"
        return f"<kvist.Node {self.socket}, {state}>"


class _Used:
    """What a node and its clients hold, and the node ends with. It refers to neither of them, so that there is no cycle."""

    __slots__ = ("__weakref__",)


class _Process:
    """The child, and the thread that starts it.

    The kernel's death signal comes when the *thread* that started a child ends, so that one must last as long as the child:
    it starts it, passes its log on, and waits for its end.
    """

    def __init__(self, argv: list[str], folder: Folder | None) -> None:
        self._owner = os.getpid()
        self._folder = folder
        self._argv = argv
        self._last: deque[str] = deque(maxlen=50)  # what it said last, for the exception of a failed start
        self._ready = threading.Event()  # the ready line has come, or never will
        self._ended = threading.Event()
        self._started = threading.Event()
        self._reaping = threading.RLock()
        self._logging = threading.Lock()
        self._line = ""
        self._failure: BaseException | None = None  # it was not started
        self._lack: BaseException | None = None  # it was, and had to be ended, whatever it answered to that
        self.pid = -1
        self.returncode: int | None = None
        self._thread = threading.Thread(target=self._run, name="kvist-node", daemon=True)
        self._thread.start()
        self._started.wait()
        if self._failure is not None:
            self._remove_folder()
            raise self._failure

    @property
    def running(self) -> bool:
        return self.pid > 0 and not self._ended.is_set()

    def wait_ready(self, timeout: float) -> str:
        if not self._ready.wait(timeout):
            raise DeadlineExceeded(f"the node was not ready within {timeout} s; what it said: {self._said()}")
        if not self._line:
            self._ended.wait(timeout)
            if self._lack:
                raise ResourceExhausted(f"nobody could follow the node that was started, so it was ended: {self._lack!r}")
            raise _failed_start(self.returncode, self._said())
        return self._line

    def stop(self, timeout: float = 10.0) -> int | None:
        if os.getpid() != self._owner:  # a forked child has its own copy of this, and no business with the node
            return None
        if threading.current_thread() is self._thread:  # a collection that ran there: it must not wait for itself
            self._signal(signal.SIGTERM)
            return None
        if not self._ended.is_set():
            self._signal(signal.SIGTERM)
            if not self._ended.wait(timeout):
                self._signal(signal.SIGKILL)
                if not self._ended.wait(timeout):
                    return None  # the kernel does not let go of it
        self._remove_folder()
        return self.returncode

    def _signal(self, number: int) -> None:
        with self._reaping:
            if not self._ended.is_set():  # so the number still is this child's
                os.kill(self.pid, number)

    def _said(self) -> str:
        return " / ".join(self._last) or "nothing"

    def _remove_folder(self) -> None:
        if self._folder is not None:
            self._folder.remove()

    # ---- in the thread ----

    def _run(self) -> None:
        ends: list[int] = []  # of the pipes: out's two, err's two
        try:
            ends += os.pipe()
            ends += os.pipe()
            # A node must never wait for a reader that is stopped: what does not fit is dropped.
            os.set_blocking(ends[3], False)
            environment = [f"{name}={value}" for name, value in os.environ.items()]
            self.pid = spawn(self._argv, environment, ends[1], ends[3])
        except BaseException as failure:
            self._failure = failure
            for end in ends[0::2]:
                os.close(end)
            return
        finally:
            for end in ends[1::2]:
                os.close(end)
            self._started.set()
        try:
            self._follow(ends[0], ends[2])
        except BaseException as failure:  # no thread or memory for it: it would end with this thread anyway
            self._lack = failure
            self._signal(signal.SIGTERM)
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        with self._reaping:
            _, status = os.waitpid(self.pid, 0)
            self.returncode = os.waitstatus_to_exitcode(status)
            self._ended.set()
        self._ready.set()

    def _follow(self, out: int, err: int) -> None:
        logs = threading.Thread(target=self._read_log, args=(err,), name="kvist-node-log", daemon=True)
        try:
            logs.start()
        except BaseException:
            os.close(out)
            os.close(err)
            raise
        with open(out, encoding="utf-8", errors="replace") as lines:
            self._line = lines.readline()
            if not self._line:
                logs.join()  # what it says of its failure
            with self._logging:
                self._ready.set()
                if self._line:
                    for line in self._last:
                        _pass_on(line)
            for _ in lines:
                pass  # it says nothing more; the end of file is its end

    def _read_log(self, err: int) -> None:
        # Until it is ready what it says is kept: it belongs to the exception of a start that fails.
        with open(err, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                line = line.rstrip()
                with self._logging:
                    self._last.append(line)
                    if self._ready.is_set():
                        _pass_on(line)


def _failed_start(returncode: int | None, said: str) -> Error:
    # `kvist node` ends with 2 for what was given wrongly and with 1 for what it found wrong, which is the socket, the admin
    # address or a file, if it is not memory. A signal comes of a lack of memory.
    if returncode == 2:
        return InvalidArgument(f"the node cannot start so: {said}")
    lack = r"(MemAvailable|memory limit of .+) leaves |has no memory for|huge pages are required|shared memory"
    kind = FailedPrecondition if returncode == 1 and not re.search(lack, said) else ResourceExhausted
    return kind(f"the node ended at its start with {returncode}: {said}")


def _pass_on(line: str) -> None:
    found = re.search(r"\blevel=(\w+)", line)
    _log.log(_LEVELS.get(found.group(1), logging.WARNING) if found else logging.WARNING, "%s", line)
