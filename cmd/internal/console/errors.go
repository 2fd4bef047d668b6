package console

import (
	"errors"
	"net/http"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"taskguard/cmd/internal/cli"
	"taskguard/cmd/internal/printable"
	"taskguard/lease"
	"taskguard/lease/analysislock"
)

// refusal is an answer that shows one sentence instead of the requested page.
type refusal struct {
	code    int
	message string
	back    string // the address of the link; empty: the list
}

func (r refusal) Error() string { return r.message }

// The answers to requests that the console's own pages do not make.
var (
	wrongHost = refusal{code: http.StatusMisdirectedRequest,
		message: "This console answers only on the loopback interface, under the name localhost or 127.0.0.1."}
	noKeys = refusal{code: http.StatusServiceUnavailable,
		message: "The keys of the identity proxy are unreachable, so no request can be authenticated now."}
	noProof = refusal{code: http.StatusUnauthorized,
		message: "This request has no valid signed assertion of the identity proxy. The console's log has the reason."}
	foreignSite = refusal{code: http.StatusForbidden,
		message: "Another site's page has asked for this. Open the console by its address or by a link."}
	badValue = refusal{code: http.StatusBadRequest,
		message: "The address has a value that is not UTF-8 or is too long."}
	wrongSort = refusal{code: http.StatusBadRequest,
		message: "The list cannot be sorted like this. Click the name of a column instead."}
	noneSelected = refusal{code: http.StatusBadRequest,
		message: "No analysis is selected. Select some in the list first. Nothing is changed."}
	tooManySelected = refusal{code: http.StatusBadRequest,
		message: "You can change at most 200 selected analyses at once. To change more, filter the list and change " +
			"all that match. Nothing is changed."}
	noFilter = refusal{code: http.StatusBadRequest,
		message: "The address needs a state, a code or a time, and no id. Nothing is changed."}
	readOnly = refusal{code: http.StatusForbidden,
		message: "This console is read only. Start it with --write, or use the commands of taskguard."}
	foreignForm = refusal{code: http.StatusForbidden,
		message: "Your browser does not confirm that this form comes from this console. Nothing is changed. " +
			"Open the page again and confirm."}
	unconfirmed = refusal{code: http.StatusConflict,
		message: "The form does not name what was confirmed. Nothing is changed."}
	broken = refusal{code: http.StatusInternalServerError, message: "Something went wrong here."}
)

// causes has the answers to the errors of the documents or an Operator.
var causes = []struct {
	err     error
	code    int
	message string
}{
	{lease.ErrNotFound, http.StatusNotFound, "There is no analysis with this id."},
	{lease.ErrInvalidKey, http.StatusBadRequest, "No analysis can have this id."},
	{lease.ErrMalformed, http.StatusUnprocessableEntity, "The lock of this analysis cannot be read, so it cannot be " +
		"changed here. The command taskguard unlock gives it a new token."},
	{lease.ErrFinished, http.StatusConflict, "Refused: it is finished. Nothing is changed."},
	{analysislock.ErrUncertain, http.StatusConflict,
		"Refused: it has an act that may have been done. Resolve that first. Nothing is changed."},
	{analysislock.ErrNotUncertain, http.StatusConflict,
		"Refused: it has no uncertain act of that name. Perhaps it was answered before, or an attempt runs. " +
			"Nothing is changed."},
	{analysislock.ErrAllActs, http.StatusConflict,
		"Refused: * stands for all acts, because their records were overwritten. Look each of them up. If none was " +
			"done, choose that. Else complete the work by hand. Nothing is changed."},
}

// refusalOf returns the answer to an error of the documents or an Operator.
func refusalOf(err error, back string) refusal {
	var held *lease.HeldError
	if errors.As(err, &held) {
		return refusal{http.StatusConflict, "Refused: it is locked by " + printable.Line(held.Owner) + " for " +
			cli.Span(held.Remaining) + " more. Cancel it first, or, if its worker is dead, only unlock it. " +
			"Nothing is changed.", back}
	}
	for _, c := range causes {
		if errors.Is(err, c.err) {
			return refusal{c.code, c.message, back}
		}
	}

	switch {
	case errors.Is(err, ErrUnconfirmed):
		return refusal{http.StatusServiceUnavailable, problem(err) + ". Your change is not confirmed, but may have " +
			"been made: look at the state of the analysis before you try again.", back}
	case Permanent(err) != "":
		return refusal{http.StatusBadGateway, problem(err) + ".", back}
	case errors.Is(err, lease.ErrUnavailable):
		return refusal{http.StatusServiceUnavailable, problem(err) + ". Try again.", back}
	}
	return refusal{http.StatusBadGateway, printable.Line(err.Error()), back}
}

// MissingIndex explains a query that Firestore refuses for want of an index.
const MissingIndex = "an index of deploy/firestore.indexes.json is missing, or is still being built"

// permanent has the answers of Firestore that waiting does not change.
var permanent = map[codes.Code]string{
	codes.PermissionDenied:   "this account has no permission (PERMISSION_DENIED)",
	codes.Unauthenticated:    "it does not accept these credentials (UNAUTHENTICATED)",
	codes.NotFound:           "this database does not exist (NOT_FOUND)",
	codes.FailedPrecondition: MissingIndex + " (FAILED_PRECONDITION)",
	codes.InvalidArgument:    "it does not accept the request (INVALID_ARGUMENT)",
	codes.ResourceExhausted:  "a quota is used up (RESOURCE_EXHAUSTED)",
}

// Permanent describes an answer of Firestore that waiting does not change. It returns "" for other errors.
func Permanent(err error) string {
	code := status.Code(err)
	// Of a write, it is the answer to a document that has changed meanwhile. Only a query is refused.
	changed := code == codes.FailedPrecondition && !errors.Is(err, lease.ErrRefused)
	if changed || errors.Is(err, lease.ErrConflict) {
		return ""
	}
	return permanent[code]
}

// problem describes why Firestore has not answered, as the beginning of a sentence. Without an
// error, a read is under way.
func problem(err error) string {
	switch {
	case err == nil:
		return "Firestore is still being read"
	case errors.Is(err, lease.ErrInvalidKey):
		return "There can be no such id or page"
	case Permanent(err) != "":
		return "Firestore refuses: " + Permanent(err)
	}
	return "Firestore does not answer"
}
