"""The vectors of testdata/protocol, which the worker passes too."""

import asyncio
import io
import json
import os
import pathlib
import subprocess
import sys
import unittest

from steps import analyzer
from taskguard import endpoint

PROTOCOL = pathlib.Path(__file__).parents[3] / "testdata" / "protocol"


def vectors(name):
    cases = json.loads((PROTOCOL / name).read_text())
    assert len(cases) > 10, cases
    return cases


class Programs(unittest.TestCase):
    def test_a_program_sends_the_lines_and_exits(self):
        for case in vectors("exec.json"):
            with self.subTest(case["name"]):
                self.check(case)

    def check(self, case):
        (reports, report_fd), (reply_fd, replies) = os.pipe(), os.pipe()
        env = {**os.environ, "STEPS": json.dumps(case["steps"]), "REPORT_FD": str(report_fd), "REPLY_FD": str(reply_fd)}
        program = subprocess.Popen(
            [sys.executable, pathlib.Path(__file__).with_name("steps.py")], env=env, pass_fds=(report_fd, reply_fd),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        os.close(report_fd)
        os.close(reply_fd)
        with program, open(reports) as sent, open(replies, "w", buffering=1) as answers:
            program.stdin.write(json.dumps(case["job"]).encode())
            program.stdin.close()
            for line in case["lines"]:
                if "reply" in line:
                    print(json.dumps(line["reply"]), file=answers)
                else:
                    self.assertEqual(json.loads(sent.readline() or program.stderr.read()), line["send"])
            output, errors = program.stdout.read(), program.stderr.read()
            self.assertEqual((sent.read(), program.wait()), ("", case["exit"]), errors)
        if "output" in case:
            self.assertEqual(json.loads(output), case["output"])
        else:
            self.assertEqual(output, b"")


def by_wsgi(application, body):
    head = []
    chunks = application.wsgi(
        {"wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}, lambda *args: head.extend(args)
    )
    return int(head[0].split()[0]), dict(head[1]), b"".join(chunks)


def by_asgi(application, body):
    parts, sent = [body[:10], body[10:]], []

    async def receive():
        if not parts:
            await asyncio.Event().wait()  # the client stays
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

    async def send(message):
        sent.append(message)

    asyncio.run(application({"type": "http"}, receive, send))
    assert [m.get("more_body", False) for m in sent[1:]] == [True] * (len(sent) - 2) + [False]
    headers = {name.decode().title(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], headers, b"".join(m["body"] for m in sent[1:])


def coroutine(analyze):
    async def analyze_async(job):
        await asyncio.sleep(0)
        return analyze(job)

    return analyze_async


class Endpoints(unittest.TestCase):
    def test_an_endpoint_answers(self):
        for case in vectors("http.json"):
            for call in case.get("calls", [case]):
                fields = {name: call[name] for name in ("effects", "checkpoint") if name in call}
                body = json.dumps(case["job"] | fields if "calls" in case else case["job"]).encode()
                for ask in (by_wsgi, by_asgi):
                    for kind in (lambda analyze: analyze, coroutine):
                        with self.subTest(case["name"], by=ask.__name__, kind=kind.__name__):
                            steps = call.get("steps", case["steps"])
                            self.check(call["answer"], ask(endpoint(kind(analyzer(steps))), body))

    def check(self, want, answer):
        status, headers, body = answer
        self.assertEqual(status, want["status"], body)
        self.assertEqual((headers["Content-Type"], headers.get("Retry-After")), (want["type"], want.get("retry_after")))
        if "lines" in want:
            self.assertEqual([json.loads(line) for line in body.splitlines()], want["lines"])
        else:
            self.assertEqual(json.loads(body), want["body"])


if __name__ == "__main__":
    unittest.main()
