"""Calls the routes of main.py and later.py, with FastAPI itself. Documents and submit are stand-ins."""

import importlib
import os
import sys
import unittest

import taskguard
from fastapi.testclient import TestClient
from google.cloud.firestore import DOCUMENTS

os.environ["ANALYSES_COLLECTION"] = "transcripts"


def submit(id, input):
    found = DOCUMENTS.setdefault(f"transcripts/{id}", {"status": "QUEUED", "input": input})
    if found["input"] != input:
        raise taskguard.OtherInput(f"the analysis {id} exists with another input")


taskguard.submit = submit


class Applications(unittest.TestCase):
    def setUp(self):
        DOCUMENTS.clear()
        for status in ("queued", "running", "done"):
            DOCUMENTS[f"reports/{status}"] = {"status": status, "input": {"pages": 3}}
        DOCUMENTS["reports/done"]["result"] = {"words": 7}  # a second run would write 750

    def client(self, release):
        return TestClient(importlib.import_module(release).app)

    def shows(self, client, id, status, words=None):
        got = client.get(f"/reports/{id}").json()
        self.assertEqual((status, words), (got["status"], (got["result"] or {}).get("words")))

    def test_both_releases_enqueue_a_report_once(self):
        for release in ("main", "later"):
            with self.subTest(release):
                client = self.client(release)
                for _ in range(2):
                    self.assertEqual(202, client.post(f"/reports/{release}", json={"pages": 3}).status_code)
                self.assertEqual(409, client.post(f"/reports/{release}", json={"pages": 4}).status_code)
                self.shows(client, release, "QUEUED")
                DOCUMENTS[f"transcripts/{release}"].update(status="READY", result={"words": 750})
                self.shows(client, release, "READY", 750)

    def test_both_releases_show_the_reports_of_before(self):
        for release in ("main", "later"):
            with self.subTest(release):
                client = self.client(release)
                for id, status, words in (
                    ("queued", "QUEUED", None), ("running", "PROCESSING", None), ("done", "READY", 7), ("unknown", None, None),
                ):
                    self.shows(client, id, status, words)

    def test_an_id_that_exists_only_in_reports_starts_an_analysis(self):
        client = self.client("main")
        self.assertEqual(202, client.post("/reports/done", json={"pages": 3}).status_code)
        self.shows(client, "done", "QUEUED")

    def test_only_the_first_release_runs_old_tasks(self):
        client = self.client("main")
        for id in ("queued", "done"):
            self.assertEqual(200, client.post("/tasks/report", json={"id": id}).status_code)
        self.shows(client, "queued", "READY", 750)
        self.shows(client, "done", "READY", 7)
        self.assertEqual(404, self.client("later").post("/tasks/report", json={"id": "running"}).status_code)


if __name__ == "__main__":
    sys.exit(not unittest.main(exit=False).result.wasSuccessful())
