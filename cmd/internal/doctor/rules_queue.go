package doctor

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	scheduler "google.golang.org/api/cloudscheduler/v1"
	cloudtasks "google.golang.org/api/cloudtasks/v2"
	"google.golang.org/grpc/codes"

	"taskguard/cmd/internal/cli"
	"taskguard/worker"
)

// projectName matches a name of a resource or a service account, with its project. A project's number
// is not compared.
var projectName = regexp.MustCompile(`^projects/([a-z][a-z0-9-]+)|@([a-z][a-z0-9-]+)\.iam\.gserviceaccount\.com$`)

// checkPlaces finds parts that name different projects or queues, such as those where a placeholder
// was left. Accounts, databases and images may be in other projects, and services in another region
// than the queue.
func (d *diagnosis) checkPlaces() {
	queue, q := d.Worker.value("TASK_QUEUE"), d.Queue
	names := []string{queue}
	for _, s := range []*Service{&d.Worker, &d.Doclock} {
		names = append(names, "projects/"+s.value("GOOGLE_CLOUD_PROJECT"), s.Account, s.value("TASK_CALLER"))
	}
	projects := map[string]string{} // a name in each
	for _, name := range names {
		if m := projectName.FindStringSubmatch(name); m != nil {
			projects[m[1]+m[2]] = name
		}
	}
	d.rule(Advice, "projects", len(projects) > 1,
		"The parts are in different projects: %s.\nUnless that is meant, correct the project that is wrong.",
		strings.Join(slices.Sorted(maps.Values(projects)), ", "))
	project, region := place(queue)
	d.rule(Problem, "queue-place", differ(q.Name, queue) || differ(q.Region, region) || differ(q.Project, project),
		"TASK_QUEUE is %s, and the queue's file is for %s.\nCorrect TASK_QUEUE, or the file and the queue.",
		queue, cmp.Or(q.Name, strings.TrimSpace(q.Project+" "+q.Region)))
}

// checkQueue applies the rules about the queue's settings.
func (d *diagnosis) checkQueue() {
	if !d.hasRead(QueueSettings) {
		return
	}

	q, s := d.Queue, d.Worker
	places := s.MaxInstances * s.Concurrency
	d.rule(Problem, "queue-stopped", q.State == "PAUSED" || q.State == "DISABLED",
		"The queue is %s: nothing is delivered.\nResume it (gcloud tasks queues resume).", strings.ToLower(q.State))
	d.rule(Problem, "dispatches", d.hasRead(WorkerSettings) && q.Concurrent >= places,
		"The queue dispatches %d tasks at once, and %s can take %d requests (%d instances × %d): "+
			"then recovery's call and further tasks are answered 429, which slows the whole queue.\n"+
			"Set --max-concurrent-dispatches on the queue below %[3]d, or allow more instances (--max).",
		q.Concurrent, s.Name, places, s.MaxInstances, s.Concurrency)
	d.rule(Problem, "queue-rate", q.PerSecond < 0.1, // one in ten seconds
		"The queue dispatches %v tasks a second: the others wait.\n"+
			"Set --max-dispatches-per-second=10 on the queue.", q.PerSecond)
	d.rule(Problem, "queue-gives-up", q.MaxAttempts > 0 || q.MaxDuration > 0,
		"The queue drops a task after %d attempts (-1: never) and %v (0s: never), even if its analysis was locked "+
			"or failed for now. MAX_ATTEMPTS limits an analysis, and records that in its document.\n"+
			"Set --max-attempts=-1 and --max-retry-duration=0s on the queue.", q.MaxAttempts, q.MaxDuration)
}

const recoverRoute = "/internal/tasks/recover"

// everyMinute matches the schedules of a call each minute, or each second or third one: an alert
// counts the calls of ten minutes.
var everyMinute = regexp.MustCompile(
	`^((\*|[0-5]-59)(/[1-3])?|(\d{1,2},){19,}\d{1,2}) (\*(/1)?|0-23) (\*(/1)?|1-31) (\*(/1)?|1-12) ` +
		`(\*(/1)?|0-6|[01]-7|(?i:SUN-SAT|MON-SUN))$|^every ([1-3] )?min(ute)?s?( synchronized)?$`)

