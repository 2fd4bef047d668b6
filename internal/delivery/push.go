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

// unknownMessage is the Task of a message whose id was not read.
const unknownMessage = "unknown"

// PubSub reads a wrapped message of a push subscription of Pub/Sub. The id is the message's
// attribute of the kind's IDField. Without that attribute, the message's data is a JSON object
// that has it, as the body of a task.
func PubSub(w http.ResponseWriter, r *http.Request, k Kind) (d Delivery, err error) {
	body, err := readBody(w, r)
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large): // its id follows its data
		return Delivery{Task: unknownMessage}, err
	case err != nil:
		return d, err
	case !utf8.Valid(body): // encoding/json would replace invalid bytes
		return d, errors.New("the body is not UTF-8")
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
	message := push.Message
	d.Task, d.Tries = message.MessageID, max(0, push.DeliveryAttempt)
	if err != nil || d.Task == "" {
		return d, errors.New(`the body is not a wrapped message of Pub/Sub, {"message": {"messageId": "…", …}}`)
	}
	id, found := message.Attributes[cmp.Or(k.IDField, analysisField)]
	if !found {
		if id, err = readID(message.Data, k); err != nil {
			return d, fmt.Errorf("the message's data: %w", err)
		}
	}
	d.AnalysisID = id
	return d, nil
}

// created is the type of the event that a document was created. The type of the event that
// also names the author has the suffix withAuthContext.
const created, withAuthContext = "google.cloud.firestore.document.v1.created", ".withAuthContext"

// Eventarc returns a Reader of Firestore's event that a document was created, in the binary
// mode of CloudEvents: everything but the document's fields is in headers, so the body is not
// examined. The document must be directly in the collection of the database. Firestore does not
// percent-encode its path, so it is not decoded.
func Eventarc(database, collection string) Reader {
	return func(w http.ResponseWriter, r *http.Request, _ Kind) (Delivery, error) {
		_, _ = io.Copy(io.Discard, http.MaxBytesReader(w, r.Body, maxBody)) // so that the connection can be used again
		d := Delivery{Task: r.Header.Get("Ce-Id")}
		id, inside := strings.CutPrefix(r.Header.Get("Ce-Document"), collection+"/")
		switch {
		case d.Task == "":
			return d, errors.New("the header ce-id of an event is missing")
		case strings.TrimSuffix(r.Header.Get("Ce-Type"), withAuthContext) != created:
			return d, errors.New("the event's type is not " + created)
		case r.Header.Get("Ce-Database") != database:
			return d, errors.New("the event is not from the database " + database)
		case !inside:
			return d, errors.New("the event's document is not in the collection " + collection)
		}
		d.AnalysisID = id
		return d, nil
	}
}

// BookOnly returns a Reader of deliveries that book another in the queue instead of a run.
func BookOnly(read Reader) Reader {
	return func(w http.ResponseWriter, r *http.Request, k Kind) (Delivery, error) {
		d, err := read(w, r, k)
		d.book = true
		return d, err
	}
}

// forward books a delivery for the message at hand. A message that is delivered again books
// the same task.
func (a *attempt) forward(ctx context.Context) Outcome {
	o := Outcome{Case: Unavailable, ID: a.id}
	if err := analysislock.CheckID(a.id); err != nil {
		return refusal(a.id, err)
	}
	if a.bookAt(ctx, a.Kind.task("push", a.id, a.task), time.Time{}) {
		o.Case = Booked
	}
	return o
}
