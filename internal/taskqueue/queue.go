// Package taskqueue books deliveries of analyses in Cloud Tasks. A booking has a
// deterministic name, so booking twice is booking once. Cloud Tasks remembers a name for
// up to 24 h after its task has ended, so a name must change with its purpose.
package taskqueue

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	cloudtasks "cloud.google.com/go/cloudtasks/apiv2"
	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"go.opentelemetry.io/otel/propagation"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"taskguard/internal/clock"
)

// Defaults of a Task. They suit analyses.
const (
	DefaultIDField = "analysis_id"
	DefaultPath    = "/internal/tasks/analysis"
)

// The times of Book. Google's client does not retry CreateTask.
const (
	callTimeout = 5 * time.Second
	bookTimeout = 15 * time.Second
	minPause    = 100 * time.Millisecond
	maxPause    = 2 * time.Second
)

// MaxDeadline is Cloud Tasks' longest dispatch deadline.
const MaxDeadline = 30 * time.Minute

// Queue books tasks. It is safe for concurrent use.
type Queue struct {
	client *cloudtasks.Client
	cfg    Config
}

// Task is one delivery to book.
type Task struct {
	Name       string // a name that Name returns
	AnalysisID string
	IDField    string        // the field of the body with AnalysisID; empty: DefaultIDField
	Path       string        // the path of the URL, under TargetURL; empty: DefaultPath
	At         time.Time     // the earliest time, at most 30 days ahead; zero or past: now
	Deadline   time.Duration // how long one dispatch may take, at most 30 min; zero: Cloud Tasks' 10 min
}

// Name returns a task's name, a hash of parts. Names with a common prefix would slow Cloud Tasks
// down, and the id of an analysis may have characters that a name must not have.
func Name(parts ...string) string {
	h := sha256.New()
	for _, part := range parts {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
		h.Write([]byte(part))
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}

// Open checks cfg and returns a Queue, without a call yet. opts are applied last, so that
// option.WithGRPCConn replaces the connection. The caller must call Close.
func Open(ctx context.Context, cfg Config, opts ...option.ClientOption) (*Queue, error) {
	if err := cfg.Check(); err != nil {
		return nil, err
	}

	var all []option.ClientOption
	if cfg.EmulatorHost != "" {
		all = append(all,
			option.WithEndpoint(cfg.EmulatorHost),
			option.WithoutAuthentication(),
			option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())),
		)
	}

	client, err := cloudtasks.NewClient(ctx, append(all, opts...)...)
	if err != nil {
		return nil, fmt.Errorf("taskqueue: open %s: %w", cfg.Name, err)
	}
	return &Queue{client: client, cfg: cfg.Filled()}, nil
}

// Close ends the connection.
func (q *Queue) Close() error { return q.client.Close() }

// BookingError is the error of a delivery that is not booked. It wraps Cloud Tasks' answer.
type BookingError struct {
	AnalysisID string
	Err        error
}

func (e *BookingError) Error() string {
	return fmt.Sprintf("taskqueue: enqueue %q: %v", e.AnalysisID, e.Err)
}

// Unwrap returns Cloud Tasks' answer.
func (e *BookingError) Unwrap() error { return e.Err }

// Book makes sure that t is in the queue, or was in it under the same name. already reports that
// the name was taken, perhaps by an earlier try of this call whose answer was lost. A taken name
// does not prove that a delivery will follow. Book tries until ctx ends, for at most 15 s. The task has
// the trace of ctx, if there is one: its delivery continues it.
func (q *Queue) Book(ctx context.Context, t Task) (already bool, err error) {
	request := q.request(ctx, t)
	ctx, cancel := context.WithTimeout(ctx, bookTimeout)
	defer cancel()
	for pause := minPause; ; pause = min(2*pause, maxPause) {
		try, cancelTry := context.WithTimeout(ctx, callTimeout)
		_, err := q.client.CreateTask(try, request)
		cancelTry()

		switch code := status.Code(err); {
		case err == nil:
			return false, nil
		case code == codes.AlreadyExists:
			return true, nil
		case !slices.Contains(transient, code):
			return false, &BookingError{t.AnalysisID, err}
		}
		if !clock.Sleep(ctx, pause/2+rand.N(pause/2)) {
			return false, &BookingError{t.AnalysisID, fmt.Errorf("%w, last: %w", context.Cause(ctx), err)}
		}
	}
}

