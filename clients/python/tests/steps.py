"""An analyzer that does the steps of a vector. As a program it reads them from STEPS."""

import json
import os

from taskguard import Failed, NotDone, run


def failed(failure):
    return Failed(failure["code"], failure["message"], **{k: failure[k] for k in failure.keys() - {"code", "message"}})


def perform(do):
    if "fail" in do:
        raise failed(do["fail"])
    if "not_done" in do:
        raise NotDone from (failed(do["not_done"]) if do["not_done"] else None)
    return do["return"]


def analyzer(steps):
    def analyze(job):
        last = None
        for step in steps:
            match step:
                case {"report": [progress, message]}:
                    job.report(progress, message)
                case {"checkpoint": state}:
                    job.checkpoint(state, wait=step.get("wait", False))
                case {"once": name}:
                    find = (lambda key, step=step: perform(step["find"])) if "find" in step else None
                    with job.once(name, find) as once:
                        assert len(once.key) == 32
                        once.result = perform(step["do"])  # a KeyError: the vector says that it must not act
                    last = once.result
                case {"return": value}:
                    return value
                case {"return_once": True}:
                    return last
                case {"return_checkpoint": True}:
                    return job.resume
                case {"fail": failure}:
                    raise failed(failure)
                case _:
                    raise AssertionError(f"unknown step {step}")

    return analyze


if __name__ == "__main__":
    run(analyzer(json.loads(os.environ["STEPS"])))
