package worker

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"taskguard/lease"
	"taskguard/orchestrator"
)

// IdempotentOptions configures Guard.Idempotent. Only Scope is required.
type IdempotentOptions struct {
	// Scope returns the account that the key belongs to, as another middleware has authenticated it. One key in two
	// scopes is two keys. If it is empty, the request is answered 403.
	Scope func(*http.Request) string
	// Operation is a name like Do's. Routes with one Operation share the keys of a scope, so using a key at two of them
	// is answered 422. The default is http.
	Operation string
	Methods   []string // which requests are guarded; the default is POST and PATCH
	Optional  bool     // lets requests without a key pass, instead of answering 400
	// Headers are stored with the response, in addition to the headers that describe its body and the CORS headers:
	// Access-Control-Allow-Credentials, Access-Control-Allow-Origin, Access-Control-Expose-Headers, Cache-Control,
	// Content-Disposition, Content-Encoding, Content-Language, Content-Location, Content-Type, ETag, Last-Modified,
	// Link, Location, Retry-After and Vary. A replay has no other headers of the handler. Handlers outside set their
	// own for each request; a stored header replaces theirs, but adds to Vary.
	Headers []string
	// Stored reports whether to store a response with this status. If not, the next request with the key runs the
	// handler again. The default stores statuses below 500, except 408, 409, 425 and 429.
	Stored func(status int) bool
	// EndWithClient ends the context of the handler when the client hangs up.
	EndWithClient bool
	// ProblemType is the beginning of the types of problems, such as https://api.example.com/problems/. The default is
	// urn:problem-type:idempotency:
	ProblemType string
	// Do has the options of the records; its Params are ignored. Its Lock defaults to a TTL of 30 s and a heartbeat of
	// 10 s: that is how long after a crash the handler can run again.
	Do DoOptions
}

// Idempotent returns a middleware that runs a handler once for each Idempotency-Key, as
// draft-ietf-httpapi-idempotency-key-header describes, and stores its response with DoOutcome. Later requests with the
// key, in any process, get that response with Idempotency-Replayed: true. The key is a quoted string or a bare token of
// 1 to 255 bytes of ASCII.
//
// A repeated request must have the same method, path, query, Content-Type and body. Of a multipart form, the headers
// and contents of the parts are compared, without the boundary. The body has at most 1 MiB. Idempotent must read it
// first: if another handler has read it, for example by FormValue, the answer is 500 and the handler is not called. An
// empty chunked body looks the same. Idempotent cannot notice that a part of a chunked body was read.
//
// The response is sent after it has been stored, so Flush has no effect and nothing can be hijacked. A response over
// 512 KiB, a text/event-stream and a 101 are replaced by a problem, which is stored: each repetition gets it too, and
// the handler does not run again. A response that Stored refuses is sent and not stored. If the handler panics or
// writes less than its Content-Length, nothing is stored, and Idempotent panics with the handler's value or with
// http.ErrAbortHandler. In these cases, and after a crash or a lost lock, the next request runs the handler again.
//
// The handler sees Accept-Encoding: identity, because a later client may not accept a compressed response. An
// http.TimeoutHandler inside Idempotent answers only when the handler has returned, so that no repetition runs beside
// it.
//
// The handler goes on when the client hangs up. In Shutdown its context ends two seconds before the deadline, and a
// response by then is stored and sent as usual. Do.RunTimeout ends it too. The context has the job; see JobFromContext.
//
// Idempotent itself answers with problems of RFC 9457: 400, 403, 413 and 422 for a request to be corrected; 409 with
// Retry-After while another request runs the handler; 503 with Retry-After if the handler was not called; and 500 if it
// was called and its response may not be stored, so that a repetition may run it again.
//
// Idempotent panics without a Scope, and if DoOutcome would refuse Operation or Do. The middleware is safe for
// concurrent use. In Echo, use IdempotentEcho.
func (g *Guard) Idempotent(o IdempotentOptions) func(http.Handler) http.Handler {
	if o.Scope == nil {
		panic("worker: idempotent: no Scope")
	}
	o.Operation = cmp.Or(o.Operation, httpOperation)
	o.ProblemType = cmp.Or(o.ProblemType, "urn:problem-type:idempotency:")
	o.Do.Lock = cmp.Or(o.Do.Lock, lease.Policy{TTL: 30 * time.Second, Heartbeat: 10 * time.Second})
	if o.Methods == nil {
		o.Methods = []string{http.MethodPost, http.MethodPatch}
	}
	if o.Stored == nil {
		temporary := []int{408, 409, 425, 429} // an analyzer's answer with one of these is retried too
		o.Stored = func(status int) bool { return status < 500 && !slices.Contains(temporary, status) }
	}
	if _, err := g.record(o.Operation, "key", o.Do); err != nil {
		panic("worker: idempotent: " + err.Error())
	}
	return func(next http.Handler) http.Handler { return &idempotent{o, g, next} }
}