// checkRecovery finds a worker with a queue whose recovery no enabled job calls, and failed calls.
// A job that calls another deployment is not judged.
func (d *diagnosis) checkRecovery() {
	if !d.hasRead(SchedulerJobs) {
		return
	}

	jobs := d.recoveryJobs()
	for _, j := range jobs {
		d.checkJob(j)
	}

	d.checkRecoveryService()
	target := cmp.Or(d.config.Options.Queue.TargetURL, "URL")
	d.rule(adviceIf(!d.AllJobs), "recovery-unscheduled", len(jobs) == 0 && d.config.Options.Queue.Name != "",
		"No enabled job of Cloud Scheduler calls POST %s%s, among the jobs that were read. "+
			"Without one, an analysis whose worker died, or whose task was lost, stays as it is.\n"+
			"Resume the job (gcloud scheduler jobs resume), or create one (gcloud scheduler jobs create http, "+
			"--schedule='* * * * *' --http-method=POST --uri=%[1]s%[2]s %[3]s).", target, recoverRoute, d.tokenFlags(target))
}

// recoveryJobs returns the enabled jobs that call the worker's recovery.
func (d *diagnosis) recoveryJobs() (all []*scheduler.Job) {
	for _, j := range d.Jobs {
		enabled, uri := j.State == "" || j.State == "ENABLED", cmp.Or(j.HttpTarget, &scheduler.HttpTarget{}).Uri
		if enabled && strings.HasSuffix(uri, recoverRoute) && (d.owns(uri) || d.recovers(uri)) {
			all = append(all, j)
		}
	}
	return all
}

// tokenFlags returns gcloud's flags for a job whose calls are accepted at a service's address.
func (d *diagnosis) tokenFlags(address string) string {
	if d.Worker.value("TASK_AUTH") == "oidc" {
		address = d.config.Options.Queue.Audience
	}
	caller := cmp.Or(d.Worker.value("TASK_CALLER"), "ACCOUNT")
	return "--oidc-service-account-email=" + caller + " --oidc-token-audience=" + address
}

// checkJob applies the rules to a job that calls recovery.
func (d *diagnosis) checkJob(j *scheduler.Job) {
	fault := func(s Severity, rule string, applies bool, problem, flag string) {
		d.rule(s, rule, applies,
			"The job %s %s. Analyses are not recovered in time.\nCorrect %s (gcloud scheduler jobs update http %[1]s)."+
				" Its log: gcloud logging read 'resource.type=cloud_scheduler_job AND resource.labels.job_id=%[1]s'.",
			path.Base(j.Name), problem, flag)
	}
	t, token := j.HttpTarget, cmp.Or(j.HttpTarget.OidcToken, &scheduler.OidcToken{})
	audience, caller := token.Audience, token.ServiceAccountEmail
	if t.OidcToken != nil {
		audience = cmp.Or(audience, t.Uri) // as Google does
	}
	status := cmp.Or(j.Status, &scheduler.Status{})

	fault(Problem, "recovery-schedule", j.Schedule != "" && !everyMinute.MatchString(oneLine(j.Schedule)),
		"has the schedule "+j.Schedule+", and an alert counts its calls", "--schedule='* * * * *'")
	fault(Problem, "recovery-method", t.HttpMethod != "" && t.HttpMethod != "POST",
		"calls by "+t.HttpMethod+", which is answered 405", "--http-method=POST")
	if d.hasRead(WorkerSettings) {
		oidc, other := d.Worker.value("TASK_AUTH") == "oidc", caller != "" && caller != d.Worker.value("TASK_CALLER")
		flags, refused := d.tokenFlags(strings.TrimSuffix(t.Uri, recoverRoute)), audience != "" && d.refusesToken(audience)
		fault(Problem, "recovery-audience", t.OidcToken == nil, "has no OIDC token", flags)
		fault(Problem, "recovery-audience", refused && (oidc || !d.recovers(audience)),
			fmt.Sprintf("has a token that is not accepted; its audience is %q", audience), flags)
		fault(adviceIf(!oidc && d.Project == nil), "recovery-caller", other && d.owns(t.Uri) && d.refusesCaller(caller), "calls as "+caller+
			", which no policy that was read allows", "--oidc-service-account-email")
	}
	fault(Problem, "recovery-failed", status.Code > 0, // -1: it has never run
		fmt.Sprintf("failed at its last call: %v %s", codes.Code(max(0, status.Code)), //nolint:gosec // above 0
			strings.TrimRight(oneLine(status.Message), ". ")), "--uri, its account or its audience")
}

