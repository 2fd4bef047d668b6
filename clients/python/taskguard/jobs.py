"""The job of an analyzer, its failures and side effects; and run, which makes a function a program."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
import threading
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import IO, Any, NoReturn

Fields = dict[str, Any]  # a JSON object


class Failed(Exception):
    """Ends the run as failed. The analysis is retried, unless permanent is true.

    code (up to 64 letters, digits, _ and -) groups failures in the console and in `taskguard status --code`.
    retry_after is in seconds: the next attempt begins after it, and this attempt is not counted.
    """

    def __init__(
        self, code: str, message: str = "", *, permanent: bool = False, retry_after: float | None = None
    ) -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.message, self.permanent, self.retry_after = code, message, permanent, retry_after


class NotDone(Exception):
    """A side effect did not happen: raise it only if you know. The cause, if there is one, ends the run."""


class Stopped(BaseException):
    """The worker has ended the run of an endpoint. `except Exception` does not catch it."""


class _Skipped(BaseException):
    """Ends the block of a side effect that is done."""


class Job:
    """One attempt at one analysis. You may call its methods from any thread."""

    def __init__(self, fields: Fields, reports: int = 2, replies: IO[bytes] | None = None) -> None:
        self.analysis_id: str = fields.get("analysis_id", "")
        self.lock_token: int = fields.get("lock_token", 0)  # grows with each run of this analysis
        self.attempt: int = fields.get("attempt", 1)
        self.input: Any = fields.get("input")
        self.resume: Any = fields.get("checkpoint")  # the checkpoint of an earlier attempt; None: there is none
        self.self_test: bool = fields.get("self_test", False)  # true: side effects are refused
        self._reports, self._replies, self._acks, self._lock = reports, replies, 0, threading.RLock()

    def report(self, progress: float, message: str = "") -> None:
        """Reports the part of the work that is done, from 0 to 1, and what happens now. It returns at once."""
        self._send({"progress": progress, "message": message})

    def checkpoint(self, state: Any, *, wait: bool = False) -> None:
        """Reports the state from which a later attempt continues, which gets it as resume. None deletes it.

        The worker commits the newest state every ten seconds and at the end of the run. With wait, a
        program waits for its commit, up to a second; an endpoint cannot wait.
        """
        if wait:
            self._ask({"checkpoint": state})
        else:
            self._send({"checkpoint": state})

    def once(self, name: str, find: Callable[[str], Any] | None = None) -> Once:
        """Guards a side effect that must not be repeated. See Once."""
        return Once(self, name, find)

    def _send(self, line: Fields) -> None:
        with self._lock:
            write(self._reports, line)

    def _ask(self, line: Fields) -> Fields:
        """Returns the reply to a line, which comes when the line is committed."""
        with self._lock:
            self._acks += 1
            self._send({**line, "ack": self._acks})
            text = self._replies.readline() if self._replies else b""
        reply: Fields = json.loads(text or '{"error": "no worker replies"}')
        if "error" in reply:
            raise Failed("not_committed", reply["error"])
        return reply

    def _begin(self, name: str) -> Fields:
        """Begins a side effect. The answer has the state go, done or uncertain."""
        return uncertain(name, self._ask({"effect": name})["effect"])

    def _begin_again(self, name: str) -> Fields:
        self._end(name, {"not_done": True})
        return self._begin(name)

    def _end(self, name: str, outcome: Fields) -> None:
        reply = self._ask({"effect": name, **outcome})
        if "effect" in reply:
            raise Failed("effect_result_not_stored", f"{name} is done: {reply['effect']['result_error']}")


class Once:
    """A side effect in a with statement: no more than one attempt runs the block to its end.

        with job.once("charge") as charge:
            charge.result = provider.charge(cents, idempotency_key=charge.key)

    Read the key before you act. If an earlier attempt has acted, reading the key leaves the block, and
    result has what the earlier attempt stored. If an earlier attempt may have acted, find(key) asks the provider: it
    returns the result, or raises NotDone. Without find the analysis fails, and an operator decides.
    """

    result: Any = None

    def __init__(self, job: Job, name: str, find: Callable[[str], Any] | None) -> None:
        self._job, self._name, self._find = job, name, find
        self._key: str | None = None
        self._asked = False

    @property
    def key(self) -> str:
        """The idempotency key for the provider, the same in all attempts."""
        self._asked = True
        if self._key is None:
            raise _Skipped(self)
        return self._key

    def __enter__(self) -> Once:
        effect = self._job._begin(self._name)
        if effect["state"] == "uncertain":
            if self._find is None:
                raise effect["failure"]
            try:
                effect["result"] = self._find(effect["key"])
                self._job._end(self._name, {"done": effect["result"]})
                effect["state"] = "done"
            except NotDone:
                effect = self._job._begin_again(self._name)
        if reason := effect.get("result_error"):
            message = f"the result of {self._name} was not stored: {reason}"
            raise Failed("effect_result_invalid", message, permanent=True)
        self.result, self._key = effect.get("result"), effect["key"] if effect["state"] == "go" else None
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        if self._key is not None and error is None:
            self._job._end(self._name, {"done": self.result})
        elif self._key is not None and isinstance(error, NotDone):
            self._job._end(self._name, {"not_done": True})
            if error.__cause__:
                raise error.__cause__
        if error is None and not self._asked:  # in the next attempt the block would act once more
            message = f"the block of once({self._name!r}) must read the key before it acts"
            raise Failed("key_not_read", message, permanent=True)
        return isinstance(error, _Skipped) and error.args[0] is self


def run(analyze: Callable[[Job], Any]) -> NoReturn:
    """Runs analyze, a function or a coroutine function, on the job of standard input, and exits.

    Standard output is the result, so what analyze prints goes to standard error. Without a worker the
    reports go there too: `echo '{"input": 7}' | python3 analyzer.py`.
    """
    output = os.dup(1)
    os.dup2(2, 1)
    reports, replies = os.environ.get("REPORT_FD", "2"), os.environ.get("REPLY_FD")
    job = Job(json.load(sys.stdin), int(reports), open(int(replies), "rb") if replies else None)
    try:
        value = analyze(job)
        write(output, storable(asyncio.run(value) if inspect.iscoroutine(value) else value))
    except Failed as error:
        job._send(failure(error))
        sys.exit(65 if error.permanent else 1)
    except Exception as error:
        traceback.print_exc()  # the end of standard error is the failure's message
        job._send({"error": {"code": type(error).__name__}})
        sys.exit(1)
    sys.exit(0)


def write(file: int, value: Any) -> None:
    text = encode(value) + b"\n"
    while text:
        text = text[os.write(file, text) :]


def encode(value: Any) -> bytes:
    return json.dumps(value, allow_nan=False).encode()


def storable(value: Any) -> Any:
    """Returns a result that JSON can hold, or raises Failed."""
    try:
        encode(value)
    except (TypeError, ValueError) as error:
        raise Failed("result_invalid", f"the result is not JSON: {error}", permanent=True) from error
    return value


def uncertain(name: str, effect: Fields) -> Fields:
    """Returns the state of a side effect, with the failure that ends the run if it is uncertain and there is no find."""
    if effect["state"] == "uncertain":
        since = effect.get("since", "an unknown time")
        effect["failure"] = Failed("effect_uncertain", f"{name} may have been done since {since}")
    return effect


def failure(error: BaseException) -> Fields:
    """Returns the line that reports an error."""
    if not isinstance(error, Failed):
        return {"error": {"code": type(error).__name__, "message": str(error)}}
    fields: Fields = {"code": error.code}
    if error.message:
        fields["message"] = error.message
    if error.permanent:
        fields["permanent"] = True
    return {"error": fields} if error.retry_after is None else {"error": fields, "retry_after": error.retry_after}
