package worker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"taskguard/orchestrator"
	"taskguard/repo"
)

// Job is one attempt at one piece of work.
//
//	AnalysisID string          // the id of the document, or of the record of Do
//	LockToken  int64           // the fencing token: larger in each later attempt
//	Attempt    int             // 1 for the first attempt
//	Input      json.RawMessage // the document's input; Typed decodes it
//	Resume     json.RawMessage // the newest checkpoint of an earlier attempt, or nil
//	SelfTest   bool            // true in a self-test, which has no document and refuses side effects
//
// Its methods are:
//
//	Report(progress float64, message string)        // reports progress from 0 to 1
//	Checkpoint(ctx context.Context, v any) error    // commits v, which a later attempt gets as Resume
//	Key(act string) string                          // returns the idempotency key of an act; see Once
//
// The guard sets Stderr, Scope and Reporter, and Once calls the methods Begin, End and Uncertain.
type Job = orchestrator.Job

// Fields names the fields of your documents, and the words of their status. An empty string means the default.
//
//	Status     string   // the field with one of the next four words; the default is status
//	Queued     string   // the default is QUEUED
//	Processing string   // the default is PROCESSING
//	Finished   string   // the default is READY
//	Failed     string   // the default is FAILED
//	Final      []string // up to six other words for finished documents, which the guard leaves alone
//	Input      string   // the default is input
//	Result     string   // the default is result
//	Error      string   // the field with a map of code and message; the default is error
//
// Check returns why Fields cannot be used.
type Fields = repo.Fields

// Kind is a kind of work: a collection of documents, and the function that does the work of one of them. A Kind with
// only Run is the kind of analyses. The command taskguard reads Kinds from KINDS, as JSON without the functions.
type Kind struct {
	// Name has letters, digits, - and _, and begins with a letter. The default is analysis.
	Name string `json:"name"`
	// Collection has the documents. It is required; only the kind analysis has a default, analyses.
	Collection string `json:"collection,omitempty"`
	// IDField names the document's id in the body of a request. The default is NAME_id.
	IDField string `json:"id_field,omitempty"`
	// Path is where tasks call this kind's handler. The default is /internal/tasks/NAME. It is a plain path, without
	// patterns, empty segments, percent-encoding or a query.
	Path   string `json:"path,omitempty"`
	Fields Fields `json:"fields,omitzero"` // the vocabulary of the documents
	// KeyFields names the fields of a document that Key reads, such as tenant or input.account. With them, at
	// most KeyLimit documents with the same key run at a time, and the others wait without a delivery, in the
	// order of their creation. It needs a Queue, and cannot be used with Start. The default is the KeyField of Options.
	KeyFields []string `json:"key_fields,omitempty"`
	// Key returns the key of a document with these fields, which are nested as in the document and may be missing;
	// an empty key is not limited. It must be pure and fast, and must not panic. By default the key is the first
	// of KeyFields, if that is a text, a number or a boolean.
	Key func(fields map[string]any) string `json:"-"`
	// KeyLimit returns how many documents with that key may run at a time, up to 1,000. It may change from call
	// to call. Zero or less pauses the key: what runs ends, and nothing else begins. The default is Options.KeyLimit.
	KeyLimit func(key string) int `json:"-"`
	// KeyHold keeps the key of a document that must run again until its next attempt. With a limit of 1,
	// documents then run strictly one after the other, and a failing document holds up its key. By default
	// the next document passes.
	KeyHold bool `json:"key_hold,omitempty"`
	// RunTimeout limits one run. The default is the RunTimeout of Options.
	RunTimeout time.Duration `json:"-"`
	// Run does the work, and returns its result or an error. Typed makes a Run that decodes the input.
	Run func(ctx context.Context, job Job) (result any, err error) `json:"-"`
	// Start runs the document elsewhere, such as in a Cloud Run job that calls [Work.Run]. A delivery then calls Start
	// instead of Run, unless the document is finished, locked or not due, and answers 200 started. After an error the
	// queue delivers again.
	//
	// Start must return within 30 seconds. It may be called twice for one run, also concurrently: the lock lets only
	// one of them work. It needs a Queue, because recovery must enqueue a document again whose run died. RunTimeout may
	// then be as long as MaxRunTime.
	Start func(ctx context.Context, id string) error `json:"-"`
}

// Typed returns a Run that decodes the job's input as In. An input that does not decode fails for good, with the code
// invalid_input and a message that names the field and its type, such as "input.cents: want int, got string", and never
// the value. A missing input fails too, unless In can be nil.
func Typed[In, Out any](
	run func(ctx context.Context, in In, job Job) (Out, error),
) func(ctx context.Context, job Job) (any, error) {
	nillable := []reflect.Kind{reflect.Interface, reflect.Map, reflect.Pointer, reflect.Slice}
	optional := slices.Contains(nillable, reflect.TypeFor[In]().Kind())

	return func(ctx context.Context, job Job) (any, error) {
		var in In
		err := json.Unmarshal(job.Input, &in)
		switch {
		case err != nil:
			return nil, Permanent(orchestrator.CodeInvalidInput, inputProblem(err), nil)
		case string(job.Input) == "null" && !optional:
			return nil, Permanent(orchestrator.CodeInvalidInput, "the document has no input", nil)
		}
		return run(ctx, in, job)
	}
}