// IdempotentEcho is Idempotent for Echo. If a handler returns an error, Echo's error handler answers it, and that
// answer is the response. Do not use Idempotent with echo.WrapMiddleware: there a handler that returns an error has not
// answered yet, so a problem is stored as its response.
func (g *Guard) IdempotentEcho(o IdempotentOptions) echo.MiddlewareFunc {
	wrap := echo.WrapMiddleware(g.Idempotent(o))
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		guarded := wrap(func(c echo.Context) error {
			if err := next(c); err != nil {
				c.Error(err)
			}
			return nil
		})
		return func(c echo.Context) error {
			defer c.SetResponse(c.Response()) // a panic is answered there, and not in the recorder
			return guarded(c)
		}
	}
}

// jobKey is the key of the job in the context of a handler.
type jobKey struct{}

// JobFromContext returns the job of a handler behind Idempotent, for Once or its LockToken. ok is false in other
// handlers, and for a request that is not guarded.
func JobFromContext(ctx context.Context) (job Job, ok bool) {
	job, ok = ctx.Value(jobKey{}).(Job)
	return job, ok
}

// idempotent is a handler behind Idempotent.
type idempotent struct {
	IdempotentOptions

	guard *Guard
	next  http.Handler
}

// httpOperation is the operation of IdempotentOptions without another.
const httpOperation = "http"

// sentKey matches a string of RFC 8941, or a token without quotes, commas, semicolons and
// backslashes, as many clients send it.
var sentKey = regexp.MustCompile(
	`^(?:"((?:[\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\]){1,255})"|([\x21\x23-\x2b\x2d-\x3a\x3c-\x5b\x5d-\x7e]{1,255}))$`)

// recordKey returns the key of Do for a scope and the Idempotency-Key that was sent. ok is false if
// that is malformed.
func recordKey(scope, sent string) (key string, ok bool) {
	found := sentKey.FindStringSubmatch(sent)
	if found == nil {
		return "", false
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q", scope, cmp.Or(found[1], found[2])))
	return fmt.Sprintf("%x", sum), true
}

// IdempotencyRecord returns the id of the document for a client's Idempotency-Key, with or without its quotes. scope is
// what IdempotentOptions.Scope returns for the client, and an empty operation means the default. It returns an error if
// the key is malformed.
func IdempotencyRecord(operation, scope, key string) (id string, err error) {
	hash, ok := recordKey(scope, key)
	if !ok {
		return "", fmt.Errorf("worker: the Idempotency-Key %q is no quoted string or token "+
			"of 1 to 255 bytes of ASCII", key)
	}
	return cmp.Or(operation, httpOperation) + ":" + hash, nil
}

// Lookup returns the stored response for a client's Idempotency-Key, and runs nothing. Its arguments are as for
// IdempotencyRecord, and o is IdempotentOptions.Do. It returns the errors of IdempotencyRecord and of the function
// Lookup.
func (g *Guard) Lookup(
	ctx context.Context, operation, scope, key string, o DoOptions,
) (out Outcome[StoredResponse], err error) {
	id, err := IdempotencyRecord(operation, scope, key)
	if err != nil {
		return out, err
	}
	operation, hash, _ := strings.Cut(id, ":")
	o.Params = nil
	return Lookup[StoredResponse](ctx, g, operation, hash, o)
}

// ServeHTTP checks a request. It lets those pass that are not guarded.
func (h *idempotent) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	keys := r.Header.Values("Idempotency-Key")
	if !slices.Contains(h.Methods, r.Method) || len(keys) == 0 && h.Optional {
		h.next.ServeHTTP(w, r)
		return
	}
	scope := h.Scope(r)
	key, ok := recordKey(scope, strings.Join(keys, ",")) // no two keys match

	switch {
	case len(keys) == 0:
		h.refuse(w, "key-missing")
	case !ok:
		h.refuse(w, "key-malformed")
	case scope == "":
		h.refuse(w, "scope-missing")
	default:
		h.read(w, r, key)
	}
}

