"""A real browser for the tests of pages: Chromium, driven by its own protocol over two pipes.

No test dependency is needed for this: the protocol is one JSON object a message, ended by a zero
byte, on file descriptors 3 (to the browser) and 4 (from it).

References:
    Chrome DevTools Protocol, https://chromedevtools.github.io/devtools-protocol/
"""

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from resstream import AblationResult, CheckReport, Recording

PATIENCE_S = 180.0
"""Longest wait for one answer; a loaded machine with two cores needs a few seconds."""

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--hide-scrollbars",
    "--no-first-run",
    "--remote-debugging-pipe",
)


def find_chromium() -> str | None:
    """Path of a Chromium or Chrome on this machine."""
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    return next((path for name in names if (path := shutil.which(name))), None)


class Tab:
    """One page in the browser; remembers what the page asked for and complained about."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._buffer = b""
        self._serial = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Send one command and wait for its answer; events that come meanwhile are kept."""
        self._serial += 1
        message = {"id": self._serial, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._serial:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def _receive(self) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE_S
        while b"\0" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._from], [], [], left)[0]:
                raise TimeoutError("the browser gives no answer")
            chunk = os.read(self._from, 1 << 20)
            if not chunk:
                raise RuntimeError("the browser has ended")
            self._buffer += chunk
        raw, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(raw)
        if "method" in message:
            self.events.append(message)
        return message

    def evaluate(self, expression: str) -> Any:
        """Value of a JavaScript expression; a promise is waited for."""
        answer = self.send(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def look(self, *, width: int, height: int = 900, dark: bool = False) -> None:
        """Set the size of the screen and the colour scheme that the person prefers."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, path: Path) -> None:
        """Open a file and wait until it is loaded and drawn."""
        self.events.clear()
        self.send("Page.navigate", url=path.absolute().as_uri())
        self.evaluate(
            "new Promise(done => document.readyState === 'complete' ? done()"
            " : addEventListener('load', done))"
        )
        self.settle()

    def settle(self) -> None:
        """Wait for two frames, in which what was asked for is drawn."""
        self.evaluate(
            "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )

    def printed(self) -> bytes:
        """The PDF that a printer would get."""
        return base64.b64decode(self.send("Page.printToPDF")["data"])

    def wait_for(self, expression: str) -> None:
        """Wait until a JavaScript expression is true.

        Raises:
            TimeoutError: It did not become true in time.
        """
        deadline = time.monotonic() + PATIENCE_S
        while not self.evaluate(f"Boolean({expression})"):
            if time.monotonic() > deadline:
                raise TimeoutError(f"never true: {expression}")
            self.settle()

    @property
    def dialogs(self) -> list[str]:
        """What the page wanted to say in a dialog since `open`."""
        opened = [e for e in self.events if e["method"] == "Page.javascriptDialogOpening"]
        return [event["params"]["message"] for event in opened]

    @property
    def requests(self) -> list[str]:
        """Addresses asked for since `open`, data inside the page left out."""
        sent = [e for e in self.events if e["method"] == "Network.requestWillBeSent"]
        urls = [event["params"]["request"]["url"] for event in sent]
        return [url for url in urls if not url.startswith(("data:", "blob:"))]

    @property
    def complaints(self) -> list[str]:
        """Console errors and warnings, exceptions and the browser's own log since `open`."""
        found: list[str] = []
        for event in self.events:
            params = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                found.append(json.dumps(params["exceptionDetails"]))
            elif event["method"] == "Runtime.consoleAPICalled":
                if params["type"] in ("error", "warning", "assert"):
                    found.append(json.dumps(params["args"]))
            elif event["method"] == "Log.entryAdded":
                found.append(params["entry"]["text"])
        return found


@contextlib.contextmanager
def browser(program: str) -> Generator[Tab]:
    """Start `program`, give one tab, and end the browser afterwards."""
    profile = tempfile.mkdtemp(prefix="resstream-browser-")
    child_in, to_browser = _high_pipe()
    from_browser, child_out = _high_pipe()
    null = os.open(os.devnull, os.O_RDWR)
    moves = [(os.POSIX_SPAWN_DUP2, child_in, 3), (os.POSIX_SPAWN_DUP2, child_out, 4)]
    quiet = [(os.POSIX_SPAWN_DUP2, null, 1), (os.POSIX_SPAWN_DUP2, null, 2)]
    argv = [program, *_FLAGS, f"--user-data-dir={profile}", "about:blank"]
    pid = os.posix_spawn(program, argv, os.environ, file_actions=[*moves, *quiet], setpgroup=0)
    for descriptor in (child_in, child_out, null):
        os.close(descriptor)
    try:
        yield Tab(to_browser, from_browser)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(to_browser)
        os.close(from_browser)
        shutil.rmtree(profile, ignore_errors=True)


@pytest.fixture(scope="session")
def tab() -> Iterator[Tab]:
    """One tab of a headless browser; skipped where there is none."""
    program = find_chromium()
    if program is None:
        pytest.skip("no Chromium here: apt-get install chromium")
    with browser(program) as opened:
        yield opened


def _high_pipe() -> tuple[int, int]:
    """A pipe on descriptors of 10 and above, out of the way of 3 and 4."""
    ends = os.pipe()
    high = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
    for end in ends:
        os.close(end)
    return high[0], high[1]


@pytest.fixture(scope="session")
def polluted() -> tuple[Any, Any]:
    """A random model whose MLP 2 writes 30 times too much, and ids for it to read."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    import resstream as rs

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=128, hidden_size=32, intermediate_size=64, num_hidden_layers=5,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=128,
    )  # fmt: skip
    module: Any = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        module.model.layers[2].mlp.down_proj.weight.mul_(30)
    ids = torch.randint(0, 128, (8, 64))
    return rs.load(module), ids


@pytest.fixture(scope="session")
def checked(polluted: Any) -> "CheckReport":
    """A check that finds it."""
    import resstream as rs

    report = rs.check(*polluted)
    assert [(f.layer, f.write, f.status) for f in report.findings] == [(2, "mlp", "confirmed")]
    return report


@pytest.fixture(scope="session")
def recorded(polluted: Any) -> "Recording":
    """Its recording."""
    import resstream as rs

    return rs.record(*polluted)


@pytest.fixture(scope="session")
def ablated(polluted: Any) -> "AblationResult":
    """Its ablation."""
    import resstream as rs

    return rs.ablate(*polluted)
