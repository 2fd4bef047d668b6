"""Analyzes a PDF in Cloud Storage, and puts the result there: ANALYZER="exec:python3 large.py" ANALYZER_ENV=BUCKET"""

import json
import os

from google.cloud import storage
from taskguard import Job, run

bucket = storage.Client().bucket(os.environ["BUCKET"])


def analyze(job: Job):
    pdf = bucket.blob(job.input["pdf"], generation=job.input["generation"]).download_as_bytes()
    pages = [{"page": n, "bytes": len(page)} for n, page in enumerate(pdf.split(b"\f"), 1)]
    result = bucket.blob(f"results/{job.analysis_id}/{job.lock_token}.json")
    result.upload_from_string(json.dumps(pages), content_type="application/json")
    return {"pages": len(pages), "details": f"gs://{bucket.name}/{result.name}"}


run(analyze)