// read reads and checks the body of a request.
func (h *idempotent) read(w http.ResponseWriter, r *http.Request, key string) {
	if r.Body == nil {
		r.Body = http.NoBody
	}
	body, err := readBody(w, r)

	switch {
	case errors.Is(err, errIncomplete):
		h.refuse(w, "body-incomplete")
	case err != nil:
		h.refuse(w, "body-too-large")
	case readBefore(r, body):
		h.refuse(w, "body-read")
	default:
		h.serve(w, r, key, body)
	}
}

// readBefore reports whether another handler has read r's body, so that body is only its rest.
func readBefore(r *http.Request, body []byte) bool {
	if r.ContentLength > 0 && r.Header.Get("Content-Encoding") == "" { // else a handler may have decompressed it
		return int64(len(body)) != r.ContentLength
	}
	return r.MultipartForm != nil || len(body) == 0 && (r.ContentLength != 0 || len(r.PostForm) > 0)
}

// serve answers with the stored response of a key, or with the handler's, which it stores.
func (h *idempotent) serve(w http.ResponseWriter, r *http.Request, key string, body []byte) {
	ctx, options := r.Context(), h.Do
	target := cmp.Or(r.RequestURI, r.URL.RequestURI()) // as sent, also behind http.StripPrefix
	contentType, sum := fingerprint(r.Header.Get("Content-Type"), body)
	options.Params = []any{r.Method, target, contentType, sum}
	if !h.EndWithClient {
		ctx = context.WithoutCancel(ctx)
	}

	var live StoredResponse
	out, err := DoOutcome(ctx, h.guard, h.Operation, key, options,
		func(ctx context.Context, job Job) (stored StoredResponse, err error) {
			ctx, release := orchestrator.Outlast(ctx, job)
			defer release()
			request := r.WithContext(context.WithValue(ctx, jobKey{}, job))
			request.Body, request.Header = io.NopCloser(bytes.NewReader(body)), r.Header.Clone()
			request.Header.Set("Accept-Encoding", "identity") // clients of the stored response may accept no other
			if live, err = runHandler(h.next, request, w); err != nil {
				return stored, err
			}
			return h.stored(live, w.Header())
		})

	switch panicked, ok := errors.AsType[*orchestrator.PanicError](err); {
	case ok:
		panic(panicked.Value)
	case errors.Is(err, errAborted):
		panic(http.ErrAbortHandler)
	case errors.Is(err, errNotStored), err == nil && !out.Replayed:
		clear(w.Header()) // live has its own copy
		live.send(w)
	case err == nil:
		w.Header().Set("Idempotency-Replayed", "true")
		out.Value.send(w)
	default:
		problem := problemOf(err)
		if problem == "not-processed" { // DoOutcome logs only runs
			h.guard.options.Log.WarnContext(ctx, "request not processed", "error", err)
		}
		h.refuse(w, problem)
	}
}

// fingerprint returns what a repeated request must have: its Content-Type in one form, and a hash of
// its body. A client encodes a multipart form with a new boundary each time, so it is not compared.
func fingerprint(contentType string, body []byte) (media string, sum [sha256.Size]byte) {
	sum = sha256.Sum256(body)
	media, parameters, err := mime.ParseMediaType(contentType)
	if err != nil {
		return contentType, sum
	}

	if strings.HasPrefix(media, "multipart/") {
		if parts, ok := hashParts(parameters["boundary"], body); ok {
			delete(parameters, "boundary")
			sum = parts
		}
	}
	return cmp.Or(mime.FormatMediaType(media, parameters), contentType), sum
}

