package emulatortest

import (
	"cmp"
	"context"
	"net"
	"path"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	fs "cloud.google.com/go/firestore"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"taskguard/emulator/firestore"
)

// Backend is the Firestore of one test, with a separate database. It counts the calls.
type Backend struct {
	Project string
	Server  *firestore.Server // nil: at host
	Calls   *Calls
	Kind    // the kind of the documents

	host   string
	once   sync.Once
	client *fs.Client // used by Put, Merge, Delete and Fields
}

// Google reports whether this is Google's emulator, where time is real.
func (b *Backend) Google() bool { return b.Server == nil }

// Each runs body on the embedded server, in a synctest bubble, and on Google's emulator, in
// real time. The test is parallel.
func Each(t *testing.T, body func(t *testing.T, b *Backend)) {
	t.Helper()
	t.Parallel()
	t.Run("embedded", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { body(t, Embedded(t)) })
	})
	t.Run("google", func(t *testing.T) { body(t, OnGoogle(t)) })
}

// EachKind is like Each, on the embedded server also for Jobs.
func EachKind(t *testing.T, body func(t *testing.T, b *Backend)) {
	t.Helper()
	t.Parallel()
	t.Run("embedded", func(t *testing.T) { EmbeddedKinds(t, body) })
	t.Run("google", func(t *testing.T) { body(t, OnGoogle(t)) })
}

// EmbeddedKinds runs body on embedded servers, in synctest bubbles, for analyses and for
// Jobs.
func EmbeddedKinds(t *testing.T, body func(t *testing.T, b *Backend)) {
	t.Helper()
	for name, k := range Kinds() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := Embedded(t)
				b.Kind = *k
				body(t, b)
			})
		})
	}
}

// Embedded returns an embedded server, closed at the end of the test.
func Embedded(t testing.TB) *Backend {
	s := firestore.NewServer(firestore.Options{})
	t.Cleanup(s.Close)
	return &Backend{Project: Project(), Server: s, Calls: &Calls{}}
}

// Listen serves an embedded server over loopback until the end of the test, and returns
// its host for FIRESTORE_EMULATOR_HOST.
func (b *Backend) Listen(t testing.TB) (host string) {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- b.Server.Serve(l) }()
	t.Cleanup(func() { b.Server.Close(); <-ended })
	return l.Addr().String()
}

// OnGoogle returns Google's emulator; see Google.
func OnGoogle(t testing.TB) *Backend { return At(Google(t)) }

// At returns the Firestore that listens on host.
func At(host string) *Backend {
	return &Backend{Project: Project(), Calls: &Calls{}, host: host}
}

// Client returns the options with which Google's library calls b, over a new
// connection whose calls are counted after the interceptors of opts. It is closed
// at the end of the test.
func (b *Backend) Client(t testing.TB, opts ...grpc.DialOption) []option.ClientOption {
	t.Helper()
	opts = append(opts,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithChainUnaryInterceptor(b.Calls.unary),
		grpc.WithChainStreamInterceptor(b.Calls.stream),
	)

	dial := func(opts ...grpc.DialOption) (*grpc.ClientConn, error) { return grpc.NewClient(b.host, opts...) }
	if b.Server != nil {
		dial = b.Server.Dial
	}
	conn, err := dial(opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return []option.ClientOption{option.WithGRPCConn(conn)}
}

// Calls counts the calls of connections.
type Calls struct {
	mu      sync.Mutex
	methods []string
}

// Total returns the number of calls so far.
func (c *Calls) Total() int { return c.Count("") }

// Count returns the number of calls of a method, such as "Commit", so far; "" is any.
func (c *Calls) Count(method string) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, called := range c.methods {
		if method == "" || path.Base(called) == method {
			n++
		}
	}
	return n
}

func (c *Calls) add(ctx context.Context, method string) context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.methods = append(c.methods, method)
	// The library does this too, if the environment names an emulator.
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer owner")
}

func (c *Calls) unary(
	ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
	invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
) error {
	return invoke(c.add(ctx, method), method, req, reply, cc, opts...)
}

func (c *Calls) stream(
	ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string,
	open grpc.Streamer, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	return open(c.add(ctx, method), desc, cc, method, opts...)
}

