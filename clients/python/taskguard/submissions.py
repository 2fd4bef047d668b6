"""submit: creates the document of an analysis, and the task that delivers it to the worker."""

from __future__ import annotations

import base64
import functools
import json
import os
import re
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any

Fields = dict[str, Any]  # a JSON object
CLIENTS = "the packages google-cloud-firestore and google-cloud-tasks"


class OtherInput(Exception):
    """The document exists with another input. submit has changed nothing."""


@dataclass(frozen=True)
class Submission:
    created: bool  # this call has created the document
    enqueued: bool  # its task exists; False: the analysis needs none, or recovery will create one
    status: str  # QUEUED, PROCESSING, READY or FAILED


def submit(id: str, input: Any, *, run_timeout: float = 1500) -> Submission:
    """Enqueues an analysis: creates its document, unless it exists, and the task that delivers it to the worker.

    Derive the id from the request: then a repeated request changes nothing. input is what JSON can hold.
    run_timeout is the worker's RUN_TIMEOUT in seconds, 1800 at most. The settings are the variables that
    `taskguard local` and `terraform output -raw environment` print. It uses Google's clients if they are installed, and REST otherwise.

    It blocks. ValueError: Firestore cannot hold the id or the input, or run_timeout is too long. OSError, or an exception of
    Google's clients: the document and its task may exist or not. Call submit again: it creates each of them once. If you do not, and
    the document exists without its task, recovery creates that.
    """
    if not re.fullmatch(r"(?!\.{1,2}$|__.*__$)[^/]{1,375}", id):
        raise ValueError(f"{id!r} cannot be the id of a document")
    if not 0 < run_timeout <= 1800:
        raise ValueError(f"run_timeout: want 1 to 1800 seconds, not {run_timeout:g}: Cloud Tasks waits no longer")
    env = os.environ
    project, queue, target = (env[name] for name in ("GOOGLE_CLOUD_PROJECT", "TASK_QUEUE", "TASK_TARGET_URL"))
    target = target.rstrip("/")
    cloud = connect(f"projects/{project}/databases/{env.get('FIRESTORE_DATABASE') or '(default)'}")
    path, task = f"{env.get('ANALYSES_COLLECTION') or 'analyses'}/{id}", uuid.uuid4().hex
    status = "QUEUED"
    created = cloud.create(path, {"status": status, "input": input, "attempts": 0, "bookedTask": task})
    if not created:
        status, task, same = cloud.read(path, input)
        if not same:
            raise OtherInput(f"the analysis {id} exists with another input")
        if not task:  # it runs, or is finished
            return Submission(False, False, status)

    request: Fields = {"url": target + "/internal/tasks/analysis", "httpMethod": "POST"}
    request["body"] = base64.b64encode(json.dumps({"analysis_id": id}).encode()).decode()
    request["headers"] = {"Content-Type": "application/json"}
    if caller := env.get("TASK_CALLER"):
        request["oidcToken"] = {"serviceAccountEmail": caller, "audience": env.get("TASK_AUDIENCE") or target}
    deadline = f"{min(run_timeout + 60, 1800):g}s"
    cloud.enqueue(queue, {"name": f"{queue}/tasks/{task}", "dispatchDeadline": deadline, "httpRequest": request})
    return Submission(created, True, status)


@functools.cache
def connect(database: str) -> Google | Rest:
    try:
        return Google(database)
    except ImportError:
        return Rest(database)


class Google:
    """Google's clients. The one for Firestore reads FIRESTORE_EMULATOR_HOST; the one for Cloud Tasks does not."""

    def __init__(self, database: str) -> None:
        import grpc
        from google.api_core.exceptions import AlreadyExists
        from google.cloud import firestore, tasks_v2
        from google.cloud.tasks_v2.services.cloud_tasks.transports import CloudTasksGrpcTransport

        emulator, (_, project, _, name) = os.environ.get("CLOUD_TASKS_EMULATOR_HOST"), database.split("/")
        transport = CloudTasksGrpcTransport(channel=grpc.insecure_channel(emulator)) if emulator else None
        self._exists, self._now, self._task = AlreadyExists, firestore.SERVER_TIMESTAMP, tasks_v2.Task
        self._db: Any = firestore.Client(project=project, database=name)
        self._tasks: Any = tasks_v2.CloudTasksClient(transport=transport)

    def create(self, path: str, fields: Fields) -> bool:
        try:
            self._db.document(path).create({**fields, "createdAt": self._now, "updatedAt": self._now})
        except self._exists:
            return False
        return True

    def read(self, path: str, input: Any) -> tuple[str, str, bool]:
        found = self._db.document(path).get(["status", "input", "bookedTask"]).to_dict() or {}
        return found.get("status", ""), found.get("bookedTask", ""), found.get("input") == input

    def enqueue(self, queue: str, task: Fields) -> None:
        try:
            self._tasks.create_task(parent=queue, task=self._task.from_json(json.dumps(task)))
        except self._exists:
            pass


