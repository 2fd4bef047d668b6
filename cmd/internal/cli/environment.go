package cli

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"time"

	"taskguard/internal/env"
	"taskguard/repo"
	"taskguard/worker"
)

// Variables that name emulators.
const (
	FirestoreEmulator = "FIRESTORE_EMULATOR_HOST"
	TasksEmulator     = "CLOUD_TASKS_EMULATOR_HOST"
)

// Environment variables that the help of several commands names.
const (
	DatabaseVariables = "GOOGLE_CLOUD_PROJECT, FIRESTORE_DATABASE, FIRESTORE_EMULATOR_HOST, ANALYSES_COLLECTION, " +
		"CONCURRENCY_KEY, KINDS, KEEP_FINISHED, LOCK_TTL (5m), LOCK_HEARTBEAT, MAX_ATTEMPTS"
	RoomVariables = "DOCLOCK_DATABASE (FIRESTORE_DATABASE), DOCUMENT_LOCKS_COLLECTION (documentLocks)"
)

// Environment returns a reader of the call's environment.
func (c *Call) Environment() *env.Environment { return env.NewEnvironment(c.Lookup) }

// Check returns the problems that e has found as an EnvironmentError.
func Check(e *env.Environment) error {
	if err := e.Err(); err != nil {
		return EnvironmentError{err}
	}
	return nil
}

// needProject refuses an environment without a project, or that emulates the queue alone. Without a project and an
// emulator, its problem names the way to try the commands.
func needProject(e *env.Environment, f env.Firestore) {
	want := "must be set"
	if f.Emulator == "" {
		want += "; to try taskguard here, start `" + Program() + " local`, and run the exports it prints"
	}
	e.Refuse(f.Project == "", "GOOGLE_CLOUD_PROJECT", "%s", want)
	e.EmulateFirestoreToo()
}

// Place is the collection of a kind of work in a database.
type Place struct {
	env.Firestore
	worker.Kind
}

// String describes p for the head of the console.
func (p Place) String() string {
	text := p.Project + " / " + p.Database + " / " + p.Collection
	if p.Emulator != "" {
		text += " on the emulator " + p.Emulator
	}
	return text
}

// Called reports whether no deliveries run the work of the kind, but calls of Do and Idempotent.
func (p Place) Called() bool { return p.Name == records.Name }

// Other returns the name of the kind, or "" if it is analysis.
func (p Place) Other() string {
	if p.Name == analysis {
		return ""
	}
	return p.Name
}

// Flag returns " --kind NAME", or "" if the kind is analysis.
func (p Place) Flag() string {
	if p.Other() == "" {
		return ""
	}
	return " --kind " + p.Name
}

// Command returns the command name for the kind, as one types it.
func (p Place) Command(name string) string { return Program() + " " + name + p.Flag() }

// Rooms opens the document locks, which may be in another database than the analyses.
func (c *Call) Rooms(ctx context.Context) (*repo.Rooms, env.Firestore, error) {
	e := c.Environment()
	f := e.Firestore()
	collection := e.Checked("DOCUMENT_LOCKS_COLLECTION", "documentLocks", repo.CheckCollection)
	f.Database = cmp.Or(e.Checked("DOCLOCK_DATABASE", "", env.CheckName), f.Database)
	needProject(e, f)
	if err := Check(e); err != nil {
		return nil, f, err
	}
	rooms, err := repo.OpenRooms(ctx, f.Project, repo.Options{
		Database: f.Database, Emulator: f.Emulator, Collection: collection, Log: c.Log(),
	})
	return rooms, f, err
}

// dialTimeout limits Reach.
const dialTimeout = 3 * time.Second

// Reach returns an error within seconds if no emulator listens at address, the value of the
// variable name; Google's client libraries would try for minutes. It does not check an empty
// address.
func Reach(ctx context.Context, name, address string) error {
	if address == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("nothing answers at %s: %w; %s names it: start the emulator, or correct or unset the variable",
			address, err, name)
	}
	_ = conn.Close() // nothing was sent
	return nil
}

// Listen listens on address. Its error names the server.
func Listen(server, address string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("%s: %w; --port chooses another port", server, err)
	}
	return l, nil
}
