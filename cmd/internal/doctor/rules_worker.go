package doctor

import (
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"time"

	worker "taskguard/cmd/internal/workerservice"
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

	w, o, deadline := d.Worker, d.config.Options, d.deadline()
	d.rule(Problem, "run-timeout", o.RunTimeout >= w.Timeout,
		"RUN_TIMEOUT is %v, but Cloud Run ends the request after %v: a longer run loses its CPU.\n"+
			setTimeout, o.RunTimeout, w.Timeout, deadline/time.Second)
	d.rule(Problem, "dispatch-deadline", w.Timeout > deadline,
		"The request timeout is %v, and Cloud Tasks waits only %v (RUN_TIMEOUT + 1 min, at most 30 min): "+
			"a later answer is lost, and the task is delivered again.\n"+
			setTimeout, w.Timeout, deadline, deadline/time.Second)

	runs := min(w.Concurrency, int64(o.MaxRuns))
	need := memoryAlone + runs*memoryPerRun
	d.rule(Problem, "max-runs", w.Concurrency > int64(o.MaxRuns),
		"MAX_RUNS is %d, and Cloud Run sends an instance up to %d deliveries at once: the others are answered 409.\n"+
			"Set containerConcurrency: %[1]d (--concurrency=%[1]d); or MAX_RUNS=%[2]d, if memory suffices.",
		o.MaxRuns, w.Concurrency)
	d.rule(Advice, "memory", w.Memory > 0 && w.Memory < need && d.config.Job == "", // whose results do not pass here
		"%s has %d MiB of memory for %d deliveries at once, which need up to %d MiB with the largest results.\n"+
			"Set memory: %[4]dMi (--memory=%[4]dMi), or a smaller containerConcurrency.",
		w.Name, w.Memory>>20, runs, need>>20)
	d.rule(Problem, "log-lines", d.config.LogLevel > slog.LevelInfo || d.config.LogFormat != "json",
		"LOG_LEVEL is %v and LOG_FORMAT is %s: dashboard and alerts count JSON lines of level info.\n"+
			"Set both (--update-env-vars=LOG_LEVEL=info,LOG_FORMAT=json).", d.config.LogLevel, d.config.LogFormat)
	d.rule(Problem, "heartbeat", o.Lock.Heartbeat < minHeartbeat,
		"Each run writes to its document every %v, by LOCK_HEARTBEAT or as a third of LOCK_TTL: "+
			"Firestore limits the writes to one.\n"+
			"Set LOCK_TTL to at least 15s (default: 300s), without LOCK_HEARTBEAT.", o.Lock.Heartbeat)

	most := int(o.Lock.Heartbeat / time.Second) // a write a second
	d.rule(Advice, "concurrency-limit", o.KeyField != "" && o.KeyLimit > most,
		"CONCURRENCY_LIMIT is %d, and each run writes to the document of its key every %v: "+
			"Firestore takes about one write a second to one document.\n"+
			"Set CONCURRENCY_LIMIT to at most %d, or longer LOCK_TTL and LOCK_HEARTBEAT.",
		o.KeyLimit, o.Lock.Heartbeat, most)

	analyzer, err := url.Parse(w.value("ANALYZER"))
	local := err == nil && slices.Contains([]string{"localhost", "127.0.0.1", "::1"}, analyzer.Hostname())
	d.rule(Problem, "analyzer-missing", local && (len(w.Sidecars) == 0 || analyzer.Port() == w.Port),
		"ANALYZER is an address in the instance, where no container but the worker's can answer at it.\n"+
			"Add the application's container, with another port than the worker's (deploy/sidecar/README.md).")

	d.rule(Advice, "analyzer-port", local && len(w.Probed) > 0 && !slices.Contains(w.Probed, analyzer.Port()),
		"ANALYZER is at another port than the other containers' probes, %s: the application may listen there.\n"+
			"Correct ANALYZER, unless the application has both ports.", strings.Join(w.Probed, ", "))
	d.checkTargetURL()
}