class Rest:
    """The REST interfaces. `taskguard local` and `taskguard emulator` have none: they need Google's clients."""

    def __init__(self, database: str) -> None:
        self._documents = f"{database}/documents"
        firestore, tasks = (os.environ.get(f"{name}_EMULATOR_HOST") for name in ("FIRESTORE", "CLOUD_TASKS"))
        self._firestore = f"http://{firestore}/v1/" if firestore else "https://firestore.googleapis.com/v1/"
        self._tasks = f"http://{tasks}/v2/" if tasks else "https://cloudtasks.googleapis.com/v2/"

    def create(self, path: str, fields: Fields) -> bool:
        stamps = [{"fieldPath": name, "setToServerValue": "REQUEST_TIME"} for name in ("createdAt", "updatedAt")]
        document = {"name": f"{self._documents}/{path}", **value(fields)["mapValue"]}
        write = {"update": document, "updateTransforms": stamps, "currentDocument": {"exists": False}}
        return self._call(f"{self._firestore}{self._documents}:commit", {"writes": [write]}) is not None

    def read(self, path: str, input: Any) -> tuple[str, str, bool]:
        found = self._call(f"{self._firestore}{self._documents}/{urllib.parse.quote(path)}") or {}
        status, task = (found["fields"].get(name, {}).get("stringValue", "") for name in ("status", "bookedTask"))
        return status, task, found["fields"].get("input") == value(input)

    def enqueue(self, queue: str, task: Fields) -> None:
        self._call(f"{self._tasks}{queue}/tasks", {"task": task})

    def _call(self, url: str, body: Fields | None = None) -> Fields | None:
        """Returns the answer, or None if what it should create exists. It tries three times."""
        headers = {"Content-Type": "application/json"}
        if url.startswith("https:"):
            headers["Authorization"] = f"Bearer {token()}"
        request = urllib.request.Request(url, json.dumps(body).encode() if body else None, headers)
        for tries in (1, 2, 3):
            try:
                with urllib.request.urlopen(request, timeout=10) as answer:
                    return dict(json.load(answer))
            except (OSError, HTTPException) as error:
                problem, code = str(error), getattr(error, "code", 503)
                if code == 409:
                    return None
                if isinstance(error, urllib.error.HTTPError):
                    problem = error.read(2000).decode(errors="replace")
                if code < 500 and code != 429:
                    break
            time.sleep(tries)
        hint = "" if url.startswith("https:") else f"; an emulator that speaks gRPC alone needs {CLIENTS}"
        raise (ValueError if code == 400 else OSError)(f"{url}: {problem}{hint}")


def token() -> str:
    """Returns an access token of the metadata server of Google Cloud."""
    host = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
    url = f"http://{host}/computeMetadata/v1/instance/service-accounts/default/token"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers={"Metadata-Flavor": "Google"}), timeout=5) as a:
            return str(json.load(a)["access_token"])
    except OSError as error:
        raise OSError(f"{host}: {error}; outside Google Cloud you need {CLIENTS}") from error


def value(v: Any) -> Fields:
    """Returns a value as Firestore's REST interface has it."""
    match v:
        case None:
            return {"nullValue": None}
        case bool():
            return {"booleanValue": v}
        case int():
            return {"integerValue": str(v)}
        case float():
            return {"doubleValue": v}
        case str():
            return {"stringValue": v}
        case list():
            return {"arrayValue": {"values": [value(item) for item in v]} if v else {}}
        case dict():
            return {"mapValue": {"fields": {name: value(item) for name, item in v.items()}} if v else {}}
    raise TypeError(f"a {type(v).__name__} cannot be in an input")
