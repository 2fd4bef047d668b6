package doctor

import (
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"taskguard/worker"
)

func workerRules() []rule {
	return append([]rule{
		{"run-timeout", []part{workerEnvironment, workerSettings}, runTimeout},
		{"dispatch-deadline", []part{workerEnvironment, workerSettings}, dispatchDeadline},
		{"run-too-long", []part{workerEnvironment}, runTooLong},
		{"target-url", []part{workerEnvironment, workerSettings}, targetURL},
		{"task-audience", []part{workerEnvironment}, taskAudience},
		{"analyzer-nowhere", []part{workerEnvironment, workerSettings}, analyzerNowhere},
		{"queue-far", []part{workerEnvironment, workerSettings}, queueFar},
		{"caller-far", []part{workerEnvironment}, callerFar},
		{"max-runs", []part{workerEnvironment, workerSettings}, maxRuns},
		{"memory", []part{workerEnvironment, workerSettings}, memoryOfRuns},
		{"log-lines", []part{workerEnvironment, workerSettings}, logLines},
		{"caller-not-invoker", []part{workerEnvironment, workerCallers}, callerNotInvoker},
	}, recovery().rules()...)
}

// deadline is that of a dispatch as the worker books it.
func (v *view) deadline() time.Duration {
	return min(worker.DispatchDeadline(v.worker.RunTimeout), maxDispatch)
}

func runTimeout(v *view) []Finding {
	s := v.Worker.Settings.Value
	which := "which is RUN_TIMEOUT + 1 min; or a shorter RUN_TIMEOUT."
	if v.deadline() == maxDispatch {
		which = "which is as long as Cloud Tasks waits, and RUN_TIMEOUT at most 29m."
	}
	return one(v.worker.RunTimeout >= s.Timeout, Problem,
		fmt.Sprintf("RUN_TIMEOUT is %v, and Cloud Run ends the request after %v: a run that takes longer goes on without CPU, and is delivered again beside it.", v.worker.RunTimeout, s.Timeout),
		v.mendTimeout()+", "+which)
}

// mendTimeout brings the request's end to that of its dispatch.
func (v *view) mendTimeout() string {
	s := seconds(v.deadline())
	return v.Worker.mend(fmt.Sprintf("timeoutSeconds: %d", s), fmt.Sprintf("--timeout=%d", s))
}

func dispatchDeadline(v *view) []Finding {
	s := v.Worker.Settings.Value
	return one(s.Timeout > v.deadline(), Problem,
		fmt.Sprintf("The request timeout is %v, and Cloud Tasks hears an answer for %v only (RUN_TIMEOUT + 1 min, 30 min at most): a later one is lost, and the task is delivered again.", s.Timeout, v.deadline()),
		v.mendTimeout())
}

func runTooLong(v *view) []Finding {
	return one(worker.DispatchDeadline(v.worker.RunTimeout) > maxDispatch, Problem,
		fmt.Sprintf("RUN_TIMEOUT is %v, and Cloud Tasks waits 30 min at most for an answer: a longer run is delivered again while it goes on.", v.worker.RunTimeout),
		v.Worker.set("RUN_TIMEOUT", "29m")+" or less, which leaves a minute for the result; divide longer analyses.")
}

// targetURL asks whether the tasks that the worker books come back to it.
func targetURL(v *view) []Finding {
	s, target := v.Worker.Settings.Value, strings.TrimRight(v.Worker.Environment.Value.value("TASK_TARGET_URL"), "/")
	u, err := url.Parse(target)
	if v.worker.Queue == nil || err != nil || u.Host == "" || len(s.URLs) == 0 || s.owns(target) {
		return nil
	}
	fix := v.Worker.set("TASK_TARGET_URL", s.URLs[0])
	switch {
	case u.Scheme != "https":
		return one(true, Problem, "TASK_TARGET_URL is not https: the tokens of its tasks would travel in plain text.", fix)
	case strings.HasSuffix(u.Hostname(), ".run.app"):
		return one(true, Problem, fmt.Sprintf("TASK_TARGET_URL is %s, which is another service than %s: follow-ups and recovered analyses go there.", target, s.Name), fix)
	case mode(v.Worker) == "iam" && !slices.Contains(s.Audiences, target):
		return one(true, Problem, fmt.Sprintf("TASK_TARGET_URL is %s, which is what the tokens of its tasks are made for; Cloud Run accepts its own addresses and custom audiences alone.", target),
			fix+", or "+v.Worker.mend(`run.googleapis.com/custom-audiences: '["`+target+`"]'`, "--add-custom-audiences="+target))
	}
	return nil
}

