"""Submits one analysis and waits for its result:

    pip install google-cloud-firestore google-cloud-tasks
    python3 submit.py ID TEXT

with the variables that `taskguard local` or `terraform output -raw environment` prints.
"""

import datetime
import json
import os
import sys
import time
import uuid

import grpc
from google.api_core.exceptions import AlreadyExists, GoogleAPICallError
from google.cloud import firestore, tasks_v2
from google.cloud.tasks_v2.services.cloud_tasks.transports import CloudTasksGrpcTransport

id, text = sys.argv[1:]
worker = os.environ["TASK_TARGET_URL"]

# It reads FIRESTORE_EMULATOR_HOST itself.
db = firestore.Client(project=os.environ["GOOGLE_CLOUD_PROJECT"], database=os.environ.get("FIRESTORE_DATABASE"))

# The client for Cloud Tasks does not read CLOUD_TASKS_EMULATOR_HOST.
transport = None
if emulator := os.environ.get("CLOUD_TASKS_EMULATOR_HOST"):
    transport = CloudTasksGrpcTransport(channel=grpc.insecure_channel(emulator))
tasks = tasks_v2.CloudTasksClient(transport=transport)

order = db.collection("orders").document(id)
doc = db.collection("analyses").document(id)


# 1. Create an order and its document in one transaction, unless they exist. The document
# has the name of the task, so that each call for it books the same task.
@firestore.transactional
def submit(tx):
    existing = doc.get(transaction=tx)
    if existing.exists:
        return existing.to_dict().get("bookedTask")  # none if it has run
    now = firestore.SERVER_TIMESTAMP
    task = str(uuid.uuid4())
    tx.create(order, {"text": text})
    tx.create(
        doc,
        {"status": "QUEUED", "input": {"text": text}, "createdAt": now, "updatedAt": now, "bookedTask": task},
    )
    return task


booked_task = submit(db.transaction())

# 2. Create the task that delivers it.
task = tasks_v2.Task(
    name=f"{os.environ['TASK_QUEUE']}/tasks/{booked_task}",
    dispatch_deadline=datetime.timedelta(minutes=26),  # the worker's RUN_TIMEOUT (25m) + 1 min
    http_request=tasks_v2.HttpRequest(
        http_method=tasks_v2.HttpMethod.POST,
        url=worker + "/internal/tasks/analysis",
        body=json.dumps({"analysis_id": id}).encode(),
        oidc_token=tasks_v2.OidcToken(service_account_email=os.environ["TASK_CALLER"], audience=worker),
    ),
)
for tries in range(1, 6) if booked_task else ():
    try:
        tasks.create_task(parent=os.environ["TASK_QUEUE"], task=task)
        break
    except AlreadyExists:  # by an earlier try
        break
    except GoogleAPICallError as err:
        if tries == 5:
            print(err, file=sys.stderr)  # recovery books it within one TTL and a minute
        else:
            time.sleep(tries)

# 3. Watch the document until it is READY or FAILED. A failure of on_snapshot's
# stream ends its own thread alone, so the document is read.
while True:
    analysis = doc.get(["status", "result", "error"]).to_dict()
    print(analysis["status"])
    if analysis["status"] in ("READY", "FAILED"):
        break
    time.sleep(2)
ready = analysis["status"] == "READY"
print(json.dumps(analysis["result"] if ready else analysis["error"]))
sys.exit(0 if ready else 1)
