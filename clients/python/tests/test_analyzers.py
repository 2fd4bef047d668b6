"""What the vectors do not show: unexpected errors, hang-ups, and that reports are sent at once."""

import asyncio
import io
import json
import pathlib
import subprocess
import sys
import threading
import unittest

from taskguard import Failed, NotDone, Stopped, endpoint

EXAMPLES = pathlib.Path(__file__).parents[1] / "examples"


def program(analyze, job="{}"):
    """Runs a program without a worker, whose reports go to standard error."""
    text = f"import taskguard\ndef analyze(job):\n    {analyze}\ntaskguard.run(analyze)"
    return subprocess.run([sys.executable, "-c", text], input=job, capture_output=True, text=True)


class Programs(unittest.TestCase):
    def test_an_exception_is_a_temporary_failure_with_its_class_as_code(self):
        ended = program('return {}["page 7"]')
        self.assertEqual((ended.returncode, ended.stdout), (1, ""))
        self.assertIn("KeyError: 'page 7'\n", ended.stderr)
        self.assertIn('{"error": {"code": "KeyError"}}', ended.stderr)

    def test_a_result_that_is_no_json_is_a_permanent_failure(self):
        for value in ("{1, 2}", "float('nan')", "b'x'"):
            ended = program(f"return {value}")
            self.assertEqual((ended.returncode, ended.stdout), (65, ""))
            self.assertIn('{"error": {"code": "result_invalid"', ended.stderr)

    def test_what_is_printed_is_not_the_result(self):
        ended = program('import os; print("a"); os.system("echo b"); return "ok"')
        self.assertEqual((ended.returncode, ended.stdout), (0, '"ok"\n'))

    def test_a_coroutine_function(self):
        ended = program("\n    ".join(["async def work():", "    return job.input", "return work()"]), '{"input": [7]}')
        self.assertEqual((ended.returncode, ended.stdout), (0, "[7]\n"))

    def test_without_a_worker_reports_are_shown_and_side_effects_are_refused(self):
        job = json.dumps({"input": {"pages": ["a b"], "ledger": "/dev/null"}})
        command = [sys.executable, EXAMPLES / "analyzer.py"]
        ended = subprocess.run(command, input=job, capture_output=True, text=True)
        self.assertEqual((ended.returncode, ended.stdout), (1, ""))
        self.assertIn('{"progress": 1.0, "message": "page 1 of 1"}', ended.stderr)
        self.assertIn('"not_committed", "message": "no worker replies"', ended.stderr)


def answer(analyze, **job):
    status, _, chunks = endpoint(analyze).answer(json.dumps({"analysis_id": "a", "lock_token": 8, **job}).encode())
    return status, [json.loads(chunk) for chunk in chunks]


def intended(*names):
    return {"taskguard_effects": {name: {"token": 7} for name in names}, "checkpoint": None}


