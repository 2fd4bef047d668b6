package console

import (
	"errors"
	"net/http"

	"taskguard/cmd/internal/printable"
	"taskguard/lease"
)

// refusal is an answer that shows one sentence instead of the requested page.
type refusal struct {
	code    int
	message string
	back    string // the address of the link; empty: the list
}

func (r refusal) Error() string { return r.message }

// The one table of the answers that are not the requested page.
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
	noFilter = refusal{code: http.StatusBadRequest,
		message: "The address needs a state, a code or a time, and no id. Nothing is changed."}
	readOnly = refusal{code: http.StatusForbidden,
		message: "This console is read only. Start it with --write, or use taskguard unlock, requeue or cancel."}
	foreignForm = refusal{code: http.StatusForbidden,
		message: "Your browser does not confirm that this form comes from this console. Nothing is changed. " +
			"Open the analysis and confirm again."}
	unconfirmed = refusal{code: http.StatusConflict,
		message: "The form does not name what was confirmed. Nothing is changed."}
	unbooked = refusal{code: http.StatusBadGateway,
		message: ", but no delivery could be booked; the console's log has the reason. " +
			"Go on to book one: to unlock a free analysis does only that."}
	noAnalysis = refusal{code: http.StatusNotFound, message: "There is no analysis with this id."}
	invalidID  = refusal{code: http.StatusBadRequest, message: "No analysis can have this id."}
	malformed  = refusal{code: http.StatusUnprocessableEntity,
		message: "The lock of this analysis cannot be read, so it cannot be changed here. " +
			"The command taskguard unlock gives it a new token."}
	finished     = refusal{code: http.StatusConflict, message: "Refused: it is finished. Nothing is changed."}
	locked       = refusal{code: http.StatusConflict}
	unavailable  = refusal{code: http.StatusServiceUnavailable, message: "Firestore does not answer. Try again."}
	storeRefuses = refusal{code: http.StatusBadGateway}
	broken       = refusal{code: http.StatusInternalServerError, message: "Something went wrong here."}
)

// refused returns the refusal for an error of a Source or an Operator.
func refused(err error, back string) (r refusal) {
	var held *lease.HeldError
	var permanent *Refusal
	switch {
	case errors.As(err, &permanent):
		r = storeRefuses
		r.message = problem(err) + "."
	case errors.Is(err, lease.ErrNotFound):
		return noAnalysis
	case errors.Is(err, lease.ErrInvalidKey):
		return invalidID

	case errors.Is(err, lease.ErrMalformed):
		r = malformed
	case errors.Is(err, lease.ErrFinished):
		r = finished
	case errors.As(err, &held):
		r = locked
		r.message = "Refused: it is locked by " + printable.Line(held.Owner) + " for " + span(held.Remaining) +
			" more. Cancel it first, or, if its worker is dead, only unlock it. Nothing is changed."
	case errors.Is(err, lease.ErrUnavailable):
		r = unavailable
	default:
		r = storeRefuses
		r.message = printable.Line(err.Error())
	}

	r.back = back
	return r
}
