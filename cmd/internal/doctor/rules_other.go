package doctor

import (
	"cmp"
	"fmt"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"
)

// otherRules check the queue, the indexes and Cloud Scheduler.
func (d deployment) otherRules() []rule {
	return []rule{
		{"queue-stopped", []Part{QueueSettings}, d.queueStopped},
		{"queue-elsewhere", []Part{WorkerSettings, QueueSettings}, d.queueElsewhere},
		{"project", []Part{WorkerSettings}, d.project},
		{"dispatches", []Part{WorkerSettings, QueueSettings}, d.dispatches},
		{"queue-gives-up", []Part{QueueSettings}, d.queueGivesUp},
		{"queue-hot", []Part{QueueSettings}, d.queueHot},
		{"queue-backoff", []Part{QueueSettings}, d.queueBackoff},
		{"index-missing", []Part{DatabaseIndexes}, d.indexMissing},
		{"field-indexed", []Part{DatabaseIndexes}, d.fieldIndexed},
		{"keep-no-ttl", []Part{WorkerSettings, DatabaseIndexes}, d.keepNoTTL},
		{"recovery-unscheduled", []Part{WorkerSettings, SchedulerJobs}, d.recoveryUnscheduled},
		{"recovery-failed", []Part{SchedulerJobs}, d.recoveryFailed},
	}
}

func (d deployment) queueStopped() []Finding {
	state := d.Queue.State
	return findIf(state == "PAUSED" || state == "DISABLED", Problem,
		fmt.Sprintf("The queue is %s: nothing is delivered.", strings.ToLower(state)), "Resume it (gcloud tasks queues resume).")
}

func (d deployment) queueElsewhere() []Finding {
	_, region := place(d.Worker.value("TASK_QUEUE"))
	return findIf(region != "" && d.Queue.Region != "" && region != d.Queue.Region, Problem,
		fmt.Sprintf("TASK_QUEUE is in %s, and the queue's file creates it in %s: deliveries cannot be booked.", region, d.Queue.Region),
		"Correct --location in the file, or TASK_QUEUE.")
}

// project finds names of different projects. It compares only ids: a number may stand for any.
func (d deployment) project() []Finding {
	queue, _ := place(d.Worker.value("TASK_QUEUE"))
	_, caller, _ := strings.Cut(strings.TrimSuffix(d.Worker.value("TASK_CALLER"), ".iam.gserviceaccount.com"), "@")
	ids := slices.DeleteFunc([]string{queue, caller, d.Queue.Project}, func(id string) bool { return !shortName.MatchString(id) })
	if len(slices.Compact(slices.Clone(ids))) > 1 {
		return findIf(true, Problem,
			fmt.Sprintf("TASK_QUEUE, TASK_CALLER and the queue's file name different projects (%s): deliveries cannot be booked, and Cloud Tasks signs only as an account of its own project.", strings.Join(ids, ", ")),
			"Correct the names.")
	}

	elsewhere := len(ids) > 0 && shortName.MatchString(d.worker.Project) && d.worker.Project != ids[0]
	return findIf(elsewhere, Advice,
		fmt.Sprintf("GOOGLE_CLOUD_PROJECT, that of the documents, is %s, and the queue is in %s.", d.worker.Project, strings.Join(ids[:min(1, len(ids))], "")),
		"Correct one of them, unless the database is in another project on purpose.")
}

func (d deployment) dispatches() []Finding {
	s, n := d.Worker, d.Queue.Concurrent
	places := s.MaxInstances * s.Concurrency
	return append(findIf(n == 1 && places > 2, Problem, // the second place is for recovery's call
		fmt.Sprintf("The queue dispatches one task at once, and %s can take %d requests: each analysis waits for the end of the one before.", s.Name, places),
		fmt.Sprintf("Set --max-concurrent-dispatches=%d on the queue.", places-1)),
		findIf(n >= places, Problem,
			fmt.Sprintf("The queue dispatches %d tasks at once, and %s can take %d requests (%d instances × %d): when all are under way, recovery's call is answered 429, and so is each further task, which slows the whole queue.", n, s.Name, places, s.MaxInstances, s.Concurrency),
			fmt.Sprintf("Set --max-concurrent-dispatches on the queue below %d, or allow more instances (--max).", places))...)
}

func (d deployment) queueGivesUp() []Finding {
	q := d.Queue
	return findIf(q.MaxAttempts > 0 || q.MaxDuration > 0, Problem,
		fmt.Sprintf("The queue drops a task after %d attempts (-1: never) and %v (0s: never), even if its analysis was only locked or failed for now. MAX_ATTEMPTS limits an analysis, and records that in its document.", q.MaxAttempts, q.MaxDuration),
		"Set --max-attempts=-1 and --max-retry-duration=0s on the queue.")
}

func (d deployment) queueHot() []Finding {
	return findIf(d.Queue.MinBackoff < 10*time.Second, Problem,
		fmt.Sprintf("The queue waits only %v before its first retry: where TASK_QUEUE is not set, a short outage uses up MAX_ATTEMPTS and makes analyses FAILED.", d.Queue.MinBackoff),
		"Set --min-backoff=30s, --max-backoff=600s and --max-doublings=5 on the queue.")
}

