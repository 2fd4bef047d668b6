package repo

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/firestore"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/stats"

	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/must"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/lease/leasetest"
)

var (
	projectFlag  = flag.String("project", "", "run TestOnARealProject alone, against the Firestore of this `project`")
	databaseFlag = flag.String("database", firestore.DefaultDatabaseID, "its `database`")
	yesFlag      = flag.Bool("yes", false, "accept the cost that TestOnARealProject prints")
)

func TestMain(m *testing.M) {
	named := func(a string) bool { return strings.HasPrefix(strings.TrimLeft(a, "-"), "project") }
	if !slices.ContainsFunc(os.Args, named) {
		os.Exit(emulatortest.Main(m)) // before the command line is parsed
	}
	flag.Parse()
	if err := flag.Set("test.run", "^TestOnARealProject$"); err != nil { // others find the developer's environment
		panic(err)
	}
	os.Exit(m.Run())
}

// What TestOnARealProject is billed at most. The conformance suite is held to the rest of it
// after the contention table: 486 acquirers of each kind, with at most 10 reads for a pair.
const (
	mostReads  = 6000
	mostWrites = 500 // and as many deletes
	tableReads = 4860
)

// TestOnARealProject runs the store's conformance suite, and the contention table of
// docs/adr/0001-transaction.md, against a database that the caller names:
//
//	go test ./repo -v -timeout 30m -project P -database D -yes
//
// It writes only below the collection taskguardProof, and deletes what it wrote. Without -yes
// it prints what it will do and what that costs. It uses the Application Default Credentials,
// or the emulator of FIRESTORE_EMULATOR_HOST.
func TestOnARealProject(t *testing.T) {
	if *projectFlag == "" {
		if strings.Contains(flag.Lookup("test.run").Value.String(), "RealProject") {
			t.Fatal("name the project: -project P -database D")
		}
		t.Skip("needs a Google Cloud project: go test ./repo -v -project P -database D")
	}
	calls := &callCounter{}
	opts := []option.ClientOption{option.WithGRPCDialOption(grpc.WithStatsHandler(calls))}
	where := "Firestore"
	if host := os.Getenv("FIRESTORE_EMULATOR_HOST"); host != "" {
		where = "the emulator at " + host
		t.Setenv("FIRESTORE_EMULATOR_HOST", "") // Google's client would open a connection of its own
		conn, err := grpc.NewClient(host, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithPerRPCCredentials(emulatorOwner{}), grpc.WithStatsHandler(calls))
		must.OK(t, err)
		opts = []option.ClientOption{option.WithGRPCConn(conn)}
	}
	root := "taskguardProof/" + strings.ToLower(rand.Text()[:10])
	fmt.Printf("%s, database %s of project %s: a few minutes, and at most about %d reads, %d writes and %[5]d deletes "+
		"of small documents, all below %s.\n", where, *databaseFlag, *projectFlag, mostReads, mostWrites, root)
	if !*yesFlag {
		t.Fatal("nothing was done: add -yes to accept this cost")
	}
	p := newProof(t, root, *projectFlag, *databaseFlag, calls, opts...)
	fmt.Printf("If you interrupt it, delete the rest: firebase firestore:delete %s --recursive --force "+
		"--project '%s' --database '%s'\n", root, *projectFlag, *databaseFlag)
	t.Cleanup(func() {
		n, err := p.remove(context.WithoutCancel(t.Context()))
		if err != nil {
			t.Errorf("documents are left below %s: %v", p.root, err)
		}
		fmt.Printf("%d documents deleted, none is left below %s; %d calls in all.\n", n, p.root, calls.n.Load())
	})
	s := suite(func(testing.TB) *store { return p.analyses().documents })
	s.TTL = 10 * time.Second
	t.Run("Conformance", func(t *testing.T) { leasetest.Run(t, s) })
	t.Run("Contention", func(t *testing.T) {
		fmt.Println(p.contention(t, 3, 2, 32, 128))
	})
}

// callCounter counts calls as they leave.
type callCounter struct {
	meter
	n atomic.Int64
}

func (c *callCounter) HandleRPC(_ context.Context, s stats.RPCStats) {
	if _, begun := s.(*stats.Begin); begun {
		c.n.Add(1)
	}
}

