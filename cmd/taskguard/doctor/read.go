package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"google.golang.org/api/option"
)

// Options say what to read. Each of the first four is a file where one of that
// name exists, else a name of Google's.
type Options struct {
	Service string // a service's file; or its name, short or projects/P/locations/L/services/S
	Doclock string // likewise
	Queue   string // flags for gcloud; or a queue's name, short or projects/P/locations/L/queues/Q
	Indexes string // a firestore.indexes.json
	Lookup  func(string) (string, bool)
	// Google are for the clients of its APIs, such as an endpoint for tests.
	Google []option.ClientOption
}

// Read gathers what the options and the environment name. What it cannot read it
// leaves out, with the reason; its error is one of usage alone: a name that cannot be
// one, or nothing that could be read. Where a file is named, or an emulator, Google is
// asked only for what an option names; otherwise for all that the environment names.
// Calls are made one after the other, each within 15 s.
func Read(ctx context.Context, o Options) (Facts, error) {
	r := reader{Options: o, google: google{o.Google}}
	if o.Service == "" && r.process("FIRESTORE_EMULATOR_HOST")+r.process("CLOUD_TASKS_EMULATOR_HOST") != "" {
		r.offline = "the environment names an emulator, so Google is asked only for what a flag names"
	}
	for _, name := range []string{o.Service, o.Doclock, o.Queue, o.Indexes} {
		if isFile(name) {
			r.offline = "files are named, so Google is asked only for what a flag names"
		}
	}
	if err := r.names(); err != nil {
		return Facts{}, err
	}
	var f Facts
	f.Worker = r.worker(ctx)
	f.Doclock = r.service(ctx, o.Doclock, "no --doclock is named")
	// From here on what the worker's environment names is asked for, or else this
	// process's.
	if r.env = f.Worker.Environment.Value; !f.Worker.Environment.Known() {
		r.env = r.places()
	}
	f.Queue = r.readQueue(ctx)
	f.Indexes, f.Database = r.firestore(ctx)
	f.Jobs = r.jobs(ctx)
	if len(f.Sources()) == 0 && !slices.ContainsFunc(f.parts(), func(s status) bool { return s.failed }) {
		return Facts{}, r.nothing()
	}
	return f, nil
}

// nothing is the error where nothing could even be asked: that nothing is found
// would be taken for a clean bill.
func (r *reader) nothing() error {
	if r.offline != "" {
		return errors.New("nothing was read: " + r.offline + ": give --service a file or the name of a service")
	}
	return errors.New("nothing is named: give --service a file or the name of a service, or set GOOGLE_CLOUD_PROJECT and TASK_QUEUE")
}

func wrongName(flag, name, want string) error {
	return fmt.Errorf("%s: %q is neither a file nor %s", flag, name, want)
}

type reader struct {
	Options
	google  google
	offline string // why Google is asked only for what a flag names; empty: for all
	env     Environment
}

var (
	shortService = regexp.MustCompile(`^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$`)
	longService  = regexp.MustCompile(`^projects/[^/\s]+/locations/[a-z0-9-]+/services/[a-z][a-z0-9-]*$`)
	shortQueue   = regexp.MustCompile(`^[A-Za-z0-9-]{1,100}$`)
	longQueue    = regexp.MustCompile(`^projects/[^/\s]+/locations/[a-z0-9-]+/queues/[A-Za-z0-9-]{1,100}$`)
)

// names completes the short names, and refuses what cannot be one.
func (r *reader) names() error {
	for flag, name := range map[string]*string{"--service": &r.Service, "--doclock": &r.Doclock} {
		if *name == "" || isFile(*name) || longService.MatchString(*name) {
			continue
		}
		if !shortService.MatchString(*name) {
			return wrongName(flag, *name, "the name of a service")
		}
		place, ok := r.place()
		if !ok {
			return wrongName(flag, *name, "projects/P/locations/L/services/S; the short name needs GOOGLE_CLOUD_PROJECT, and TASK_QUEUE or CLOUDSDK_RUN_REGION for the region")
		}
		*name = place + "/services/" + *name
	}
	if r.Queue != "" && !isFile(r.Queue) && !longQueue.MatchString(r.Queue) {
		if !shortQueue.MatchString(r.Queue) {
			return wrongName("--queue", r.Queue, "the name of a queue")
		}
		place, ok := r.place()
		if !ok {
			return wrongName("--queue", r.Queue, "projects/P/locations/L/queues/Q; the short name needs GOOGLE_CLOUD_PROJECT, and TASK_QUEUE or CLOUDSDK_RUN_REGION for the region")
		}
		r.Queue = place + "/queues/" + r.Queue
	}
	if r.Indexes != "" && !isFile(r.Indexes) {
		return wrongName("--indexes", r.Indexes, "anything else that could be read")
	}
	return nil
}

