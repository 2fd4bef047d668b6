"""The analyzer.py of docs/from-fastapi.md, which resumes after a crash."""

import time

from fastapi import FastAPI
from taskguard import Job, endpoint

app = FastAPI()


@app.get("/health")
def health():
    return {}


@endpoint
def report(job: Job):
    pages = job.input["pages"]
    state = job.resume or {"done": 0, "words": 0}
    while state["done"] < pages:
        time.sleep(0.1)  # the expensive work on one page
        state["done"] += 1
        state["words"] += 250
        job.report(state["done"] / pages, f"page {state['done']} of {pages}")
        job.checkpoint(state)
    return {"pages": pages, "words": state["words"]}


app.add_route("/analyze", report, methods=["POST"])
