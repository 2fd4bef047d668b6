"""Puts a PDF into Cloud Storage, and submits its analysis."""

import hashlib
import os

from google.api_core.exceptions import PreconditionFailed
from google.cloud import storage
from taskguard import submit

bucket = storage.Client().bucket(os.environ["BUCKET"])


def submit_pdf(pdf: bytes) -> str:
    id = hashlib.sha256(pdf).hexdigest()
    blob = bucket.blob(f"inputs/{id}.pdf")
    try:
        blob.upload_from_string(pdf, content_type="application/pdf", if_generation_match=0)
    except PreconditionFailed:  # it exists, with the same content
        blob.reload()
    submit(id, {"pdf": blob.name, "generation": blob.generation})
    return id
