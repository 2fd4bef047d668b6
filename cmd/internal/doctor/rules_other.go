package doctor

import (
	"cmp"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	"taskguard/worker"
)

// otherRules check the queue, the indexes and Cloud Scheduler.
func (d deployment) otherRules() []rule {
	queue, both, indexes := []Part{QueueSettings}, []Part{WorkerSettings, QueueSettings}, []Part{DatabaseIndexes}
	return []rule{
		{"queue-stopped", queue, d.queueStopped},
		{"queue-elsewhere", both, d.queueElsewhere},
		{"project", []Part{WorkerSettings}, d.project},
		{"dispatches", both, d.dispatches},
		{"queue-gives-up", queue, d.queueGivesUp},
		{"queue-hot", queue, d.queueHot},
		{"queue-backoff", queue, d.queueBackoff},
		{"index-missing", indexes, d.ofKinds(d.indexMissing)},
		{"field-indexed", indexes, d.ofKinds(d.fieldIndexed)},
		{"keep-no-ttl", []Part{WorkerSettings, DatabaseIndexes}, d.ofKinds(d.keepNoTTL)},
		{"recovery-unscheduled", []Part{WorkerSettings, SchedulerJobs}, d.recoveryUnscheduled},
		{"recovery-failed", []Part{SchedulerJobs}, d.recoveryFailed},
	}
}

// ofKinds returns the check of each kind of work.
func (d deployment) ofKinds(check func(k *worker.Kind, group string) findings) func() findings {
	return func() (found findings) {
		for i := range d.Kinds {
			found = append(found, check(&d.Kinds[i], path.Base(d.Kinds[i].Collection))...)
		}
		return found
	}
}

func (d deployment) queueStopped() findings {
	state := d.Queue.State
	return findIf(state == "PAUSED" || state == "DISABLED", Problem,
		"The queue is %s: nothing is delivered.", strings.ToLower(state)).
		fix("Resume it (gcloud tasks queues resume).")
}

func (d deployment) queueElsewhere() findings {
	_, region := place(d.Worker.value("TASK_QUEUE"))
	return findIf(region != "" && d.Queue.Region != "" && region != d.Queue.Region, Problem,
		"TASK_QUEUE is in %s, and the queue's file has %s: deliveries cannot be booked.", region, d.Queue.Region).
		fix("Correct --location in the file, or TASK_QUEUE.")
}

// project finds names of different projects. It compares only ids: a number may stand for any.
func (d deployment) project() findings {
	queue, _ := place(d.Worker.value("TASK_QUEUE"))
	_, caller, _ := strings.Cut(strings.TrimSuffix(d.Worker.value("TASK_CALLER"), ".iam.gserviceaccount.com"), "@")
	number := func(id string) bool { return !shortName.MatchString(id) } // or empty
	ids := slices.DeleteFunc([]string{queue, caller, d.Queue.Project}, number)
	if len(slices.Compact(slices.Clone(ids))) > 1 {
		return findIf(true, Problem,
			"TASK_QUEUE, TASK_CALLER and the queue's file name different projects (%s): deliveries cannot be booked, "+
				"and Cloud Tasks signs only as an account of its own project.", strings.Join(ids, ", ")).
			fix("Correct the names.")
	}

	if len(ids) == 0 || number(d.worker.Project) {
		return nil
	}
	return findIf(d.worker.Project != ids[0], Advice,
		"GOOGLE_CLOUD_PROJECT, that of the documents, is %s, and the queue is in %s.", d.worker.Project, ids[0]).
		fix("Correct one of them, unless the database is in another project on purpose.")
}

func (d deployment) dispatches() findings {
	s, n := d.Worker, d.Queue.Concurrent
	places := s.MaxInstances * s.Concurrency
	one := findIf(n == 1 && places > 2, Problem, // the second place is for recovery's call
		"The queue dispatches one task at once, and %s can take %d: each analysis waits for the end of the one before.",
		s.Name, places).
		fix("Set --max-concurrent-dispatches=%d on the queue.", places-1)
	many := findIf(n >= places, Problem,
		"The queue dispatches %d tasks at once, and %s can take %d requests (%d instances × %d): "+
			"then recovery's call and further tasks are answered 429, which slows the whole queue.",
		n, s.Name, places, s.MaxInstances, s.Concurrency).
		fix("Set --max-concurrent-dispatches on the queue below %d, or allow more instances (--max).", places)
	return append(one, many...)
}

func (d deployment) queueGivesUp() findings {
	q := d.Queue
	return findIf(q.MaxAttempts > 0 || q.MaxDuration > 0, Problem,
		"The queue drops a task after %d attempts (-1: never) and %v (0s: never), even if its analysis was locked "+
			"or failed for now. MAX_ATTEMPTS limits an analysis, and records that in its document.",
		q.MaxAttempts, q.MaxDuration).
		fix("Set --max-attempts=-1 and --max-retry-duration=0s on the queue.")
}

