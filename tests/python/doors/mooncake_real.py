"""The real Mooncake Store on loopback, for tests and benchmarks that put it beside kvist.mooncake. Ports are free ones."""

import contextlib
import os
import socket
import subprocess
import tempfile
import time

LO = "127.0.0.1"
WHERE_TO_GET_IT = "the package mooncake-transfer-engine-non-cuda is not here: make test-engines ENGINE=mooncake"


def module():
    """mooncake.store, or None with the reason."""
    os.environ["MC_TCP_BIND_ADDRESS"] = LO
    os.environ.setdefault("GLOG_minloglevel", "2")
    try:
        import mooncake.store
    except Exception as error:  # not installed, or a shared library is missing
        return None, f"{WHERE_TO_GET_IT} ({error})"
    return mooncake.store, ""


class Cluster:
    """A master with its metadata server. setup() makes stores of it."""

    def __init__(self, store):
        self._module = store
        self._folder = tempfile.TemporaryDirectory(prefix="kvist-mooncake-master-")
        with contextlib.ExitStack() as stack:
            ports = [stack.enter_context(socket.create_server((LO, 0))).getsockname()[1] for _ in range(3)]
        rpc, metadata, metrics = ports
        self.metadata, self.master = f"http://{LO}:{metadata}/metadata", f"{LO}:{rpc}"
        program = os.path.join(os.path.dirname(store.__file__), "mooncake_master")
        self._process = subprocess.Popen(
            [
                program,
                f"--rpc_port={rpc}",
                f"--rpc_address={LO}",
                "--enable_http_metadata_server=true",
                f"--http_metadata_server_host={LO}",
                f"--http_metadata_server_port={metadata}",
                f"--metrics_host={LO}",
                f"--metrics_port={metrics}",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self._folder.name,
        )
        self._wait_for(rpc)

    def _wait_for(self, port):
        end = time.monotonic() + 20
        while time.monotonic() < end and self._process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection((LO, port), timeout=1):
                return
            time.sleep(0.05)
        self.end()
        raise RuntimeError("mooncake_master did not open its port")

    def setup(self, segment_bytes=256 << 20, buffer_bytes=32 << 20):
        store = self._module.MooncakeDistributedStore()
        code = store.setup(LO, self.metadata, segment_bytes, buffer_bytes, "tcp", "", self.master)
        if code != 0:
            raise RuntimeError(f"Mooncake's setup ended with {code}")
        return store

    def end(self):
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()
