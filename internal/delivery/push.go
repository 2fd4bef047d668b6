package delivery

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"taskguard/lease/analysislock"
)

// PubSub reads a wrapped message of a push subscription of Pub/Sub. The id is its attribute of
// the kind's IDField, else in its data, a JSON object as the body of a task.
func PubSub(w http.ResponseWriter, r *http.Request, k Kind) (d Delivery, err error) {
	body, err := readBody(w, r)
	if errors.As(err, new(*http.MaxBytesError)) {
		d.Task = "unknown" // its id follows its data
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
	err = json.Unmarshal(body, &push) // with an error of a type, it still reads the other fields
	d.Task, d.Tries = push.Message.MessageID, max(0, push.DeliveryAttempt)
	if err != nil || d.Task == "" || !utf8.Valid(body) {
		return d, errors.New(`the body is not a wrapped message of Pub/Sub, {"message": {"messageId": "…", …}}`)
	}
	id, found := push.Message.Attributes[cmp.Or(k.IDField, analysisField)]
	if !found {
		if id, err = readID(push.Message.Data, k); err != nil {
			return d, fmt.Errorf("the message's data: %w", err)
		}
	}
	d.AnalysisID = id
	return d, nil
}

// created is the type of an event. With its author, the type has the suffix withAuthContext.
const created, withAuthContext = "google.cloud.firestore.document.v1.created", ".withAuthContext"

// Eventarc returns a Reader of Firestore's events that a document was created in a collection,
// in the binary mode of CloudEvents. It reads the headers only; the project is ce-project, or
// that of ce-source. Firestore does not percent-encode the document's path, so it is not decoded.
func Eventarc(project, database, collection string) Reader {
	return func(w http.ResponseWriter, r *http.Request, _ Kind) (Delivery, error) {
		_, _ = io.Copy(io.Discard, http.MaxBytesReader(w, r.Body, maxBody)) // so that the connection can be used again
		d := Delivery{Task: r.Header.Get("Ce-Id")}
		id, inside := strings.CutPrefix(r.Header.Get("Ce-Document"), collection+"/")
		_, source, _ := strings.Cut(r.Header.Get("Ce-Source"), "/projects/")
		source, _, _ = strings.Cut(source, "/")
		switch {
		case d.Task == "" || strings.TrimSuffix(r.Header.Get("Ce-Type"), withAuthContext) != created:
			return d, errors.New("the request is not an event with a ce-id and the type " + created)
		case cmp.Or(r.Header.Get("Ce-Project"), source, project) != project:
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

// forward books a delivery for the message at hand. Each try of a message books the same task.
func (a *attempt) forward(ctx context.Context) Outcome {
	if err := analysislock.CheckID(a.id); err != nil {
		return refusal(a.id, err)
	}
	if !a.bookAt(ctx, a.Kind.task("push", a.id, a.task), time.Time{}) {
		return Outcome{Case: Unavailable, ID: a.id}
	}
	return Outcome{Case: Booked, ID: a.id}
}
