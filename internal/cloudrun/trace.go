package cloudrun

import (
	"net/http"

	"taskguard/internal/telemetry"
)

// Traced puts a request's trace into its context; see telemetry.Extract.
func Traced(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(w, r.WithContext(telemetry.Extract(r.Context(), r.Header)))
	})
}
