package doctor

import (
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"time"

	"taskguard/internal/delivery"
)

func (d deployment) workerRules() []rule {
	settings := []Part{WorkerSettings}
	return []rule{
		{"run-timeout", settings, d.runTimeout},
		{"dispatch-deadline", settings, d.dispatchDeadline},
		{"target-url", settings, d.targetURL},
		{"max-runs", settings, d.maxRuns},
		{"memory", settings, d.memoryOfRuns},
		{"log-lines", settings, d.logLines},
		{"caller-not-invoker", []Part{WorkerSettings, WorkerCallers}, d.callerNotInvoker},
	}
}

// maxDispatch is Cloud Tasks' longest dispatch deadline.
const maxDispatch = 30 * time.Minute

// deadline returns the dispatch deadline of the tasks that the worker books.
func (d deployment) deadline() time.Duration {
	return min(delivery.DispatchDeadline(d.worker.Options.RunTimeout), maxDispatch)
}

// setTimeout is a fix that ends the request together with its dispatch, which is so many seconds.
const setTimeout = "Set timeoutSeconds: %d (--timeout=%[1]d), and RUN_TIMEOUT a minute shorter."

func (d deployment) runTimeout() findings {
	limit := d.worker.Options.RunTimeout
	return findIf(limit >= d.Worker.Timeout, Problem,
		"RUN_TIMEOUT is %v, and Cloud Run ends the request after %v: a longer run loses its CPU and is redelivered.",
		limit, d.Worker.Timeout).
		fix(setTimeout, d.deadline()/time.Second)
}

func (d deployment) dispatchDeadline() findings {
	return findIf(d.Worker.Timeout > d.deadline(), Problem,
		"The request timeout is %v, and Cloud Tasks waits only %v (RUN_TIMEOUT + 1 min, at most 30 min): "+
			"a later answer is lost, and the task is delivered again.", d.Worker.Timeout, d.deadline()).
		fix(setTimeout, d.deadline()/time.Second)
}

// targetURL finds tasks of the worker that go elsewhere. Cloud Run's addresses of a
// service begin with its name; another address may be the service's custom domain.
func (d deployment) targetURL() findings {
	u, err := url.Parse(d.worker.Options.Queue.TargetURL)
	if err != nil || u.Host == "" { // no queue, or the rule "environment" reports it
		return nil
	}

	for i := range d.Kinds {
		if k := &d.Kinds[i]; strings.HasSuffix(u.Path, k.Path) {
			return findIf(true, Problem,
				"TASK_TARGET_URL is %s, and tasks add the path of the kind %s: they are answered 404.", u, k.Name).
				fix(setVariable, "TASK_TARGET_URL", strings.TrimSuffix(u.String(), k.Path))
		}
	}

	host := u.Hostname()
	listed := d.Worker.URLs == "" || strings.Contains(d.Worker.URLs, `"https://`+host+`"`)
	own := !strings.HasSuffix(host, ".run.app") || strings.HasPrefix(host, d.Worker.Name+"-") && listed
	return findIf(u.Scheme != "https" || !own, Problem,
		"TASK_TARGET_URL is %s, which is no https address of %s: follow-ups and recovered analyses go elsewhere, "+
			"or their tokens travel in plain text.", u, d.Worker.Name).
		fix(setVariable, "TASK_TARGET_URL", "URL")
}

func (d deployment) maxRuns() findings {
	n, concurrency := d.worker.Options.MaxRuns, d.Worker.Concurrency
	return findIf(concurrency > int64(n), Problem,
		"MAX_RUNS is %d, and Cloud Run sends an instance up to %d deliveries at once: the others are answered 409.",
		n, concurrency).
		fix("Set containerConcurrency: %d (--concurrency=%[1]d); or MAX_RUNS=%d, if memory suffices.", n, concurrency)
}

// A worker's memory as BenchmarkPeakMemory measured it, rounded up.
const (
	memoryAlone  = 200 << 20
	memoryPerRun = 50 << 20 // with the largest result
)

// memoryOfRuns finds a worker whose memory the largest documents can exhaust.
func (d deployment) memoryOfRuns() findings {
	limit, runs := d.Worker.Memory, min(d.Worker.Concurrency, int64(d.worker.Options.MaxRuns))
	need := memoryAlone + runs*memoryPerRun
	severity := Advice
	if limit < memoryAlone+memoryPerRun {
		severity = Problem // one delivery can kill it
	}
	return findIf(limit > 0 && limit < need, severity,
		"%s has %d MiB of memory for %d deliveries at once, which need up to %d MiB with the largest results.",
		d.Worker.Name, limit>>20, runs, need>>20).
		fix("Set memory: %dMi (--memory=%[1]dMi), or a smaller containerConcurrency.", need>>20)
}

// logLines finds a worker whose dashboard and alerts have no data.
func (d deployment) logLines() findings {
	level, format := d.worker.LogLevel, d.worker.LogFormat
	return findIf(level > slog.LevelInfo || format != "json", Problem,
		"LOG_LEVEL is %v and LOG_FORMAT is %s: dashboard and alerts count JSON lines of level info.", level, format).
		fix("Set both (--update-env-vars=LOG_LEVEL=info,LOG_FORMAT=json).")
}

// callerNotInvoker finds deliveries that Cloud Run may refuse. The members of a group
// are unknown.
func (d deployment) callerNotInvoker() findings {
	caller := d.Worker.value("TASK_CALLER")
	allowed := slices.ContainsFunc(d.Worker.Callers, func(m string) bool {
		kind, _, _ := strings.Cut(m, ":")
		several := slices.Contains([]string{"group", "domain", "principalSet"}, kind)
		return m == "serviceAccount:"+caller || everybody(m) || several
	})
	return findIf(d.Worker.value("TASK_AUTH") == "iam" && caller != "" && !allowed, Advice,
		"The service's policy does not let %s, which is TASK_CALLER, invoke it: each delivery is answered 403, "+
			"unless the project, a folder or the organisation allows it.", caller).
		fix("Allow it (gcloud run services add-iam-policy-binding --member=serviceAccount:%s "+
			"--role=roles/run.invoker).", caller)
}
