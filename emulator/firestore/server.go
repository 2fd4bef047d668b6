package firestore

import (
	"time"

	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/grpc"

	"taskguard/emulator/internal/wire"
)

const (
	// maxRequestBytes is Firestore's limit on one API request.
	maxRequestBytes = 10 << 20
	// maxMessageBytes lets a request somewhat over the limit reach the handler,
	// which refuses it as Firestore does (INVALID_ARGUMENT); the transport would
	// answer otherwise.
	maxMessageBytes = 4 * maxRequestBytes
)

// Options configures a Server. The zero value is ready to use.
type Options struct {
	// Now is the clock that dates commits and reads; nil means time.Now. The
	// store's own time never runs backwards even if Now does. Timeouts of
	// transactions are measured by real elapsed time, not by Now.
	Now func() time.Time
}

// Usage counts operations as Firestore bills them.
type Usage struct {
	// Reads is one for each document looked up or returned by a query; a missing
	// document, or a query without results, costs one as well. A listener costs
	// its first results, then one for each document that has changed, but none
	// for a deleted one.
	Reads int64
	// Writes is one for each committed write that is not a delete.
	Writes int64
}

// Server is an in-memory Firestore. All its methods may be called concurrently.
type Server struct {
	*wire.Server // Serve, Dial and Close
	store        *store
}

// NewServer returns an empty server. It needs Close. The data are gone with the Server.
func NewServer(o Options) *Server {
	if o.Now == nil {
		o.Now = time.Now
	}
	s := &Server{store: newStore(o.Now)}
	s.Server = wire.NewServer(maxMessageBytes, func(r grpc.ServiceRegistrar) {
		firestorepb.RegisterFirestoreServer(r, &api{store: s.store})
	})
	return s
}

// Usage returns the billed operations so far.
func (s *Server) Usage() Usage {
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	return s.store.billed
}
