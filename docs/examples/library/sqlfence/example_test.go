// Package sqlfence shows the fence of a database: a token that is lower than the row's is
// refused by the statement that writes the row.
package sqlfence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	_ "modernc.org/sqlite" // the driver sqlite
)

// errStale reports a token lower than the row's.
var errStale = errors.New("stale token")

// writeInvoice writes the amount, unless a higher token has written the row.
func writeInvoice(ctx context.Context, db *sql.DB, key string, token, amount int64) error {
	result, err := db.ExecContext(ctx, `
		INSERT INTO invoices (key, token, amount) VALUES ($1, $2, $3)
		ON CONFLICT (key) DO UPDATE SET token = excluded.token, amount = excluded.amount
		WHERE excluded.token >= invoices.token`, key, token, amount)
	if err != nil {
		return err
	}
	n, err := result.RowsAffected()
	if err == nil && n == 0 {
		err = errStale
	}
	return err
}

// Worker 1 (token 7) pauses after its work, and worker 2 (token 8) writes its result first.
func Example() {
	ctx := context.Background()
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		panic(err)
	}
	defer func() { _ = db.Close() }()
	db.SetMaxOpenConns(1) // each connection to :memory: is a database of its own
	if _, err := db.ExecContext(ctx, `CREATE TABLE invoices (key TEXT PRIMARY KEY, token BIGINT NOT NULL, amount BIGINT NOT NULL)`); err != nil {
		panic(err)
	}
	fmt.Println("worker 2:", writeInvoice(ctx, db, "2026-11", 8, 800))
	fmt.Println("worker 1:", writeInvoice(ctx, db, "2026-11", 7, 700))
	fmt.Println("worker 2 again:", writeInvoice(ctx, db, "2026-11", 8, 800))
	// Output:
	// worker 2: <nil>
	// worker 1: stale token
	// worker 2 again: <nil>
}
