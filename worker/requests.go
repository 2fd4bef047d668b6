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

// parser reads a delivery from a request. field is the name of the id. With an error it
// returns the fields that it has read.
type parser func(w http.ResponseWriter, r *http.Request, field string) (delivery.Delivery, error)

// parseTask reads a task of Cloud Tasks: {"analysis_id": "…"} of any Content-Type, since
// Cloud Tasks sets none. It ignores unknown fields.
func parseTask(w http.ResponseWriter, r *http.Request, field string) (d delivery.Delivery, err error) {
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

// parseMessage reads a wrapped message of a push subscription of Pub/Sub. The id is an attribute of
// the message, or else a field of its data, which has the form of a task's body.
func parseMessage(w http.ResponseWriter, r *http.Request, field string) (d delivery.Delivery, err error) {
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

// parseEvent returns a parser of Firestore's events, in the binary mode of CloudEvents, that report
// a new document of the collection. The parser uses only headers. It does not decode the document's
// path, since Firestore does not percent-encode it.
func parseEvent(project, database, collection string) parser {
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
