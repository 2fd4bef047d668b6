package worker

import (
	"io"
	"log/slog"

	"taskguard/internal/telemetry"
)

// NewJSONLog returns a logger of lines as the worker program writes them: JSON with severity and message, which Cloud
// Logging, the alerts and the dashboard read. Lines of a request with a trace have its id. It leaves out lines below
// slog.LevelInfo. Pass it to slog.SetDefault, or set Options.Log.
func NewJSONLog(w io.Writer) *slog.Logger { return telemetry.NewLogger(w, "json", slog.LevelInfo) }
