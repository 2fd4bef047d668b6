package worker

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"unicode/utf8"

	"taskguard/internal/delivery"
)

// maxBody limits the body of a request, in bytes.
const maxBody = 1 << 20

var errIncomplete = errors.New("the body did not arrive in full")

// reader reads a delivery from a request. field is the name of the id. With an error it
// returns the fields that it has read.
type reader func(w http.ResponseWriter, r *http.Request, field string) (delivery.Delivery, error)

// readTask reads a task of Cloud Tasks: {"analysis_id": "…"} of any Content-Type, since
// Cloud Tasks sets none. It ignores unknown fields.
func readTask(w http.ResponseWriter, r *http.Request, field string) (d delivery.Delivery, err error) {
	d.Task = r.Header.Get("X-CloudTasks-TaskName")
	if retries, err := strconv.ParseUint(r.Header.Get("X-CloudTasks-TaskRetryCount"), 10, 31); err == nil {
		d.Tries = int(retries) + 1
	}
	body, err := readBody(w, r)
	if err == nil {
		d.AnalysisID, err = readID(body, field)
	}
	return d, err
}

// readBody reads a body of at most maxBody bytes.
func readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil && !errors.As(err, new(*http.MaxBytesError)) {
		return nil, errIncomplete
	}
	return body, err
}

// readID reads the id in a JSON object.
func readID(body []byte, field string) (id string, err error) {
	switch {
	case len(body) == 0:
		return "", fmt.Errorf(`the body is empty; want {%q: "…"}`, field)
	case !utf8.Valid(body): // encoding/json would replace invalid bytes
		return "", errors.New("the body is not UTF-8")
	}

	var task map[string]any // a struct would also accept ANALYSIS_ID as the field
	if json.Unmarshal(body, &task) != nil || task == nil {
		return "", fmt.Errorf(`the body is not the JSON object {%q: "…"}`, field)
	}
	id, ok := task[field].(string)
	if !ok {
		return "", fmt.Errorf("%s is missing, or is not a string", field)
	}
	return id, nil
}

// readMessage reads a wrapped message of a push subscription of Pub/Sub. The id is an attribute of
// the message, or else a field of its data, which has the form of a task's body.
func readMessage(w http.ResponseWriter, r *http.Request, field string) (d delivery.Delivery, err error) {
	body, err := readBody(w, r)
	if errors.As(err, new(*http.MaxBytesError)) {
		d.Task = "unknown" // the message's id comes after its data
	}
	if err != nil {
		return d, err
	}

	var push struct {
		Message struct {
			Attributes map[string]string
			Data       []byte
			MessageID  string
		}
		DeliveryAttempt int // only with a dead-letter policy
	}
	err = json.Unmarshal(body, &push) // after an UnmarshalTypeError, the other fields are read
	d.Task, d.Tries = push.Message.MessageID, max(0, push.DeliveryAttempt)
	if err != nil || d.Task == "" || !utf8.Valid(body) {
		return d, errors.New(`the body is not a wrapped message of Pub/Sub, {"message": {"messageId": "…", …}}`)
	}

	var found bool
	if d.AnalysisID, found = push.Message.Attributes[field]; found {
		return d, nil
	}
	if d.AnalysisID, err = readID(push.Message.Data, field); err != nil {
		return d, fmt.Errorf("the message's data: %w", err)
	}
	return d, nil
}

// created is the type of an event. The type of an event that names its author has the suffix
// withAuthContext.
const created, withAuthContext = "google.cloud.firestore.document.v1.created", ".withAuthContext"

// readEvent returns a reader of Firestore's events, in the binary mode of CloudEvents, that report
// a new document of the collection. The reader uses only headers. It does not decode the document's
// path, since Firestore does not percent-encode it.
func readEvent(project, database, collection string) reader {
	return func(w http.ResponseWriter, r *http.Request, _ string) (delivery.Delivery, error) {
		// Reading the body keeps the connection usable for the next request.
		_, _ = io.Copy(io.Discard, http.MaxBytesReader(w, r.Body, maxBody))

		d := delivery.Delivery{Task: r.Header.Get("Ce-Id")}
		id, inside := strings.CutPrefix(r.Header.Get("Ce-Document"), collection+"/")
		switch {
		case d.Task == "" || strings.TrimSuffix(r.Header.Get("Ce-Type"), withAuthContext) != created:
			return d, errors.New("the request is not an event with a ce-id and the type " + created)
		case cmp.Or(r.Header.Get("Ce-Project"), project) != project:
			return d, errors.New("the event is not from the project " + project)
		case cmp.Or(r.Header.Get("Ce-Database"), database) != database:
			return d, errors.New("the event is not from the database " + database)
		case !inside:
			return d, errors.New("the event's document is not in the collection " + collection)
		}
		d.AnalysisID = id
		return d, nil
	}
}

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

// push returns the handler of k's deliveries. read reads one.
func (g *Guard) push(k Kind, read reader) http.Handler {
	return handler(g.deliveries(g.mustRegister(k, g.queue == nil).guard, k.analyzer(), read))
}
