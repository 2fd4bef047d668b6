"""endpoint: makes an analyzer an application for ASGI and WSGI servers."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import hashlib
import inspect
import json
import logging
import math
import queue
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from http import HTTPStatus
from typing import Any

from .jobs import Failed, Fields, Job, Stopped, encode, failure, storable

EFFECTS = "taskguard_effects"  # the field of a checkpoint that holds side effects
BUSY_SECONDS = 30  # the worker asks 100 times without counting an attempt: for 50 minutes


class _Intended(BaseException):
    """Ends the attempt that commits the intention of a side effect."""


class Request(Job):
    """The job of an endpoint. The worker does not reply to it, so a side effect takes two attempts.

    The first attempt puts the intention into the checkpoint, and ends. The next attempt, whose lock token
    is one higher, acts. A later attempt finds the result, or does not know whether the one before has acted.
    """

    def __init__(self, body: bytes, put: Callable[[Fields], object]) -> None:
        try:
            fields = json.loads(body)
        except ValueError:
            fields = None
        self.valid = isinstance(fields, dict)
        super().__init__(fields if self.valid else {})
        self.put, self.closed = put, threading.Event()
        self._effects: dict[str, Fields] = {}
        self._used: set[str] = set()
        if isinstance(self.resume, dict) and EFFECTS in self.resume:
            self._effects, self.resume = self.resume[EFFECTS], self.resume["checkpoint"]
        self._state = self.resume

    def _send(self, line: Fields) -> None:
        if self.closed.is_set():
            raise Stopped
        if "checkpoint" in line:
            self._state = line["checkpoint"]
            if self._effects:
                line = {"checkpoint": {EFFECTS: self._effects, "checkpoint": self._state}}
        self.put(json.loads(encode(line)))  # a copy, because the caller may change it

    def _ask(self, line: Fields) -> Fields:
        self._send(line)
        return {}

    def _begin(self, name: str) -> Fields:
        if self.self_test or name in self._used:
            code = "act_in_self_test" if self.self_test else "act_name_reused"
            raise Failed(code, f"the side effect {name} is refused", permanent=True)
        self._used.add(name)
        effect = self._effects.get(name)
        if effect is None:
            return self._begin_again(name)
        if "done" in effect:
            return {"state": "done", "result": effect["done"]}
        key = hashlib.sha256(f"{self.analysis_id}\0{name}".encode()).hexdigest()[:32]
        if effect["token"] + 1 == self.lock_token:
            return {"state": "go", "key": key}
        message = f"{name} may have been done under lock token {effect['token'] + 1}"
        return {
            "state": "uncertain", "key": key, "failure": Failed("http_effect_uncertain", message, permanent=True),
        }

    def _begin_again(self, name: str) -> Fields:
        self._effects[name] = {"token": self.lock_token}
        self._send({"checkpoint": self._state})
        message = f"{name} is planned; the next attempt does it (not a failure)"
        raise _Intended(Failed("before_effect", message, retry_after=1))

    def _end(self, name: str, outcome: Fields) -> None:
        if "done" in outcome:
            self._effects[name] = outcome
        else:
            del self._effects[name]
            self._used.discard(name)
        self._send({"checkpoint": self._state})


class endpoint:
    """Makes an analyzer, a function or a coroutine function, an ASGI application. wsgi is the same for WSGI.

    A function runs in its own thread, a coroutine function in the loop of the ASGI server. When the
    worker hangs up, the next report raises Stopped. A run that never reports goes on. Until it ends, this
    process answers 503 with Retry-After to the next attempt at the same analysis.
    """

    def __init__(self, analyze: Callable[[Job], Any]) -> None:
        functools.update_wrapper(self, analyze)
        self._analyze = analyze
        self._running: set[str] = set()  # the ids of analyses
        self._lock = threading.Lock()

    def answer(self, body: bytes) -> tuple[int, dict[str, str], Iterator[bytes]]:
        """Returns the status, the headers and the chunks of the answer to a POST, for a server of any kind.

        It blocks until the first report or the end of the run. Close the chunks when the client hangs up.
        """
        lines: queue.SimpleQueue[Fields] = queue.SimpleQueue()
        job = self._start(body, lines.put, asyncio.run)
        first = lines.get()

        def chunks() -> Iterator[bytes]:
            try:
                line = first
                yield chunk(line, first)
                while not ends(line):
                    line = lines.get()
                    yield chunk(line, first)
            finally:
                job.closed.set()

        return *head(first), chunks()

    def wsgi(self, environ: Fields, start_response: Callable[..., object]) -> Iterator[bytes]:
        """The WSGI application."""
        status, headers, chunks = self.answer(environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0)))
        start_response(f"{status} {HTTPStatus(status).phrase}", list(headers.items()))
        return chunks

    async def __call__(
        self, scope: Fields, receive: Callable[[], Awaitable[Fields]], send: Callable[[Fields], Awaitable[None]]
    ) -> None:
        """The ASGI application."""
        if scope["type"] != "http":
            raise RuntimeError(f"this application answers http, and not {scope['type']}")
        message = await receive()
        body = message.get("body", b"")
        while message.get("more_body"):
            message = await receive()
            body += message.get("body", b"")

        loop, lines = asyncio.get_running_loop(), asyncio.Queue[Fields]()
        put = functools.partial(loop.call_soon_threadsafe, lines.put_nowait)
        job = self._start(body, put, lambda value: asyncio.run_coroutine_threadsafe(value, loop).result())
        watch = asyncio.create_task(hung_up(receive, put))
        try:
            line = first = await lines.get()
            status, headers = head(first)
            names = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
            await send({"type": "http.response.start", "status": status, "headers": names})
            while not ends(line):
                await send({"type": "http.response.body", "body": chunk(line, first), "more_body": True})
                line = await lines.get()
            await send({"type": "http.response.body", "body": chunk(line, first)})
        finally:
            job.closed.set()
            watch.cancel()

    def _start(
        self, body: bytes, put: Callable[[Fields], object], wait: Callable[[Coroutine[Any, Any, Any]], Any]
    ) -> Request:
        """Starts the run in a thread. put gets its lines; wait runs a coroutine."""
        job, context = Request(body, put), contextvars.copy_context()
        if not self._enter(job.analysis_id):
            message = "an earlier attempt still runs in this process"
            put(failure(Failed("still_running", message, retry_after=BUSY_SECONDS)))
            return job

        def work() -> Fields:
            try:
                if not job.valid:
                    raise Failed("no_job", "the body of the request is no JSON object", permanent=True)
                value = self._analyze(job)
                return {"result": storable(wait(value) if inspect.iscoroutine(value) else value)}
            except _Intended as intended:
                return failure(intended.args[0])
            except BaseException as error:
                if not isinstance(error, Failed | Stopped):
                    logging.getLogger("taskguard").error("an analysis has failed", exc_info=error)
                return failure(error)

        def run() -> None:
            last = context.run(work)
            self._leave(job.analysis_id)
            if not job.closed.is_set():  # else nobody reads it, and the loop may be closed
                put(last)

        threading.Thread(target=run, daemon=True).start()
        return job

    def _enter(self, id: str) -> bool:
        """Records that an analysis runs. False: it runs already. A self-test has no id, and may run beside another."""
        with self._lock:
            if id in self._running:
                return False
            if id:
                self._running.add(id)
            return True

    def _leave(self, id: str) -> None:
        with self._lock:
            self._running.discard(id)


async def hung_up(receive: Callable[[], Awaitable[Fields]], put: Callable[[Fields], object]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    put(failure(Stopped()))


def ends(line: Fields) -> bool:
    return "result" in line or "error" in line


def head(first: Fields) -> tuple[int, dict[str, str]]:
    """Returns the status and the headers. They tell the outcome, unless reports come before it."""
    headers = {"Content-Type": "application/json" if ends(first) else "application/x-ndjson"}
    if "retry_after" in first:
        headers["Retry-After"] = str(math.ceil(first["retry_after"]))
    if "error" not in first:
        return 200, headers
    return 422 if first["error"].get("permanent") else 503 if "retry_after" in first else 500, headers


def chunk(line: Fields, first: Fields) -> bytes:
    if not ends(first):
        return encode(line) + b"\n"
    return encode(line["result"] if "result" in line else {"error": line["error"]})