class Endpoints(unittest.TestCase):
    def test_no_job(self):
        for body in (b"", b"[]", b"\xff", b"{"):
            status, _, chunks = endpoint(lambda job: 1).answer(body)
            self.assertEqual((status, json.loads(b"".join(chunks))["error"]["code"]), (422, "no_job"))

    def test_an_exception_is_a_temporary_failure_with_its_class_as_code(self):
        with self.assertLogs("taskguard", "ERROR") as logged:
            self.assertEqual(answer(lambda job: {}[7]), (500, [{"error": {"code": "KeyError", "message": "7"}}]))
        self.assertIn("Traceback", logged.output[0])

    def test_a_result_that_is_no_json_is_a_permanent_failure(self):
        status, body = answer(lambda job: float("nan"))
        self.assertEqual((status, body[0]["error"]["code"]), (422, "result_invalid"))

    def test_a_report_is_a_copy(self):
        def analyze(job):
            state = {"done": 1}
            job.checkpoint(state)
            state["done"] = 2

        self.assertEqual(answer(analyze)[1], [{"checkpoint": {"done": 1}}, {"result": None}])

    def test_a_side_effect_that_does_not_read_its_key_is_recorded_and_fails(self):
        def analyze(job):
            with job.once("mail") as mail:
                mail.result = "sent"

        lines = answer(analyze, checkpoint=intended("mail"))[1]
        self.assertEqual(lines[0]["checkpoint"]["taskguard_effects"], {"mail": {"done": "sent"}})
        refused = lines[1]["error"]
        self.assertEqual((refused["code"], refused["permanent"]), ("key_not_read", True))
        self.assertEqual(answer(analyze, checkpoint=lines[0]["checkpoint"]), (422, [{"error": refused}]))

    def test_one_name_is_for_one_side_effect_and_none_is_for_a_self_test(self):
        def analyze(job):
            for _ in range(2):
                with job.once("mail") as mail:
                    mail.result = mail.key

        lines = answer(analyze, checkpoint=intended("mail"))[1]
        self.assertEqual(lines[-1]["error"]["code"], "act_name_reused")
        lines = answer(analyze, checkpoint=intended("mail"), self_test=True)[1]
        self.assertEqual(lines[-1]["error"]["code"], "act_in_self_test")

    def test_a_side_effect_that_was_not_done_can_begin_again_in_the_next_attempt(self):
        def analyze(job):
            try:
                with job.once("mail") as mail:
                    mail.key
                    raise NotDone from Failed("refused")
            except Failed:
                with job.once("mail"):
                    raise AssertionError("no attempt has committed the intention") from None

        lines = answer(analyze, checkpoint=intended("mail"))[1]
        self.assertEqual([line.get("checkpoint") for line in lines[:2]], [None, {**intended("mail"), **{
            "taskguard_effects": {"mail": {"token": 8}}}}])
        self.assertEqual(lines[2]["error"]["code"], "before_effect")

    def test_only_the_block_of_its_own_side_effect_is_skipped(self):
        def analyze(job):
            with job.once("a") as a:
                with job.once("b") as b:
                    a.result = a.key  # a is done: this leaves both blocks
                    b.result = "reached"
                raise AssertionError("reached")
            return [a.result, b.result]

        done = {"taskguard_effects": {"a": {"done": 1}, "b": {"done": 2}}, "checkpoint": None}
        self.assertEqual(answer(analyze, checkpoint=done), (200, [[1, 2]]))


class HangUps(unittest.TestCase):
    """The first report arrives while the analyzer runs; after a hang-up the next report raises Stopped."""

    def setUp(self):
        self.proceed, self.ended = threading.Event(), threading.Event()

    def analyze(self, job):
        try:
            job.report(0.5, "first")
            self.proceed.wait(30)
            while True:
                job.report(0.6)
        except Stopped:
            self.ended.set()
            raise

    def test_wsgi(self):
        environ = {"wsgi.input": io.BytesIO(b"{}"), "CONTENT_LENGTH": "2"}
        chunks = endpoint(self.analyze).wsgi(environ, lambda status, headers: None)
        self.assertEqual(json.loads(next(chunks))["message"], "first")
        chunks.close()
        self.proceed.set()
        self.assertTrue(self.ended.wait(30))

    def test_asgi(self):
        sent = []

        async def serve():
            gone = asyncio.Event()
            messages = [{"type": "http.request", "body": b"{}"}]

            async def receive():
                if not messages:
                    await gone.wait()
                    return {"type": "http.disconnect"}
                return messages.pop()

            async def send(message):
                sent.append(message)
                if message.get("body"):
                    gone.set()

            await asyncio.wait_for(endpoint(self.analyze)({"type": "http"}, receive, send), 30)

        asyncio.run(serve())
        self.assertEqual(json.loads(sent[1]["body"])["message"], "first")
        self.proceed.set()
        self.assertTrue(self.ended.wait(30))

    def test_asgi_refuses_other_protocols(self):
        with self.assertRaisesRegex(RuntimeError, "websocket"):
            asyncio.run(endpoint(self.analyze)({"type": "websocket"}, None, None))
