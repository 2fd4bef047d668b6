"""Runs submit.py on imitations of Google's packages. Each commit creates all or nothing. The first
create_task fails, the reply to the second is lost, and later ones are refused if the name is taken.
"""

import runpy
import sys
import types


class GoogleAPICallError(Exception):
    pass


class AlreadyExists(GoogleAPICallError):
    pass


documents, names, calls = {}, [], []


class Document:
    def __init__(self, path):
        self.path, self.exists = path, path in documents

    document = collection = lambda self, name: Document(f"{self.path}/{name}")
    get = lambda self, fields=None, transaction=None: Document(self.path)
    to_dict = lambda self: documents[self.path]


class Transaction:
    def __init__(self):
        self.writes = {}

    def create(self, doc, fields):
        self.writes[doc.path] = fields


class Client(Document):
    def __init__(self, project, database):
        self.path = ""

    transaction = lambda self: Transaction()


def transactional(body):
    def run(tx):
        result = body(tx)
        assert not tx.writes.keys() & documents.keys(), "a document exists"
        documents.update(tx.writes)
        return result

    return run


class Tasks:
    def __init__(self, transport):
        pass

    def create_task(self, parent, task):
        calls.append(task.name)
        if len(calls) == 1:
            raise GoogleAPICallError("not yet")
        if task.name in names:
            raise AlreadyExists("taken")
        names.append(task.name)
        if len(calls) == 2:
            raise GoogleAPICallError("the reply is lost")


def module(name, **members):
    sys.modules[name] = types.ModuleType(name)
    vars(sys.modules[name]).update(members)


module("grpc")
module("google")
module("google.api_core")
module("google.api_core.exceptions", AlreadyExists=AlreadyExists, GoogleAPICallError=GoogleAPICallError)
firestore = types.SimpleNamespace(Client=Client, SERVER_TIMESTAMP="now", transactional=transactional)
message = types.SimpleNamespace
tasks = message(CloudTasksClient=Tasks, Task=message, HttpRequest=message, OidcToken=message, HttpMethod=message(POST=1))
module("google.cloud", firestore=firestore, tasks_v2=tasks)
module("google.cloud.tasks_v2")
module("google.cloud.tasks_v2.services")
module("google.cloud.tasks_v2.services.cloud_tasks")
module("google.cloud.tasks_v2.services.cloud_tasks.transports", CloudTasksGrpcTransport=None)


def sleep(seconds):  # the worker runs the analysis when the task is booked
    if len(names) == 1 and len(calls) == 3:
        documents["/analyses/an-id"].update(status="READY", result=1)


sys.modules["time"].sleep = sleep
sys.argv = ["submit.py", "an-id", "text"]
for _ in range(2):  # the second submission finds the document
    try:
        runpy.run_path("submit.py", run_name="__main__")
    except SystemExit as end:
        assert end.code == 0, end.code
analysis = documents["/analyses/an-id"]
assert documents.keys() == {"/orders/an-id", "/analyses/an-id"}, documents
assert names == ["q/tasks/" + analysis["bookedTask"]] and len(set(calls)) == 1, (names, calls)
