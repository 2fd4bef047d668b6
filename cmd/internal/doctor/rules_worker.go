package doctor

import (
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"taskguard/internal/delivery"
	"taskguard/internal/taskqueue"
)

// deadline returns the dispatch deadline of the tasks that the worker books.
func (d *diagnosis) deadline() time.Duration {
	return min(delivery.DispatchDeadline(d.config.Options.RunTimeout), taskqueue.MaxDeadline)
}

// A worker's memory as BenchmarkPeakMemory measured it, rounded up.
const (
	memoryAlone  = 200 << 20
	memoryPerRun = 50 << 20 // measured with the largest result
)

// checkWorker applies the rules about the worker's settings alone.
func (d *diagnosis) checkWorker() {
	if !d.hasRead(WorkerSettings) {
		return
	}

	// A fix that ends the request together with its dispatch.
	const setTimeout = "Set timeoutSeconds: %d (--timeout=%[1]d), and RUN_TIMEOUT a minute shorter."
	w, o, deadline := d.Worker, d.config.Options, d.deadline()
	if o.RunTimeout >= w.Timeout {
		d.problem("run-timeout",
			"RUN_TIMEOUT is %v, but Cloud Run ends the request after %v: a longer run loses its CPU.",
			o.RunTimeout, w.Timeout).
			fix(setTimeout, deadline/time.Second)
	}
	if w.Timeout > deadline {
		d.problem("dispatch-deadline",
			"The request timeout is %v, and Cloud Tasks waits only %v (RUN_TIMEOUT + 1 min, at most 30 min): "+
				"a later answer is lost, and the task is delivered again.", w.Timeout, deadline).
			fix(setTimeout, deadline/time.Second)
	}

	if w.Concurrency > int64(o.MaxRuns) {
		d.problem("max-runs",
			"MAX_RUNS is %d, and Cloud Run sends an instance up to %d deliveries at once: the others are answered 409.",
			o.MaxRuns, w.Concurrency).
			fix("Set containerConcurrency: %d (--concurrency=%[1]d); or MAX_RUNS=%d, if memory suffices.",
				o.MaxRuns, w.Concurrency)
	}
	runs := min(w.Concurrency, int64(o.MaxRuns))
	if need := memoryAlone + runs*memoryPerRun; w.Memory > 0 && w.Memory < need {
		d.advice("memory",
			"%s has %d MiB of memory for %d deliveries at once, which need up to %d MiB with the largest results.",
			w.Name, w.Memory>>20, runs, need>>20).
			fix("Set memory: %dMi (--memory=%[1]dMi), or a smaller containerConcurrency.", need>>20)
	}

	if d.config.LogLevel > slog.LevelInfo || d.config.LogFormat != "json" {
		d.problem("log-lines",
			"LOG_LEVEL is %v and LOG_FORMAT is %s: dashboard and alerts count JSON lines of level info.",
			d.config.LogLevel, d.config.LogFormat).
			fix("Set both (--update-env-vars=LOG_LEVEL=info,LOG_FORMAT=json).")
	}
	d.checkTargetURL()
	d.checkCallerOfTasks()
	d.checkAnalyzer()
}

// Limits of the lock. With a shorter heartbeat a document has more writes than Firestore takes
// for long; with a longer TTL the work of a dead worker waits longer.
const (
	minHeartbeat = 5 * time.Second
	maxTTL       = 30 * time.Minute
)

// checkAnalyzer finds an analyzer in this instance that nothing serves, and locks of extreme lengths.
func (d *diagnosis) checkAnalyzer() {
	lock, w := d.config.Options.Lock, d.Worker
	u, err := url.Parse(d.Worker.value("ANALYZER"))
	loopback := err == nil && slices.Contains([]string{"localhost", "127.0.0.1", "::1"}, u.Hostname())
	d.judge(
		row{loopback && len(w.Sidecars) == 0, Finding{"analyzer-missing", Problem,
			"ANALYZER is an address in the instance, and the service has no second container that could answer.",
			"Add the application's container (deploy/sidecar/README.md), or correct ANALYZER."}},
		row{loopback && u.Port() == strconv.FormatInt(w.Port, 10), Finding{"analyzer-is-worker", Problem,
			"ANALYZER has the port of the worker: it would call itself.",
			"Let the application listen on another port, and name that in ANALYZER."}},
		row{lock.Heartbeat < minHeartbeat && lock.Heartbeat > 0, Finding{"heartbeat", Problem,
			fmt.Sprintf("LOCK_HEARTBEAT is %v: each run writes to its document so often, and Firestore limits that.", lock.Heartbeat),
			"Remove it: then it is a third of LOCK_TTL, whose default is 300s."}},
		row{lock.TTL > maxTTL, Finding{"lock-ttl", Advice,
			fmt.Sprintf("LOCK_TTL is %v: an analysis whose worker died waits that long. A run renews its lock, "+
				"so the TTL needs not be as long as a run.", lock.TTL),
			"Remove LOCK_TTL and LOCK_HEARTBEAT: the default is 300s."}},
	)
}

// checkTargetURL finds tasks of the worker that go elsewhere. An address that is not Cloud Run's may be the service's custom domain.
func (d *diagnosis) checkTargetURL() {
	target, err := url.Parse(d.config.Options.Queue.TargetURL)
	if err != nil || target.Host == "" { // no queue, or the rule "environment" reports it
		return
	}

	for i := range d.Kinds {
		if k := &d.Kinds[i]; strings.HasSuffix(target.Path, k.Path) {
			d.problem("target-url",
				"TASK_TARGET_URL is %s, and tasks add the path of the kind %s: they are answered 404.", target, k.Name).
				fix("Remove the path from TASK_TARGET_URL.")
			return
		}
	}

	host := target.Hostname()
	ownHost := !strings.HasSuffix(host, ".run.app") || d.Worker.at(host)
	if target.Scheme != "https" || !ownHost {
		d.problem("target-url",
			"TASK_TARGET_URL is %s, which is no https address of %s: follow-ups and recovered analyses go elsewhere, "+
				"or their tokens travel in plain text.", target, d.Worker.Name).
			fix("Set TASK_TARGET_URL to the service's address (--update-env-vars).")
	}
}

// checkCallerOfTasks finds deliveries that Cloud Run may refuse. The members of a group are unknown.
func (d *diagnosis) checkCallerOfTasks() {
	caller := d.Worker.value("TASK_CALLER")
	if caller != "" && d.refusesCaller(caller) && d.Worker.value("TASK_AUTH") == "iam" {
		d.advice("caller-not-invoker",
			"The service's policy does not let %s, which is TASK_CALLER, invoke it: each delivery is answered 403, "+
				"unless the project, a folder or the organisation allows it.", caller).
			fix("Allow it (gcloud run services add-iam-policy-binding --member=serviceAccount:%s "+
				"--role=roles/run.invoker).", caller)
	}
}

// refusesCaller reports whether it is known that the worker does not accept an account.
func (d *diagnosis) refusesCaller(account string) bool {
	if d.Worker.value("TASK_AUTH") == "oidc" {
		return !slices.Contains(d.config.Auth.Token.Accounts, account)
	}
	allowed := slices.ContainsFunc(d.Worker.Callers, func(m string) bool { return mayBe(m, account) })
	return d.hasRead(WorkerCallers) && !allowed
}

// mayBe reports whether a member of a policy is, or may include, a service account.
func mayBe(member, account string) bool {
	kind, _, _ := strings.Cut(member, ":")
	several := slices.Contains([]string{"group", "domain", "principalSet"}, kind)
	return member == "serviceAccount:"+account || several || everybody(member)
}