// place is the project and region of short names, as the process's environment
// has them.
func (r *reader) place() (string, bool) {
	e := r.places()
	p, l, _ := resource(e.value("TASK_QUEUE"))
	project, region := cmp.Or(e.value("GOOGLE_CLOUD_PROJECT"), p), cmp.Or(r.process("CLOUDSDK_RUN_REGION"), l)
	return "projects/" + project + "/locations/" + region, project != "" && region != ""
}

// process is a variable of this process.
func (r *reader) process(name string) string {
	v, _ := r.Lookup(name)
	return v
}

// places are the variables of this process that say where things are, whosever
// they are.
func (r *reader) places() Environment {
	e := Environment{}
	for _, name := range []string{"GOOGLE_CLOUD_PROJECT", "FIRESTORE_DATABASE", "ANALYSES_COLLECTION", "TASK_QUEUE"} {
		e[name] = Variable{Value: r.process(name)}
	}
	return e
}

// worker reads the service that is named, or this process's environment as the
// worker's: which it is where TASK_AUTH is set, without which no worker starts.
func (r *reader) worker(ctx context.Context) Service {
	const unnamed = "no --service is named"
	if r.Service != "" || r.process("TASK_AUTH") == "" {
		return r.service(ctx, r.Service, unnamed)
	}
	env := Environment{}
	for name := range workerNames().known() {
		if v := r.process(name); v != "" {
			env[name] = Variable{Value: v}
		}
	}
	return Service{read(env, "the environment"), unread[Settings](unnamed), unread[[]string](unnamed)}
}

// service reads a file or asks Google; unnamed is why there is neither.
func (r *reader) service(ctx context.Context, name, unnamed string) Service {
	if name == "" {
		return Service{unread[Environment](unnamed), unread[Settings](unnamed), unread[[]string](unnamed)}
	}
	if !isFile(name) {
		return r.google.service(ctx, name)
	}
	s, err := serviceFile(name)
	if err != nil {
		return Service{failed[Environment](err), failed[Settings](err), failed[[]string](err)}
	}
	return s
}

func (r *reader) readQueue(ctx context.Context) Part[Queue] {
	name := r.Queue
	if isFile(name) {
		q, err := queueFile(name)
		if err != nil {
			return failed[Queue](err)
		}
		return read(q, name)
	}
	if name == "" {
		if name = r.env.value("TASK_QUEUE"); !longQueue.MatchString(name) {
			return unread[Queue]("no --queue is named, and TASK_QUEUE names none")
		}
		if r.offline != "" {
			return unread[Queue](r.offline)
		}
	}
	return r.google.queue(ctx, name)
}

// project is the one that the environment names.
func (r *reader) project() string {
	e := r.env
	if e == nil {
		e = r.places()
	}
	project, _, _ := resource(e.value("TASK_QUEUE"))
	return cmp.Or(e.value("GOOGLE_CLOUD_PROJECT"), project)
}

// firestore reads what the database holds.
func (r *reader) firestore(ctx context.Context) (Part[Indexes], Part[Database]) {
	project, short := r.project(), cmp.Or(r.env.value("FIRESTORE_DATABASE"), "(default)")
	name := "projects/" + project + "/databases/" + short
	why := r.offline
	if why == "" && (project == "" || strings.ContainsAny(project+short, "/ ")) {
		why = "GOOGLE_CLOUD_PROJECT and FIRESTORE_DATABASE name no database"
	}
	i, d := unread[Indexes](why), unread[Database](why)
	group := path.Base(cmp.Or(r.env.value("ANALYSES_COLLECTION"), "analyses"))
	if why == "" {
		d = r.google.database(ctx, name)
	}
	switch {
	case r.Indexes != "":
		all, err := indexesFile(r.Indexes)
		if err != nil {
			i = failed[Indexes](err)
			break
		}
		i = read(all, r.Indexes)
	case why == "":
		i = r.google.indexes(ctx, name, group)
	}
	i.Value.Project, i.Value.Database, i.Value.Group = project, short, group
	return i, d
}

// jobs reads Cloud Scheduler's, in the queue's region.
func (r *reader) jobs(ctx context.Context) Part[Jobs] {
	if r.offline != "" {
		return unread[Jobs](r.offline)
	}
	for _, name := range []string{r.env.value("TASK_QUEUE"), r.Service, r.Doclock, r.Queue} {
		if parts := strings.Split(name, "/"); len(parts) == 6 && slices.Contains([]string{"queues", "services"}, parts[4]) {
			return r.google.jobs(ctx, strings.Join(parts[:4], "/"))
		}
	}
	return unread[Jobs]("TASK_QUEUE names no region")
}
