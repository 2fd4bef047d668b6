package operator_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"taskguard/locks/operator"
)

// Two sessions want the same operator.
func ExamplePool() {
	dir, err := os.MkdirTemp("", "operators")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a temporary directory
	path := filepath.Join(dir, "state.json")
	two := []operator.Operator{{ID: "angie", Name: "Angie"}, {ID: "alma", Name: "Alma"}}
	for _, session := range []string{"this terminal", "that terminal"} {
		file, err := operator.Open(path)
		if err != nil {
			fmt.Println(err)
			return
		}
		pool, err := operator.New(file, path, session, two, operator.Options{})
		if err != nil {
			fmt.Println(err)
			return
		}

		_, err = pool.Assign(context.Background(), "angie")
		free, _ := pool.Available(context.Background())
		fmt.Println(session, err, free)
	}
	// Output:
	// this terminal <nil> [{angie Angie} {alma Alma}]
	// that terminal operator: operator "angie" is in use by another session [{alma Alma}]
}
