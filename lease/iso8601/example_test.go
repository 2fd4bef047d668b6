package iso8601_test

import (
	"fmt"
	"time"

	"taskguard/lease/iso8601"
)

// Another program's time is parsed, whatever its precision and zone, and is formatted as
// documents store it.
func Example() {
	t, ok := iso8601.Parse("2026-03-01T10:30:00+02:00")
	fmt.Println(ok, iso8601.Format(t.Add(300*time.Second)))
	// Output:
	// true 2026-03-01T08:35:00.000Z
}
