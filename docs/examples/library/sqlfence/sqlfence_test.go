package sqlfence

import (
	"context"
	"database/sql"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"taskguard/worker"
	"taskguard/worker/workertest"
)

func open(t testing.TB) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "db")+"?_pragma=busy_timeout(10000)&_pragma=journal_mode(wal)&_pragma=synchronous(off)&_txlock=immediate")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	for _, table := range []string{
		`CREATE TABLE invoices (key TEXT PRIMARY KEY, token BIGINT NOT NULL, amount BIGINT NOT NULL)`,
		`CREATE TABLE lines (key TEXT PRIMARY KEY, amount BIGINT NOT NULL)`,
	} {
		if _, err := db.ExecContext(t.Context(), table); err != nil {
			t.Fatal(err)
		}
	}
	return db
}

func amount(t testing.TB, db *sql.DB, table, key string) (amount int64) {
	t.Helper()
	if err := db.QueryRowContext(t.Context(), `SELECT amount FROM `+table+` WHERE key = $1`, key).Scan(&amount); err != nil {
		t.Fatal(err)
	}
	return amount
}

func TestAStaleTokenThatArrivesAfterANewerOneIsRefused(t *testing.T) {
	db := open(t)
	for n := range 1000 {
		random := rand.New(rand.NewPCG(1, uint64(n)))
		order := append(random.Perm(4), random.IntN(4))
		key, highest := strconv.Itoa(n), int64(0)
		for _, i := range order {
			token := int64(i + 1)
			stale := token < highest
			highest = max(highest, token)
			if err := writeInvoice(t.Context(), db, key, token, 100*token); errors.Is(err, errStale) != stale || !stale && err != nil {
				t.Fatalf("%v: token %d: %v", order, token, err)
			}
			if got := amount(t, db, "invoices", key); got != 100*highest {
				t.Fatalf("%v: after token %d the amount is %d", order, token, got)
			}
		}
	}
}

// In each schedule a run is interrupted, and at times its statement arrives after that of the next run.
func TestTheInvoiceIsThatOfTheNewestRunWhateverHappens(t *testing.T) {
	workertest.Run(t, func(acts *workertest.Acts) func(*worker.Guard) worker.Kind {
		db := open(acts.T)
		run := func(ctx context.Context, job worker.Job) (any, error) {
			return nil, acts.Do(ctx, "PUT invoice", func(ctx context.Context) error {
				return writeInvoice(ctx, db, job.AnalysisID, job.LockToken, 100)
			})
		}
		return func(*worker.Guard) worker.Kind { return worker.Kind{Run: run} }
	}, nil, workertest.Options{Schedules: 50})
}

// writeLine writes to a table without tokens, in a transaction that begins with the fence.
func writeLine(ctx context.Context, db *sql.DB, key string, token, amount int64) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // without effect after the commit
	if err := writeInvoice(ctx, tx, key, token, 0); err != nil {
		return err
	}
	if _, err = tx.ExecContext(ctx, `INSERT INTO lines (key, amount) VALUES ($1, $2) ON CONFLICT (key) DO UPDATE SET amount = excluded.amount`, key, amount); err != nil {
		return err
	}
	return tx.Commit()
}

func TestOfRacingTransactionsTheNewestRemains(t *testing.T) {
	db := open(t)
	for n := range 50 {
		key := strconv.Itoa(n)
		var racing sync.WaitGroup
		for token := range int64(5) {
			racing.Go(func() {
				if err := writeLine(t.Context(), db, key, token, 100*token); err != nil && !errors.Is(err, errStale) {
					t.Errorf("token %d: %v", token, err)
				}
			})
		}
		racing.Wait()
		if got := amount(t, db, "lines", key); got != 400 {
			t.Fatalf("the amount is %d, want that of the highest token", got)
		}
	}
}

func TestTheStatementIsTheOneInTheDocumentationOfFence(t *testing.T) {
	statement := func(file string) string {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		_, after, found := strings.Cut(strings.ReplaceAll(string(text), "//", ""), "INSERT INTO invoices")
		words, _, ended := strings.Cut(after, ">= invoices.token")
		if !found || !ended {
			t.Fatalf("%s has no statement", file)
		}
		return strings.Join(strings.Fields(words), " ")
	}
	if got, want := statement("../../../../repo/fence/doc.go"), statement("example_test.go"); got != want {
		t.Errorf("the documentation has\n%s\nand the example\n%s", got, want)
	}
}