// checkCaller applies the rules about the account that signs the tasks.
func (d *diagnosis) checkCaller() {
	caller, w := d.Worker.value("TASK_CALLER"), d.Worker
	iam := caller != "" && w.value("TASK_AUTH") == "iam"
	d.rule(adviceIf(d.Project == nil), "caller-not-invoker", iam && d.refusesCaller(caller),
		"No policy that was read lets %s, which is TASK_CALLER, invoke the worker: then deliveries are answered 403.\n"+
			"Allow it (gcloud run services add-iam-policy-binding %s --member=serviceAccount:%[1]s --role=roles/run.invoker).",
		caller, w.Name)

	const danger = "whoever may create a task can let Cloud Tasks call Google's APIs with its roles."
	d.rule(Problem, "caller-role", caller != "" && (caller == w.Account || caller == d.Doclock.Account),
		"A service runs as %s, which is TASK_CALLER: "+danger+"\n"+
			"Give the service its own account (--service-account).", caller)
	for _, b := range d.Project {
		// A custom role may hold the permission of run.invoker alone.
		other := strings.HasPrefix(b.Role, "roles/") && !slices.Contains(invokers[:2], b.Role)
		d.rule(Problem, "caller-role", other && slices.Contains(b.Members, "serviceAccount:"+caller),
			"%s, which is TASK_CALLER, has %s on the project: "+danger+"\n"+
				"Remove it (gcloud projects remove-iam-policy-binding PROJECT --member=serviceAccount:%[1]s --role=%[2]s).",
			caller, b.Role)
	}
}

// invokers are the roles that let an account invoke a service, the narrowest first.
var invokers = []string{"roles/run.invoker", "roles/run.servicesInvoker", "roles/run.admin"}

const (
	// setTimeout is a fix that ends the request together with its dispatch.
	setTimeout = "Set timeoutSeconds: %d (--timeout=%[3]d), and RUN_TIMEOUT a minute shorter."
	// With a shorter heartbeat a document has more writes than Firestore takes for long.
	minHeartbeat = 5 * time.Second
)

// checkTargetURL finds tasks of the worker that go elsewhere. An address that is not Cloud Run's may be the
// service's custom domain.
func (d *diagnosis) checkTargetURL() {
	target, err := url.Parse(d.config.Options.Queue.TargetURL)
	if err != nil || target.Host == "" { // no queue, or the rule "environment" reports it
		return
	}

	for i := range d.Kinds {
		if k := &d.Kinds[i]; strings.HasSuffix(target.Path, k.Path) {
			d.rule(Problem, "target-url", true,
				"TASK_TARGET_URL is %s, and tasks add the path of the kind %s: they are answered 404.\n"+
					"Remove the path from TASK_TARGET_URL.", target, k.Name)
			return
		}
	}

	ownHost := !strings.HasSuffix(target.Hostname(), ".run.app") || d.Worker.at(target.Hostname())
	d.rule(Problem, "target-url", target.Scheme != "https" || !ownHost,
		"TASK_TARGET_URL is %s, which is no https address of %s: follow-ups and recovered analyses go elsewhere, "+
			"or their tokens travel in plain text.\n"+
			"Set TASK_TARGET_URL to the service's address (--update-env-vars).", target, d.Worker.Name)
}

// refusesCaller reports whether it is known that the worker does not accept an account.
func (d *diagnosis) refusesCaller(account string) bool {
	if d.Worker.value("TASK_AUTH") == "oidc" {
		return !slices.Contains(d.config.Auth.Token.Accounts, account)
	}
	members := slices.Clone(d.Worker.Callers)
	for _, b := range d.Project {
		// Its other roles may have the permission too, such as an editor's or a custom one.
		if slices.Contains(invokers, b.Role) || slices.Contains(b.Members, "serviceAccount:"+account) {
			members = append(members, b.Members...)
		}
	}
	// The members of a group are unknown.
	allowed := slices.ContainsFunc(members, func(m string) bool { return mayBe(m, account) })
	return d.hasRead(WorkerCallers) && !allowed
}

// mayBe reports whether a member of a policy is, or may include, a service account.
func mayBe(member, account string) bool {
	kind, _, _ := strings.Cut(member, ":")
	several := slices.Contains([]string{"group", "domain", "principalSet"}, kind)
	return member == "serviceAccount:"+account || several || everybody(member)
}

// checkRecoveryService finds settings in which the recovery's service differs from the worker.
func (d *diagnosis) checkRecoveryService() {
	config, _ := worker.ParseConfig(d.Recovery.lookup)
	ours, other := d.config.Options, config.Options
	for _, setting := range []struct {
		name    string
		differs bool
	}{
		{"FIRESTORE_DATABASE", ours.Database != other.Database},
		{"ANALYSES_COLLECTION", ours.Collection != other.Collection},
		{"LOCK_TTL", ours.Lock.TTL != other.Lock.TTL},
		{"TASK_QUEUE", ours.Queue.Name != other.Queue.Name},
	} {
		known := d.hasRead(RecoverySettings) && d.Worker.Environment[setting.name] != Secret
		d.rule(Problem, "recovery-settings", known && setting.differs && d.Recovery.Environment[setting.name] != Secret,
			"%s of %s is not the worker's: analyses are not recovered, or too early, or elsewhere.\n"+
				"Release both services with the same settings (--update-env-vars).", setting.name, d.Recovery.Name)
	}
}
