package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"

	scheduler "google.golang.org/api/cloudscheduler/v1"
	"google.golang.org/api/option"
	"sigs.k8s.io/yaml"

	"taskguard/worker"
)

// Options name what to read.
type Options struct {
	Service string        // a service's file; or its name, short or projects/P/locations/L/services/S
	Doclock string        // a file or a name, as for Service
	Queue   string        // a file of gcloud's flags; empty: the queue of TASK_QUEUE
	Indexes string        // a firestore.indexes.json; empty: the database's
	Kinds   []worker.Kind // the kinds of work, filled; none: analysis
	Alone   bool          // read only the services
	Lookup  func(string) (string, bool)
	Google  []option.ClientOption // for Google's clients; tests set an endpoint
}

// offline reports whether Read asks Google only for the services that options name.
func (o Options) offline() bool {
	return o.Alone || o.Queue+o.Indexes != "" || isFile(o.Service) || isFile(o.Doclock)
}

// AsksGoogle reports whether Read may ask Google for anything, with these options.
func (o Options) AsksGoogle() bool {
	onGoogle := func(service string) bool { return service != "" && !isFile(service) }
	return !o.offline() || onGoogle(o.Service) || onGoogle(o.Doclock)
}

// Read collects what the options and the environment name. It leaves out a part that it cannot
// read, and records the reason. It returns an error only for wrong usage: a name that is not valid,
// or nothing to read. If an option names a file, Read asks Google only for the services that options
// name. Otherwise it asks for everything that the worker's environment names, or, without a worker,
// this process's environment. Calls are sequential. Those for one part take at most 15 s.
func Read(ctx context.Context, o Options) (Facts, error) {
	r := reader{
		Options: o, facts: Facts{Status: map[Part]Status{}},
		connect: sync.OnceValues(func() (google, error) { return connect(ctx, o.Google) }),
	}
	if o.offline() {
		r.offline = "files are named, so Google is asked only for what a flag names"
	}

	f := &r.facts
	err := errors.Join(
		r.readService(ctx, "--service", o.Service, &f.Worker, WorkerSettings, WorkerCallers),
		r.readService(ctx, "--doclock", o.Doclock, &f.Doclock, DoclockSettings, DoclockCallers))
	if err != nil {
		return Facts{}, err
	}
	if f.Status[DoclockSettings].From == "" {
		f.Doclock = Service{} // it may be another service
	}
	if r.env = f.Worker.value; f.Status[WorkerSettings].From == "" {
		f.Worker, r.env = Service{}, r.process
	}

	f.Target = r.env("TASK_TARGET_URL")
	queue := r.env("TASK_QUEUE")
	project, region := place(queue)
	r.readQueue(ctx, queue, project != "")
	if r.online(SchedulerJobs, project != "", "TASK_QUEUE names no region") {
		r.askJobs(ctx, "projects/"+project, "projects/"+project+"/locations/"+region)
	}
	d := diagnose(*f)
	elsewhere := func(j *scheduler.Job) bool { return !d.owns(j.HttpTarget.Uri) }
	if slices.ContainsFunc(d.recoveryJobs(), elsewhere) {
		name := strings.TrimSuffix(f.Status[WorkerSettings].From, "-worker") + "-recovery"
		r.askService(ctx, name, &f.Recovery, RecoverySettings, "")
	}
	project = cmp.Or(r.env("GOOGLE_CLOUD_PROJECT"), project)
	r.readIndexes(ctx, project)
	for _, p := range optionalParts {
		const unnamed = "no --service is the name of a service with an account and TASK_QUEUE"
		if r.online(p, queue != "" && f.Worker.Account != "", unnamed) {
			r.askOptional(ctx, p, queue, "projects/"+project)
		}
	}

	for s := range maps.Values(f.Status) {
		if s.From != "" || s.Failed {
			return *f, nil
		}
	}
	return Facts{}, errors.New("nothing is named: give --service a file or the name of a service, " +
		"or set GOOGLE_CLOUD_PROJECT and TASK_QUEUE")
}

type reader struct {
	Options
	facts   Facts
	connect func() (google, error)
	offline string              // why Google is asked only for what a flag names; empty: for everything
	env     func(string) string // names the queue and the database
}

// online reports whether to ask Google for a part that the environment names, or
// records why not.
func (r *reader) online(p Part, named bool, unnamed string) bool {
	if r.offline == "" && named {
		return true
	}
	if r.facts.Status[WorkerSettings].Failed {
		unnamed = "the worker's service could not be read"
	}
	r.facts.Status[p] = Status{Why: cmp.Or(r.offline, unnamed)}
	return false
}

// done records that a part was read, or why not.
func (r *reader) done(p Part, source string, err error) {
	r.facts.Status[p] = Status{From: source}
	if err != nil {
		r.facts.Status[p] = Status{Why: scrub(err.Error()), Failed: !slices.Contains(optionalParts, p)}
	}
}

