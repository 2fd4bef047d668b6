package env

import (
	"context"
	"log/slog"
	"slices"
	"strings"

	"taskguard/internal/text"
)

// Misspelt returns the known variable for which name was probably meant, or "" if there is none or name is known.
func Misspelt(name string, known []string) string {
	const shortest = len("LOCK_TTL") // other programs' variables are near to shorter ones, as POST is to PORT
	if slices.Contains(known, name) {
		return ""
	}
	for _, variable := range text.Nearest(name, known) {
		beginning := len(variable) > len(name)+2 // may be another program's variable
		if len(variable) >= shortest && !beginning && !strings.HasPrefix(variable, "OTEL_") {
			return variable
		}
	}
	return ""
}

// WarnOfMisspelt logs a warning of each variable of an environment that e has not read, and whose name is near to one
// that e has. It does not log their values.
func (e *Environment) WarnOfMisspelt(ctx context.Context, log *slog.Logger, environment []string) {
	for _, variable := range environment {
		name, _, _ := strings.Cut(variable, "=")
		if meant := Misspelt(name, e.read); meant != "" {
			log.WarnContext(ctx, "a variable is not read: its name may be misspelt", "variable", name, "meant", meant)
		}
	}
}
