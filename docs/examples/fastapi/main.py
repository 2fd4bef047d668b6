from fastapi import FastAPI
from google.cloud import firestore
from taskguard import submit

analyses = firestore.Client().collection("analyses")
app = FastAPI()


@app.post("/reports/{id}", status_code=202)
def create(id: str, input: dict):
    submit(id, input)
    return {"id": id}


@app.get("/reports/{id}")
def show(id: str):
    report = analyses.document(id).get().to_dict() or {}
    return {name: report.get(name) for name in ("status", "result", "error")}