// hashParts returns a hash of the headers and the contents of a form's parts. ok is false if the form
// is malformed.
func hashParts(boundary string, body []byte) (sum [sha256.Size]byte, ok bool) {
	hash, form := sha256.New(), multipart.NewReader(bytes.NewReader(body), boundary)
	for {
		part, err := form.NextRawPart()
		if err != nil { // a form without its end wraps io.EOF
			return [sha256.Size]byte(hash.Sum(nil)), errors.Is(err, io.EOF) && errors.Unwrap(err) == nil
		}
		content, err := io.ReadAll(part)
		if err != nil {
			return sum, false
		}
		_, _ = fmt.Fprintf(hash, "%q %x ", part.Header, sha256.Sum256(content)) // a hash does not fail
	}
}

// stored returns the part of a response that is stored, without the headers of outer handlers.
func (h *idempotent) stored(live StoredResponse, outer http.Header) (StoredResponse, error) {
	if !h.Stored(live.Status) {
		return StoredResponse{}, errNotStored
	}

	header := http.Header{}
	for _, name := range slices.Concat(storedHeaders, h.Headers) {
		values, before := live.Header.Values(name), outer.Values(name)
		if n := len(before); len(values) >= n && slices.Equal(values[:n], before) {
			values = values[n:]
		}
		if len(values) > 0 {
			header[http.CanonicalHeaderKey(name)] = values
		}
	}
	return StoredResponse{live.Status, header, live.Body}, nil
}

var storedHeaders = []string{
	"Access-Control-Allow-Credentials", "Access-Control-Allow-Origin", "Access-Control-Expose-Headers",
	"Cache-Control", "Content-Disposition", "Content-Encoding", "Content-Language", "Content-Location",
	"Content-Type", "ETag", "Last-Modified", "Link", "Location", "Retry-After", "Vary",
}

// problems are the answers of Idempotent itself, by the last part of their type.
var problems = map[string]struct {
	status int
	detail string
}{
	"key-missing":     {400, "The header Idempotency-Key is missing. Each new request needs a new key."},
	"key-malformed":   {400, "Idempotency-Key must occur once, as a quoted string or a token of 1 to 255 bytes of ASCII."},
	"scope-missing":   {403, "The request has no account that the Idempotency-Key could belong to."},
	"body-incomplete": {400, "The body of the request did not arrive in full."},
	"body-too-large":  {413, "The body of a request with an Idempotency-Key has at most 1 MiB."},
	"body-read":       {500, "The request was not processed: its body was read before, or is chunked and empty."},
	"key-reused":      {422, "The Idempotency-Key was used with another method, URL, Content-Type or body."},
	"in-progress":     {409, "A request with this Idempotency-Key is in progress. Repeat it to get its response."},
	"not-processed":   {503, "The request was not processed. Repeat it with the same Idempotency-Key."},
	"outcome-unknown": {500, "The request was processed; a repetition gets its response, or is processed again."},

	// of a request that is not processed again
	"response-too-large": {500, "The request was processed, but its response is too large to be stored."},
	"response-streamed":  {500, "The request was processed, but its response cannot be streamed."},
	"response-missing":   {500, "The request was processed, but its handler has written no response."},
	"no-response":        {500, "The request with this Idempotency-Key has no response that could be stored."},
}

// problemOf returns the problem for an error of DoOutcome.
func problemOf(err error) string {
	switch failed, ok := errors.AsType[*FailedError](err); {
	case ok && problems[failed.Code].status != 0:
		return failed.Code
	case ok:
		return "no-response"
	case errors.As(err, new(*RunningError)):
		return "in-progress"
	case errors.Is(err, ErrParams):
		return "key-reused"
	case errors.Is(err, ErrNotRun):
		return "not-processed"
	}
	return "outcome-unknown"
}

// refuse answers a problem.
func (h *idempotent) refuse(w http.ResponseWriter, name string) {
	p := problems[name]
	body, _ := json.Marshal(map[string]any{ // of strings and a number
		"type": h.ProblemType + name, "title": http.StatusText(p.status), "status": p.status, "detail": p.detail,
	})
	w.Header().Set("Content-Type", "application/problem+json")
	if p.status == http.StatusConflict || p.status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1") // RunningError.RetryIn is at most 1 s
	}
	w.WriteHeader(p.status)
	_, _ = w.Write(body) // the client may have gone
}