const setBackoff = "Set --min-backoff=30s, --max-backoff=600s and --max-doublings=5 on the queue."

func (d deployment) queueHot() findings {
	return findIf(d.Queue.MinBackoff < 10*time.Second, Problem,
		"The queue waits only %v before its first retry: without TASK_QUEUE, a short outage uses up MAX_ATTEMPTS.",
		d.Queue.MinBackoff).
		fix(setBackoff)
}

func (d deployment) queueBackoff() findings {
	shortest, longest := d.Queue.MinBackoff, d.Queue.MaxBackoff
	return findIf(shortest > longest, Problem,
		"The queue's shortest wait before a retry, %v, is over its longest, %v.", shortest, longest).
		fix(setBackoff)
}

func (d deployment) indexMissing(k *worker.Kind, _ string) (found findings) {
	for _, need := range NeededIndexes(*k) {
		state, exists := d.Indexes.Composite[need]
		if !exists {
			state = "missing"
		}
		found = append(found, findIf(state != "" && state != "READY", Problem,
			"The index of %s is %s. Queries fail: with ascending updatedAt, recovery; with descending, the console "+
				"and status, requeue and cancel by filter; with createdAt, the age of the oldest one.", need, state).
			fix("Create it (%s). Wait while it is CREATING; delete a NEEDS_REPAIR one first.",
				d.Indexes.create(need))...)
	}
	return found
}

// fieldIndexed finds fields that no query needs and that are indexed.
func (d deployment) fieldIndexed(k *worker.Kind, group string) (found findings) {
	fields := k.Fields
	large := []string{cmp.Or(fields.Input, "input"), cmp.Or(fields.Result, "result"), "checkpoint"}
	small := []string{cmp.Or(fields.Error, "error"), "lastError", "progress", "history"}
	for i, name := range slices.Concat(large, small) {
		severity, effect := Advice, "its index costs storage and makes writes slower, and no query needs it"
		if i < len(large) {
			severity, effect = Problem, "Firestore refuses a document with more than 40,000 index entries"
		}
		found = append(found, findIf(d.Indexes.indexed(group, name), severity,
			"The field %s of %s is indexed: %s.", name, group, effect).
			fix("Exempt it (gcloud firestore indexes fields update %s --database='%s' --collection-group=%s "+
				"--disable-indexes).", name, d.Indexes.Database, group)...)
	}
	return found
}

// keepNoTTL finds finished documents that expire and that nothing deletes.
func (d deployment) keepNoTTL(_ *worker.Kind, group string) findings {
	return findIf(d.worker.Options.Keep > 0 && !d.Indexes.TTL[group+"/expireAt"], Advice,
		"KEEP_FINISHED is set, and expireAt of %s has no TTL policy: finished documents are kept forever.", group).
		fix("Create it (gcloud firestore fields ttls update expireAt --database='%s' --collection-group=%s "+
			"--enable-ttl), or remove KEEP_FINISHED.", d.Indexes.Database, group)
}

const recoverRoute = "/internal/tasks/recover"

// recoveryUnscheduled finds a worker with a queue whose recovery no enabled job calls.
func (d deployment) recoveryUnscheduled() findings {
	scheduled := slices.ContainsFunc(d.Jobs, func(j Job) bool {
		enabled := j.State == "" || j.State == "ENABLED"
		return strings.HasSuffix(j.URI, recoverRoute) && j.Method == http.MethodPost && enabled
	})
	queue := d.worker.Options.Queue
	url, caller := cmp.Or(queue.TargetURL, "URL"), cmp.Or(d.Worker.value("TASK_CALLER"), "ACCOUNT")
	return findIf(queue.Name != "" && !scheduled, Problem,
		"No enabled job of Cloud Scheduler in the queue's region calls POST %s%s. Unless one of another region does, "+
			"an analysis whose worker died, or whose task was lost, stays as it is.", url, recoverRoute).
		fix("Resume the job (gcloud scheduler jobs resume), or create one (gcloud scheduler jobs create http, "+
			"--schedule='* * * * *' --http-method=POST --uri=%s%s --oidc-service-account-email=%s "+
			"--oidc-token-audience=%[1]s).", url, recoverRoute, caller)
}

// recoveryFailed finds a job whose last call was refused or failed.
func (d deployment) recoveryFailed() (found findings) {
	for _, j := range d.Jobs {
		found = append(found, findIf(strings.HasSuffix(j.URI, recoverRoute) && j.Failure != "", Problem,
			"The last call of %s failed: %s. Analyses are not recovered.", j.Name, strings.TrimRight(j.Failure, ". ")).
			fix("See its log (gcloud logging read 'resource.type=cloud_scheduler_job AND resource.labels.job_id=%s'), "+
				"then correct its account, audience or URL (gcloud scheduler jobs update http).", j.Name)...)
	}
	return found
}
