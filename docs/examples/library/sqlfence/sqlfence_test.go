package sqlfence

import (
	"context"
	"database/sql"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"taskguard/worker"
	"taskguard/worker/workertest"
)

func open(t testing.TB) *sql.DB {
	t.Helper()
	const options = "?_pragma=busy_timeout(10000)&_pragma=journal_mode(wal)&_pragma=synchronous(off)&_txlock=immediate"
	db, err := sql.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "db")+options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	const table = `CREATE TABLE invoices (key TEXT PRIMARY KEY, token BIGINT NOT NULL, amount BIGINT NOT NULL)`
	if _, err := db.ExecContext(t.Context(), table); err != nil {
		t.Fatal(err)
	}
	return db
}

// In each schedule a run is interrupted, and at times its statement arrives after that of the next run.
func TestWriteInvoice_Schedules(t *testing.T) {
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

func TestWriteInvoice_Documentation(t *testing.T) {
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
