"""Ordinary calls of Google's clients on `taskguard emulator`:

    pip install google-cloud-firestore google-cloud-tasks
    python3 emulator_test.py

with the variables that it prints. If it runs in a container of Docker Desktop, it reaches this
machine as WORKER_HOST=host.docker.internal.
"""

import datetime
import os
import queue
import threading
import unittest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
from google.api_core import exceptions
from google.cloud import firestore, tasks_v2
from google.cloud.firestore_v1.base_query import FieldFilter, Or
from google.cloud.firestore_v1.query_profile import ExplainOptions
from google.cloud.tasks_v2 import Task
from google.cloud.tasks_v2.services.cloud_tasks.transports import CloudTasksGrpcTransport

TASK_QUEUE = os.environ["TASK_QUEUE"]
LOCATION = TASK_QUEUE.split("/queues/")[0]
db = firestore.Client()  # reads GOOGLE_CLOUD_PROJECT and FIRESTORE_EMULATOR_HOST
channel = grpc.insecure_channel(os.environ["CLOUD_TASKS_EMULATOR_HOST"])
tasks = tasks_v2.CloudTasksClient(transport=CloudTasksGrpcTransport(channel=channel))

delivered = queue.Queue()


class Worker(BaseHTTPRequestHandler):
    """Fails the first attempt of each task whose path is /fails-once."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        retry = int(self.headers["X-CloudTasks-TaskRetryCount"])
        delivered.put((self.headers["X-CloudTasks-TaskName"], self.path, body, retry))
        self.send_response(503 if self.path == "/fails-once" and retry == 0 else 200)
        self.end_headers()

    def log_message(self, *args):
        pass


worker = ThreadingHTTPServer(("127.0.0.1", 0), Worker)
threading.Thread(target=worker.serve_forever, daemon=True).start()
URL = f"http://{os.environ.get('WORKER_HOST', '127.0.0.1')}:{worker.server_port}"


def create(path="/", parent=TASK_QUEUE, **fields):
    request = {"http_method": "POST", "url": URL + path, "body": b"payload"}
    return tasks.create_task(parent=parent, task={"http_request": request, **fields})


def later():
    return datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(hours=1)


class Tasks(unittest.TestCase):
    def test_a_task_is_dispatched_to_its_address_and_retried(self):
        name = create("/fails-once").name.split("/")[-1]
        got = [delivered.get(timeout=30) for _ in range(2)]
        self.assertEqual(got, [(name, "/fails-once", "payload", retry) for retry in (0, 1)])

    def test_a_named_task_exists_once(self):
        name = f"{TASK_QUEUE}/tasks/named"
        create(name=name, schedule_time=later())
        with self.assertRaises(exceptions.AlreadyExists):
            create(name=name)
        found = tasks.get_task(request={"name": name, "response_view": Task.View.FULL})
        self.assertEqual(found.http_request.body, b"payload")
        tasks.delete_task(name=name)
        with self.assertRaises(exceptions.NotFound):
            tasks.get_task(name=name)

    def test_tasks_are_listed_in_pages(self):
        parent = f"{LOCATION}/queues/pages"
        tasks.create_queue(parent=LOCATION, queue={"name": parent})
        names = [create(parent=parent, schedule_time=later()).name for _ in range(5)]
        pages = list(tasks.list_tasks(request={"parent": parent, "page_size": 2}).pages)
        self.assertEqual([[t.name for t in p.tasks] for p in pages], [names[:2], names[2:4], names[4:]])
        tasks.purge_queue(name=parent)
        self.assertEqual(list(tasks.list_tasks(parent=parent)), [])


class Documents(unittest.TestCase):
    def test_documents(self):
        doc = db.document("docs/one")
        doc.create({"n": 1, "tags": ["a"], "at": firestore.SERVER_TIMESTAMP, "nested": {"x": 1, "y": 2}})
        with self.assertRaises(exceptions.AlreadyExists):
            doc.create({})
        with self.assertRaises(exceptions.NotFound):
            db.document("docs/none").update({"n": 1})
        changes = {"n": firestore.Increment(2), "nested.x": firestore.DELETE_FIELD}
        doc.update({**changes, "tags": firestore.ArrayUnion(["a", "b"])})
        doc.set({"merged": True}, merge=True)
        snapshot = doc.get()
        data = snapshot.to_dict()
        self.assertIsInstance(data.pop("at"), datetime.datetime)
        self.assertEqual(data, {"n": 3, "tags": ["a", "b"], "nested": {"y": 2}, "merged": True})
        doc.update({"n": 4})
        with self.assertRaises(exceptions.FailedPrecondition):
            doc.delete(option=db.write_option(last_update_time=snapshot.update_time))
        found = {s.id: s.exists for s in db.get_all([doc, db.document("docs/none")])}
        self.assertEqual(found, {"one": True, "none": False})
        self.assertEqual(doc.get(["n"]).to_dict(), {"n": 4})

    def test_queries(self):
        all = db.collection("all")
        batch = db.batch()
        for n in range(6):
            batch.set(all.document(f"d{n}"), {"n": n, "kind": "odd" if n % 2 else "even", "tags": [n]})
        batch.commit()

        def ids(q):
            return [d.id for d in q.stream()]

        odd = all.where(filter=FieldFilter("kind", "==", "odd"))
        self.assertEqual(ids(odd.order_by("n", direction="DESCENDING").limit(2)), ["d5", "d3"])
        self.assertEqual(ids(all.where(filter=FieldFilter("n", "not-in", [0, 1, 2, 3]))), ["d4", "d5"])
        self.assertEqual(ids(all.where(filter=FieldFilter("tags", "array_contains_any", [2, 3]))), ["d2", "d3"])
        self.assertEqual(ids(all.where(filter=FieldFilter("n", "==", None))), [])
        self.assertEqual(ids(all.order_by("n").start_after({"n": 3}).end_before({"n": 5})), ["d4"])
        self.assertEqual(ids(all.order_by("n").start_after(all.document("d4").get())), ["d5"])
        self.assertEqual([d.id for d in all.order_by("n").limit_to_last(2).get()], ["d4", "d5"])
        either = Or([FieldFilter("n", "==", 0), FieldFilter("n", "==", 5)])
        self.assertEqual(ids(all.where(filter=either)), ["d0", "d5"])
        self.assertEqual(next(all.select(["kind"]).limit(1).stream()).to_dict(), {"kind": "even"})
        self.assertEqual(odd.count().get()[0][0].value, 3)

    def test_transactions(self):
        doc = db.document("counters/one")
        doc.set({"n": 0})

        @firestore.transactional
        def add(tx):
            n = doc.get(transaction=tx).get("n")
            negative = db.collection("counters").where(filter=FieldFilter("n", "<", 0))
            tx.update(doc, {"n": n + 1 + len(list(negative.stream(transaction=tx)))})

        threads = [threading.Thread(target=lambda: add(db.transaction(max_attempts=20))) for _ in range(3)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(doc.get().get("n"), 3)

    def test_listeners(self):
        doc, seen, sizes = db.document("heard/one"), queue.Queue(), queue.Queue()
        one = doc.on_snapshot(lambda docs, *_: seen.put(docs[0].get("n") if docs and docs[0].exists else None))
        large = db.collection("heard").where(filter=FieldFilter("n", ">", 1))
        many = large.on_snapshot(lambda docs, *_: sizes.put(len(docs)))
        self.assertEqual((seen.get(timeout=30), sizes.get(timeout=30)), (None, 0))
        doc.set({"n": 1})
        self.assertEqual(seen.get(timeout=30), 1)
        doc.update({"n": 2})
        self.assertEqual((seen.get(timeout=30), sizes.get(timeout=30)), (2, 1))
        doc.delete()
        self.assertEqual((seen.get(timeout=30), sizes.get(timeout=30)), (None, 0))
        one.unsubscribe()
        many.unsubscribe()

    def test_what_is_not_emulated_is_named(self):
        c = db.collection("all")
        calls = {
            "ListDocuments": lambda: list(c.list_documents()),
            "explain_options": lambda: list(c.stream(explain_options=ExplainOptions())),
            "maximum": lambda: c.document("x").set({"n": firestore.Maximum(1)}),
            "RunTask": lambda: tasks.run_task(name=f"{TASK_QUEUE}/tasks/x"),
        }
        for name, call in calls.items():
            with self.subTest(name), self.assertRaisesRegex(exceptions.MethodNotImplemented, name):
                call()


if __name__ == "__main__":
    unittest.main()
