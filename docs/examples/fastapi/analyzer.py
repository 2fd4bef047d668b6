from fastapi import FastAPI
from taskguard import Failed, Job, endpoint

from work import analyze

app = FastAPI()


@app.get("/health")
def health():
    return {}


@endpoint
def report(job: Job):
    if not (job.input and job.input.get("pages", 0) > 0):
        raise Failed("no_pages", "the report has no pages", permanent=True)
    return analyze(job.input)


app.add_route("/analyze", report, methods=["POST"])