// proof writes below one document, which does not exist, in collections of its own.
type proof struct {
	db    *Database
	root  string
	calls *callCounter
	mu    sync.Mutex
	made  []*firestore.CollectionRef
}

func newProof(t testing.TB, root, project, database string, calls *callCounter, opts ...option.ClientOption) *proof {
	t.Helper()
	db, err := Connect(t.Context(), project, Options{Database: database}, opts...)
	must.OK(t, err)
	t.Cleanup(func() { must.OK(t, db.Close()) })
	return &proof{db: db, root: root, calls: calls}
}

// analyses opens an empty collection.
func (p *proof) analyses() *Analyses {
	p.mu.Lock()
	defer p.mu.Unlock()
	a, err := p.db.Analyses(Options{
		Collection: fmt.Sprintf("%s/%d", p.root, len(p.made)),
		Policy:     lease.Policy{TTL: 10 * time.Second, MaxAttempts: 10},
	})
	if err != nil {
		panic(err) // of a wrong collection
	}
	p.made = append(p.made, a.documents.collection)
	return a
}

// remove deletes the documents of all collections, and checks that none is left.
func (p *proof) remove(ctx context.Context) (n int, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	for pass := range 2 { // the second checks that no document is left
		for _, c := range p.made {
			all, err := c.Documents(ctx).GetAll()
			if err != nil {
				return n, err
			}
			for _, snap := range all {
				if pass > 0 {
					return n, errors.New(snap.Ref.Path)
				}
				if _, err := snap.Ref.Delete(ctx); err != nil {
					return n, err
				}
				n++
			}
		}
	}
	return n, nil
}

// contention returns the table of docs/adr/0001-transaction.md: in each of some rounds, n
// acquirers compete for one document. Exactly one must win.
func (p *proof) contention(t *testing.T, rounds int, acquirers ...int) string {
	a := p.analyses()
	guard := func(id, owner string) (bool, error) {
		acq, err := a.AcquireAnalysisLock(t.Context(), id, owner, 0, analysislock.AcquireOptions{})
		return acq.Acquired, err
	}
	plain := func(id, owner string) (got bool, err error) {
		doc := a.documents.collection.Doc(id)
		err = p.db.client.RunTransaction(t.Context(), func(_ context.Context, tx *firestore.Transaction) error {
			snap, err := tx.Get(doc)
			if got = err == nil && snap.Data()["lockOwner"] == nil; !got {
				return err
			}
			return tx.Update(doc, []firestore.Update{
				{Path: "lockOwner", Value: owner}, {Path: "lockExpiresAt", Value: time.Now().Add(time.Hour)},
			})
		})
		return got && err == nil, err
	}
	table := "| n | guard: time · calls each · errors | plain `RunTransaction`: time · calls each · errors |\n" +
		"|---|---|---|"
	for _, n := range acquirers {
		ours, theirs := p.compete(t, a, rounds, n, guard), p.compete(t, a, rounds, n, plain)
		table += fmt.Sprintf("\n| %d | %s | %s |", n, ours, theirs)
	}
	return table
}

// compete lets n acquirers compete for a document in each round, and returns a cell of the table.
func (p *proof) compete(t *testing.T, a *Analyses, rounds, n int, acquire func(id, owner string) (bool, error)) string {
	t.Helper()
	var took time.Duration
	var won, failed atomic.Int64
	calls := int64(0)
	for range rounds {
		id := rand.Text()
		must.OK(t, a.Create(t.Context(), id, nil, CreateOptions{}))
		before, began := p.calls.n.Load(), time.Now()
		var all sync.WaitGroup
		for k := range n {
			all.Go(func() {
				got, err := acquire(id, fmt.Sprint("w/", k))
				if err != nil {
					failed.Add(1)
				} else if got {
					won.Add(1)
				}
			})
		}
		all.Wait()
		took, calls = took+time.Since(began), calls+p.calls.n.Load()-before
	}
	if won.Load() > int64(rounds) || won.Load()+failed.Load() < int64(rounds) {
		t.Errorf("n=%d: %d winners and %d errors in %d rounds", n, won.Load(), failed.Load(), rounds)
	}
	each := float64(calls) / float64(n*rounds)
	return fmt.Sprintf("%.2f s · %.1f · %d", took.Seconds()/float64(rounds), each, failed.Load())
}
