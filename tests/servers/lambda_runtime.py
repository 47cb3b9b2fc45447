"""A Lambda execution environment: Amazon's own runtime client for Python in a process of its own,
and the small HTTP server it asks for invocations.

What Lambda does to a process is done here too: it is killed at its deadline, started anew after it
ended, stopped between invocations, and asked again under the same request id.
"""

from __future__ import annotations

import importlib.util
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tests.helpers import PATIENCE
from tests.servers import missing
from tests.servers.http import served

API = "/2018-06-01/runtime"
RETRIES = 2
"""How often Lambda repeats an asynchronous invocation that failed, unless told otherwise."""


class Answer(NamedTuple):
    """The result of one invocation."""

    kind: Literal["response", "error", "exit", "timeout", "init"]
    payload: Any = None


class Invocation(NamedTuple):
    """The invocation that the runtime gets."""

    id: str
    event: bytes
    allowed: float
    """Seconds, from when the runtime asks for it: starting a process is not counted."""
    taken: threading.Event


class Environment:
    """One environment of one function: at most one process, and one invocation at a time."""

    def __init__(
        self, port: int, folder: Path, handler: str, env: Mapping[str, str], timeout: float
    ) -> None:
        self._address = f"127.0.0.1:{port}"
        self._folder = folder
        self._handler = handler
        self._env = env
        self._timeout = timeout
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  closed with the environment
        self._process: subprocess.Popen[bytes] | None = None
        self._invocation: Invocation | None = None
        self.starts = 0
        """How many processes there were: more than one is a cold start after an end."""
        self.waiting: queue.Queue[Invocation | None] = queue.Queue()
        self.answers: queue.Queue[tuple[str, Answer]] = queue.Queue()
        self.answering = threading.Lock()
        """Held from before an answer is confirmed until it is among the answers."""

    @property
    def said(self) -> str:
        """The log of the function."""
        descriptor = self._said.fileno()
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode(errors="replace")

    def invoke(self, event: object, *, id: str = "", timeout: float | None = None) -> Answer:
        """Invoke the function and wait for what comes of it."""
        self.begin(event, id=id, timeout=timeout)
        return self.end()

    def begin(self, event: object, *, id: str = "", timeout: float | None = None) -> None:
        """Hand an invocation to the runtime, starting it if it does not run."""
        if self._process is None or self._process.poll() is not None:
            self._start()
        self._invocation = Invocation(
            id or str(uuid.uuid4()),
            json.dumps(event).encode(),
            self._timeout if timeout is None else timeout,
            threading.Event(),
        )
        self.waiting.put(self._invocation)

    def end(self) -> Answer:
        """The result of the invocation that was begun; at its deadline the process is killed."""
        assert self._process is not None
        assert self._invocation is not None
        name, _, allowed, taken = self._invocation
        end = time.monotonic() + PATIENCE
        begun = False
        while True:
            with suppress(queue.Empty):
                answered, answer = self.answers.get(timeout=0.02)
                if answered in (name, ""):
                    return answer
                continue
            if self._process.poll() is not None:
                # It may have answered with its last breath, which is not yet written down.
                with self.answering, suppress(queue.Empty):
                    return self.answers.get_nowait()[1]
                return Answer("exit", self._process.returncode)
            if taken.is_set() and not begun:
                begun, end = True, time.monotonic() + allowed
            if time.monotonic() > end:
                self.kill()
                return Answer("timeout")

    def invoke_async(self, event: object) -> list[Answer]:
        """An asynchronous invocation: the same event under the same request id again, until it
        succeeds or the retries are used up. Lambda waits minutes in between."""
        name = str(uuid.uuid4())
        answers: list[Answer] = []
        while len(answers) <= RETRIES:
            answers.append(self.invoke(event, id=name))
            if answers[-1].kind == "response":
                break
        return answers

    def freeze(self) -> None:
        """Stop the process, as Lambda does between invocations."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let the process go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End the process at once; the next invocation starts another."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def close(self) -> None:
        self.waiting.put(None)
        self.kill()
        self._said.close()

    def _start(self) -> None:
        self.starts += 1
        # What a process that is gone had asked for must not be given to it.
        self.waiting.put(None)
        self.waiting = queue.Queue()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "awslambdaric", self._handler],
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            stdout=self._said,
            stderr=subprocess.STDOUT,
            env={
                **os.environ,
                "AWS_LAMBDA_RUNTIME_API": self._address,
                "AWS_LAMBDA_FUNCTION_NAME": "calls",
                "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
                "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "128",
                "AWS_LAMBDA_LOG_GROUP_NAME": "/aws/lambda/calls",
                "AWS_LAMBDA_LOG_STREAM_NAME": "tests",
                **self._env,
            },
        )


@contextmanager
def environment(
    code: str | Mapping[str, str],
    *,
    handler: str = "function.handler",
    env: Mapping[str, str] | None = None,
    timeout: float = PATIENCE,
) -> Iterator[Environment]:
    """An environment for a function with this code: `function.py`, or several files by name.

    `timeout` is the function's own; the runtime is killed when it is reached.
    """
    if importlib.util.find_spec("awslambdaric") is None:
        missing("the Lambda runtime is not installed (pip install awslambdaric)")
    with (
        tempfile.TemporaryDirectory(prefix="eventonce-lambda-") as folder,
        served(_Api) as port,
    ):
        for name, text in ({"function.py": code} if isinstance(code, str) else code).items():
            Path(folder, name).write_text(text, encoding="utf-8")
        made = _environments[port] = Environment(port, Path(folder), handler, env or {}, timeout)
        try:
            yield made
        finally:
            made.close()
            del _environments[port]


_environments: dict[int, Environment] = {}


class _Api(BaseHTTPRequestHandler):
    """The runtime API: next, response, error."""

    protocol_version = "HTTP/1.1"

    @property
    def _environment(self) -> Environment:
        return _environments[self.server.server_address[1]]  # type: ignore[index]

    def do_GET(self) -> None:
        assert self.path == f"{API}/invocation/next"
        invocation = self._environment.waiting.get()
        if invocation is None:
            self.close_connection = True
            return
        headers = {
            "Lambda-Runtime-Aws-Request-Id": invocation.id,
            "Lambda-Runtime-Deadline-Ms": str(int((time.time() + invocation.allowed) * 1000)),
            "Lambda-Runtime-Invoked-Function-Arn": (
                "arn:aws:lambda:eu-central-1:111122223333:function:calls"
            ),
            "Content-Type": "application/json",
        }
        invocation.taken.set()
        self._send(200, invocation.event, headers)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        payload = json.loads(body) if body else None
        *_, name, kind = self.path.removeprefix(API).split("/")
        if self.path == f"{API}/init/error":
            answer = "", Answer("init", payload)
        elif kind == "response":
            answer = name, Answer("response", payload)
        else:
            answer = name, Answer("error", payload)
        with self._environment.answering:
            # The process may be killed for its answer as soon as it is known: it is told first.
            self._send(202, b"", {})
            self._environment.answers.put(answer)

    def _send(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with suppress(OSError):
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Quiet."""
