package worker

import (
	"cmp"
	"net/http"

	"taskguard/internal/delivery"
)

// PubSub returns the handler of a push subscription of Pub/Sub that delivers its messages
// wrapped. The message's attribute IDField is the id of a document of k; without that
// attribute, its data is a JSON object that has the field. The document must exist: the
// message does not create it. The body of a request is limited to 1 MiB.
//
// A message is handled as a task of Handler, with the same answers. An answer of 200
// acknowledges it, and any other makes Pub/Sub deliver it again. With a Queue, the next
// attempt after a failure is booked in it, and the message is acknowledged. Without one, the
// subscription's own retry policy applies: set its backoff, and a dead-letter policy. A
// message that can never succeed is acknowledged, and logged as rejected; whether there is
// such a document is only judged with a dead-letter policy, at the sixth try.
//
// Pub/Sub waits for an answer for the subscription's acknowledgement deadline: 10 s by
// default, at most 600 s. It delivers a message again after that, while the first run goes on.
// Nothing is run twice, since the second delivery finds the document locked, but without a Queue it is
// repeated until the run has ended. So set RunTimeout to less than the deadline, or let the
// queue run the work: if k.Run is nil, the handler only books a delivery to k.Path, where
// Handler or another service runs it, and the message is acknowledged once that is booked.
//
// Pub/Sub's token for the subscription must pass Options.Auth: OIDC with its audience and
// its service account. PubSub panics if k is not usable, or has neither a Run nor a Queue.
func (g *Guard) PubSub(k Kind) http.Handler { return g.push(k, delivery.PubSub) }

// Eventarc is like PubSub, for Firestore's events of type
// google.cloud.firestore.document.v1.created, which an Eventarc trigger delivers when another
// program creates a document: its id is that of the document. Any other event, and one of
// another database or collection, is acknowledged and logged as rejected.
//
// Eventarc delivers through Pub/Sub, so its subscription's acknowledgement deadline and
// retry policy apply too. It discards an event that is not acknowledged within 24 h, unless
// that is configured otherwise. The id comes in a header, which loses spaces at its ends.
func (g *Guard) Eventarc(k Kind) http.Handler {
	filled, _ := k.Filled() // push panics with its error
	return g.push(k, delivery.Eventarc(cmp.Or(g.options.Database, "(default)"), filled.Collection))
}

// push returns the handler of the messages that read reads.
func (g *Guard) push(k Kind, read delivery.Reader) http.Handler {
	books := k.Run == nil && g.queue != nil
	if books {
		read = delivery.BookOnly(read)
	}
	return handler(g.server.Deliveries(g.handled(k, books).guard, read))
}
