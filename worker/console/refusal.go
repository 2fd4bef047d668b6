package console

import (
	"errors"
	"net/http"

	"taskguard/lease"
	"taskguard/worker/printable"
	"taskguard/worker/taskauth"
)

// refusal is an answer that is a page with a sentence.
type refusal struct {
	code    int
	message string
	back    string // an address to go on from; empty: the list
}

func (r refusal) Error() string { return r.message }

// to is r with an address to go on from.
func (r refusal) to(back string) refusal {
	r.back = back
	return r
}

// saying is r in words of the case's own.
func (r refusal) saying(message string) refusal {
	r.message = message
	return r
}

// The one table of what is answered besides the page that was asked for.
var (
	notHere      = refusal{code: http.StatusMisdirectedRequest, message: "This console answers on the loopback interface, by its name there: localhost or 127.0.0.1."}
	foreignSite  = refusal{code: http.StatusForbidden, message: "Another site may link here, and no more."}
	notYou       = refusal{code: http.StatusForbidden, message: "You may not look here."}
	noKeys       = refusal{code: http.StatusServiceUnavailable, message: "The identity proxy's keys are out of reach, so nobody can be let in now."}
	noProof      = refusal{code: http.StatusUnauthorized, message: "This console lets in those alone for whom its identity proxy vouches, and finds no such word of it in this request. Its log says what is wrong."}
	readOnly     = refusal{code: http.StatusForbidden, message: "This console only shows. Changes are made where it is started with --write, or by taskguard unlock and requeue."}
	foreignForm  = refusal{code: http.StatusForbidden, message: "Your browser does not say that this form comes from this console. Nothing is changed. Open the analysis and confirm again."}
	unbooked     = refusal{code: http.StatusBadGateway, message: ", but no delivery could be booked; the console's log says why. Go on to book one: to unlock what nobody holds does that alone."}
	noAnalysis   = refusal{code: http.StatusNotFound, message: "There is no analysis with this id."}
	noSuchID     = refusal{code: http.StatusBadRequest, message: "No analysis can have this id."}
	malformed    = refusal{code: http.StatusUnprocessableEntity, message: "The lock of this analysis cannot be read, so it cannot be changed here. The command taskguard unlock gives it a new token."}
	locked       = refusal{code: http.StatusConflict}
	unavailable  = refusal{code: http.StatusServiceUnavailable, message: "Firestore does not answer. Try again."}
	storeRefuses = refusal{code: http.StatusBadGateway}
	broken       = refusal{code: http.StatusInternalServerError, message: "Something went wrong here."}
)

// unidentified puts the errors of an Identity into words.
func unidentified(err error) refusal {
	switch {
	case errors.Is(err, taskauth.ErrForbidden):
		return notYou
	case errors.Is(err, taskauth.ErrNoKeys):
		return noKeys
	}
	return noProof
}

// refused puts the errors of a Source or an Operator into words.
func refused(err error, back string) refusal {
	var held *lease.HeldError
	var no *Refusal
	switch {
	case errors.As(err, &no):
		return storeRefuses.saying(unanswered(err) + ".").to(back)
	case errors.Is(err, lease.ErrNotFound):
		return noAnalysis
	case errors.Is(err, lease.ErrInvalidKey):
		return noSuchID
	case errors.Is(err, lease.ErrMalformed):
		return malformed
	case errors.As(err, &held):
		return locked.saying("Refused: it is locked by " + printable.Line(held.Owner) + " for " + span(held.Remaining) + " more. Wait, or unlock it first. Nothing is changed.").to(back)
	case errors.Is(err, lease.ErrUnavailable):
		return unavailable.to(back)
	}
	return storeRefuses.saying(printable.Line(err.Error())).to(back)
}