// recovers reports whether a URL has the host of the service NAME-recovery, which the module may run
// beside the worker NAME-worker.
func (d *diagnosis) recovers(address string) bool {
	u, err := url.Parse(address)
	s := Service{Name: d.Worker.deployment() + "-recovery", Region: d.Worker.Region, Number: d.Worker.Number}
	return err == nil && d.Worker.Name != "" && s.at(u.Host)
}

// checkTasks has one finding for all tasks that have the same fault. The fix applies where they are created.
func (d *diagnosis) checkTasks() {
	lost := func(t Task) bool { return !d.owns(t.URL) || !slices.ContainsFunc(d.Kinds, t.isOf) }
	for _, fault := range []struct {
		rule, problem, fix string
		applies            func(Task) bool
	}{
		{"task-url", "go to no address and route of the worker", "TASK_TARGET_URL", lost},
		{"task-audience", "have no valid token", "TASK_CALLER and TASK_AUDIENCE",
			func(t Task) bool { return !lost(t) && d.refusesToken(t.Audience) }},
		{"task-deadline", "may be delivered again during a run of RUN_TIMEOUT", "dispatchDeadline, or RUN_TIMEOUT,",
			func(t Task) bool { return t.Deadline < d.deadline() }},
		// After NotFound, the analysis may have been deleted.
		{"task-refused", "were refused at the last attempt", "the URL, account and audience",
			func(t Task) bool { return t.Last == codes.Unauthenticated || t.Last == codes.PermissionDenied }},
	} {
		faulty := slices.DeleteFunc(slices.Clone(d.Tasks), func(t Task) bool { return !fault.applies(t) })
		t := append(faulty, Task{})[0]
		d.rule(Problem, fault.rule, len(faulty) > 0,
			"%d of %d tasks %s. One is %s, to %s, with the audience %q, the deadline %v and the last answer %v.\n"+
				"Correct %s where they are created. Then enqueue each unfinished one again (%s requeue ID; "+
				"recovery finds only QUEUED and PROCESSING), and delete the tasks (gcloud tasks delete).",
			len(faulty), len(d.Tasks), fault.problem, t.Name, t.URL, t.Audience, t.Deadline, t.Last, fault.fix,
			cli.Program())
	}
}

// isOf reports whether a task has the route of a kind.
func (t Task) isOf(k worker.Kind) bool { return strings.HasSuffix(t.URL, k.Path) }

// refusesToken reports whether the worker refuses a token with this audience; empty: there is no token.
// Cloud Run's own check accepts each address of the service, without a slash, and its custom audiences.
func (d *diagnosis) refusesToken(audience string) bool {
	switch {
	case audience == "":
		return true
	case audience == d.config.Options.Queue.Audience:
		return false
	case d.Worker.value("TASK_AUTH") == "oidc":
		return true
	}
	ours := d.owns(audience) && !strings.HasSuffix(audience, "/")
	return !ours && !strings.Contains(d.Worker.Audiences, `"`+audience+`"`)
}

// owns reports whether a URL has the host of TASK_TARGET_URL, or one of Cloud Run's for the worker.
func (d *diagnosis) owns(address string) bool {
	u, err := url.Parse(address)
	target, err2 := url.Parse(cmp.Or(d.config.Options.Queue.TargetURL, d.Target))
	if err != nil || u.Scheme != "https" {
		return false
	}
	return d.Worker.at(u.Host) || err2 == nil && u.Host == target.Host
}