var taskName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,500}$`)

// ValidName reports whether Cloud Tasks accepts name as the short name of a task.
func ValidName(name string) bool { return taskName.MatchString(name) }

// Presence is the state of a task in the queue.
type Presence int

// The states of a task. An Absent one is not in the queue, or is due later than any wait that a worker
// books: it is another program's. Or its delivery is unanswered for over 30 s: its worker may be dead,
// and the queue waits for the answer until the dispatch deadline.
const (
	Absent Presence = iota
	Waiting
	Underway // it is being delivered
)

// longestWait is how far ahead a worker books a delivery at most. The longest TTL and the longest wait
// that an analyzer can ask for are 12 h. The minute is for different clocks of Firestore and the queue.
const longestWait = 12*time.Hour + time.Minute

// unanswered is the age of a delivery from which its task counts as Absent. A worker acquires
// the lock, or answers, within 20 s.
const unanswered = 30 * time.Second

// Find returns the state of the task of that short name at now. It tries for at most 5 s. Errors
// have their gRPC status: the account needs the permission cloudtasks.tasks.get.
func (q *Queue) Find(ctx context.Context, name string, now time.Time) (Presence, error) {
	if !ValidName(name) {
		return Absent, nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	task, err := q.client.GetTask(ctx, &cloudtaskspb.GetTaskRequest{Name: q.cfg.Name + "/tasks/" + name})

	last := task.GetLastAttempt()
	switch {
	case status.Code(err) == codes.NotFound:
		return Absent, nil
	case err != nil:
		return Absent, fmt.Errorf("taskqueue: find a task: %w", err)
	case task.GetScheduleTime().AsTime().Sub(now) > longestWait:
		return Absent, nil
	case last.GetDispatchTime() == nil || last.GetResponseTime() != nil: // a response_status alone means nothing
		return Waiting, nil
	case now.Sub(last.GetDispatchTime().AsTime()) > unanswered:
		return Absent, nil
	}
	return Underway, nil
}

func (q *Queue) request(ctx context.Context, t Task) *cloudtaskspb.CreateTaskRequest {
	body, _ := json.Marshal(map[string]string{cmp.Or(t.IDField, DefaultIDField): t.AnalysisID}) // cannot fail
	call := &cloudtaskspb.HttpRequest{
		Url:        q.cfg.TargetURL + cmp.Or(t.Path, DefaultPath),
		HttpMethod: cloudtaskspb.HttpMethod_POST,
		Headers:    map[string]string{"Content-Type": "application/json"},
		Body:       body,
	}
	propagation.TraceContext{}.Inject(ctx, propagation.MapCarrier(call.Headers))
	if q.cfg.Caller != "" {
		call.AuthorizationHeader = &cloudtaskspb.HttpRequest_OidcToken{OidcToken: &cloudtaskspb.OidcToken{
			ServiceAccountEmail: q.cfg.Caller,
			Audience:            q.cfg.Audience, // the default of Cloud Tasks, the task's URL, is no worker's audience
		}}
	}

	task := &cloudtaskspb.Task{
		Name:        q.cfg.Name + "/tasks/" + t.Name,
		MessageType: &cloudtaskspb.Task_HttpRequest{HttpRequest: call},
	}
	if !t.At.IsZero() {
		task.ScheduleTime = timestamppb.New(t.At)
	}
	if t.Deadline != 0 {
		task.DispatchDeadline = durationpb.New(min(t.Deadline, MaxDeadline))
	}
	return &cloudtaskspb.CreateTaskRequest{Parent: q.cfg.Name, Task: task}
}

// transient has the codes after which Book tries again. If the task was created, the next
// try finds its name taken.
var transient = []codes.Code{
	codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Aborted,
	codes.Internal, codes.Unknown, codes.ResourceExhausted,
}

// Config is a queue of Cloud Tasks, and how its tasks call the service. All programs here read
// its fields from the same environment variables, so its errors name these variables.
type Config struct {
	Name      string // TASK_QUEUE: projects/P/locations/L/queues/Q
	TargetURL string // TASK_TARGET_URL: the service's base URL, http or https
	Caller    string // TASK_CALLER: the service account whose OIDC token the tasks carry; empty: no token
	Audience  string // TASK_AUDIENCE: of that token; empty: TargetURL, without a slash at its end
	// EmulatorHost is CLOUD_TASKS_EMULATOR_HOST: the host:port of an emulator, plaintext and without
	// authentication; empty: Google's.
	EmulatorHost string
}

var (
	queuePath = regexp.MustCompile(`^projects/[A-Za-z0-9.:-]+/locations/[A-Za-z0-9-]+/queues/[A-Za-z0-9-]{1,100}$`)
	account   = regexp.MustCompile(`^[^@\s]+@[^@\s]+\.[^@\s]+$`)
)

// maxURL is Cloud Tasks' limit, in bytes, of a task's whole URL.
const maxURL = 2083

// Check returns an error for each problem, joined. Each names its variable.
func (c Config) Check() error {
	var problems []error
	problem := func(name, format string, args ...any) {
		problems = append(problems, fmt.Errorf("%s: "+format, append([]any{name}, args...)...))
	}

	switch {
	case c.Name == "":
		problem("TASK_QUEUE", "must be set, to projects/P/locations/L/queues/Q")
	case !queuePath.MatchString(c.Name):
		problem("TASK_QUEUE", "%q is not of the form projects/P/locations/L/queues/Q", c.Name)
	}

	if c.TargetURL == "" {
		problem("TASK_TARGET_URL", "must be set together with TASK_QUEUE, to the worker's base URL")
	} else if reason := badTarget(c.TargetURL); reason != "" {
		problem("TASK_TARGET_URL", "%s", reason)
	}
	if c.Caller != "" && !account.MatchString(c.Caller) {
		problem("TASK_CALLER", "%q is not the e-mail address of a service account", c.Caller)
	}
	return errors.Join(problems...)
}

// Filled returns c with the Audience and without a slash at the end of TargetURL. The audience is
// compared as a whole, so a slash would matter.
func (c Config) Filled() Config {
	c.TargetURL = strings.TrimRight(c.TargetURL, "/")
	c.Audience = cmp.Or(c.Audience, c.TargetURL)
	return c
}

// badTarget describes the problem of a base URL, without repeating a password.
func badTarget(target string) string {
	u, err := url.Parse(target)
	switch {
	case err != nil && strings.Contains(target, "@"): // what stands before it may be a password
		return "is not a URL"
	case err != nil:
		return fmt.Sprintf("%q is not a URL", target)
	case u.User != nil:
		return "must not hold a user or a password"
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return fmt.Sprintf("%q is not an http or https URL", target)
	case u.RawQuery != "" || u.Fragment != "":
		return fmt.Sprintf("%q is not a base URL: it has a query or a fragment", target)
	case len(target)+len(DefaultPath) > maxURL:
		return fmt.Sprintf("is longer than Cloud Tasks' %d bytes", maxURL)
	}
	return ""
}