// Kind is a collection and the vocabulary of its documents; see repo.Fields. The zero value
// is for analyses.
type Kind struct {
	Collection string
	Vocabulary Vocabulary
}

// Vocabulary has the fields of repo.Fields. This package cannot import repo, whose tests
// import it.
type Vocabulary struct {
	Status, Queued, Processing, Finished, Failed string
	Final                                        []string
	Input, Result, Error                         string
}

// Jobs returns a kind other than analyses.
func Jobs() Kind {
	return Kind{"jobs", Vocabulary{
		Status: "state", Queued: "PENDING", Processing: "RUNNING", Finished: "DONE", Failed: "ERROR",
		Input: "payload", Result: "output", Error: "failure",
	}}
}

// Kinds returns the kinds of EachKind by name.
func Kinds() map[string]*Kind { return map[string]*Kind{"analyses": {}, "jobs": new(Jobs())} }

// analyses is the vocabulary of the zero Kind.
var analyses = Vocabulary{
	Status: "status", Queued: "QUEUED", Processing: "PROCESSING", Finished: "READY", Failed: "FAILED",
	Input: "input", Result: "result", Error: "error",
}

func (v *Vocabulary) names() []string  { return []string{v.Status, v.Input, v.Result, v.Error} }
func (v *Vocabulary) states() []string { return []string{v.Queued, v.Processing, v.Finished, v.Failed} }

// Translated returns the fields of an analysis in the vocabulary of k.
func (k Kind) Translated(t testing.TB, fields map[string]any) map[string]any {
	t.Helper()
	return k.translate(t, fields, &analyses, &k.Vocabulary)
}

// translate puts field names and the status into another vocabulary, unless k is for analyses.
func (k Kind) translate(t testing.TB, fields map[string]any, from, to *Vocabulary) map[string]any {
	t.Helper()
	if k.Collection == "" || fields == nil {
		return fields
	}
	all := make(map[string]any, len(fields))
	for name, v := range fields {
		if state, ok := v.(string); ok && name == from.Status {
			v = counterpart(t, state, from.states(), to.states())
		}
		all[counterpart(t, name, from.names(), to.names())] = v
	}
	return all
}

// counterpart returns the word of to at the index that s has in from, or else s. It fails
// the test if s is a word of to.
func counterpart(t testing.TB, s string, from, to []string) string {
	t.Helper()
	if i := slices.Index(from, s); i >= 0 {
		return to[i]
	}
	if slices.Contains(to, s) {
		t.Errorf("%q is of another vocabulary", s)
	}
	return s
}

// Put replaces the document id as another program would. The fields of Put, Merge and Fields
// are in the vocabulary of analyses, for every kind. The calls of these methods and of Delete are
// not counted.
func (b *Backend) Put(t testing.TB, id string, fields map[string]any, opts ...fs.SetOption) {
	t.Helper()
	if _, err := b.doc(t, id).Set(t.Context(), b.Translated(t, fields), opts...); err != nil {
		t.Fatal(err)
	}
}

// Merge writes some fields of the document id as another program would.
func (b *Backend) Merge(t testing.TB, id string, fields map[string]any) {
	t.Helper()
	b.Put(t, id, fields, fs.MergeAll)
}

// Delete removes the document id as another program would.
func (b *Backend) Delete(t testing.TB, id string) {
	t.Helper()
	if _, err := b.doc(t, id).Delete(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// Fields reads the document id as another program would; nil: it does not exist.
func (b *Backend) Fields(t testing.TB, id string) map[string]any {
	t.Helper()
	snap, err := b.doc(t, id).Get(t.Context())
	if err != nil && status.Code(err) != codes.NotFound {
		t.Fatal(err)
	}
	return b.translate(t, snap.Data(), &b.Vocabulary, &analyses)
}

func (b *Backend) doc(t testing.TB, id string) *fs.DocumentRef {
	t.Helper()
	b.once.Do(func() {
		uncounted := &Backend{Project: b.Project, Server: b.Server, Calls: &Calls{}, host: b.host}
		client, err := fs.NewClient(t.Context(), b.Project, uncounted.Client(t)...)
		if err != nil {
			t.Fatal(err)
		}
		b.client = client
	})
	return b.client.Collection(cmp.Or(b.Collection, "analyses")).Doc(id)
}