// taskAudience finds a worker that refuses tasks signed for where they go.
func taskAudience(v *view) []Finding {
	audience, target := v.worker.Token.Audience, v.Worker.Environment.Value.value("TASK_TARGET_URL")
	return one(v.worker.Auth == "oidc" && v.worker.Queue != nil && audience != target, Advice,
		fmt.Sprintf("TASK_AUDIENCE is %s, and TASK_TARGET_URL, which tasks are signed for where nothing else is named, is %s: who submits without TASK_AUDIENCE is answered 401.", audience, target),
		v.Worker.set("TASK_AUDIENCE", target)+", also for Cloud Scheduler's job and for who submits; or all of them name "+audience+".")
}

// analyzerNowhere finds an analyzer's address at which there is none.
func analyzerNowhere(v *view) []Finding {
	s, address := v.Worker.Settings.Value, v.Worker.Environment.Value.value("ANALYZER")
	u, err := url.Parse(address)
	if err != nil || u.Host == "" {
		return nil
	}
	ip := net.ParseIP(u.Hostname())
	here := u.Hostname() == "localhost" || ip.IsLoopback()
	fix := v.Worker.set("ANALYZER", "URL") + ", of your application; beside the worker, as deploy/sidecar/ has it."
	switch {
	case s.owns(u.Scheme+"://"+u.Host) || here && u.Port() == strconv.FormatInt(s.Port, 10):
		return one(true, Problem, fmt.Sprintf("ANALYZER is %s, which is the worker itself: each run fails.", address), fix)
	case here && s.Containers == 1:
		return one(true, Problem, fmt.Sprintf("ANALYZER is %s, and %s has no other container that could answer there: each run fails.", address, s.Name), fix)
	}
	return nil
}

// owns reports whether an address is the service's.
func (s Settings) owns(address string) bool {
	if slices.Contains(s.URLs, address) {
		return true
	}
	// The older form of an address, NAME-HASH-REGION.a.run.app, is in no file.
	host, older := strings.CutSuffix(address, ".a.run.app")
	rest, same := strings.CutPrefix(host, "https://"+s.Name+"-")
	return older && same && strings.Count(rest, "-") == 1
}

// callerFar finds an account that no task of the queue can be signed as: Cloud Tasks
// takes only those of the queue's own project.
func callerFar(v *view) []Finding {
	if v.worker.Queue == nil {
		return nil
	}
	caller := v.Worker.Environment.Value.value("TASK_CALLER")
	name, host, _ := strings.Cut(caller, "@")
	own, account := strings.CutSuffix(host, ".iam.gserviceaccount.com")
	project, _, _ := resource(v.worker.Queue.Queue)
	return one(account && project != "" && own != project, Problem,
		fmt.Sprintf("TASK_CALLER is %s, an account of another project than the queue's, %s: Cloud Tasks refuses to sign as it.", caller, project),
		v.Worker.set("TASK_CALLER", name+"@"+project+".iam.gserviceaccount.com"))
}

