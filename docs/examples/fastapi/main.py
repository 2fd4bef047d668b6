import os

from fastapi import FastAPI, HTTPException
from google.cloud import firestore
from taskguard import OtherInput, submit

from work import analyze

db = firestore.Client()
analyses = db.collection(os.environ.get("ANALYSES_COLLECTION") or "analyses")
reports = db.collection("reports")
before = {"queued": "QUEUED", "running": "PROCESSING", "done": "READY"}
app = FastAPI()


@app.post("/reports/{id}", status_code=202)
def create(id: str, input: dict):
    try:
        submit(id, input)
    except OtherInput as error:
        raise HTTPException(409, str(error)) from error
    return {"id": id}


@app.get("/reports/{id}")
def show(id: str):
    report = analyses.document(id).get().to_dict() or reports.document(id).get().to_dict() or {}
    report["status"] = before.get(report.get("status"), report.get("status"))
    return {name: report.get(name) for name in ("status", "result", "error")}


@app.post("/tasks/report")
def run(task: dict):
    report = reports.document(task["id"])
    fields = report.get().to_dict()
    if fields["status"] == "done":
        return
    report.update({"status": "running"})
    report.update({"status": "done", "result": analyze(fields["input"])})
