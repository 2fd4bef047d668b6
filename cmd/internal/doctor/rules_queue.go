package doctor

import (
	"cmp"
	"fmt"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	scheduler "google.golang.org/api/cloudscheduler/v1"
	cloudtasks "google.golang.org/api/cloudtasks/v2"
	"google.golang.org/grpc/codes"
)

// checkQueue applies the rules about the queue's settings.
func (d *diagnosis) checkQueue() {
	if !d.hasRead(QueueSettings) {
		return
	}

	q, s := d.Queue, d.Worker
	if q.State == "PAUSED" || q.State == "DISABLED" {
		d.problem("queue-stopped", "The queue is %s: nothing is delivered.", strings.ToLower(q.State)).
			fix("Resume it (gcloud tasks queues resume).")
	}
	if places := s.MaxInstances * s.Concurrency; d.hasRead(WorkerSettings) && q.Concurrent >= places {
		d.problem("dispatches",
			"The queue dispatches %d tasks at once, and %s can take %d requests (%d instances × %d): "+
				"then recovery's call and further tasks are answered 429, which slows the whole queue.",
			q.Concurrent, s.Name, places, s.MaxInstances, s.Concurrency).
			fix("Set --max-concurrent-dispatches on the queue below %d, or allow more instances (--max).", places)
	}

	if q.MaxAttempts > 0 || q.MaxDuration > 0 {
		d.problem("queue-gives-up",
			"The queue drops a task after %d attempts (-1: never) and %v (0s: never), even if its analysis was locked "+
				"or failed for now. MAX_ATTEMPTS limits an analysis, and records that in its document.",
			q.MaxAttempts, q.MaxDuration).
			fix("Set --max-attempts=-1 and --max-retry-duration=0s on the queue.")
	}
}

const recoverRoute = "/internal/tasks/recover"

// checkRecovery finds a worker with a queue whose recovery no enabled job calls, and failed calls.
func (d *diagnosis) checkRecovery() {
	if !d.hasRead(SchedulerJobs) {
		return
	}

	enabled := func(j *scheduler.Job) bool { return j.State == "" || j.State == "ENABLED" }
	queue := d.config.Options.Queue
	if d.hasRead(WorkerSettings) && queue.Name != "" && !slices.ContainsFunc(d.Jobs, enabled) {
		url, caller := cmp.Or(queue.TargetURL, "URL"), cmp.Or(d.Worker.value("TASK_CALLER"), "ACCOUNT")
		d.problem("recovery-unscheduled",
			"No enabled job of Cloud Scheduler in the queue's region calls POST %s%s. Unless one of another region does, "+
				"an analysis whose worker died, or whose task was lost, stays as it is.", url, recoverRoute).
			fix("Resume the job (gcloud scheduler jobs resume), or create one (gcloud scheduler jobs create http, "+
				"--schedule='* * * * *' --http-method=POST --uri=%s%s --oidc-service-account-email=%s "+
				"--oidc-token-audience=%[1]s).", url, recoverRoute, caller)
	}

	for _, j := range d.Jobs {
		if s := j.Status; s != nil && s.Code > 0 { // -1: it has never run
			code := codes.Code(s.Code) //nolint:gosec // above 0
			d.problem("recovery-failed", "The last call of %s failed: %s %s. Analyses are not recovered.",
				path.Base(j.Name), code, strings.TrimRight(oneLine(s.Message), ". ")).
				fix("See its log (gcloud logging read 'resource.type=cloud_scheduler_job AND resource.labels.job_id=%s'), "+
					"then correct its account, audience or URL (gcloud scheduler jobs update http).", path.Base(j.Name))
		}
	}
}

// checkTasks has one finding for all tasks that have the same fault. The fix applies where they are created.
func (d *diagnosis) checkTasks() {
	for _, fault := range []struct {
		rule, problem, fix string
		applies            func(Task) bool
	}{
		{"task-url", "go to no address of the worker", "TASK_TARGET_URL",
			func(t Task) bool { return !d.owns(t.URL) }},
		{"task-audience", "have no valid token", "TASK_CALLER and TASK_AUDIENCE", d.refusesToken},
		{"task-deadline", "may be delivered again during a run of RUN_TIMEOUT", "dispatchDeadline, or RUN_TIMEOUT,",
			func(t Task) bool { return t.Deadline < d.deadline() }},
		// After NotFound, the analysis may have been deleted.
		{"task-refused", "were refused at the last attempt", "the URL, account and audience",
			func(t Task) bool { return t.Last == codes.Unauthenticated || t.Last == codes.PermissionDenied }},
	} {
		faulty := slices.DeleteFunc(slices.Clone(d.Tasks), func(t Task) bool { return !fault.applies(t) })
		if len(faulty) == 0 {
			continue
		}
		t := faulty[0]
		d.problem(fault.rule,
			"%d of %d tasks %s. One is %s, to %s, with the audience %q, the deadline %v and the last answer %v.",
			len(faulty), len(d.Tasks), fault.problem, t.Name, t.URL, t.Audience, t.Deadline, t.Last).
			fix("Correct %s where they are created. Then book each unfinished analysis again (taskguard requeue ID; "+
				"recovery books only those that are QUEUED or PROCESSING), and delete the tasks (gcloud tasks delete).",
				fault.fix)
	}
}