// queueFar finds a queue of another project or region than the worker's.
func queueFar(v *view) (found []Finding) {
	q, s := v.worker.Queue, v.Worker.Settings.Value
	if q == nil {
		return nil
	}
	project, location, _ := resource(q.Queue)
	if project == "" {
		return nil // from a secret, so it is unknown
	}
	own := v.Worker.Environment.Value.value("GOOGLE_CLOUD_PROJECT")
	return append(
		one(own != "" && project != own, Advice,
			fmt.Sprintf("TASK_QUEUE is in project %s, GOOGLE_CLOUD_PROJECT is %s: right only if the accounts have their roles there.", project, own),
			"TASK_QUEUE=projects/"+own+"/locations/"+location+"/queues/…, unless that is meant."),
		one(s.Region != "" && location != s.Region, Advice,
			fmt.Sprintf("TASK_QUEUE is in %s, the service in %s: the one depends on the other's region.", location, s.Region),
			"Make the queue in "+s.Region+", unless that is meant.")...)
}

// maxRuns finds a worker that turns away deliveries for which Cloud Run has places.
func maxRuns(v *view) []Finding {
	s, n := v.Worker.Settings.Value, v.worker.MaxRuns
	return one(s.Concurrency > int64(n), Problem,
		fmt.Sprintf("MAX_RUNS is %d, and Cloud Run sends an instance of %s up to %d deliveries at once: the others are answered 409, and come again later.", n, s.Name, s.Concurrency),
		v.Worker.mend(fmt.Sprintf("containerConcurrency: %d", n), fmt.Sprintf("--concurrency=%d", n))+fmt.Sprintf("; or MAX_RUNS=%d, if the memory holds as many.", s.Concurrency))
}

// What a worker has been seen to need by BenchmarkPeakMemory, rounded up.
const (
	memoryAlone = 200 << 20
	memoryARun  = 50 << 20 // with the largest result
)

// memoryOfRuns finds a worker whose memory the largest documents can use up.
func memoryOfRuns(v *view) []Finding {
	s := v.Worker.Settings.Value
	runs := min(s.Concurrency, int64(v.worker.MaxRuns))
	need := memoryAlone + runs*memoryARun
	return one(s.Memory > 0 && s.Memory < need, Advice,
		fmt.Sprintf("%s has %d MiB of memory for %d deliveries at once, which need up to %d MiB where each result is as large as a document can be.", s.Name, s.Memory>>20, runs, need>>20),
		v.Worker.mend(fmt.Sprintf("memory: %dMi", need>>20), fmt.Sprintf("--memory=%dMi", need>>20))+"; or a smaller containerConcurrency.")
}

// logLines finds a worker that does not write what dashboard and alerts are made of.
func logLines(v *view) []Finding {
	e := v.Worker.Environment.Value
	return append(
		one(v.worker.LogLevel > slog.LevelInfo, Problem,
			fmt.Sprintf("LOG_LEVEL is %s: the lines of deliveries and recovery are of level info, and dashboard and alerts are made of them. Some alerts would call, and the others never.", e.value("LOG_LEVEL")),
			v.Worker.set("LOG_LEVEL", "info")),
		one(v.worker.LogFormat != "json", Problem,
			fmt.Sprintf("LOG_FORMAT is %s: dashboard and alerts read the fields of lines in JSON. Some alerts would call, and the others never.", v.worker.LogFormat),
			v.Worker.set("LOG_FORMAT", "json"))...)
}

// callerNotInvoker finds deliveries that Cloud Run may turn away.
func callerNotInvoker(v *view) []Finding {
	caller := v.Worker.Environment.Value.value("TASK_CALLER")
	return one(mode(v.Worker) == "iam" && caller != "" && !mayCall(caller, v.Worker.Callers.Value), Advice,
		fmt.Sprintf("TASK_CALLER is %s, which the service's policy does not let invoke it: each delivery is answered 403, %s.", caller, inherited),
		v.Worker.Settings.Value.gcloud("add-iam-policy-binding", "--member=serviceAccount:"+caller+" --role=roles/run.invoker"))
}

// resource takes projects/P/locations/L/KIND/ID apart.
func resource(name string) (project, location, id string) {
	parts := strings.Split(name, "/")
	if len(parts) != 6 {
		return "", "", ""
	}
	return parts[1], parts[3], parts[5]
}

func seconds(d time.Duration) int64 { return int64(d / time.Second) }