// checkAlerts finds a deployment whose alerts nobody gets.
func (d *diagnosis) checkAlerts() {
	d.rule(Advice, "alerts", d.hasRead(AlertPolicies) && d.Alerts == 0,
		"There are no enabled alert policies of %s: nobody is told when work waits or fails.\n"+
			"Create the policies in deploy (deploy/README.md), or enable them.", d.Worker.deployment())
	d.rule(Advice, "alerts", d.Unsent > 0,
		"Of %d enabled alert policies of %s, %d have no notification channel, and send no notification.\n"+
			"Add a channel (gcloud monitoring policies update --add-notification-channels).",
		d.Alerts, d.Worker.deployment(), d.Unsent)
}

// checkGrants finds permissions that the worker's account lacks.
func (d *diagnosis) checkGrants() {
	for i := range d.Grants {
		g := &d.Grants[i]
		d.rule(g.severity, g.rule, !g.Given,
			"%s has no role with %s on %s or on the project: unless a folder or the organisation gives one, %s.\n"+
				"Grant it (gcloud %s --member=serviceAccount:%[1]s --role=%[6]s).",
			d.Worker.Account, strings.Join(g.permissions, ", "), g.resource, g.effect, g.command, g.roles[0])
	}
}

// attempts is a number of attempts, or "unlimited", which gcloud takes for this flag alone.
type attempts struct{ json.Number }

// UnmarshalJSON implements [json.Unmarshaler].
func (a *attempts) UnmarshalJSON(text []byte) error {
	return json.Unmarshal(bytes.Replace(text, []byte(`"unlimited"`), []byte("-1"), 1), &a.Number)
}

// queueFile reads a file for gcloud's --flags-file, or what gcloud tasks queues describe prints.
func queueFile(name string) (Queue, error) {
	f := struct {
		cloudtasks.Queue
		AppEngine   any         `json:"queue"`
		Location    string      `json:"--location"`
		Project     string      `json:"--project"`
		Concurrent  json.Number `json:"--max-concurrent-dispatches"`
		PerSecond   json.Number `json:"--max-dispatches-per-second"`
		MaxAttempts attempts    `json:"--max-attempts"`
		MaxDuration string      `json:"--max-retry-duration"`
		MinBackoff  any         `json:"--min-backoff"`
		MaxBackoff  any         `json:"--max-backoff"`
		Doublings   any         `json:"--max-doublings"`
		Sampling    any         `json:"--log-sampling-ratio"`
		Routing     any         `json:"--routing-override"`
	}{}
	err := decodeFile(name, "a flags file of a queue", &f)
	switch {
	case f.AppEngine != nil:
		return Queue{}, fmt.Errorf("%s is App Engine's queue.yaml, which is another format: do not upload it, because "+
			"that pauses or deletes each queue that it lacks; write gcloud's flags as in deploy/queue.yaml "+
			"(gcloud tasks queues update QUEUE --flags-file=FILE)", name)
	case err != nil:
		return Queue{}, err
	}

	described := !reflect.ValueOf(f.Queue).IsZero()
	if f.Name == "" && (described || reflect.ValueOf(f).IsZero()) {
		return Queue{}, fmt.Errorf("%s has neither gcloud's flags nor the name of a queue", name)
	}
	if !described {
		f.RateLimits, f.RetryConfig = &cloudtasks.RateLimits{}, &cloudtasks.RetryConfig{MaxRetryDuration: f.MaxDuration}
		f.RateLimits.MaxConcurrentDispatches, _ = f.Concurrent.Int64() // a number, or empty
		f.RateLimits.MaxDispatchesPerSecond, _ = f.PerSecond.Float64()
		f.RetryConfig.MaxAttempts, _ = f.MaxAttempts.Int64()
	}
	q, err := parseQueue(&f.Queue)
	if err != nil {
		err = fmt.Errorf("%s: %w", name, err)
	}
	q.Name, q.Project, q.Region = f.Name, f.Project, f.Location
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
		PerSecond:   cmp.Or(limits.MaxDispatchesPerSecond, 500),
		MaxAttempts: cmp.Or(retries.MaxAttempts, 100),
		MaxDuration: longest,
	}, err
}