// refusesToken reports whether the worker refuses the token of t. Cloud Run's own check accepts the
// audience of each address of the service, without a slash.
func (d *diagnosis) refusesToken(t Task) bool {
	switch t.Audience {
	case "":
		return true
	case d.config.Options.Queue.Audience:
		return false
	}
	return d.Worker.value("TASK_AUTH") == "oidc" || !d.owns(t.Audience) || strings.HasSuffix(t.Audience, "/")
}

// owns reports whether a URL has the host of TASK_TARGET_URL, or one of Cloud Run's for the worker.
func (d *diagnosis) owns(address string) bool {
	u, err := url.Parse(address)
	target, err2 := url.Parse(d.config.Options.Queue.TargetURL)
	if err != nil || err2 != nil || u.Scheme != "https" {
		return false
	}
	ownHost := strings.HasPrefix(u.Host, d.Worker.Name+"-") && strings.HasSuffix(u.Host, ".run.app")
	return ownHost || u.Host == target.Host
}

// checkAlerts finds a deployment whose alerts nobody gets.
func (d *diagnosis) checkAlerts() {
	if d.hasRead(AlertPolicies) && (d.Alerts == 0 || d.Unsent > 0) {
		d.advice("alerts",
			"Of %d alert policies of %s, %d are disabled or have no notification channel, and send no notification.",
			d.Alerts, d.Worker.deployment(), d.Unsent).
			fix("Create those of deploy, add a channel (gcloud monitoring policies update --add-notification-channels).")
	}
}

// checkGrants finds permissions that the worker's account lacks.
func (d *diagnosis) checkGrants() {
	for i := range d.Grants {
		if g := &d.Grants[i]; !g.Given {
			d.add(g.severity, g.rule,
				"%s has no role with %s on %s or on the project: unless a folder or the organisation gives one, %s.",
				d.Worker.Account, g.permission, g.resource, g.effect).
				fix("Grant it (gcloud %s --member=serviceAccount:%s --role=%s).", g.command, d.Worker.Account, g.roles[0])
		}
	}
}

// queueFile reads a file for gcloud's --flags-file.
func queueFile(name string) (Queue, error) {
	f := struct {
		Location    string `json:"--location"`
		Project     string `json:"--project"`
		Concurrent  int64  `json:"--max-concurrent-dispatches"`
		PerSecond   any    `json:"--max-dispatches-per-second"`
		MaxAttempts int64  `json:"--max-attempts"`
		MaxDuration string `json:"--max-retry-duration"`
		MinBackoff  any    `json:"--min-backoff"`
		MaxBackoff  any    `json:"--max-backoff"`
		Doublings   int64  `json:"--max-doublings"`
		Sampling    any    `json:"--log-sampling-ratio"`
		Routing     any    `json:"--routing-override"`
	}{}
	if err := decodeFile(name, "a flags file of a queue", &f); err != nil {
		return Queue{}, err
	}

	q, err := parseQueue(&cloudtasks.Queue{
		RateLimits:  &cloudtasks.RateLimits{MaxConcurrentDispatches: f.Concurrent},
		RetryConfig: &cloudtasks.RetryConfig{MaxAttempts: f.MaxAttempts, MaxRetryDuration: f.MaxDuration},
	})
	if err != nil {
		err = fmt.Errorf("%s: %w", name, err)
	}
	return q, err
}

// parseQueue reads a queue of the API. What is unset has Cloud Tasks' default.
func parseQueue(api *cloudtasks.Queue) (Queue, error) {
	limits := cmp.Or(api.RateLimits, &cloudtasks.RateLimits{})
	retries := cmp.Or(api.RetryConfig, &cloudtasks.RetryConfig{})
	longest, err := time.ParseDuration(cmp.Or(retries.MaxRetryDuration, "0s"))
	return Queue{
		State:       api.State,
		Concurrent:  cmp.Or(limits.MaxConcurrentDispatches, 1000),
		MaxAttempts: cmp.Or(retries.MaxAttempts, 100),
		MaxDuration: longest,
	}, err
}
