package cloudrun

import (
	"io"
	"log/slog"
)

// NewLogger writes Cloud Logging's JSON or, with the format text, lines for people.
func NewLogger(w io.Writer, format string, level slog.Level) *slog.Logger {
	if format == "text" {
		return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level}))
	}
	return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: cloudLogging}))
}

// cloudLogging renames slog's fields to those that Cloud Logging reads.
func cloudLogging(groups []string, a slog.Attr) slog.Attr {
	if len(groups) > 0 {
		return a
	}
	switch a.Key {
	case slog.LevelKey:
		a.Key = "severity"
		if a.Value.String() == "WARN" {
			a.Value = slog.StringValue("WARNING")
		}
	case slog.MessageKey:
		a.Key = "message"
	}
	return a
}
