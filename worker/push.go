package worker

import (
	"cmp"
	"net/http"
)

// PubSub returns the handler of a push subscription of Pub/Sub with wrapped messages of at most
// 1 MiB. A message's attribute IDField is the id of a document of k, which must exist; without
// it, the data is a JSON object with that field. A message is handled as a task of Handler: a
// 200 acknowledges it, and after any other answer Pub/Sub delivers it again, by the
// subscription's retry policy. What can never succeed is acknowledged, and logged as rejected.
//
// Pub/Sub waits for the answer until the acknowledgement deadline: 10 s by default, at most 600 s.
// Then it delivers the message again. The work does not run twice, but without a Queue the
// deliveries are repeated during the run. Set RunTimeout to less than the deadline, or let the
// Queue run the work: if k.Run is nil, a message only books a delivery to k.Path, and is then
// acknowledged.
//
// The subscription's token must pass Options.Auth. PubSub panics if k is not usable, or has
// neither a Run nor a Queue.
func (g *Guard) PubSub(k Kind) http.Handler { return g.push(k, readMessage) }

// Eventarc is like PubSub, for the events google.cloud.firestore.document.v1.created of
// documents that other programs create in k's collection, in the binary mode of CloudEvents.
// Any other event, or one of another project or database, is logged as rejected. Eventarc
// delivers by Pub/Sub, so the same limits apply. The event has the id in a header, so a document
// whose id begins or ends with a space is not found.
func (g *Guard) Eventarc(k Kind) http.Handler {
	collection := g.mustRegister(k, false).Collection
	return g.push(k, readEvent(g.options.Project, cmp.Or(g.options.Database, "(default)"), collection))
}

// push returns the handler of deliveries of k that read reads.
func (g *Guard) push(k Kind, read reader) http.Handler {
	return handler(g.deliveries(g.mustRegister(k, g.queue == nil).guard, k.analyzer(), read))
}
