"""What the vectors do not show: unexpected errors, misuse, hang-ups, and that reports are sent at once."""

import asyncio
import io
import json
import pathlib
import subprocess
import sys
import threading
import unittest

from taskguard import Failed, NotDone, Stopped, endpoint, submit


class Programs(unittest.TestCase):
    """Programs without a worker, whose reports go to standard error."""

    def check(self, analyze, exit, output, errors, job='{"input": [7]}'):
        text = f"import taskguard\n{analyze}\ntaskguard.run(analyze)"
        ended = subprocess.run([sys.executable, "-c", text], input=job, capture_output=True, text=True)
        self.assertEqual((ended.returncode, ended.stdout), (exit, output), ended.stderr)
        self.assertIn(errors, ended.stderr)

    def test_an_exception_is_a_temporary_failure_with_its_class_as_code(self):
        self.check("def analyze(job): return {}[7]", 1, "", 'KeyError: 7\n{"error": {"code": "KeyError"}}')

    def test_a_result_that_is_no_json_is_a_permanent_failure(self):
        for value in ("{1, 2}", "float('nan')", "b'x'"):
            self.check(f"def analyze(job): return {value}", 65, "", '{"error": {"code": "result_invalid"')

    def test_the_program_of_the_readme(self):
        shown = (pathlib.Path(__file__).parents[1] / "README.md").read_text().split("```")[1]
        self.check(shown.removeprefix("python\n"), 0, '{"words": 2}\n', "", '{"input": {"text": "good day"}}')

    def test_what_is_printed_is_not_the_result(self):
        self.check('import os\ndef analyze(job): print("a"); os.system("echo b"); return "c"', 0, '"c"\n', "b\n")

    def test_a_coroutine_function(self):
        self.check("async def analyze(job): return job.input", 0, "[7]\n", "")

    def test_without_a_worker_reports_are_shown_and_side_effects_are_refused(self):
        self.check('def analyze(job): job.report(1)\n', 0, "null\n", '{"progress": 1, "message": ""}\n')
        once = 'def analyze(job):\n with job.once("mail"): pass'
        self.check(once, 1, "", '"not_committed", "message": "no worker replies"')


def answer(analyze, body=None, **job):
    body = json.dumps({"analysis_id": "a", "lock_token": 8, **job}).encode() if body is None else body
    status, _, chunks = endpoint(analyze).answer(body)
    return status, [json.loads(chunk) for chunk in chunks]


GO = {"state": "go", "key": "k"}


