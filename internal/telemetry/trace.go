package telemetry

import (
	"net/http"
)

// Traced puts a request's trace into its context; see Extract.
func Traced(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(w, r.WithContext(Extract(r.Context(), r.Header)))
	})
}