func (d deployment) queueBackoff() []Finding {
	return findIf(d.Queue.MinBackoff > d.Queue.MaxBackoff, Problem,
		fmt.Sprintf("The queue's shortest wait before a retry, %v, is over its longest, %v.", d.Queue.MinBackoff, d.Queue.MaxBackoff),
		"Set --min-backoff=30s, --max-backoff=600s and --max-doublings=5 on the queue.")
}

func (d deployment) indexMissing() (found []Finding) {
	var needed []string
	for i := range d.Kinds {
		needed = append(needed, NeededIndexes(d.Kinds[i])...)
	}
	for _, need := range needed {
		state, exists := d.Indexes.Composite[need]
		if !exists {
			state = "missing"
		}
		found = append(found, findIf(state != "" && state != "READY", Problem,
			fmt.Sprintf("The index of %s is %s: until it is ready, queries fail: of ascending updatedAt, recovery; of descending updatedAt, the console and status, requeue and cancel by filter; of createdAt, the age of the oldest analysis.", need, state),
			fmt.Sprintf("Create it (%s); wait while it is CREATING, and delete it before if it is NEEDS_REPAIR.", d.Indexes.create(need)))...)
	}
	return found
}

// fieldIndexed finds fields that no query needs and that are indexed. The first three may be large.
func (d deployment) fieldIndexed() (found []Finding) {
	for i := range d.Kinds {
		group, fields := path.Base(d.Kinds[i].Collection), d.Kinds[i].Fields
		for i, name := range []string{cmp.Or(fields.Input, "input"), cmp.Or(fields.Result, "result"), "checkpoint", cmp.Or(fields.Error, "error"), "lastError", "progress", "history"} {
			severity, effect := Problem, "Firestore refuses a document with more than 40,000 index entries"
			if i > 2 {
				severity, effect = Advice, "its index costs storage and makes writes slower, and no query needs it"
			}
			found = append(found, findIf(d.Indexes.indexed(group, name), severity,
				fmt.Sprintf("The field %s of %s is indexed: %s.", name, group, effect),
				fmt.Sprintf("Exempt it (gcloud firestore indexes fields update %s --database='%s' --collection-group=%s --disable-indexes).", name, d.Indexes.Database, group))...)
		}
	}
	return found
}

// keepNoTTL finds finished documents that expire and that nothing deletes.
func (d deployment) keepNoTTL() (found []Finding) {
	for i := range d.Kinds {
		collection := path.Base(d.Kinds[i].Collection)
		found = append(found, findIf(d.worker.Options.Keep > 0 && !d.Indexes.TTL[collection+"/expireAt"], Advice,
			fmt.Sprintf("KEEP_FINISHED is set, and the field expireAt of %s has no TTL policy: finished documents are kept forever.", collection),
			fmt.Sprintf("Create the policy (gcloud firestore fields ttls update expireAt --database='%s' --collection-group=%s --enable-ttl), or remove KEEP_FINISHED.", d.Indexes.Database, collection))...)
	}
	return found
}

const recoverRoute = "/internal/tasks/recover"

// recoveryUnscheduled finds a worker with a queue whose recovery no enabled job calls.
func (d deployment) recoveryUnscheduled() []Finding {
	scheduled := slices.ContainsFunc(d.Jobs, func(j Job) bool {
		return strings.HasSuffix(j.URI, recoverRoute) && j.Method == http.MethodPost && (j.State == "" || j.State == "ENABLED")
	})
	url, caller := cmp.Or(d.worker.Options.Queue.TargetURL, "URL"), cmp.Or(d.Worker.value("TASK_CALLER"), "ACCOUNT")
	return findIf(d.worker.Options.Queue.Name != "" && !scheduled, Problem,
		fmt.Sprintf("No enabled job of Cloud Scheduler in the queue's region, the only one that was read, calls POST %s%s: unless a job of another region does, an analysis whose worker died, or whose task was lost, stays as it is.", url, recoverRoute),
		fmt.Sprintf("Resume the job (gcloud scheduler jobs resume), or create one (gcloud scheduler jobs create http, --schedule='* * * * *' --http-method=POST --uri=%s%s --oidc-service-account-email=%s --oidc-token-audience=%[1]s).", url, recoverRoute, caller))
}

// recoveryFailed finds a job whose last call was refused or failed.
func (d deployment) recoveryFailed() (found []Finding) {
	for _, j := range d.Jobs {
		found = append(found, findIf(strings.HasSuffix(j.URI, recoverRoute) && j.Failure != "", Problem,
			fmt.Sprintf("The last call of the job %s failed (%s): analyses are not recovered.", j.Name, strings.TrimRight(j.Failure, ". ")),
			fmt.Sprintf("See the answers (gcloud logging read 'resource.type=cloud_scheduler_job AND resource.labels.job_id=%s'), then correct its account, audience or URL (gcloud scheduler jobs update http).", j.Name))...)
	}
	return found
}