class Endpoints(unittest.TestCase):
    def test_no_job(self):
        for body in (b"", b"[]", b"\xff", b"{"):
            status, lines = answer(lambda job: 1, body)
            self.assertEqual((status, lines[0]["error"]["code"]), (422, "no_job"))

    def test_an_exception_is_a_temporary_failure_with_its_class_as_code(self):
        with self.assertLogs("taskguard", "ERROR") as logged:
            self.assertEqual(answer(lambda job: {}[7]), (500, [{"error": {"code": "KeyError", "message": "7"}}]))
        self.assertIn("Traceback", logged.output[0])
        status, lines = answer(lambda job: float("nan"))
        self.assertEqual((status, lines[0]["error"]["code"]), (422, "result_invalid"))

    def test_a_report_is_a_copy(self):
        def analyze(job):
            job.checkpoint(state := {"done": 1})
            state["done"] = 2

        self.assertEqual(answer(analyze)[1], [{"checkpoint": {"done": 1}}, {"result": None}])

    def test_a_side_effect_that_does_not_read_its_key_is_recorded_and_fails(self):
        def analyze(job):
            with job.once("mail") as mail:
                mail.result = "sent"

        sent, last = answer(analyze, effects={"mail": GO})[1]
        self.assertEqual(sent, {"effect": "mail", "done": "sent"})
        self.assertEqual((last["error"]["code"], last["error"]["permanent"]), ("key_not_read", True))
        done = {"state": "done", "result": "sent"}
        self.assertEqual(answer(analyze, effects={"mail": done}), (422, [last]))

    def test_one_name_is_for_one_side_effect_and_none_is_for_a_self_test(self):
        def analyze(job):
            for _ in range(2):
                with job.once("mail") as mail:
                    mail.result = mail.key

        for code, more in {"act_name_reused": {}, "act_in_self_test": {"self_test": True}}.items():
            lines = answer(analyze, effects={"mail": GO}, **more)[1]
            self.assertEqual(lines[-1]["error"]["code"], code)

    def test_a_side_effect_that_an_earlier_version_has_recorded_is_not_done(self):
        def analyze(job):
            with job.once("mail") as mail:
                raise AssertionError(mail.key)

        old = {"taskguard_effects": {"mail": {"token": 7}}, "checkpoint": None}
        status, lines = answer(analyze, effects={"mail": GO}, checkpoint=old)
        self.assertEqual((status, lines[0]), (200, {"effect": "mail", "not_done": True}))
        self.assertEqual((lines[1]["error"]["code"], lines[1]["error"]["permanent"]), ("effects_in_checkpoint", True))

    def test_a_call_that_catches_everything_asks_for_its_first_side_effect(self):
        def analyze(job):
            for name in ("a", "b"):
                try:
                    with job.once(name) as effect:
                        raise AssertionError(effect.key)
                except BaseException:
                    pass

        self.assertEqual(answer(analyze), (200, [{"effect": "a"}]))

    def test_a_call_that_is_refused_has_done_nothing(self):
        begun, proceed = threading.Event(), threading.Event()

        def analyze(job):
            begun.set()
            proceed.wait(30)

        service = endpoint(analyze)
        body = json.dumps({"analysis_id": "a", "effects": {"mail": GO}}).encode()
        first = threading.Thread(target=service.answer, args=(body,))
        first.start()
        self.assertTrue(begun.wait(30))
        lines = [json.loads(line) for line in service.answer(body)[2]]
        proceed.set()
        first.join(30)
        self.assertEqual((lines[0], lines[1]["retry_after"]), ({"effect": "mail", "not_done": True}, 30))

    def test_a_side_effect_that_was_not_done_can_be_asked_for_again(self):
        def analyze(job):
            for _ in range(2):
                try:
                    with job.once("mail") as mail:
                        mail.key
                        raise NotDone from Failed("refused")
                except Failed:
                    pass

        lines = answer(analyze, effects={"mail": GO})[1]
        self.assertEqual(lines, [{"effect": "mail", "not_done": True}, {"effect": "mail"}])

    def test_a_key_leaves_the_block_of_its_own_side_effect(self):
        def analyze(job):
            with job.once("a") as a:
                with job.once("b") as b:
                    b.result = a.key  # leaves both blocks
                raise AssertionError("reached")
            return [a.result, b.result]

        done = {"a": {"state": "done", "result": 1}, "b": {"state": "done", "result": 2}}
        self.assertEqual(answer(analyze, effects=done), (200, [[1, 2]]))


class Submissions(unittest.TestCase):
    def test_a_run_timeout_for_which_cloud_tasks_does_not_wait_is_refused(self):
        for seconds in (1801, 0, float("nan")):
            with self.assertRaisesRegex(ValueError, "run_timeout"):
                submit("an-id", {}, run_timeout=seconds)


class Repeats(unittest.TestCase):
    """An attempt is refused while an earlier one that never reports still runs."""

    def test_an_analysis_runs_once_at_a_time_in_a_process(self):
        begun, proceed, runs = threading.Event(), threading.Event(), []

        def analyze(job):
            runs.append(job.lock_token)
            begun.set()
            proceed.wait(30)
            return job.lock_token

        service = endpoint(analyze)

        def post(id, token):
            status, headers, chunks = service.answer(json.dumps({"analysis_id": id, "lock_token": token}).encode())
            return status, headers.get("Retry-After"), json.loads(b"".join(chunks))

        first = threading.Thread(target=post, args=("a", 1))
        first.start()
        self.assertTrue(begun.wait(30))
        status, wait, body = post("a", 2)
        self.assertEqual((status, wait, body["error"]["code"], runs), (503, "30", "still_running", [1]))

        proceed.set()
        self.assertEqual(post("b", 3), (200, None, 3))  # another analysis
        first.join(30)
        self.assertEqual(post("a", 4), (200, None, 4))


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

    def tearDown(self):
        self.proceed.set()
        self.assertTrue(self.ended.wait(30))

    def test_wsgi(self):
        environ = {"wsgi.input": io.BytesIO(b"{}"), "CONTENT_LENGTH": "2"}
        chunks = endpoint(self.analyze).wsgi(environ, lambda status, headers: None)
        self.assertEqual(json.loads(next(chunks))["message"], "first")
        chunks.close()

    def test_asgi(self):
        messages, sent = [{"type": "http.request", "body": b"{}"}], []

        async def serve():
            gone = asyncio.Event()

            async def receive():
                if not messages:
                    await gone.wait()
                return messages.pop() if messages else {"type": "http.disconnect"}

            async def send(message):
                sent.append(message)
                if message.get("body"):
                    gone.set()

            await asyncio.wait_for(endpoint(self.analyze)({"type": "http"}, receive, send), 30)

        asyncio.run(serve())
        self.assertEqual(json.loads(sent[1]["body"])["message"], "first")
