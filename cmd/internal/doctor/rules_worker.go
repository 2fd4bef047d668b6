package doctor

import (
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"time"

	"taskguard/internal/delivery"
)

func (d deployment) workerRules() []rule {
	return []rule{
		{"run-timeout", []Part{WorkerSettings}, d.runTimeout},
		{"dispatch-deadline", []Part{WorkerSettings}, d.dispatchDeadline},
		{"target-url", []Part{WorkerSettings}, d.targetURL},
		{"max-runs", []Part{WorkerSettings}, d.maxRuns},
		{"memory", []Part{WorkerSettings}, d.memoryOfRuns},
		{"log-lines", []Part{WorkerSettings}, d.logLines},
		{"caller-not-invoker", []Part{WorkerSettings, WorkerCallers}, d.callerNotInvoker},
	}
}

// maxDispatch is Cloud Tasks' longest dispatch deadline.
const maxDispatch = 30 * time.Minute

// deadline returns the dispatch deadline of the tasks that the worker books.
func (d deployment) deadline() time.Duration {
	return min(delivery.DispatchDeadline(d.worker.Options.RunTimeout), maxDispatch)
}

// setTimeout returns a fix that ends the request together with its dispatch.
func (d deployment) setTimeout() string {
	return fmt.Sprintf("Set timeoutSeconds: %d (--timeout=%[1]d), and RUN_TIMEOUT a minute shorter.", int(d.deadline().Seconds()))
}

func (d deployment) runTimeout() []Finding {
	return findIf(d.worker.Options.RunTimeout >= d.Worker.Timeout, Problem,
		fmt.Sprintf("RUN_TIMEOUT is %v, and Cloud Run ends the request after %v: a longer run continues without CPU, and is delivered again at the same time.", d.worker.Options.RunTimeout, d.Worker.Timeout),
		d.setTimeout())
}

func (d deployment) dispatchDeadline() []Finding {
	return findIf(d.Worker.Timeout > d.deadline(), Problem,
		fmt.Sprintf("The request timeout is %v, and Cloud Tasks waits only %v for an answer (RUN_TIMEOUT + 1 min, at most 30 min): a later answer is lost, and the task is delivered again.", d.Worker.Timeout, d.deadline()),
		d.setTimeout())
}

// targetURL finds tasks of the worker that go elsewhere. Cloud Run's addresses of a
// service begin with its name; another address may be the service's custom domain.
func (d deployment) targetURL() []Finding {
	u, err := url.Parse(d.worker.Options.Queue.TargetURL)
	if err != nil || u.Host == "" { // no queue, or the rule "environment" reports it
		return nil
	}
	other := strings.HasSuffix(u.Hostname(), ".run.app") &&
		(!strings.HasPrefix(u.Hostname(), d.Worker.Name+"-") || d.Worker.URLs != "" && !strings.Contains(d.Worker.URLs, `"https://`+u.Hostname()+`"`))
	for i := range d.Kinds {
		if k := &d.Kinds[i]; strings.HasSuffix(u.Path, k.Path) {
			return findIf(true, Problem,
				fmt.Sprintf("TASK_TARGET_URL is %s, which ends with the path of the kind %s: a task's URL has the path after TASK_TARGET_URL, so each delivery is answered 404.", u, k.Name),
				setVariable("TASK_TARGET_URL", strings.TrimSuffix(u.String(), k.Path)))
		}
	}
	return findIf(u.Scheme != "https" || other, Problem,
		fmt.Sprintf("TASK_TARGET_URL is %s, which is no https address of %s: follow-ups and recovered analyses go elsewhere, or their tokens travel in plain text.", u, d.Worker.Name),
		setVariable("TASK_TARGET_URL", "URL"))
}

func (d deployment) maxRuns() []Finding {
	n, concurrency := d.worker.Options.MaxRuns, d.Worker.Concurrency
	return findIf(concurrency > int64(n), Problem,
		fmt.Sprintf("MAX_RUNS is %d, and Cloud Run sends an instance up to %d deliveries at once: the others are answered 409 and delivered later.", n, concurrency),
		fmt.Sprintf("Set containerConcurrency: %d (--concurrency=%[1]d); or MAX_RUNS=%d, if the memory is enough.", n, concurrency))
}

// A worker's memory as BenchmarkPeakMemory measured it, rounded up.
const (
	memoryAlone  = 200 << 20
	memoryPerRun = 50 << 20 // with the largest result
)

// memoryOfRuns finds a worker whose memory the largest documents can exhaust.
func (d deployment) memoryOfRuns() []Finding {
	has, runs := d.Worker.Memory, min(d.Worker.Concurrency, int64(d.worker.Options.MaxRuns))
	need := memoryAlone + runs*memoryPerRun
	severity := Advice
	if has < memoryAlone+memoryPerRun {
		severity = Problem // one delivery can kill it
	}
	return findIf(has > 0 && has < need, severity,
		fmt.Sprintf("%s has %d MiB of memory for %d deliveries at once, which need up to %d MiB if each result is as large as a document can be.", d.Worker.Name, has>>20, runs, need>>20),
		fmt.Sprintf("Set memory: %dMi (--memory=%[1]dMi), or a smaller containerConcurrency.", need>>20))
}

// logLines finds a worker whose dashboard and alerts have no data.
func (d deployment) logLines() []Finding {
	level, format := d.worker.LogLevel, d.worker.LogFormat
	return findIf(level > slog.LevelInfo || format != "json", Problem,
		fmt.Sprintf("LOG_LEVEL is %v and LOG_FORMAT is %s: the dashboard and the alerts count JSON lines of level info, so some alerts would fire and the others never.", level, format),
		"Set both (--update-env-vars=LOG_LEVEL=info,LOG_FORMAT=json).")
}

// callerNotInvoker finds deliveries that Cloud Run may refuse. The members of a group
// are unknown.
func (d deployment) callerNotInvoker() []Finding {
	caller := d.Worker.value("TASK_CALLER")
	allowed := slices.ContainsFunc(d.Worker.Callers, func(m string) bool {
		kind, _, _ := strings.Cut(m, ":")
		return m == "serviceAccount:"+caller || everybody(m) || slices.Contains([]string{"group", "domain", "principalSet"}, kind)
	})
	return findIf(d.Worker.value("TASK_AUTH") == "iam" && caller != "" && !allowed, Advice,
		fmt.Sprintf("TASK_CALLER is %s, which the service's policy does not allow to invoke it: each delivery is answered 403, unless the project, a folder or the organisation allows it.", caller),
		fmt.Sprintf("Allow it (gcloud run services add-iam-policy-binding, --member=serviceAccount:%s --role=roles/run.invoker).", caller))
}
