// Package must ends a test at an error that the test is not about.
package must

import "testing"

// OK ends the test if err is not nil. Call it from the test's goroutine, as with t.FailNow.
func OK(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Get returns a function that returns v, and ends its test if err is not nil: must.Get(os.ReadFile(name))(t).
func Get[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		OK(t, err)
		return v
	}
}