// readQueue reads the queue's file, or the queue of this name.
func (r *reader) readQueue(ctx context.Context, name string, named bool) {
	if file := r.Queue; file != "" {
		var err error
		r.facts.Queue, err = queueFile(file)
		r.done(QueueSettings, file, err)
	} else if r.online(QueueSettings, named, "no --queue is named, and TASK_QUEUE names none") {
		r.askQueue(ctx, name)
	}
}

// readIndexes reads the indexes from the file, or from the project's database.
func (r *reader) readIndexes(ctx context.Context, project string) {
	f, database := &r.facts, cmp.Or(r.env("FIRESTORE_DATABASE"), "(default)")
	if f.Kinds = r.Kinds; len(f.Kinds) == 0 {
		kind := worker.Kind{Collection: r.env("ANALYSES_COLLECTION")}
		analysis, _ := kind.Filled() // a wrong collection has no indexes
		f.Kinds = []worker.Kind{analysis}
	}

	const unnamed = "neither GOOGLE_CLOUD_PROJECT nor TASK_QUEUE names a project"
	if file := r.Indexes; file != "" {
		var err error
		f.Indexes, err = indexesFile(file)
		r.done(DatabaseIndexes, file, err)
	} else if r.online(DatabaseIndexes, project != "", unnamed) {
		r.askIndexes(ctx, "projects/"+project+"/databases/"+database)
	}
	f.Indexes.Database = database
}

// process returns a variable of this process.
func (r *reader) process(name string) string {
	v, _ := r.Lookup(name)
	return v
}

var (
	shortName = regexp.MustCompile(`^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$`)
	fullName  = regexp.MustCompile(`^projects/([^/\s]+)/locations/([a-z0-9-]+)/(?:services|queues|jobs)/[A-Za-z0-9-]+$`)
)

// place returns the project and the region of a full name.
func place(name string) (project, region string) {
	if m := fullName.FindStringSubmatch(name); m != nil {
		return m[1], m[2]
	}
	return "", ""
}

// readService reads a file, or asks Google for a name, which it completes if it is short.
func (r *reader) readService(
	ctx context.Context, flag, name string, s *Service, settings, callers Part,
) (err error) {
	project, region := place(r.process("TASK_QUEUE"))
	project = cmp.Or(r.process("GOOGLE_CLOUD_PROJECT"), project)
	region = cmp.Or(r.process("CLOUDSDK_RUN_REGION"), region)

	switch {
	case name == "":
		status := Status{Why: "no " + flag + " is named"}
		r.facts.Status[settings], r.facts.Status[callers] = status, status
		return nil
	case isFile(name):
		r.facts.Status[callers] = Status{Why: "a service's file does not hold its IAM policy"}
		*s, err = serviceFile(name)
		r.done(settings, name, cmp.Or(err, s.checkRole(settings, name)))
		return nil
	case fullName.MatchString(name):
	case !shortName.MatchString(name):
		return fmt.Errorf("%s: %q is neither a file nor the name of a service", flag, name)
	case project == "" || region == "":
		return fmt.Errorf("%s: %q is neither a file nor projects/P/locations/L/services/S; the short name needs "+
			"GOOGLE_CLOUD_PROJECT, and TASK_QUEUE or CLOUDSDK_RUN_REGION for the region", flag, name)
	default:
		name = "projects/" + project + "/locations/" + region + "/services/" + name
	}
	r.askService(ctx, name, s, settings, callers)
	return nil
}

// isFile reports whether a flag names an existing file.
func isFile(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

// decodeFile reads a file of YAML or JSON that has no field that v lacks. kind names
// its content in errors.
func decodeFile(name, kind string, v any) error {
	data, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	documents := slices.DeleteFunc(separator.Split(string(data), -1), blank.MatchString)
	switch len(documents) {
	case 0:
		return fmt.Errorf("%s is empty", name)
	case 1:
	default:
		return fmt.Errorf("%s has %d YAML documents: write one service or one queue in a file", name, len(documents))
	}
	if err := yaml.UnmarshalStrict(data, v); err != nil {
		text, _, _ := strings.Cut(oneLine(err.Error()), " of type ") // without the name of a Go type
		return fmt.Errorf("%s is not %s: %s", name, kind, strings.TrimSuffix(text, " into Go value"))
	}
	return nil
}

// separator ends a YAML document, and blank matches a document that has only comments.
var separator, blank = regexp.MustCompile(`(?m)^---(\s|$)`), regexp.MustCompile(`^(\s*(#.*)?(\n|$))*$`)

// oneLine returns a text that may have several lines as one.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

var (
	userinfo = regexp.MustCompile(`://[^/\s"'@]*@`)
	query    = regexp.MustCompile(`(https?://[^\s"'?]*)\?[^\s"']*`)
)

// scrub returns text without the passwords and queries of URLs.
func scrub(text string) string {
	return query.ReplaceAllString(userinfo.ReplaceAllString(text, "://…@"), "$1?…")
}
