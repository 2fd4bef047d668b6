import json
import os

from fastapi import FastAPI
from google.cloud import firestore, tasks_v2

from work import analyze

reports = firestore.Client().collection("reports")
tasks = tasks_v2.CloudTasksClient()
app = FastAPI()


@app.post("/reports/{id}", status_code=202)
def create(id: str, input: dict):
    reports.document(id).set({"status": "queued", "input": input})
    request = tasks_v2.HttpRequest(
        url=os.environ["SELF_URL"] + "/tasks/report",
        headers={"Content-Type": "application/json"},
        body=json.dumps({"id": id}).encode(),
        oidc_token=tasks_v2.OidcToken(service_account_email=os.environ["TASK_CALLER"]),
    )
    tasks.create_task(parent=os.environ["TASK_QUEUE"], task=tasks_v2.Task(http_request=request))
    return {"id": id}


@app.get("/reports/{id}")
def show(id: str):
    report = reports.document(id).get().to_dict() or {}
    return {name: report.get(name) for name in ("status", "result")}


@app.post("/tasks/report")
def run(task: dict):
    report = reports.document(task["id"])
    fields = report.get().to_dict()
    if fields["status"] == "done":
        return
    report.update({"status": "running"})
    report.update({"status": "done", "result": analyze(fields["input"])})