// inputProblem describes an error of json.Unmarshal. The text is stored and logged, so it has no value of the input,
// as the errors themselves do.
func inputProblem(err error) string {
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		name := strings.TrimSuffix("input."+wrong.Field, ".")
		got, _, _ := strings.Cut(wrong.Value, " ") // "number 12.5"
		return fmt.Sprintf("%s: want %s, got %s", name, wrong.Type, got)
	}
	if wrong, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fmt.Sprintf("the input is not JSON from byte %d on", wrong.Offset)
	}
	return "the input cannot be decoded" // the type's own UnmarshalJSON failed, and its error may quote the input
}

// analyzer returns Run as an Analyzer, or nil without a Run.
func (k Kind) analyzer() orchestrator.Analyzer {
	if k.Run == nil {
		return nil
	}
	return orchestrator.AnalyzerFunc(func(ctx context.Context, job Job) (any, error) {
		result, err := k.Run(ctx, job)
		wrong, ok := errors.AsType[*ResultError](err)
		if ok && !strings.Contains(wrong.Record, ":") { // it is about an act, and no record of Do
			err = Permanent("effect_result_invalid", wrong.Error(), err) // a retry would read the same result
		}
		return result, err
	})
}

// analysis is the default name of a kind.
const analysis = "analysis"

// simpleName matches the Name and the IDField of a kind, and the operation of Do.
var simpleName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_-]{0,99}$`)

// notInPath reports whether a Path may not contain r. Echo's patterns begin with : or *, net/http's
// patterns with {. Both decode a request's path before they match it.
func notInPath(r rune) bool { return strings.ContainsRune(" ?#:*%{}", r) || unicode.IsControl(r) }

// Filled returns k with the defaults of its empty fields, or an error if k cannot be used.
func (k Kind) Filled() (Kind, error) {
	k.Name = cmp.Or(k.Name, analysis)
	if k.Name == analysis {
		k.Collection = cmp.Or(k.Collection, "analyses")
	}
	k.IDField, k.Path = cmp.Or(k.IDField, k.Name+"_id"), cmp.Or(k.Path, "/internal/tasks/"+k.Name)

	var problem error
	switch {
	case !simpleName.MatchString(k.Name):
		return k, fmt.Errorf("worker: kind %q: the name is not letters, digits, - and _", k.Name)
	case k.Collection == "":
		problem = errors.New("no Collection")
	case !simpleName.MatchString(k.IDField):
		problem = fmt.Errorf("the IDField %q is not letters, digits, - and _", k.IDField)
	case k.Path[0] != '/', path.Clean(k.Path) != k.Path, strings.ContainsFunc(k.Path, notInPath):
		problem = fmt.Errorf("the Path %q is not the path of a URL", k.Path)
	case k.Path == "/internal/tasks/recover", k.Path == "/internal/self-test", strings.HasPrefix(k.Path, "/health/"):
		problem = fmt.Errorf("the Path %q is taken by another route", k.Path)
	case k.RunTimeout < 0:
		problem = fmt.Errorf("the RunTimeout %v is negative", k.RunTimeout)
	default:
		problem = errors.Join(repo.CheckCollection(k.Collection), k.Fields.Check(), k.concurrency(Options{}).Check())
	}
	if problem != nil {
		return k, fmt.Errorf("worker: kind %q: %w", k.Name, problem)
	}
	return k, nil
}

// checkKeys returns an error if the keys of a kind that runs cannot work with o, or its limit limits nothing.
func (k Kind) checkKeys(o Options) error {
	keyed, queued := k.concurrency(o) != nil, o.Queue != (Queue{})
	switch {
	case k.Run == nil && k.Start == nil:
		return nil
	case keyed && !queued:
		return errors.New("KeyFields need Options.Queue, TASK_QUEUE")
	case keyed && k.Start != nil: // an execution of a job for each of 10,000 that only wait
		return errors.New("a Start cannot limit its runs by a key: remove KeyFields, or the KeyField of Options")
	case !keyed && (k.KeyLimit != nil || k.KeyHold):
		return errors.New("KeyLimit and KeyHold need KeyFields, or the KeyField of Options")
	}
	return nil
}

// concurrency returns the limit of this kind's keys with the defaults of o; nil: there is none.
func (k Kind) concurrency(o Options) *repo.Concurrency {
	if len(k.KeyFields) == 0 && k.Key == nil {
		if o.KeyField == "" || k.Name == recordsName {
			return nil
		}
		k.KeyFields, k.KeyHold = []string{o.KeyField}, k.KeyHold || o.KeyHold
	}
	if k.KeyLimit == nil {
		k.KeyLimit = func(string) int { return max(1, o.KeyLimit) }
	}
	return &repo.Concurrency{Fields: k.KeyFields, Key: k.Key, Limit: k.KeyLimit, Hold: k.KeyHold}
}
